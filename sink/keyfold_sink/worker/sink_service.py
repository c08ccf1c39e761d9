"""The service behind the REST API (`keyfold_sink.control.SinkControl`), in each worker.

Requests that change something change the desired state in the bucket, and every worker follows it, including this one.
The status of tasks comes from this worker's supervisor and from the other workers' status objects. While the store does
not answer, the last known status objects count.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from typing import Final, Protocol

import structlog

from keyfold.errors import KeyfoldError
from keyfold.runtime.clock import Clock
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.control import NoSuchTask, NotStopped, OffsetRefused
from keyfold_sink.status import UNKNOWN, RunState, TaskStatus, WorkerStatus, standstill
from keyfold_sink.topic_partition import TopicPartitionKey
from keyfold_sink.worker import desired_state
from keyfold_sink.worker.desired_state import Change, DesiredState, DesiredStateDocument, RestartScope
from keyfold_sink.worker.log_end_offsets import LogEndOffsets
from keyfold_sink.worker.worker_registry import WorkerRegistry

_ANSWER_S: Final = 2.0
_ASK_AGAIN_S: Final = 15.0
_TOPICS_AGE_S: Final = 10.0
# A task reports every second, except while it flushes revoked partitions.
_SILENCE_MS: Final = 10_000
# A worker reads the desired state every 2 s, confirms a new version within another second, and writes its status at
# least every 30 s (`keyfold_sink.worker.worker_registry`).
_ANSWERS_WITHIN_S: Final = 15.0
_SILENT_MS: Final = 40_000


class WorkerTasks(Protocol):
    """The worker's own tasks (`keyfold_sink.worker.supervisor.Supervisor`)."""

    @property
    def tasks(self) -> tuple[TaskStatus, ...]:
        """The status of each task."""

    @property
    def orders_version(self) -> int:
        """The newest version of the desired state that was carried out."""

    @property
    def is_alive(self) -> bool:
        """Whether the supervisor's loop runs."""

    def set_log_level(self, logger: str, level: str) -> None:
        """Set a log level in all tasks, including later ones."""


