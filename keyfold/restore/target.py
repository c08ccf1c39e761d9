"""The topic that a restore writes into, as a Protocol, so that tests can take the part of a broker.

A channel is one producer for one partition. What it was given lands in the order given and without gaps, or not at all
from some record on; each landing is checked against the offset where it was announced. An offset that is another one
means that somebody else writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from keyfold.log.record import Record
from keyfold.restore.rows import Row


@dataclass(frozen=True, slots=True)
class TargetEnds:
    """First and next offset of a partition."""

    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """What the target is: `settings` are those in force. `exists` is False for one that would be made."""

    name: str
    topic_id: str
    cluster_id: str
    partitions: int
    settings: Mapping[str, str] = field(default_factory=dict)
    in_sync_least: int = -1
    exists: bool = True


class Channel(Protocol):
    """A producer for one partition. For one thread."""

    @property
    def landed_offset(self) -> int:
        """The target offset behind the last record that is known to have landed."""

    def send(self, rows: list[Row], fresh_until_s: float) -> int:
        """Hand records over, in order; how many of them were taken.

        Fewer than all, after a moment, where too much is under way, or where `fresh_until_s` (monotonic) is over: time
        is looked at before each record, because this process may have been asleep since the one before.

        Raises `TargetMoved`, a retriable `KeyfoldError` where Kafka does not take records now, or another one where it
        never will take this one. After an error the channel is of no use.
        """

    def settle(self) -> None:
        """Return when everything that was sent has landed. Raises as `send`."""

    def close(self) -> bool:
        """Give up what has not gone out yet, and end. Returns whether nothing is under way any more."""


class RestoreTarget(Protocol):
    """A topic in a cluster. May be used by several threads; all calls may raise `KafkaUnavailable`, `KafkaRefused`."""

    def ends(self, partition: int) -> TargetEnds:
        """First and next offset now, as readers of uncommitted records see it."""

    def records(self, partition: int, start: int, end: int) -> Iterator[Record]:
        """Records of `[start, end)` that are there."""

    def channel(self, partition: int, next_offset: int) -> Channel:
        """A new producer whose first record is to land at `next_offset`."""
