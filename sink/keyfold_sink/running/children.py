"""One task of a worker: its process, and in which state it is. Decides by itself; the process is behind a protocol.

    DOWN ──run──► UP ──halt, restart──► ENDING ──► DOWN, or UP anew
                  │ ▲
      it crashed, │ │ after a while that grows
      or hung     ▼ │
                WAITING             UP ──it ended with an error of its own──► FAILED ──restart──► UP

A task that a signal or a defect has ended is started again: after a second, then later and later, from the beginning
once it has run for a minute. One that says itself why it cannot go on stays FAILED, with its words as the trace, until
somebody asks for a restart: it would end the same way. One that makes no report for `hang_s` cannot be talked to any
more: it is asked for its stack (SIGQUIT, see `keyfold_sink.cli`), then ended by SIGKILL.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from typing import Final, Protocol

import structlog

from keyfold.backoff import Backoff
from keyfold.clock import Clock
from keyfold_sink.status import UNKNOWN, State, TaskStatus, load_task
from keyfold_sink.task.orders import Order
from keyfold_sink.wire import encode_level, encode_order

STOP_SLACK_S: Final = 15.0
"""Beyond the time that a task may flush: until it notices, and until it has left its group."""
_ROUNDS_IN_SILENCE: Final = 4
SETTLED_AFTER_S: Final = 60.0
_DELAYS: Final = Backoff(first_ms=1000, cap_ms=60_000)
_SAID_FAILED: Final = frozenset({1, 2, 3})  # exit codes of a `KeyfoldError` (keyfold.cli.app)


class Process(Protocol):
    """A task's process as its supervisor sees it. No call waits."""

    @property
    def pid(self) -> int:
        """Its id."""

    def send(self, line: bytes) -> None:
        """Put a line on its stdin, when there is room."""

    def take(self) -> list[bytes]:
        """The lines that it has reported since the last call."""

    def poll(self) -> int | None:
        """Its exit code when it has ended (negative: a signal's number)."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; one that has ended is no error."""

    def close(self) -> None:
        """Let go of what belongs to it here."""


Spawn = Callable[[int, bool], Process]
"""(number, whether it begins paused) -> its process, started."""


class Replaced(Enum):
    """Why a task was started again without being asked."""

    CRASHED = "crashed"
    HUNG = "hung"


class Phase(Enum):
    """See the module."""

    DOWN = "down"
    UP = "up"
    ENDING = "ending"
    HUNG = "hung"
    WAITING = "waiting"
    FAILED = "failed"


