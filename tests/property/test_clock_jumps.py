"""A clock that jumps by an hour, either way, at each store call of a compactor and of a replicator, on every side.

On the store's side all that reads its times is affected: stamps, waits, leases, holds. On the process's side nothing
may change at all. What is judged is what `SpecStore` and `ReplicaStore` judge: each version that lands and each
deletion, by the time that has really passed. Waits may be as much shorter as the clock came forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from random import Random

import pytest

from keyfold.errors import OffsetOutOfRange, SnapshotLost
from keyfold.log.record import Record
from keyfold.read.log import Log
from keyfold.runtime.clock import Clock, ManualClock
from keyfold.store.wrappers.faults import Fault, FaultKind, FaultyStore, SimulatedCrash
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.report.report import PartitionOutcome
from tests.property.test_replica_faults import CASES, SIDES, calls_of
from tests.support.cleaning import (
    PLACE,
    Sink,
    clean,
    last_per_key,
    latest,
    load,
    object_names,
    read_all,
    record,
)
from tests.support.clocks import BOTH_WAYS, HOUR_MS, JumpingStore, SkewedClock
from tests.support.log_machine import SpecStore
from tests.support.tiers import Sharded

WAITS = TopicSettings(
    min_cleanable_dirty_ratio=0.0,
    min_compaction_lag_ms=HOUR_MS // 2,
    delete_retention_ms=3 * HOUR_MS,
    file_delete_delay_ms=2 * HOUR_MS,
)
NO_WAITS = TopicSettings(min_cleanable_dirty_ratio=0.0, delete_retention_ms=0, file_delete_delay_ms=0)
BATCHES = [
    [record(0, "a", "1"), record(1, "b", "2"), record(2, None, "x")],
    [record(3, "a", None), record(4, "c", "3"), record(5, "d", "4")],
    [record(6, "b", "5"), record(7, "c", None), record(8, "e", "6")],
    [record(9, "a", "again"), record(10, "e", None)],
]
WHOSE = ("store", "process", "both")


@dataclass
class Life:
    """A sink, a compactor and two readers of one log; every call goes over one connection, which counts them."""

    settings: TopicSettings
    whose: str = "store"
    at: int = 1 << 60
    by_ms: int = 0
    true: ManualClock = field(default_factory=ManualClock)
    store: SpecStore = field(init=False)
    process: SkewedClock = field(init=False)
    connection: JumpingStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = SpecStore(clock=self.true, in_force=[self.settings])
        self.process = SkewedClock(self.true)
        jumping = {"store": [self.store.shown], "process": [self.process], "both": [self.store.shown, self.process]}
        self.connection = JumpingStore(self.store, jumping[self.whose], at=self.at, by_ms=self.by_ms)

    def run(self) -> None:
        """Everything in a fixed order, with time in between."""
        sink = Sink.open(self.connection, clock=self.process)
        readers: list[Reader] = []
        for number, batch in enumerate(BATCHES):
            self.append(sink, batch)
            readers += [Reader(self, is_snapshot=False), Reader(self, is_snapshot=True)]
            readers[-2].go_on(1)
            readers[-1].go_on(1)
            self.clean(number)
            self.true.advance(HOUR_MS)
        for number in range(4):
            self.clean(10 + number)
            self.true.advance(HOUR_MS)
        for reader in readers:
            reader.go_on(1_000)
        self.check()

    def append(self, sink: Sink, batch: Sequence[Record]) -> None:
        self.store.appended += batch
        self.store.appended_at |= {r.offset: self.true.now_ms() for r in batch}
        sink.append(batch)

    def clean(self, seed: int) -> None:
        report = clean(self.connection, self.settings, clock=self.process, seed=seed, collect_orphans=True)
        assert report.exit_code == 0, report.document()
        assert not any("lease" in part.why for part in report.partitions), report.document()

    def check(self) -> None:
        """No promise was broken on the way, and after the longest wait nothing is left that has to go."""
        for seed in range(20, 25):
            self.true.advance(4 * HOUR_MS)
            self.clean(seed)
        if self.store.broken is not None:
            raise self.store.broken
        assert read_all(self.store) == [r for r in last_per_key(self.store.appended) if not r.is_tombstone]
        assert object_names(self.store) == load(self.store).object_names()
        assert load(self.store).replaced == ()


class Reader:
    """A reader that starts, and continues much later; it ends with a state that the log had, or is refused."""

    def __init__(self, life: Life, *, is_snapshot: bool) -> None:
        clock: Clock = life.process
        log = Log(life.connection, PLACE.topics_dir, PLACE.topic, clock=clock, random=Random(0))
        self.records = log.latest() if is_snapshot else log.read()
        self.life = life
        self.had = {len(life.store.ranges)}
        self.seen: list[Record] = []
        self.began_at = life.store.ranges[-1][1]
        self.is_over = False

    def go_on(self, count: int) -> None:
        if self.is_over:
            return
        try:
            for _ in range(count):
                self.seen.append(next(self.records))
        except (OffsetOutOfRange, SnapshotLost):
            self.is_over = True  # refused, not misled
        except StopIteration:
            self.is_over = True
            ends = {end for _, end in self.life.store.ranges if end >= self.began_at}
            states = [latest(r for r in self.life.store.appended if r.offset < end) for end in ends]
            assert latest(self.seen) in states
        by_offset = {r.offset: r for r in self.life.store.appended}
        assert all(by_offset[r.offset] == r for r in self.seen)


@cache
def calls_of_life(settings: TopicSettings) -> int:
    life = Life(settings)
    life.run()
    return len(life.connection.calls)


@pytest.mark.parametrize("by_ms", BOTH_WAYS)
@pytest.mark.parametrize("whose", WHOSE)
def test_a_clock_jump_at_a_sampled_call_of_sink_compactor_and_readers_breaks_nothing(
    whose: str, by_ms: int, sharded: Sharded
) -> None:
    """At a few dozen calls; the next test takes every one."""
    for settings, stride in ((WAITS, 23), (NO_WAITS, 47)):
        for at in sharded(range(1 + WHOSE.index(whose), calls_of_life(settings) + 1, stride)):
            Life(settings, whose, at, by_ms).run()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("by_ms", BOTH_WAYS)
@pytest.mark.parametrize("whose", WHOSE)
def test_a_clock_jump_at_any_call_of_sink_compactor_and_readers_breaks_nothing(whose: str, by_ms: int) -> None:
    for settings in (WAITS, NO_WAITS):
        for at in range(1, calls_of_life(settings) + 1):
            Life(settings, whose, at, by_ms).run()


def test_the_scenario_has_waits() -> None:
    """The scenario purges and deletes, and a late reader is still served by replaced objects."""
    life = Life(WAITS)
    life.run()
    assert load(life.store).purged_to == 10
    assert {"get", "get_range", "put", "list", "delete"} <= {call.operation for call in life.connection.calls}


@pytest.mark.parametrize("by_ms", BOTH_WAYS)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", CASES)
def test_a_clock_jump_at_any_call_of_a_round_leaves_a_state_of_the_source(
    name: str, side: str, by_ms: int, sharded: Sharded
) -> None:
    """The clock of the store that is asked, of the other one, or of the replicator, at every third call in turn."""
    for number in sharded(range(1, len(calls_of(name)[SIDES.index(side)]) + 1)):
        with CASES[name].pair() as pair:
            machine = SkewedClock(pair.source.clock)
            pair.clock = machine
            clocks: list[Callable[[int], None]] = [pair.source.shown.jump, pair.replica.shown.jump, machine.jump]
            process = CASES[name].process(pair)
            process.before(side, number, partial(clocks[number % 3], by_ms))
            process.once()
            pair.unbroken()
            pair.advance(2 * HOUR_MS)
            assert process.once().is_in_sync, "the same process goes on"
            pair.settle()


def test_a_dead_compactors_lease_is_reported_with_its_end_after_the_clock_went_back() -> None:
    """The lease blocks others until the clock reaches its end again, and their report says for how long."""
    life = Life(NO_WAITS)
    sink = Sink.open(life.connection, clock=life.process)
    for batch in BATCHES:
        life.append(sink, batch)
    dying = FaultyStore(life.store, [Fault(lambda call: call.operation == "get_range", FaultKind.CRASH_BEFORE)])
    with pytest.raises(SimulatedCrash):
        clean(dying, NO_WAITS, clock=life.process, seed=2)
    life.store.shown.jump(-HOUR_MS)
    (part,) = clean(life.store, NO_WAITS, clock=life.process, seed=3).partitions
    assert part.outcome is PartitionOutcome.SKIPPED
    assert "holds the lease for the next 36" in part.why
    life.true.advance(HOUR_MS + 70_000)
    (part,) = clean(life.store, NO_WAITS, clock=life.process, seed=4).partitions
    assert part.outcome is PartitionOutcome.CLEANED
