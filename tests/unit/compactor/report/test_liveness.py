"""What gives signs of life while the compactor works, and what its probes say of the runs of a loop."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from random import Random

import pytest

from keyfold.errors import ConditionsIgnored, ObjectNotFound, StoreUnavailable
from keyfold.replicas.after_run import AfterRunResult
from keyfold.runtime.buffers import Bytes
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.health import AWAY_S, Liveness
from keyfold.store.api import Create, ObjectStore, PutMode, PutResult
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Call, Fault, FaultKind, FaultyStore
from keyfold.store.wrappers.observation import ObservedStore
from keyfold_compactor.execute.executor import Executor
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.job import Job, RunSelection
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.liveness import BESIDE_S, LivenessObserver, LivenessProgress, quiet_max_s, with_liveness
from keyfold_compactor.report.progress import NoProgress
from keyfold_compactor.report.report import NoRunObserver, RunReport
from tests.support.cleaning import memory_log, record, retry_policy

CONFIG = {"s3.bucket.name": "b", "min.cleanable.dirty.ratio": "0", "log.cleaner.backoff.ms": "0"}


def options(**config: str) -> CompactOptions:
    return CompactOptions.parse({**CONFIG, **{key.replace("_", "."): value for key, value in config.items()}})


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def liveness(clock: ManualClock) -> Liveness:
    return Liveness(clock, 100)


def test_the_silence_bound_follows_from_pause_rate_and_bytes_of_a_commit() -> None:
    gib = str(2**30)
    small = options(log_cleaner_pass_max_bytes=gib, log_cleaner_batch_bytes=gib)
    assert quiet_max_s(small) == BESIDE_S + 2 * 2**30 / (8 * 2**20)
    slow = options(
        log_cleaner_pass_max_bytes=gib, log_cleaner_batch_bytes="1", log_cleaner_io_max_bytes_per_second="1048576"
    )
    assert quiet_max_s(slow) == BESIDE_S + 2048
    patient = options(log_cleaner_backoff_ms="3600000")
    assert quiet_max_s(patient) == quiet_max_s(options()) + 3600


def test_stages_and_steps_and_signs_of_spark_are_signs_of_life(liveness: Liveness, clock: ManualClock) -> None:
    told: list[tuple[str, int]] = []

    class Shown:
        def begin_stage(self, stage: str, total: int) -> None:
            told.append((stage, total))

        def advance(self, count: int = 1) -> None:
            told.append(("step", count))

    progress = LivenessProgress(Shown(), liveness)
    moves: list[Callable[[], None]] = [
        lambda: progress.begin_stage("mapping", 3),
        progress.advance,
        lambda: progress.advance(0),
    ]
    for move in moves:
        clock.sleep(101)
        assert not liveness.live().is_good
        move()
        assert liveness.live().is_good
    assert told == [("mapping", 3), ("step", 1)], "that a task has ended is no step"


def test_a_replication_round_gives_signs_of_life_while_it_waits(liveness: Liveness, clock: ManualClock) -> None:
    stop = threading.Event()
    answers: list[bool] = []

    def replicate(should_stop: Callable[[], bool]) -> tuple[AfterRunResult, ...]:
        clock.sleep(101)
        answers.append(should_stop())
        assert liveness.live().is_good
        stop.set()
        answers.append(should_stop())
        return ()

    assert with_liveness(replicate, liveness)(stop.is_set) == ()
    assert answers == [False, True]


def test_a_run_with_a_failed_spark_is_reported_until_one_succeeds(liveness: Liveness) -> None:
    liveness.answered()
    observer = LivenessObserver(NoRunObserver(), liveness)
    report = RunReport()
    observer.run_started(report)
    report.executor_error = "there is no such master"
    observer.run_ended(report)
    assert liveness.ready().why == "the last run failed: Spark: there is no such master"
    observer.run_started(RunReport())
    assert not liveness.ready().is_good, "it has only begun"
    observer.run_ended(RunReport())
    assert liveness.ready().is_good


class World:
    """A job over a log in memory, whose store may be taken away."""

    def __init__(self, clock: ManualClock, stop: threading.Event) -> None:
        self.clock = clock
        self.is_away = False
        inner, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)
        faulty = FaultyStore(inner, [Fault(self._is_away, FaultKind.UNAVAILABLE, times=10**9)])
        self.liveness = Liveness(clock, quiet_max_s(options()), stop.is_set)
        self.store: ObjectStore = ObservedStore(faulty, self.liveness)
        self.job = Job(
            options(),
            RunSelection(),
            self.store,
            self._executor,
            clock=clock,
            random=Random(2),
            progress=LivenessProgress(NoProgress(), self.liveness),
            observer=LivenessObserver(NoRunObserver(), self.liveness),
        )

    def _is_away(self, _call: Call) -> bool:
        return self.is_away

    def _executor(self, _due_bytes: int) -> Executor:
        return LocalExecutor(self.store, retry_policy(self.clock, Random(1)))


def test_a_loop_reports_its_health_from_start_to_end(clock: ManualClock) -> None:
    stop = threading.Event()
    world = World(clock, stop)
    assert world.liveness.ready().why == "the store has not answered yet", "starting"
    world.job.prove_store_until(stop)
    assert world.liveness.ready().why == "the process is starting", "proven"
    world.job.once()
    assert world.liveness.ready().is_good, "running"
    world.is_away = True
    clock.sleep(AWAY_S)
    with pytest.raises(StoreUnavailable):
        world.job.once()
    assert world.liveness.ready().why.startswith("the store has not answered for "), "away"
    assert world.liveness.live().is_good
    world.is_away = False
    world.job.once()
    assert world.liveness.ready().is_good, "back"
    stop.set()
    assert world.liveness.ready().why == "the process is stopping"
    assert world.liveness.live().is_good


def test_a_loop_waits_for_its_store(clock: ManualClock) -> None:
    class Stop(threading.Event):
        """The store answers the third request."""

        waits = 0

        def wait(self, timeout: float | None = None) -> bool:
            self.waits += 1
            world.is_away = self.waits < 3
            assert world.liveness.ready().why.startswith("the store has not answered yet: ")
            assert world.liveness.live().is_good
            return False

    stop = Stop()
    world = World(clock, stop)
    world.is_away = True
    world.job.prove_store_until(stop)
    assert stop.waits == 3
    world.is_away = True
    stop.set()
    world.job.prove_store_until(stop)
    assert stop.waits == 3, "who was told to end waits for nobody"


def test_a_store_that_ignores_conditions_is_not_waited_for(clock: ManualClock) -> None:
    class Careless(MemoryStore):
        def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
            with contextlib.suppress(ObjectNotFound):
                self.delete(key)
            return super().put(key, data, Create())

    store = Careless(clock=clock)
    job = Job(
        options(),
        RunSelection(),
        store,
        lambda _: LocalExecutor(store, retry_policy(clock, Random(1))),
        clock=clock,
        random=Random(2),
    )
    with pytest.raises(ConditionsIgnored):
        job.prove_store_until(threading.Event())
