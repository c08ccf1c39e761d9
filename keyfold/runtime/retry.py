"""Retries of a call until it is answered or times out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, TypeVar

from keyfold.errors import KeyfoldError
from keyfold.runtime.backoff import Backoff
from keyfold.runtime.clock import Clock

T = TypeVar("T")

DEFAULT_BACKOFF: Final = Backoff()


@dataclass(frozen=True, slots=True)
class Patience:
    """Delays between retries and the time limit for all of them."""

    clock: Clock
    random: Random
    backoff: Backoff = DEFAULT_BACKOFF
    patience_s: float = 60.0

    def repeat(self, call: Callable[[], T]) -> T:
        """Call until it returns or raises an error that is not retriable; raise the last error at the time limit."""
        deadline_s = self.clock.monotonic_s() + self.patience_s
        for delay_s in self.backoff.delays_s(self.random):
            try:
                return call()
            except KeyfoldError as error:
                if not error.retriable or self.clock.monotonic_s() + delay_s > deadline_s:
                    raise
            self.clock.sleep(delay_s)
        raise AssertionError  # the delays never end
