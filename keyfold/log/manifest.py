"""The manifest: what one partition's log is made of, as values.

A manifest lists the log's segments in order. Their *ranges* `[base_offset, next_offset)` are contiguous from
`log_start_offset` to the log's `next_offset`: a hole inside a range is legal (compaction, transactions), a hole between
ranges is corruption. The range of a segment and the base offset in its name may differ, because an emptied segment's
range goes to its neighbour.

Times that protect readers are not known when a manifest is built, only when it has landed. So they are left
`UNSTAMPED`, and the next commit by anybody writes the store's time at which it had *seen* them (`stamped`).

Invariant (`check`): what is written above, counts that agree, epochs that never exceed `last_epoch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final
from uuid import UUID

from keyfold.log.names import Role, is_index_name, is_segment_name
from keyfold.store.api import STORE_TIME_RESOLUTION_MS

UNSTAMPED: Final = -1
COUNTED_MAX: Final = 2**62
"""No writer ever counts so far. From a larger version or epoch the next one might not fit into a manifest's numbers."""
NO_OFFSET: Final = -1
NO_EPOCH: Final = 0
NO_VERSION: Final = -1
WHOLE_RANGE: Final = -1

Unknown = Mapping[str, Any]
"""Fields of a newer format that this version keeps without understanding them."""


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """One segment and its index, as the manifest names them.

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

    `append_seen_ms`, for the sink: the store time that it knew when it last appended, so that its append is no older;
    0 where that is not known. What others commit leaves it as it is.
    """

    epoch: int = NO_EPOCH
    commit_id: str = ""
    lease_until_ms: int = 0
    lease_holder: str = ""
    append_seen_ms: int = 0


@dataclass(frozen=True, slots=True)
class Pass:
    """A cleaning pass that tombstones still refer to. `committed_at_ms` is store time, or `UNSTAMPED`."""

    epoch: int
    committed_at_ms: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets `[from_offset, to_offset)` of which the log misses some although the source had them once.

    `record_count` says how many of them are missing for this reason, or that all may be (`WHOLE_RANGE`): records that
    were skipped here and there are counted over a range that the log has others of (`keyfold.log.gaps`).
    """

    from_offset: int
    to_offset: int
    reason: str
    record_count: int = WHOLE_RANGE
    unknown: Unknown = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Hold:
    """What a source knows about one replica: what it still needs, and what it has.

    `version`: a round under way needs the objects of it, until `expires_at_ms` (store time); `NO_VERSION`: none is.
    `received_to` is the `next_offset` of the newest version that the replica has in full, -1 for none; it never goes
    back, but where the log gives up records to follow another one. `received_at_ms` is a store time at which that was
    known.
    """

    replica: str
    version: int
    expires_at_ms: int
    received_to: int = NO_OFFSET
    received_at_ms: int = UNSTAMPED
    unknown: Unknown = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Token:
    """What a replicator shows with each commit: the epoch that it claimed, and the id that it drew for that claim.

    Epochs are those of one manifest, and begin again where it was lost and made anew; no id was ever drawn before.
    """

    epoch: int
    claim_id: str


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """Whom a log follows: version `source_version` of the log `source_log_id`, at `source` (a URL, for people).

    `epoch` is the replicator's claim: the version of the manifest by which it claimed, so it never comes back while
    there is a manifest, not even after a promotion. `claim_id` is what the claimer drew; empty: nobody has claimed.
    `source_version` 0: nothing of that log has been received yet. `received_at_ms` is a time of this store at which the
    source had that version.
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
        """What its replicator has to show."""
        return Token(self.epoch, self.claim_id)


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A log that this one goes on with: up to `version` of it, which ended at `next_offset` and knew `last_epoch`."""

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

    `purged_to` is the highest offset of a tombstone ever removed, `purged_epoch` the latest pass whose mark such a
    tombstone carried, `last_pass_epoch` the last pass that committed in full: with them a reader knows exactly whether
    a tombstone went that it had still needed (see `keyfold.read.position`).
    `mapped_to`: whatever was removed for a newer record of its key, that one is below this offset. It may be above
    `first_dirty_offset`, after a part of a pass and after a pass that left segments with garbage; -1: no pass has said.
    `settings` are the topic settings that the sink follows from Kafka, by Kafka's names.
    `replica` says whom this log follows; None: it is a log with writers of its own. `lineage` are the logs that it goes
    on with, oldest first.
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
        """The state of one role."""
        return self.sink if role is Role.SINK else self.compactor

    @property
    def log_version(self) -> int:
        """Which version of its log this is: its own number, or for a replica the one that the source gave it."""
        return self.version if self.replica is None else self.replica.source_version

    @property
    def is_replica(self) -> bool:
        """Whether it follows another log, and only a replicator may write it."""
        return self.replica is not None

    def ancestor(self, log_id: str) -> Ancestor | None:
        """The log of this id that this one goes on with."""
        return next((a for a in reversed(self.lineage) if a.log_id == log_id), None)

    def hold(self, replica: str) -> Hold | None:
        """What is known about this replica."""
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
    """An id for a log that begins, or is made anew."""
    return str(UUID(int=random.getrandbits(128), version=4))


def is_over(stamp_ms: int, wait_ms: int, now_ms: int) -> bool:
    """Whether a wait of `wait_ms` that began at `stamp_ms` is surely over at the store time `now_ms`.

    Store times are whole seconds, rounded, and may be a little stale; a wait may take longer than was promised, never
    shorter. A wait of 0 only asks that the commit has landed.
    """
    if stamp_ms == UNSTAMPED:
        return False
    return wait_ms <= 0 or now_ms - STORE_TIME_RESOLUTION_MS >= stamp_ms + wait_ms


def stamped(manifest: Manifest, seen_ms: int) -> Manifest:
    """Write `seen_ms`, a store time at which `manifest` had already landed, wherever a time is missing.

    In a replica the times of segments and passes are the source's: they are copied when it has written them.
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
    """The log that a manifest describes, without what is about its commits and its surroundings alone.

    Two manifests with equal content describe the same state of the same log, whatever their buckets: the version, who
    follows and who is followed, leases, commit ids and what waits for deletion are left out. `last_epoch` is left out
    too: nothing claims an epoch without leaving it in its role.
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
    """Whether any pass, or a part of one, has ever committed: then records may be missing that the topic had."""
    return (
        manifest.last_pass_epoch > NO_EPOCH
        or manifest.purged_to > NO_OFFSET
        or manifest.mapped_to > NO_OFFSET
        or _has_clean_part(manifest)
    )


def _has_clean_part(manifest: Manifest) -> bool:
    """Whether something was cleaned, by `first_dirty_offset` alone.

    An append moves it over a hole, so it may be above the log start where no compactor has ever been: behind the hole
    that the log begins with. That is its end while there is no segment, and in the first one's range from then on.
    """
    if not manifest.segments:
        return manifest.first_dirty_offset not in {manifest.log_start_offset, manifest.next_offset}
    return manifest.first_dirty_offset >= manifest.segments[0].next_offset


def faults(manifest: Manifest) -> list[str]:
    """What is wrong with a manifest in itself, without looking at any object. Empty when it is sound."""
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
    """Names that are not those of segments and indexes in the partition's folder: they are read, copied and deleted."""
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
