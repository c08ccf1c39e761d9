"""When a round is tried again: exponential backoff with jitter, per partition, reset by one success.

What does not pass by itself is tried again too, at the longest backoff at once: a right that was granted, a bucket that
was made, a replica that was repaired are then seen without anybody having to say so. It costs two small reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from keyfold.errors import Fenced
from keyfold_compactor.replica.standing.states import State, Trouble


@dataclass(frozen=True, slots=True)
class Retry:
    """`replica.retry.backoff.ms` and `replica.retry.backoff.max.ms`."""

    first_ms: int = 100
    cap_ms: int = 60_000

    def backoff_ms(self, attempts: int, found: Trouble, random: Random) -> int:
        """How long to wait after `attempts` failures in a row (at least 1), the last of which was `found`.

        Each step is drawn from its upper half, so the wait is never longer than `cap_ms`. Who was fenced waits long
        too: another replicator is at work, and it should not be fenced in its turn.
        """
        is_long = found.state is not State.WAITING or found.code == Fenced.__name__
        step_ms = self.cap_ms if is_long else self._step_ms(attempts)
        return max(1, round(step_ms * (0.5 + random.random() / 2)))

    def _step_ms(self, attempts: int) -> int:
        # Doubling a big number for each failure of a week is avoided: the cap is reached long before.
        return int(min(self.cap_ms, self.first_ms * 2 ** min(attempts - 1, 40)))
