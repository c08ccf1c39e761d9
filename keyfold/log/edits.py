"""Pure edits of a manifest, each of which checks its own requirements.

An edit takes the newest manifest and returns the next one, or raises `CommitRefused`. If another commit came first, the
same edit is applied again. That works because the two kinds of change commute. An append only requires that it starts
at `next_offset` and that its sink epoch is the claimed one. A replacement only requires that the segments that it
replaces are still listed under the same names and that its compactor epoch is the claimed one.

Before an edit runs, `keyfold.log.manifest.stamped` fills in missing times, so an edit sees every listed segment with
its `appended_at_ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from keyfold.errors import Fenced, IsReplica, LeaseHeld, OffsetMoved, SegmentsMoved
from keyfold.log.gaps import with_gaps
from keyfold.log.manifest import (
    NO_EPOCH,
    NO_OFFSET,
    UNSTAMPED,
    Gap,
    Manifest,
    Pass,
    Replaced,
    RoleState,
    SegmentEntry,
)
from keyfold.log.names import Role, parse_name

Edit = Callable[[Manifest, int], Manifest]
"""(newest manifest, a store time after it landed) -> next manifest, without its version and commit id."""


@dataclass(frozen=True, slots=True)
class Swap:
    """Neighbouring segments, and their replacements.

    `new` covers the same range as `old` in the same order. If it is empty, no record survived, and the range goes to a
    neighbour. A new entry may keep its segment's name with a new index name: then only tombstones were marked.
    """

    old: tuple[SegmentEntry, ...]
    new: tuple[SegmentEntry, ...]


@dataclass(frozen=True, slots=True)
class Replacement:
    """One commit of a cleaning pass.

    `first_dirty_offset`: after this commit no superseded record is below it; it never goes back. `whole` is False for a
    part of a pass that other parts follow. Such a part marks no tombstones, because an epoch marks in one commit only:
    a part that marks claims its own epoch and is whole. `purged_to` and `purged_epoch` describe the tombstones that
    this commit removes. `mapped_to` is the end of the offset map that decided about the removed records.
    """

    swaps: tuple[Swap, ...]
    first_dirty_offset: int
    whole: bool = True
    purged_to: int = NO_OFFSET
    purged_epoch: int = NO_EPOCH
    mapped_to: int = NO_OFFSET
    release_lease: bool = True

    def objects(self) -> frozenset[str]:
        """Return the names that this replacement adds to the log."""
        brought = {n for s in self.swaps for e in s.new for n in (e.name, e.index_name)}
        return frozenset(brought - {n for s in self.swaps for e in s.old for n in (e.name, e.index_name)})


def claim(role: Role, expected_epoch: int, *, lease_ms: int = 0, holder: str = "") -> Edit:
    """Claim the next epoch for `role`, whose epoch was `expected_epoch` when the claimer read the manifest.

    A sink that finds another epoch than the one it read has lost a race and must not fence the winner. A compactor
    respects a lease that has not expired in store time, except its own.
    """

    def edit(manifest: Manifest, seen_ms: int) -> Manifest:
        require_writers(manifest)
        state = manifest.role(role)
        if state.epoch != expected_epoch:
            raise _fenced(manifest, role, expected_epoch)
        if state.lease_until_ms > seen_ms and state.lease_holder != holder:
            raise LeaseHeld(
                manifest.topic,
                manifest.partition,
                f"compactor {state.lease_holder} (epoch {state.epoch}) holds the lease for the next "
                f"{state.lease_until_ms - seen_ms} ms",
                until_ms=state.lease_until_ms,
            )
        epoch = manifest.last_epoch + 1
        until_ms = seen_ms + lease_ms if lease_ms else 0
        state = replace(state, epoch=epoch, lease_until_ms=until_ms, lease_holder=holder if lease_ms else "")
        return _with_role(replace(manifest, last_epoch=epoch), role, state)

    return edit


def append(
    epoch: int,
    entry: SegmentEntry | None,
    *,
    base_offset: int,
    next_offset: int,
    leader_epoch: int = -1,
    gaps: Sequence[Gap] = (),
    settings: Mapping[str, str] | None = None,
) -> Edit:
    """Extend the log from `base_offset` to `next_offset`: by one segment, or by none over a hole in the source."""

    def edit(manifest: Manifest, seen_ms: int) -> Manifest:
        _require_epoch(manifest, Role.SINK, epoch)
        if manifest.next_offset != base_offset:
            raise OffsetMoved(
                manifest.topic,
                manifest.partition,
                f"an append starts at offset {base_offset}, but the log ends at offset {manifest.next_offset}",
            )
        segments = manifest.segments
        if entry is not None:
            _require_own((entry.name, entry.index_name), Role.SINK, epoch)
            # A log without any remaining record has no segment for its range: the next segment gets it.
            base = base_offset if segments else manifest.log_start_offset
            segments = (*segments, replace(entry, base_offset=base, next_offset=next_offset))
        elif segments:
            segments = (*segments[:-1], replace(segments[-1], next_offset=next_offset))
        return replace(
            manifest,
            sink=replace(manifest.sink, append_seen_ms=seen_ms),
            segments=segments,
            next_offset=next_offset,
            first_dirty_offset=_first_dirty(manifest.first_dirty_offset, segments, next_offset),
            last_leader_epoch=manifest.last_leader_epoch if leader_epoch < 0 else leader_epoch,
            gaps=with_gaps(manifest.gaps, gaps),
            settings=manifest.settings if settings is None else dict(settings),
        )

    return edit


def follow(epoch: int, *, settings: Mapping[str, str], topic_id: str, cluster_id: str) -> Edit:
    """Record the topic's settings, and its ids if they were unknown."""

    def edit(manifest: Manifest, _seen_ms: int) -> Manifest:
        _require_epoch(manifest, Role.SINK, epoch)
        return replace(
            manifest,
            settings=dict(settings),
            topic_id=manifest.topic_id or topic_id,
            cluster_id=manifest.cluster_id or cluster_id,
        )

    return edit


