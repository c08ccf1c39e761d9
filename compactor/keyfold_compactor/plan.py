"""What is rewritten together, and which task does it.

The map says, segment by segment, what would be left of it (`SegmentStats`). From that alone:

    a segment that keeps everything           is not touched
    a segment that keeps everything, but has  gets a new index, its bytes stay
      tombstones to be marked
    a segment that keeps nothing              is unlinked
    anything else                             is rewritten

Neighbours then go into one output together, up to `segment.bytes`, where the result is at least twice its largest
member: so every byte is merged at most a logarithmic number of times, however often small segments arrive. Kafka
groups by what segments were *before* cleaning; by what they will be, one pass does what Kafka needs several for.
A segment without any timestamp goes into no output with one that has some: retention counts its age from its append,
and would count it from the others' timestamps, which may be much earlier.

The units of all logs are then dealt to tasks by the bytes that they move, largest first.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from keyfold.log.manifest import NO_EPOCH, NO_OFFSET, SegmentEntry

TASKS_PER_SLOT: Final = 4
TASK_BYTES_MIN: Final = 256 * 1024 * 1024
"""What a task of rewriting is to move at the least, where there is so much for each slot."""
LOG_COST_BYTES: Final = 256 * 1024
"""A log costs this much whatever its size: requests, set-up of the map."""


@dataclass(frozen=True, slots=True)
class SegmentStats:
    """What the map says about one segment. `kept_bytes` is an estimate of stored bytes; counts are records.

    `held_count` are tombstones that stay for a replica alone. `has_mask` is whether some record goes, so that the unit
    which rewrites the segment must bring its mask.
    """

    record_count: int
    kept_count: int
    kept_bytes: int
    superseded_count: int = 0
    purged_count: int = 0
    held_count: int = 0
    keyless_count: int = 0
    mark_count: int = 0
    tombstone_count: int = 0
    purged_to: int = NO_OFFSET
    purged_epoch: int = NO_EPOCH

    @property
    def has_mask(self) -> bool:
        """Whether some record is removed."""
        return self.kept_count < self.record_count

    @property
    def is_untouched(self) -> bool:
        """Whether neither segment nor index change."""
        return not self.has_mask and not self.mark_count


def untouched(entry: SegmentEntry) -> SegmentStats:
    """Of a segment that the map did not need to read."""
    return SegmentStats(entry.record_count, entry.record_count, entry.size_bytes, tombstone_count=entry.tombstone_count)


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring segments `[first, last]` (positions in the log's list) and what becomes of them.

    `kept` are the positions that still have records. Without any, the group is unlinked. With one that keeps all its
    records, only the index is new (`is_remark`).
    """

    first: int
    last: int
    kept: tuple[int, ...]
    is_remark: bool
    read_bytes: int
    write_bytes: int

    @property
    def is_unlink(self) -> bool:
        """Whether nothing is left: no task has anything to do."""
        return not self.kept

    @property
    def moved_bytes(self) -> int:
        """What the group costs, roughly: stored bytes read and written."""
        return self.read_bytes + self.write_bytes


def group(
    entries: Sequence[SegmentEntry], stats: Sequence[SegmentStats], *, segment_bytes: int, unit_bytes: int
) -> list[Group]:
    """Groups of a log's cleaned segments, in order; segments that stay as they are appear in none.

    `unit_bytes` bounds the stored bytes that one output is made from, so that a log of a few segments still keeps all
    tasks busy; a single segment may exceed it.
    """
    groups: list[Group] = []
    run: list[int] = []
    kept_bytes = source_bytes = 0
    is_timeless: bool | None = None
    for at, (entry, found) in enumerate(zip(entries, stats, strict=True)):
        if found.kept_count:  # a segment with nothing left costs nothing and adds nothing
            kept_bytes += found.kept_bytes
            source_bytes += entry.size_bytes
            is_other = is_timeless not in {None, entry.max_timestamp < 0}
            is_timeless = entry.max_timestamp < 0
            if run and (kept_bytes > segment_bytes or source_bytes > unit_bytes or is_other):
                groups.extend(_split(run, entries, stats))
                run, kept_bytes, source_bytes = [], found.kept_bytes, entry.size_bytes
        run.append(at)
    groups.extend(_split(run, entries, stats))
    return groups


def shifted(made: Group, by: int) -> Group:
    """A group of some neighbours as one of the whole log, in which `by` segments are before them."""
    return replace(made, first=made.first + by, last=made.last + by, kept=tuple(at + by for at in made.kept))


def _split(run: list[int], entries: Sequence[SegmentEntry], stats: Sequence[SegmentStats]) -> list[Group]:
    """A run that fits into one output: merged as a whole, or without its largest member, which then stands alone."""
    groups: list[Group] = []
    pending = [run]
    while pending:
        part = pending.pop()
        kept = [at for at in part if stats[at].kept_count]
        if len(kept) <= 1:
            groups.extend(_alone(part, kept, entries, stats))
            continue
        largest = max(kept, key=lambda at: stats[at].kept_bytes)
        if sum(stats[at].kept_bytes for at in kept) >= 2 * stats[largest].kept_bytes:
            groups.append(_made(part, kept, entries, stats))
            continue
        cut = part.index(largest)
        pending.extend(p for p in (part[:cut], [largest], part[cut + 1 :]) if p)
    return sorted(groups, key=lambda g: g.first)


def _alone(
    part: list[int], kept: list[int], entries: Sequence[SegmentEntry], stats: Sequence[SegmentStats]
) -> list[Group]:
    """At most one segment has records: it is not merged, and what is empty beside it is unlinked."""
    singles = [[at] for at in part]
    return [
        _made(single, [at for at in single if at in kept], entries, stats)
        for single in singles
        if not stats[single[0]].is_untouched
    ]


def _made(part: list[int], kept: list[int], entries: Sequence[SegmentEntry], stats: Sequence[SegmentStats]) -> Group:
    is_remark = len(part) == 1 and not stats[part[0]].has_mask
    read_bytes = sum(entries[at].index_size_bytes for at in kept)
    write_bytes = read_bytes
    if not is_remark:
        read_bytes += sum(entries[at].size_bytes for at in kept)
        write_bytes += sum(stats[at].kept_bytes for at in kept)
    return Group(part[0], part[-1], tuple(kept), is_remark, read_bytes, write_bytes)


def deal(costs: Sequence[int], task_count: int) -> list[list[int]]:
    """Deal items to at most `task_count` tasks by cost, the costliest first to whoever has least; positions of items.

    Every task has something to do; within a task the costliest comes first.
    """
    task_count = max(1, min(task_count, len(costs)))
    hands: list[list[int]] = [[] for _ in range(task_count)]
    loads = [(0, number) for number in range(task_count)]
    for item in sorted(range(len(costs)), key=lambda at: (-costs[at], at)):
        load, number = heapq.heappop(loads)
        hands[number].append(item)
        heapq.heappush(loads, (load + max(1, costs[item]), number))
    return [hand for hand in hands if hand]


def tasks_for(costs: Sequence[int], slots: int, *, least_bytes: int) -> int:
    """How many tasks to deal work to, where `slots` run at once.

    Several a slot even out what the costs have wrong, but each costs Spark some 20 ms on a slot: a task is to have at
    least `least_bytes` of work, and there are at most `TASKS_PER_SLOT` a slot, at least one.
    """
    per_slot = sum(costs) // (slots * least_bytes)
    return slots * max(1, min(TASKS_PER_SLOT, per_slot))
