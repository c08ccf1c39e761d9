"""Log levels set over REST reach a worker's present and later tasks."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from random import Random

import orjson
import pytest

from keyfold.runtime import event_log
from keyfold.runtime.clock import ManualClock
from keyfold_sink.status import RunState, TaskStatus, dump
from keyfold_sink.task.commands import TaskCommand
from keyfold_sink.worker import desired_state
from keyfold_sink.worker.desired_state import DesiredState
from keyfold_sink.worker.supervisor import Supervisor
from keyfold_sink.worker.task_process import TaskLimits
from keyfold_sink.worker.wire import encode_command, encode_level, follow_commands

LOGGER = "keyfold.levels.of.tasks"


@pytest.fixture(autouse=True)
def _level_stays() -> Iterator[None]:
    yield
    for name in (LOGGER, f"{LOGGER}.child"):
        logging.getLogger(name).setLevel(logging.NOTSET)


class Quiet:
    """A task's process that records the lines sent to it."""

    pid = 7

    def __init__(self) -> None:
        self.sent: list[dict[str, str]] = []
        self.code: int | None = None

    def send(self, line: bytes) -> None:
        self.sent.append(orjson.loads(line))

    def take_lines(self) -> list[bytes]:
        return [dump(TaskStatus(0, RunState.RUNNING))] if self.code is None else []

    def poll(self) -> int | None:
        return self.code

    def signal(self, number: signal.Signals) -> None:
        self.code = -number

    def close(self) -> None:
        pass


class Bench:
    """A supervisor whose tasks send no reports."""

    def __init__(self, tasks: int = 1) -> None:
        self.clock = ManualClock()
        self.started: list[Quiet] = []
        self.supervisor = Supervisor(tasks, self._spawn, TaskLimits(300, 40), clock=self.clock, random=Random(0))
        self.supervisor.follow(DesiredState(1), "me")
        self.supervisor.advance_tasks()

    def _spawn(self, _number: int, _paused: bool) -> Quiet:
        self.started.append(Quiet())
        return self.started[-1]


def level(logger: str, name: str) -> dict[str, str]:
    return {"logger": logger, "level": name}


def test_every_task_gets_a_level_once() -> None:
    bench = Bench(2)
    bench.supervisor.set_log_level(LOGGER, "DEBUG")
    for _ in range(3):
        bench.supervisor.advance_tasks()
    assert [task.sent for task in bench.started] == [[level(LOGGER, "DEBUG")]] * 2


def test_a_restarted_task_gets_the_levels_again() -> None:
    bench = Bench()
    bench.supervisor.set_log_level(LOGGER, "DEBUG")
    bench.supervisor.advance_tasks()
    bench.started[0].code = 1
    for _ in range(5):
        bench.clock.advance(60_000)
        bench.supervisor.advance_tasks()
    assert len(bench.started) == 2
    assert bench.started[1].sent == [level(LOGGER, "DEBUG")]


def test_tasks_of_a_stopped_sink_get_the_levels_when_they_start() -> None:
    bench = Bench()
    bench.supervisor.follow(
        desired_state._next(DesiredState(1), desired_state.target(RunState.STOPPED)(DesiredState(1)), "a"), "me"
    )
    bench.supervisor.advance_tasks()
    bench.supervisor.set_log_level(LOGGER, "DEBUG")
    bench.supervisor.advance_tasks()
    bench.supervisor.follow(
        desired_state._next(DesiredState(2), desired_state.target(RunState.RUNNING)(DesiredState(2)), "b"), "me"
    )
    bench.supervisor.advance_tasks()
    assert bench.started[-1].sent == [level(LOGGER, "DEBUG")]
    assert len(bench.started) == 2


def test_only_effective_levels_are_sent_to_later_tasks() -> None:
    bench = Bench(0)
    for logger, name in (
        ("a.b", "INFO"),
        ("a.bc", "WARN"),
        ("x", "OFF"),
        ("a.b", "DEBUG"),
        ("a", "ERROR"),
        ("a.b", "INFO"),
    ):
        bench.supervisor.set_log_level(logger, name)
    assert bench.supervisor._levels == (("x", "OFF"), ("a", "ERROR"), ("a.b", "INFO"))
    bench.supervisor.set_log_level("", "WARN")
    assert list(bench.supervisor._levels) == [("", "WARN")]


def test_a_task_sets_the_level_and_continues_to_follow_commands() -> None:
    child = event_log.get_logger(f"{LOGGER}.child")
    child.debug("made")
    commands_fd, ours = os.pipe()
    given: list[TaskCommand] = []
    ended = threading.Event()

    def give(command: TaskCommand) -> None:
        given.append(command)
        if command is TaskCommand.STOP:
            ended.set()

    try:
        follow_commands(commands_fd, give)
        os.write(
            ours,
            encode_level(LOGGER, "ERROR") + encode_level(LOGGER, "LOUD") + b"[]\n" + encode_command(TaskCommand.FLUSH),
        )
    finally:
        os.close(ours)
    assert ended.wait(60)
    os.close(commands_fd)
    assert given == [TaskCommand.FLUSH, TaskCommand.STOP]
    assert logging.getLogger(f"{LOGGER}.child").getEffectiveLevel() == logging.ERROR
