"""A pass that would move more than `log.cleaner.pass.max.bytes` is cut into parts; each is a commit, oldest first.

The map covers the whole dirty range once, only the rewriting is cut. So space is freed as the pass goes on, and what a
crash or a lost claim throws away is one part. What a part may do follows from two promises (decisions 2 and 9):

    marks                an epoch marks tombstones in one commit. Parts remove and merge; the last one marks, also in
                         what earlier ones have written: their segments stay, and only get new indexes
    first_dirty_offset   goes to where the next part begins: below it nothing superseded is left, from it on nothing has
                         gone yet. Whoever goes on after a crash does the rest, and the marks

Oldest first: a tombstone that is superseded never goes before the older values of its key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from keyfold.log.manifest import NO_EPOCH, NO_OFFSET, SegmentEntry
from keyfold.log.partition_log import Replacement, Swap
from keyfold_compactor.floor import Choice
from keyfold_compactor.work import LogJob, UnitJob, UnitSource

# The position of a segment that this pass has written: it keeps all its records, so no mask is asked for it.
_NOT_OF_THE_JOB: Final = -1


@dataclass(frozen=True, slots=True)
class Part:
    """One commit of a pass: positions in `Choice.groups`, and whether it is the one that ends the pass.

    `first_dirty` is the offset below which nothing superseded is left after it.
    """

    groups: tuple[int, ...]
    first_dirty: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class Remark:
    """A segment that an earlier part has written, and whose tombstones the last part marks; `group` is its number."""

    group: int
    entry: SegmentEntry


def cut(job: LogJob, choice: Choice, max_bytes: int) -> tuple[Part, ...]:
    """The parts of a pass, oldest first; each moves at most `max_bytes` stored bytes, or is one group.

    Always at least one. New indexes for segments that stay as they are wait for the last part.
    """
    everything = tuple(range(len(choice.groups)))
    if sum(g.moved_bytes for g in choice.groups) <= max_bytes:
        return (Part(everything, choice.first_dirty, is_last=True),)
    marking = tuple(n for n in everything if choice.groups[n].is_remark)
    parts: list[list[int]] = []
    moved_bytes = max_bytes + 1
    for number in everything:
        group = choice.groups[number]
        if group.is_remark:
            continue
        if moved_bytes + group.moved_bytes > max_bytes:
            parts.append([])
            moved_bytes = 0
        parts[-1].append(number)
        moved_bytes += group.moved_bytes
    if not parts:
        return (Part(everything, choice.first_dirty, is_last=True),)
    begins = [job.entries[choice.groups[p[0]].first].base_offset for p in parts[1:]]
    earlier = [
        Part(tuple(p), min(choice.first_dirty, begin), is_last=False)
        for p, begin in zip(parts[:-1], begins, strict=True)
    ]
    return (*earlier, Part(tuple(sorted((*parts[-1], *marking))), choice.first_dirty, is_last=True))


def units(job: LogJob, choice: Choice, part: Part, written: Mapping[int, SegmentEntry]) -> list[UnitJob]:
    """What tasks have to do for one part; what is only unlinked needs no task. `written` is what earlier parts made."""
    found = [
        _unit(
            job,
            number,
            [UnitSource(at, job.entries[at], choice.stats[at].kept_count) for at in group.kept],
            base_offset=job.entries[group.first].base_offset,
            next_offset=job.entries[group.last].next_offset,
            is_remark=group.is_remark,
            is_marking=part.is_last and group.first < choice.unmarked_from,
        )
        for number, group in ((n, choice.groups[n]) for n in part.groups)
        if not group.is_unlink
    ]
    return found + [_remark_unit(job, remark) for remark in remarks(choice, part, written)]


def remarks(choice: Choice, part: Part, written: Mapping[int, SegmentEntry]) -> list[Remark]:
    """What the last part has to mark in the segments that earlier ones have written."""
    if not part.is_last:
        return []
    return [
        Remark(len(choice.groups) + number, entry)
        for number, entry in sorted(written.items())
        if entry.unmarked_tombstone_count and choice.groups[number].first < choice.unmarked_from
    ]


def replacement(
    job: LogJob, choice: Choice, part: Part, made: Mapping[int, SegmentEntry], written: Mapping[int, SegmentEntry]
) -> Replacement:
    """The commit of one part; `made` holds the new segment of every unit of it, `written` those of earlier parts."""
    swaps = [
        Swap(
            old=job.entries[group.first : group.last + 1],
            new=() if group.is_unlink else (made[number],),
        )
        for number, group in ((n, choice.groups[n]) for n in part.groups)
    ]
    swaps += [Swap(old=(r.entry,), new=(made[r.group],)) for r in remarks(choice, part, written)]
    stats = [choice.stats[at] for at in positions(choice, part)]
    return Replacement(
        swaps=tuple(swaps),
        first_dirty_offset=part.first_dirty,
        whole=part.is_last and not choice.is_merge,
        purged_to=max((s.purged_to for s in stats), default=NO_OFFSET),
        purged_epoch=max((s.purged_epoch for s in stats), default=NO_EPOCH),
        mapped_to=NO_OFFSET if choice.is_merge else job.end,
        release_lease=part.is_last,
    )


def positions(choice: Choice, part: Part) -> list[int]:
    """The positions of the segments that a part is about."""
    groups = (choice.groups[n] for n in part.groups)
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
