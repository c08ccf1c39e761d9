"""What the Spark modules decide by themselves, without a JVM."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from keyfold.errors import ConfigError
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import ObjectStore
from keyfold.store.pacing import Pacer
from keyfold.store.wrappers.faults import Fault, FaultKind, FaultyStore
from keyfold_compactor.decide.horizon import Purge
from keyfold_compactor.decide.min_garbage import PassPlan
from keyfold_compactor.decide.parts import cut, units
from keyfold_compactor.decide.plan import SegmentGroup, SegmentStats
from keyfold_compactor.decide.settings import Encoding
from keyfold_compactor.decide.work import LogJob
from keyfold_compactor.execute.large_map import Candidates
from keyfold_compactor.spark.tasks import SegmentFound, TaskEnvironment
from tests.support.cleaning import PLACE, load, memory_log, record

pytest.importorskip("pyspark")
pytestmark = pytest.mark.any_spark


@dataclass(frozen=True, eq=False)
class Source:
    """A store that is there already."""

    store: ObjectStore

    def open(self, pacer: Pacer | None = None) -> ObjectStore:
        return self.store


@dataclass
class Signs:
    """What tasks count."""

    count: int = 0

    def add(self, term: int) -> None:
        self.count += term


def two_segments() -> tuple[ObjectStore, LogJob]:
    store, _ = memory_log([record(0, "a", "1"), record(1, "b", "1")], [record(2, "a", None)], clock=ManualClock())
    manifest = load(store)
    return store, LogJob(
        0, PLACE, manifest.segments, 0, manifest.next_offset, 9, manifest.sync_marker, Purge(), False, Encoding()
    )


def test_a_segment_that_could_not_be_split_is_reported_to_every_bucket() -> None:
    """Without its tombstone the map would keep `a` at 0 and let the tombstone at 2 be marked: `a` would come back."""
    from keyfold_compactor.spark.large_map_tasks import _match_task, _split_task

    store, job = two_segments()
    tombstone_index = PLACE.key(job.entries[1].index_name)
    faulty = FaultyStore(store, [Fault(lambda call: call.key == tombstone_index, FaultKind.UNAVAILABLE, times=10**6)])
    shared = SimpleNamespace(value=job)
    environment, signs = TaskEnvironment(Source(faulty), None, 0.01), Signs()
    out = list(_split_task(environment, signs, shared, 3, iter([[0, 1]])))
    by_bucket: dict[int, list[Candidates | SegmentFound]] = {}
    for bucket, part in out:
        if bucket >= 0:
            assert isinstance(part, Candidates | SegmentFound)
            by_bucket.setdefault(bucket, []).append(part)
    assert set(by_bucket) == {0, 1, 2}
    for parts in by_bucket.values():
        (failed,) = _match_task(signs, shared, iter([(0, part) for part in parts]))
        assert isinstance(failed, SegmentFound)
        assert failed.position == 1
        assert failed.error


def test_a_map_of_nothing_dirty_reads_only_the_indexes_that_matter() -> None:
    from keyfold_compactor.spark.large_map_tasks import _decide_task, _split_task

    store, job = two_segments()
    clean = LogJob(0, PLACE, job.entries, job.end, job.end, 9, job.sync_marker, Purge(), False, Encoding())
    read: list[str] = []
    watched = FaultyStore(store, on_call=lambda call: read.append(call.key))
    environment, signs = TaskEnvironment(Source(watched), None, 0.01), Signs()
    shared = SimpleNamespace(value=clean)
    found = [part for _, part in _split_task(environment, signs, shared, 3, iter([[0, 1]]))]
    assert all(isinstance(part, SegmentFound) and not part.error for part in found)
    assert read == []
    assert signs.count == 2, "a segment is done with: a sign of life"
    decided = list(_decide_task(environment, signs, shared, iter([(0, 0), (0, 1)])))
    assert [part.stats.mark_count for part in decided if isinstance(part, SegmentFound) and part.stats] == [0, 1]
    assert signs.count == 4
    assert read == [PLACE.key(job.entries[1].index_name)], "the other has no tombstone without a mark"


class FakeRdd:
    """Runs at once, or fails."""

    def __init__(self, items: Iterable[Any], error: Exception | None = None) -> None:
        self.items = list(items)
        self.error = error
        self.is_kept = False

    def mapPartitions(self, function: Any) -> FakeRdd:  # noqa: N802 - Spark's name
        return FakeRdd(function(iter(self.items)), self.error)

    def persist(self, _level: object) -> FakeRdd:
        self.is_kept = True
        return self

    def unpersist(self) -> None:
        self.is_kept = False

    def filter(self, function: Any) -> FakeRdd:
        return FakeRdd(filter(function, self.items), self.error)

    def collect(self) -> list[Any]:
        if self.error is not None:
            raise self.error
        return self.items


class FakeContext:
    """A SparkContext whose first job fails."""

    defaultParallelism = 2  # noqa: N815 - Spark's name

    def __init__(self) -> None:
        self.errors: list[Exception] = [RuntimeError("an executor was lost")]

    def accumulator(self, value: int) -> SimpleNamespace:
        return SimpleNamespace(value=value, add=lambda _count: None)

    def setJobDescription(self, _text: str) -> None:  # noqa: N802 - Spark's name
        pass

    def parallelize(self, items: Iterable[Any], _count: int) -> FakeRdd:
        return FakeRdd(items, self.errors.pop() if self.errors else None)


def test_masks_of_a_failed_batch_are_invisible_to_the_next() -> None:
    """Masks are known by a log's number in its batch: another log's of the same number would remove other records."""
    from keyfold_compactor.spark.executor import SparkExecutor

    store, job = two_segments()
    steps: list[int] = []
    spark: Any = SimpleNamespace(sparkContext=FakeContext())
    executor = SparkExecutor(spark, TaskEnvironment(Source(store), None, 0.01), map_bytes=10**9, masks_bytes=0)
    with pytest.raises(RuntimeError, match="an executor was lost"):
        executor.map_logs([job], steps.append)
    stale: list[Any] = list(executor._mapped)
    assert len(stale) == 1
    assert [answer.error for answer in executor.map_logs([job], steps.append)] == [""]
    assert len(executor._mapped) == 1
    assert not stale[0].is_kept
    assert steps == [1], "only the batch that was mapped is counted"


def test_masks_held_by_the_driver_are_dropped_with_their_batch() -> None:
    from keyfold_compactor.spark.executor import SparkExecutor

    store, job = two_segments()
    steps: list[int] = []
    context = FakeContext()
    context.errors.clear()
    spark: Any = SimpleNamespace(sparkContext=context)
    executor = SparkExecutor(spark, TaskEnvironment(Source(store), None, 0.01), map_bytes=10**9)
    assert [answer.error for answer in executor.map_logs([job], steps.append)] == [""]
    assert executor._masks
    assert not executor._mapped
    context.errors.append(RuntimeError("an executor was lost"))
    with pytest.raises(RuntimeError, match="an executor was lost"):
        executor.map_logs([job], steps.append)
    assert not executor._masks


def test_the_smallest_masks_go_through_the_driver_up_to_its_limit() -> None:
    from keyfold_compactor.spark.executor import _kept_in_driver

    _, job = two_segments()
    count = sum(e.record_count for e in job.entries)
    twice = replace(job, number=1, entries=job.entries * 2)
    one, two = count // 8 + 1, 2 * count // 8 + 1
    assert _kept_in_driver([twice, job], one + two) == {0, 1}
    assert _kept_in_driver([twice, job], one + two - 1) == {0}
    assert _kept_in_driver([twice, job], one - 1) == set()


def test_a_units_task_arguments_do_not_grow_with_the_log() -> None:
    """A log of thousands of segments has thousands of units: each with all of them would be too much for a driver."""
    _, job = two_segments()
    long = replace(job, entries=job.entries * 500)
    sizes = []
    for each in (job, long):
        stats = tuple(SegmentStats(e.record_count, e.record_count - 1, e.size_bytes - 1) for e in each.entries)
        groups = tuple(SegmentGroup(at, at, (at,), False, 1, 1) for at in range(len(each.entries)))
        pass_plan = PassPlan(groups, stats, (), unmarked_from=10**9, first_dirty=job.end)
        found = units(each, pass_plan, cut(each, pass_plan, 10**9)[0], {})
        assert len(found) == len(each.entries)
        sizes.append(max(len(pickle.dumps(unit)) for unit in found))
    assert sizes[1] <= sizes[0] + 100


@pytest.fixture
def sigint() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_stays_with_the_command_when_spark_starts(monkeypatch: pytest.MonkeyPatch, sigint: None) -> None:
    """Pyspark takes SIGINT when a context begins in the main thread, and would raise in the middle of a commit."""
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    from keyfold_compactor.spark.session import _started

    def mine(_number: int, _frame: object) -> None:
        pass

    class Builder:
        def config(self, *, conf: SparkConf) -> Builder:
            return self

        def getOrCreate(self) -> str:  # noqa: N802 - Spark's name
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, signal.default_int_handler)
            held.append(signal.getsignal(signal.SIGINT))
            return "a session"

    held: list[object] = []

    monkeypatch.setattr(SparkSession, "builder", Builder())
    signal.signal(signal.SIGINT, mine)
    assert str(_started(SparkConf(loadDefaults=False))) == "a session"
    assert held == [mine], "not for a moment"
    assert signal.getsignal(signal.SIGINT) is mine


def test_settings_given_to_spark_submit_are_not_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its options are in the JVM; a SparkConf that is made before the JVM is reached knows none of them."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from keyfold_compactor.spark import session as module

    reached: list[bool] = []
    seen: list[dict[str, str]] = []

    class Conf(dict[str, str]):
        def __init__(self) -> None:
            super().__init__({"spark.master": "k8s://given", "spark.driver.host": "driver"} if reached else {})

        def contains(self, key: str) -> bool:
            return key in self

        def set(self, key: str, value: str) -> None:
            self[key] = value

    class Stop(Exception):
        pass

    def started(conf: Conf, _say: object) -> None:
        seen.append(dict(conf))
        raise Stop

    monkeypatch.setattr(module, "SparkConf", Conf)
    monkeypatch.setattr(module, "_start", started)
    monkeypatch.setattr(SparkContext, "_ensure_initialized", classmethod(lambda _: reached.append(True)))
    monkeypatch.setattr(SparkSession, "getActiveSession", staticmethod(lambda: None))
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    given = {"spark.executor.memory": "1g", "spark.master": "local[9]", "spark.driver.host": "mine"}
    with pytest.raises(Stop), module.spark_session("name", given):
        pass
    assert seen[0]["spark.master"] == "k8s://given"
    assert (seen[0]["spark.driver.host"], seen[0]["spark.executor.memory"]) == ("driver", "1g")
    del os.environ["PYSPARK_GATEWAY_PORT"]
    reached.clear()
    with pytest.raises(Stop), module.spark_session("name", {"spark.master": "local[1]"}):
        pass
    assert (reached, seen[1]["spark.master"]) == ([], "local[1]")


def test_a_jvm_of_another_spark_is_refused_before_a_context_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pyspark itself would trip over a class that is not there: `'JavaPackage' object is not callable`."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from keyfold_compactor.spark import session as module

    package = SimpleNamespace(SPARK_VERSION=lambda: "2.4.8")
    jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(spark=SimpleNamespace(package=package))))
    conf = SimpleNamespace(get=lambda _: "local[1]")
    monkeypatch.setattr(SparkContext, "_ensure_initialized", classmethod(lambda _, gateway, conf: None))
    monkeypatch.setattr(SparkContext, "_gateway", object())
    monkeypatch.setattr(SparkContext, "_jvm", jvm)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkSession, "getActiveSession", staticmethod(lambda: None))
    monkeypatch.setattr(module, "_conf", lambda *_: conf)
    with pytest.raises(ConfigError, match=r"is connected to Spark 2\.4\.8"), module.spark_session("name", {}):
        pass
