"""A topic of a cluster for the comparison by `keyfold log verify` (`keyfold.verify.compare.TopicReader`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

from keyfold.kafka.cluster import KafkaCluster, TopicFacts
from keyfold.kafka.reading import read_topic
from keyfold.log.record import Record


class KafkaTopic:
    """A read-only topic. A context manager; thread-safe.

    It has the records that a reader of committed transactions sees, like the sink.
    """

    def __init__(self, settings: Mapping[str, str], topic: str) -> None:
        """Connect and look the topic up. Raises `KafkaTopicMissing`, `KafkaUnavailable`, `KafkaRefused`."""
        self._settings = dict(settings)
        self._topic = topic
        self._cluster = KafkaCluster(settings)
        self._facts: TopicFacts = self._cluster.topic(topic)
        self._topic_settings = self._cluster.topic_settings(topic)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.close()

    def partitions(self) -> list[int]:
        """Numbers of the topic's partitions."""
        return [p.partition for p in self._facts.partitions]

    def topic_id(self) -> str:
        """The topic's id; empty where brokers know none."""
        return self._facts.topic_id

    def settings(self) -> Mapping[str, str]:
        """The topic's settings, as they were when this was made."""
        return self._topic_settings

    def ends(self, partition: int) -> tuple[int, int]:
        """First offset, and the last stable offset."""
        found = self._cluster.ends(self._topic, [partition], committed=True)[partition]
        return found.start_offset, found.end_offset

    def read(self, partition: int, from_offset: int, to_offset: int) -> Iterator[Record]:
        """Records of a range within `ends`, in order."""
        return read_topic(self._settings, self._topic, partition, from_offset, to_offset)
