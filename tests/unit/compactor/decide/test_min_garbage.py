"""`segment.min.garbage.ratio`: which segments are skipped, and what must then not happen to tombstones and offsets."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from keyfold.errors import ConfigError
from keyfold.log.index import read_index
from keyfold.log.record import Record
from keyfold.runtime.clock import ManualClock
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.counting import CountedStore
from keyfold.verify.partition import verify_partition
from keyfold_compactor.decide.horizon import Purge
from keyfold_compactor.decide.min_garbage import (
    LogsBelowMinGarbage,
    apply_min_garbage,
    garbage_ratio,
    min_garbage_ratio_of,
)
from keyfold_compactor.decide.plan import SegmentGroup, SegmentStats, group, untouched
from keyfold_compactor.decide.policy import Reason, decide_cleaning
from keyfold_compactor.decide.settings import Encoding, TopicSettings
from keyfold_compactor.decide.work import LogJob
from keyfold_compactor.execute.executor import Executor
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.job import Job, RunSelection
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.report import PartitionOutcome, RunReport
from keyfold_compactor.report.report_text import text_lines
from tests.support.cleaning import (
    EAGER,
    PLACE,
    Sink,
    clean,
    latest,
    load,
    memory_log,
    new_run,
    read_all,
    record,
    retry_policy,
)
from tests.support.manifests import entry, sink_name
from tests.support.untyped import untyped

MIN_GARBAGE = replace(EAGER, segment_min_garbage_ratio=0.3, segment_bytes=1)  # a segment is never merged with another


def big(offset: int, *firsts: Record) -> list[Record]:
    """A segment in which `firsts` are a small part."""
    base = offset + len(firsts)
    return [*firsts, *(record(base + i, f"only-{base + i}", "x" * 100) for i in range(10))]


def marks(store: MemoryStore) -> dict[int, int | None]:
    """The mark of each tombstone, by offset."""
    found: dict[int, int | None] = {}
    for segment in load(store).segments:
        rows = read_index(store, PLACE, segment).rows.to_pylist()
        found.update({row["offset"]: row["cleaned_epoch"] for row in rows if row["is_tombstone"]})
    return found


def is_sound(store: MemoryStore) -> bool:
    return verify_partition(store, PLACE, clock=ManualClock(), random=Random(0)).is_sound


def deleted_key() -> tuple[MemoryStore, Sink]:
    """A value in a segment that is hardly worth rewriting, and its tombstone in one that is."""
    return memory_log(
        big(0, record(0, "gone", "value")),
        [record(11, "a", "1" * 500), record(12, "a", "2"), record(13, "gone", None), record(14, "other", None)],
        [record(15, "b", "1" * 500), record(16, "b", "2")],
    )


def test_a_tombstone_never_goes_before_its_value_however_often_the_log_is_cleaned() -> None:
    store, _ = deleted_key()
    for seed in range(5):
        clean(store, MIN_GARBAGE, seed=seed)
        offsets = {r.offset for r in read_all(store)}
        assert {0, 13, 14} <= offsets
        assert marks(store) == {13: None, 14: None}
        assert load(store).first_dirty_offset == 0
        assert is_sound(store)
    assert offsets == {*range(11), 12, 13, 14, 16}, "what is worth it is cleaned all the same"
    clean(store, EAGER, seed=8)
    assert 0 not in {r.offset for r in read_all(store)}
    assert None not in marks(store).values(), "the value has gone, and the tombstone's time begins"
    clean(store, EAGER, seed=9)
    assert marks(store) == {}
    assert is_sound(store)


def test_a_skipped_clean_segment_keeps_first_dirty_in_place() -> None:
    store, sink = memory_log(big(0, record(0, "k", "old")))
    clean(store, MIN_GARBAGE)
    assert load(store).first_dirty_offset == 11
    sink.append([record(11, "k", None), record(12, "z", "1")])
    sink.append([record(13, "z", "2")])
    clean(store, MIN_GARBAGE, seed=2)
    assert load(store).first_dirty_offset == 11
    assert [r.offset for r in read_all(store)] == [*range(12), 13]
    assert marks(store) == {11: None}
    clean(store, EAGER, seed=3)
    assert load(store).first_dirty_offset == 14
    assert [r.offset for r in read_all(store)] == [*range(1, 12), 13]


def test_everything_before_the_skipped_segment_is_clean_and_marked() -> None:
    store, sink = memory_log([record(0, "t", "v"), record(1, "t", None), record(2, "k", "v")])
    sink.append(big(3, record(3, "k", "newer")))
    sink.append([record(14, "k", None)])
    clean(store, MIN_GARBAGE)
    manifest = load(store)
    assert manifest.first_dirty_offset == 3
    assert marks(store) == {1: manifest.last_pass_epoch, 14: None}
    assert is_sound(store)


def test_tombstones_that_are_only_due_hold_nothing_back_and_go_with_the_next_rewrite() -> None:
    store, sink = memory_log(big(0, record(0, "t", None)))
    clean(store, MIN_GARBAGE)
    report = clean(store, MIN_GARBAGE, seed=2)
    assert report.partitions[0].segments_left == 1
    assert report.partitions[0].purged_tombstones == 0
    assert load(store).purged_to == -1
    assert load(store).first_dirty_offset == 11
    sink.append([record(11 + i, f"only-{1 + i}", "y") for i in range(6)])
    clean(store, MIN_GARBAGE, seed=3)
    assert 0 not in {r.offset for r in read_all(store)}
    assert load(store).purged_to == 0


def test_tombstones_of_a_segment_skipped_for_its_keyless_records_are_marked_and_go() -> None:
    """Nothing superseded is in it: without the mark they would stay for ever, and make the log due in every run."""
    store, _ = memory_log(big(0, record(0, None, "no key"), record(1, "t", None)))
    topic = replace(MIN_GARBAGE, remove_keyless=True)
    report = clean(store, topic)
    assert (report.partitions[0].segments_left, report.partitions[0].marked_tombstones) == (1, 1)
    assert report.partitions[0].indexes_written == 1
    assert report.partitions[0].segments_written == 0
    assert marks(store) == {1: load(store).last_pass_epoch}
    assert decide_cleaning(load(store), topic, 0).reasons == (Reason.HORIZON,)
    settled = LogsBelowMinGarbage()
    clean(store, topic, seed=2, below_min_garbage=settled)
    assert clean(store, topic, seed=3, below_min_garbage=settled).quiet_partitions == 1
    clean(store, replace(topic, segment_min_garbage_ratio=0.0), seed=4)
    assert marks(store) == {}
    assert is_sound(store)


def stopped_pass() -> tuple[MemoryStore, Sink]:
    """Clean up to 13, where a pass in parts was stopped: the tombstone at 12 has no mark yet."""
    store, sink = memory_log(
        big(0, record(0, "k", "old")),
        [record(11, "z", "1" * 300), record(12, "t", None)],
        [record(13, "z", "2"), record(14, "y", "1" * 300)],
        [record(15, "y", "2")],
    )
    answers = iter([False, True])
    new_run(store, replace(EAGER, segment_bytes=1), pass_bytes=1).clean([PLACE], lambda: next(answers))
    assert load(store).first_dirty_offset == 13
    assert marks(store) == {12: None}
    sink.session.refresh()
    sink.append([record(16, "k", "new")])
    return store, sink


def test_a_clean_tombstone_is_marked_although_an_earlier_clean_segment_is_skipped() -> None:
    store, _ = stopped_pass()
    settled = LogsBelowMinGarbage()
    (part,) = clean(store, MIN_GARBAGE, seed=2, below_min_garbage=settled).partitions
    assert (part.segments_left, part.marked_tombstones) == (1, 1)
    assert marks(store) == {12: load(store).last_pass_epoch}
    (part,) = clean(store, MIN_GARBAGE, seed=3, below_min_garbage=settled).partitions
    assert part.purged_tombstones == 1
    assert clean(store, MIN_GARBAGE, seed=4, below_min_garbage=settled).quiet_partitions == 1
    assert is_sound(store)


def test_appends_after_the_end_of_a_pass_do_not_make_it_worthwhile() -> None:
    """Tombstones that are due by themselves are settled as far as their pass would go."""
    store, sink = memory_log(big(0, record(0, "t", None)))
    settled = LogsBelowMinGarbage()
    for seed in (1, 2):
        clean(store, MIN_GARBAGE, seed=seed, below_min_garbage=settled)
    half = replace(MIN_GARBAGE, min_cleanable_dirty_ratio=0.9)
    assert decide_cleaning(load(store), half, 0).reasons == (Reason.HORIZON,)
    sink.session.refresh()
    for offset in (11, 12):
        sink.append([record(offset, f"more-{offset}", "v")])
        assert decide_cleaning(load(store), half, 0).reasons == (Reason.HORIZON,)
        assert clean(store, half, seed=offset, below_min_garbage=settled).quiet_partitions == 1


def test_merging_removes_the_garbage_too() -> None:
    store, sink = memory_log(big(0, record(0, "k", "old")))
    sink.append(big(11, record(11, "k", "new")))
    sink.append(big(22))
    clean(store, replace(MIN_GARBAGE, segment_bytes=10**6))
    assert len(load(store).segments) == 1
    assert 0 not in {r.offset for r in read_all(store)}
    assert load(store).first_dirty_offset == 32


@pytest.mark.parametrize("seed", [1, 2])
def test_a_skipped_record_becomes_overdue_however_often_small_segments_arrive(seed: int) -> None:
    """A merge of what stays dirty would have the age of its youngest part, pass after pass."""
    clock = ManualClock()
    store, sink = memory_log([record(i, f"only-{i}", "x" * 100) for i in range(600)], clock=clock)
    settings = replace(EAGER, segment_min_garbage_ratio=0.5, max_compaction_lag_ms=100_000)
    clean(store, settings, clock=clock, seed=seed)
    clock.advance(2_000)
    sink.append([record(600, "only-5", None)])
    deleted_at_ms = clock.now_ms()
    while any(r.offset == 5 for r in read_all(store)):
        assert clock.now_ms() <= deleted_at_ms + 130_000, "max.compaction.lag.ms, and some runs more"
        end = load(store).next_offset
        sink.append([record(end + i, f"only-{end + i}", "y") for i in range(2)])
        clock.advance(10_000)
        clean(store, settings, clock=clock, seed=seed)
    assert len(load(store).segments) < 5, "and then they are merged"


def test_force_and_overdue_records_ignore_min_garbage() -> None:
    for changes, settings in (
        ({"force": True}, MIN_GARBAGE),
        ({}, replace(MIN_GARBAGE, max_compaction_lag_ms=1_000)),
    ):
        clock = ManualClock()
        store, _ = memory_log(big(0, record(0, "k", "old")), [record(11, "k", "new")], clock=clock)
        clean(store, replace(MIN_GARBAGE, min_cleanable_dirty_ratio=0.99), clock=clock)
        clock.advance(60_000)
        clean(store, settings, clock=clock, seed=2, **changes)
        assert 0 not in {r.offset for r in read_all(store)}


def job(store: MemoryStore | CountedStore, clock: ManualClock) -> Job:
    options = CompactOptions.parse(
        {
            "s3.bucket.name": "b",
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0",
            "segment.bytes": "1",
            "segment.min.garbage.ratio": "0.3",
            "delete.retention.ms": "0",
            "file.delete.delay.ms": "0",
        }
    )

    def executor(_due_bytes: int) -> Executor:
        return LocalExecutor(store, retry_policy(clock, Random(1)))

    return Job(options, RunSelection(), store, executor, clock=clock, random=Random(2))


def test_a_log_with_too_little_garbage_is_not_due_until_something_changes() -> None:
    clock = ManualClock()
    store, sink = memory_log(big(0, record(0, "k", "old")), [record(11, "k", "new")], clock=clock)
    counted = CountedStore(store)
    runs = job(counted, clock)
    (part,) = runs.once().partitions
    assert (part.outcome, part.segments_left) == (PartitionOutcome.UNCHANGED, 1)
    runs.once()
    before = dict(counted.calls)
    assert runs.once().quiet_partitions == 1
    calls = {name: count - before[name] for name, count in counted.calls.items() if count != before[name]}
    del calls["list_folders"], calls["list"]  # which partitions there are, and which replicas
    assert set(calls) == {"get"}, "one manifest, and nothing else"
    assert "below segment.min.garbage.ratio" in runs.review()[0].decision.why_not  # type: ignore[union-attr]  # it is there, or the test fails
    sink.session.refresh()
    sink.append([record(12 + i, f"only-{1 + i}", "y") for i in range(6)])
    (part,) = runs.once().partitions
    assert (part.outcome, part.segments_left) == (PartitionOutcome.CLEANED, 0)
    assert load(store).first_dirty_offset == load(store).next_offset


def test_the_report_counts_skipped_segments() -> None:
    store, _ = deleted_key()
    report = clean(store, MIN_GARBAGE)
    assert "1 segment not rewritten, garbage below segment.min.garbage.ratio" in "\n".join(
        text_lines(report, is_verbose=True)
    )
    assert untyped(report.document())["partitions"][0]["segments_left"] == 1
    assert report.partitions[0].marked_tombstones == 0


# The choice by itself


def log(*stats: SegmentStats, first_dirty: int = 0) -> LogJob:
    entries = tuple(
        entry(sink_name(10 * i), 10 * i, 10 * i + 10, size_bytes=100, record_count=10) for i in range(len(stats))
    )
    end = 10 * len(stats)
    return LogJob(0, PLACE, entries, first_dirty, end, 9, b"", Purge(), False, Encoding())


def loses(share: float, *, superseded: int = 1, marks: int = 0) -> SegmentStats:
    kept = round(100 * (1 - share))
    return SegmentStats(10, 10 - superseded, kept, superseded_count=superseded, mark_count=marks)


KEPT = SegmentStats(10, 10, 100)


@pytest.mark.parametrize(
    ("least_ratio", "left"), [(0.0, ()), (0.1, ()), (0.2, (0,)), (0.21, (0,)), (0.5, (0, 2)), (1.0, (0, 2))]
)
def test_only_segments_below_the_minimum_ratio_are_skipped(least_ratio: float, left: tuple[int, ...]) -> None:
    stats = (loses(0.1), KEPT, loses(0.4))
    work = log(*stats)
    found = apply_min_garbage(work, group(work.entries, stats, segment_bytes=1, unit_bytes=10**9), stats, least_ratio)
    assert found.left == left
    assert garbage_ratio(work.entries[0], stats[0]) == pytest.approx(0.1)
    assert all(g.first not in left for g in found.groups)


def test_without_min_garbage_a_pass_equals_kafkas() -> None:
    stats = (loses(0.001), replace(KEPT, mark_count=1), SegmentStats(10, 0, 0, superseded_count=10))
    work = log(*stats)
    groups = group(work.entries, stats, segment_bytes=1, unit_bytes=10**9)
    found = apply_min_garbage(work, groups, stats, 0.0)
    assert (list(found.groups), found.stats, found.first_dirty) == (groups, stats, 30)


def test_nothing_after_the_skipped_segment_is_marked_but_emptied_segments_go() -> None:
    marking = replace(KEPT, mark_count=1)
    stats = (marking, loses(0.1, marks=2), marking, SegmentStats(10, 0, 0, superseded_count=10), loses(0.9, marks=1))
    work = log(*stats)
    found = apply_min_garbage(work, group(work.entries, stats, segment_bytes=1, unit_bytes=10**9), stats, 0.5)
    assert [(g.first, g.is_remark, g.is_unlink) for g in found.groups] == [
        (0, True, False),
        (3, False, True),
        (4, False, False),
    ]
    assert [s.mark_count for s in found.stats] == [1, 0, 0, 0, 0]
    assert found.stats[1] == untouched(work.entries[1])
    assert (found.first_dirty, found.unmarked_from, found.left) == (10, 1, (1,))


def test_clean_tombstones_after_a_skipped_segment_are_marked_unless_merged_into_the_dirty_part() -> None:
    marking = replace(KEPT, mark_count=1)
    stats = (loses(0.1, marks=1), marking, marking, marking, loses(0.9, marks=1))
    work = log(*stats, first_dirty=30)
    entries = (replace(work.entries[0], tombstone_count=2, unmarked_tombstone_count=2), *work.entries[1:])
    work = replace(work, entries=entries)

    def made(first: int, last: int, *, is_remark: bool = False) -> SegmentGroup:
        return SegmentGroup(first, last, tuple(range(first, last + 1)), is_remark, 1_000, 1_000)

    singles = [made(0, 0), *(made(at, at, is_remark=True) for at in (1, 2, 3)), made(4, 4)]
    found = apply_min_garbage(work, singles, stats, 0.5)
    assert (found.left, found.unmarked_from, found.first_dirty) == ((0,), 3, 30)
    assert [(g.first, g.is_remark, g.moved_bytes) for g in found.groups] == [
        (0, True, 100),
        (1, True, 2_000),
        (2, True, 2_000),
        (4, False, 2_000),
    ]
    assert [s.mark_count for s in found.stats] == [2, 1, 1, 0, 0]
    assert [s.has_mask for s in found.stats] == [False, False, False, False, True]
    crossing = [made(0, 0), made(1, 1, is_remark=True), made(2, 3), made(4, 4)]
    found = apply_min_garbage(work, crossing, stats, 0.5)
    assert (found.unmarked_from, [s.mark_count for s in found.stats]) == (2, [2, 1, 0, 0, 0])
    assert [g.first for g in found.groups] == [0, 1, 2, 4]


def test_later_skipped_segments_get_no_marks_because_an_older_record_may_remain() -> None:
    stats = (KEPT, loses(0.1, marks=1), loses(0.1, marks=1), loses(0.9, marks=1))
    work = log(*stats)
    entries = tuple(replace(e, tombstone_count=1, unmarked_tombstone_count=1) for e in work.entries)
    found = apply_min_garbage(replace(work, entries=entries), [_single(at) for at in (1, 2, 3)], stats, 0.5)
    assert (found.left, found.unmarked_from, found.first_dirty) == ((1, 2), 1, 10)
    assert [g.first for g in found.groups] == [3]
    assert [s.mark_count for s in found.stats] == [0, 0, 0, 0]


def _single(at: int) -> SegmentGroup:
    return SegmentGroup(at, at, (at,), False, 1_000, 1_000)


def test_first_dirty_never_goes_back() -> None:
    stats = (loses(0.1), KEPT, loses(0.9))
    work = log(*stats, first_dirty=15)
    found = apply_min_garbage(work, group(work.entries, stats, segment_bytes=1, unit_bytes=10**9), stats, 0.5)
    assert (found.first_dirty, found.unmarked_from) == (15, 1)


def test_min_garbage_is_set_for_all_topics_or_one_and_never_followed_from_kafka() -> None:
    options = CompactOptions.parse(
        {"s3.bucket.name": "b", "segment.min.garbage.ratio": "0.1", "topic.users.segment.min.garbage.ratio": "0.4"}
    )
    assert options.settings_of("users", {}).segment_min_garbage_ratio == 0.4
    assert options.settings_of("orders", {"segment.min.garbage.ratio": "0.9"}).segment_min_garbage_ratio == 0.1
    assert TopicSettings().segment_min_garbage_ratio == 0.0
    with pytest.raises(ConfigError, match="must be at most 1"):
        CompactOptions.parse({"s3.bucket.name": "b", "segment.min.garbage.ratio": "1.5"})


def test_a_log_settled_under_one_min_garbage_is_not_settled_under_another() -> None:
    store, _ = memory_log(big(0, record(0, "k", "old")), [record(11, "k", "new")])
    settled = LogsBelowMinGarbage()
    report: RunReport = clean(store, MIN_GARBAGE, below_min_garbage=settled)
    assert report.partitions[0].segments_left == 1
    clock = ManualClock()
    manifest = load(store)
    for settings, is_known in (
        (MIN_GARBAGE, True),
        (replace(MIN_GARBAGE, segment_min_garbage_ratio=0.01), False),
        (EAGER, False),
    ):
        decision = decide_cleaning(manifest, settings, clock.now_ms())
        assert settled.knows(PLACE, manifest, decision, settings, clock.now_ms()) is is_known
    forced = decide_cleaning(manifest, MIN_GARBAGE, clock.now_ms(), force=True)
    assert min_garbage_ratio_of(forced, MIN_GARBAGE) == 0.0
    assert not settled.knows(PLACE, manifest, forced, MIN_GARBAGE, clock.now_ms())
    assert latest(read_all(store))[b"k"].value == b"new"
