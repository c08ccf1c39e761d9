"""One task of a worker: its process and its state machine. The process is behind a protocol.

    DOWN ──run──► UP ──halt, restart──► ENDING ──► DOWN, or UP again
                  │ ▲
      it crashed, │ │ after a growing delay
      or hung     ▼ │
                WAITING             UP ──it reported an error and ended──► FAILED ──restart──► UP

A task that a signal or an unexpected exception has ended is restarted after a delay. The delay begins at a second,
grows with each restart, and begins again once the task has run for a minute. A task that reports an error and ends
stays FAILED, with the error as its trace, until a restart is requested: it would fail again in the same way. A task
that sends no report for `hang_s` hangs. It gets SIGQUIT to print its stacks (see `task_main`), then SIGKILL. The next
process has twice as long until its first report: on a busy machine tasks may need that long to start, and replacing
them at the same age again and again would keep them from ever running.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from typing import Final, Protocol

import structlog

from keyfold.runtime.clock import Clock
from keyfold.runtime.retry import Backoff
from keyfold_sink.status import UNKNOWN, RunState, TaskStatus, load_task
from keyfold_sink.task.commands import TaskCommand
from keyfold_sink.worker.wire import encode_command, encode_level

STOP_SLACK_S: Final = 15.0
"""Extra time to stop, beyond the time to flush: until the task notices the command, and to leave its group."""
_ROUNDS_IN_SILENCE: Final = 4
SETTLED_AFTER_S: Final = 60.0
_LONGEST_START: Final = 8
"""How many times `hang_s` a process may take at most until its first report."""
_DELAYS: Final = Backoff(first_ms=1000, cap_ms=60_000)
_SAID_FAILED: Final = frozenset({1, 2, 3})  # exit codes of a `KeyfoldError` (keyfold.cli.app)


class ProcessHandle(Protocol):
    """A task's process, for its supervisor. No call blocks."""

    @property
    def pid(self) -> int:
        """The process id."""

    def send(self, line: bytes) -> None:
        """Write a line to the task's stdin, as soon as the pipe has room."""

    def take_lines(self) -> list[bytes]:
        """Return the lines that the task has reported since the last call."""

    def poll(self) -> int | None:
        """Return the exit code if the process has ended (negative: the number of a signal)."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal. A process that has ended is not an error."""

    def close(self) -> None:
        """Close the pipes, and reap the process."""


Spawn = Callable[[int, bool], ProcessHandle]
"""Start the process of a task, given its number and whether it starts paused."""


class ReplaceReason(Enum):
    """Why a task was replaced without a request."""

    CRASHED = "crashed"
    HUNG = "hung"


class TaskPhase(Enum):
    """The states in the module's diagram; HUNG is UP without reports."""

    DOWN = "down"
    UP = "up"
    ENDING = "ending"
    HUNG = "hung"
    WAITING = "waiting"
    FAILED = "failed"


_LISTENING: Final = frozenset({TaskPhase.UP, TaskPhase.HUNG})  # a task that hangs may still resume


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """Time limits for a task's reports and its stop, and the intervals of checks and restarts."""

    hang_s: float
    stop_s: float
    stack_grace_s: float = 1.0
    """Time for a task that hangs to print its stacks before it is killed."""
    delays: Backoff = _DELAYS
    """The delays before a task that crashed or hung is restarted."""
    round_s: float = 0.1
    """Interval of the supervisor's checks of its tasks."""


Levels = tuple[tuple[str, str], ...]
"""Loggers and their levels, parents before children."""


