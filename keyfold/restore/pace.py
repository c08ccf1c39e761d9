"""How fast a restore may go: records and bytes a second, over all partitions together (`keyfold.rate_limit`)."""

from __future__ import annotations

from keyfold.clock import Clock
from keyfold.rate_limit import RateLimit


class Pace:
    """A limit of records a second, of bytes a second, of both, or none."""

    def __init__(self, clock: Clock, *, records_per_s: float | None = None, bytes_per_s: float | None = None) -> None:
        self._limit = RateLimit(clock)
        self._costs = (1 / records_per_s if records_per_s else 0.0, 1 / bytes_per_s if bytes_per_s else 0.0)

    @property
    def is_free(self) -> bool:
        """Whether there is no limit at all."""
        return self._costs == (0.0, 0.0)

    def take(self, n_records: int, n_bytes: int) -> float:
        """Book so much; seconds to wait before it may go out."""
        return self._limit.reserve(max(n_records * self._costs[0], n_bytes * self._costs[1]))
