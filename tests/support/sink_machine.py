"""A task in a single thread: rounds of its loop, and the jobs of its serial queues, run when a test says so.

So every interleaving of commands, rebalances, commits and failures can be produced and repeated. `TaskMachine` has the
steps of Hypothesis's state machine; `check` asserts the invariants between any two steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from random import Random
from typing import Any, Final, cast

import pytest
from confluent_kafka import KafkaError, TopicPartition

from keyfold.errors import ObjectNotFound
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.runtime.clock import ManualClock
from keyfold.store.memory import MemoryStore
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.config.rolling import RollPolicy, RollReason
from keyfold_sink.kafka.cluster import AdminSource
from keyfold_sink.status import RunState, TaskStatus
from keyfold_sink.task import sink_task as worker
from keyfold_sink.task.commands import TaskCommand, TaskCommands
from keyfold_sink.task.report import StatusReporter
from keyfold_sink.task.sink_task import SinkTask
from keyfold_sink.write.batch import columns
from keyfold_sink.write.memory_budget import InFlight
from keyfold_sink.write.partition import PartitionWriter, WriterResources
from keyfold_sink.write.serial_queue import QueueRetry, SerialQueue
from tests.support.fake_group import FakeConsumer, FakeSource, Key
from tests.support.proof import read_segments

KEYS: Final[tuple[Key, ...]] = (("t", 0), ("t", 1), ("u", 0))
ERRORS: Final = (
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.OFFSET_NOT_AVAILABLE,
)
_CONFIG: Final = {
    "name": "s",
    "bootstrap.servers": "x",
    "topics": "t,u",
    "s3.bucket.name": "b",
    "topics.dir": "topics",
    "segment.ms": "1000",
    "flush.size": "7",
    "offset.flush.interval.ms": "100",
    "offset.flush.timeout.ms": "0",
}


class ManualExecutor(Executor):
    """An executor that runs a job when a test says so, or at once if `runs_immediately`."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []
        self.runs_immediately = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def job() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - `Future.result` raises it
                future.set_exception(error)

        if self.runs_immediately:
            job()
        else:
            self.jobs.append(job)
        return future

    def work(self, choice: int = 0) -> None:
        """Run one pending job, if any."""
        if self.jobs:
            self.jobs.pop(choice % len(self.jobs))()

    def end(self, _deadline_s: float, _monotonic_s: Callable[[], float]) -> bool:
        """See `IoPool.end`."""
        self.jobs.clear()
        return True


