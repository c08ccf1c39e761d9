"""A stream against a log that is appended to, cleaned and collected at any moment, with crashes and restarts.

The sink keeps each batch by its number and applies them in order: what it then holds must be the log's latest state, as
a dict of everything that was ever appended has it. A stream may refuse to continue, and is then restarted with an empty
sink; what it must not do is go on with a hole.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from keyfold.errors import OffsetOutOfRange, SnapshotLost
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.runtime.clock import ManualClock
from keyfold.spark.source.admission import Amount
from keyfold.spark.source.batch import plan_batch
from keyfold.spark.source.columns import ARROW
from keyfold.spark.source.filters import EVERYTHING
from keyfold.spark.source.offsets import StreamOffset
from keyfold.spark.source.options import SourceOptions
from keyfold.spark.source.plan import SpanSlice
from keyfold.spark.source.read import ReadSettings, read_slices
from keyfold.spark.source.stream import SourceStream
from keyfold.spark.source.topic import SourceTopic
from keyfold.store.api import Blob
from keyfold.store.memory import MemoryStore
from keyfold_compactor.decide.settings import TopicSettings
from tests.support.cleaning import EAGER, Sink, load, new_run, record

PARTITIONS = (0, 1)
READING = ReadSettings("topics", "users", ARROW)


@dataclass
class Restless:
    """A store in which the world may move between any two requests of a reader."""

    inner: MemoryStore
    random: Random
    move: Callable[[], None]
    chance: float = 0.0
    is_moving: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        self._stir()
        return self.inner.get(key, max_bytes)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self._stir()
        return self.inner.get_range(key, start, length)

    def _stir(self) -> None:
        if not self.is_moving and self.random.random() < self.chance:
            self.is_moving = True
            try:
                self.move()
            finally:
                self.is_moving = False


@dataclass
class World:
    """The log's writers, and everything that was ever appended."""

    random: Random
    settings: TopicSettings
    in_parts: bool = False
    clock: ManualClock = field(default_factory=lambda: ManualClock(1_800_000_000_000))
    appended: dict[int, list[Record]] = field(default_factory=dict)
    sinks: dict[int, Sink] = field(default_factory=dict)
    store: MemoryStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = MemoryStore("test", self.clock)
        self.open(0)

    def open(self, partition: int) -> None:
        self.sinks[partition] = Sink.open(self.store, place(partition), clock=self.clock, seed=partition)
        self.appended[partition] = []

    def move(self) -> None:
        self.clock.sleep(self.random.choice([0, 1, 60]))
        if self.random.random() < 0.6:
            self.append(self.random.choice(sorted(self.sinks)))
        elif len(self.sinks) < len(PARTITIONS) and self.random.random() < 0.3:
            self.open(len(self.sinks))
        else:
            run = new_run(self.store, self.settings, clock=self.clock, seed=self.random.randrange(10**6), **self._cut())
            report = run.clean([place(partition) for partition in self.sinks], self._should_stop())
            assert report.exit_code == 0, report.document()

    def _cut(self) -> dict[str, object]:
        return {"pass_bytes": self.random.choice([1, 2000])} if self.in_parts else {}

    def _should_stop(self) -> Callable[[], bool]:
        """In parts a pass ends somewhere between two of them."""
        if not self.in_parts:
            return lambda: False
        left = iter(range(self.random.randrange(9)))
        return lambda: next(left, None) is None

    def append(self, partition: int) -> None:
        sink = self.sinks[partition]
        offset = sink.session.refresh().next_offset
        batch = []
        for _ in range(self.random.randrange(1, 9)):
            offset += self.random.choice([0, 0, 2])
            value = None if self.random.random() < 0.3 else f"v{offset}" * self.random.randrange(1, 20)
            batch.append(record(offset, f"k{self.random.randrange(9)}", value))
            offset += 1
        sink.append(batch, block_bytes=128)
        self.appended[partition] += batch

    def state(self) -> dict[tuple[int, bytes | None], bytes]:
        return applied((p, one) for p, records in self.appended.items() for one in records)


def place(partition: int) -> Place:
    return Place("topics", "users", partition)


def applied(rows: Any) -> dict[tuple[int, bytes | None], bytes]:
    found: dict[tuple[int, bytes | None], bytes] = {}
    for partition, one in rows:
        if one.value is None:
            found.pop((partition, one.key), None)
        else:
            found[partition, one.key] = one.value
    return found


