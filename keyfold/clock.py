"""Time comes in as an argument.

`Clock` is local time, for waiting and for measuring. It is never compared with times in the bucket: those are the
store's own (`Date`, `Last-Modified`), read off its answers.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Protocol


class Clock(Protocol):
    """Local time."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch; may jump."""

    def monotonic_s(self) -> float:
        """Seconds since some moment; never goes back."""

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """See `Clock.now_ms`."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """See `Clock.monotonic_s`."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        time.sleep(seconds)


@dataclass(slots=True)
class ManualClock:
    """A clock that only moves when it is told to, or by the sleeps of those who use it."""

    time_ms: int = 1_700_000_000_000
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def now_ms(self) -> int:
        """See `Clock.now_ms`."""
        return self.time_ms

    def monotonic_s(self) -> float:
        """See `Clock.monotonic_s`."""
        return self.time_ms / 1000

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        self.advance(round(seconds * 1000))

    def advance(self, by_ms: int) -> None:
        """Move time by `by_ms` milliseconds; a negative number is a clock that jumps back."""
        with self._lock:
            self.time_ms += by_ms
