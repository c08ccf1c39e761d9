"""Starts a worker's tasks and sees to them, round after round: orders, reports, processes that end or hang.

The supervisor never waits for a task, for the store or for Kafka: what takes time happens on other threads, and comes
in as values. Each task reads orders from a pipe of the supervisor; should the supervisor be killed, its tasks see the
end of it, and stop as they do when they are told to.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Final

from keyfold.clock import Clock
from keyfold.errors import ConfigError, KeyfoldError
from keyfold_sink.group.catchup import TransactionOpen
from keyfold_sink.running.children import Child, Levels, Limits, Phase, Replaced, Spawn
from keyfold_sink.running.orders import Orders, Restart, Scope, to_do
from keyfold_sink.status import State, TaskStatus

_ALIVE_S: Final = 10.0
_MISCONFIGURED: Final = ConfigError.exit_code


class TasksFailed(KeyfoldError):
    """At least one task ended with an error."""


class TasksMisconfigured(TasksFailed, ConfigError):
    """What failed did so for its configuration."""

    def __init__(self, message: str) -> None:
        KeyfoldError.__init__(self, message)
        self.key = "configuration"


class TransactionsOpen(TasksFailed):
    """What failed did so because of open transactions alone."""

    exit_code = TransactionOpen.exit_code


class Supervisor:
    """The tasks of one worker. `run` belongs to the main thread; the properties may be read from any."""

    def __init__(
        self,
        tasks: int,
        spawn: Spawn,
        limits: Limits,
        *,
        clock: Clock,
        random: Random,
        once: bool = False,
        renew: Callable[[], None] = lambda: None,
        heard: Callable[[TaskStatus], None] = lambda _status: None,
        seen: Callable[[tuple[TaskStatus, ...], Mapping[str, int]], None] = lambda _tasks, _replaced: None,
    ) -> None:
        """`once`: tasks end by themselves, and none is started again.

        `renew` is called where all that is known is to be looked up anew; it must not wait. `heard` is told each report
        of a task as it comes, `seen` once a round all tasks and `replaced`.
        """
        self._clock = clock
        self._limits = limits
        self._renew = renew
        self._seen = seen
        self._replaced: Counter[str] = Counter()
        self._round_s = clock.monotonic_s()
        self._done: Orders | None = None
        self._levels: Levels = ()
        self._levels_lock = threading.Lock()
        self._children = [
            Child(number, spawn, limits, clock=clock, random=random, heard=heard, replaced=self._count, once=once)
            for number in range(tasks)
        ]

    @property
    def tasks(self) -> tuple[TaskStatus, ...]:
        """What is known of each task that is there."""
        found = (child.status for child in self._children)
        return tuple(status for status in found if status is not None)

    @property
    def replaced(self) -> Mapping[str, int]:
        """How often tasks were started again without being asked, by cause."""
        return {why.value: self._replaced[why.value] for why in Replaced}

    @property
    def orders_version(self) -> int:
        """The newest orders that were carried out, or passed on to the tasks."""
        return 0 if self._done is None else self._done.version

    @property
    def is_alive(self) -> bool:
        """Whether the loop goes round."""
        return self._clock.monotonic_s() - self._round_s < _ALIVE_S

    def has_live_tasks(self) -> bool:
        """Whether a process of any task is there."""
        return any(child.is_live for child in self._children)

    def set_log_level(self, logger: str, level: str) -> None:
        """Have all tasks, also those to come, log at a level (`keyfold.logs.set_level`). From any thread."""
        with self._levels_lock:
            kept = (one for one in self._levels if logger and one[0] != logger and not one[0].startswith(f"{logger}."))
            self._levels = (*kept, (logger, level))

    # The work

    def run(
        self,
        newest: Callable[[], Orders | None],
        worker_id: Callable[[], str],
        stop: threading.Event,
        *,
        ends_when_failed: bool,
    ) -> None:
        """Follow orders until `stop` is set, or where it `ends_when_failed`, until every task has failed.

        Nothing is started before `newest` has an answer. Raises `TasksFailed` when a task did not end well.
        """
        with self._nobody_left():
            while not stop.is_set() and not (ends_when_failed and self.all_failed):
                orders = newest()
                if orders is not None:
                    self.follow(orders, worker_id())
                self.step()
                self._clock.sleep(self._limits.round_s)
            self.end()

    def run_once(self, stop: threading.Event) -> None:
        """Start all tasks and wait until each has ended by itself. Raises `TasksFailed` when one did not end well."""
        with self._nobody_left():
            for child in self._children:
                child.run(paused=False)
            while not stop.is_set() and self.has_live_tasks():
                self.step()
                self._clock.sleep(self._limits.round_s)
            self.end()

    def follow(self, orders: Orders, worker_id: str) -> None:
        """Carry out what is new. The first orders that are seen only say how it is to be: all else was before."""
        if self._done is not None and orders.version <= self._done.version:
            return
        todo = to_do(self._done or orders, orders, worker_id)
        renews = any(asked.scope is Scope.CONNECTOR for asked in todo.restarts)
        if renews:
            self._renew()
        for child in self._children:
            if todo.state is State.STOPPED:
                child.halt()
                continue
            if any(_means(asked, child) for asked in todo.restarts):
                child.restart()
            child.run(paused=todo.state is State.PAUSED)
            if todo.flush:
                child.flush()
            if renews:
                child.renew()
        self._done = orders

    def step(self) -> None:
        """One round."""
        for child in self._children:
            child.step()
            child.log(self._levels)
        self._seen(self.tasks, self.replaced)
        self._round_s = self._clock.monotonic_s()

    @property
    def all_failed(self) -> bool:
        """Whether every task has ended with an error of its own, or is left with partitions that have all failed."""
        return all(child.phase is Phase.FAILED or _has_nothing_left(child.status) for child in self._children)

    def end(self) -> None:
        """Let all tasks flush and end, and wait for it. Raises `TasksFailed`."""
        failed = {child.number: child for child in self._children if child.phase is Phase.FAILED}
        for child in self._children:
            child.halt()
        while self.has_live_tasks():
            self.step()
            self._clock.sleep(self._limits.round_s)
        failed |= {child.number: child for child in self._children if child.exit_code}
        if failed:
            raise _failure([child for _, child in sorted(failed.items())], len(self._children))

    @contextmanager
    def _nobody_left(self) -> Iterator[None]:
        """Whatever ends the work (a second Ctrl-C): no task goes on without it."""
        try:
            yield
        finally:
            for child in self._children:
                child.kill()

    def _count(self, why: Replaced) -> None:
        self._replaced[why.value] += 1


def _means(asked: Restart, child: Child) -> bool:
    """Whether a restart is meant for this task. Those of other workers were left out before."""
    match asked.scope:
        case Scope.ALL:
            return True
        case Scope.FAILED:
            return child.has_failed
        case Scope.ONE:
            return asked.task == child.number
        case Scope.CONNECTOR:
            return False


def _has_nothing_left(status: TaskStatus | None) -> bool:
    partitions = () if status is None else status.partitions
    return bool(partitions) and all(partition.state is State.FAILED for partition in partitions)


def _failure(failed: Sequence[Child], tasks: int) -> TasksFailed:
    """What has failed, in the tasks' own words."""
    each = "; ".join(f"task {child.number}: {child.last_words}" for child in failed)
    message = failed[0].last_words if tasks == 1 else f"{len(failed)} of {tasks} tasks failed: {each}"
    codes = {child.exit_code for child in failed}
    if codes == {TransactionsOpen.exit_code}:
        return TransactionsOpen(failed[0].last_words)  # every task looks at all partitions
    return TasksMisconfigured(message) if codes == {_MISCONFIGURED} else TasksFailed(message)
