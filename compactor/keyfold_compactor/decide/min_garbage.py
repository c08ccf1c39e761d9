"""Leave segments with too little garbage as they are: `segment.min.garbage.ratio`.

Kafka rewrites a segment for a single superseded record. With this ratio, a segment with a smaller share of garbage is
not rewritten. This module decides what that means for the rest of the pass, from figures alone:

    left segments           segments that would each be rewritten by themselves. A segment that loses nothing, or
                            everything, or that is merged anyway costs the same with or without a minimum
    tombstones              in the dirty part are not marked from the first left segment with superseded records on,
                            because that segment may have an older record of their key. So they cannot become due
                            before their values are gone. A tombstone in the clean part has no older record, and neither
                            has one that was marked before: those get their mark in a new index, also in left segments
    first_dirty_offset      does not move beyond that segment, and does not move at all if it is in the clean part.
                            The records that supersede its garbage must stay in the dirty part for the next pass

A forced pass, and one that is overdue by `max.compaction.lag.ms`, has no minimum.

Left garbage keeps the log dirty, which would make it due in every run. `LogsBelowMinGarbage` remembers for the life of
the process that no segment there was worth a rewrite. When something has changed, the log is decided about again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from keyfold.log.manifest import NO_OFFSET, Manifest, SegmentEntry
from keyfold.log.names import Place
from keyfold_compactor.decide.horizon import Purge, purge_of
from keyfold_compactor.decide.plan import SegmentGroup, SegmentStats, untouched
from keyfold_compactor.decide.policy import CleaningDecision, Reason
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.decide.work import LogJob


@dataclass(frozen=True, slots=True)
class PassPlan:
    """What a pass finally does. In `stats` left segments keep everything, marked or not.

    `left` are the positions of segments with too little garbage. From position `unmarked_from` on no tombstone is
    marked. `first_dirty` is the offset below which nothing superseded is left. `is_merge`: the pass reads no record.
    """

    groups: tuple[SegmentGroup, ...]
    stats: tuple[SegmentStats, ...]
    left: tuple[int, ...]
    unmarked_from: int
    first_dirty: int
    is_merge: bool = False


def only_merge(job: LogJob, groups: Sequence[SegmentGroup]) -> PassPlan:
    """Merge segments without reading records: nothing is marked, and `first_dirty_offset` stays."""
    stats = tuple(untouched(entry) for entry in job.entries)
    return PassPlan(tuple(groups), stats, (), 0, NO_OFFSET, is_merge=True)


def apply_min_garbage(
    job: LogJob, groups: Sequence[SegmentGroup], stats: Sequence[SegmentStats], least_ratio: float
) -> PassPlan:
    """Remove segments with less garbage than `least_ratio`, a share of stored bytes, from a pass's groups."""
    left = tuple(
        g.first for g in groups if _is_single(g) and garbage_ratio(job.entries[g.first], stats[g.first]) < least_ratio
    )
    held = next((at for at in left if stats[at].superseded_count), None)
    if held is None:
        unmarked_from, first_dirty = len(job.entries), job.end
    else:
        unmarked_from = _unmarked_from(job, groups, held)
        first_dirty = min(job.end, max(job.first_dirty, job.entries[held].base_offset))
    dropped = frozenset(left)
    chosen: list[SegmentGroup] = []
    for made in groups:
        if made.first not in dropped:
            if not (made.is_remark and made.first >= unmarked_from):
                chosen.append(made)
        elif made.first < unmarked_from and job.entries[made.first].unmarked_tombstone_count:
            chosen.append(_only_marked(made, job.entries[made.first]))
    return PassPlan(
        groups=tuple(chosen),
        stats=tuple(
            _as_left(entry, is_marked=at < unmarked_from)
            if at in dropped
            else found
            if at < unmarked_from
            else replace(found, mark_count=0)
            for at, (entry, found) in enumerate(zip(job.entries, stats, strict=True))
        ),
        left=left,
        unmarked_from=unmarked_from,
        first_dirty=first_dirty,
    )


def _unmarked_from(job: LogJob, groups: Sequence[SegmentGroup], held: int) -> int:
    """Return where marking ends: at the first left segment with superseded records, or at the end of the clean part.

    Below `first_dirty` no key occurs twice, so a clean tombstone has no older record even if that segment is clean too.
    A group that reaches from the clean part into the dirty part is not marked at all.
    """
    clean_count = sum(e.next_offset <= job.first_dirty for e in job.entries)
    if clean_count <= held:
        return held
    return next((g.first for g in groups if g.first < clean_count <= g.last), clean_count)


def _only_marked(made: SegmentGroup, entry: SegmentEntry) -> SegmentGroup:
    """Return a group that only writes a new index for a left segment."""
    return replace(made, is_remark=True, read_bytes=entry.index_size_bytes, write_bytes=entry.index_size_bytes)


def _as_left(entry: SegmentEntry, *, is_marked: bool) -> SegmentStats:
    """Return the stats of a left segment. A new index marks all its tombstones that have no mark."""
    return replace(untouched(entry), mark_count=entry.unmarked_tombstone_count if is_marked else 0)


def garbage_ratio(entry: SegmentEntry, found: SegmentStats) -> float:
    """Return the share of a segment's stored bytes that cleaning would free, as the map estimates it."""
    return (entry.size_bytes - found.kept_bytes) / entry.size_bytes


def min_garbage_ratio_of(decision: CleaningDecision, settings: TopicSettings) -> float:
    """Return the share of garbage that makes a segment worth rewriting in one pass."""
    if {Reason.FORCED, Reason.OVERDUE}.intersection(decision.reasons):
        return 0.0
    return settings.segment_min_garbage_ratio


def _is_single(group: SegmentGroup) -> bool:
    return group.first == group.last and not group.is_unlink and not group.is_remark


Signature: TypeAlias = tuple[tuple[str, ...], int, frozenset[tuple[str, int]], float]
"""Everything that the plan of a pass depends on: its segments, how far it goes, which marks go, and the least ratio."""


@dataclass(slots=True)
class LogsBelowMinGarbage:
    """Logs in which no segment has enough garbage to be rewritten."""

    _known: dict[Place, Signature] = field(default_factory=dict)

    def learn(self, manifest: Manifest, job: LogJob, pass_plan: PassPlan, min_garbage_ratio: float) -> None:
        """Record what a pass of `job` has left, given the manifest after it. May be called by many threads."""
        if pass_plan.left:
            self._known[job.place] = _signature(manifest, job.end, job.purge, min_garbage_ratio)
        else:
            self._known.pop(job.place, None)

    def knows(
        self, place: Place, manifest: Manifest, decision: CleaningDecision, settings: TopicSettings, now_ms: int
    ) -> bool:
        """Whether a pass now would find only what the last one has left."""
        known = self._known.get(place)
        if known is None or Reason.UNMARKED in decision.reasons:
            return False
        purge = purge_of(manifest, settings, now_ms)
        return known == _signature(manifest, decision.end, purge, min_garbage_ratio_of(decision, settings))


def _signature(manifest: Manifest, end: int, purge: Purge, min_garbage_ratio: float) -> Signature:
    segments = [s for s in manifest.segments if s.next_offset <= end]  # appends behind it change nothing
    going = frozenset((s.index_name, epoch) for s in segments for epoch in purge.of_all(s))
    return tuple(s.index_name for s in segments), end, going, min_garbage_ratio
