"""A whole task in a thread, over a real broker and a store in memory, for behaviour of the real client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Self

from keyfold.runtime.clock import SystemClock
from keyfold.store.memory import MemoryStore
from keyfold_sink.config.memory_plan import plan_memory
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.kafka.cluster import AdminSource
from keyfold_sink.kafka.consumer import admin_config, open_consumer
from keyfold_sink.kafka.contact import BrokerContact
from keyfold_sink.status import PartitionStatus, RunState, TaskStatus
from keyfold_sink.task.commands import TaskCommand, TaskCommands
from keyfold_sink.task.report import StatusReporter
from keyfold_sink.task.sink_task import SinkTask
from keyfold_sink.task.time_limits import TaskTimings
from tests.support.fake_group import Key
from tests.support.proof import read_segments, wait_for

_QUICK = {
    "segment.ms": "300",
    "consumer.override.heartbeat.interval.ms": "500",
    "consumer.override.topic.metadata.refresh.interval.ms": "500",
    "consumer.override.fetch.wait.max.ms": "50",
    "consumer.override.reconnect.backoff.max.ms": "500",
}


class LiveTask:
    """One member of a group."""

    def __init__(
        self,
        bootstrap_servers: str,
        store: MemoryStore,
        *,
        pause: bool = False,
        timings: TaskTimings | None = None,
        **config: str,
    ) -> None:
        values = {"name": "live", "bootstrap.servers": bootstrap_servers, "s3.bucket.name": "b", "topics.dir": "topics"}
        options = SinkOptions.parse({**values, **_QUICK, **{key.replace("__", "."): v for key, v in config.items()}})
        self.store = store
        self.commands = TaskCommands(threading.Event(), pause=pause)
        self.statuses: list[TaskStatus] = []
        self.error: BaseException | None = None
        clock = SystemClock()
        plan = plan_memory(options.buffer_memory)
        self.task = SinkTask(
            options,
            store=store,
            source=AdminSource(admin_config(options), clock),
            open_consumer=lambda on_commit, on_error: open_consumer(
                options, plan, on_commit, on_error, BrokerContact(clock)
            ),
            clock=clock,
            random=Random(),
            commands=self.commands,
            reporter=StatusReporter(0, clock, self.statuses.append, interval_s=0.05),
            timings=timings,
        )
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.task.run()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def start(self) -> Self:
        self._thread.start()
        return self

    def end(self) -> None:
        self.commands.add(TaskCommand.STOP)
        self._thread.join(60)
        assert not self._thread.is_alive()

    def until(self, what: Callable[[], bool], within_s: float = 120, name: str = "") -> None:
        def holds() -> bool:
            assert self.error is None, self.error
            return what()

        wait_for(holds, within_s, name)

    def wait_error(self, within_s: float = 120) -> BaseException:
        wait_for(lambda: self.error is not None, within_s, "the task to end")
        assert self.error is not None
        return self.error

    @property
    def last(self) -> TaskStatus:
        return self.statuses[-1] if self.statuses else TaskStatus(0, RunState.UNASSIGNED)

    @property
    def keys(self) -> set[Key]:
        return {(partition.topic, partition.partition) for partition in self.last.partitions}

    def partition(self, key: Key) -> PartitionStatus:
        found = [p for p in self.last.partitions if (p.topic, p.partition) == key]
        return found[0] if found else PartitionStatus(*key, RunState.UNASSIGNED)

    def rests(self) -> None:
        """Let the loop run for a moment in which a fault could show."""
        before = len(self.statuses)
        time.sleep(0.7)
        assert self.error is None, self.error
        assert len(self.statuses) > before + 3, "the loop stands still"

    def offsets(self, key: Key) -> list[int]:
        return [record.offset for record in read_segments(self.store, *key)]


MakeTask = Callable[..., LiveTask]


@contextmanager
def live_tasks(bootstrap_servers: str) -> Iterator[MakeTask]:
    """Yield a function that starts tasks over one store, and end them at the end."""
    store = MemoryStore()
    made: list[LiveTask] = []

    def build(**config: Any) -> LiveTask:
        made.append(LiveTask(bootstrap_servers, store, **config).start())
        return made[-1]

    try:
        yield build
    finally:
        for task in made:
            task.commands.add(TaskCommand.STOP)
        for task in made:
            task.end()
