"""Group offsets, which nobody here reads: they show the lag to Kafka's tools.

They are committed after the manifest, never before; one that was refused is committed again.
"""

from __future__ import annotations

from collections.abc import Collection

import structlog
from confluent_kafka import KafkaException, TopicPartition

from keyfold_sink.batch import TopicPartitionKey
from keyfold_sink.client import GroupConsumer


class GroupOffsets:
    """Where logs end, as far as the group was not told yet."""

    def __init__(self) -> None:
        self._ends: dict[TopicPartitionKey, int] = {}

    def note(self, key: TopicPartitionKey, next_offset: int) -> None:
        """A log ends here now."""
        self._ends[key] = next_offset

    def refused(self, key: TopicPartitionKey, next_offset: int) -> None:
        """The group did not take it; a newer one may be waiting already."""
        self._ends.setdefault(key, next_offset)

    def take(self, mine: Collection[TopicPartitionKey]) -> list[TopicPartition]:
        """What is to be told of these partitions; the rest is another member's now."""
        offsets = [TopicPartition(*key, offset) for key, offset in self._ends.items() if key in mine]
        self._ends.clear()
        return offsets


def commit(consumer: GroupConsumer, offsets: list[TopicPartition], *, wait: bool) -> None:
    """Tell the group. Nothing hangs on it."""
    if not offsets:
        return
    try:
        consumer.commit(offsets=offsets, asynchronous=not wait)
    except KafkaException as error:
        structlog.get_logger("keyfold.sink").info("group offsets not committed", error=error.args[0].str())