class SupervisedTask:
    """One task. Only the supervisor's loop uses it; other threads may only read `status`."""

    def __init__(
        self,
        number: int,
        spawn: Spawn,
        limits: TaskLimits,
        *,
        clock: Clock,
        random: Random,
        on_status: Callable[[TaskStatus], None] = lambda _status: None,
        replaced: Callable[[ReplaceReason], None] = lambda _why: None,
        once: bool = False,
    ) -> None:
        self.number = number
        self.phase = TaskPhase.DOWN
        self.status: TaskStatus | None = None
        self.exit_code: int | None = None
        self.last_words = ""
        self._spawn = spawn
        self._limits = limits
        self._clock = clock
        self._random = random
        self._on_status = on_status
        self._replaced = replaced
        self._once = once
        self._process: ProcessHandle | None = None
        self._levels: Levels = ()
        self._wanted = False
        self._paused = False
        self._started_s = self._round_s = clock.monotonic_s()
        self._silent_s = 0.0
        self._longest_silence_s = limits.hang_s
        self._act_at_s = 0.0
        self._delays: Iterator[float] | None = None
        self._events = structlog.get_logger("keyfold.sink").bind(task=number)

    @property
    def is_live(self) -> bool:
        """Whether the task has a process."""
        return self._process is not None

    # Requests

    def run(self, *, paused: bool) -> None:
        """Request that the task runs, reading or paused. A FAILED task stays FAILED."""
        changed = self._paused != paused
        self._wanted, self._paused = True, paused
        if self.phase is TaskPhase.DOWN:
            self._start()
        elif self.phase in _LISTENING and changed:
            self._send_command(TaskCommand.PAUSE if paused else TaskCommand.RESUME)

    def halt(self) -> None:
        """Request that the task flushes and ends."""
        self._wanted = False
        if self.phase in _LISTENING:
            self._end()
        elif not self.is_live:
            self._down()

    def restart(self) -> None:
        """Restart the task if it is requested to run; at once, even if it has failed or waits for a restart."""
        if not self._wanted:
            return
        self._delays = None
        if self.phase in _LISTENING:
            self._end()
        elif self.phase in {TaskPhase.WAITING, TaskPhase.FAILED}:
            self._start()

    def flush(self) -> None:
        """Request that the task commits what it has read."""
        if self.phase in _LISTENING:
            self._send_command(TaskCommand.FLUSH)

    def renew(self) -> None:
        """Request that the task looks up again what it has cached: credentials, topics and their settings."""
        if self.phase in _LISTENING:
            self._send_command(TaskCommand.RENEW)

    def log(self, levels: Levels) -> None:
        """Set the log levels of the task in this order. A task that has just started does not know them yet."""
        if self.phase is TaskPhase.UP and levels != self._levels:
            assert self._process is not None
            for logger, level in levels:
                self._process.send(encode_level(logger, level))
            self._levels = levels

    @property
    def has_failed(self) -> bool:
        """Whether a restart of failed tasks includes this task."""
        failed = self.status is not None and self.status.state is RunState.FAILED
        return self.phase in {TaskPhase.FAILED, TaskPhase.WAITING} or failed

    def kill(self) -> None:
        """Kill the process; no record is lost."""
        if self._process is not None:
            self._process.signal(signal.SIGKILL)
            self._process.close()
            self._process = None

    # Events

    def advance(self) -> None:
        """Read the task's reports, and check its process."""
        now_s = self._clock.monotonic_s()
        # If the supervisor itself was suspended (a frozen container), so were its tasks.
        self._silent_s += min(now_s - self._round_s, self._limits.hang_s / _ROUNDS_IN_SILENCE)
        self._round_s = now_s
        if self.phase is TaskPhase.WAITING and now_s >= self._act_at_s:
            self._start()
        process = self._process
        if process is None:
            return
        code = process.poll()
        for line in process.take_lines():  # after the poll, so that the last reports of an ended process are read
            self._read_report(line, now_s)
        if code is not None:
            self._ended(process, code)
        elif self.phase is TaskPhase.UP and self._silent_s >= self._longest_silence_s:
            self._hangs(process, now_s)
        elif self.phase in {TaskPhase.ENDING, TaskPhase.HUNG} and now_s >= self._act_at_s:
            self._act_at_s = now_s + self._limits.stop_s
            process.signal(signal.SIGKILL)

    def _start(self) -> None:
        before = self.status
        try:
            process = self._process = self._spawn(self.number, self._paused)
        except OSError as error:  # no memory or too many processes; retry later
            self._later(f"the task's process cannot be started: {error}", ReplaceReason.CRASHED)
            return
        self.phase = TaskPhase.UP
        self.exit_code = None
        self._levels = ()
        self._started_s = self._clock.monotonic_s()
        self._silent_s = 0.0
        self.status = TaskStatus(
            self.number,
            RunState.UNASSIGNED if before is None else RunState.RESTARTING,
            pid=process.pid,
            started_ms=self._clock.now_ms(),
            reported_ms=self._clock.now_ms(),
        )

    def _end(self) -> None:
        grace_s = self._limits.stack_grace_s if self.phase is TaskPhase.HUNG else self._limits.stop_s
        self.phase = TaskPhase.ENDING
        self._act_at_s = self._clock.monotonic_s() + grace_s
        self._send_command(TaskCommand.STOP)
        assert self._process is not None
        self._process.signal(signal.SIGTERM)  # a task that is starting does not read commands yet

    def _send_command(self, command: TaskCommand) -> None:
        assert self._process is not None
        self._process.send(encode_command(command))

    def _read_report(self, line: bytes, now_s: float) -> None:
        try:
            status = load_task(line)
        except ValueError as error:
            self._events.warning("task report unreadable", error=str(error)[:200])
            return
        self._silent_s = 0.0
        self._longest_silence_s = self._limits.hang_s
        if self.phase is TaskPhase.HUNG:  # the task was only slow
            self.phase = TaskPhase.UP
        if self._delays is not None and now_s - self._started_s >= SETTLED_AFTER_S:
            self._delays = None
        self.status = replace(status, number=self.number)
        self._on_status(self.status)

    def _hangs(self, process: ProcessHandle, now_s: float) -> None:
        self._events.error("task hangs; replacing it", silent_s=round(self._silent_s, 1), pid=process.pid)
        self.phase = TaskPhase.HUNG
        self._longest_silence_s = min(2 * self._longest_silence_s, _LONGEST_START * self._limits.hang_s)
        self._act_at_s = now_s + self._limits.stack_grace_s
        process.signal(signal.SIGQUIT)

    def _ended(self, process: ProcessHandle, code: int) -> None:
        process.close()
        self._process = None
        self.exit_code = code
        was_told = self.phase is TaskPhase.ENDING
        if was_told and code == -signal.SIGTERM:
            self.exit_code = 0  # the task was stopped before it read commands, so it had not begun any work
        said_failed = self.status is not None and self.status.state is RunState.FAILED and code in _SAID_FAILED
        self.last_words = (
            self.status.trace if said_failed and self.status else f"the task's process ended {words(code)}"
        )
        if was_told and self._wanted:
            self._start()
        elif not self._wanted:
            self._down()
        elif self._once:
            self._once_ended(code)
        elif said_failed and self.phase is TaskPhase.UP:
            self.phase = TaskPhase.FAILED
            assert self.status is not None
            self.status = replace(self.status, partitions=(), pid=UNKNOWN)
        else:
            silent = f", silent for {self._silent_s:.0f} s" if self.phase is TaskPhase.HUNG else ""
            why = ReplaceReason.HUNG if self.phase is TaskPhase.HUNG else ReplaceReason.CRASHED
            self._later(f"the task's process ended {words(code)}{silent}", why)

    def _once_ended(self, code: int) -> None:
        """Handle the end of a task that runs once: it has caught up or failed."""
        self.phase = TaskPhase.DOWN if code == 0 else TaskPhase.FAILED
        if code not in {0, *_SAID_FAILED}:
            self._events.error("task failed", error=self.last_words)

    def _later(self, what: str, why: ReplaceReason) -> None:
        self.phase = TaskPhase.WAITING
        self.exit_code = None
        self._delays = self._delays or self._limits.delays.delays_s(self._random)
        delay_s = next(self._delays)
        self._act_at_s = self._clock.monotonic_s() + delay_s
        trace = f"{what}; restarting in {delay_s:.0f} s"
        self.status = TaskStatus(self.number, RunState.RESTARTING, trace, reported_ms=self._clock.now_ms())
        self._replaced(why)
        self._events.warning("restarting task", why=what, after_s=round(delay_s, 1))

    def _down(self) -> None:
        self.phase = TaskPhase.DOWN
        self.status = None
        self._delays = None


def words(code: int) -> str:
    """Describe how a process ended, by its exit code."""
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal
        return f"by signal {-code}"
