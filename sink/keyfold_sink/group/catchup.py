"""When a sink that was told to catch up is done: pure.

The target of each partition is the end that a reader of committed records could get to when the sink started. It is
reached when a manifest says so, whoever wrote it: several sinks may share the group, each sees the others' progress in
the bucket, and none ends before all of it is durable. A partition that nobody has got to yet is simply not there yet;
the group gives it to somebody.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from keyfold_sink.writing.batch import TopicPartitionKey


class CatchUp:
    """Targets, and what is left of them."""

    def __init__(self, targets: Mapping[TopicPartitionKey, int]) -> None:
        self._left = dict(targets)

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

    def to_flush(self, positions: Mapping[TopicPartitionKey, int]) -> list[TopicPartitionKey]:
        """Partitions that were read up to their target and wait only for their commit."""
        return [key for key, target in self._left.items() if positions.get(key, -1) >= target]

    def elsewhere(self, mine: Collection[TopicPartitionKey]) -> list[TopicPartitionKey]:
        """Partitions that somebody else must be asked about: their manifests."""
        return [key for key in self._left if key not in mine]