def replace_segments(epoch: int, replacement: Replacement) -> Edit:
    """Replace the segments that a pass read by its results."""

    def edit(manifest: Manifest, _seen_ms: int) -> Manifest:
        _require_epoch(manifest, Role.COMPACTOR, epoch)
        _require_own(replacement.objects(), Role.COMPACTOR, epoch)
        _require_first_marks(manifest, replacement, epoch)
        segments = _swapped(manifest, replacement.swaps)
        unlinked = manifest.object_names() - {n for s in segments for n in (s.name, s.index_name)}
        version = manifest.version + 1
        first_dirty = max(manifest.first_dirty_offset, replacement.first_dirty_offset)
        return replace(
            manifest,
            segments=tuple(segments),
            first_dirty_offset=_first_dirty(first_dirty, segments, manifest.next_offset),
            purged_to=max(manifest.purged_to, replacement.purged_to),
            purged_epoch=max(manifest.purged_epoch, replacement.purged_epoch),
            last_pass_epoch=epoch if replacement.whole else manifest.last_pass_epoch,
            mapped_to=max(manifest.mapped_to, replacement.mapped_to),
            passes=_passes(manifest, segments, epoch),
            replaced=manifest.replaced + tuple(Replaced(name, version, UNSTAMPED) for name in sorted(unlinked)),
            compactor=_released(manifest.compactor) if replacement.release_lease else manifest.compactor,
        )

    return edit


def expire(epoch: int, expired: Sequence[SegmentEntry]) -> Edit:
    """Remove the first segments of the log: the log start moves to the first remaining segment.

    The last segment may be removed too: then the log is empty, and starts and ends at `next_offset`. The edit requires
    that the log starts with exactly these segments, so a concurrent append does not matter. It cannot hide a record
    from a reader: a tombstone is only removed together with everything before it, and `keyfold.read.position` tells a
    reader that has not read these segments that the log start has overtaken it.
    """

    def edit(manifest: Manifest, _seen_ms: int) -> Manifest:
        _require_epoch(manifest, Role.COMPACTOR, epoch)
        names = [(e.name, e.index_name) for e in expired]
        if [(e.name, e.index_name) for e in manifest.segments[: len(names)]] != names:
            raise SegmentsMoved(
                manifest.topic,
                manifest.partition,
                f"{', '.join(name for name, _ in names)}: no longer the first segments of the log",
            )
        shorter = without_first(manifest, len(names))
        unlinked = sorted(n for pair in names for n in pair)
        version = manifest.version + 1
        return replace(
            shorter, replaced=manifest.replaced + tuple(Replaced(name, version, UNSTAMPED) for name in unlinked)
        )

    return edit


