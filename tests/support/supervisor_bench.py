"""A supervisor with fake tasks and a manual clock."""

from __future__ import annotations

from random import Random

from keyfold.runtime.clock import ManualClock
from keyfold_sink.status import RunState
from keyfold_sink.worker import desired_state
from keyfold_sink.worker.desired_state import DesiredState
from keyfold_sink.worker.supervisor import Supervisor
from keyfold_sink.worker.task_process import TaskLimits
from tests.support.fake_task import FakeTasks

LIMITS = TaskLimits(hang_s=300, stop_s=40)


class SupervisorBench:
    """A supervisor with fake tasks."""

    def __init__(self, tasks: int = 1, *, once: bool = False) -> None:
        self.clock = ManualClock()
        self.tasks = FakeTasks()
        self.supervisor = Supervisor(tasks, self.tasks, LIMITS, clock=self.clock, random=Random(0), once=once)
        self.commands = DesiredState(1)

    def follow(self, change: desired_state.Change | None = None) -> None:
        if change is not None:
            self.commands = desired_state._next(self.commands, change(self.commands), "id")
        self.supervisor.follow(self.commands, "me")

    def step(self, seconds: float = 0) -> None:
        """Advance the time round by round; the last round is at the end."""
        rounds = min(5, int(seconds) + 1)
        for _ in range(rounds):
            self.clock.advance(round(seconds * 1000) // rounds)
            self.supervisor.advance_tasks()

    @property
    def state(self) -> RunState:
        return self.supervisor.tasks[0].state

    @property
    def states(self) -> list[RunState]:
        return [status.state for status in self.supervisor.tasks]

    @property
    def trace(self) -> str:
        return self.supervisor.tasks[0].trace


def running(tasks: int = 1) -> SupervisorBench:
    bench = SupervisorBench(tasks)
    bench.follow()
    for number in range(tasks):
        bench.tasks.live(number).report()
    bench.step()
    return bench
