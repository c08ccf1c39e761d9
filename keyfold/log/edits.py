"""What a commit may change: pure edits of a manifest, each with the requirements that it checks itself.

An edit takes the newest manifest and returns the next one, or raises `CommitRefused`. It is applied again, unchanged,
when another commit came between. That works because the two kinds of change commute: an append requires only that it
begins at `next_offset` and that its sink epoch is the claimed one, a replacement only that the segments that it
replaces are still listed under the same names and that its compactor epoch is the claimed one.

Before an edit runs, `keyfold.log.manifest.stamped` has written the times that were still missing, so an edit sees
every listed segment with its `appended_at_ms`.
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
"""(newest manifest, store time at which it had landed) -> next manifest, version and commit id still unset."""


@dataclass(frozen=True, slots=True)
class Swap:
    """Neighbouring segments, and what takes their place.

    `new` covers the same range as `old` in the same order, or is empty: nothing survived, and the range goes to a
    neighbour. A new entry may keep its segment's name under a new index name: the tombstones were marked.
    """

    old: tuple[SegmentEntry, ...]
    new: tuple[SegmentEntry, ...]


@dataclass(frozen=True, slots=True)
class Replacement:
    """One commit of a cleaning pass.

    `first_dirty_offset`: nothing superseded is left below it after this commit; it never goes back. `whole` is False
    for a part of a pass after which other parts follow; such a part marks no tombstone, for an epoch marks in one
    commit only: a part that is to mark claims an epoch of its own and is whole. `purged_to` and `purged_epoch`
    describe the tombstones that this commit removes. `mapped_to` is where the offset map ended by which it removes.
    """

    swaps: tuple[Swap, ...]
    first_dirty_offset: int
    whole: bool = True
    purged_to: int = NO_OFFSET
    purged_epoch: int = NO_EPOCH
    mapped_to: int = NO_OFFSET
    release_lease: bool = True

    def objects(self) -> frozenset[str]:
        """Names that this replacement brings into the log."""
        brought = {n for s in self.swaps for e in s.new for n in (e.name, e.index_name)}
        return frozenset(brought - {n for s in self.swaps for e in s.old for n in (e.name, e.index_name)})


def claim(role: Role, expected_epoch: int, *, lease_ms: int = 0, holder: str = "") -> Edit:
    """Take the next epoch for `role`, whose claimed epoch was `expected_epoch` when the claimer looked.

    A sink that meets another claim than the one it looked at has lost a race and must not fence the winner. A
    compactor respects a lease that has not run out in store time, unless it is its own.
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
    """Extend the log from `base_offset` to `next_offset`, by one segment, or without any over a hole in the source."""

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
            # A log whose every record was cleaned away has no segment left to carry its range: the next one does.
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
    """Write what the sink knows about the topic: its settings, and ids that were unknown so far."""

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
    """Put a pass's result in the place of what it read."""

    def edit(manifest: Manifest, _seen_ms: int) -> Manifest:
        _require_epoch(manifest, Role.COMPACTOR, epoch)
        _require_own(replacement.objects(), Role.COMPACTOR, epoch)
        _require_first_marks(manifest, replacement, epoch)
        segments = list(manifest.segments)
        for swap in replacement.swaps:
            _swap(manifest, segments, swap)
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
    """Take the first segments off the log: its start moves to where what is left begins.

    The last segment may go too: then the log is empty, and starts and ends at `next_offset`. Requires that the log
    begins with exactly these segments, so an append that comes between changes nothing. Nothing here can hide a record
    from a reader: a tombstone never goes without everything before it, and whoever has not read these segments yet is
    overtaken by the log start, which `keyfold.read.position` says.
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
    """The log that its first `count` segments have left, apart from `replaced`."""
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
    """Hold the compactor's lease for `lease_ms` from now; 0 gives it back."""

    def edit(manifest: Manifest, seen_ms: int) -> Manifest:
        _require_epoch(manifest, Role.COMPACTOR, epoch)
        state = manifest.compactor
        state = replace(state, lease_until_ms=seen_ms + lease_ms) if lease_ms else _released(state)
        return replace(manifest, compactor=state)

    return edit


