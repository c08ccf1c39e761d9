"""Several compactors share a backlog: what one claims at once, and what becomes of logs that another one holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.runtime.buffers import Bytes
from keyfold.runtime.clock import Clock, ManualClock, SystemClock
from keyfold.store.api import PutMode, PutResult
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.counting import CountedStore
from keyfold_compactor.decide.batching import SHARES, BatchLimits, CleaningRate
from keyfold_compactor.decide.plan import LOG_COST_BYTES
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.decide.work import LogJob, MapAnswer
from keyfold_compactor.execute.executor import Done, Executor, ExecutorFactory
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.execute.run import Run, RunSettings
from keyfold_compactor.report.report import PartitionOutcome, RunReport
from tests.support.cleaning import EAGER, FAST, SMALL, Sink, load, record, retry_policy

SETTINGS = replace(EAGER, encoding=SMALL)
MIB = 1 << 20
GIB = 1 << 30


def filled(count: int, clock: Clock) -> tuple[MemoryStore, list[Place]]:
    store = MemoryStore(clock=clock)
    places = [Place("topics", "users", partition) for partition in range(count)]
    for place in places:
        Sink.open(store, place, clock=clock).append([record(0, "a", "1"), record(1, "a", "2")])
    return store, places


@dataclass
class Watched(LocalExecutor):
    """Does something before each batch, and notes which logs are in it."""

    def __init__(self, store: MemoryStore, clock: Clock, before: Callable[[], None] = lambda: None) -> None:
        super().__init__(store, retry_policy(clock, Random(1)))
        self.before = before
        self.mapped: list[list[Place]] = []

    def map_logs(self, jobs: Iterable[LogJob], done: Done = lambda _: None) -> list[MapAnswer]:
        jobs = list(jobs)
        self.mapped.append([j.place for j in jobs])
        self.before()
        return super().map_logs(jobs, done)


def new_run(
    store: MemoryStore | CountedStore,
    executor: ExecutorFactory,
    clock: Clock,
    *,
    holder: str = "me",
    settings_of: Callable[[str], TopicSettings] = lambda _: SETTINGS,
) -> Run:
    settings = RunSettings(lambda topic, _: settings_of(topic), holder=holder, retry_timeout_s=5.0, threads=4)
    return Run(store, settings, executor, clock=clock, random=Random(1))


def claim(store: MemoryStore, place: Place, clock: Clock) -> None:
    """Another compactor claims a log, and dies."""
    log = PartitionLog(store, place, clock=clock, random=Random(9), backoff=FAST)
    log.claim_compactor(lease_ms=60_000, holder="another")


class AlternatingRuns:
    """Lets two runs work batch by batch in turns; one that is over gives its turns away."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._turn = 0
        self._over: set[int] = set()

    def wait(self, me: int) -> None:
        """The batch of `me` may start once the other run has started its next, or has none."""
        with self._changed:
            self._turn = 1 - me
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._turn == me or 1 - me in self._over, 60)

    def end(self, me: int) -> None:
        with self._changed:
            self._over.add(me)
            self._changed.notify_all()


