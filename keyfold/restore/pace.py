"""Rate limit of a restore: records and bytes per second, over all partitions together (`runtime.rate_limit`)."""

from __future__ import annotations

from keyfold.runtime.clock import Clock
from keyfold.runtime.rate_limit import RateLimit


class Pace:
    """A limit of records per second, of bytes per second, of both, or none."""

    def __init__(self, clock: Clock, *, records_per_s: float | None = None, bytes_per_s: float | None = None) -> None:
        self._limit = RateLimit(clock)
        self._costs = (1 / records_per_s if records_per_s else 0.0, 1 / bytes_per_s if bytes_per_s else 0.0)

    @property
    def is_free(self) -> bool:
        """Whether there is no limit."""
        return self._costs == (0.0, 0.0)

    def reserve(self, n_records: int, n_bytes: int) -> float:
        """Book records and bytes; return the seconds to wait before they may be sent."""
        return self._limit.reserve(max(n_records * self._costs[0], n_bytes * self._costs[1]))
