"""Cut a pass that would move more than `log.cleaner.pass.max.bytes` into parts, one commit each, oldest first.

The map covers the whole dirty range once; only the rewriting is cut. So space is freed while the pass proceeds, and a
crash or a lost claim discards at most one part. Two promises limit what a part may do (decisions 2 and 9):

    marks                an epoch marks tombstones in one commit. Parts remove and merge. The last part marks, also in
                         the segments of earlier parts, which only get new indexes
    first_dirty_offset   moves to where the next part starts: below it nothing superseded is left, and from it on
                         nothing has been removed yet. After a crash another pass does the rest, and the marks

The order is oldest first, so a superseded tombstone is never removed before the older values of its key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from keyfold.log.edits import Replacement, Swap
from keyfold.log.manifest import NO_EPOCH, NO_OFFSET, SegmentEntry
from keyfold_compactor.decide.min_garbage import PassPlan
from keyfold_compactor.decide.work import LogJob, UnitJob, UnitSource

# The position of a segment that this pass has written: it keeps all its records, so it needs no mask.
_NOT_OF_THE_JOB: Final = -1


@dataclass(frozen=True, slots=True)
class PassPart:
    """One commit of a pass: positions in `PassPlan.groups`, and whether it is the last one.

    `first_dirty` is the offset below which nothing superseded is left after it.
    """

    groups: tuple[int, ...]
    first_dirty: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class Remark:
    """A segment of an earlier part whose tombstones the last part marks; `group` is its number."""

    group: int
    entry: SegmentEntry


def cut(job: LogJob, pass_plan: PassPlan, max_bytes: int) -> tuple[PassPart, ...]:
    """Return the parts of a pass, oldest first. Each moves at most `max_bytes` stored bytes, or is one group.

    There is always at least one. New indexes for segments that stay are part of the last one.
    """
    everything = tuple(range(len(pass_plan.groups)))
    if sum(g.moved_bytes for g in pass_plan.groups) <= max_bytes:
        return (PassPart(everything, pass_plan.first_dirty, is_last=True),)
    marking = tuple(n for n in everything if pass_plan.groups[n].is_remark)
    parts: list[list[int]] = []
    moved_bytes = max_bytes + 1
    for number in everything:
        group = pass_plan.groups[number]
        if group.is_remark:
            continue
        if moved_bytes + group.moved_bytes > max_bytes:
            parts.append([])
            moved_bytes = 0
        parts[-1].append(number)
        moved_bytes += group.moved_bytes
    if not parts:
        return (PassPart(everything, pass_plan.first_dirty, is_last=True),)
    begins = [job.entries[pass_plan.groups[p[0]].first].base_offset for p in parts[1:]]
    earlier = [
        PassPart(tuple(p), min(pass_plan.first_dirty, begin), is_last=False)
        for p, begin in zip(parts[:-1], begins, strict=True)
    ]
    return (*earlier, PassPart(tuple(sorted((*parts[-1], *marking))), pass_plan.first_dirty, is_last=True))


def units(job: LogJob, pass_plan: PassPlan, part: PassPart, written: Mapping[int, SegmentEntry]) -> list[UnitJob]:
    """Return the tasks' work for one part. Unlinking needs no task. `written` is what earlier parts made."""
    found = [
        _unit(
            job,
            number,
            [UnitSource(at, job.entries[at], pass_plan.stats[at].kept_count) for at in group.kept],
            base_offset=job.entries[group.first].base_offset,
            next_offset=job.entries[group.last].next_offset,
            is_remark=group.is_remark,
            is_marking=part.is_last and group.first < pass_plan.unmarked_from,
        )
        for number, group in ((n, pass_plan.groups[n]) for n in part.groups)
        if not group.is_unlink
    ]
    return found + [_remark_unit(job, remark) for remark in remarks(pass_plan, part, written)]


def remarks(pass_plan: PassPlan, part: PassPart, written: Mapping[int, SegmentEntry]) -> list[Remark]:
    """Return what the last part marks in the segments that earlier parts have written."""
    if not part.is_last:
        return []
    return [
        Remark(len(pass_plan.groups) + number, entry)
        for number, entry in sorted(written.items())
        if entry.unmarked_tombstone_count and pass_plan.groups[number].first < pass_plan.unmarked_from
    ]


def replacement(
    job: LogJob,
    pass_plan: PassPlan,
    part: PassPart,
    made: Mapping[int, SegmentEntry],
    written: Mapping[int, SegmentEntry],
) -> Replacement:
    """Return the commit of one part. `made` has the new segments of its units, `written` those of earlier parts."""
    swaps = [
        Swap(
            old=job.entries[group.first : group.last + 1],
            new=() if group.is_unlink else (made[number],),
        )
        for number, group in ((n, pass_plan.groups[n]) for n in part.groups)
    ]
    swaps += [Swap(old=(r.entry,), new=(made[r.group],)) for r in remarks(pass_plan, part, written)]
    stats = [pass_plan.stats[at] for at in positions(pass_plan, part)]
    return Replacement(
        swaps=tuple(swaps),
        first_dirty_offset=part.first_dirty,
        whole=part.is_last and not pass_plan.is_merge,
        purged_to=max((s.purged_to for s in stats), default=NO_OFFSET),
        purged_epoch=max((s.purged_epoch for s in stats), default=NO_EPOCH),
        mapped_to=NO_OFFSET if pass_plan.is_merge else job.end,
        release_lease=part.is_last,
    )


def positions(pass_plan: PassPlan, part: PassPart) -> list[int]:
    """Return the positions of the segments in a part."""
    groups = (pass_plan.groups[n] for n in part.groups)
    return [at for group in groups for at in range(group.first, group.last + 1)]


def _remark_unit(job: LogJob, remark: Remark) -> UnitJob:
    entry = remark.entry
    return _unit(
        job,
        remark.group,
        [UnitSource(_NOT_OF_THE_JOB, entry, entry.record_count)],
        base_offset=entry.base_offset,
        next_offset=entry.next_offset,
        is_remark=True,
        is_marking=True,
    )


def _unit(
    job: LogJob,
    group: int,
    sources: Sequence[UnitSource],
    *,
    base_offset: int,
    next_offset: int,
    is_remark: bool,
    is_marking: bool,
) -> UnitJob:
    return UnitJob(
        log=job.number,
        group=group,
        place=job.place,
        epoch=job.epoch,
        sync_marker=job.sync_marker,
        encoding=job.encoding,
        sources=tuple(sources),
        base_offset=base_offset,
        next_offset=next_offset,
        is_remark=is_remark,
        is_marking=is_marking,
    )
