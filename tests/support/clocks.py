"""Clocks that are wrong: the time of day jumps, and time itself goes on as before.

    true = ManualClock()                       what really passes
    SkewedClock(true)                          a machine, or a store, that shows another time of day
    clock.jump(-HOUR_MS)                       from now on it shows an hour less than it did
    JumpingStore(store, clock, at=7, by_ms=...)  the store's own clock jumps right before its 7th call

A `SkewedClock` never moves its monotonic time by a jump, as no kernel does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from keyfold.clock import Clock, ManualClock
from keyfold.store.api import ObjectStore
from keyfold.store.faulty import Call, Fault, FaultyStore

HOUR_MS: Final = 3_600_000
BOTH_WAYS: Final = (HOUR_MS, -HOUR_MS)


@dataclass(slots=True)
class SkewedClock:
    """`base` with another time of day. `highest_ms` and `lowest_ms` are the furthest that it was ever off.

    `cut_ms` is the most by which it has ever come forward, from whatever it showed before: a wait that was measured
    with it may have been shorter than was promised by as much, and by no more.
    """

    base: Clock
    offset_ms: int = 0
    highest_ms: int = 0
    lowest_ms: int = 0
    cut_ms: int = 0

    @staticmethod
    def manual() -> SkewedClock:
        """One over a time that only a test moves."""
        return SkewedClock(ManualClock())

    def now_ms(self) -> int:
        """See `Clock.now_ms`."""
        return self.base.now_ms() + self.offset_ms

    def monotonic_s(self) -> float:
        """See `Clock.monotonic_s`."""
        return self.base.monotonic_s()

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        self.base.sleep(seconds)

    def jump(self, by_ms: int) -> None:
        """Show `by_ms` more from now on, or less."""
        self.offset_ms += by_ms
        self.highest_ms = max(self.highest_ms, self.offset_ms)
        self.lowest_ms = min(self.lowest_ms, self.offset_ms)
        self.cut_ms = max(self.cut_ms, self.offset_ms - self.lowest_ms)


class JumpingStore(FaultyStore):
    """A connection to a store whose clocks jump right before the call with the number `at`."""

    def __init__(
        self, inner: ObjectStore, clocks: Iterable[SkewedClock], *, at: int, by_ms: int, faults: Iterable[Fault] = ()
    ) -> None:
        super().__init__(inner, faults, on_call=self._strike)
        self._clocks = tuple(clocks)
        self._at = at
        self._by_ms = by_ms
        self.has_jumped = False

    def _strike(self, call: Call) -> None:
        if call.number >= self._at and not self.has_jumped:
            self.has_jumped = True
            for clock in self._clocks:
                clock.jump(self._by_ms)
