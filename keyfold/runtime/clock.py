"""Clocks, which callers pass in as arguments.

`Clock` is local time, for waiting and measuring. keyfold never compares it with times in the bucket: those are the
store's own times (`Date`, `Last-Modified`) from its answers.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Final, Protocol

NEVER_MS: Final = 2**63 - 1
"""A duration that never ends: Java's largest long, as in Kafka's topic settings."""


class Clock(Protocol):
    """Local time."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch; may jump."""

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary moment; never goes back."""

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""


class Moment:
    """The moment at which the object was made. `age_ms` is monotonic, `wall_ms` is the time of day.

    A clock that jumps makes a moment neither older nor younger. `wall_ms` follows the clock in steps of at least
    `RENAMED_FROM_MS`, so that a clock that is slewed does not give a new time with each call.
    """

    __slots__ = ("_clock", "_since_s", "_wall_ms")

    RENAMED_FROM_MS: Final = 1_000

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s = clock.monotonic_s()
        self._wall_ms = clock.now_ms()

    @property
    def age_ms(self) -> int:
        """Time since that moment, in milliseconds."""
        return round((self._clock.monotonic_s() - self._since_s) * 1000)

    @property
    def wall_ms(self) -> int:
        """The moment in milliseconds since the epoch, according to the current clock."""
        wall_ms = self._clock.now_ms() - self.age_ms
        if abs(wall_ms - self._wall_ms) >= self.RENAMED_FROM_MS:
            self._wall_ms = wall_ms
        return self._wall_ms


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
    """A clock that only moves by `advance` and by `sleep`."""

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
        """Move the time by `by_ms` milliseconds; a negative number moves it back."""
        with self._lock:
            self.time_ms += by_ms
