"""Rates, means and maxima over two windows of 30 seconds, as in Kafka's own metrics.

A full window is replaced by a new one, and older values do not count. So a value covers between 30 and 60 seconds, and
disappears when nothing happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SAMPLE_S: Final = 30.0


@dataclass(slots=True)
class _Sample:
    started_s: float
    count: int = 0
    total: float = 0.0
    largest: float = 0.0


class Recent:
    """The values recorded in the last two windows. Not thread-safe."""

    def __init__(self, now_s: float) -> None:
        self._before: _Sample | None = None
        self._current = _Sample(now_s)

    def record(self, value: float, now_s: float) -> None:
        """Record one value, which is not negative."""
        self.add(1, value, value, now_s)

    def add(self, count: int, total: float, largest: float, now_s: float) -> None:
        """Record `count` values at once: their sum and the largest of them."""
        self._turn(now_s)
        sample = self._current
        sample.count += count
        sample.total += total
        sample.largest = max(sample.largest, largest)

    def mean(self, now_s: float) -> float | None:
        """Return the mean of the values, None without values."""
        samples = self._samples(now_s)
        count = sum(s.count for s in samples)
        return sum(s.total for s in samples) / count if count else None

    def largest(self, now_s: float) -> float | None:
        """Return the largest value, None without values."""
        samples = [s for s in self._samples(now_s) if s.count]
        return max((s.largest for s in samples), default=None)

    def rate(self, now_s: float) -> float:
        """Return the sum of the values per second. As in Kafka, a sink counts as idle before it began."""
        samples = self._samples(now_s)
        covered_s = max(SAMPLE_S, now_s - samples[0].started_s)
        return sum(s.total for s in samples) / covered_s

    def _samples(self, now_s: float) -> list[_Sample]:
        self._turn(now_s)
        return [self._current] if self._before is None else [self._before, self._current]

    def _turn(self, now_s: float) -> None:
        age_s = now_s - self._current.started_s
        if age_s < SAMPLE_S:
            return
        self._before = self._current if age_s < 2 * SAMPLE_S else None
        self._current = _Sample(now_s)
