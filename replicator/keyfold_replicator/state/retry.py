"""When a failed round is retried: exponential backoff with jitter, per partition, reset by one success.

Errors that do not pass by themselves are retried too, directly with the longest backoff. So a granted permission, a new
bucket or a repaired replica is noticed without a restart. This costs two small reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from keyfold.errors import Fenced
from keyfold_replicator.state.states import RoundFailure, SyncState


@dataclass(frozen=True, slots=True)
class RoundBackoff:
    """`replica.retry.backoff.ms` and `replica.retry.backoff.max.ms`."""

    first_ms: int = 100
    cap_ms: int = 60_000

    def backoff_ms(self, attempts: int, found: RoundFailure, random: Random) -> int:
        """Return the wait after `attempts` failures in a row (at least 1), the last of which was `found`.

        The wait is drawn from the upper half of each step, so it never exceeds `cap_ms`. A fenced replicator also waits
        long: another one is at work, and should not be fenced in turn.
        """
        is_long = found.state is not SyncState.WAITING or found.code == Fenced.__name__
        step_ms = self.cap_ms if is_long else self._step_ms(attempts)
        return max(1, round(step_ms * (0.5 + random.random() / 2)))

    def _step_ms(self, attempts: int) -> int:
        # Do not double a big number for each failure of a week: the cap is reached long before.
        return int(min(self.cap_ms, self.first_ms * 2 ** min(attempts - 1, 40)))