def without_first(manifest: Manifest, count: int) -> Manifest:
    """Return the log without its first `count` segments; `replaced` is unchanged."""
    if not count:
        return manifest
    segments = manifest.segments[count:]
    log_start = segments[0].base_offset if segments else manifest.next_offset
    marks = {e for s in segments for e in s.cleaned_epochs}
    return replace(
        manifest,
        segments=segments,
        log_start_offset=log_start,
        first_dirty_offset=_first_dirty(max(manifest.first_dirty_offset, log_start), segments, manifest.next_offset),
        passes=tuple(p for p in manifest.passes if p.epoch in marks),
    )


def renew(epoch: int, lease_ms: int) -> Edit:
    """Extend the compactor's lease to `lease_ms` from now; 0 releases it."""

    def edit(manifest: Manifest, seen_ms: int) -> Manifest:
        _require_epoch(manifest, Role.COMPACTOR, epoch)
        state = manifest.compactor
        state = replace(state, lease_until_ms=seen_ms + lease_ms) if lease_ms else _released(state)
        return replace(manifest, compactor=state)

    return edit


def forget(epoch: int, names: Iterable[str]) -> Edit:
    """Remove deleted objects from the list of replaced ones."""
    gone = frozenset(names)

    def edit(manifest: Manifest, _seen_ms: int) -> Manifest:
        _require_epoch(manifest, Role.COMPACTOR, epoch)
        return replace(manifest, replaced=tuple(r for r in manifest.replaced if r.name not in gone))

    return edit


def _swapped(manifest: Manifest, swaps: Iterable[Swap]) -> list[SegmentEntry]:
    """Return the log's segments after swaps, whose old segments do not overlap.

    One walk over all segments: a pass may replace ten thousand of them in one commit.
    """
    due = _swaps_by_position(manifest, swaps)
    segments: list[SegmentEntry] = []
    position, orphaned_from = 0, None
    while position < len(manifest.segments):
        swap = due.get(position)
        old = manifest.segments[position : position + (len(swap.old) if swap else 1)]
        begin, end = old[0].base_offset, old[-1].next_offset
        position += len(old)
        if swap is not None and not swap.new:
            # The range of segments without a survivor goes to the one before, or to the first that stays.
            if segments:
                segments[-1] = replace(segments[-1], next_offset=end)
            elif orphaned_from is None:
                orphaned_from = begin
            continue
        fresh = old if swap is None else _brought(old, swap.new)
        if orphaned_from is not None:
            fresh = (replace(fresh[0], base_offset=orphaned_from), *fresh[1:])
            orphaned_from = None
        segments.extend(fresh)
    return segments


def _swaps_by_position(manifest: Manifest, swaps: Iterable[Swap]) -> dict[int, Swap]:
    """Return the swaps by the position of their first segment. Raise `SegmentsMoved` if the log lists others."""
    names = [(e.name, e.index_name) for e in manifest.segments]
    positions = {pair: at for at, pair in enumerate(names)}
    found: dict[int, Swap] = {}
    taken: set[int] = set()
    for swap in swaps:
        wanted = [(e.name, e.index_name) for e in swap.old]
        at = positions.get(wanted[0]) if wanted else None
        if at is None or names[at : at + len(wanted)] != wanted or not taken.isdisjoint(range(at, at + len(wanted))):
            raise SegmentsMoved(
                manifest.topic,
                manifest.partition,
                f"{', '.join(name for name, _ in wanted)}: the log no longer lists these segments as planned",
            )
        taken.update(range(at, at + len(wanted)))
        found[at] = swap
    return found


