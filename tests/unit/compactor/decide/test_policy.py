"""Which logs are cleaned, how far, and why: Kafka's cases (LogCleanerManagerTest) and keyfold's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keyfold.log.manifest import UNSTAMPED, Manifest, Pass, Replaced
from keyfold.log.partition_log import Pinned
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import STORE_TIME_RESOLUTION_MS
from keyfold_compactor.decide.horizon import due_epochs
from keyfold_compactor.decide.policy import MaintenanceTask, Reason, clean_range, decide_cleaning
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.decide.work import log_job
from tests.support.cleaning import EAGER, PLACE, clean, load, memory_log, record
from tests.support.manifests import empty_manifest, entry, sink_name

NOW = 1_000_000
# A wait is surely over one tick of the store's clock after its end.
SEEN = NOW + STORE_TIME_RESOLUTION_MS
HALF = TopicSettings()


def log(*sizes: int, first_dirty: int = 0, appended: tuple[int, ...] = (), **changes: object) -> Manifest:
    """Segments of ten offsets each, of these stored bytes."""
    times = appended or (0,) * len(sizes)
    segments = tuple(
        entry(sink_name(10 * i), 10 * i, 10 * i + 10, size_bytes=size, appended_at_ms=times[i])
        for i, size in enumerate(sizes)
    )
    values: dict[str, Any] = {
        "next_offset": 10 * len(sizes),
        "first_dirty_offset": first_dirty,
        "segments": segments,
        **changes,
    }
    return empty_manifest(**values)


def test_the_dirty_ratio_equals_kafkas() -> None:
    manifest = log(10, 20, 30, 40, 50, 60, first_dirty=20, appended=(0, 0, 0, 0, NOW - 5, 0))
    parts = clean_range(manifest, replace(HALF, min_compaction_lag_ms=10), SEEN)
    assert (parts.first_dirty, parts.end) == (20, 40)
    assert (parts.clean_bytes, parts.cleanable_bytes) == (30, 70)
    assert parts.dirty_ratio == 0.7


@pytest.mark.parametrize(("ratio", "is_due"), [(0.0, True), (0.49, True), (0.5, False), (0.51, False), (1.0, False)])
def test_the_ratio_must_be_strictly_above_the_setting(ratio: float, is_due: bool) -> None:
    decision = decide_cleaning(log(50, 50, first_dirty=10), replace(HALF, min_cleanable_dirty_ratio=ratio), SEEN)
    assert decision.is_due == is_due
    assert bool(decision.why_not) != is_due


def test_neither_a_ratio_of_one_nor_an_empty_log_triggers() -> None:
    assert not decide_cleaning(log(100), replace(HALF, min_cleanable_dirty_ratio=1.0), SEEN).is_due
    assert not decide_cleaning(empty_manifest(), replace(HALF, min_cleanable_dirty_ratio=0.0), SEEN).is_due


@pytest.mark.parametrize(("age", "end"), [(10, 10), (9, 0), (11, 10)])
def test_min_lag_counts_from_the_append(age: int, end: int) -> None:
    manifest = log(100, appended=(NOW - age,))
    assert clean_range(manifest, replace(HALF, min_compaction_lag_ms=10), SEEN).end == end


def test_an_unstamped_append_is_too_young_under_a_lag_and_cleanable_without() -> None:
    manifest = log(100, appended=(UNSTAMPED,))
    assert clean_range(manifest, replace(HALF, min_compaction_lag_ms=1), SEEN).end == 0
    assert clean_range(manifest, HALF, SEEN).end == 10


def test_a_clean_segment_is_never_too_young() -> None:
    """After a raised lag or a recent merge, a clean segment does not hold back later ones."""
    manifest = log(10, 20, 30, first_dirty=10, appended=(NOW - 5, 0, 0))
    parts = clean_range(manifest, replace(HALF, min_compaction_lag_ms=10), SEEN)
    assert (parts.end, parts.cleanable_bytes) == (30, 50)


def test_the_oldest_dirty_record_determines_how_long_a_log_is_overdue() -> None:
    manifest = log(10, 20, 30, first_dirty=10, appended=(NOW - 900, NOW - 150, NOW - 120))
    decision = decide_cleaning(manifest, replace(HALF, max_compaction_lag_ms=100, min_cleanable_dirty_ratio=1.0), NOW)
    assert (decision.reasons, decision.overdue_ms, decision.end) == ((Reason.OVERDUE,), 50, 30)


def test_future_record_timestamps_block_nothing() -> None:
    manifest = log(100, appended=(NOW - 100,))
    future = replace(manifest, segments=(replace(manifest.segments[0], max_timestamp=2**60),))
    assert clean_range(future, replace(HALF, min_compaction_lag_ms=10), SEEN).end == 10


def test_with_a_first_dirty_offset_outside_the_log_all_of_it_is_dirty() -> None:
    manifest = log(10, 10, first_dirty=20)
    assert clean_range(replace(manifest, first_dirty_offset=99), HALF, SEEN).first_dirty == 0
    shifted = replace(manifest, segments=manifest.segments[1:], log_start_offset=10, first_dirty_offset=5)
    assert clean_range(shifted, HALF, SEEN).first_dirty == 10


def test_a_segment_cut_by_first_dirty_counts_once_as_cleanable() -> None:
    parts = clean_range(log(10, 20, 40, first_dirty=15), HALF, SEEN)
    assert (parts.clean_bytes, parts.cleanable_bytes) == (10, 60)


def test_overdue_logs_come_before_dirtier_ones_and_the_longest_overdue_first() -> None:
    lagged = replace(HALF, max_compaction_lag_ms=100)
    overdue = decide_cleaning(log(90, 10, first_dirty=10, appended=(0, NOW - 150)), lagged, NOW)
    longer = decide_cleaning(log(90, 10, first_dirty=10, appended=(0, NOW - 160)), lagged, NOW)
    dirty = decide_cleaning(log(100, appended=(NOW,)), lagged, NOW)
    forced = decide_cleaning(log(100, first_dirty=10), HALF, NOW, force=True)
    assert overdue.reasons == (Reason.OVERDUE,)
    assert (overdue.overdue_ms, longer.overdue_ms) == (50, 60)
    assert sorted([dirty, overdue, longer, forced], key=lambda v: v.rank) == [forced, longer, overdue, dirty]


def test_max_lag_does_not_clean_what_min_lag_protects() -> None:
    settings = replace(HALF, max_compaction_lag_ms=100, min_compaction_lag_ms=100)
    assert not decide_cleaning(log(10, appended=(NOW - 99,)), settings, SEEN).is_due
    assert decide_cleaning(log(10, appended=(NOW - 101,)), settings, SEEN).is_due


def marked(committed_at_ms: int, *, unmarked: int = 0, dirty: bool = False) -> Manifest:
    manifest = log(50, 50 if dirty else 1, first_dirty=10 if dirty else 20)
    first = replace(manifest.segments[0], tombstone_count=2, unmarked_tombstone_count=unmarked, cleaned_epochs=(3,))
    passes = (Pass(3, committed_at_ms),)
    return replace(manifest, segments=(first, manifest.segments[1]), passes=passes, last_epoch=3)


def test_a_passed_delete_horizon_makes_a_clean_log_due_by_itself() -> None:
    settings = replace(HALF, delete_retention_ms=1_000)
    assert not decide_cleaning(marked(NOW - 999), settings, SEEN).is_due
    decision = decide_cleaning(marked(NOW - 1_000), settings, SEEN)
    assert decision.reasons == (Reason.HORIZON,)
    assert decision.end == 20


def test_due_tombstones_do_not_cause_cleaning_of_the_dirty_part() -> None:
    settings = replace(HALF, delete_retention_ms=1_000)
    decision = decide_cleaning(marked(NOW - 1_000, dirty=True), settings, SEEN)
    assert decision.reasons == (Reason.HORIZON,)
    assert decision.end == 10, "the dirty half is not above the ratio yet"


def test_clean_tombstones_without_a_mark_make_a_log_due() -> None:
    assert decide_cleaning(marked(NOW, unmarked=1), HALF, SEEN).reasons == (Reason.UNMARKED,)


def test_tombstones_of_the_dirty_part_make_no_log_due() -> None:
    """Neither without a mark nor with one that is due: what a pass would do with them is not known yet."""
    manifest = log(50, 50, first_dirty=10)
    dirty = replace(manifest.segments[1], tombstone_count=2, unmarked_tombstone_count=1, cleaned_epochs=(3,))
    manifest = replace(manifest, segments=(manifest.segments[0], dirty), passes=(Pass(3, 0),), last_epoch=3)
    assert not decide_cleaning(manifest, replace(HALF, delete_retention_ms=1_000), SEEN).is_due
    cut = replace(manifest, first_dirty_offset=15)
    assert not decide_cleaning(cut, replace(HALF, delete_retention_ms=1_000), SEEN).is_due


def test_a_pass_for_tombstones_omits_a_segment_cut_by_first_dirty() -> None:
    manifest = replace(marked(NOW - 1_000), first_dirty_offset=15)
    decision = decide_cleaning(manifest, replace(HALF, delete_retention_ms=1_000), SEEN)
    assert (decision.reasons, decision.end) == ((Reason.HORIZON,), 15)
    job = log_job(0, PLACE, Pinned(manifest, "etag", SEEN), decision, HALF, 4)
    assert job.entries == manifest.segments[:1]
    assert not job.is_dirty(manifest.segments[1])


def test_a_segment_cut_by_first_dirty_is_dirty() -> None:
    manifest = log(10, 10, 10, first_dirty=15)
    decision = decide_cleaning(manifest, replace(HALF, min_cleanable_dirty_ratio=0.0), SEEN)
    job = log_job(0, PLACE, Pinned(manifest, "etag", SEEN), decision, HALF, 4)
    assert [job.is_dirty(e) for e in job.entries] == [False, True, True]


@pytest.mark.parametrize(
    ("changes", "remove_keyless", "is_read"),
    [
        ({}, True, False),
        ({"tombstone_count": 1, "unmarked_tombstone_count": 1}, False, True),
        ({"tombstone_count": 1, "cleaned_epochs": (3,)}, False, True),
        ({"tombstone_count": 1, "cleaned_epochs": (4,)}, False, False),
        ({"keyless_count": 1}, True, True),
        ({"keyless_count": 1}, False, False),
    ],
)
def test_a_clean_segment_is_read_only_if_it_needs_work(
    changes: dict[str, Any], remove_keyless: bool, is_read: bool
) -> None:
    manifest = log(50, 50, first_dirty=20, passes=(Pass(3, 0), Pass(4, NOW)), last_epoch=4)
    settings = replace(HALF, delete_retention_ms=1_000, remove_keyless=remove_keyless)
    decision = decide_cleaning(manifest, settings, SEEN, force=True)
    job = log_job(0, PLACE, Pinned(manifest, "etag", SEEN), decision, settings, 5)
    assert job.needs_index(replace(manifest.segments[0], **changes)) == is_read


def test_an_unstamped_pass_is_never_due_but_needs_its_stamp() -> None:
    manifest = marked(UNSTAMPED)
    assert due_epochs(manifest, 0, SEEN) == frozenset()
    decision = decide_cleaning(manifest, replace(HALF, delete_retention_ms=1_000), SEEN)
    assert not decision.is_due
    assert decision.maintenance == (MaintenanceTask.STAMP,)
    # Without retention the claim's own stamp is enough.
    assert decide_cleaning(manifest, replace(HALF, delete_retention_ms=0), SEEN).reasons == (Reason.HORIZON,)


def test_append_times_are_stamped_only_if_a_lag_needs_them() -> None:
    manifest = log(100, appended=(UNSTAMPED,), first_dirty=10)
    assert decide_cleaning(manifest, HALF, SEEN).maintenance == ()
    assert decide_cleaning(manifest, replace(HALF, min_compaction_lag_ms=5), SEEN).maintenance == (
        MaintenanceTask.STAMP,
    )
    assert decide_cleaning(manifest, replace(HALF, max_compaction_lag_ms=5), SEEN).maintenance == (
        MaintenanceTask.STAMP,
    )


def test_replaced_objects_are_stamped_and_then_deleted() -> None:
    settings = replace(HALF, file_delete_delay_ms=100)
    fresh = log(100, first_dirty=10, replaced=(Replaced("x", 1, UNSTAMPED),))
    assert decide_cleaning(fresh, settings, SEEN).maintenance == (MaintenanceTask.STAMP,)
    waiting = replace(fresh, replaced=(Replaced("x", 1, NOW - 99),))
    assert decide_cleaning(waiting, settings, SEEN).maintenance == ()
    due = replace(fresh, replaced=(Replaced("x", 1, NOW - 100),))
    assert decide_cleaning(due, settings, SEEN).maintenance == (MaintenanceTask.DELETE,)


def test_an_uncompacted_topic_gets_maintenance_only() -> None:
    manifest = log(100, replaced=(Replaced("x", 1, UNSTAMPED),))
    decision = decide_cleaning(manifest, replace(HALF, compact=False), SEEN, force=True)
    assert not decision.is_due
    assert "cleanup.policy" in decision.why_not
    assert decision.maintenance == (MaintenanceTask.STAMP,)


def test_a_young_segment_covering_an_emptied_logs_range_is_not_cleanable() -> None:
    """Its range begins at the log start, so first_dirty is inside it; nothing of it may be cleaned yet."""
    clock = ManualClock()
    store, sink = memory_log([record(0, "a", "1"), record(1, "a", None)], clock=clock)
    for seed in (1, 2):
        clean(store, clock=clock, seed=seed)
    assert load(store).segments == ()
    sink.append([record(2, "a", "2")])
    (entry,) = load(store).segments
    assert (entry.base_offset, load(store).first_dirty_offset) == (0, 2)
    decision = decide_cleaning(load(store), replace(EAGER, min_compaction_lag_ms=3_600_000), clock.now_ms())
    assert (decision.is_due, decision.range.cleanable_bytes) == (False, 0)
    assert decide_cleaning(load(store), EAGER, clock.now_ms()).is_due
