"""The compactor's figures against numbers worked out by hand, also of runs that do nothing, or half of it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from keyfold.log.commit import Pinned
from keyfold.log.gc import CollectedGarbage
from keyfold.log.manifest import UNSTAMPED, RoleState
from keyfold.log.names import Place
from keyfold.metrics.metric import Metric
from keyfold.runtime.clock import ManualClock
from keyfold_compactor.decide.policy import decide_cleaning
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.decide.work import Traffic
from keyfold_compactor.report import metric_names as names
from keyfold_compactor.report.log_state import LogState, log_state
from keyfold_compactor.report.metric_names import METRICS, PARTITIONS_SHOWN
from keyfold_compactor.report.metrics import History, backlog, document, passes, run_values, text_lines, totals
from keyfold_compactor.report.report import Expired, LogSize, PartitionOutcome, PartitionReport, RunReport
from tests.support import metrics_docs
from tests.support.cleaning import EAGER, PLACE, clean, load, memory_log, new_run, record
from tests.support.manifests import empty_manifest, entry, sink_name
from tests.support.untyped import untyped

NOW_MS = 1_700_000_000_000


def place(partition: int, topic: str = "users") -> Place:
    return Place("topics", topic, partition)


def passed(partition: int, **changes: object) -> PartitionReport:
    """A pass that replaced 1,000 bytes by 250 and moved 1,500 for it."""
    values: dict[str, object] = {
        "parts": 1,
        "parts_committed": 1,
        "kept": 5,
        "superseded": 10,
        "purged_tombstones": 2,
        "keyless_removed": 1,
        "marked_tombstones": 3,
        "replaced_bytes": 1_000,
        "made_bytes": 250,
        "seconds": 4.0,
        "traffic": Traffic(1_100, 400, 0.5),
        **changes,
    }
    return PartitionReport(place(partition), PartitionOutcome.CLEANED, **values)  # type: ignore[arg-type]  # fields by name, of any type


def reported(*partitions: PartitionReport, **changes: object) -> RunReport:
    report = RunReport(**changes)  # type: ignore[arg-type]  # fields by name, of any type
    for partition in partitions:
        report.add(partition)
    return report


# Counters


def test_totals_are_sums_over_partitions() -> None:
    expired = PartitionReport(place(7), PartitionOutcome.EXPIRED, expired=Expired(2, 30, 400))
    swept = PartitionReport(
        place(8), PartitionOutcome.UNCHANGED, garbage=CollectedGarbage(("a", "b"), ("c",), ("d", "e"))
    )
    found = totals(reported(passed(0), passed(1, parts=3, parts_committed=3), expired, swept))
    assert (found.passes, found.parts) == (2, 4)
    assert (found.read_bytes, found.written_bytes, found.freed_bytes) == (2_200, 800, 1_500)
    assert found.throttle_wait_s == 1.0
    assert (found.records_kept, found.records_removed) == (10, 26), "superseded, purged and keyless: 13 each"
    assert (found.tombstones_removed, found.tombstones_marked) == (4, 6)
    assert (found.segments_expired, found.records_expired, found.expired_bytes) == (2, 30, 400)
    assert (found.objects_deleted, found.orphans_deleted) == (2, 3)
    assert (found.runs, found.leases_lost, found.leases_held) == (0, 0, 0)


def test_failures_have_kinds_and_a_partition_may_fail_in_several_ways() -> None:
    report = reported(
        PartitionReport(place(0), PartitionOutcome.FAILED, why="corrupt"),
        PartitionReport(place(1), PartitionOutcome.LOST, why="fenced"),
        PartitionReport(place(2), PartitionOutcome.SKIPPED, why="leased"),
        replace(passed(3), gc_error="503"),
        executor_error="the driver lost its executors",
    )
    report.add_expired(place(4), Expired(error="503"), LogSize(), LogSize())
    found = totals(report)
    assert (found.failed_cleaning, found.failed_retention, found.failed_deletion) == (1, 1, 1)
    assert (found.failed_executor, found.leases_lost, found.leases_held) == (1, 1, 1)


def test_a_merge_that_adds_bytes_frees_none_and_counters_never_go_back() -> None:
    assert totals(reported(passed(0, replaced_bytes=1_000, made_bytes=1_010))).freed_bytes == 0


# The last passes


def test_recopy_is_written_over_replaced_bytes_and_the_longest_pass_counts() -> None:
    found = passes(reported(passed(0), passed(1, replaced_bytes=3_000, made_bytes=750, seconds=9.5)))
    assert found is not None
    assert found.recopy_percent == 25.0, "1,000 made in the place of 4,000"
    assert found.clean_time_s == 9.5
    assert found.moved_per_freed == 1.0, "3,000 read and written, 3,000 freed"


def test_without_a_pass_there_are_no_pass_metrics() -> None:
    assert passes(reported()) is None
    assert passes(reported(PartitionReport(place(0), PartitionOutcome.FAILED, why="x", traffic=Traffic(10, 0)))) is None


def test_without_garbage_moved_bytes_per_freed_byte_are_zero() -> None:
    found = passes(reported(passed(0, replaced_bytes=0, made_bytes=0)))
    assert found is not None
    assert (found.recopy_percent, found.moved_per_freed) == (0.0, None)
    assert "nothing freed" in "\n".join(text_lines(reported(passed(0, replaced_bytes=0, made_bytes=0))))


# What is left to clean


def stands(partition: int, clean_bytes: int, cleanable_bytes: int, **changes: object) -> LogState:
    return LogState(place(partition), clean_bytes=clean_bytes, cleanable_bytes=cleanable_bytes, **changes)  # type: ignore[arg-type]  # fields by name, of any type


def test_the_dirtiest_log_is_neither_failing_nor_in_progress_nor_empty() -> None:
    logs = [
        stands(0, 75, 25),
        stands(1, 60, 40),
        stands(2, 10, 90),
        stands(3, 0, 100, is_in_progress=True),
        stands(4, 0, 0),
        LogState(place(5), is_compacted=False, cleanable_bytes=1_000),
    ]
    found = backlog(logs, {place(2)})
    assert found.max_dirty_percent == 40.0
    assert (found.uncleanable_count, found.uncleanable_bytes) == (1, 90)
    assert (found.partitions, found.clean_bytes, found.cleanable_bytes) == (5, 145, 255)
    assert found.worst_dirty == {("users", "1"): 40.0, ("users", "0"): 25.0}
    assert found.uncleanable == {("users", "2"): 1.0}


def test_without_any_log_everything_is_zero() -> None:
    found = backlog([], ())
    assert (found.max_dirty_percent, found.max_delay_s, found.uncleaned_age_s) == (0.0, 0.0, 0.0)
    assert (found.uncleanable_count, found.worst_dirty, found.worst_age) == (0, {}, {})


def test_an_unreadable_failing_partition_counts_without_bytes() -> None:
    found = backlog([stands(0, 1, 1)], {place(9)})
    assert (found.uncleanable_count, found.uncleanable_bytes) == (1, 0)


def test_delay_and_age_are_those_of_the_worst_log_even_a_failing_one() -> None:
    logs = [stands(0, 1, 1, overdue_ms=1_500, uncleaned_age_ms=9_000), stands(1, 1, 1, uncleaned_age_ms=10_000)]
    found = backlog(logs, {place(0)})
    assert (found.max_delay_s, found.uncleaned_age_s) == (1.5, 10.0)
    assert found.worst_overdue == {("users", "0"): 1.5}
    assert list(found.worst_age.items()) == [(("users", "1"), 10.0), (("users", "0"), 9.0)]


def test_of_thousands_of_partitions_the_ten_worst_have_samples() -> None:
    logs = [stands(p, 10_000 - p, p, overdue_ms=p, uncleaned_age_ms=p) for p in range(3_000)]
    found = backlog(logs, {place(p) for p in range(100)})
    for labelled in (found.worst_dirty, found.worst_overdue, found.worst_age):
        assert [int(partition) for _, partition in labelled] == list(range(2_999, 2_999 - PARTITIONS_SHOWN, -1))
    assert len(found.uncleanable) == PARTITIONS_SHOWN
    assert found.uncleanable_count == 100


# How a log stands


def stood(first_dirty: int, appended: tuple[int, ...], settings: TopicSettings = EAGER, **pinned: object) -> LogState:
    """Segments of ten offsets and 100 bytes each, seen now."""
    segments = tuple(entry(sink_name(10 * i), 10 * i, 10 * i + 10, appended_at_ms=at) for i, at in enumerate(appended))
    manifest = empty_manifest(segments=segments, next_offset=10 * len(appended), first_dirty_offset=first_dirty)
    values: dict[str, object] = {"modified_ms": NOW_MS - 7_000, **pinned}
    seen = Pinned(manifest, "etag", NOW_MS, **values)  # type: ignore[arg-type]  # fields by name, of any type
    return log_state(PLACE, seen, decide_cleaning(manifest, settings, NOW_MS), settings)


def test_age_is_that_of_the_oldest_dirty_append_even_if_too_young_to_clean() -> None:
    found = stood(10, (NOW_MS - 99_000, NOW_MS - 5_000, NOW_MS - 3_000))
    assert (found.uncleaned_age_ms, found.clean_bytes, found.cleanable_bytes) == (5_000, 100, 200)
    young = stood(10, (NOW_MS - 99_000, NOW_MS - 5_000), replace(EAGER, min_compaction_lag_ms=60_000))
    assert (young.uncleaned_age_ms, young.cleanable_bytes) == (5_000, 0)


def test_an_unstamped_append_is_as_old_as_the_manifest() -> None:
    assert stood(0, (UNSTAMPED,)).uncleaned_age_ms == 7_000
    assert stood(0, (UNSTAMPED,), modified_ms=UNSTAMPED).uncleaned_age_ms == 0


def test_a_clean_log_and_one_that_is_not_compacted_have_no_age() -> None:
    assert stood(10, (NOW_MS - 5_000,)).uncleaned_age_ms == 0
    found = stood(0, (NOW_MS - 5_000,), replace(EAGER, compact=False))
    assert (found.is_compacted, found.uncleaned_age_ms, found.dirty_percent) == (False, 0, 0.0)


def test_a_clock_that_jumps_back_gives_no_negative_age() -> None:
    found = stood(0, (NOW_MS + 60_000,), replace(EAGER, max_compaction_lag_ms=1))
    assert (found.uncleaned_age_ms, found.overdue_ms) == (0, 0)


def test_overdue_time_counts_from_the_end_of_the_lag() -> None:
    assert stood(0, (NOW_MS - 5_000,), replace(EAGER, max_compaction_lag_ms=2_000)).overdue_ms == 3_000


def test_a_log_leased_by_another_is_in_progress_until_the_lease_expires() -> None:
    manifest = empty_manifest(compactor=RoleState(1, "", NOW_MS + 1, "another"))
    for seen_ms, is_busy in ((NOW_MS, True), (NOW_MS + 1, False)):
        decision = decide_cleaning(manifest, EAGER, seen_ms)
        assert log_state(PLACE, Pinned(manifest, "etag", seen_ms), decision, EAGER).is_in_progress is is_busy


# Over the runs of a process


def test_counters_add_up_and_an_idle_run_keeps_the_last_passes_metrics() -> None:
    history = History().begun(100.0).ended(reported(passed(0), seconds=2.5), NOW_MS)
    history = history.begun(110.0).ended(reported(seconds=0.5), NOW_MS + 9_000)
    found = history.values(112.0)
    assert (found[names.RUNS], found[names.PASSES], found[names.READ]) == (2, 1, 1_100)
    assert (found[names.RECOPY], found[names.MAX_CLEAN_TIME], found[names.MOVED_PER_FREED]) == (25.0, 4.0, 2.0)
    assert (found[names.SINCE_LAST_RUN], found[names.LAST_RUN_SECONDS]) == (2_000, 0.5)
    assert found[names.LAST_RUN_TIME] == (NOW_MS + 9_000) / 1000


def test_before_the_first_run_last_run_metrics_are_absent() -> None:
    found = History(begun_s=1.0).values(4.0)
    assert (found[names.SINCE_LAST_RUN], found[names.LAST_RUN_TIME], found[names.MOVED_PER_FREED]) == (
        3_000,
        None,
        None,
    )
    assert (found[names.RECOPY], found[names.MAX_DIRTY], found[names.UNCLEANABLE_COUNT]) == (0.0, 0.0, 0)


def test_a_clock_that_jumps_back_gives_no_negative_time_since_the_last_run() -> None:
    history = History().begun(100.0).ended(reported(seconds=-3.0), NOW_MS)
    found = history.values(40.0)
    assert (found[names.SINCE_LAST_RUN], found[names.LAST_RUN_SECONDS]) == (0, 0.0)


def test_a_failed_run_is_counted_and_keeps_the_known_values() -> None:
    first = reported(passed(0))
    first.log_states[place(0)] = stands(0, 60, 40)
    history = History().begun(0.0).ended(first, NOW_MS).begun(5.0).failed(reported(passed(1)))
    found = history.values(6.0)
    assert (found[names.RUNS], found[names.PASSES], found[names.IN_PROGRESS]) == (1, 2, 0)
    assert found[names.MAX_DIRTY] == 40.0
    assert found[names.FAILED] == {(kind,): float(kind == "run") for kind in names.FAILURES}


def test_a_running_run_shows_its_progress_and_keeps_values_of_unvisited_logs() -> None:
    first = reported()
    first.log_states.update({place(0): stands(0, 60, 40), place(1): stands(1, 50, 50)})
    history = History().begun(0.0).ended(first, NOW_MS).begun(5.0)
    now = RunReport()
    now.under_way[place(1)] = passed(1, parts=9, parts_committed=2)
    now.log_states[place(1)] = stands(1, 100, 0)
    found = history.with_run(now.so_far()).values(6.0)
    assert (found[names.PARTS], found[names.IN_PROGRESS], found[names.MAX_DIRTY]) == (2, 1, 40.0)
    assert history.values(6.0)[names.PARTS] == 0, "values are not kept between two looks"
    now.add(passed(1, parts=9, parts_committed=9))
    done = history.ended(now, NOW_MS).values(7.0)
    assert (done[names.PARTS], done[names.PARTITIONS]) == (9, 1), "and who is gone is gone"


# Of real passes


def test_pass_metrics_compare_the_log_before_and_after() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1" * 100), record(1, "a", "2"), record(2, "b", None)], clock=clock)
    before = load(store).size_bytes
    report = clean(store, clock=clock)
    (part,) = report.partitions
    after = load(store).size_bytes
    assert (part.kept, part.superseded) == (2, 1)
    assert (part.replaced_bytes, part.made_bytes) == (before, after)
    found = document(report)
    assert found[names.RECOPY.name] == pytest.approx(100 * after / before)
    assert found[names.FREED.name] == before - after
    moved = part.traffic.read_bytes + part.traffic.written_bytes
    assert found[names.MOVED_PER_FREED.name] == pytest.approx(moved / (before - after))
    assert (found[names.MAX_DIRTY.name], found[names.CLEANABLE_BYTES.name]) == (0.0, 0), "after the pass all is clean"
    assert found[names.WORST_DIRTY.name] == []


def test_a_failed_partition_keeps_its_dirty_ratio_and_is_uncleanable() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)
    manifest = load(store)
    store.delete(PLACE.key(manifest.segments[0].index_name))
    clean(store, clock=clock)  # its claim writes down when the segment was appended
    clock.advance(5_000)
    found = document(clean(store, clock=clock, seed=2))
    assert found[names.UNCLEANABLE_COUNT.name] == 1
    assert found[names.UNCLEANABLE_BYTES.name] == manifest.size_bytes
    assert (found[names.MAX_DIRTY.name], found[names.PASSES.name]) == (0.0, 0)
    assert found[names.UNCLEANED_AGE.name] == 5.0
    assert {"kind": "cleaning", "value": 1} in untyped(found[names.FAILED.name])


def test_parts_are_counted_during_a_pass() -> None:
    clock = ManualClock()
    batches = [
        [record(4 * n + i, key, f"{n}" * 200) for i, key in enumerate(["a", "b", "c", f"only-{n}"])] for n in range(4)
    ]
    store, _ = memory_log(*batches, clock=clock)
    run = new_run(store, replace(EAGER, segment_bytes=1), clock=clock, pass_bytes=1)
    seen: list[tuple[int, int, int]] = []

    def look() -> bool:
        found = totals(run.report.so_far())
        seen.append((found.passes, found.parts, found.freed_bytes))
        return False

    report = run.clean([PLACE], look)
    assert [(p, parts) for p, parts, _ in seen] == [(0, 0), (1, 1), (1, 2)]
    freed = [f for *_, f in seen]
    assert freed == sorted(freed)
    assert freed[1] > 0
    done = totals(report)
    assert (done.passes, done.parts, report.under_way) == (1, 3, {})
    assert done.freed_bytes >= freed[-1]


# Names


def test_the_report_has_every_per_run_metric_in_a_fixed_order() -> None:
    found = document(reported(passed(0), seconds=2.0))
    expected = [m.name for m in METRICS if m not in {names.IN_PROGRESS, names.LAST_RUN_TIME, names.RUNS}]
    assert list(found) == expected
    assert list(run_values(reported())) == list(run_values(reported(passed(0))))
    assert found[names.SINCE_LAST_RUN.name] == 2_000


def test_metric_names_are_those_of_the_jmx_exporter() -> None:
    assert names.MAX_DIRTY.name == "kafka_log_logcleanermanager_max_dirty_percent"
    assert names.MAX_DIRTY.equivalent == "kafka.log:type=LogCleanerManager,name=max-dirty-percent"
    assert names.RECOPY.name == "kafka_log_logcleaner_cleaner_recopy_percent"
    kafka = {m.equivalent.partition("name=")[2] for m in METRICS if m.equivalent}
    assert kafka == {
        "uncleanable-partitions-count",
        "uncleanable-bytes",
        "max-clean-time-secs",
        "max-compaction-delay-secs",
        "max-dirty-percent",
        "cleaner-recopy-percent",
        "time-since-last-run-ms",
    }
    assert len({m.name for m in METRICS}) == len(METRICS)
    assert all(m.name.endswith("_total") == (m.kind == "counter") for m in METRICS)
    declared = {value for name, value in vars(names).items() if isinstance(value, Metric)}
    assert declared == set(METRICS)


def test_the_metrics_page_has_one_row_for_each_metric() -> None:
    page = metrics_docs.COMPACTOR_PAGE.read_text(encoding="utf-8")
    assert page == metrics_docs.page(page), f"run `{metrics_docs.COMMAND}`"
    assert all(len(text) <= 120 for metric in METRICS for text in (metric.help, metric.rises)), "a cell is a phrase"
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| `")]
    tables = {cells[0].strip().strip("`"): cells[1].strip().strip("`") for cells in rows}
    assert tables == {m.name: m.equivalent.rpartition("name=")[2] or "-" for m in METRICS}
    used = set(re.findall(r"\b(?:kafka_log|keyfold_compactor)_[a-z_]+", page))
    assert used <= {m.name for m in METRICS}, "examples use what there is"
