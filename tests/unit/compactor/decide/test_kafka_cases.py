"""Kafka's own test cases for its cleaner, on keyfold's log; docs/kafka-cleaner.md says which case is which test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keyfold.log.record import Record
from keyfold.runtime.clock import NEVER_MS, ManualClock
from keyfold_compactor.decide.settings import TopicSettings
from tests.support.cleaning import EAGER, SMALL, clean, load, memory_log, read_all, record

HOUR_MS = 3_600_000
KEPT = replace(EAGER, delete_retention_ms=NEVER_MS // 4)


def kept(records: list[Record]) -> list[str]:
    """`key@offset`."""
    return [f"{(r.key or b'').decode()}@{r.offset}" for r in records]


def test_exactly_the_keys_with_a_later_record_go() -> None:
    batches = [[record(s * 5 + i, f"{s * 5 + i}", "v") for i in range(5)] for s in range(4)]
    store, _ = memory_log(*batches, [record(20 + i, f"{k}", "v") for i, k in enumerate((1, 3, 5, 7, 9))])
    clean(store)
    survivors = read_all(store)
    assert [r.offset for r in survivors if r.offset < 20] == [n for n in range(20) if n not in {1, 3, 5, 7, 9}]


def test_no_deleted_key_gets_a_value_back_while_more_data_arrives() -> None:
    store, sink = memory_log([record(n, f"{n}", "v") for n in range(10)])
    sink.append([record(10 + i, f"{n}", None) for i, n in enumerate(range(0, 10, 2))])
    sink.append([record(15 + i, f"{n}", "w") for i, n in enumerate((1, 3))])
    clean(store, KEPT)
    found = read_all(store)
    assert {r.key for r in found if r.value is not None} == {b"1", b"3", b"5", b"7", b"9"}
    assert kept([r for r in found if r.is_tombstone]) == ["0@10", "2@11", "4@12", "6@13", "8@14"]


def test_a_tombstone_with_a_very_old_timestamp_is_kept_for_its_whole_retention() -> None:
    """KAFKA-4529: the horizon is never counted from a record's timestamp."""
    clock = ManualClock()
    settings = replace(EAGER, delete_retention_ms=HOUR_MS)
    store, sink = memory_log([record(0, "a", "v", timestamp=clock.now_ms() + HOUR_MS)], clock=clock)
    sink.append([record(1, "a", None, timestamp=1)])
    for seed in (1, 2):
        clean(store, settings, clock=clock, seed=seed)
        assert kept(read_all(store)) == ["a@1"]
        clock.advance(HOUR_MS // 4)
    clock.advance(HOUR_MS)
    clean(store, settings, clock=clock, seed=3)
    assert read_all(store) == []
    assert load(store).next_offset == 2


def test_two_keys_written_five_times_leave_the_last_of_each_and_are_counted() -> None:
    store, sink = memory_log([record(0, "0", "v"), record(1, "1", "v")])
    clean(store)
    sink.append([record(2, "0", "v"), record(3, "1", "v"), record(4, "0", "v")])
    (report,) = clean(store, seed=2).partitions
    assert kept(read_all(store)) == ["1@3", "0@4"]
    assert (report.before.records, report.after.records, report.superseded) == (5, 2, 3)
    assert load(store).first_dirty_offset == 5


def test_no_segment_from_the_first_too_young_one_on_is_cleaned() -> None:
    clock = ManualClock()
    settings = replace(EAGER, min_compaction_lag_ms=HOUR_MS)
    store, sink = memory_log(clock=clock)
    for number in range(2):
        sink.append([record(number * 10 + i, f"{i % 2}", "v") for i in range(10)])
    clock.advance(2 * HOUR_MS)
    for number in range(2, 7):
        sink.append([record(number * 10 + i, f"{i % 2}", "v") for i in range(10)])
    clean(store, settings, clock=clock)
    found = read_all(store)
    assert kept([r for r in found if r.offset < 20]) == ["0@18", "1@19"]
    assert [r.offset for r in found if r.offset >= 20] == list(range(20, 70))
    assert load(store).first_dirty_offset == 20


@pytest.mark.parametrize("span", [2**31 - 1, 2**31, 2**40])
def test_widely_spaced_offsets_are_handled(span: int) -> None:
    offsets = [0, 1, span, span + 1, 3 * span]
    store, sink = memory_log()
    for offset in offsets:
        sink.append([record(offset, f"{offset % 3}" if offset < span else "last", "v")], next_offset=offset + 1)
    clean(store)
    survivors = [r.offset for r in read_all(store)]
    assert survivors == [0, 1, 3 * span]
    manifest = load(store)
    assert (manifest.first_dirty_offset, manifest.next_offset) == (3 * span + 1, 3 * span + 1)


def test_holes_at_segment_ends_are_skipped_and_the_log_is_not_chosen_again() -> None:
    """KAFKA-8764: a checkpoint that stayed before a hole made the cleaner choose the same log for ever."""
    store, sink = memory_log()
    for base in (0, 10, 20):
        sink.append([record(base + i, f"{i}", "v") for i in range(3)], next_offset=base + 10)
    clean(store)
    assert load(store).first_dirty_offset == load(store).next_offset == 30
    assert [r.offset for r in read_all(store)] == [20, 21, 22]
    version = load(store).version
    clean(store, seed=2)
    clean(store, seed=3)
    assert load(store).version <= version + 2, "at most what is written down of the last pass"
    version = load(store).version
    clean(store, seed=4)
    assert load(store).version == version


@pytest.mark.parametrize("size", [2**20, 3 * 2**20])
def test_records_far_larger_than_a_block_are_cleaned(size: int) -> None:
    store, sink = memory_log([record(0, "a", b"x" * size), record(1, "b", b"y" * size), record(2, "a", b"z")])
    sink.append([record(3, "c", b"w" * size), record(4, "b", None)])
    clean(store, replace(KEPT, encoding=SMALL))
    found = read_all(store)
    assert kept(found) == ["a@2", "c@3", "b@4"]
    assert found[1].value == b"w" * size


def test_keys_resembling_transaction_markers_are_ordinary_keys() -> None:
    abort, commit = b"\x00\x00\x00\x00", b"\x00\x00\x00\x01"
    store, _ = memory_log([record(0, abort, "v"), record(1, commit, "v"), record(2, "a", "v")])
    clean(store)
    assert [r.offset for r in read_all(store)] == [0, 1, 2]


def test_max_lag_cleans_each_block_after_its_own_lag_and_not_earlier() -> None:
    """The lag counts from the first commit after the append: that one writes the time down, here a run's."""
    clock = ManualClock()
    settings = replace(EAGER, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=6 * HOUR_MS)
    store, sink = memory_log([record(n, f"{n % 2}", "v") for n in range(6)], clock=clock)
    clean(store, settings, clock=clock)
    clock.advance(5 * HOUR_MS)
    sink.append([record(6 + n, f"{n % 2}", "v") for n in range(6)])
    clean(store, settings, clock=clock, seed=2)
    assert len(read_all(store)) == 12
    clock.advance(2 * HOUR_MS)
    clean(store, replace(settings, min_compaction_lag_ms=3 * HOUR_MS), clock=clock, seed=3)
    assert kept(read_all(store))[:2] == ["0@4", "1@5"]
    assert len(read_all(store)) == 8
    clean(store, settings, clock=clock, seed=4)
    assert len(read_all(store)) == 8
    clock.advance(5 * HOUR_MS)
    clean(store, settings, clock=clock, seed=5)
    assert kept(read_all(store)) == ["0@10", "1@11"]


def test_an_emptied_log_is_not_chosen() -> None:
    clock = ManualClock()
    settings = replace(EAGER, delete=True, retention_ms=HOUR_MS)
    store, sink = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)
    sink.append([record(2, "b", "1")])
    clock.advance(2 * HOUR_MS)
    clean(store, settings, clock=clock)
    clock.advance(2 * HOUR_MS)
    clean(store, settings, clock=clock, seed=2)
    manifest = load(store)
    assert (manifest.log_start_offset, manifest.next_offset, manifest.segments) == (3, 3, ())
    assert [p for p in clean(store, settings, clock=clock, seed=3).partitions if p.reasons] == []


def test_timestamps_of_remaining_records_never_change() -> None:
    store, _ = memory_log([record(0, "a", "v", 5), record(1, "b", None, 10), record(2, "c", "v", 15)])
    for seed in (1, 2, 3):
        clean(store, KEPT, seed=seed)
        assert [(r.offset, r.timestamp) for r in read_all(store)] == [(0, 5), (1, 10), (2, 15)]


def test_cleaning_again_changes_nothing() -> None:
    settings: TopicSettings = KEPT
    store, _ = memory_log([record(n, f"{n % 3}", "v" if n % 4 else None) for n in range(12)])
    clean(store, settings)
    names = load(store).object_names()
    clean(store, settings, seed=2, force=True)
    assert load(store).object_names() == names
