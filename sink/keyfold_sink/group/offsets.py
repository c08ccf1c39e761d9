"""Group offsets, which nobody here reads: they show the lag to Kafka's tools.

They are committed after the manifest, never before; one that was refused is committed again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from keyfold_sink.kafka.client import GroupConsumer
from keyfold_sink.metrics.meter import TaskMeter
from keyfold_sink.writing.batch import TopicPartitionKey

# An answer that never comes must not be waited for with ever more memory.
_AWAITED_MAX: Final = 64
_Sent = tuple[str, int, int, str | None]


class GroupOffsets:
    """Where logs end, as far as the group was not told yet; and what was told it, for the meter."""

    def __init__(self, meter: TaskMeter) -> None:
        self._meter = meter
        self._ends: dict[TopicPartitionKey, int] = {}
        self._awaited: dict[_Sent, float] = {}

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

    def commit(self, consumer: GroupConsumer, offsets: list[TopicPartition], *, wait: bool = False) -> None:
        """Tell the group. Nothing hangs on it: what it does not take is told it again."""
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
        """The group's answer, for the meter."""
        if not offsets:
            return
        sent_s = self._awaited.pop(_sent(offsets[0]), None)
        late = not any((offset.topic, offset.partition) in mine for offset in offsets)
        good = error is None and all(offset.error is None for offset in offsets)
        self._meter.offsets_answered(sent_s, good=good, late=late)


def _sent(offset: TopicPartition) -> _Sent:
    return offset.topic, offset.partition, offset.offset, offset.metadata
