"""Requests to a cluster about one topic: its existence, ids, settings and offsets, and its creation.

Calls block for at most `timeout_s` and raise `KafkaUnavailable`, `KafkaRefused`, `KafkaTopicMissing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from keyfold.errors import KeyfoldError
from keyfold.kafka.client import BrokerErrors, KafkaError, KafkaException, answer, make_admin
from keyfold.kafka.errors import KafkaTopicMissing, KafkaUnavailable
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.retry import RetryPolicy

from confluent_kafka import IsolationLevel, TopicCollection, TopicPartition  # isort: skip - after `client` has proved it
from confluent_kafka.admin._config import ConfigResource  # isort: skip
from confluent_kafka.admin._listoffsets import OffsetSpec  # isort: skip
from confluent_kafka.admin._resource import ResourceType  # isort: skip
from confluent_kafka.cimpl import NewTopic  # isort: skip

if TYPE_CHECKING:
    from confluent_kafka.admin._cluster import DescribeClusterResult
    from confluent_kafka.admin._config import ConfigEntry
    from confluent_kafka.admin._listoffsets import ListOffsetsResultInfo
    from confluent_kafka.admin._topic import TopicDescription

_TIMEOUT_S: Final = 15.0
_BROKER_DEFAULT: Final = -1
_EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # the library does not annotate it
_LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the library does not annotate it

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The cluster's description of one partition. `leader` is -1 if there is none."""

    partition: int
    leader: int
    replicas: int
    in_sync: int


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """The cluster's description of a topic. `topic_id` is as Kafka prints it, empty if the brokers have none."""

    name: str
    topic_id: str
    partitions: tuple[PartitionFacts, ...]


@dataclass(frozen=True, slots=True)
class PartitionEnds:
    """First and next offset of a partition in Kafka: its log start, and its high watermark."""

    start_offset: int
    end_offset: int


class KafkaCluster:
    """One cluster, asked through an admin client; a context manager. May be used by several threads."""

    def __init__(self, settings: Mapping[str, str], *, timeout_s: float = _TIMEOUT_S) -> None:
        self.settings = dict(settings)
        self.contact = BrokerErrors()
        self._timeout_s = timeout_s
        self._admin = make_admin(settings, self.contact)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let what the client has heard go; its threads end with the object."""
        self._admin.poll(0)

    def cluster_id(self) -> str:
        """The cluster's id, empty where it has none."""
        future: Future[DescribeClusterResult] = self._admin.describe_cluster(request_timeout=self._timeout_s)
        return str(self._answer("the cluster", future).cluster_id or "")

    def topic(self, name: str) -> TopicFacts:
        """Describe a topic. Raises `KafkaTopicMissing`."""
        future = self._admin.describe_topics(TopicCollection([name]), request_timeout=self._timeout_s)[name]
        found: TopicDescription = self._answer(f"topic {name}", future)
        partitions = tuple(
            PartitionFacts(p.id, -1 if p.leader is None else p.leader.id, len(p.replicas), len(p.isr))
            for p in sorted(found.partitions, key=lambda p: p.id)
        )
        return TopicFacts(name, _topic_id(found.topic_id), partitions)

    def topic_settings(self, name: str) -> dict[str, str]:
        """All settings of a topic that are in force, the broker's defaults included."""
        resource = ConfigResource(ResourceType.TOPIC, name)
        future = self._admin.describe_configs([resource], request_timeout=self._timeout_s)[resource]
        entries: dict[str, ConfigEntry] = self._answer(f"the settings of topic {name}", future)
        return {key: str(entry.value) for key, entry in entries.items() if entry.value is not None}

    def broker_settings(self) -> dict[str, str]:
        """Settings of one of the brokers: what a new topic gets where nothing else is said."""
        asked: Future[DescribeClusterResult] = self._admin.describe_cluster(request_timeout=self._timeout_s)
        resource = ConfigResource(ResourceType.BROKER, str(self._answer("the cluster", asked).nodes[0].id))
        future = self._admin.describe_configs([resource], request_timeout=self._timeout_s)[resource]
        entries: dict[str, ConfigEntry] = self._answer("the settings of a broker", future)
        return {key: str(entry.value) for key, entry in entries.items() if entry.value is not None}

    def ends(self, topic: str, partitions: Iterable[int], *, committed: bool = False) -> dict[int, PartitionEnds]:
        """First and next offsets; with `committed` the next offset is the last stable one."""
        numbers = list(partitions)
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        first = self._offsets(topic, numbers, _EARLIEST, isolation)
        after = self._offsets(topic, numbers, _LATEST, isolation)
        return {number: PartitionEnds(first[number], after[number]) for number in numbers}

    def create_topic(
        self, name: str, partitions: int, settings: Mapping[str, str], *, replication_factor: int = _BROKER_DEFAULT
    ) -> bool:
        """Make a topic and wait until all its partitions have leaders; False where it was there already."""
        new = NewTopic(name, partitions, replication_factor, config=dict(settings))
        future = self._admin.create_topics([new], request_timeout=self._timeout_s)[name]
        try:
            future.result(self._timeout_s * 2)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise KeyfoldError(
                f"Kafka refused to create topic {name}: {error.args[0].str()}",
                hint="create the topic yourself, with the same number of partitions, and run the command again",
            ) from error
        return True

    def _offsets(
        self, topic: str, numbers: Sequence[int], spec: OffsetSpec, isolation: IsolationLevel
    ) -> dict[int, int]:
        if not numbers:
            return {}
        asked = {TopicPartition(topic, number): spec for number in numbers}

        def ask() -> dict[int, int]:
            futures: dict[TopicPartition, Future[ListOffsetsResultInfo]] = self._admin.list_offsets(
                asked, isolation_level=isolation, request_timeout=self._timeout_s
            )
            return {
                place.partition: int(self._answer(f"the offsets of {topic}-{place.partition}", future).offset)
                for place, future in futures.items()
            }

        # The client does not ask again where a broker is still taking over a partition, such as one of a new topic.
        return RetryPolicy(SystemClock(), Random(), timeout_s=self._timeout_s).repeat(ask)

    def _answer(self, what: str, future: Future[T]) -> T:
        try:
            return answer(what, future, self.contact, self._timeout_s * 2)
        finally:
            self._admin.poll(0)  # what the client has heard is told on this call, and would pile up


def _topic_id(found: object) -> str:
    text = str(found or "")
    # Kafka prints ids in the URL-safe alphabet, the client in the other one.
    return text.replace("+", "-").replace("/", "_")


def wait_for_topic(cluster: KafkaCluster, name: str, partitions: int, *, tries: int = 50) -> TopicFacts:
    """The description of a topic that was just made, once all brokers that are asked know it and its leaders."""
    clock = SystemClock()
    for _ in range(tries):
        try:
            found = cluster.topic(name)
        except KafkaTopicMissing:
            pass
        else:
            if len(found.partitions) == partitions and all(p.leader >= 0 for p in found.partitions):
                return found
        clock.sleep(0.2)
    raise KafkaUnavailable(
        f"topic {name} was created, but its partitions have no leaders yet", hint="run the command again"
    )
