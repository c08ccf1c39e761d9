"""A whole task in a thread, over a fake consumer and any store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any, cast

from keyfold.errors import LogNotFound
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.runtime.clock import Clock, SystemClock
from keyfold.store.api import ObjectStore
from keyfold.store.memory import MemoryStore
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.group.catchup import CatchUp
from keyfold_sink.kafka.cluster import AdminSource
from keyfold_sink.status import PartitionStatus, RunState, TaskStatus
from keyfold_sink.task.commands import TaskCommand, TaskCommands
from keyfold_sink.task.report import StatusReporter
from keyfold_sink.task.sink_task import SinkTask
from keyfold_sink.task.time_limits import TaskTimings
from keyfold_sink.validate.convert.api import Checks
from keyfold_sink.validate.dead_letter_topic import OpenProducer
from tests.support.fake_group import FakeConsumer, FakeSource, Key

T0: Key = ("t", 0)
T1: Key = ("t", 1)


class Rig:
    """A task that runs in a thread."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        pause: bool = False,
        catch_up: Mapping[Key, int] | None = None,
        transaction_timeout_s: float = 600.0,
        checks: Checks | None = None,
        open_producer: OpenProducer | None = None,
        clock: Clock | None = None,
        timings: TaskTimings | None = None,
        **changes: str,
    ) -> None:
        values = {"name": "s", "bootstrap.servers": "x", "topics": "t", "s3.bucket.name": "b", "topics.dir": "topics"}
        values["offset.flush.interval.ms"] = "50"
        values |= {key.replace("__", "."): value for key, value in changes.items()}
        self.store = store
        self.commands = TaskCommands(threading.Event(), pause=pause)
        self.statuses: list[TaskStatus] = []
        self.error: BaseException | None = None
        self.kafka = FakeConsumer()
        self.task = SinkTask(
            SinkOptions.parse(values),
            store=store,
            source=cast("AdminSource", FakeSource(self.kafka)),
            open_consumer=self._open_consumer,
            clock=clock or SystemClock(),
            random=Random(1),
            commands=self.commands,
            reporter=StatusReporter(0, clock or SystemClock(), self.statuses.append, interval_s=0.02),
            catch_up=None if catch_up is None else CatchUp(catch_up),
            transaction_timeout_s=transaction_timeout_s,
            checks=checks,
            open_producer=open_producer,
            timings=timings,
        )
        self._thread = threading.Thread(target=self._run)

    def _open_consumer(self, on_commit: Callable[[Any, Any], None], on_error: Callable[[Any], None]) -> FakeConsumer:
        self.kafka.on_commit, self.kafka.on_error = on_commit, on_error
        return self.kafka

    def _run(self) -> None:
        try:
            self.task.run()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def start(self, *, wait: bool = True) -> None:
        """Start the task; if `wait`, until it has subscribed."""
        self._thread.start()
        if wait:
            self.until(lambda: bool(self.kafka._on))

    def end(self) -> None:
        self.commands.add(TaskCommand.STOP)
        self._thread.join(60)
        assert not self._thread.is_alive()

    def until(self, what: Callable[[], bool], within_s: float = 120) -> None:
        deadline_s = time.monotonic() + within_s
        while not what():
            assert self.error is None, self.error
            assert time.monotonic() < deadline_s, "it does not come to this"
            time.sleep(0.002)

    def runs(self, key: Key = T0) -> bool:
        return key in self.kafka.fetched

    def log(self, key: Key = T0) -> PartitionLog:
        return PartitionLog(self.store, Place("topics", *key), clock=SystemClock(), random=Random(7))

    def next_offset(self, key: Key = T0) -> int:
        """Return the end of the log, or 0 without a log."""
        try:
            return self.log(key).load().manifest.next_offset
        except LogNotFound:
            return 0

    def status(self, key: Key = T0) -> PartitionStatus | None:
        """Return a partition's status in the last report."""
        if not self.statuses:
            return None
        return next((p for p in self.statuses[-1].partitions if (p.topic, p.partition) == key), None)

    def wait_for_report(self) -> None:
        """Wait for a report that was started after this call."""
        before = len(self.statuses)
        self.until(lambda: len(self.statuses) > before + 1)

    def says(self, state: RunState) -> bool:
        """Return whether the last report has this state of the task."""
        return bool(self.statuses) and self.statuses[-1].state is state


MakeRig = Callable[..., Rig]


@contextmanager
def rigs(timings: TaskTimings | None = None) -> Iterator[MakeRig]:
    """Yield a function that starts rigs, and end them at the end. `timings` are the rigs' default."""
    made: list[Rig] = []

    def build(store: ObjectStore | None = None, *, wait: bool = True, **changes: Any) -> Rig:
        made.append(Rig(store or MemoryStore(), **{"timings": timings, **changes}))
        made[-1].start(wait=wait)
        return made[-1]

    yield build
    for rig in made:
        rig.end()