def forget(epoch: int, names: Iterable[str]) -> Edit:
    """Take deleted objects off the list of replaced ones."""
    gone = frozenset(names)

    def edit(manifest: Manifest, _seen_ms: int) -> Manifest:
        _require_epoch(manifest, Role.COMPACTOR, epoch)
        return replace(manifest, replaced=tuple(r for r in manifest.replaced if r.name not in gone))

    return edit


def _swap(manifest: Manifest, segments: list[SegmentEntry], swap: Swap) -> None:
    at = _listed(manifest, segments, swap.old)
    old = segments[at : at + len(swap.old)]
    begin, end = old[0].base_offset, old[-1].next_offset
    if swap.new:
        appended_at_ms = max(e.appended_at_ms for e in old)
        new = [replace(e, appended_at_ms=max(appended_at_ms, e.appended_at_ms)) for e in swap.new]
        # The newest commit knows best where the range ends: the sink may have moved the last one over a hole.
        new[0] = replace(new[0], base_offset=begin)
        new[-1] = replace(new[-1], next_offset=end)
        segments[at : at + len(old)] = new
        return
    del segments[at : at + len(old)]
    if at > 0:
        segments[at - 1] = replace(segments[at - 1], next_offset=end)
    elif segments:
        segments[0] = replace(segments[0], base_offset=begin)


def _listed(manifest: Manifest, segments: list[SegmentEntry], old: tuple[SegmentEntry, ...]) -> int:
    wanted = [(e.name, e.index_name) for e in old]
    names = [(e.name, e.index_name) for e in segments]
    if wanted and wanted[0] in names:
        at = names.index(wanted[0])
        if names[at : at + len(wanted)] == wanted:
            return at
    raise SegmentsMoved(
        manifest.topic,
        manifest.partition,
        f"{', '.join(name for name, _ in wanted)}: the log no longer lists these segments as planned",
    )


def _first_dirty(first_dirty: int, segments: Sequence[SegmentEntry], next_offset: int) -> int:
    """Over the hole that it points into: no segment whose records are all clean counts as dirty for its range's end.

    The sink moves the last range's end over a hole while a pass runs whose `first_dirty_offset` is the end before.
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
"""Who commits: a role, who replicates, or None: somebody with no claim and no place for a commit id."""


def with_commit_id(manifest: Manifest, author: Author, commit_id: str) -> Manifest:
    """The manifest with `commit_id` as the last commit of `author`."""
    if isinstance(author, Role):
        return _with_role(manifest, author, replace(manifest.role(author), commit_id=commit_id))
    if author is None or manifest.replica is None:
        return manifest
    return replace(manifest, replica=replace(manifest.replica, commit_id=commit_id))


def commit_id_of(manifest: Manifest, author: Author) -> str:
    """The last commit of `author`; empty where there is no place for it."""
    if isinstance(author, Role):
        return manifest.role(author).commit_id
    return "" if author is None or manifest.replica is None else manifest.replica.commit_id


def require_writers(manifest: Manifest) -> None:
    """Raise `IsReplica` where neither sink nor compactor may write: the log follows another one."""
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
    """An epoch marks in one commit, its pass's whole one, or `last_pass_epoch` would not say which marks are made."""
    if any(epoch in entry.cleaned_epochs for swap in replacement.swaps for entry in swap.new):
        assert replacement.whole, f"a part of pass {epoch} marks tombstones; it must claim an epoch of its own"
        assert manifest.last_pass_epoch != epoch, f"pass {epoch} has ended and marks tombstones again"


def _require_own(names: Iterable[str], role: Role, epoch: int) -> None:
    """A commit brings in only objects of its own role and epoch: others may be orphans that are being deleted."""
    for name in names:
        parsed = parse_name(name)
        assert parsed is not None, f"{name} is not the name of a segment or an index"
        assert (parsed.role, parsed.epoch) == (role, epoch), (
            f"{name} does not belong to role {role.name}, epoch {epoch}"
        )
