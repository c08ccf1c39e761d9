"""Decide what a pass does to one log from the results of its map, in the driver or in the task that mapped it.

Two stages of Spark cost a tenth of a second more than one, and the pass would wait for a small log's index twice. So if
a log is small beside its batch, the task that mapped it also does its units. Distributing such units would not balance
anything. Driver and task use the same function `choice_of` on the same figures. So the driver finds the answers that it
would have asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from keyfold_compactor.decide import parts, plan
from keyfold_compactor.decide.min_garbage import Choice, choose
from keyfold_compactor.decide.plan import Group, SegmentStats
from keyfold_compactor.decide.work import Limits, LogJob, MapAnswer, UnitJob


def choice_of(job: LogJob, stats: Sequence[SegmentStats], limits: Limits) -> Choice:
    """Return what a pass of `job` finally does."""
    choice = choose(job, _groups(job, stats, limits, len(job.entries)), stats, limits.floor)
    if not limits.keeps_ages or choice.first_dirty >= job.end:
        return choice
    # Segments that stay dirty must keep their age. A merge has the age of its youngest part. So the records that
    # supersede left ones would become younger with each pass, and would never be overdue.
    clean = sum(e.next_offset <= choice.first_dirty for e in job.entries)
    return choose(job, _groups(job, stats, limits, clean), stats, limits.floor)


def _groups(job: LogJob, stats: Sequence[SegmentStats], limits: Limits, count: int) -> list[Group]:
    """Group the first `count` segments, and put each of the others into a group of its own."""
    found: list[Group] = []
    for first, last in ((0, count), *((at, at + 1) for at in range(count, len(job.entries)))):
        made = plan.group(
            job.entries[first:last],
            stats[first:last],
            segment_bytes=limits.segment_bytes,
            unit_bytes=limits.unit_bytes,
        )
        found += [plan.shifted(group, first) for group in made]
    return found


def units_at_once(job: LogJob, answer: MapAnswer) -> list[UnitJob] | None:
    """Return the units of a log that is cleaned in one stage; None if the driver must distribute them."""
    if job.at_once is None or answer.error:
        return None
    choice = choice_of(job, answer.stats, job.at_once)
    cut = parts.cut(job, choice, job.at_once.max_bytes)
    return parts.units(job, choice, cut[0], {}) if len(cut) == 1 else None
