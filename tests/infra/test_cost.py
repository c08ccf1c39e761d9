"""docs/operations/cost.md: its formula predicts the counted requests, and its table matches the formula."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.log.record import Record
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.retry import Backoff
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.counting import CountedStore
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.job import Job, RunSelection
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.report import PartitionOutcome
from keyfold_replicator.rounds import runner
from keyfold_sink.config.rolling import RollPolicy
from keyfold_sink.kafka.source import SourceFacts
from keyfold_sink.status import PartitionStatus, RunState, TaskStatus, WorkerStatus
from keyfold_sink.worker.desired_state import DesiredStateDocument, sink_folder
from keyfold_sink.worker.run import WorkerTimings
from keyfold_sink.worker.worker_registry import WorkerRegistry
from keyfold_sink.write.memory_budget import InFlight
from keyfold_sink.write.partition import PartitionWriter, WriterResources
from keyfold_sink.write.serial_queue import QueueRetry, SerialQueue
from tests.support import bill
from tests.support.bill import Asked, Load, Prices, counted
from tests.support.cleaning import retry_policy
from tests.support.costs import CostLog
from tests.support.logs import columns, record, records
from tests.support.replica_rounds import SETTINGS, Worlds

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "cost.md"
PLACE = Place("topics", "t", 0)
HOUR_S = 3600
SEGMENT_MS = 300_000


def near(asked: Asked, expected: Asked, within: float = 0.01) -> None:
    assert asked.writes == pytest.approx(expected.writes, rel=within, abs=3)
    assert asked.reads == pytest.approx(expected.reads, rel=within, abs=3)


# The sink


@pytest.mark.parametrize("is_busy", [False, True])
def test_requests_of_a_worker_in_an_hour(is_busy: bool) -> None:
    clock = ManualClock()
    store = CountedStore(MemoryStore(clock=clock))
    folder, dice = sink_folder("topics", "users"), Random(1)
    document = DesiredStateDocument(store, folder, clock, dice)
    registry = WorkerRegistry(store, folder, document, "one", clock=clock, random=dice)

    def status() -> WorkerStatus:
        position = int(clock.monotonic_s()) if is_busy else 0
        partition = PartitionStatus("users", 0, RunState.RUNNING, position=position)
        task = TaskStatus(0, RunState.RUNNING, partitions=(partition,))
        return WorkerStatus("one", registry.slot, 1, "0.1", 0, (task,))

    every_s = WorkerTimings().registry_every_s
    turns_a_look = round(WorkerTimings().desired_state_every_s / every_s)
    for turn in range(round(HOUR_S / every_s)):
        if turn % turns_a_look == 0:
            document.refresh()
        registry.update(status)
        clock.advance(round(1000 * every_s))
    near(counted(store.calls) * 24, bill.worker(is_busy=is_busy), within=0.02)


class _Source:
    """A cluster with one topic."""

    def facts(self, topic: str, partition: int) -> SourceFacts:
        return SourceFacts("T", "C", 0, 0, self.settings(topic))

    def topic_id(self, topic: str) -> str:
        return "T"

    def settings(self, topic: str) -> Mapping[str, str]:
        return {}


def rolled(rolls: int, records_a_roll: int, value_bytes: int) -> tuple[Asked, CountedStore]:
    """Return the requests of a partition that rolls at this interval."""
    clock, dice = ManualClock(), Random(1)
    store = CountedStore(MemoryStore(clock=clock))
    log = PartitionLog(store, PLACE, clock=clock, random=dice)
    log.create(topic_id="T", cluster_id="C")
    session = log.claim_sink()
    store.reset()
    crashes: list[BaseException] = []
    with ThreadPoolExecutor(1) as pool:
        queue = SerialQueue(pool, crashes.append)
        resources = WriterResources(store, _Source(), clock, InFlight(), lambda _: None)
        retry = QueueRetry(queue, dice, Backoff(1, 2))
        writer = PartitionWriter(session, queue, retry, RollPolicy(1 << 40, SEGMENT_MS), resources)
        for offset in range(rolls * records_a_roll):
            row = Record(offset, 5, "CreateTime", b"k", dice.randbytes(value_bytes), (), 3)
            writer.append(columns([row]), 100.0)
            clock.advance(SEGMENT_MS // records_a_roll)
            writer.roll_if_due()
            assert queue.wait_idle(300)
            assert not crashes
    assert len(session.manifest.segments) == rolls
    return counted(store.calls), store


def test_requests_of_a_day_of_rolls() -> None:
    rolls = bill.DAY_S * 1000 // SEGMENT_MS
    asked, _ = rolled(rolls, 1, 10)
    near(asked, bill.roll() * rolls)


def test_requests_of_a_segment_in_parts() -> None:
    value_bytes = 4 * 1024 * 1024
    asked, store = rolled(1, 5, value_bytes)
    assert store.calls["upload.write"] >= 2
    most = bill.roll(5 * value_bytes).writes
    assert most - 1 <= asked.writes <= most, "a part may be a little more than a part"


# The compactor


def job(store: CountedStore, clock: ManualClock) -> Job:
    config = {
        "s3.bucket.name": "b",
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "0",
        "file.delete.delay.ms": "60000",
    }
    return Job(
        CompactOptions.parse(config),
        RunSelection(),
        store,
        lambda _: LocalExecutor(store, retry_policy(clock, Random(1))),
        clock=clock,
        random=Random(2),
    )


def test_requests_of_an_idle_run_and_of_a_pass_with_its_gc() -> None:
    clock = ManualClock()
    inner = MemoryStore(clock=clock)
    for topic in ("a", "b"):
        for partition in range(3):
            log = CostLog(inner, 50, 100, place=Place("topics", topic, partition))
            log.append([n % 60 for n in range(200)])
    store = CountedStore(inner)
    compactor = job(store, clock)
    looking = bill.look(topics=2, partitions=6)
    total, runs = Asked(), 0
    for _ in range(4):  # the pass, one that stamps it, one that collects, one that finds nothing
        store.reset()
        report = compactor.once()
        assert report.exit_code == 0
        total += counted(store.calls)
        runs += 1
        clock.advance(100_000)
        if runs == 1:
            assert [part.outcome for part in report.partitions] == [PartitionOutcome.CLEANED] * 6
    near(counted(store.calls), looking)
    passes = Asked(total.writes - runs * looking.writes, total.reads - runs * looking.reads)
    most = bill.cleaning(4, 1, ranges=1) * 6
    assert 0.9 * most.writes <= passes.writes <= most.writes
    assert 0.5 * most.reads <= passes.reads <= most.reads


# Replicas


class _Inline:
    """A pool that runs jobs immediately, so that only the manual clock counts."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(call(*arguments))
        return done

    def shutdown(self, **_: object) -> None: ...


