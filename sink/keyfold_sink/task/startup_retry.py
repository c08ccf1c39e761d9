"""Retry the requests that must succeed before a task can begin, until they do.

Each call runs on another thread, so that a request that hangs delays neither reports nor the stop command. A call that
hangs for longer than any time-out explains is a defect. Then the reports end, and the supervisor replaces the task as
it replaces any task that hangs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final, TypeVar

import structlog

from keyfold.errors import KeyfoldError
from keyfold.runtime.clock import Clock
from keyfold.runtime.retry import Backoff
from keyfold_sink.status import RunState
from keyfold_sink.task.report import StatusReporter
from keyfold_sink.write.io_pool import IoPool

T = TypeVar("T")

_DELAYS: Final = Backoff(first_ms=200, cap_ms=10_000)
_LOOK_S: Final = 0.1


class StoppedAtStartup(Exception):
    """The task was stopped before it had begun."""


@dataclass(slots=True)
class StartupRetry:
    """Retry a call until it succeeds, and report the reason for waiting."""

    stop: threading.Event
    reporter: StatusReporter
    clock: Clock
    random: Random
    hangs_after_s: float = 600.0
    """A call that takes longer than this hangs; it exceeds the time-outs of all clients."""
    _words: str = ""
    _caller: IoPool = field(default_factory=lambda: IoPool(1))

    def __call__(self, call: Callable[[], T]) -> T:
        """Call until it succeeds. Raise `StoppedAtStartup` after a stop command, and errors that are not retriable."""
        for delay_s in _DELAYS.delays_s(self.random):
            try:
                return self._answer(call)
            except KeyfoldError as error:
                if not error.retriable:
                    raise
                structlog.get_logger("keyfold.sink").warning("waiting for an answer", error=str(error))
                self._words = f"waiting for an answer: {error}"
                self.reporter.send_state(RunState.UNASSIGNED, self._words)
            if self.stop.wait(delay_s):
                break
        raise StoppedAtStartup

    def end(self) -> None:
        """Stop without waiting for calls that hang."""
        self._caller.shutdown(wait=False)

    def _answer(self, call: Callable[[], T]) -> T:
        hangs_at_s = self.clock.monotonic_s() + self.hangs_after_s
        future = self._caller.submit(call)
        while True:
            try:
                return future.result(_LOOK_S)
            except TimeoutError:
                if future.done():  # the call itself raised `TimeoutError`
                    raise
            if self.stop.is_set():
                raise StoppedAtStartup
            if self.reporter.is_due() and self.clock.monotonic_s() < hangs_at_s:
                self.reporter.send_state(RunState.UNASSIGNED, self._words)
