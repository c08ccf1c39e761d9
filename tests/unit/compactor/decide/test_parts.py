"""A pass cut into parts, by hand: where the cuts are, what each part has to do, and what its commit says."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from keyfold.log.edits import Replacement, Swap
from keyfold.log.manifest import NO_OFFSET, SegmentEntry
from keyfold_compactor.decide.horizon import Purge
from keyfold_compactor.decide.min_garbage import PassPlan, only_merge
from keyfold_compactor.decide.parts import PassPart, Remark, cut, positions, remarks, replacement, units
from keyfold_compactor.decide.plan import SegmentGroup, SegmentStats
from keyfold_compactor.decide.settings import Encoding
from keyfold_compactor.decide.work import LogJob
from tests.support.cleaning import PLACE
from tests.support.manifests import compactor_name, entry, sink_name

EPOCH = 9
DIRTY = SegmentStats(10, 6, 60, superseded_count=4, tombstone_count=2)
EMPTIED = SegmentStats(10, 0, 0, superseded_count=10)
KEPT = SegmentStats(10, 10, 100)
WHOLE = 10**9


def log(count: int, *, first_dirty: int = 0, end: int | None = None) -> LogJob:
    """Segments of ten records each."""
    entries = tuple(entry(sink_name(10 * i), 10 * i, 10 * i + 10) for i in range(count))
    end = 10 * count if end is None else end
    return LogJob(3, PLACE, entries, first_dirty, end, EPOCH, b"s" * 16, Purge(), False, Encoding())


def group(
    first: int, last: int | None = None, *, kept: tuple[int, ...] | None = None, moved: int = 100
) -> SegmentGroup:
    last = first if last is None else last
    kept = tuple(range(first, last + 1)) if kept is None else kept
    return SegmentGroup(first, last, kept, False, moved if kept else 0, 0)


def remark(at: int, moved: int = 20) -> SegmentGroup:
    return SegmentGroup(at, at, (at,), True, moved, 0)


def pass_plan(
    job: LogJob,
    *groups: SegmentGroup,
    stats: dict[int, SegmentStats] | None = None,
    first_dirty: int | None = None,
    unmarked_from: int | None = None,
) -> PassPlan:
    found = tuple((stats or {}).get(at, DIRTY) for at in range(len(job.entries)))
    return PassPlan(
        groups,
        found,
        (),
        len(job.entries) if unmarked_from is None else unmarked_from,
        job.end if first_dirty is None else first_dirty,
    )


def made(number: int, base: int, end: int, *, unmarked: int = 0) -> SegmentEntry:
    """What the unit of a group has uploaded."""
    return entry(compactor_name(base, EPOCH, number), base, end, tombstones=unmarked, record_count=end - base)


def cuts(parts: tuple[PassPart, ...]) -> list[tuple[int, ...]]:
    return [p.groups for p in parts]


# cut


def test_a_pass_that_fits_is_one_part() -> None:
    job = log(3)
    chosen = pass_plan(job, group(0), group(1), group(2))
    assert cut(job, chosen, 300) == (PassPart((0, 1, 2), 30, is_last=True),)


def test_one_byte_below_the_limit_gives_two_adjacent_parts() -> None:
    job = log(3)
    chosen = pass_plan(job, group(0), group(1), group(2))
    assert cut(job, chosen, 299) == (PassPart((0, 1), 20, is_last=False), PassPart((2,), 30, is_last=True))


def test_a_group_above_the_limit_is_a_part_of_its_own() -> None:
    job = log(4)
    chosen = pass_plan(job, group(0, moved=10), group(1, moved=10_000), group(2, moved=10), group(3, moved=10))
    assert cuts(cut(job, chosen, 50)) == [(0,), (1,), (2, 3)]
    assert [p.first_dirty for p in cut(job, chosen, 50)] == [10, 20, 40]


@pytest.mark.parametrize("limit", [1, 99, 100])
def test_one_group_per_part_still_covers_every_group_once(limit: int) -> None:
    job = log(4)
    chosen = pass_plan(job, *(group(at) for at in range(4)))
    assert cuts(cut(job, chosen, limit)) == [(0,), (1,), (2,), (3,)]


def test_a_pass_with_nothing_to_do_has_one_part() -> None:
    job = log(2)
    assert cut(job, pass_plan(job), 1) == (PassPart((), 20, is_last=True),)


def test_groups_that_only_unlink_cost_nothing_and_join_their_neighbours() -> None:
    job = log(4)
    chosen = pass_plan(job, group(0), group(1, kept=()), group(2, kept=()), group(3))
    assert cuts(cut(job, chosen, 100)) == [(0, 1, 2), (3,)]
    assert cuts(cut(job, pass_plan(job, group(0, kept=()), group(1), group(2)), 100)) == [(0, 1), (2,)]


def test_new_indexes_wait_for_the_last_part() -> None:
    job = log(5)
    chosen = pass_plan(job, remark(0), group(1), remark(2), group(3), remark(4))
    parts = cut(job, chosen, 100)
    assert parts == (PassPart((1,), 30, is_last=False), PassPart((0, 2, 3, 4), 50, is_last=True))


def test_a_pass_with_new_indexes_only_has_one_part() -> None:
    job = log(3)
    chosen = pass_plan(job, remark(0), remark(1), remark(2))
    assert cut(job, chosen, 1) == (PassPart((0, 1, 2), 30, is_last=True),)


def test_no_part_claims_more_clean_than_the_whole_pass() -> None:
    """The minimum has left the segment at 10: from there on nothing is clean, whatever the parts rewrite behind it."""
    job = log(4)
    chosen = pass_plan(job, group(0), group(2), group(3), first_dirty=10)
    assert [p.first_dirty for p in cut(job, chosen, 100)] == [10, 10, 10]


def test_the_next_part_starts_at_its_groups_first_segment_even_an_emptied_one() -> None:
    job = log(6)
    merged = group(2, 4, kept=(3, 4))
    chosen = pass_plan(job, group(0), merged, group(5), stats={2: EMPTIED})
    assert [p.first_dirty for p in cut(job, chosen, 100)] == [20, 50, 60]


def test_a_merge_across_the_first_dirty_offset_is_in_one_part() -> None:
    job = log(4, first_dirty=20)
    chosen = pass_plan(job, group(0), group(1, 2), group(3))
    parts = cut(job, chosen, 100)
    assert (cuts(parts), [p.first_dirty for p in parts]) == ([(0,), (1,), (2,)], [10, 30, 40])


def test_parts_of_a_merge_do_not_set_the_first_dirty_offset() -> None:
    job = log(4)
    chosen = only_merge(job, [group(0, 1), group(2, 3)])
    assert [p.first_dirty for p in cut(job, chosen, 100)] == [NO_OFFSET, NO_OFFSET]


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(100))
def test_any_cut_has_each_group_once_in_order_within_the_limit(seed: int) -> None:
    random = Random(seed)
    at, groups = 0, []
    while at < 12:
        size = random.choice([1, 1, 2, 3])
        kind = random.random()
        if kind < 0.2:
            groups.append(remark(at))
            size = 1
        elif kind < 0.4:
            groups.append(group(at, at + size - 1, kept=()))
        elif kind < 0.9:
            groups.append(group(at, at + size - 1, moved=random.randrange(1, 300)))
        at += size
    job = log(16)
    limit = random.choice([1, 100, 250, 600])
    parts = cut(job, pass_plan(job, *groups), limit)
    assert sorted(n for p in parts for n in p.groups) == list(range(len(groups)))
    assert [p.is_last for p in parts] == [False] * (len(parts) - 1) + [True]
    assert [p.first_dirty for p in parts] == sorted(p.first_dirty for p in parts)
    for part, following in pairwise(parts):
        moving = [groups[n] for n in part.groups]
        assert not any(g.is_remark for g in moving)
        assert sum(g.moved_bytes for g in moving) <= limit or len([g for g in moving if g.moved_bytes]) == 1
        assert all(job.entries[g.last].next_offset <= part.first_dirty for g in moving)
        later = [groups[n] for n in following.groups if not groups[n].is_remark]
        assert min(job.entries[g.first].base_offset for g in later) == part.first_dirty


# units


def test_a_unit_has_the_segments_with_remaining_records_and_its_groups_whole_range() -> None:
    job = log(4)
    chosen = pass_plan(job, group(0, 2, kept=(0, 2)), stats={1: EMPTIED})
    (part,) = cut(job, chosen, WHOLE)
    (unit,) = units(job, chosen, part, {})
    assert [(s.position, s.entry, s.kept_count) for s in unit.sources] == [
        (0, job.entries[0], 6),
        (2, job.entries[2], 6),
    ]
    assert (unit.log, unit.group, unit.epoch) == (3, 0, EPOCH)
    assert (unit.base_offset, unit.next_offset) == (0, 30)
    assert unit.mask_keys() == [(3, 0), (3, 2)]


def test_unlinked_groups_need_no_unit_and_do_not_shift_numbers() -> None:
    job = log(3)
    chosen = pass_plan(job, group(0, kept=()), group(1), group(2, kept=()), stats={0: EMPTIED, 2: EMPTIED})
    (part,) = cut(job, chosen, WHOLE)
    assert [u.group for u in units(job, chosen, part, {})] == [1]


def test_a_pass_in_one_part_marks_in_its_own_output() -> None:
    job = log(2)
    chosen = pass_plan(job, group(0), remark(1), stats={1: KEPT})
    (part,) = cut(job, chosen, WHOLE)
    found = units(job, chosen, part, {})
    assert [(u.is_marking, u.is_remark) for u in found] == [(True, False), (True, True)]
    assert found[1].mask_keys() == []


def test_only_the_last_part_marks_including_the_output_of_earlier_parts() -> None:
    job = log(3)
    chosen = pass_plan(job, group(0), group(1), group(2))
    first, second, last = cut(job, chosen, 100)
    written = {0: made(0, 0, 10, unmarked=2), 1: made(1, 10, 20)}
    assert [u.is_marking for u in units(job, chosen, first, {})] == [False]
    assert [(u.group, u.is_marking) for u in units(job, chosen, second, {0: written[0]})] == [(1, False)]
    found = units(job, chosen, last, written)
    assert [(u.group, u.is_remark, u.is_marking) for u in found] == [(2, False, True), (3, True, True)]
    again = found[1]
    assert [(s.entry, s.kept_count) for s in again.sources] == [(written[0], 10)]
    assert (again.base_offset, again.next_offset, again.epoch, again.mask_keys()) == (0, 10, EPOCH, [])


def test_no_part_marks_anything_after_a_skipped_segment() -> None:
    job = log(4)
    chosen = pass_plan(job, group(0), group(2), group(3), first_dirty=10, unmarked_from=1)
    _, _, last = cut(job, chosen, 100)
    written = {0: made(0, 0, 10, unmarked=1), 1: made(1, 20, 30, unmarked=1)}
    assert remarks(chosen, last, written) == [Remark(3, written[0])]
    assert [(u.group, u.is_marking) for u in units(job, chosen, last, written)] == [(2, False), (3, True)]


def test_no_part_of_a_merge_marks_anything() -> None:
    job = log(4)
    chosen = only_merge(job, [group(0, 1), group(2, 3)])
    parts = cut(job, chosen, 100)
    written = {0: made(0, 0, 20, unmarked=3)}
    assert remarks(chosen, parts[-1], written) == []
    found = [u for p in parts for u in units(job, chosen, p, written)]
    assert [(u.is_marking, u.mask_keys()) for u in found] == [(False, []), (False, [])]


# replacement


def commits(job: LogJob, chosen: PassPlan, limit: int) -> list[Replacement]:
    """All commits of a pass, each of whose units has left two tombstones without a mark, or none."""
    written: dict[int, SegmentEntry] = {}
    found = []
    for part in cut(job, chosen, limit):
        entries = {
            u.group: made(u.group, u.base_offset, u.next_offset, unmarked=0 if u.is_marking else 2)
            for u in units(job, chosen, part, written)
        }
        found.append(replacement(job, chosen, part, entries, written))
        if not part.is_last:
            written.update(entries)
    return found


def test_the_lease_is_kept_until_the_last_part_ends_the_pass() -> None:
    job = log(3)
    found = commits(job, pass_plan(job, group(0), group(1), group(2)), 100)
    assert [(r.whole, r.release_lease, r.first_dirty_offset) for r in found] == [
        (False, False, 10),
        (False, False, 20),
        (True, True, 30),
    ]


def test_parts_replace_each_segment_once_and_then_the_new_indexes() -> None:
    job = log(4)
    chosen = pass_plan(job, group(0, 1), group(2, kept=()), group(3), stats={2: EMPTIED})
    first, last = commits(job, chosen, 100)
    assert [s.old for s in first.swaps] == [job.entries[0:2], job.entries[2:3]]
    assert [len(s.new) for s in first.swaps] == [1, 0]
    assert [s.old for s in last.swaps] == [job.entries[3:4], first.swaps[0].new]
    (again,) = last.swaps[1].new
    assert (again.base_offset, again.next_offset) == (0, 20)


def test_each_part_reports_what_it_removes() -> None:
    job = log(3)
    stats = {
        0: replace(DIRTY, purged_to=5, purged_epoch=4),
        1: replace(DIRTY, purged_to=12, purged_epoch=3),
        2: DIRTY,
    }
    found = commits(job, pass_plan(job, group(0), group(1), group(2), stats=stats), 100)
    assert [(r.purged_to, r.purged_epoch) for r in found] == [(5, 4), (12, 3), (-1, 0)]
    (whole,) = commits(job, pass_plan(job, group(0), group(1), group(2), stats=stats), WHOLE)
    assert (whole.purged_to, whole.purged_epoch) == (12, 4)


def test_every_part_reports_how_far_its_offset_map_went() -> None:
    job = log(3)
    chosen = pass_plan(job, group(0), group(1), group(2), first_dirty=10, unmarked_from=1)
    for limit in (100, WHOLE):
        assert {r.mapped_to for r in commits(job, chosen, limit)} == {job.end}


def test_an_emptied_segment_inside_a_group_reports_its_purges() -> None:
    job = log(3)
    stats = {1: SegmentStats(10, 0, 0, purged_count=10, purged_to=19, purged_epoch=7)}
    (whole,) = commits(job, pass_plan(job, group(0, 2, kept=(0, 2)), stats=stats), WHOLE)
    assert (whole.purged_to, whole.purged_epoch) == (19, 7)
    (unlinked,) = commits(job, pass_plan(job, group(1, kept=()), stats=stats), WHOLE)
    assert (unlinked.purged_to, unlinked.swaps) == (19, (Swap(job.entries[1:2], ()),))


def test_a_merge_is_never_a_whole_pass() -> None:
    job = log(4)
    for limit, count in ((100, 2), (WHOLE, 1)):
        found = commits(job, only_merge(job, [group(0, 1), group(2, 3)]), limit)
        assert [r.whole for r in found] == [False] * count
        assert [r.release_lease for r in found] == [False] * (count - 1) + [True]
        assert {(r.first_dirty_offset, r.purged_to, r.mapped_to) for r in found} == {(NO_OFFSET, NO_OFFSET, NO_OFFSET)}


def test_the_positions_of_a_part_are_those_of_its_groups() -> None:
    job = log(6)
    chosen = pass_plan(job, group(0, 1), group(3), remark(4), stats={4: KEPT})
    first, last = cut(job, chosen, 100)
    assert (positions(chosen, first), positions(chosen, last)) == ([0, 1], [3, 4])
