"""Whether this process has just come to itself: orders that were given while it slept are not carried out.

A worker that is frozen (SIGSTOP, a paused container, a suspended machine) still has its port, and the kernel takes
requests for it. Who sent one has long given up, asked another worker, and perhaps ordered something else since. So what
would change something is refused for a moment after a pause: whoever still wants it asks again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from keyfold.clock import Clock

ASLEEP_S: Final = 5.0
AWAKE_AFTER_S: Final = 2.0
_BEAT_S: Final = 0.25


class Pulse:
    """Beats on the server's loop. `asleep_s` without a beat is sleep; `awake_after_s` later all is heard again."""

    def __init__(self, clock: Clock, *, asleep_s: float = ASLEEP_S, awake_after_s: float = AWAKE_AFTER_S) -> None:
        self._clock = clock
        self._asleep_s = asleep_s
        self._awake_after_s = awake_after_s
        self._beat_s = clock.monotonic_s()
        self._beat_ms = clock.now_ms()
        self._woke_s: float | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Beat from now on, as long as the loop goes round."""
        self._look()
        loop.call_later(_BEAT_S, self.start, loop)

    def has_just_woken(self) -> bool:
        """Whether what is heard now may be from before. Asked before the first beat after a pause, it sees it, too."""
        self._look()
        return self._woke_s is not None and self._clock.monotonic_s() - self._woke_s < self._awake_after_s

    def _look(self) -> None:
        now_s, now_ms = self._clock.monotonic_s(), self._clock.now_ms()
        # The monotonic clock stands still with a suspended machine, the other one does not.
        if max(now_s - self._beat_s, (now_ms - self._beat_ms) / 1000) >= self._asleep_s:
            self._woke_s = now_s
        self._beat_s, self._beat_ms = now_s, now_ms
