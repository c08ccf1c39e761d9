"""Segments with too little garbage to be worth rewriting: `segment.min.garbage.ratio`.

Kafka rewrites a segment for a single superseded record. With a floor, a segment whose garbage is a smaller share of its
bytes is left as it is, and what that means for the rest of the pass is decided here, from figures alone:

    what is left            segments that would be rewritten each for itself. One that loses nothing, or everything, or
                            goes into a larger one anyway costs the same with or without a floor
    tombstones              in the dirty part not marked from the first left segment with superseded records on: an
                            older record of their key may be in it. So they cannot become due before their values have
                            gone. A tombstone in the clean part has none, nor has one that was marked before, wherever
                            the pass leaves garbage now: those get their mark in a new index, also of a segment that
                            is left
    first_dirty_offset      goes no further than that segment, and nowhere when it is in the clean part, for what
                            supersedes its records must stay in the dirty part to be found by the next pass

A floor gives way to a promise: a pass that is forced, or overdue by `max.compaction.lag.ms`, knows none.

What was left keeps the log dirty, and would make it due in every run. `Settled` remembers, for as long as the process
lives, that nothing there was worth it; it is asked again when something has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from keyfold.log.manifest import NO_OFFSET, Manifest, SegmentEntry
from keyfold.log.names import Place
from keyfold_compactor.horizon import Purge, purge_of
from keyfold_compactor.plan import Group, SegmentStats, untouched
from keyfold_compactor.policy import Reason, Verdict
from keyfold_compactor.settings import TopicSettings
from keyfold_compactor.work import LogJob


@dataclass(frozen=True, slots=True)
class Choice:
    """What a pass does after all. `stats` say of left segments that they keep everything, marked or not.

    `left` are positions of segments below the floor; from position `unmarked_from` on no tombstone is marked;
    `first_dirty` is the offset below which nothing superseded is left. `is_merge`: a pass that looked at no record.
    """

    groups: tuple[Group, ...]
    stats: tuple[SegmentStats, ...]
    left: tuple[int, ...]
    unmarked_from: int
    first_dirty: int
    is_merge: bool = False


def only_merge(job: LogJob, groups: Sequence[Group]) -> Choice:
    """Put segments together and decide about no record: nothing is marked, and `first_dirty_offset` stays."""
    stats = tuple(untouched(entry) for entry in job.entries)
    return Choice(tuple(groups), stats, (), 0, NO_OFFSET, is_merge=True)


def choose(job: LogJob, groups: Sequence[Group], stats: Sequence[SegmentStats], floor: float) -> Choice:
    """Take out of a pass's groups what is below `floor`, a share of stored bytes; 0 takes out nothing."""
    left = tuple(
        g.first for g in groups if _is_single(g) and garbage_ratio(job.entries[g.first], stats[g.first]) < floor
    )
    held = next((at for at in left if stats[at].superseded_count), None)
    if held is None:
        unmarked_from, first_dirty = len(job.entries), job.end
    else:
        unmarked_from = _unmarked_from(job, groups, held)
        first_dirty = min(job.end, max(job.first_dirty, job.entries[held].base_offset))
    dropped = frozenset(left)
    chosen: list[Group] = []
    for made in groups:
        if made.first not in dropped:
            if not (made.is_remark and made.first >= unmarked_from):
                chosen.append(made)
        elif made.first < unmarked_from and job.entries[made.first].unmarked_tombstone_count:
            chosen.append(_only_marked(made, job.entries[made.first]))
    return Choice(
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


def _unmarked_from(job: LogJob, groups: Sequence[Group], held: int) -> int:
    """Where marking ends: at the first segment that is left with superseded records, or with the clean part.

    Below `first_dirty` no key occurs twice, so a clean tombstone has no older record even where that segment is clean
    too. A group that goes from the clean part into the dirty one is not marked at all.
    """
    clean_count = sum(e.next_offset <= job.first_dirty for e in job.entries)
    if clean_count <= held:
        return held
    return next((g.first for g in groups if g.first < clean_count <= g.last), clean_count)


def _only_marked(made: Group, entry: SegmentEntry) -> Group:
    """A segment that is left, but for its index."""
    return replace(made, is_remark=True, read_bytes=entry.index_size_bytes, write_bytes=entry.index_size_bytes)


def _as_left(entry: SegmentEntry, *, is_marked: bool) -> SegmentStats:
    """A new index marks every tombstone of the segment that has no mark."""
    return replace(untouched(entry), mark_count=entry.unmarked_tombstone_count if is_marked else 0)


def garbage_ratio(entry: SegmentEntry, found: SegmentStats) -> float:
    """The share of a segment's stored bytes that cleaning would free, as the map estimates it."""
    return (entry.size_bytes - found.kept_bytes) / entry.size_bytes


def floor_of(verdict: Verdict, settings: TopicSettings) -> float:
    """The floor of one pass."""
    if {Reason.FORCED, Reason.OVERDUE}.intersection(verdict.reasons):
        return 0.0
    return settings.segment_min_garbage_ratio


def _is_single(group: Group) -> bool:
    return group.first == group.last and not group.is_unlink and not group.is_remark


Signature: TypeAlias = tuple[tuple[str, ...], int, frozenset[tuple[str, int]], float]
"""All that a pass's choice depends on: its segments by name, how far it goes, which marks go, and the floor."""


@dataclass(slots=True)
class Settled:
    """Logs in which everything that is left to clean was below the floor."""

    _known: dict[Place, Signature] = field(default_factory=dict)

    def learn(self, manifest: Manifest, job: LogJob, choice: Choice, floor: float) -> None:
        """Note what a pass of `job` has left, given the manifest after it. May be called by many threads."""
        if choice.left:
            self._known[job.place] = _signature(manifest, job.end, job.purge, floor)
        else:
            self._known.pop(job.place, None)

    def knows(self, place: Place, manifest: Manifest, verdict: Verdict, settings: TopicSettings, now_ms: int) -> bool:
        """Whether a pass now would find only what the last one has left."""
        known = self._known.get(place)
        if known is None or Reason.UNMARKED in verdict.reasons:
            return False
        purge = purge_of(manifest, settings, now_ms)
        return known == _signature(manifest, verdict.end, purge, floor_of(verdict, settings))


def _signature(manifest: Manifest, end: int, purge: Purge, floor: float) -> Signature:
    segments = [s for s in manifest.segments if s.next_offset <= end]  # what is appended behind it changes nothing
    going = frozenset((s.index_name, epoch) for s in segments for epoch in purge.of_all(s))
    return tuple(s.index_name for s in segments), end, going, floor
