"""Figures over the last while, as Kafka's own metrics have them: rates, means, maxima over two samples of 30 seconds.

A sample that is full gives way to the next, and what is older than both does not count. So a figure covers between 30
and 60 seconds, and goes away when nothing happens any more.
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
    """What was recorded lately. Not thread-safe."""

    def __init__(self, now_s: float) -> None:
        self._before: _Sample | None = None
        self._current = _Sample(now_s)

    def record(self, value: float, now_s: float) -> None:
        """Note one value, not negative."""
        self.add(1, value, value, now_s)

    def add(self, count: int, total: float, largest: float, now_s: float) -> None:
        """Note so many values at once: their sum, and the largest of them."""
        self._turn(now_s)
        sample = self._current
        sample.count += count
        sample.total += total
        sample.largest = max(sample.largest, largest)

    def mean(self, now_s: float) -> float | None:
        """Mean of the values; None where there are none."""
        samples = self._samples(now_s)
        count = sum(s.count for s in samples)
        return sum(s.total for s in samples) / count if count else None

    def largest(self, now_s: float) -> float | None:
        """The largest value; None where there are none."""
        samples = [s for s in self._samples(now_s) if s.count]
        return max((s.largest for s in samples), default=None)

    def rate(self, now_s: float) -> float:
        """Sum of the values a second; a sink that has just begun counts as if it had been idle before, as in Kafka."""
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
