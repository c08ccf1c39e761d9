"""The manifest: the contents of one partition's log, as values.

A manifest lists the log's segments in order. Their *ranges* `[base_offset, next_offset)` are contiguous from
`log_start_offset` to the log's `next_offset`: a hole inside a range is legal (compaction, transactions), a hole between
ranges is corruption. The range of a segment may differ from the base offset in its name, because an emptied segment's
range goes to its neighbour.

The times that protect readers are not known when a manifest is built, only after it has landed. So a commit leaves them
`UNSTAMPED`, and the next commit of any author fills in the store's time at which it had *seen* them (`stamped`).

Invariant (`faults`): the rules above, consistent counts, and epochs that never exceed `last_epoch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final
from uuid import UUID

from keyfold.log.names import Role, is_index_name, is_segment_name
from keyfold.store.api import STORE_TIME_RESOLUTION_MS

UNSTAMPED: Final = -1
COUNTED_MAX: Final = 2**62
"""Limit of versions and epochs, which no writer reaches. Above it, the next one might not fit into 64 bits."""
NO_OFFSET: Final = -1
NO_EPOCH: Final = 0
NO_VERSION: Final = -1
WHOLE_RANGE: Final = -1

Unknown = Mapping[str, object]
"""Fields of a newer format, which this version keeps but does not interpret."""


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """The manifest's entry of one segment and its index.

    Sizes are stored bytes. `min_timestamp`/`max_timestamp` are record timestamps in ms (-1: the segment has none).
    `appended_at_ms` is store time, or `UNSTAMPED`; a merge keeps the latest. `cleaned_epochs` are the distinct passes
    that marked tombstones in this segment (ascending); `unmarked_tombstone_count` are those without a mark.
    `checksum` and `index_checksum` are SHA-256.
    """

    name: str
    index_name: str
    base_offset: int
    last_offset: int
    next_offset: int
    record_count: int
    tombstone_count: int
    unmarked_tombstone_count: int
    keyless_count: int
    size_bytes: int
    index_size_bytes: int
    min_timestamp: int
    max_timestamp: int
    appended_at_ms: int
    checksum: bytes
    index_checksum: bytes
    cleaned_epochs: tuple[int, ...] = ()
    schema_ids: tuple[int, ...] = ()
    unknown: Unknown = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class RoleState:
    """A role's claim: its epoch (0: never claimed), its last commit, and for the compactor its lease (store time).

    `append_seen_ms`, for the sink: the latest store time it knew when it last appended, so its append is not older; 0
    if unknown. Other commits do not change it.
    """

    epoch: int = NO_EPOCH
    commit_id: str = ""
    lease_until_ms: int = 0
    lease_holder: str = ""
    append_seen_ms: int = 0


@dataclass(frozen=True, slots=True)
class Pass:
    """A cleaning pass that marks of tombstones refer to. `committed_at_ms` is store time, or `UNSTAMPED`."""

    epoch: int
    committed_at_ms: int


@dataclass(frozen=True, slots=True)
class Gap:
    """A range of offsets `[from_offset, to_offset)` in which the log lacks records that the source once had.

    `record_count` is the number of records missing for this reason, or `WHOLE_RANGE` if all may be missing. Single
    skipped records are counted over a range in which the log has other records (`keyfold.log.gaps`).
    """

    from_offset: int
    to_offset: int
    reason: str
    record_count: int = WHOLE_RANGE
    unknown: Unknown = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Hold:
    """A source's information about one replica: the objects that it needs, and the offsets that it has.

    A running round needs the objects of `version` until `expires_at_ms` (store time); `NO_VERSION` means no round.
    `received_to` is the `next_offset` of the newest version that the replica has completely, -1 for none. It only goes
    back if the log gives up records to follow another one. `received_at_ms` is a store time at which it was known.
    """

    replica: str
    version: int
    expires_at_ms: int
    received_to: int = NO_OFFSET
    received_at_ms: int = UNSTAMPED
    unknown: Unknown = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Token:
    """A replicator's proof of its claim for each commit: the claimed epoch, and the random id of the claim.

    Epochs belong to one manifest, and start again if it is lost and created again; the random id is unique.
    """

    epoch: int
    claim_id: str


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The state of a replica, which has version `source_version` of the log `source_log_id` at `source` (a URL).

    `epoch` is the replicator's claim: the manifest version of the claim, so it is never reused while a manifest exists,
    not even after a promotion. `claim_id` is the claimer's random id; empty if no replicator has claimed. A
    `source_version` of 0 means that the replica has received no data yet. `received_at_ms` is a time of this store at
    which the source had that version.
    """

    epoch: int = NO_EPOCH
    commit_id: str = ""
    name: str = ""
    source: str = ""
    source_log_id: str = ""
    source_version: int = 0
    received_at_ms: int = UNSTAMPED
    claim_id: str = ""
    unknown: Unknown = field(default_factory=dict, compare=False)

    @property
    def token(self) -> Token:
        """The token that its replicator must present."""
        return Token(self.epoch, self.claim_id)


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A log that this one continues, from its `version` with this `next_offset` and `last_epoch`."""

    log_id: str
    version: int
    next_offset: int
    last_epoch: int = NO_EPOCH
    unknown: Unknown = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Replaced:
    """An object (segment or index) that the commit `version` unlinked. `unlinked_at_ms`: store time or `UNSTAMPED`."""

    name: str
    version: int
    unlinked_at_ms: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of a partition's log.

    `purged_to` is the highest offset of a removed tombstone, `purged_epoch` the latest pass that marked such a
    tombstone, `last_pass_epoch` the last pass that committed completely. With them a reader knows exactly whether a
    tombstone that it still needed was removed (see `keyfold.read.position`).
    `mapped_to`: if a record was removed because of a newer record of its key, the newer one is below this offset. It
    may be above `first_dirty_offset` after a part of a pass, and after a pass that left segments with garbage; -1:
    unknown.
    `settings` are the topic settings that the sink follows from Kafka, by Kafka's names.
    `replica` is the state of a replica; None for a log with its own writers. `lineage` has the logs that this log
    continues, oldest first.
    """

    topic: str
    partition: int
    log_id: str
    sync_marker: bytes
    topic_id: str = ""
    cluster_id: str = ""
    version: int = 1
    last_epoch: int = 0
    sink: RoleState = RoleState()
    compactor: RoleState = RoleState()
    log_start_offset: int = 0
    next_offset: int = 0
    first_dirty_offset: int = 0
    purged_to: int = NO_OFFSET
    purged_epoch: int = NO_EPOCH
    last_pass_epoch: int = NO_EPOCH
    mapped_to: int = NO_OFFSET
    last_leader_epoch: int = -1
    passes: tuple[Pass, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    holds: tuple[Hold, ...] = ()
    segments: tuple[SegmentEntry, ...] = ()
    replaced: tuple[Replaced, ...] = ()
    replica: ReplicaState | None = None
    lineage: tuple[Ancestor, ...] = ()
    min_reader: int = 1
    min_writer: int = 1
    features: tuple[str, ...] = ()
    unknown: Unknown = field(default_factory=dict, compare=False)
    writer_schema: str = field(default="", compare=False)

    def role(self, role: Role) -> RoleState:
        """Return the state of one role."""
        return self.sink if role is Role.SINK else self.compactor

    @property
    def log_version(self) -> int:
        """The version number within its log: its own, or for a replica the source's."""
        return self.version if self.replica is None else self.replica.source_version

    @property
    def is_replica(self) -> bool:
        """Whether the log is a replica, to which only a replicator may write."""
        return self.replica is not None

    def ancestor(self, log_id: str) -> Ancestor | None:
        """Return the log with this id that this one continues, or None."""
        return next((a for a in reversed(self.lineage) if a.log_id == log_id), None)

    def hold(self, replica: str) -> Hold | None:
        """Return the hold of this replica, or None."""
        return next((h for h in self.holds if h.replica == replica), None)

    @property
    def record_count(self) -> int:
        """Records in the log, tombstones included."""
        return sum(s.record_count for s in self.segments)

    @property
    def size_bytes(self) -> int:
        """Stored bytes of all segments, without indexes."""
        return sum(s.size_bytes for s in self.segments)

    def object_names(self) -> frozenset[str]:
        """Names of all objects that this version reads."""
        return frozenset(n for s in self.segments for n in (s.name, s.index_name))


def new_log_id(random: Random) -> str:
    """Return an id for a log that is created."""
    return str(UUID(int=random.getrandbits(128), version=4))


def is_over(stamp_ms: int, wait_ms: int, now_ms: int) -> bool:
    """Return whether a wait of `wait_ms` that began at `stamp_ms` has certainly ended at the store time `now_ms`.

    Store times are rounded to seconds and may be slightly stale; a wait may take longer than configured, never shorter.
    A wait of 0 only requires that the commit has landed.
    """
    if stamp_ms == UNSTAMPED:
        return False
    return wait_ms <= 0 or now_ms - STORE_TIME_RESOLUTION_MS >= stamp_ms + wait_ms


def stamped(manifest: Manifest, seen_ms: int) -> Manifest:
    """Fill in missing times with `seen_ms`, a store time at which `manifest` had already landed.

    In a replica the times of segments and passes are the source's, and are copied after the source has written them.
    """
    unlinked = tuple(
        replace(r, unlinked_at_ms=seen_ms) if r.unlinked_at_ms == UNSTAMPED else r for r in manifest.replaced
    )
    if manifest.replica is not None:
        return replace(manifest, replaced=unlinked)
    return replace(
        manifest,
        segments=tuple(
            replace(s, appended_at_ms=seen_ms) if s.appended_at_ms == UNSTAMPED else s for s in manifest.segments
        ),
        passes=tuple(
            replace(p, committed_at_ms=seen_ms) if p.committed_at_ms == UNSTAMPED else p for p in manifest.passes
        ),
        replaced=unlinked,
    )


def content(manifest: Manifest) -> Manifest:
    """Return the log that a manifest describes, without information about its commits and its bucket.

    Two manifests with equal content describe the same state of the same log, in any bucket. The version, holds, the
    state of a replica, leases, commit ids and replaced objects are omitted. `last_epoch` is omitted too, because every
    claimed epoch is also in its role.
    """
    return replace(
        manifest,
        version=0,
        last_epoch=0,
        sink=RoleState(manifest.sink.epoch),
        compactor=RoleState(manifest.compactor.epoch),
        holds=(),
        replaced=(),
        replica=None,
        writer_schema="",
    )


def was_compacted(manifest: Manifest) -> bool:
    """Return whether any pass, or a part of one, has ever committed: then the log may lack records of the topic."""
    return (
        manifest.last_pass_epoch > NO_EPOCH
        or manifest.purged_to > NO_OFFSET
        or manifest.mapped_to > NO_OFFSET
        or _has_clean_part(manifest)
    )


def _has_clean_part(manifest: Manifest) -> bool:
    """Return whether `first_dirty_offset` shows that a part was cleaned.

    An append moves it over a hole, so it may be above the log start although no compactor ever ran: after the hole at
    the start of the log. That is the end of a log without segments, and later within the range of the first segment.
    """
    if not manifest.segments:
        return manifest.first_dirty_offset not in {manifest.log_start_offset, manifest.next_offset}
    return manifest.first_dirty_offset >= manifest.segments[0].next_offset


def faults(manifest: Manifest) -> list[str]:
    """Return the inconsistencies within a manifest, without reading any object. Empty if it is sound."""
    found = _name_faults(manifest)
    position = manifest.log_start_offset
    for entry in manifest.segments:
        found.extend(_entry_faults(entry, position))
        position = entry.next_offset
    if manifest.segments and position != manifest.next_offset:
        found.append(f"the last range ends at {position}, not at next_offset {manifest.next_offset}")
    if not manifest.log_start_offset <= manifest.first_dirty_offset <= manifest.next_offset:
        found.append(
            f"first_dirty_offset {manifest.first_dirty_offset} is outside "
            f"[{manifest.log_start_offset}, {manifest.next_offset}]"
        )
    if max(manifest.version, manifest.last_epoch) > COUNTED_MAX:
        found.append(f"version {manifest.version} or last_epoch {manifest.last_epoch} is too large to be incremented")
    if max(manifest.sink.epoch, manifest.compactor.epoch) > manifest.last_epoch:
        found.append(f"a role's epoch is above last_epoch {manifest.last_epoch}")
    names = [n for s in manifest.segments for n in (s.name, s.index_name)]
    if len(set(names)) != len(names):
        found.append("an object is listed twice")
    doubled = set(names) & {r.name for r in manifest.replaced}
    found.extend(f"{name} is both listed and replaced" for name in sorted(doubled))
    if len({h.replica for h in manifest.holds}) != len(manifest.holds):
        found.append("a replica has two holds")
    missing = {e for s in manifest.segments for e in s.cleaned_epochs} - {p.epoch for p in manifest.passes}
    found.extend(f"pass {epoch} marks tombstones but is not among passes" for epoch in sorted(missing))
    return found


def _name_faults(manifest: Manifest) -> list[str]:
    """Return invalid names. A log reads, copies and deletes objects by name, so only its own may be listed."""
    found = [f"{s.name!r} is not the name of a segment" for s in manifest.segments if not is_segment_name(s.name)]
    found += [
        f"{s.index_name!r} is not the name of an index" for s in manifest.segments if not is_index_name(s.index_name)
    ]
    found += [
        f"{r.name!r} among the replaced objects is not the name of a segment or an index"
        for r in manifest.replaced
        if not (is_segment_name(r.name) or is_index_name(r.name))
    ]
    return found


def _entry_faults(entry: SegmentEntry, position: int) -> list[str]:
    found: list[str] = []
    if entry.base_offset != position:
        found.append(f"{entry.name}: range starts at {entry.base_offset}, but the previous range ends at {position}")
    if not entry.base_offset <= entry.last_offset < entry.next_offset:
        found.append(f"{entry.name}: last offset {entry.last_offset} is outside its range")
    if entry.record_count < 1:
        found.append(f"{entry.name}: the segment has no records")
    if entry.tombstone_count + entry.keyless_count > entry.record_count:
        found.append(f"{entry.name}: more tombstones and keyless records than records")
    if entry.unmarked_tombstone_count > entry.tombstone_count:
        found.append(f"{entry.name}: more unmarked tombstones than tombstones")
    return found
