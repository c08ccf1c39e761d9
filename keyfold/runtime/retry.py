"""Retries: the delays between attempts, and the limit for all of them.

    Backoff         exponential delays with jitter; drawn one after another, or for a number of failures
    repeat          call until there is an answer; the caller waits, reports failures, and gives up by raising
    RetryPolicy     a clock, random numbers, a backoff and a time limit: `repeat` for callers that just sleep

Only errors of keyfold with `retriable` are retried. Clock and random numbers are arguments, so that tests decide both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final, TypeVar

from keyfold.errors import KeyfoldError
from keyfold.runtime.clock import Clock

T = TypeVar("T")

_DOUBLINGS_MAX: Final = 40


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays between `first_ms` and `cap_ms`, doubling, each drawn from the upper half of its step.

    A caller that keeps an iterator of `delays_s` makes a new one after a success.
    """

    first_ms: int = 100
    cap_ms: int = 60_000

    def delays_s(self, random: Random) -> Iterator[float]:
        """Yield delays in seconds without end."""
        step_ms = float(self.first_ms)
        while True:
            yield step_ms * (0.5 + random.random() / 2) / 1000
            step_ms = min(step_ms * 2, self.cap_ms)

    def step_ms(self, failures: int) -> int:
        """Return the longest delay after this number of failures in a row (at least 1), for callers that count them."""
        # Do not double a big number for each failure of a week: the cap is reached long before.
        return int(min(self.cap_ms, self.first_ms * 2 ** min(failures - 1, _DOUBLINGS_MAX)))


DEFAULT_BACKOFF: Final = Backoff()


def repeat(
    call: Callable[[], T],
    delays_s: Iterable[float],
    wait: Callable[[float], None],
    on_failure: Callable[[KeyfoldError, float], None] | None = None,
) -> T:
    """Call until it returns or raises an error that is not retriable. Between attempts, `wait` for the next delay.

    `on_failure` gets each retriable error and the delay that follows it. It and `wait` end the attempts by raising. If
    the delays end, the last error is raised.
    """
    last: KeyfoldError | None = None
    for delay_s in delays_s:
        try:
            return call()
        except KeyfoldError as error:
            if not error.retriable:
                raise
            if on_failure is not None:
                on_failure(error, delay_s)
            last = error
        wait(delay_s)
    assert last is not None, "there is at least one delay"
    raise last


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Delays between retries and the time limit for all of them; `math.inf` means no limit."""

    clock: Clock
    random: Random
    backoff: Backoff = DEFAULT_BACKOFF
    timeout_s: float = 60.0

    def repeat(self, call: Callable[[], T]) -> T:
        """Call until it returns or raises an error that is not retriable; raise the last error at the time limit."""
        deadline_s = self.clock.monotonic_s() + self.timeout_s

        def require_time(error: KeyfoldError, delay_s: float) -> None:
            if self.clock.monotonic_s() + delay_s > deadline_s:
                raise error

        return repeat(call, self.backoff.delays_s(self.random), self.clock.sleep, require_time)
