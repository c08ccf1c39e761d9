"""Detect that this process was suspended, so that requests sent meanwhile are not carried out.

A suspended worker (SIGSTOP, a paused container, a suspended machine) keeps its port, and the kernel accepts requests
for it. The clients have long timed out or asked another worker, and may want something else by now. So requests that
change something are refused for a moment after a suspension. A client that still wants the change retries.
"""

from __future__ import annotations

import asyncio
from typing import Final

from keyfold.runtime.clock import Clock

ASLEEP_S: Final = 5.0
AWAKE_AFTER_S: Final = 2.0
_BEAT_S: Final = 0.25


class WakeDetector:
    """A timer on the server's event loop that detects suspensions.

    A pause of at least `asleep_s` between two ticks is a suspension. Requests are accepted again `awake_after_s` later.
    """

    def __init__(self, clock: Clock, *, asleep_s: float = ASLEEP_S, awake_after_s: float = AWAKE_AFTER_S) -> None:
        self._clock = clock
        self._asleep_s = asleep_s
        self._awake_after_s = awake_after_s
        self._beat_s = clock.monotonic_s()
        self._beat_ms = clock.now_ms()
        self._woke_s: float | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the timer, which ticks as long as the loop runs."""
        self._look()
        loop.call_later(_BEAT_S, self.start, loop)

    def has_just_woken(self) -> bool:
        """Whether a request processed now may have been sent during a suspension.

        This also detects a suspension that ended after the last tick.
        """
        self._look()
        return self._woke_s is not None and self._clock.monotonic_s() - self._woke_s < self._awake_after_s

    def _look(self) -> None:
        now_s, now_ms = self._clock.monotonic_s(), self._clock.now_ms()
        # The monotonic clock stops while the machine is suspended; the wall clock does not.
        if max(now_s - self._beat_s, (now_ms - self._beat_ms) / 1000) >= self._asleep_s:
            self._woke_s = now_s
        self._beat_s, self._beat_ms = now_s, now_ms