def test_two_concurrent_runs_share_64_logs_at_the_default_settings() -> None:
    clock = SystemClock()
    store, places = filled(64, clock)
    alternating = AlternatingRuns()
    reports: dict[int, RunReport] = {}

    def run(me: int) -> None:
        executor = Watched(store, clock, lambda: alternating.wait(me))
        try:
            reports[me] = new_run(store, lambda _: executor, clock, holder=f"run-{me}").clean(places)
        finally:
            alternating.end(me)

    threads = [threading.Thread(target=run, args=(me,)) for me in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cleaned = [
        {p.place for p in reports[me].partitions if p.outcome is PartitionOutcome.CLEANED} for me in sorted(reports)
    ]
    assert sorted(p.partition for each in cleaned for p in each) == list(range(64))
    assert min(map(len, cleaned)) * 3 >= 64, "each cleans at least a third"
    assert all(load(store, place).compactor.lease_until_ms == 0 for place in places)


def test_a_log_of_a_dead_compactor_is_cleaned_in_the_same_run_once_its_lease_expired() -> None:
    clock = ManualClock()
    store, places = filled(16, clock)
    claim(store, places[0], clock)
    executor = Watched(store, clock, lambda: clock.advance(20_000))
    report = new_run(store, lambda _: executor, clock).clean(places)
    assert {p.outcome for p in report.partitions} == {PartitionOutcome.CLEANED}
    assert len(report.partitions) == 16
    assert sum(places[0] in batch for batch in executor.mapped) == 1
    assert executor.mapped[0] != [places[0]]


def test_a_log_that_stays_leased_is_reported_once_and_delays_nothing() -> None:
    clock = ManualClock()
    store, places = filled(16, clock)
    claim(store, places[0], clock)
    executor = Watched(store, clock)
    report = new_run(store, lambda _: executor, clock).clean(places)
    outcomes = {p.place: p.outcome for p in report.partitions}
    assert outcomes == {places[0]: PartitionOutcome.SKIPPED, **dict.fromkeys(places[1:], PartitionOutcome.CLEANED)}
    assert report.exit_code == 0


def test_overdue_logs_are_claimed_first_even_if_their_lease_expires_later() -> None:
    clock = ManualClock()
    store, places = filled(15, clock)
    clock.advance(1_000_000)
    late = Place("topics", "late", 0)
    Sink.open(store, late, clock=clock).append([record(0, "a", "1"), record(1, "a", "2")])
    claim(store, late, clock)  # which also stamps its times
    lagged = replace(SETTINGS, max_compaction_lag_ms=1)
    executor = Watched(store, clock, lambda: clock.advance(61_000))
    clock.advance(1_000)
    run = new_run(store, lambda _: executor, clock, settings_of=lambda topic: lagged if topic == "late" else SETTINGS)
    run.clean([*places, late])
    assert late not in executor.mapped[0]
    assert executor.mapped[1][0] == late


class Overtaken(CountedStore):
    """Another compactor's claim lands between the look at a manifest and the first claim of it."""

    def __init__(self, inner: MemoryStore, clock: Clock) -> None:
        super().__init__(inner)
        self.others = inner
        self.clock = clock
        self.is_first = True

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        if self.is_first:
            self.is_first = False
            claim(self.others, Place("topics", "users", 0), self.clock)
        return super().put(key, data, mode)


def test_losing_a_claim_race_is_not_a_lost_lease() -> None:
    """Lost leases raise an alert: they are passes that were for nothing."""
    clock = ManualClock()
    store, places = filled(1, clock)
    report = new_run(Overtaken(store, clock), lambda _: Watched(store, clock), clock).clean(places)
    assert [p.outcome for p in report.partitions] == [PartitionOutcome.SKIPPED]
    assert load(store, places[0]).compactor.lease_holder == "another"


def test_nothing_is_claimed_while_spark_starts() -> None:
    clock = ManualClock()
    store, places = filled(8, clock)
    leases: list[int] = []

    def start(_due_bytes: int) -> Executor:
        leases.extend(load(store, place).compactor.lease_until_ms for place in places)
        return Watched(store, clock)

    report = new_run(store, start, clock).clean(places)
    assert leases == [0] * 8
    assert {p.outcome for p in report.partitions} == {PartitionOutcome.CLEANED}


def test_no_spark_is_started_if_others_hold_every_due_log() -> None:
    clock = ManualClock()
    store, places = filled(4, clock)
    for place in places:
        claim(store, place, clock)

    def start(_due_bytes: int) -> Executor:
        raise AssertionError("there is nothing to do")

    report = new_run(store, start, clock).clean(places)
    assert {p.outcome for p in report.partitions} == {PartitionOutcome.SKIPPED}


def test_a_spark_that_cannot_start_fails_every_due_log_and_is_tried_once() -> None:
    clock = ManualClock()
    store, places = filled(64, clock)
    versions = [load(store, place).version for place in places]
    asked: list[int] = []

    def start(_due_bytes: int) -> Executor:
        asked.append(1)
        raise RuntimeError("no master")

    report = new_run(store, start, clock).clean(places)
    assert len(asked) == 1
    assert [p.outcome for p in report.partitions] == [PartitionOutcome.FAILED] * 64
    assert "no master" in report.executor_error
    assert [load(store, place).version for place in places] == versions, "nothing was claimed"


def test_a_log_cleaned_meanwhile_by_another_run_costs_one_request() -> None:
    clock = ManualClock()
    store, places = filled(2, clock)
    counted = CountedStore(store)
    calls: list[int] = []

    def other(_due_bytes: int) -> Executor:
        executor = LocalExecutor(store, retry_policy(clock, Random(2)))
        new_run(store, lambda _: executor, clock, holder="another").clean(places)
        calls.append(sum(counted.calls.values()))
        return Watched(store, clock)

    report = new_run(counted, other, clock).clean(places)
    assert [p.outcome for p in report.partitions] == [PartitionOutcome.UNCHANGED] * 2
    assert sum(counted.calls.values()) - calls[0] == 2


def test_a_run_alone_claims_an_eighth_of_the_due_logs_or_a_quarter_if_quick() -> None:
    def batches(size_bytes: int, count: int) -> list[int]:
        limits = BatchLimits.of(32 * MIB, count * (size_bytes + LOG_COST_BYTES) / SHARES, 1, size_bytes=2**62, logs=500)
        left, found = [size_bytes] * count, []
        while left:
            found.append(limits.fitting(left))
            left = left[found[-1] :]
        return found

    assert batches(100 * MIB, 64) == [8] * 8
    assert batches(4 * MIB, 64) == [15, 15, 15, 15, 4]
    assert batches(1_000, 64) == [16] * 4
    clock = ManualClock()
    store, places = filled(64, clock)
    executor = Watched(store, clock)
    new_run(store, lambda _: executor, clock).clean(places)
    assert [len(batch) for batch in executor.mapped] == [16] * 4


@pytest.mark.parametrize(
    ("sizes", "claimed", "limits", "expected"),
    [
        ([10, 20, 30], [], {"size_bytes": 60}, 3),
        ([10, 20, 30], [], {"size_bytes": 59}, 2),
        ([30], [30], {"size_bytes": 60}, 1),
        ([30, 1], [30], {"size_bytes": 59}, 0),
        ([10] * 5, [], {"logs": 2}, 2),
        ([10] * 5, [10], {"logs": 2}, 1),
        ([70], [], {"size_bytes": 60}, 1),
        ([], [], {}, 0),
        ([MIB] * 5, [], {"minute_bytes": 2.5 * MIB}, 2),
        ([MIB] * 5, [], {"share_bytes": 2.5 * MIB}, 2),
        ([MIB] * 5, [], {"share_bytes": 2.5 * MIB, "least_logs": 4}, 4),
        ([MIB] * 5, [], {"minute_bytes": 2.5 * MIB, "least_logs": 4}, 2),
        ([0] * 5, [], {"minute_bytes": 2.5 * LOG_COST_BYTES}, 2),
    ],
)
def test_a_batch_respects_its_limit_but_has_at_least_one_log(
    sizes: list[int], claimed: list[int], limits: dict[str, Any], expected: int
) -> None:
    none = BatchLimits(size_bytes=2**62, logs=500, minute_bytes=2.0**62, share_bytes=2.0**62, least_logs=0)
    assert replace(none, **limits).fitting(sizes, claimed) == expected


def test_a_batch_is_a_minute_of_work_for_the_cores_or_the_byte_rate() -> None:
    def logs_of(slots: int, rate: float | None, measured: CleaningRate | None = None) -> int:
        per_second = (measured or CleaningRate()).per_second(slots, rate)
        limits = BatchLimits.of(per_second, 2.0**62, slots, size_bytes=2**62, logs=10**6)
        return limits.fitting([GIB] * 1_000)

    assert logs_of(1, None) == 1
    assert logs_of(16, None) == 29
    assert logs_of(16, 64 * MIB) == 1
    assert logs_of(16, 1024 * MIB) == 29

    fast = CleaningRate()
    fast.learn(300 * GIB, 60.0)
    assert 200 < logs_of(1, None, fast) < 300
    for _ in range(20):
        fast.learn(GIB, 60.0)
    assert logs_of(1, None, fast) < 10, "a cluster that has become slower is seen within minutes"


def test_a_batch_that_took_no_time_does_not_distort_the_estimate() -> None:
    rate = CleaningRate()
    rate.learn(MIB, 0.0)
    assert rate.per_second(1, None) < 40 * MIB
