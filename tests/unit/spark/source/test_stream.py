"""A stream without Spark: positions, limits, restarts, and what it says when the log has moved on without it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest

from keyfold.errors import ConfigError, LogError, OffsetOutOfRange
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.log.record import Record
from keyfold.read.position import Anchor
from keyfold.runtime.clock import ManualClock
from keyfold.spark.source.admission import Amount
from keyfold.spark.source.offsets import PartitionPosition, StreamOffset
from keyfold.spark.source.options import SourceOptions
from keyfold.spark.source.plan import SpanSlice
from keyfold.spark.source.stream import SourceStream
from keyfold.spark.source.topic import SourceTopic
from keyfold.store.api import Create, ObjectStore
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.counting import CountedStore
from tests.support.cleaning import PLACE, Sink, clean, load, memory_log, read_all, record

MUST = {"url": "s3://bucket/topics", "topic": "users"}


def stream(store: ObjectStore, clock: ManualClock | None = None, **options: str) -> SourceStream:
    read = SourceOptions.read({**MUST, "startingoffsets": "earliest", "pollintervalms": "0", **options})
    topic = SourceTopic(store, "topics", "users", read.partitions, clock=clock or ManualClock())
    return SourceStream(topic, read.require_stream())


def offsets(where: StreamOffset) -> dict[int, int]:
    return {partition: position.offset for partition, position in where.positions.items()}


def ranges(tasks: list[tuple[SpanSlice, ...]]) -> list[tuple[int, int, int]]:
    return [(one.partition, one.start, one.end) for task in tasks for one in task]


def again(where: StreamOffset) -> StreamOffset:
    """Through the checkpoint and back."""
    return StreamOffset.read(json.loads(json.dumps(where.document())), "users")


def some(first: int, count: int, key: str = "k") -> list[Record]:
    return [record(first + i, f"{key}{i}", f"v{first + i}") for i in range(count)]


def expire(store: ObjectStore, count: int) -> None:
    """Take the first segments off the log as retention does."""
    log = PartitionLog(store, PLACE, clock=ManualClock(), random=Random(5), retry_timeout_s=2.0)
    session = log.claim_compactor(lease_ms=1000, holder="test")
    session.expire(session.manifest.segments[:count])


# The document


def test_an_offset_document_round_trips_with_stable_text() -> None:
    anchor = Anchor("log", 7, 3)
    where = StreamOffset("users", {10: PartitionPosition(5, 1, anchor), 2: PartitionPosition(9, 9, anchor)})
    assert again(where) == where
    assert json.dumps(again(where).document()) == json.dumps(where.document())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"topic": "orders"}, "belongs to a stream of topic 'orders', not 'users'"),
        ({"format": 2}, "format 2"),
        ({"partitions": {"0": {"offset": 1}}}, "cannot be read"),
        ({"partitions": [1]}, "cannot be read"),
    ],
)
def test_a_foreign_checkpoint_is_refused(change: Mapping[str, object], said: str) -> None:
    document = {"format": 1, "topic": "users", "partitions": {}, **change}
    with pytest.raises(ConfigError, match=said):
        StreamOffset.read(document, "users")


# Going on


def test_a_stream_advances_with_new_segments_and_is_idle_between() -> None:
    store, sink = memory_log(some(0, 10))
    one = stream(store)
    start = one.initial()
    end = one.latest(start)
    assert offsets(end) == {0: 10}
    assert ranges(one.plan(start, end)) == [(0, 0, 10)]
    assert one.latest(end).document() == end.document()
    assert one.plan(end, end) == []
    sink.append(some(10, 5))
    after = one.latest(end)
    assert offsets(after) == {0: 15}
    assert ranges(one.plan(end, after)) == [(0, 10, 15)]


def test_a_stream_starts_at_the_requested_position() -> None:
    store, _ = memory_log([record(i, "k", "v", timestamp=1000 * i) for i in range(10)])
    assert offsets(stream(store).initial()) == {0: 0}
    assert offsets(stream(store, startingoffsets="latest").initial()) == {0: 10}
    assert offsets(stream(store, startingoffsets='{"0": 4}').initial()) == {0: 4}
    assert offsets(stream(store, startingoffsets='{"0": -1}').initial()) == {0: 10}
    timed = SourceOptions.read({**MUST, "startingtimestamp": "6500"})
    assert offsets(SourceStream(SourceTopic(store, "topics", "users"), timed).initial()) == {0: 7}
    default = SourceOptions.read(MUST)
    assert offsets(SourceStream(SourceTopic(store, "topics", "users"), default).initial()) == {0: 10}
    with pytest.raises(OffsetOutOfRange, match="failOnDataLoss"):
        stream(store, startingoffsets='{"0": 11}').initial()
    with pytest.raises(ConfigError, match="names partition 3"):
        stream(store, startingoffsets='{"0": 1, "3": 1}').initial()


def test_new_partitions_are_read_from_their_start() -> None:
    store, _ = memory_log(some(0, 10))
    one = stream(store, startingoffsets="latest")
    start = one.initial()
    other = Sink.open(store, Place("topics", "users", 4), seed=4, start_offset=20)
    other.append(some(20, 3))
    end = one.latest(start)
    assert offsets(end) == {0: 10, 4: 23}
    assert ranges(one.plan(again(start), again(end))) == [(4, 20, 23)]


@pytest.mark.parametrize("name", ["stray", "_first_copy.json"])
def test_a_folder_without_a_log_does_not_end_a_running_stream(name: str) -> None:
    store, sink = memory_log(some(0, 10))
    start = stream(store).initial()
    store.put(f"topics/users/partition=4/{name}", b"x", Create())
    sink.append(some(10, 5))
    assert offsets(stream(store).latest(again(start))) == {0: 15}
    with pytest.raises(LogError, match="users-4"):
        stream(store).initial()
    with pytest.raises(LogError, match="users-4"):
        stream(store, partitions="0,4").latest(again(start))


def test_only_the_chosen_partitions_are_read() -> None:
    store, _ = memory_log(some(0, 10))
    for number in (1, 2):
        Sink.open(store, Place("topics", "users", number), seed=number).append(some(0, number))
    counted = CountedStore(store)
    one = stream(counted, partitions="1-2")
    assert offsets(one.latest(one.initial())) == {1: 1, 2: 2}
    assert counted.calls["list_folders"] == 0


def test_limits_apply_until_the_backlog_is_read_and_not_to_unlimited_calls() -> None:
    store, _ = memory_log(some(0, 50), some(50, 50))
    one = stream(store, maxoffsetspertrigger="30")
    where = one.initial()
    found = []
    while (further := one.latest(again(where), one.limit)) != where:
        found += ranges(one.plan(where, further))
        where = further
    assert found == [(0, 0, 30), (0, 30, 60), (0, 60, 90), (0, 90, 100)]
    assert offsets(one.latest(one.initial())) == {0: 100}


def test_a_stream_reads_the_manifests_once_per_interval() -> None:
    clock = ManualClock()
    store, sink = memory_log(some(0, 10), clock=clock)
    counted = CountedStore(store)
    one = stream(counted, clock, pollintervalms="5000")
    where = one.latest(one.initial())
    sink.append(some(10, 5))
    counted.reset()
    for _ in range(100):
        assert one.latest(where) == where
        clock.sleep(0.01)
    assert sum(counted.calls.values()) == 0
    clock.sleep(5)
    assert offsets(one.latest(where)) == {0: 15}


def test_planning_again_for_a_deleted_version_forgets_no_partition() -> None:
    """The block table of a segment that is to be cut has been collected since its manifest was read."""
    clock = ManualClock()
    store, sink = memory_log([record(i, f"k{i % 5}", "v" * 50) for i in range(40)], clock=clock)
    Sink.open(store, Place("topics", "users", 1), clock=clock, seed=1).append(some(0, 3))
    one = stream(store, clock, pollintervalms="100000", maxpartitionbytes="300")
    start = one.initial()
    end = one.latest(start)
    only_first = StreamOffset("users", {**end.positions, 1: start.positions[1]})
    sink.append([record(40, "k0", "v"), record(41, "x", "v")])
    for _ in range(2):
        clean(store, clock=clock)
    assert [one[0] for one in ranges(one.plan(start, only_first))]
    assert offsets(one.latest(only_first)) == {0: 42, 1: 3}


def test_available_now_ends_at_the_end_when_it_started() -> None:
    store, sink = memory_log(some(0, 10))
    one = stream(store, maxoffsetspertrigger="4")
    where = one.initial()
    one.prepare_available_now()
    sink.append(some(10, 5))
    Sink.open(store, Place("topics", "users", 1), seed=1).append(some(0, 3))
    seen = []
    while (further := one.latest(where, one.limit)) != where:
        where = further
        seen.append(offsets(where))
    assert seen == [{0: 4}, {0: 8}, {0: 10}]
    later = stream(store)
    later.prepare_available_now()
    assert offsets(later.latest(again(where))) == {0: 15, 1: 3}


# Starting again


def test_a_rerun_first_batch_starts_at_the_same_position() -> None:
    """Spark keeps the end of a batch, not where a stream began: `latest` is a later offset after the crash."""
    store, sink = memory_log(some(0, 10))
    one = stream(store, startingoffsets="latest")
    start = one.initial()
    sink.append(some(10, 5))
    end = again(one.latest(start))
    sink.append(some(15, 5))
    restarted = stream(store, startingoffsets="latest")
    begin = restarted.initial()
    assert offsets(begin) == {0: 20}
    assert ranges(restarted.plan(begin, end)) == [(0, 10, 15)]
    assert ranges(restarted.plan(end, restarted.latest(end))) == [(0, 15, 20)]


def test_a_rerun_batch_has_the_same_offsets_after_a_compaction() -> None:
    store, sink = memory_log(some(0, 10), some(10, 10, "other"))
    one = stream(store)
    start = one.initial()
    end = one.latest(start, Amount(15))
    assert ranges(one.plan(start, end)) == [(0, 0, 15)]
    sink.append(some(20, 10))
    clean(store)
    assert [found.offset for found in read_all(store)] == list(range(10, 30))
    restarted = stream(store)
    assert ranges(restarted.plan(again(start), again(end))) == [(0, 0, 15)]
    rest = restarted.latest(again(end))
    assert ranges(restarted.plan(again(end), rest)) == [(0, 15, 30)]


def test_a_stream_overtaken_by_the_log_start_fails() -> None:
    store, _ = memory_log(some(0, 10), some(10, 10))
    one = stream(store)
    end = one.latest(one.initial(), Amount(3))
    expire(store, 1)
    said = r"log start moved to 10 before offset 3 was read.*failOnDataLoss"
    with pytest.raises(OffsetOutOfRange, match=said):
        stream(store).latest(again(end))
    with pytest.raises(OffsetOutOfRange, match=said):
        stream(store).plan(again(end), StreamOffset("users", {0: end.positions[0].at(20)}))
    careless = stream(store, failondataloss="false")
    further = careless.latest(again(end))
    assert offsets(further) == {0: 20}
    assert ranges(careless.plan(again(end), again(further))) == [(0, 10, 20)]


def test_a_stream_whose_tombstones_were_purged_ahead_of_it_fails() -> None:
    store, sink = memory_log([record(0, "a", "1"), record(1, "b", "1")], [record(2, "a", None), record(3, "c", "1")])
    one = stream(store)
    end = one.latest(one.initial(), Amount(1))
    assert offsets(end) == {0: 1}
    for _ in range(2):
        sink.append([record(load(store).next_offset, "d", "1"), record(load(store).next_offset + 1, "e", "1")])
        clean(store)
    assert load(store).purged_to == 2
    with pytest.raises(OffsetOutOfRange, match="tombstones up to offset 2 were removed before this reader"):
        stream(store).latest(again(end))
    with pytest.raises(OffsetOutOfRange, match="tombstones"):
        stream(store).plan(again(end), again(replace(end, positions={0: end.positions[0].at(4)})))
    past = again(replace(end, positions={0: end.positions[0].at(3)}))
    assert offsets(stream(store).latest(past)) == {0: load(store).next_offset}
    careless = stream(store, failondataloss="false")
    further = careless.latest(again(end))
    assert ranges(careless.plan(again(end), further))[-1][2] == load(store).next_offset
    assert stream(store).latest(again(further)) == further


def test_a_recreated_log_is_detected() -> None:
    store, _ = memory_log(some(0, 10))
    end = stream(store).latest(stream(store).initial())
    fresh = MemoryStore("fresh")
    Sink.open(fresh, seed=99).append(some(0, 30))
    one = stream(fresh)
    with pytest.raises(OffsetOutOfRange, match="created again"):
        one.latest(again(end))
    with pytest.raises(OffsetOutOfRange, match="created again"):
        one.plan(again(end), one.newest())
    careless = stream(fresh, failondataloss="false")
    further = again(careless.latest(again(end)))
    assert ranges(careless.plan(again(end), further)) == [(0, 0, 30)]


def test_a_log_ending_before_the_batch_is_detected() -> None:
    store, _ = memory_log(some(0, 10))
    one = stream(store)
    start = one.initial()
    end = StreamOffset("users", {0: start.positions[0].at(12)})
    with pytest.raises(OffsetOutOfRange, match="ends at offset 10, but the stream has a batch up to offset 12"):
        one.plan(start, end)


def test_a_deleted_partition_is_detected() -> None:
    store, _ = memory_log(some(0, 10))
    Sink.open(store, Place("topics", "users", 1), seed=1).append(some(0, 3))
    end = stream(store).latest(stream(store).initial())
    for info in list(store.list("topics/users/partition=1/")):
        store.delete(info.key)
    with pytest.raises(Exception, match="users-1: the log that this stream reads is no longer in the bucket"):
        stream(store).latest(again(end))
    assert stream(store, failondataloss="false").latest(again(end)) == end


def test_progress_reports_contain_the_offset_documents() -> None:
    store, _ = memory_log(some(0, 10))
    one = stream(store)
    assert one.report(None) is None
    start = one.initial()
    report = one.report(start)
    assert report is not None
    assert offsets(report) == {0: 10}
