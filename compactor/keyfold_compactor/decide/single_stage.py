"""Decide what a pass does to one log from the results of its map, in the driver or in the task that mapped it.

Two stages of Spark cost a tenth of a second more than one, and the pass would wait for a small log's index twice. So if
a log is small beside its batch, the task that mapped it also does its units. Distributing such units would not balance
anything. Driver and task use the same function `plan_pass` on the same figures. So the driver finds the answers that it
would have asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from keyfold_compactor.decide import parts, plan
from keyfold_compactor.decide.min_garbage import PassPlan, apply_min_garbage
from keyfold_compactor.decide.plan import SegmentGroup, SegmentStats
from keyfold_compactor.decide.work import LogJob, MapAnswer, UnitJob, UnitLimits


def plan_pass(job: LogJob, stats: Sequence[SegmentStats], limits: UnitLimits) -> PassPlan:
    """Return what a pass of `job` finally does."""
    pass_plan = apply_min_garbage(job, _groups(job, stats, limits, len(job.entries)), stats, limits.min_garbage_ratio)
    if not limits.keeps_ages or pass_plan.first_dirty >= job.end:
        return pass_plan
    # Segments that stay dirty must keep their age. A merge has the age of its youngest part. So the records that
    # supersede left ones would become younger with each pass, and would never be overdue.
    clean = sum(e.next_offset <= pass_plan.first_dirty for e in job.entries)
    return apply_min_garbage(job, _groups(job, stats, limits, clean), stats, limits.min_garbage_ratio)


def _groups(job: LogJob, stats: Sequence[SegmentStats], limits: UnitLimits, count: int) -> list[SegmentGroup]:
    """Group the first `count` segments, and put each of the others into a group of its own."""
    found: list[SegmentGroup] = []
    for first, last in ((0, count), *((at, at + 1) for at in range(count, len(job.entries)))):
        made = plan.group(
            job.entries[first:last],
            stats[first:last],
            segment_bytes=limits.segment_bytes,
            unit_bytes=limits.unit_bytes,
        )
        found += [plan.shifted(group, first) for group in made]
    return found


def single_stage_units(job: LogJob, answer: MapAnswer) -> list[UnitJob] | None:
    """Return the units of a log that is cleaned in one stage; None if the driver must distribute them."""
    if job.single_stage is None or answer.error:
        return None
    pass_plan = plan_pass(job, answer.stats, job.single_stage)
    cut = parts.cut(job, pass_plan, job.single_stage.max_bytes)
    return parts.units(job, pass_plan, cut[0], {}) if len(cut) == 1 else None
