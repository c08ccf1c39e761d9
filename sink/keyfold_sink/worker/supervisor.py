"""The supervisor of a worker's tasks: start them, pass on the desired state, read reports, replace crashed tasks.

The supervisor never waits for a task, the store or Kafka. Slow work happens on other threads, which pass it values.
Each task reads commands from a pipe of the supervisor. If the supervisor is killed, its tasks read the end of the pipe,
and stop as they do on a stop command.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Final

from keyfold.errors import ConfigError, KeyfoldError
from keyfold.runtime.clock import Clock
from keyfold_sink.group.catchup import TransactionOpen
from keyfold_sink.status import RunState, TaskStatus
from keyfold_sink.worker.desired_state import DesiredState, Restart, RestartScope, to_do
from keyfold_sink.worker.task_process import Levels, ReplaceReason, Spawn, SupervisedTask, TaskLimits, TaskPhase

_ALIVE_S: Final = 10.0
_MISCONFIGURED: Final = ConfigError.exit_code


class TasksFailed(KeyfoldError):
    """At least one task ended with an error."""


class TasksMisconfigured(TasksFailed, ConfigError):
    """All failed tasks failed because of their configuration."""

    def __init__(self, message: str) -> None:
        KeyfoldError.__init__(self, message)
        self.key = "configuration"


class TransactionsOpen(TasksFailed):
    """All failed tasks failed because of open transactions."""

    exit_code = TransactionOpen.exit_code


class Supervisor:
    """The tasks of one worker. The main thread calls `run`; any thread may read the properties."""

    def __init__(
        self,
        tasks: int,
        spawn: Spawn,
        limits: TaskLimits,
        *,
        clock: Clock,
        random: Random,
        once: bool = False,
        renew: Callable[[], None] = lambda: None,
        on_status: Callable[[TaskStatus], None] = lambda _status: None,
        on_round: Callable[[tuple[TaskStatus, ...], Mapping[str, int]], None] = lambda _tasks, _replaced: None,
    ) -> None:
        """Prepare `tasks` tasks. With `once` they end by themselves, and none is restarted.

        `renew` is called when cached lookups must be renewed; it must not block. `on_status` receives each report of a
        task, `on_round` receives all tasks and `replaced` once per round.
        """
        self._clock = clock
        self._limits = limits
        self._renew = renew
        self._on_round = on_round
        self._replaced: Counter[str] = Counter()
        self._round_s = clock.monotonic_s()
        self._done: DesiredState | None = None
        self._levels: Levels = ()
        self._levels_lock = threading.Lock()
        self._children = [
            SupervisedTask(
                number, spawn, limits, clock=clock, random=random, on_status=on_status, replaced=self._count, once=once
            )
            for number in range(tasks)
        ]

    @property
    def tasks(self) -> tuple[TaskStatus, ...]:
        """The status of each task."""
        found = (child.status for child in self._children)
        return tuple(status for status in found if status is not None)

    @property
    def replaced(self) -> Mapping[str, int]:
        """The number of tasks replaced without a request, by cause."""
        return {why.value: self._replaced[why.value] for why in ReplaceReason}

    @property
    def orders_version(self) -> int:
        """The newest version of the desired state that was carried out or passed on to the tasks."""
        return 0 if self._done is None else self._done.version

    @property
    def is_alive(self) -> bool:
        """Whether the loop runs."""
        return self._clock.monotonic_s() - self._round_s < _ALIVE_S

    def has_live_tasks(self) -> bool:
        """Whether any task has a process."""
        return any(child.is_live for child in self._children)

    def set_log_level(self, logger: str, level: str) -> None:
        """Set a log level in all tasks, including later ones (`keyfold.runtime.event_log.set_level`). Thread-safe."""
        with self._levels_lock:
            kept = (one for one in self._levels if logger and one[0] != logger and not one[0].startswith(f"{logger}."))
            self._levels = (*kept, (logger, level))

    # The work

    def run(
        self,
        newest: Callable[[], DesiredState | None],
        worker_id: Callable[[], str],
        stop: threading.Event,
        *,
        ends_when_failed: bool,
    ) -> None:
        """Follow the desired state until `stop` is set or, with `ends_when_failed`, until every task has failed.

        No task is started before `newest` returns a desired state. Raise `TasksFailed` if a task failed.
        """
        with self._nobody_left():
            while not stop.is_set() and not (ends_when_failed and self.all_failed):
                desired = newest()
                if desired is not None:
                    self.follow(desired, worker_id())
                self.advance_tasks()
                self._clock.sleep(self._limits.round_s)
            self.end()

    def run_once(self, stop: threading.Event) -> None:
        """Start all tasks, and wait until each has ended by itself. Raise `TasksFailed` if a task failed."""
        with self._nobody_left():
            for child in self._children:
                child.run(paused=False)
            while not stop.is_set() and self.has_live_tasks():
                self.advance_tasks()
                self._clock.sleep(self._limits.round_s)
            self.end()

    def follow(self, desired: DesiredState, worker_id: str) -> None:
        """Carry out the changes of the desired state. Of the first version only the state counts: the rest is past."""
        if self._done is not None and desired.version <= self._done.version:
            return
        todo = to_do(self._done or desired, desired, worker_id)
        renews = any(asked.scope is RestartScope.CONNECTOR for asked in todo.restarts)
        if renews:
            self._renew()
        for child in self._children:
            if todo.state is RunState.STOPPED:
                child.halt()
                continue
            if any(_means(asked, child) for asked in todo.restarts):
                child.restart()
            child.run(paused=todo.state is RunState.PAUSED)
            if todo.flush:
                child.flush()
            if renews:
                child.renew()
        self._done = desired

    def advance_tasks(self) -> None:
        """Run one round."""
        for child in self._children:
            child.advance()
            child.log(self._levels)
        self._on_round(self.tasks, self.replaced)
        self._round_s = self._clock.monotonic_s()

    @property
    def all_failed(self) -> bool:
        """Whether every task has ended with an error, or has only failed partitions."""
        return all(child.phase is TaskPhase.FAILED or _has_nothing_left(child.status) for child in self._children)

    def end(self) -> None:
        """Stop all tasks, which flush first, and wait for them. Raise `TasksFailed` if a task failed."""
        failed = {child.number: child for child in self._children if child.phase is TaskPhase.FAILED}
        for child in self._children:
            child.halt()
        while self.has_live_tasks():
            self.advance_tasks()
            self._clock.sleep(self._limits.round_s)
        failed |= {child.number: child for child in self._children if child.exit_code}
        if failed:
            raise _failure([child for _, child in sorted(failed.items())], len(self._children))

    @contextmanager
    def _nobody_left(self) -> Iterator[None]:
        """Kill all tasks when the supervisor ends for any reason (such as a second Ctrl-C)."""
        try:
            yield
        finally:
            for child in self._children:
                child.kill()

    def _count(self, why: ReplaceReason) -> None:
        self._replaced[why.value] += 1


def _means(asked: Restart, child: SupervisedTask) -> bool:
    """Whether a restart includes this task. Restarts of other workers' tasks were left out before."""
    match asked.scope:
        case RestartScope.ALL:
            return True
        case RestartScope.FAILED:
            return child.has_failed
        case RestartScope.ONE:
            return asked.task == child.number
        case RestartScope.CONNECTOR:
            return False


def _has_nothing_left(status: TaskStatus | None) -> bool:
    partitions = () if status is None else status.partitions
    return bool(partitions) and all(partition.state is RunState.FAILED for partition in partitions)


def _failure(failed: Sequence[SupervisedTask], tasks: int) -> TasksFailed:
    """Return an error with the messages of the failed tasks."""
    each = "; ".join(f"task {child.number}: {child.last_words}" for child in failed)
    message = failed[0].last_words if tasks == 1 else f"{len(failed)} of {tasks} tasks failed: {each}"
    codes = {child.exit_code for child in failed}
    if codes == {TransactionsOpen.exit_code}:
        return TransactionsOpen(failed[0].last_words)  # every task checks all partitions
    return TasksMisconfigured(message) if codes == {_MISCONFIGURED} else TasksFailed(message)
