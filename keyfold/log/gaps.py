"""A log's list of gaps, bounded so that the manifest stays small. Pure.

A sink may skip millions of single records, and each commit writes the whole manifest. So gaps are merged:

    touching     adjacent gaps with the same reason are merged; so are skipped records without a kept one in between
    newest       the newest `NEWEST_GAPS` stay unchanged for the operator
    older        above `MAX_GAPS`, the older gaps that are closest together are merged, per reason, until three
                 quarters of that number are left
    reasons      at most `MAX_REASONS` different reasons are kept; all others become `OTHER_REASONS`

Merging loses positions, never numbers: a merged gap has the number of missing records in its range
(`Gap.record_count`), and the sum per reason stays exact. The log itself shows which offsets of such a range it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from keyfold.log.manifest import WHOLE_RANGE, Gap

MAX_GAPS: Final = 400
NEWEST_GAPS: Final = 100
MAX_REASONS: Final = 50
OTHER_REASONS: Final = "other reasons"


def with_gaps(known: Sequence[Gap], fresh: Iterable[Gap]) -> tuple[Gap, ...]:
    """Return `known` followed by `fresh`, in the order of their recording, within the bounds."""
    found = list(known)
    last_of = {gap.reason: at for at, gap in enumerate(found)}
    for gap in fresh:
        if gap.reason not in last_of and len(last_of) >= MAX_REASONS:
            gap = replace(gap, reason=OTHER_REASONS)  # noqa: PLW2901 - the same gap under a coarser name
        at = last_of.get(gap.reason)
        if at is not None and found[at].to_offset == gap.from_offset:
            found[at] = _joined(found[at], gap)
        else:
            last_of[gap.reason] = len(found)
            found.append(gap)
        if len(found) > MAX_GAPS:
            found = _coarser(found)
            last_of = {gap.reason: at for at, gap in enumerate(found)}
    return tuple(found)


def records_in(gap: Gap) -> int:
    """Return the number of offsets that a gap covers."""
    return gap.to_offset - gap.from_offset if gap.record_count == WHOLE_RANGE else gap.record_count


def totals(gaps: Iterable[Gap]) -> dict[str, int]:
    """Return the number of offsets by reason."""
    found: dict[str, int] = {}
    for gap in gaps:
        found[gap.reason] = found.get(gap.reason, 0) + records_in(gap)
    return found


def _joined(one: Gap, other: Gap) -> Gap:
    from_offset, to_offset = min(one.from_offset, other.from_offset), max(one.to_offset, other.to_offset)
    count = records_in(one) + records_in(other)
    whole = count == to_offset - from_offset and WHOLE_RANGE in (one.record_count, other.record_count)
    return Gap(from_offset, to_offset, one.reason, WHOLE_RANGE if whole else count)


def _coarser(gaps: Sequence[Gap]) -> list[Gap]:
    """Merge the older gaps that are closest together, until three quarters of `MAX_GAPS` are left."""
    older, newest = gaps[:-NEWEST_GAPS], list(gaps[-NEWEST_GAPS:])
    by_reason: dict[str, list[Gap]] = {}
    for gap in older:
        by_reason.setdefault(gap.reason, []).append(gap)
    wanted = MAX_GAPS * 3 // 4 - len(newest)
    distances = sorted(
        (max(0, after.from_offset - before.to_offset), after.from_offset, reason, at)
        for reason, same in by_reason.items()
        for at, (before, after) in enumerate(pairwise(same), 1)
    )
    links = {(reason, at) for _, _, reason, at in distances[: max(0, len(older) - wanted)]}
    found: list[Gap] = []
    for reason, same in by_reason.items():
        for at, gap in enumerate(same):
            if (reason, at) in links:
                found[-1] = _joined(found[-1], gap)
            else:
                found.append(gap)
    return sorted(found, key=lambda gap: (gap.from_offset, gap.to_offset)) + newest
