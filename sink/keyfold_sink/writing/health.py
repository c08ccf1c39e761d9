"""What is in a partition's way: the last error, and since when something has been repeated because of it.

A transient error is repeated for ever, so that nothing ends that need not end. Then somebody must be able to see that
nothing moves, and why. `blocked_ms` is set by the first failure and cleared by the first success that follows; the
error itself stays, with its time, as the last one that there was. `is_refused` while what blocks is a refusal of the
store: that passes only when somebody does something about it.

It belongs to the partition, not to one attempt to write it: an attempt that was given up has its reason here.
"""

from __future__ import annotations

from keyfold.clock import Clock, Moment
from keyfold_sink.status import UNKNOWN
from keyfold_sink.writing.access import is_refusal


class Health:
    """Written by the partition's lane and by the main thread, read by the report; nothing here hangs together."""

    __slots__ = ("_blocked", "_clock", "error", "error_ms", "is_refused")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.error = ""
        self.error_ms = UNKNOWN
        self._blocked: Moment | None = None
        self.is_refused = False

    @property
    def blocked_ms(self) -> int:
        """Since when something has been repeated; `UNKNOWN` while nothing is."""
        blocked = self._blocked
        return UNKNOWN if blocked is None else blocked.wall_ms

    def failed(self, error: object) -> None:
        """Something did not go through; it is tried again, or the partition has failed."""
        if self._blocked is None:
            self._blocked = Moment(self._clock)
        self.error, self.error_ms, self.is_refused = str(error), self._clock.now_ms(), is_refusal(error)

    def went_on(self) -> None:
        """What was repeated has gone through."""
        self._blocked, self.is_refused = None, False
