"""How fast a restore may go: records and bytes a second, over all partitions together.

A request is let through as soon as earlier ones are paid for, and idle time is forgotten but for a tenth of a second:
the rate is kept over any second, whichever thread asks.
"""

from __future__ import annotations

import threading
from typing import Final

from keyfold.clock import Clock

_BURST_S: Final = 0.1


class Pace:
    """A limit of records a second, of bytes a second, of both, or none."""

    def __init__(self, clock: Clock, *, records_per_s: float | None = None, bytes_per_s: float | None = None) -> None:
        self._clock = clock
        self._costs = (1 / records_per_s if records_per_s else 0.0, 1 / bytes_per_s if bytes_per_s else 0.0)
        self._paid_s = 0.0
        self._lock = threading.Lock()

    @property
    def is_free(self) -> bool:
        """Whether there is no limit at all."""
        return self._costs == (0.0, 0.0)

    def take(self, n_records: int, n_bytes: int) -> float:
        """Book so much; seconds to wait before it may go out."""
        cost_s = max(n_records * self._costs[0], n_bytes * self._costs[1])
        with self._lock:
            now_s = self._clock.monotonic_s()
            starts_s = max(self._paid_s, now_s - _BURST_S)
            self._paid_s = starts_s + cost_s
            return max(0.0, starts_s - now_s)
