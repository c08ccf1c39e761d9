"""What tasks read: each record once, in a version that is replaced and collected under them, or an error in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random

import pyarrow as pa
import pytest

from keyfold.errors import Corrupt, OffsetOutOfRange, SnapshotLost
from keyfold.log.index import BlockTable
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.read.position import anchor_of
from keyfold.read.selection import Selection
from keyfold.runtime.clock import ManualClock
from keyfold.spark.source.batch import plan_batch
from keyfold.spark.source.columns import ARROW
from keyfold.spark.source.filters import EVERYTHING, FilterBounds
from keyfold.spark.source.options import SourceOptions
from keyfold.spark.source.plan import SpanSlice, span_of, tasks_of
from keyfold.spark.source.read import ReadSettings, read_slices
from keyfold.spark.source.topic import SourceTopic
from keyfold.store.api import Blob, Create, ObjectStore
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.counting import CountedStore
from tests.support.cleaning import EAGER, PLACE, Sink, clean, load, memory_log, new_run, read_all, record

MUST = {"url": "s3://bucket/topics", "topic": "users"}
READING = ReadSettings("topics", "users", ARROW)


def plan(store: ObjectStore, scope: FilterBounds = EVERYTHING, **options: str) -> list[tuple[SpanSlice, ...]]:
    read = SourceOptions.read({**MUST, **options}).require_batch()
    topic = SourceTopic(store, "topics", "users", read.partitions, clock=ManualClock(), random=Random(1))
    return plan_batch(topic, read, scope)


def read(
    store: ObjectStore, tasks: list[tuple[SpanSlice, ...]], reading: ReadSettings = READING
) -> list[tuple[int, Record]]:
    return [one for task in tasks for batch in batches(store, task, reading) for one in records(batch)]


def batches(
    store: ObjectStore, task: tuple[SpanSlice, ...], reading: ReadSettings = READING
) -> Iterator[pa.RecordBatch]:
    return read_slices(store, lambda partition: load(store, Place("topics", "users", partition)), reading, task)


def records(batch: pa.RecordBatch) -> Iterator[tuple[int, Record]]:
    assert batch.schema == ARROW
    for row in batch.set_column(2, "timestamp", batch.column("timestamp").cast(pa.int64())).to_pylist():
        headers = tuple((one["name"], one["value"]) for one in row["headers"])
        assert row["timestamp"] % 1000 == 0
        time_ms, kind = row["timestamp"] // 1000, row["timestamp_type"]
        yield (
            row["partition"],
            Record(row["offset"], time_ms, kind, row["key"], row["value"], headers, row["leader_epoch"]),
        )


def many(seed: int = 0) -> tuple[MemoryStore, Sink]:
    random = Random(seed)
    store, sink = memory_log()
    offset = 0
    for _ in range(5):
        batch = []
        for _ in range(60):
            offset += random.choice([1, 1, 3])
            value = None if random.random() < 0.2 else f"v{offset}" * random.randrange(9)
            batch.append(record(offset, f"k{random.randrange(25)}", value, timestamp=1000 * offset))
        sink.append(batch)
    return store, sink


@pytest.mark.parametrize("size", [300, 2000, 10**9])
def test_tasks_together_read_the_log(size: int) -> None:
    store, _ = many()
    Sink.open(store, Place("topics", "users", 3), seed=3).append([record(i, "a", "b") for i in range(9)])
    tasks = plan(store, maxpartitionbytes=str(size))
    other = [(3, one) for one in read_all(store, place=Place("topics", "users", 3))]
    assert read(store, tasks) == [(0, one) for one in read_all(store)] + other
    assert len(tasks) == 1 or size < 10**6


def test_filters_reach_segments_and_blocks() -> None:
    store, _ = many()
    every = [(0, one) for one in read_all(store)]
    wanted = {b"k3", b"k7"}
    scope = FilterBounds(min_timestamp=150_000, max_timestamp=300_000, keys=frozenset(wanted))
    counted = CountedStore(store)
    tasks = plan(counted, scope)
    found = read(counted, tasks, ReadSettings("topics", "users", ARROW, scope.selection))
    assert found == [one for one in every if one[1].key in wanted and 150_000 <= one[1].timestamp <= 300_000]
    assert counted.calls["get"] <= 1 + 3  # the manifest, and the indexes of the segments with these times
    assert counted.bytes_moved["get_range"] < load(store).size_bytes / 2
    assert plan(store, FilterBounds(min_offset=5, max_offset=4)) == []
    assert plan(store, FilterBounds(partitions=frozenset({9}))) == []
    assert read(store, plan(store, FilterBounds(min_offset=40, max_offset=90))) == [
        one for one in every if 40 <= one[1].offset <= 90
    ]


def test_a_timestamp_outside_sparks_range_becomes_the_nearest() -> None:
    store, _ = memory_log([record(0, "a", "1", 2**62), record(1, "b", "1", -(2**62)), record(2, "c", "1", -1)])
    (batch,) = batches(store, plan(store)[0])
    found = batch.column("timestamp").cast(pa.int64()).to_pylist()
    assert found == [(2**63 - 1) // 1000 * 1000, -((2**63 - 1) // 1000) * 1000, -1000]


# Versions that go


@dataclass
class Scene:
    """A store in which something happens at the n-th look at a segment or an index."""

    inner: ObjectStore
    at: int
    act: Callable[[], None]
    seen: int = 0
    done: list[int] = field(default_factory=list)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        self._look(key)
        return self.inner.get(key, max_bytes)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self._look(key)
        return self.inner.get_range(key, start, length)

    def _look(self, key: str) -> None:
        if key.endswith("_manifest.avro"):
            return
        self.seen += 1
        if self.seen == self.at and not self.done:
            self.done.append(1)
            self.act()


def stream_tasks(manifest: Manifest, end: int) -> list[tuple[SpanSlice, ...]]:
    """Tasks as a stream has them: no snapshot, its end is one of its own."""
    return tasks_of([span_of(manifest, 0, end, anchor_of(manifest))], 10**9, 1, no_tables)


def no_tables(_partition: int, _entry: SegmentEntry) -> BlockTable:
    raise AssertionError("nothing is cut")


@pytest.mark.sharded
@pytest.mark.parametrize("at", range(2, 12))
def test_a_snapshot_survives_compaction_within_its_range(at: int) -> None:
    """Collected meanwhile, but nothing was removed for a record behind the snapshot's end."""
    store, _ = memory_log(*[[record(3 * s + i, f"k{i}", f"v{s}") for i in range(3)] for s in range(4)])
    appended = read_all(store)
    tasks = plan(store)

    def collect() -> None:
        clean(store, clock=ManualClock(1_800_000_000_000))

    scene = Scene(store, at, collect)
    found = [one for _, one in read(scene, tasks)]  # type: ignore[arg-type]  # all that is asked of it
    assert {one.key: one for one in found} == {one.key: one for one in appended}
    assert [one.offset for one in found] == sorted({one.offset for one in found})


