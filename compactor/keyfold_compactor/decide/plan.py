"""Decide which segments are rewritten together, and which task rewrites them.

The map says, segment by segment, what would be left of it (`SegmentStats`). From that alone:

    a segment that keeps everything           is not touched
    a segment that keeps everything, but has  gets a new index; its bytes stay
      tombstones to be marked
    a segment that keeps nothing              is unlinked
    anything else                             is rewritten

Neighbours are then merged into one output, up to `segment.bytes`, if the result is at least twice its largest member.
So every byte is merged at most a logarithmic number of times, however often small segments arrive. Kafka groups by the
sizes *before* cleaning. Grouping by the sizes after it does in one pass what Kafka needs several for.

A segment without any timestamp is never merged with one that has timestamps. Retention counts its age from its append,
and would then count it from the others' timestamps, which may be much earlier.

The units of all logs are then distributed over tasks by the bytes that they move, largest first.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from keyfold.log.manifest import NO_EPOCH, NO_OFFSET, SegmentEntry

TASKS_PER_SLOT: Final = 4
TASK_BYTES_MIN: Final = 256 * 1024 * 1024
"""Minimum work of a rewriting task, if there is that much for each slot."""
LOG_COST_BYTES: Final = 256 * 1024
"""Fixed cost of a log, whatever its size: requests, and the set-up of the map."""


@dataclass(frozen=True, slots=True)
class SegmentStats:
    """Result of the map for one segment. `kept_bytes` is an estimate of stored bytes; counts are records.

    `held_count` are tombstones kept only for replicas. `has_mask` is whether some record is removed, so that the unit
    that rewrites the segment needs its mask.
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
        """Whether neither the segment nor its index changes."""
        return not self.has_mask and not self.mark_count


def untouched(entry: SegmentEntry) -> SegmentStats:
    """Return the stats of a segment that the map did not need to read."""
    return SegmentStats(entry.record_count, entry.record_count, entry.size_bytes, tombstone_count=entry.tombstone_count)


@dataclass(frozen=True, slots=True)
class SegmentGroup:
    """Neighbouring segments `[first, last]` (positions in the log's list) and what happens to them.

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
        """Whether no records are left, so that no task has anything to do."""
        return not self.kept

    @property
    def moved_bytes(self) -> int:
        """Approximate cost of the group: stored bytes read and written."""
        return self.read_bytes + self.write_bytes


def group(
    entries: Sequence[SegmentEntry], stats: Sequence[SegmentStats], *, segment_bytes: int, unit_bytes: int
) -> list[SegmentGroup]:
    """Group a log's cleaned segments, in order. Segments that do not change are in no group.

    `unit_bytes` limits the stored bytes that one output is made from, so that a log of few segments still keeps all
    tasks busy. A single segment may exceed it.
    """
    groups: list[SegmentGroup] = []
    run: list[int] = []
    kept_bytes = source_bytes = 0
    is_timeless: bool | None = None
    for at, (entry, found) in enumerate(zip(entries, stats, strict=True)):
        if found.kept_count:  # an empty result costs nothing and adds nothing
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


def shifted(made: SegmentGroup, by: int) -> SegmentGroup:
    """Return a group of a part of the log as a group of the whole log, which has `by` segments before that part."""
    return replace(made, first=made.first + by, last=made.last + by, kept=tuple(at + by for at in made.kept))


def _split(run: list[int], entries: Sequence[SegmentEntry], stats: Sequence[SegmentStats]) -> list[SegmentGroup]:
    """Merge a run that fits into one output, or split off its largest member if the result would be too small."""
    groups: list[SegmentGroup] = []
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
) -> list[SegmentGroup]:
    """Handle a run in which at most one segment has records: it is not merged, and empty segments are unlinked."""
    singles = [[at] for at in part]
    return [
        _made(single, [at for at in single if at in kept], entries, stats)
        for single in singles
        if not stats[single[0]].is_untouched
    ]


def _made(
    part: list[int], kept: list[int], entries: Sequence[SegmentEntry], stats: Sequence[SegmentStats]
) -> SegmentGroup:
    is_remark = len(part) == 1 and not stats[part[0]].has_mask
    read_bytes = sum(entries[at].index_size_bytes for at in kept)
    write_bytes = read_bytes
    if not is_remark:
        read_bytes += sum(entries[at].size_bytes for at in kept)
        write_bytes += sum(stats[at].kept_bytes for at in kept)
    return SegmentGroup(part[0], part[-1], tuple(kept), is_remark, read_bytes, write_bytes)


def distribute(costs: Sequence[int], task_count: int) -> list[list[int]]:
    """Distribute items over at most `task_count` tasks by cost; return positions of items.

    The costliest item goes to the task with the least work. No task is empty; within a task the costliest item is
    first.
    """
    task_count = max(1, min(task_count, len(costs)))
    portions: list[list[int]] = [[] for _ in range(task_count)]
    loads = [(0, number) for number in range(task_count)]
    for item in sorted(range(len(costs)), key=lambda at: (-costs[at], at)):
        load, number = heapq.heappop(loads)
        portions[number].append(item)
        heapq.heappush(loads, (load + max(1, costs[item]), number))
    return [portion for portion in portions if portion]


def tasks_for(costs: Sequence[int], slots: int, *, least_bytes: int) -> int:
    """Return the number of tasks, if `slots` of them run at once.

    Several tasks per slot compensate for errors in the costs, but each costs Spark some 20 ms on a slot. So a task
    should have at least `least_bytes` of work, and a slot has between one and `TASKS_PER_SLOT` tasks.
    """
    per_slot = sum(costs) // (slots * least_bytes)
    return slots * max(1, min(TASKS_PER_SLOT, per_slot))
