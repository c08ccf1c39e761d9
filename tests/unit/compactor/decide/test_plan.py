"""Grouping of neighbours, and dealing of units to tasks."""

from __future__ import annotations

from random import Random

import pytest

from keyfold_compactor.decide.plan import SegmentGroup, SegmentStats, distribute, group, tasks_for
from tests.support.manifests import entry, sink_name


def stats(kept_bytes: int, *, kept: int = 5, removed: int = 1, marks: int = 0) -> SegmentStats:
    return SegmentStats(kept + removed, kept, kept_bytes, superseded_count=removed, mark_count=marks)


def groups(*segments: SegmentStats, segment_bytes: int = 1_000, unit_bytes: int = 10**9) -> list[SegmentGroup]:
    entries = [entry(sink_name(10 * i), 10 * i, 10 * i + 10, size_bytes=100) for i in range(len(segments))]
    return group(entries, segments, segment_bytes=segment_bytes, unit_bytes=unit_bytes)


def spans(found: list[SegmentGroup]) -> list[tuple[int, int]]:
    return [(g.first, g.last) for g in found]


EMPTY = stats(0, kept=0, removed=6)
WHOLE = stats(100, removed=0)


def test_a_segment_with_nothing_to_remove_is_unchanged() -> None:
    assert groups(WHOLE, segment_bytes=100) == []


def test_marks_alone_need_only_a_new_index() -> None:
    (found,) = groups(stats(100, removed=0, marks=2))
    assert found.is_remark
    assert found.moved_bytes == 100, "the index, read and written"


def test_a_segment_with_nothing_left_is_unlinked_without_a_task() -> None:
    (found,) = groups(EMPTY)
    assert found.is_unlink
    assert found.moved_bytes == 0


def test_a_limit_of_one_segment_gives_singles_and_larger_limits_give_ordered_groups() -> None:
    segments = [stats(50) for _ in range(7)]
    assert spans(groups(*segments, segment_bytes=50)) == [(i, i) for i in range(7)]
    assert spans(groups(*segments, segment_bytes=150)) == [(0, 2), (3, 5), (6, 6)]
    assert spans(groups(*segments, segment_bytes=10**9)) == [(0, 6)]


def test_small_neighbours_do_not_cause_a_large_segments_rewrite_in_every_pass() -> None:
    found = groups(stats(500, removed=0), stats(10), stats(10))
    assert spans(found) == [(1, 2)]


def test_unchanged_neighbours_are_merged_if_the_result_doubles_the_largest() -> None:
    assert spans(groups(WHOLE, WHOLE)) == [(0, 1)]
    assert spans(groups(WHOLE, stats(99, removed=0))) == []


def test_empty_segments_between_others_join_the_merge() -> None:
    (found,) = groups(stats(50), EMPTY, stats(50))
    assert (found.first, found.last, found.kept) == (0, 2, (0, 2))


def test_empty_segments_beside_an_unchanged_one_are_unlinked_alone() -> None:
    found = groups(stats(500, removed=0), EMPTY, EMPTY)
    assert [(g.first, g.is_unlink) for g in found] == [(1, True), (2, True)]


def test_segments_without_timestamps_are_merged_only_with_each_other() -> None:
    times = [-1, -1, 5, 5, 5, -1, -1]
    entries = [
        entry(sink_name(10 * i), 10 * i, 10 * i + 10, size_bytes=100, max_timestamp=at) for i, at in enumerate(times)
    ]
    found = group(entries, [stats(50)] * 7, segment_bytes=1_000, unit_bytes=10**9)
    assert spans(found) == [(0, 1), (2, 4), (5, 6)]
    emptied = [stats(50), stats(50), EMPTY, EMPTY, EMPTY, stats(50), stats(50)]
    assert spans(group(entries, emptied, segment_bytes=1_000, unit_bytes=10**9)) == [(0, 6)]


def test_unit_bytes_split_a_group_that_could_be_one_output() -> None:
    assert spans(groups(*[stats(10)] * 6, unit_bytes=200)) == [(0, 1), (2, 3), (4, 5)]


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(200))
def test_groups_cover_every_change_once_within_the_limits(seed: int) -> None:
    random = Random(seed)
    segments = [
        random.choice([EMPTY, WHOLE, stats(random.randrange(1, 400)), stats(random.randrange(1, 400), removed=0)])
        for _ in range(random.randrange(1, 20))
    ]
    limit = random.choice([1, 150, 400, 2_000])
    found = groups(*segments, segment_bytes=limit)
    covered = [at for g in found for at in range(g.first, g.last + 1)]
    assert covered == sorted(set(covered))
    assert {at for at, s in enumerate(segments) if not s.is_untouched} <= set(covered)
    for g in found:
        assert g.kept == tuple(at for at in range(g.first, g.last + 1) if segments[at].kept_count)
        sizes = [segments[at].kept_bytes for at in g.kept]
        if len(sizes) > 1:
            assert 2 * max(sizes) <= sum(sizes) <= limit


@pytest.mark.parametrize("task_count", [1, 2, 7, 100])
def test_distribution_assigns_every_item_once_and_balances_bytes(task_count: int) -> None:
    random = Random(task_count)
    costs = [random.randrange(1, 1_000) for _ in range(60)]
    portions = distribute(costs, task_count)
    assert sorted(at for portion in portions for at in portion) == list(range(60))
    loads = [sum(costs[at] for at in portion) for portion in portions]
    assert max(loads) <= sum(costs) / len(portions) + max(costs)
    assert distribute([], task_count) == []


@pytest.mark.parametrize(
    ("total_mb", "tasks"), [(0, 2), (1, 2), (1000, 2), (1024, 4), (2000, 6), (2048, 8), (1_000_000, 8)]
)
def test_a_task_is_worth_starting_and_a_slot_has_at_most_four(total_mb: int, tasks: int) -> None:
    costs = [2**20] * total_mb
    assert tasks_for(costs, 2, least_bytes=256 * 2**20) == tasks
