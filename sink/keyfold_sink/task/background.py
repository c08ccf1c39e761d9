"""Timers of a task's main loop, and calls on other threads whose results the loop collects later."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from keyfold.errors import KeyfoldError
from keyfold.runtime.clock import Clock
from keyfold_sink.kafka.source import SourceUnavailable


class Timers:
    """Named intervals of periodic work."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_s: dict[str, float] = {}

    def due(self, what: str, interval_s: float) -> bool:
        """Whether the interval has passed since this last returned True. True the first time."""
        now_s = self._clock.monotonic_s()
        if what in self._last_s and now_s - self._last_s[what] < interval_s:
            return False
        self._last_s[what] = now_s
        return True

    def make_due(self, *names: str) -> None:
        """Make these timers due now."""
        for what in names:
            self._last_s.pop(what, None)


class Background:
    """Calls on the I/O threads, at most one of each name at a time."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._calls: dict[str, Future[Any]] = {}

    def start_call(self, what: str, call: Callable[[], object]) -> None:
        """Start a call on another thread, unless one of this name is running."""
        if what not in self._calls:
            self._calls[what] = self._executor.submit(call)

    def take_result(self, what: str) -> Any:
        """Return the result of a finished call, once; None while it runs or if its error is retriable."""
        future = self._calls.get(what)
        if future is None or not future.done():
            return None
        del self._calls[what]
        try:
            return future.result()
        except KeyfoldError as error:
            if not error.retriable and not isinstance(error, SourceUnavailable):
                raise
            return None
