"""Following a log: each retained record once, in order, across restarts; or an error that says what was lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from threading import Event
from typing import TypeVar
from unittest.mock import patch

import pytest

from keyfold.errors import LogNotFound, ManifestLost, OffsetOutOfRange, StoreUnavailable
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.read.blocks import ReadLimits
from keyfold.read.follow import Follower, Position
from keyfold.read.log import Log
from keyfold.read.selection import Selection
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import Blob, Create, ObjectInfo
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.counting import CountedStore
from tests.support.logs import MadeLog, latest_of, record, records
from tests.support.meddling import MeddlingStore

T = TypeVar("T")


class Idle(Exception):
    """The follower waits, and nothing more is written."""


@dataclass
class Script(ManualClock):
    """A clock whose sleeps do what is next on the list."""

    steps: list[Callable[[], object]] = field(default_factory=list)
    slept_s: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.slept_s.append(seconds)
        if not self.steps:
            raise Idle
        self.steps.pop(0)()


def script(*steps: Callable[[], object]) -> Script:
    return Script(steps=list(steps))


def log_of(made: MadeLog, clock: Script) -> Log:
    return Log(made.store, "topics", "users", clock=clock, random=Random(1))


def until_idle(found: Iterator[T]) -> Iterator[T]:
    while True:
        try:
            one = next(found)
        except Idle:
            return
        yield one


def offsets_until_idle(follower: Follower) -> list[int]:
    return [r.offset for _, r in until_idle(follower)]


def test_a_follower_reads_existing_records_and_then_new_ones() -> None:
    made = MadeLog()
    made.append(records("a=1 b=1"))
    clock = script(lambda: None, lambda: made.append(records("c=1", 2)), lambda: made.append(records("_ d=1", 3)))
    assert offsets_until_idle(log_of(made, clock).follow(0)) == [0, 1, 2, 4]


class Racing(MemoryStore):
    """Does `then` once, right after the manifest was read."""

    then: Callable[[], object] | None = None

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        found = super().get(key, max_bytes)
        if key.endswith("_manifest.avro") and self.then is not None:
            then, self.then = self.then, None
            then()
        return found


def test_a_commit_right_after_a_poll_is_noticed_by_the_next_poll() -> None:
    store = Racing()
    made = MadeLog(store)
    made.append(records("a=1"))

    def commit_twice() -> None:
        made.append(records("b=1", 1))
        store.then = lambda: made.append(records("c=1", 2))

    clock = script(commit_twice, *[lambda: None] * 5)
    assert offsets_until_idle(log_of(made, clock).follow(0)) == [0, 1, 2]


def test_a_follower_starts_at_the_requested_position() -> None:
    made = MadeLog()
    made.append([record(o, f"k{o}", "v", timestamp=o * 10) for o in range(5)])
    grow = lambda: made.append([record(5, "k5", "v", timestamp=50)])  # noqa: E731 - short, and used twice
    log = log_of(made, script(grow))
    assert offsets_until_idle(log.follow(0, start="latest")) == [5]
    clock = script()
    log = log_of(made, clock)
    assert offsets_until_idle(log.follow(0)) == [0, 1, 2, 3, 4, 5]
    assert offsets_until_idle(log.follow(0, start={0: 3})) == [3, 4, 5]
    assert offsets_until_idle(log.follow(0, from_timestamp=25)) == [3, 4, 5]
    assert offsets_until_idle(log.follow(0, from_timestamp=1000)) == []
    with pytest.raises(OffsetOutOfRange, match="offset 7 is outside of the log"):
        log.follow(0, start={0: 7})
    with pytest.raises(LogNotFound):
        log.follow([0, 1])
    with pytest.raises(LogNotFound):
        log.follow(start={0: 1, 7: 1})
    with pytest.raises(ValueError, match="start is 'newest'"):
        log.follow(start="newest")  # type: ignore[arg-type]  # what must be refused
    assert offsets_until_idle(log.follow(start={})) == [0, 1, 2, 3, 4, 5]


def test_several_partitions_take_turns_and_new_ones_are_found() -> None:
    store = MemoryStore()
    made = [MadeLog(store=store, place=Place("topics", "users", p)) for p in range(3)]
    for p in range(2):
        for start in (0, 2, 4):
            made[p].append(records("a=1 b=1", start))
    clock = script(*[lambda: None] * 60)
    clock.steps[3] = lambda: made[2].append(records("z=1"))
    clock.steps[6] = lambda: made[0].append(records("z=1", 6))
    found = [(p, r.offset) for p, r in until_idle(Log(store, "topics", "users", clock=clock).follow())]
    assert found[:6] == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3)]
    assert sorted(found) == [*((0, o) for o in range(7)), *((1, o) for o in range(6)), (2, 0)]


@pytest.mark.parametrize("name", ["stray", "_first_copy.json"])
def test_a_new_folder_without_a_log_does_not_end_a_follower(name: str) -> None:
    made = MadeLog()
    made.append(records("a=1"))
    other = MadeLog(store=made.store, place=Place("topics", "users", 1))
    clock = script(*[lambda: None] * 90)
    clock.steps[3] = lambda: made.store.put(f"{other.place.folder}{name}", b"x", Create())
    clock.steps[39] = lambda: made.store.delete(f"{other.place.folder}{name}")
    clock.steps[40] = lambda: other.append(records("z=1"))
    found = [(partition, r.offset) for partition, r in until_idle(log_of(made, clock).follow())]
    assert found == [(0, 0), (1, 0)]


def test_a_failed_listing_of_partitions_is_retried() -> None:
    made = MadeLog()
    other = MadeLog(store=made.store, place=Place("topics", "users", 1))
    made.append(records("a=1"))
    clock = script(*[lambda: None] * 60)
    clock.steps[1] = lambda: other.append(records("z=1"))
    log = log_of(made, clock)
    follower = log.follow()
    listed = 0
    partitions = log.partitions

    def flaky() -> list[int]:
        nonlocal listed
        listed += 1
        if listed == 1:
            raise StoreUnavailable("topics/", "503")
        return partitions()

    with patch.object(log, "partitions", flaky):
        assert [p for p, _ in until_idle(follower)] == [0, 1]
    assert listed > 1


def test_a_stop_event_ends_a_follower_immediately_with_exact_positions() -> None:
    made = MadeLog()
    made.append(records("a=1 b=1 c=1 d=1"))
    stop = Event()
    log = Log(made.store, "topics", "users")
    follower = log.follow(0, stop=stop)
    found = []
    for _, r in follower:
        found.append(r.offset)
        if r.offset == 1:
            stop.set()
    assert found == [0, 1]
    kept = json.loads(json.dumps(follower.positions()[0].document()))
    stop.clear()
    for _, r in log.follow(0, start={0: Position.of(kept)}, stop=stop):
        found.append(r.offset)
        if r.offset == 3:
            stop.set()
    assert found == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="not a position"):
        Position.of({"offset": 1})


def test_waiting_reads_no_manifest_and_backs_off() -> None:
    made = MadeLog()
    made.append(records("a=1"))
    counted = CountedStore(made.store)
    clock = script(*[lambda: None] * 30)
    follower = Log(counted, "topics", "users", clock=clock, random=Random(1)).follow(0)
    assert offsets_until_idle(follower) == [0]
    assert counted.calls["get"] == 3  # the manifest at the start, an index, and the manifest once for its ETag
    assert clock.slept_s[0] < 0.5
    assert all(2.0 < s <= 5.0 for s in clock.slept_s[6:])


def test_a_follower_returns_batches_with_columns_and_a_selection() -> None:
    made = MadeLog()
    made.append(records("a=1 b=1 a=2"))
    clock = script(lambda: made.append(records("b=2 a=3", 3)))
    log = log_of(made, clock)
    follower = log.follow(0, columns=["value"], where=Selection(keys=frozenset({b"a"})))
    found = [(partition, batch.to_pydict()) for partition, batch in until_idle(follower.batches())]
    assert found == [(0, {"value": [b"1", b"2"]}), (0, {"value": [b"3"]})]
    assert follower.positions()[0].offset == 5
    with pytest.raises(ValueError, match=r"use `batches\(\)` with `columns`"):
        next(log.follow(0, columns=["value"]))
    follower = log.follow(0)
    next(follower)
    with pytest.raises(ValueError, match="already returns records one by one"):
        next(follower.batches())


def test_an_overtaken_follower_gets_an_error() -> None:
    made = MadeLog(block_bytes=1)
    made.append(records("k=old x=1"))
    made.append(records("k= y=1", 2))
    clock = script()
    follower = log_of(made, clock).follow(0)
    assert next(follower)[1].value == b"old"
    made.compact()
    made.compact(purge=True)
    made.delete_replaced()
    with pytest.raises(OffsetOutOfRange, match="tombstones up to offset 2 were removed"):
        list(follower)
    assert follower.positions()[0].offset == 2


def test_a_follower_resuming_after_a_purge_gets_an_error_unless_it_has_only_an_offset() -> None:
    made = MadeLog()
    made.append(records("k=old"))
    log = log_of(made, script())
    follower = log.follow(0)
    assert offsets_until_idle(follower) == [0]
    kept = follower.positions()
    made.append(records("k= y=1", 1))
    made.compact()
    made.compact(purge=True)
    with pytest.raises(OffsetOutOfRange, match="tombstones up to offset 1 were removed"):
        log.follow(0, start=kept)
    assert offsets_until_idle(log.follow(0, start={0: 1})) == [2]


def test_a_recreated_log_is_another_log() -> None:
    made = MadeLog()
    made.append(records("a=1"))
    other = MadeLog(store=made.store, random=Random(8))

    def again() -> None:
        for info in list(made.store.list("topics/")):
            made.store.delete(info.key)
        other.append(records("b=1 b=2"))

    follower = log_of(made, script(again)).follow(0)
    assert next(follower)[1].key == b"a"
    with pytest.raises(OffsetOutOfRange, match="created again"):
        next(follower)


def test_a_lost_manifest_is_reported_immediately() -> None:
    made = MadeLog()
    made.append(records("a=1"))
    follower = log_of(made, script(lambda: made.store.delete(made.place.manifest_key))).follow(0)
    next(follower)
    with pytest.raises(ManifestLost):
        next(follower)


class Flaky(MemoryStore):
    failing = False

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        self._fail(key)
        return super().get(key, max_bytes)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self._fail(key)
        return super().get_range(key, start, length)

    def head(self, key: str) -> ObjectInfo:
        self._fail(key)
        return super().head(key)

    def _fail(self, key: str) -> None:
        if self.failing:
            raise StoreUnavailable(key, "503")


def test_an_unavailable_store_is_retried_for_a_limited_time() -> None:
    store = Flaky()
    made = MadeLog(store=store)
    made.append(records("a=1 b=1"))
    clock = script(*[lambda: None] * 200)

    def fail() -> None:
        made.append(records("c=1", 2))
        store.failing = True

    def heal() -> None:
        store.failing = False

    clock.steps[1], clock.steps[20] = fail, heal
    clock.steps[40] = lambda: setattr(store, "failing", True)
    follower = log_of(made, clock).follow(0)
    assert [next(follower)[1].offset for _ in range(3)] == [0, 1, 2]
    with pytest.raises(StoreUnavailable):
        next(follower)
    assert sum(clock.slept_s[41:]) > 290
    assert follower.positions()[0].offset == 3


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(20))
def test_across_restarts_a_follower_sees_each_retained_record_once_or_gets_an_error(seed: int) -> None:
    """The model: a dict updated with the follower's records equals the log's state whenever it has caught up."""
    random = Random(seed)
    store = MeddlingStore()
    made = MadeLog(store=store, random=Random(seed), block_bytes=random.choice((1, 64, 500)))
    history: list[Record] = []

    def append() -> None:
        batch = []
        for _ in range(random.randrange(1, 6)):
            offset = len(history)
            batch.append(record(offset, f"k{random.randrange(6)}", random.choice((None, f"v{offset}"))))
            history.append(batch[-1])
        made.append(batch)

    def compact() -> None:
        made.compact(purge=random.random() < 0.5, merge=random.random() < 0.5)

    def step() -> None:
        store.meddle = None
        random.choices((append, compact, made.delete_replaced, lambda: None), (15, 10, 20, 50))[0]()
        store.meddle = step

    append()
    store.meddle = step
    state: dict[bytes, Record] = {}
    start: dict[int, int | Position] = {0: 0}
    last, caught_up = -1, 0
    for _ in range(40):
        clock = script(*[step] * random.randrange(4))
        limits = ReadLimits(read_ahead_bytes=100)
        log = Log(store, "topics", "users", clock=clock, random=Random(seed), limits=limits)
        follower = None
        try:
            follower = log.follow(0, start=start, batch_bytes=random.choice((1, 1000)))
            for _ in range(random.randrange(1, 30)):
                r = next(follower)[1]
                assert r.offset > last
                assert history[r.offset] == r
                last = r.offset
                state = latest_of([*state.values(), r])
        except Idle:
            assert follower is not None
            position = follower.positions()[0].offset
            assert state == latest_of(history[:position])
            caught_up += 1
        except OffsetOutOfRange:
            state, start, last = {}, {0: 0}, -1
            continue
        start = dict(follower.positions())
        for _ in range(random.choice((0, 0, 5, 12))):  # nobody reads
            step()
    assert caught_up