class SinkService:
    """The service of one worker. Thread-safe."""

    def __init__(
        self,
        options: SinkOptions,
        *,
        document: DesiredStateDocument,
        registry: WorkerRegistry,
        tasks: WorkerTasks,
        log_end_offsets: LogEndOffsets,
        ask_cluster_id: Callable[[], str],
        clock: Clock,
        version: str,
    ) -> None:
        self.options = options
        self._document = document
        self._registry = registry
        self._tasks = tasks
        self._log_end_offsets = log_end_offsets
        self._ask_cluster_id = ask_cluster_id
        self._clock = clock
        self._version = version
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="keyfold-cluster-id")
        self._asked: tuple[float, Future[str]] | None = None
        self._topics: tuple[float, list[str]] | None = None
        self._events = structlog.get_logger("keyfold.sink")

    @property
    def worker_id(self) -> str:
        """See `SinkControl.worker_id`."""
        return self._registry.worker_id

    # Queries

    def cluster_id(self) -> str:
        """See `SinkControl.cluster_id`."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            if self._asked is None or (_has_no_answer(self._asked[1]) and now_s - self._asked[0] > _ASK_AGAIN_S):
                self._asked = (now_s, self._pool.submit(self._ask_cluster_id))
            answer = self._asked[1]
        try:
            return answer.result(_ANSWER_S)
        except (KeyfoldError, FutureTimeout):
            return ""

    def target(self) -> RunState:
        """See `SinkControl.target`."""
        return self._desired().state

    def own_status(self) -> WorkerStatus:
        """Return this worker's status without metrics, which change all the time and which other workers ignore."""
        return WorkerStatus(
            worker_id=self.worker_id,
            slot=self._registry.slot,
            reported_ms=self._clock.now_ms(),
            version=self._version,
            orders_version=self._tasks.orders_version,
            tasks=tuple(replace(task, values={}) for task in self._tasks.tasks),
        )

    def workers(self) -> Sequence[WorkerStatus]:
        """See `SinkControl.workers`."""
        try:
            others = self._registry.others()
        except KeyfoldError:  # users need the status most of all while the store does not work
            others = self._registry.known_others()
        return [self.own_status(), *others]

    def is_alive(self) -> bool:
        """See `SinkControl.is_alive`."""
        return self._tasks.is_alive

    def not_ready(self) -> str:
        """See `SinkControl.not_ready`."""
        known = self._document.known
        if known is None:
            return "the sink's desired state has not been read from the bucket yet"
        if known.state is RunState.STOPPED:
            return ""
        tasks = {task.number: task for task in self._tasks.tasks}
        said = ((number, self._why_not(tasks.get(number))) for number in range(self.options.tasks_max))
        return "; ".join(f"task {number} {why}" for number, why in said if why)

    def topics(self) -> Sequence[str]:
        """See `SinkControl.topics`."""
        reading = {part.topic for worker in self.workers() for task in worker.tasks for part in task.partitions}
        return sorted(reading.union(self._topics_with_logs()))

    def offsets(self) -> Mapping[TopicPartitionKey, int]:
        """See `SinkControl.offsets`. The manifest is read for partitions that no task has."""
        found: dict[TopicPartitionKey, int] = {}
        for worker in self.workers():
            for task in worker.tasks:
                for part in task.partitions:
                    if part.next_offset != UNKNOWN:
                        key = (part.topic, part.partition)
                        found[key] = max(part.next_offset, found.get(key, 0))
        places = self._log_end_offsets.places(self.topics())
        found |= self._log_end_offsets.read(key for key in places if key not in found)
        return dict(sorted(found.items()))

    # Requests

    def pause(self) -> None:
        """See `SinkControl.pause`."""
        self._change(desired_state.target(RunState.PAUSED))

    def resume(self) -> None:
        """See `SinkControl.resume`."""
        self._change(desired_state.target(RunState.RUNNING))

    def stop(self) -> None:
        """See `SinkControl.stop`."""
        self._change(desired_state.target(RunState.STOPPED))

    def restart(self, *, include_tasks: bool, only_failed: bool) -> None:
        """See `SinkControl.restart`."""
        of_tasks = RestartScope.FAILED if only_failed else RestartScope.ALL
        self._change(desired_state.restart(of_tasks if include_tasks else RestartScope.CONNECTOR))

    def restart_task(self, task_id: int) -> None:
        """See `SinkControl.restart_task`."""
        for worker in self.workers():
            for task in worker.tasks:
                if worker.slot != UNKNOWN and worker.slot * self.options.tasks_max + task.number == task_id:
                    self._change(desired_state.restart(RestartScope.ONE, worker.worker_id, task.number))
                    return
        raise NoSuchTask(f"no worker has a task with id {task_id}")

    def flush(self) -> None:
        """See `SinkControl.flush`."""
        self._change(desired_state.flush)

    def set_log_level(self, logger: str, level: str) -> None:
        """See `SinkControl.set_log_level`."""
        self._tasks.set_log_level(logger, level)

    def alter_offsets(self, offsets: Mapping[TopicPartitionKey, int]) -> None:
        """See `SinkControl.alter_offsets`."""
        for (topic, partition), offset in offsets.items():
            if topic not in self.options.choose_topics([topic]):
                raise OffsetRefused(f"this sink does not read topic {topic}; no offset was changed")
            if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
                raise OffsetRefused(
                    f"{offset!r} is not a valid offset for {topic}-{partition}; no offset was changed",
                    hint="an offset cannot be reset, because a log holds each offset once",
                )
        self._require_stopped()
        self._log_end_offsets.move(offsets)
        self._events.info("offsets altered", offsets={f"{t}-{p}": offset for (t, p), offset in offsets.items()})

    def _change(self, change: Change) -> None:
        newest = self._document.change(change)
        self._events.info("desired state changed", state=newest.state.value, version=newest.version)

    def _desired(self) -> DesiredState:
        return self._document.known or self._document.refresh()

    def _require_stopped(self) -> None:
        """Raise `NotStopped` while any task may be running or starting, by a fresh read of the store.

        The check does not wait for a worker that was killed, suspended or cut off. If a task of it resumes, that task
        is fenced, and continues from the log's end or stops.
        """
        newest = self._document.refresh()
        if newest.state is not RunState.STOPPED:
            raise NotStopped(f"the sink is {newest.state}; no offset was changed", hint="stop the sink first")
        for worker in [self.own_status(), *self._registry.others(fresh=True)]:
            has_answered = worker.orders_version >= newest.state_since
            if self._is_deaf(worker, has_answered=has_answered):
                continue
            if worker.tasks or not has_answered:
                raise NotStopped(
                    f"the tasks of worker {worker.worker_id} have not all ended yet; no offset was changed",
                    hint="retry in a few seconds",
                )

    def _is_deaf(self, worker: WorkerStatus, *, has_answered: bool) -> bool:
        """Whether another worker does not confirm the desired state, or does not write its status, in time."""
        if worker.worker_id == self.worker_id:
            return False
        silent_ms = self._registry.silent_ms(worker.worker_id)
        if not has_answered and self._document.state_age_s >= _ANSWERS_WITHIN_S:
            return silent_ms >= _ANSWERS_WITHIN_S * 1000
        return silent_ms >= _SILENT_MS

    def _topics_with_logs(self) -> list[str]:
        """Return the sink's topics that have a log; the list is at most ten seconds old."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            if self._topics is None or now_s - self._topics[0] > _TOPICS_AGE_S:
                there = self._log_end_offsets.topics()
                self._topics = (now_s, sorted(set(there).intersection(self.options.choose_topics(there))))
            return self._topics[1]

    def _why_not(self, task: TaskStatus | None) -> str:
        """Return why a task is not ready, empty if it is."""
        if task is None:
            return "has not been started yet"
        silent_ms = self._clock.now_ms() - task.reported_ms
        if task.pid != UNKNOWN and silent_ms > self.options.offset_flush_timeout_ms + _SILENCE_MS:
            return f"has not reported for {silent_ms // 1000} s"
        if task.state in {RunState.RUNNING, RunState.PAUSED}:
            words, moves = standstill(task, task.reported_ms)  # both times are by the task's clock
            return "" if moves else f"makes no progress: {words}"
        what = {RunState.FAILED: "has failed", RunState.RESTARTING: "is being restarted"}
        return ": ".join(filter(None, (what.get(task.state, "has not joined the consumer group yet"), task.trace)))


def _has_no_answer(answer: Future[str]) -> bool:
    return answer.done() and answer.exception() is not None
