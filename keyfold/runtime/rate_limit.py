"""A rate limit that tells callers when they may spend the next cost.

A cost of any size may be spent once all earlier costs are paid for; the next cost then waits for this overdraft. So one
caller or many callers can use the full rate. At most `BURST_S` of idle time can be made up for, so that a caller that
wakes late loses nothing.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

from keyfold.runtime.clock import Clock

BURST_S: Final = 0.05


@dataclass(slots=True)
class RateLimit:
    """A rate limit with costs in seconds of the whole rate. Thread-safe."""

    clock: Clock
    _paid_at_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reserve(self, cost_s: float) -> float:
        """Book a cost and return the seconds until it may be spent. A negative cost is a refund."""
        with self._lock:
            now_s = self.clock.monotonic_s()
            starts_s = max(self._paid_at_s, now_s - BURST_S)
            self._paid_at_s = starts_s + cost_s
            return max(0.0, starts_s - now_s)
