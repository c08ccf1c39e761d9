"""Delays between retries: exponential, with jitter, reset by a success.

The caller passes in the random numbers, sleeps, and decides when to give up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays between `first_ms` and `cap_ms`, doubling, each drawn from the upper half of its step."""

    first_ms: int = 100
    cap_ms: int = 60_000

    def delays_s(self, random: Random) -> Iterator[float]:
        """Endless delays in seconds."""
        step_ms = float(self.first_ms)
        while True:
            yield step_ms * (0.5 + random.random() / 2) / 1000
            step_ms = min(step_ms * 2, self.cap_ms)
