"""From the answers of a pass to the one commit that it becomes.

Pure: groups and made segments go in, a `Replacement` comes out. A pass is whole or it is nothing: where one unit of a
log failed, no part of that log's pass is committed. So no tombstone is marked or removed while something older of its
key is left behind, and the first dirty offset never moves past garbage. What a pass leaves on purpose is said in
`keyfold_compactor.floor`.
"""

from __future__ import annotations

from collections.abc import Mapping

from keyfold.log.manifest import SegmentEntry
from keyfold.log.partition_log import Replacement, Swap
from keyfold_compactor.floor import Choice
from keyfold_compactor.work import LogJob, UnitJob


def units(job: LogJob, choice: Choice) -> list[UnitJob]:
    """What tasks have to do for these groups; what is only unlinked needs no task."""
    return [
        UnitJob(
            log=job,
            group=number,
            positions=group.kept,
            kept_counts=tuple(choice.stats[at].kept_count for at in group.kept),
            base_offset=job.entries[group.first].base_offset,
            next_offset=job.entries[group.last].next_offset,
            is_remark=group.is_remark,
            is_marking=group.first < choice.unmarked_from,
        )
        for number, group in enumerate(choice.groups)
        if not group.is_unlink
    ]


def replacement(job: LogJob, choice: Choice, made: Mapping[int, SegmentEntry]) -> Replacement:
    """The commit of a whole pass; `made` holds the new segment of every group that is not merely unlinked."""
    swaps = tuple(
        Swap(
            old=job.entries[group.first : group.last + 1],
            new=() if group.is_unlink else (made[number],),
        )
        for number, group in enumerate(choice.groups)
    )
    return Replacement(
        swaps=swaps,
        first_dirty_offset=choice.first_dirty,
        whole=not choice.is_merge,
        purged_to=max((s.purged_to for s in choice.stats), default=-1),
        purged_epoch=max((s.purged_epoch for s in choice.stats), default=0),
    )
