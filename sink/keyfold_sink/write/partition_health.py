"""The health of a partition: its last error, and since when it has blocked the partition.

Operations with a transient error are retried without end, so users must be able to see that a partition makes no
progress, and why. The first failure sets `blocked_ms`, and the next success clears it. The error and its time stay, as
the last error. `is_refused` is true while the store refuses access, which does not end by itself.

The health belongs to the partition, not to one attempt to write it. So it also has the reason why an attempt was given
up.
"""

from __future__ import annotations

from keyfold.runtime.clock import Clock, Moment
from keyfold_sink.status import UNKNOWN
from keyfold_sink.write.credential_renewal import is_refusal


class PartitionHealth:
    """The health of one partition. Its serial queue and the main thread write it; the fields are independent."""

    __slots__ = ("_blocked", "_clock", "error", "error_ms", "is_refused")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.error = ""
        self.error_ms = UNKNOWN
        self._blocked: Moment | None = None
        self.is_refused = False

    @property
    def blocked_ms(self) -> int:
        """Since when an operation has been retried; `UNKNOWN` if none is."""
        blocked = self._blocked
        return UNKNOWN if blocked is None else blocked.wall_ms

    def failed(self, error: object) -> None:
        """Record an error, after which the operation is retried or the partition has failed."""
        if self._blocked is None:
            self._blocked = Moment(self._clock)
        self.error, self.error_ms, self.is_refused = str(error), self._clock.now_ms(), is_refusal(error)

    def went_on(self) -> None:
        """Record that the retried operation has succeeded."""
        self._blocked, self.is_refused = None, False