class TaskMachine:
    """A task with three partitions, a rival sink, and commands."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore()
        self.kafka = FakeConsumer(idle_s=0.0, batch=5)
        self.source = FakeSource(self.kafka)
        self.executor = ManualExecutor()
        self.commands = TaskCommands(threading.Event())
        self.statuses: list[TaskStatus] = []
        self.owned: set[Key] = set()
        self.refusals = 0
        self._seen: dict[Key, tuple[bytes, int]] = {}
        self.is_paused = False
        self._read_when_paused: int | None = None
        self.kafka.refuse = self._refuse
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker, "IoPool", lambda: self.executor)
            self.task = SinkTask(
                SinkOptions.parse(_CONFIG),
                store=self.store,
                source=cast("AdminSource", self.source),
                open_consumer=lambda _on_commit, _on_error: self.kafka,
                clock=self.clock,
                random=Random(1),
                commands=self.commands,
                reporter=StatusReporter(0, self.clock, self.statuses.append, interval_s=0.0),
            )
        self.group = self.task._group
        self.kafka.on_commit, self.kafka.on_error = self.group.on_commit, self.group.on_error
        self.task.join_group(self.kafka)

    def _refuse(self, _offset: TopicPartition) -> KafkaError | None:
        if self.refusals <= 0:
            return None
        self.refusals -= 1
        return KafkaError(KafkaError.REBALANCE_IN_PROGRESS)

    # Steps

    def turn(self) -> None:
        """Run one round of the task's loop, 1 ms later."""
        self.clock.advance(1)
        self.task.run_round(self.kafka)
        if not self.is_paused:
            self._read_when_paused = None
        elif self._read_when_paused is None:
            self._read_when_paused = self.kafka.handed_over.total()

    def command(self, command: TaskCommand) -> None:
        """Send a command to the task."""
        self.commands.add(command)
        if command is not TaskCommand.FLUSH:
            self.is_paused = command is TaskCommand.PAUSE
            self._read_when_paused = None  # until the task has run a round

    def produce(self, key: Key, count: int, hole: int) -> None:
        """Produce records, and unreadable offsets after them."""
        begin = self.kafka.end(key)
        self.kafka.produce(key, range(begin, begin + count))
        self.kafka.hole(key, hole)

    def assign(self, key: Key) -> None:
        """Assign a partition, also one that the task already has."""
        self.owned.add(key)
        self.kafka.tell("on_assign", key)

    def take_away(self, key: Key, *, lost: bool, in_time: bool) -> None:
        """Revoke a partition. If `in_time`, the task's last flush is committed before the partition is gone."""
        self.owned.discard(key)
        self.kafka.tell("on_lost" if lost else "on_revoke", key)
        self.executor.runs_immediately = in_time
        self.turn()
        self.executor.runs_immediately = False

    def rival(self, key: Key, records: int) -> None:
        """Let another sink claim the partition and write some records."""
        log = self.log(key)
        log.create(topic_id="T", cluster_id="C")
        session = log.claim_sink()
        executor = ManualExecutor()
        executor.runs_immediately = True
        queue = SerialQueue(executor, lambda _error: None)
        resources = WriterResources(self.store, self.source, self.clock, InFlight(), lambda _event: None)
        writer = PartitionWriter(session, queue, QueueRetry(queue, Random(0)), RollPolicy(10**7, 10**7), resources)
        rows = [m for m in self.kafka.records.get(key, []) if (m.offset() or 0) >= writer.position][:records]
        if rows:
            writer.append(columns(rows), 100.0)
        writer.roll(RollReason.REQUEST)
        assert queue.crash is None

    def report_error(self, key: Key, code: int) -> None:
        """Let the client report an error of a partition."""
        if key in self.kafka.fetched:
            self.kafka.inject(key, code)

    def log(self, key: Key) -> PartitionLog:
        """Return the partition's log, opened independently of the task."""
        return PartitionLog(self.store, Place("topics", *key), clock=self.clock, random=Random(3))

    def next_offset(self, key: Key) -> int:
        """Return the end of the log, or 0 without a log."""
        try:
            data = self.store.get(Place("topics", *key).manifest_key).data
        except ObjectNotFound:
            return 0
        if self._seen.get(key, (b"", 0))[0] != data:
            self._seen[key] = data, self.log(key).load().manifest.next_offset
        return self._seen[key][1]

    # Invariants

    def check(self) -> None:
        """Assert the invariants that hold between any two steps."""
        if self._read_when_paused is not None:
            assert self.kafka.handed_over.total() == self._read_when_paused, "read while paused"
        for key, offset in self.kafka.group_offsets.items():
            assert offset <= self.next_offset(key), "a group offset exceeds the log's end"
        assert self.group.fetching.consumer is self.kafka
        fetched = {key for key, owner in self.group.assigned.items() if owner.is_fetched}
        assert fetched == set(self.kafka.fetched), "the client fetches something else than the task thinks"
        assert set(self.group.assigned) <= self.owned, "still has a revoked partition"
        wanted_paused = fetched if self.group.fetching.reasons else set()
        assert wanted_paused <= self.kafka.paused
        assert not (fetched - wanted_paused) & self.kafka.paused
        if self.statuses:
            self._check_status(self.statuses[-1])

    def _check_status(self, status: TaskStatus) -> None:
        for partition in status.partitions:
            key = (partition.topic, partition.partition)
            assert partition.next_offset <= self.next_offset(key), "reports more than is durable"
            if partition.state is RunState.FAILED:
                assert partition.error
                assert partition.error_ms > 0
                assert key not in self.kafka.fetched
        failed = any(partition.state is RunState.FAILED for partition in status.partitions)
        assert (status.state is RunState.FAILED) == failed

    def check_records(self) -> None:
        """Assert that each record below the log's end is in the log once and in order."""
        for key in KEYS:
            end = self.next_offset(key)
            produced = [m.offset() for m in self.kafka.records.get(key, []) if (m.offset() or 0) < end]
            found = [record.offset for record in read_segments(self.store, *key)] if end else []
            assert found == produced

    def quiet(self, until: Callable[[], bool]) -> None:
        """Run rounds and jobs, without faults, until the condition holds."""
        for _ in range(400):
            self.turn()
            while self.executor.jobs:
                self.executor.work()
            self.clock.advance(500)
            self.check()
            if until():
                break

    def walk(self, random: Random, steps: int) -> None:
        """Take random steps, most of which are rounds and jobs, as otherwise little is committed."""
        for key in KEYS:
            self.assign(key)
        things = (
            *(self._some_work,) * 12,
            *(lambda: self.produce(random.choice(KEYS), random.randint(1, 12), random.choice((0, 0, 3))),) * 4,
            lambda: self.assign(random.choice(KEYS)),
            lambda: self._take_one_away(random),
            lambda: self.command(random.choice((TaskCommand.PAUSE, *(TaskCommand.RESUME,) * 4, TaskCommand.FLUSH))),
            lambda: self.rival(random.choice(KEYS), random.choice((0, 0, 5))),
            lambda: self.report_error(random.choice(KEYS), random.choice(ERRORS)),
            lambda: self.clock.advance(random.choice((10, 200, 1_500, 20_000))),
            lambda: setattr(self, "refusals", random.randint(0, 3)),
            self.turn,
            self.executor.work,
        )
        for _ in range(steps):
            random.choice(things)()
            self.check()
        self.check_records()

    def _some_work(self) -> None:
        for _ in range(3):
            self.turn()
            self.executor.work()
            self.check()

    def _take_one_away(self, random: Random) -> None:
        if self.owned:
            key = random.choice(sorted(self.owned))
            self.take_away(key, lost=random.random() < 0.3, in_time=random.random() < 0.5)

    def settle(self) -> None:
        """End all faults and run until every record is in its log."""
        self.command(TaskCommand.RESUME)
        self.refusals = 0
        self.quiet(lambda: not self.executor.jobs)
        for key in KEYS:
            owner = self.group.assigned.get(key)
            if owner is None or owner.failure is not None:
                self.assign(key)  # an assignment restarts a failed partition
        self.quiet(lambda: all(self.next_offset(key) >= self.kafka.end(key) for key in KEYS))
        self.check_records()
        ends = {key: self.next_offset(key) for key in KEYS}
        assert ends == {key: self.kafka.end(key) for key in KEYS}
        assert self.task._in_flight.size_bytes == 0
