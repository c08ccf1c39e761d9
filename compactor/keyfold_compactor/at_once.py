"""What a pass does to one log, from the figures of its map: the driver's way, and a task's that goes on by itself.

Two stages of Spark cost a tenth of a second more than one, and a small log's index would be waited for twice. So a task
that has mapped a log goes on to its units where the log is small beside its batch: dealing units of many sizes would
not even out anything then. Both choose by `choice_of`, a function of the same figures, so the driver finds in the
answers what it would have asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from keyfold_compactor import parts, plan
from keyfold_compactor.floor import Choice, choose
from keyfold_compactor.plan import Group, SegmentStats
from keyfold_compactor.work import Limits, LogJob, MapAnswer, MaskKey, UnitAnswer, UnitJob


def choice_of(job: LogJob, stats: Sequence[SegmentStats], limits: Limits) -> Choice:
    """What a pass of `job` does after all."""
    choice = choose(job, _groups(job, stats, limits, len(job.entries)), stats, limits.floor)
    if not limits.keeps_ages or choice.first_dirty >= job.end:
        return choice
    # What is dirty after it is as old as it was: a merge has the age of its youngest part, and what supersedes a record
    # that is left would grow young again with each pass, and never be overdue.
    clean = sum(e.next_offset <= choice.first_dirty for e in job.entries)
    return choose(job, _groups(job, stats, limits, clean), stats, limits.floor)


def _groups(job: LogJob, stats: Sequence[SegmentStats], limits: Limits, count: int) -> list[Group]:
    """Groups of the first `count` segments, and each of the others by itself."""
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
    """The units of a log that is to be cleaned in one go; None where the driver has to deal them."""
    if job.at_once is None or answer.error:
        return None
    choice = choice_of(job, answer.stats, job.at_once)
    cut = parts.cut(job, choice, job.at_once.max_bytes)
    return parts.units(job, choice, cut[0], {}) if len(cut) == 1 else None


Mapped = tuple[MapAnswer, dict[MaskKey, bytes]]
DoUnit = Callable[[UnitJob, Mapping[MaskKey, bytes]], UnitAnswer]


def gone_on(job: LogJob, mapped: Mapped, do: DoUnit) -> Mapped:
    """A log's map, with the answers of its units where these were done with `do`; nobody needs its masks then."""
    answer, masks = mapped
    units = units_at_once(job, answer)
    if units is None:
        return mapped
    made = tuple(do(unit, masks) for unit in units)
    return MapAnswer(answer.number, answer.stats, answer.error, answer.traffic, made), {}
