"""When a sink that was told to catch up is done: pure.

The target of each partition is its end offset, the high watermark, when the sink started. It is reached when a manifest
says so, whoever wrote it: several sinks may share the group, each sees the others' progress in the bucket, and none
ends before all of it is durable. A partition that nobody has got to yet is simply not there yet; the group gives it to
somebody.

Readers of committed records get no further than the last stable offset, where the first open transaction begins. A
partition is held up where the log has reached that and not its target: what lies between is waited for, up to a limit.
Markers and aborted records at the end hold nothing up, for the last stable offset passes them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from keyfold.errors import KeyfoldError
from keyfold_sink.writing.batch import TopicPartitionKey

_NAMED: Final = 10


class TransactionOpen(KeyfoldError):
    """Records that were in the topics at the start still belong to open transactions."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class HeldUp:
    """A partition whose log ends at the last stable offset, before `end_offset`, where it ended at the start."""

    key: TopicPartitionKey
    stable_offset: int
    end_offset: int

    def __str__(self) -> str:
        topic, partition = self.key
        return f"{topic}-{partition}: last stable offset {self.stable_offset}, end offset {self.end_offset}"


class CatchUp:
    """Targets, and what is left of them."""

    def __init__(self, targets: Mapping[TopicPartitionKey, int]) -> None:
        self._left = dict(targets)
        self._log_ends: dict[TopicPartitionKey, int] = {}

    @property
    def is_done(self) -> bool:
        """Whether every log has reached its target."""
        return not self._left

    @property
    def left(self) -> Mapping[TopicPartitionKey, int]:
        """Targets that no manifest has reached yet."""
        return self._left

    def saw(self, log_ends: Mapping[TopicPartitionKey, int]) -> None:
        """Take note of `next_offset` in manifests."""
        for key, log_end in log_ends.items():
            target = self._left.get(key)
            if target is not None and log_end >= target:
                del self._left[key]
            elif target is not None:
                self._log_ends[key] = log_end

    def to_flush(
        self, positions: Mapping[TopicPartitionKey, int], at_end: Collection[TopicPartitionKey]
    ) -> list[TopicPartitionKey]:
        """Partitions that wait only for their commit: read up to their target, or to the end of what can be read."""
        return [key for key, target in self._left.items() if positions.get(key, -1) >= target or key in at_end]

    def elsewhere(self, mine: Collection[TopicPartitionKey]) -> list[TopicPartitionKey]:
        """Partitions that somebody else must be asked about: their manifests."""
        return [key for key in self._left if key not in mine]

    def held_up(self, stable_offsets: Mapping[TopicPartitionKey, int]) -> list[HeldUp]:
        """Partitions of which the log has all that can be read, and not all that was there at the start."""
        return [
            HeldUp(key, stable, self._left[key])
            for key, stable in stable_offsets.items()
            if key in self._left and stable < self._left[key] and self._log_ends.get(key, -1) >= stable
        ]


def still_open(held_up: Sequence[HeldUp], waited_s: float) -> TransactionOpen:
    """The error for transactions that were still open at the end of the wait."""
    named = "; ".join(map(str, held_up[:_NAMED]))
    more = f"; and {len(held_up) - _NAMED} more partitions" if len(held_up) > _NAMED else ""
    return TransactionOpen(
        f"records that were there at the start belong to transactions that are still open after {waited_s:.0f} s "
        f"({named}{more}); all that comes before them is in the log",
        hint="have the producer end its transaction, or abort it with Kafka's kafka-transactions.sh, and run again",
    )
