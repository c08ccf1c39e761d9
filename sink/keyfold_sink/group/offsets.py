"""Commit group offsets, which show the lag to Kafka's tools; the sink never reads them.

An offset is committed after the manifest, never before. A refused commit is repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from keyfold_sink.kafka.client import GroupConsumer
from keyfold_sink.metrics.meter import TaskMeter
from keyfold_sink.topic_partition import TopicPartitionKey

# Commits without an answer must not take ever more memory.
_AWAITED_MAX: Final = 64
_Sent = tuple[str, int, int, str | None]


class GroupOffsets:
    """The logs' ends that were not committed to the group yet, and the commits in flight, for the meter."""

    def __init__(self, meter: TaskMeter) -> None:
        self._meter = meter
        self._ends: dict[TopicPartitionKey, int] = {}
        self._awaited: dict[_Sent, float] = {}

    def note(self, key: TopicPartitionKey, next_offset: int) -> None:
        """Record the new end of a log."""
        self._ends[key] = next_offset

    def refused(self, key: TopicPartitionKey, next_offset: int) -> None:
        """Record a refused offset, unless a newer one is pending."""
        self._ends.setdefault(key, next_offset)

    def take(self, mine: Collection[TopicPartitionKey]) -> list[TopicPartition]:
        """Return the pending offsets of these partitions. The others belong to another member now."""
        offsets = [TopicPartition(*key, offset) for key, offset in self._ends.items() if key in mine]
        self._ends.clear()
        return offsets

    def commit(self, consumer: GroupConsumer, offsets: list[TopicPartition], *, wait: bool = False) -> None:
        """Commit to the group. A failure is harmless, because the offsets are committed again."""
        if not offsets:
            return
        try:
            consumer.commit(offsets=offsets, asynchronous=not wait)
        except KafkaException as error:
            structlog.get_logger("keyfold.sink").info("group offsets not committed", error=error.args[0].str())
            return
        self._meter.offsets_sent()
        if not wait:
            self._awaited[_sent(offsets[0])] = self._meter.clock.monotonic_s()
            if len(self._awaited) > _AWAITED_MAX:
                del self._awaited[next(iter(self._awaited))]

    def answered(
        self, error: KafkaError | None, offsets: Sequence[TopicPartition], mine: Collection[TopicPartitionKey]
    ) -> None:
        """Count the group's answer."""
        if not offsets:
            return
        sent_s = self._awaited.pop(_sent(offsets[0]), None)
        late = not any((offset.topic, offset.partition) in mine for offset in offsets)
        good = error is None and all(offset.error is None for offset in offsets)
        self._meter.offsets_answered(sent_s, good=good, late=late)


def _sent(offset: TopicPartition) -> _Sent:
    return offset.topic, offset.partition, offset.offset, offset.metadata
