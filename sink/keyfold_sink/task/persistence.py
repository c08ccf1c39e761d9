"""Asking what must be answered before a task can begin, for as long as it takes.

The call is made on another thread, so that a request that hangs holds up neither the signs of life nor the order to
stop. A call that hangs for longer than any time-out can explain is a defect: then nothing more is said, and whoever
listens for signs of life does what he does about a task that hangs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final, TypeVar

import structlog

from keyfold.backoff import Backoff
from keyfold.clock import Clock
from keyfold.errors import KeyfoldError
from keyfold_sink.status import State
from keyfold_sink.task.report import Voice
from keyfold_sink.writing.senders import Senders

T = TypeVar("T")

_DELAYS: Final = Backoff(first_ms=200, cap_ms=10_000)
_LOOK_S: Final = 0.1


class Stopped(Exception):
    """Told to stop before there was anything to do."""


@dataclass(slots=True)
class Persistence:
    """Calls until there is an answer, and says meanwhile what it waits for."""

    stop: threading.Event
    voice: Voice
    clock: Clock
    random: Random
    hangs_after_s: float = 600.0
    """A call that takes longer than this hangs; no time-out of a client explains it."""
    _words: str = ""
    _caller: Senders = field(default_factory=lambda: Senders(1))

    def __call__(self, call: Callable[[], T]) -> T:
        """Raises `Stopped` when told to stop meanwhile, and what is not retriable."""
        for delay_s in _DELAYS.delays_s(self.random):
            try:
                return self._answer(call)
            except KeyfoldError as error:
                if not error.retriable:
                    raise
                structlog.get_logger("keyfold.sink").warning("waiting for an answer", error=str(error))
                self._words = f"waiting for an answer: {error}"
                self.voice.say(State.UNASSIGNED, self._words)
            if self.stop.wait(delay_s):
                break
        raise Stopped

    def end(self) -> None:
        """Wait for nothing that still hangs."""
        self._caller.shutdown(wait=False)

    def _answer(self, call: Callable[[], T]) -> T:
        hangs_at_s = self.clock.monotonic_s() + self.hangs_after_s
        future = self._caller.submit(call)
        while True:
            try:
                return future.result(_LOOK_S)
            except TimeoutError:
                if future.done():  # it is the call's own
                    raise
            if self.stop.is_set():
                raise Stopped
            if self.voice.is_due() and self.clock.monotonic_s() < hangs_at_s:
                self.voice.say(State.UNASSIGNED, self._words)
