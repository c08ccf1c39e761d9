"""What a Spark read is about, from manifests alone: versions, bounds, segments. No Spark runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone

import pytest

from keyfold.errors import ConfigError, OffsetOutOfRange, TopicNotFound
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.read.log import Log
from keyfold.spark.dataframe.snapshot_pins import PartitionSnapshot, Times, head_and_tail, pin_log
from keyfold.store.memory import MemoryStore
from tests.support.logs import MadeLog, record

HOUR_MS = 3_600_000


def batch(start: int, count: int, *, key: str | None = None) -> list[Record]:
    return [record(at, key or f"key-{at}", f"value-{at}") for at in range(start, start + count)]


def made(store: MemoryStore, partition: int, *batches: Sequence[Record]) -> MadeLog:
    log = MadeLog(store=store, place=Place("topics", "users", partition))
    _ = log.sink
    for one in batches:
        log.append(one)
    return log


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def log(store: MemoryStore) -> Log:
    return Log(store, "topics", "users")


def opened(pins: Sequence[PartitionSnapshot]) -> list[tuple[int, int]]:
    return [(pin.place.partition, entry.base_offset) for pin in pins for entry in pin.entries]


def test_all_partitions_are_pinned_in_order_and_whole(store: MemoryStore, log: Log) -> None:
    for partition in (10, 2, 0):
        made(store, partition, batch(0, 5), batch(5, 5))
    pins = pin_log(log)
    assert [pin.place.partition for pin in pins] == [0, 2, 10]
    assert {(pin.start, pin.end, pin.is_cut) for pin in pins} == {(0, 10, False)}
    assert opened(pins) == [(p, base) for p in (0, 2, 10) for base in (0, 5)]


def test_segments_outside_the_offsets_are_not_opened(store: MemoryStore, log: Log) -> None:
    made(store, 0, batch(0, 5), batch(5, 5), batch(10, 5))
    (pin,) = pin_log(log, from_offset=5, to_offset=10)
    assert opened([pin]) == [(0, 5)]
    assert not pin.is_cut  # the one segment is wanted whole: no row needs a look
    (pin,) = pin_log(log, from_offset=6, to_offset=11)
    assert opened([pin]) == [(0, 5), (0, 10)]
    assert pin.is_cut


def test_a_segment_is_not_opened_for_a_hole_at_its_end(store: MemoryStore, log: Log) -> None:
    made_log = MadeLog(store=store, place=Place("topics", "users", 0))
    made_log.append(batch(0, 5), next_offset=100)
    made_log.append(batch(100, 5))
    assert opened(pin_log(log, from_offset=50)) == [(0, 100)]


def test_offsets_are_one_number_or_one_for_each_partition(store: MemoryStore, log: Log) -> None:
    made(store, 0, batch(0, 5))
    made(store, 1, batch(0, 50))
    pins = pin_log(log, from_offset={1: 20}, to_offset={0: 3})
    assert [(pin.start, pin.end) for pin in pins] == [(0, 3), (20, 50)]
    # A number for all may be behind the end of a short partition, which then has nothing to give.
    pins = pin_log(log, from_offset=20)
    assert opened(pins) == [(1, 0)]


def test_an_offset_that_the_log_cannot_serve_is_refused(store: MemoryStore, log: Log) -> None:
    started = MadeLog(store=store, place=Place("topics", "users", 0))
    started.log.create(start_offset=100)
    started.append(batch(100, 5))
    for wrong in (99, {0: 99}, {0: 106}):
        with pytest.raises(OffsetOutOfRange, match="users-0"):
            pin_log(log, from_offset=wrong)
    assert pin_log(log, from_offset={0: 105})[0].entries == ()


def test_offsets_of_a_partition_that_is_not_read_are_a_mistake(store: MemoryStore, log: Log) -> None:
    made(store, 0, batch(0, 5))
    with pytest.raises(ConfigError, match=r"from_offset.*\[7\]"):
        pin_log(log, from_offset={7: 1})
    with pytest.raises(ConfigError, match="to_offset"):
        pin_log(log, [0], to_offset={1: 1})
    with pytest.raises(ConfigError, match="partitions"):
        pin_log(log, [])
    with pytest.raises(TopicNotFound):
        pin_log(Log(store, "topics", "nobody"))


def test_segments_of_another_time_are_not_opened(store: MemoryStore, log: Log) -> None:
    made(store, 0, batch(0, 5), batch(5, 5), batch(10, 5))  # a second an offset
    assert opened(pin_log(log, times=Times(from_ms=5_000, to_ms=10_000))) == [(0, 5)]
    assert opened(pin_log(log, times=Times(from_ms=4_000))) == [(0, 0), (0, 5), (0, 10)]
    assert opened(pin_log(log, times=Times(to_ms=0))) == []


def test_a_segment_without_timestamps_has_no_time(store: MemoryStore, log: Log) -> None:
    made(store, 0, [record(0, "a", "1", timestamp=-1)], [record(1, "b", "1", timestamp=0)])
    assert opened(pin_log(log)) == [(0, 0), (0, 1)]
    assert opened(pin_log(log, times=Times(to_ms=1_000))) == [(0, 1)]
    assert opened(pin_log(log, times=Times(from_ms=-5))) == [(0, 1)]


def test_a_datetime_counts_in_whole_milliseconds_of_its_zone() -> None:
    east = timezone(timedelta(hours=2))
    assert Times.of(datetime(1970, 1, 1, 2, 0, 0, 999_999, tzinfo=east), None) == Times(999, None)
    assert Times.of(datetime(2040, 2, 3, 4, 5, 6, 789_000, tzinfo=UTC), 7) == Times(2_211_854_706_789, 7)
    with pytest.raises(ConfigError, match="time zone"):
        Times.of(None, datetime(2024, 1, 1))  # noqa: DTZ001 - a time without a zone is the case


def test_head_and_tail_meet_at_the_first_dirty_offset(store: MemoryStore, log: Log) -> None:
    cleaned = made(store, 0, batch(0, 5), batch(5, 5))
    cleaned.compact()
    cleaned.append(batch(10, 5))
    made(store, 1, batch(0, 5))
    heads, tails = head_and_tail(pin_log(log))
    assert opened(heads) == [(0, 10), (1, 0)]
    assert opened(tails) == [(0, 0), (0, 5)]
    assert not any(pin.is_cut for pin in (*heads, *tails))


def test_a_segment_on_both_sides_of_the_first_dirty_offset_is_cut(store: MemoryStore, log: Log) -> None:
    made(store, 0, batch(0, 10))
    (pin,) = pin_log(log)
    low, high = pin.cut(0, 4), pin.cut(4, 10)
    assert low.is_cut
    assert high.is_cut
    assert opened([low, high]) == [(0, 0), (0, 0)]