def _brought(old: Sequence[SegmentEntry], new: Sequence[SegmentEntry]) -> tuple[SegmentEntry, ...]:
    """Return the new segments with the range and the age of the old ones."""
    appended_at_ms = max(e.appended_at_ms for e in old)
    made = [replace(e, appended_at_ms=max(appended_at_ms, e.appended_at_ms)) for e in new]
    # The newest manifest has the right end of the range: the sink may have moved the last one over a hole.
    made[0] = replace(made[0], base_offset=old[0].base_offset)
    made[-1] = replace(made[-1], next_offset=old[-1].next_offset)
    return tuple(made)


def _first_dirty(first_dirty: int, segments: Sequence[SegmentEntry], next_offset: int) -> int:
    """Move `first_dirty` over the hole that it points into, so that a segment with only clean records is not dirty.

    The sink can move the last range's end over a hole during a pass whose `first_dirty_offset` is the previous end.
    """
    for entry in segments:
        if entry.last_offset >= first_dirty:
            return max(first_dirty, entry.base_offset)
    return next_offset


def _passes(manifest: Manifest, segments: list[SegmentEntry], epoch: int) -> tuple[Pass, ...]:
    marks = {e for s in segments for e in s.cleaned_epochs}
    kept = tuple(p for p in manifest.passes if p.epoch in marks and p.epoch != epoch)
    return (*kept, Pass(epoch, UNSTAMPED)) if epoch in marks else kept


def _released(state: RoleState) -> RoleState:
    return replace(state, lease_until_ms=0, lease_holder="")


def _with_role(manifest: Manifest, role: Role, state: RoleState) -> Manifest:
    return replace(manifest, sink=state) if role is Role.SINK else replace(manifest, compactor=state)


Author = Role | Literal["replicator"] | None
"""The author of a commit: a role, the replicator, or None for an author without a claim and a commit id."""


def with_commit_id(manifest: Manifest, author: Author, commit_id: str) -> Manifest:
    """Return the manifest with `commit_id` as the last commit of `author`."""
    if isinstance(author, Role):
        return _with_role(manifest, author, replace(manifest.role(author), commit_id=commit_id))
    if author is None or manifest.replica is None:
        return manifest
    return replace(manifest, replica=replace(manifest.replica, commit_id=commit_id))


def commit_id_of(manifest: Manifest, author: Author) -> str:
    """Return the last commit id of `author`; empty if the manifest has none."""
    if isinstance(author, Role):
        return manifest.role(author).commit_id
    return "" if author is None or manifest.replica is None else manifest.replica.commit_id


def require_writers(manifest: Manifest) -> None:
    """Raise `IsReplica` if the log is a replica, to which neither sink nor compactor may write."""
    state = manifest.replica
    if state is not None:
        raise IsReplica(
            manifest.topic,
            manifest.partition,
            f"this log is the replica `{state.name}` of {state.source}; only its replicator may write to it",
            source=state.source,
            hint="write to the source, or make the replica the source with `keyfold replica promote`",
        )


def _require_epoch(manifest: Manifest, role: Role, epoch: int) -> None:
    require_writers(manifest)
    if manifest.role(role).epoch != epoch:
        raise _fenced(manifest, role, epoch)


def _fenced(manifest: Manifest, role: Role, epoch: int) -> Fenced:
    return Fenced(
        manifest.topic,
        manifest.partition,
        f"another {role.name.lower()} has claimed epoch {manifest.role(role).epoch}; this one had epoch {epoch}",
    )


def _require_first_marks(manifest: Manifest, replacement: Replacement, epoch: int) -> None:
    """Require that an epoch marks in one whole commit only; otherwise `last_pass_epoch` would be ambiguous."""
    if any(epoch in entry.cleaned_epochs for swap in replacement.swaps for entry in swap.new):
        assert replacement.whole, f"a part of pass {epoch} marks tombstones; it must claim an epoch of its own"
        assert manifest.last_pass_epoch != epoch, f"pass {epoch} has ended and marks tombstones again"


def _require_own(names: Iterable[str], role: Role, epoch: int) -> None:
    """Require that a commit only adds objects of its own role and epoch: others may be orphans in deletion."""
    for name in names:
        parsed = parse_name(name)
        assert parsed is not None, f"{name} is not the name of a segment or an index"
        assert (parsed.role, parsed.epoch) == (role, epoch), (
            f"{name} does not belong to role {role.name}, epoch {epoch}"
        )