class Query:
    """What Spark does with a source: offsets first, then the batch, then its commit; and again after a crash."""

    def __init__(self, world: World, restless: Restless, random: Random) -> None:
        self.world, self.random, self.restless = world, random, restless
        self.offsets: list[str] = []
        self.committed = 0
        self.batches: dict[int, list[tuple[int, Record]]] = {}
        self.stream = self.restarted()
        self.begin = self.stream.initial()

    def restarted(self) -> SourceStream:
        given = {"url": "s3://b/topics", "topic": "users", "startingoffsets": "earliest", "pollintervalms": "0"}
        options = SourceOptions.read({**given, "maxpartitionbytes": str(self.random.choice([200, 10**6]))})
        topic = SourceTopic(self.restless, "topics", "users", clock=self.world.clock, random=self.random)
        return SourceStream(topic, options)

    def crash(self) -> None:
        self.stream = self.restarted()
        self.begin = self.stream.initial()

    def start_of(self, number: int) -> StreamOffset:
        return self.begin if number == 0 else StreamOffset.read(json.loads(self.offsets[number - 1]), "users")

    def step(self) -> bool:
        """One trigger. Whether there was anything to do."""
        number = self.committed
        start = self.start_of(number)
        if len(self.offsets) == number:
            limit = Amount(self.random.choice([None, 1, 3, 10]), self.random.choice([None, None, 200]))
            end = json.dumps(self.stream.latest(start, limit).document())
            if number and end == self.offsets[-1]:
                return False
            if not number and end == json.dumps(start.document()):
                return False
            self.offsets.append(end)
        if self.random.random() < 0.1:
            self.crash()
            return True
        start, end_offset = self.start_of(number), StreamOffset.read(json.loads(self.offsets[number]), "users")
        tasks = self.stream.plan(start, end_offset)
        rows: list[tuple[int, Record]] = []
        for task in self.random.sample(tasks, len(tasks)):
            rows += query_rows(self.restless, task)
            if self.random.random() < 0.03:
                self.crash()
                return True
        self.batches[number] = sorted(rows, key=lambda row: (row[0], row[1].offset))
        if self.random.random() < 0.1:
            self.crash()
            return True
        self.committed += 1
        return True

    def rows(self) -> list[tuple[int, Record]]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]


def query_rows(restless: Restless, task: tuple[SpanSlice, ...]) -> list[tuple[int, Record]]:
    """What a task reads."""
    batches = read_slices(restless, lambda p: load(restless, place(p)), READING, task)
    rows = [row for batch in batches for row in batch.drop_columns(["timestamp"]).to_pylist()]
    return [(row["partition"], as_record(row)) for row in rows]


def as_record(row: dict[str, Any]) -> Record:
    return Record(row["offset"], 1000, row["timestamp_type"], row["key"], row["value"], (), row["leader_epoch"])


KEEPS_TOMBSTONES = replace(EAGER, delete_retention_ms=10**9)


@pytest.mark.parametrize("settings", [EAGER, KEEPS_TOMBSTONES, replace(EAGER, delete_retention_ms=300_000)])
@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(4))
def test_a_stream_never_continues_with_a_hole(seed: int, settings: TopicSettings) -> None:
    random = Random(seed)
    world = World(random, settings)
    restless = Restless(world.store, random, world.move)
    query = Query(world, restless, random)
    refusals = 0
    for _ in range(120):
        restless.chance = random.choice([0, 0, 0.02, 0.2])
        for _ in range(random.choice([0, 0, 0, 1, 1, 1, 12])):  # now and then the query is away for long
            world.move()
        try:
            if not query.step() and not restless.chance:
                assert applied(query.rows()) == world.state()
        except OffsetOutOfRange:
            refusals += 1
            assert settings is not KEEPS_TOMBSTONES
            restless.chance = 0
            query = Query(world, restless, random)
    restless.chance = 0
    try:
        while query.step():
            pass
    except OffsetOutOfRange:
        refusals += 1
        query = Query(world, restless, random)
        while query.step():
            pass
    rows = query.rows()
    assert len({(partition, one.offset) for partition, one in rows}) == len(rows)
    originals = {(p, one.offset): one for p, records in world.appended.items() for one in records}
    assert all(originals[partition, one.offset] == one for partition, one in rows)
    assert applied(rows) == world.state()
    assert sum(map(len, world.appended.values())) > 100


@pytest.mark.parametrize(
    ("settings", "in_parts"),
    [
        (EAGER, False),
        (KEEPS_TOMBSTONES, False),
        (replace(EAGER, segment_min_garbage_ratio=0.4), False),
        (KEEPS_TOMBSTONES, True),
    ],
)
@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(4))
def test_a_batch_is_a_state_that_existed_or_fails(seed: int, settings: TopicSettings, *, in_parts: bool) -> None:
    random = Random(seed)
    world = World(random, settings, in_parts)
    restless = Restless(world.store, random, world.move)
    given = {"url": "s3://b/topics", "topic": "users"}
    results: Counter[str] = Counter()
    for _ in range(100):
        restless.chance = 0
        for _ in range(random.randrange(4)):
            world.move()
        options = SourceOptions.read({**given, "maxpartitionbytes": str(random.choice([200, 10**6]))})
        topic = SourceTopic(restless, "topics", "users", clock=world.clock, random=random)
        tasks = plan_batch(topic, options, EVERYTHING)
        state = world.state()
        restless.chance = random.choice([0, 0.05, 0.2])
        rows: list[tuple[int, Record]] = []
        try:
            for task in random.sample(tasks, len(tasks)):
                rows += query_rows(restless, task)
        except (OffsetOutOfRange, SnapshotLost) as error:
            results[type(error).__name__] += 1
            continue
        results["read"] += 1
        assert applied(sorted(rows, key=lambda row: (row[0], row[1].offset))) == state
    assert results["read"] > 50
    assert results["SnapshotLost"] > 0