class _Hour(threading.Event):
    """A stop event that is set after this number of seconds, which pass during the wait."""

    def __init__(self, worlds: Worlds, then: Mapping[int, Callable[[], object]]) -> None:
        super().__init__()
        self._worlds, self._then, self._s = worlds, then, 0

    def wait(self, timeout: float | None = None) -> bool:
        self._worlds.later(1000)
        self._s += 1
        self._then.get(self._s, lambda: None)()
        if self._s == HOUR_S:
            self.set()
        return self.is_set()


def replicated(worlds: Worlds, then: Mapping[int, Callable[[], object]]) -> tuple[Asked, Asked]:
    """Return the requests to both sides in an hour, without those of the process as a whole (`bill.replicator`)."""
    settings = replace(SETTINGS, poll_ms=5_000, discover_ms=30_000, collect_ms=3_600_000)
    with worlds.running(settings) as running:
        running.runner.loop(_Hour(worlds, then))
        sides = []
        for side in (running.source, running.replica):
            names = [call.operation for call in side.calls]
            sides.append(counted({name: names.count(name) for name in set(names)}))
    return sides[0], sides[1]


def test_requests_of_a_replica_in_an_hour_idle_and_with_rolls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "ThreadPoolExecutor", _Inline)
    worlds = Worlds.new()
    logs = [worlds.log("users", partition) for partition in (0, 1)]
    for log in logs:
        log.append(records("a=1"))
    replicated(worlds, {})
    idle = replicated(worlds, {})
    for asked, expected in zip(idle, bill.following(partitions=2, topics=1), strict=True):
        near(asked * 24, expected, within=0.03)
    published = len(worlds.published)
    assert published == pytest.approx(2 * HOUR_S / runner.RUNNER_TIMINGS.publish_anyway_s, rel=0.2)

    def roll() -> None:
        logs[0].append([record(logs[0].manifest.next_offset, "k", "v")])

    busy = replicated(worlds, {300 * number: roll for number in range(1, 12)})
    for was, asked, expected in zip(idle, busy, bill.carried(), strict=True):
        assert asked.writes - was.writes == pytest.approx(11 * expected.writes, rel=0.15)
        # A roll takes the place of a look or two at the replica, which the formula leaves out.
        assert 0 < asked.reads - was.reads <= 1.1 * 11 * expected.reads


# The page


def test_the_table_matches_the_formula() -> None:
    page = PAGE.read_text()
    load = Load(partitions=100, topics=10, mib_a_day=500)
    prices = Prices()
    lines = [
        f"| {name} | {asked.writes / 1e6:.2f} | {asked.reads / 1e6:.2f} | {prices.of(asked):.2f} |"
        for name, asked in bill.rows(load).items()
    ]
    total = sum((asked for asked in bill.rows(load).values()), Asked())
    lines.append(f"| all | {total.writes / 1e6:.2f} | {total.reads / 1e6:.2f} | {prices.of(total):.2f} |")
    assert [line for line in lines if line not in page] == [], "\n".join(lines)


def test_the_page_names_the_prices_of_the_table() -> None:
    page = PAGE.read_text()
    for price in ("0.005", "0.0004", "0.023"):
        assert f"${price}" in page
    assert re.search(r"20\d\d-\d\d-\d\d", page), "prices have a date"
    assert "https://aws.amazon.com/s3/pricing/" in page
