"""What the next commits of a partition have to say about offsets that the log will not have.

A batch is judged before it is appended, and a segment may end anywhere in it. So a gap that is noted lies ahead of the
partition's position until reading has passed it, and goes into the commit that passes it: not earlier, for nothing is
known to be skipped before its offset is passed, and not later, for its offset would be nowhere. The same holds for the
dead letters of the records that were skipped: a commit waits for all that it passes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from keyfold.errors import KeyfoldError
from keyfold.log.gaps import with_gaps
from keyfold.log.manifest import Gap


class LettersPending(KeyfoldError):
    """Kafka has not confirmed all dead letters yet."""

    retriable = True


class Delivery(Protocol):
    """Dead letters on their way."""

    @property
    def first_offset(self) -> int:
        """The lowest offset of the records that they are."""

    @property
    def last_offset(self) -> int:
        """The highest one."""

    def wait(self) -> None:
        """Return when Kafka has all of them; called on a lane.

        Raises `LettersPending`, which is retriable, after a moment; another `KeyfoldError` when Kafka refuses one.
        """


class Skips:
    """One partition's, in offset order. Used by the main thread."""

    def __init__(self) -> None:
        self._ahead: deque[Gap] = deque()
        self._passed: tuple[Gap, ...] = ()
        self._deliveries: list[Delivery] = []

    def add(self, gaps: Iterable[Gap], delivery: Delivery | None = None) -> None:
        """Note gaps that begin behind all that were noted before."""
        self._ahead.extend(gaps)
        if delivery is not None:
            self._deliveries.append(delivery)

    def pass_to(self, position: int) -> None:
        """Reading has got to `position`. Only what was passed may be made coarser, so that little is kept."""
        passed = []
        while self._ahead and self._ahead[0].from_offset < position:
            passed.append(self._ahead.popleft())
        if passed:
            self._passed = with_gaps(self._passed, passed)

    def take(self, position: int) -> tuple[tuple[Gap, ...], tuple[Delivery, ...]]:
        """What a commit up to `position` records, and what it has to wait for."""
        self.pass_to(position)
        gaps, self._passed = self._passed, ()
        due = tuple(delivery for delivery in self._deliveries if delivery.first_offset < position)
        self._deliveries = [delivery for delivery in self._deliveries if delivery.last_offset >= position]
        return gaps, due
