"""Gaps and dead letters of skipped records, for the next commits of a partition.

A batch is validated before it is appended, and a segment may end anywhere in it. So a gap may lie ahead of the
partition's position. It goes into the commit that passes it. An earlier commit would record a gap beyond the log's end,
and a later one would leave its offsets unexplained. A commit also waits for the dead letters of all records that it
passes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from keyfold.errors import KeyfoldError
from keyfold.log.gaps import with_gaps
from keyfold.log.manifest import Gap


class DeadLettersPending(KeyfoldError):
    """Kafka has not confirmed all dead letters yet."""

    retriable = True


class Delivery(Protocol):
    """Dead letters in flight."""

    @property
    def first_offset(self) -> int:
        """The lowest offset of their records."""

    @property
    def last_offset(self) -> int:
        """The highest offset of their records."""

    def wait(self) -> None:
        """Wait until Kafka has all of them; called on a serial queue.

        Raise `DeadLettersPending`, which is retriable, after a moment, or another `KeyfoldError` if Kafka refuses one.
        """


class Skips:
    """The gaps and deliveries of one partition in offset order. Only the main thread uses it."""

    def __init__(self) -> None:
        self._ahead: deque[Gap] = deque()
        self._passed: tuple[Gap, ...] = ()
        self._deliveries: list[Delivery] = []

    def add(self, gaps: Iterable[Gap], delivery: Delivery | None = None) -> None:
        """Add gaps, which begin after all gaps added before."""
        self._ahead.extend(gaps)
        if delivery is not None:
            self._deliveries.append(delivery)

    def pass_to(self, position: int) -> None:
        """Record the reading position. Only gaps below it may be merged to save memory."""
        passed = []
        while self._ahead and self._ahead[0].from_offset < position:
            passed.append(self._ahead.popleft())
        if passed:
            self._passed = with_gaps(self._passed, passed)

    def take_until(self, position: int) -> tuple[tuple[Gap, ...], tuple[Delivery, ...]]:
        """Return the gaps that a commit up to `position` records, and the deliveries that it waits for."""
        self.pass_to(position)
        gaps, self._passed = self._passed, ()
        due = tuple(delivery for delivery in self._deliveries if delivery.first_offset < position)
        self._deliveries = [delivery for delivery in self._deliveries if delivery.last_offset >= position]
        return gaps, due
