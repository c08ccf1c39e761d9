"""Decide when a sink that runs until it has caught up is done; pure.

The target of each partition is its end offset, the high watermark, when the sink started. A partition is done when its
manifest reaches the target, whichever task wrote it. Several workers may share the group. Each sees the others'
progress in the bucket, and none ends before all partitions are done.

Readers of committed records read up to the last stable offset, where the first open transaction begins. A partition is
held up if its log has reached that offset and not its target. The sink waits for the transaction up to a limit. Markers
and aborted records at the end hold nothing up, because the last stable offset passes them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from keyfold.errors import KeyfoldError
from keyfold_sink.topic_partition import TopicPartitionKey

_NAMED: Final = 10


class TransactionOpen(KeyfoldError):
    """Open transactions contain records that were in the topics at the start."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class HeldUp:
    """A partition whose log ends at the last stable offset, below `end_offset`, the topic's end at the start."""

    key: TopicPartitionKey
    stable_offset: int
    end_offset: int

    def __str__(self) -> str:
        topic, partition = self.key
        return f"{topic}-{partition}: last stable offset {self.stable_offset}, end offset {self.end_offset}"


class CatchUp:
    """The targets, and those not reached yet."""

    def __init__(self, targets: Mapping[TopicPartitionKey, int]) -> None:
        self._left = dict(targets)
        self._log_ends: dict[TopicPartitionKey, int] = {}

    @property
    def is_done(self) -> bool:
        """Whether every log has reached its target."""
        return not self._left

    @property
    def left(self) -> Mapping[TopicPartitionKey, int]:
        """The targets that no manifest has reached yet."""
        return self._left

    def saw(self, log_ends: Mapping[TopicPartitionKey, int]) -> None:
        """Record `next_offset` of manifests."""
        for key, log_end in log_ends.items():
            target = self._left.get(key)
            if target is not None and log_end >= target:
                del self._left[key]
            elif target is not None:
                self._log_ends[key] = log_end

    def to_flush(
        self, positions: Mapping[TopicPartitionKey, int], at_end: Collection[TopicPartitionKey]
    ) -> list[TopicPartitionKey]:
        """Return the partitions to flush: those read up to their target, or up to the last readable record."""
        return [key for key, target in self._left.items() if positions.get(key, -1) >= target or key in at_end]

    def elsewhere(self, mine: Collection[TopicPartitionKey]) -> list[TopicPartitionKey]:
        """Return the remaining partitions of other tasks, whose manifests must be read."""
        return [key for key in self._left if key not in mine]

    def held_up(self, stable_offsets: Mapping[TopicPartitionKey, int]) -> list[HeldUp]:
        """Return the partitions whose log has all readable records, and not all that were in the topic at the start."""
        return [
            HeldUp(key, stable, self._left[key])
            for key, stable in stable_offsets.items()
            if key in self._left and stable < self._left[key] and self._log_ends.get(key, -1) >= stable
        ]


def still_open(held_up: Sequence[HeldUp], waited_s: float) -> TransactionOpen:
    """Return the error for transactions that are still open at the end of the wait."""
    named = "; ".join(map(str, held_up[:_NAMED]))
    more = f"; and {len(held_up) - _NAMED} more partitions" if len(held_up) > _NAMED else ""
    return TransactionOpen(
        f"transactions are still open after {waited_s:.0f} s, with records that were in the topics at the start "
        f"({named}{more}); all records before them are in the log",
        hint="have the producer end its transaction, or abort it with Kafka's kafka-transactions.sh, then run again",
    )