def test_a_snapshot_that_lost_a_record_to_a_later_one_fails() -> None:
    store, sink = memory_log([record(0, "a", "1"), record(1, "b", "1")], [record(2, "c", "1")])
    tasks = plan(store)

    def move_on() -> None:
        sink.append([record(3, "a", "2")])
        sink.append([record(4, "d", "2")])
        clean(store, clock=ManualClock(1_800_000_000_000))
        assert load(store).first_dirty_offset > 3

    with pytest.raises(SnapshotLost, match="compacted beyond offset 3, where this read ends"):
        read(Scene(store, 1, move_on), tasks)  # type: ignore[arg-type]  # has what is called of a store


def test_a_stream_continues_where_a_snapshot_fails() -> None:
    store, sink = memory_log([record(0, "a", "1"), record(1, "b", "1")], [record(2, "c", "1")])
    tasks = stream_tasks(load(store), 3)

    def move_on() -> None:
        sink.append([record(3, "a", "2")])
        sink.append([record(4, "d", "2")])
        clean(store, clock=ManualClock(1_800_000_000_000))

    found = read(Scene(store, 1, move_on), tasks)  # type: ignore[arg-type]  # has what is called of a store
    assert [one.offset for _, one in found] == [1, 2]  # a@0 has given way to a@3, which a later batch brings