_LISTENING: Final = frozenset({Phase.UP, Phase.HUNG})  # one that hangs may come to itself yet


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a task may be silent, how long it may take to stop, and when it is looked at and started again."""

    hang_s: float
    stop_s: float
    stack_grace_s: float = 1.0
    """A task that hangs has this long to write its stack before it is killed."""
    delays: Backoff = _DELAYS
    """The delays before a task that crashed or hung is started again."""
    round_s: float = 0.1
    """The supervisor looks at its tasks this often."""


Levels = tuple[tuple[str, str], ...]
"""Loggers and their levels, those above before those below."""


class Child:
    """One task. Used by the supervisor's loop alone; only `status` may be read from elsewhere."""

    def __init__(
        self,
        number: int,
        spawn: Spawn,
        limits: Limits,
        *,
        clock: Clock,
        random: Random,
        heard: Callable[[TaskStatus], None] = lambda _status: None,
        replaced: Callable[[Replaced], None] = lambda _why: None,
        once: bool = False,
    ) -> None:
        self.number = number
        self.phase = Phase.DOWN
        self.status: TaskStatus | None = None
        self.exit_code: int | None = None
        self.last_words = ""
        self._spawn = spawn
        self._limits = limits
        self._clock = clock
        self._random = random
        self._heard = heard
        self._replaced = replaced
        self._once = once
        self._process: Process | None = None
        self._levels: Levels = ()
        self._wanted = False
        self._paused = False
        self._started_s = self._round_s = clock.monotonic_s()
        self._silent_s = 0.0
        self._act_at_s = 0.0
        self._delays: Iterator[float] | None = None
        self._events = structlog.get_logger("keyfold.sink").bind(task=number)

    @property
    def is_live(self) -> bool:
        """Whether a process of it is there."""
        return self._process is not None

    # What is wanted of it

    def run(self, *, paused: bool) -> None:
        """It is to be up, reading or paused. FAILED stays FAILED."""
        changed = self._paused != paused
        self._wanted, self._paused = True, paused
        if self.phase is Phase.DOWN:
            self._start()
        elif self.phase in _LISTENING and changed:
            self._tell(Order.PAUSE if paused else Order.RESUME)

    def halt(self) -> None:
        """It is to flush and end."""
        self._wanted = False
        if self.phase in _LISTENING:
            self._end()
        elif not self.is_live:
            self._down()

    def restart(self) -> None:
        """Start it anew if it is wanted at all; at once, also when it has failed or waits."""
        if not self._wanted:
            return
        self._delays = None
        if self.phase in _LISTENING:
            self._end()
        elif self.phase in {Phase.WAITING, Phase.FAILED}:
            self._start()

    def flush(self) -> None:
        """It is to finish and commit what it has read."""
        if self.phase in _LISTENING:
            self._tell(Order.FLUSH)

    def renew(self) -> None:
        """It is to look up anew what it knows of others: credentials, topics, their settings."""
        if self.phase in _LISTENING:
            self._tell(Order.RENEW)

    def log(self, levels: Levels) -> None:
        """It is to log at these levels, told in their order; whoever has just started does not know them yet."""
        if self.phase is Phase.UP and levels != self._levels:
            assert self._process is not None
            for logger, level in levels:
                self._process.send(encode_level(logger, level))
            self._levels = levels

    @property
    def has_failed(self) -> bool:
        """Whether a restart of what has failed means this one."""
        failed = self.status is not None and self.status.state is State.FAILED
        return self.phase in {Phase.FAILED, Phase.WAITING} or failed

    def kill(self) -> None:
        """End it now; nothing is lost."""
        if self._process is not None:
            self._process.signal(signal.SIGKILL)
            self._process.close()
            self._process = None

    # What happens to it

    def step(self) -> None:
        """Read what it reports and see to its process."""
        now_s = self._clock.monotonic_s()
        # Where the supervisor itself was kept from running (a frozen container), its tasks were so too.
        self._silent_s += min(now_s - self._round_s, self._limits.hang_s / _ROUNDS_IN_SILENCE)
        self._round_s = now_s
        if self.phase is Phase.WAITING and now_s >= self._act_at_s:
            self._start()
        process = self._process
        if process is None:
            return
        code = process.poll()
        for line in process.take():  # after the poll: all that it said before it ended
            self._hear(line, now_s)
        if code is not None:
            self._ended(process, code)
        elif self.phase is Phase.UP and self._silent_s >= self._limits.hang_s:
            self._hangs(process, now_s)
        elif self.phase in {Phase.ENDING, Phase.HUNG} and now_s >= self._act_at_s:
            self._act_at_s = now_s + self._limits.stop_s
            process.signal(signal.SIGKILL)

    def _start(self) -> None:
        before = self.status
        try:
            process = self._process = self._spawn(self.number, self._paused)
        except OSError as error:  # no memory, no more processes: perhaps later
            self._later(f"it cannot be started: {error}", Replaced.CRASHED)
            return
        self.phase = Phase.UP
        self.exit_code = None
        self._levels = ()
        self._started_s = self._clock.monotonic_s()
        self._silent_s = 0.0
        self.status = TaskStatus(
            self.number,
            State.UNASSIGNED if before is None else State.RESTARTING,
            pid=process.pid,
            started_ms=self._clock.now_ms(),
            reported_ms=self._clock.now_ms(),
        )

    def _end(self) -> None:
        patience_s = self._limits.stack_grace_s if self.phase is Phase.HUNG else self._limits.stop_s
        self.phase = Phase.ENDING
        self._act_at_s = self._clock.monotonic_s() + patience_s
        self._tell(Order.STOP)
        assert self._process is not None
        self._process.signal(signal.SIGTERM)  # while it starts it does not listen to orders yet

    def _tell(self, order: Order) -> None:
        assert self._process is not None
        self._process.send(encode_order(order))

    def _hear(self, line: bytes, now_s: float) -> None:
        try:
            status = load_task(line)
        except ValueError as error:
            self._events.warning("a task's report cannot be read", error=str(error)[:200])
            return
        self._silent_s = 0.0
        if self.phase is Phase.HUNG:  # it was only slow
            self.phase = Phase.UP
        if self._delays is not None and now_s - self._started_s >= SETTLED_AFTER_S:
            self._delays = None
        self.status = replace(status, number=self.number)
        self._heard(self.status)

    def _hangs(self, process: Process, now_s: float) -> None:
        self._events.error("task hangs and is replaced", silent_s=round(self._silent_s, 1), pid=process.pid)
        self.phase = Phase.HUNG
        self._act_at_s = now_s + self._limits.stack_grace_s
        process.signal(signal.SIGQUIT)

    def _ended(self, process: Process, code: int) -> None:
        process.close()
        self._process = None
        self.exit_code = code
        was_told = self.phase is Phase.ENDING
        if was_told and code == -signal.SIGTERM:
            self.exit_code = 0  # it was told to stop before it could listen: nothing was begun
        said_failed = self.status is not None and self.status.state is State.FAILED and code in _SAID_FAILED
        self.last_words = self.status.trace if said_failed and self.status else f"its process ended: {words(code)}"
        if was_told and self._wanted:
            self._start()
        elif not self._wanted:
            self._down()
        elif self._once:
            self._once_ended(code)
        elif said_failed and self.phase is Phase.UP:
            self.phase = Phase.FAILED
            assert self.status is not None
            self.status = replace(self.status, partitions=(), pid=UNKNOWN)
        else:
            silent = f", silent for {self._silent_s:.0f} s" if self.phase is Phase.HUNG else ""
            why = Replaced.HUNG if self.phase is Phase.HUNG else Replaced.CRASHED
            self._later(f"the task's process ended: {words(code)}{silent}", why)

    def _once_ended(self, code: int) -> None:
        """A task that ends by itself, once: caught up, or failed."""
        self.phase = Phase.DOWN if code == 0 else Phase.FAILED
        if code not in {0, *_SAID_FAILED}:
            self._events.error("task failed", error=self.last_words)

    def _later(self, what: str, why: Replaced) -> None:
        self.phase = Phase.WAITING
        self.exit_code = None
        self._delays = self._delays or self._limits.delays.delays_s(self._random)
        delay_s = next(self._delays)
        self._act_at_s = self._clock.monotonic_s() + delay_s
        trace = f"{what}; it is started again in {delay_s:.0f} s"
        self.status = TaskStatus(self.number, State.RESTARTING, trace, reported_ms=self._clock.now_ms())
        self._replaced(why)
        self._events.warning("task is started again", why=what, after_s=round(delay_s, 1))

    def _down(self) -> None:
        self.phase = Phase.DOWN
        self.status = None
        self._delays = None


def words(code: int) -> str:
    """How a process ended."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal
        return f"ended by signal {-code}"
