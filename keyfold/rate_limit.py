"""A rate that is kept in every second: when the next cost may be spent.

A cost is let through as soon as earlier ones are paid for, whatever its size: one overdraft, which the next cost waits
for. So nothing is skipped, and the rate is used whether one caller asks or many. Idle time is forgotten but for
`BURST_S`: that is how much of it may be made up for, so a caller that wakes late loses nothing.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

from keyfold.clock import Clock

BURST_S: Final = 0.05


@dataclass(slots=True)
class RateLimit:
    """Costs in seconds of the whole rate. Thread-safe."""

    clock: Clock
    _paid_at_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reserve(self, cost_s: float) -> float:
        """Book a cost; seconds until it may be spent. A negative cost is one that is returned."""
        with self._lock:
            now_s = self.clock.monotonic_s()
            starts_s = max(self._paid_at_s, now_s - BURST_S)
            self._paid_at_s = starts_s + cost_s
            return max(0.0, starts_s - now_s)