def test_a_task_whose_tombstone_was_purged_fails_unless_configured_to_continue() -> None:
    store, sink = memory_log([record(0, "a", "1")], [record(1, "a", None), record(2, "b", "1")])
    tasks = stream_tasks(load(store), 3)

    def purge() -> None:
        for n in range(2):
            end = load(store).next_offset
            sink.append([record(end, "x", "1"), record(end + 1, f"y{n}", "1")])
            clean(store, clock=ManualClock(1_800_000_000_000 + n))
        assert load(store).purged_to == 1

    with pytest.raises(OffsetOutOfRange, match=r"tombstones up to offset 1.*failOnDataLoss"):
        read(Scene(store, 3, purge), tasks)  # type: ignore[arg-type]  # has what is called of a store
    store, sink = memory_log([record(0, "a", "1")], [record(1, "a", None), record(2, "b", "1")])
    tasks = stream_tasks(load(store), 3)
    careless = ReadSettings("topics", "users", ARROW, Selection(), fail_on_data_loss=False)
    found = read(Scene(store, 3, purge), tasks, careless)  # type: ignore[arg-type]  # has what is called of a store
    assert [one.offset for _, one in found] == [0, 2]


def test_a_missing_object_that_is_still_listed_is_damage() -> None:
    store, _ = many()
    tasks = plan(store)
    store.delete(PLACE.key(load(store).segments[2].name))
    with pytest.raises(Corrupt, match="is missing, but version"):
        read(store, tasks)


def test_damage_is_named() -> None:
    store, _ = many()
    tasks = plan(store)
    key = PLACE.key(load(store).segments[2].name)
    data = bytearray(store.get(key).data)
    data[len(data) // 2] ^= 1
    store.delete(key)
    store.put(key, bytes(data), Create())
    with pytest.raises(Corrupt, match="block"):
        read(store, tasks)


def by_parts(store: ObjectStore) -> None:
    """A pass in parts that ends after its first one."""
    calls = iter([False])
    run = new_run(store, replace(EAGER, segment_bytes=1), clock=ManualClock(1_800_000_000_000), pass_bytes=1)
    (report,) = run.clean([PLACE], lambda: next(calls, True)).partitions
    assert 0 < report.parts_committed < report.parts


def with_min_garbage(store: ObjectStore) -> None:
    """A pass that leaves the first segment, which holds back the first dirty offset, and cleans the one behind it."""
    settings = replace(EAGER, segment_bytes=1, segment_min_garbage_ratio=0.4)
    (report,) = clean(store, settings, clock=ManualClock(1_800_000_000_000)).partitions
    assert report.segments_left > 0


@pytest.mark.parametrize("compact", [by_parts, with_min_garbage])
def test_a_snapshot_that_lost_a_record_below_a_parts_first_dirty_offset_fails(
    compact: Callable[[ObjectStore], None],
) -> None:
    """`first_dirty_offset` alone does not show records superseded by one after the snapshot's end."""
    store, sink = memory_log(
        [record(0, "x", "1"), record(1, "y", "1"), record(2, "z", "1" * 50)],
        [record(3, "a", "1" * 50), record(4, "b", "1")],
        [record(5, "y", "2")],
    )
    tasks = plan(store)

    def move_on() -> None:
        sink.append([record(6, "a", "2"), record(7, "x", "2")])
        sink.append([record(8, "d", "2")])
        compact(store)
        manifest = load(store)
        assert manifest.first_dirty_offset <= 6
        for one in manifest.replaced:
            store.delete(PLACE.key(one.name))

    with pytest.raises(SnapshotLost, match="compacted beyond offset 6, where this read ends"):
        read(Scene(store, 1, move_on), tasks)  # type: ignore[arg-type]  # has what is called of a store
