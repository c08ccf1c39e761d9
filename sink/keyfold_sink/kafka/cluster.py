"""Requests to the cluster outside of the consumer, through the admin client.

Answers needed before each commit are cached for a moment, so that hundreds of partitions of one topic need one request.
Calls block; they run on the I/O threads.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._cluster import DescribeClusterResult
from confluent_kafka.admin._config import ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import ListOffsetsResultInfo, OffsetSpec
from confluent_kafka.admin._metadata import ClusterMetadata
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.admin._topic import TopicDescription

from keyfold.errors import KeyfoldError
from keyfold.runtime.clock import Clock
from keyfold_sink.config.client_checks import client_refusal
from keyfold_sink.kafka.contact import QUIET, BrokerContact
from keyfold_sink.kafka.source import (
    FOLLOWED_SETTINGS,
    SourceFacts,
    SourceForbidden,
    SourceUnavailable,
    TopicForbidden,
    TopicGone,
)
from keyfold_sink.topic_partition import TopicPartitionKey

T = TypeVar("T")

REQUEST_TIMEOUT_S: Final = 15.0
# A new client does no harm if the brokers do not answer, and helps if the client has forgotten them all (`contact`).
_SILENT_CLIENT_S: Final = 60.0
_TOPIC_ID_AGE_S: Final = 1.0
_SETTINGS_AGE_S: Final = 60.0
_INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

_EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # the library does not annotate it
_LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the library does not annotate it

GONE: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
FORBIDDEN: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
    }
)


class AdminSource:
    """`TopicSource` with an `AdminClient`. Thread-safe."""

    def __init__(self, config: Mapping[str, str], clock: Clock, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        """Create the client. `timeout_s` is the time-out of each request."""
        self._contact = BrokerContact(clock)
        self._config = config
        self._admin = self._open()
        self._answered_s = clock.monotonic_s()
        self._clock = clock
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._cache: dict[tuple[str, str], tuple[float, Any]] = {}
        self._asking: dict[tuple[str, str], Future[None]] = {}

    def _open(self) -> AdminClient:
        settings: dict[str, Any] = {**QUIET, **self._config, "error_cb": self._contact.on_error}
        try:
            return AdminClient(settings)
        except KafkaException as error:
            raise client_refusal("admin.override.", self._config, error.args[0].str()) from error

    def topic_id(self, topic: str) -> str:
        """See `TopicSource.topic_id`."""
        return self._fresh(("topic id", topic), _TOPIC_ID_AGE_S, lambda: self._topic_id(topic))

    def cluster_id(self) -> str:
        """Return the cluster's id, which is requested once."""
        return self._fresh(("cluster id", ""), float("inf"), self._cluster_id)

    def settings(self, topic: str) -> Mapping[str, str]:
        """See `TopicSource.settings`. Empty if the sink has no right to read them."""
        return self._fresh(("settings", topic), _SETTINGS_AGE_S, lambda: self._settings(topic))

    def facts(self, topic: str, partition: int) -> SourceFacts:
        """See `TopicSource.facts`."""
        topic_id = self.topic_id(topic)
        here = TopicPartition(topic, partition)
        # Requested together: a change between two requests would look like lost records.
        earliest: Future[ListOffsetsResultInfo] = self._admin.list_offsets(
            {here: _EARLIEST}, request_timeout=self._timeout_s
        )[here]
        end: Future[ListOffsetsResultInfo] = self._admin.list_offsets({here: _LATEST}, request_timeout=self._timeout_s)[
            here
        ]
        return SourceFacts(
            topic_id=topic_id,
            cluster_id=self.cluster_id(),
            earliest_offset=self._answer(f"the earliest offset of {topic}-{partition}", earliest).offset,
            end_offset=self._answer(f"the end offset of {topic}-{partition}", end).offset,
            settings=self.settings(topic),
        )

    def topics(self) -> frozenset[str]:
        """Return all topics of the cluster, without Kafka's internal ones."""
        return frozenset(self._metadata().topics) - _INTERNAL_TOPICS

    def partitions(self, topics: Iterable[str]) -> list[TopicPartitionKey]:
        """Return all partitions of these topics. Raise `TopicGone` if a topic does not exist."""
        known = self._metadata().topics
        found: list[TopicPartitionKey] = []
        for topic in topics:
            if topic not in known:
                raise TopicGone(f"topic {topic} does not exist", hint="create it, or correct `topics`")
            found += ((topic, partition) for partition in known[topic].partitions)
        return found

    def stable_end_offsets(self, keys: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, int]:
        """Return the last stable offsets (the ends of the committed records) of the partitions that Kafka reports."""
        found: dict[TopicPartitionKey, int] = {}
        for key, future in self._ask_ends(keys, IsolationLevel.READ_COMMITTED):
            with contextlib.suppress(SourceUnavailable, TopicGone):
                found[key] = self._answer(f"the end offset of {key[0]}", future).offset
        return found

    def high_watermarks(self, keys: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, int]:
        """Return end offsets, including records of open transactions. Unlike `end_offsets`, raise if one is unknown."""
        return {
            key: self._answer(f"the end offset of {key[0]}", future).offset
            for key, future in self._ask_ends(keys, IsolationLevel.READ_UNCOMMITTED)
        }

    def end_offsets(self, keys: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, int]:
        """Return the high watermarks of the partitions that Kafka reports."""
        found: dict[TopicPartitionKey, int] = {}
        for key, future in self._ask_ends(keys, IsolationLevel.READ_UNCOMMITTED):
            with contextlib.suppress(KeyfoldError):
                found[key] = self._answer(f"the end offset of {key[0]}", future).offset
        return found

    def _ask_ends(
        self, keys: Iterable[TopicPartitionKey], isolation: IsolationLevel
    ) -> Iterator[tuple[TopicPartitionKey, Future[ListOffsetsResultInfo]]]:
        asked = {TopicPartition(*key): _LATEST for key in keys}
        if asked:
            futures = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=self._timeout_s)
            yield from (((place.topic, place.partition), future) for place, future in futures.items())

    def _metadata(self) -> ClusterMetadata:
        try:
            found = self._admin.list_topics(timeout=self._timeout_s)
        except KafkaException as error:
            raise self._unanswered(translate(error.args[0], "the list of topics")) from error
        self._answered()
        return found

    def _topic_id(self, topic: str) -> str:
        asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=self._timeout_s)
        future: Future[TopicDescription] = asked[topic]
        # Kafka prints ids in the URL-safe alphabet, the client in the standard one.
        return str(self._answer(f"topic {topic}", future).topic_id).replace("+", "-").replace("/", "_")

    def _cluster_id(self) -> str:
        future: Future[DescribeClusterResult] = self._admin.describe_cluster(request_timeout=self._timeout_s)
        return str(self._answer("the cluster", future).cluster_id or "")

    def _settings(self, topic: str) -> Mapping[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        future = self._admin.describe_configs([resource], request_timeout=self._timeout_s)[resource]
        try:
            entries: dict[str, ConfigEntry] = self._answer(f"the settings of topic {topic}", future)
        except SourceForbidden:
            return {}
        return {key: str(entries[key].value) for key in FOLLOWED_SETTINGS if key in entries}

    def _answer(self, what: str, future: Future[T]) -> T:
        try:
            found = future.result(self._timeout_s * 2)
        except KafkaException as error:
            raise self._unanswered(translate(error.args[0], what)) from error
        except FutureTimeout as error:
            late = SourceUnavailable(f"Kafka did not answer the request for {what} within {self._timeout_s * 2:g} s")
            raise self._unanswered(late) from error
        self._admin.poll(0)  # drop errors that the client has queued; they are over, and would accumulate
        self._answered()
        return found

    def _answered(self) -> None:
        self._contact.answered()
        self._answered_s = self._clock.monotonic_s()

    def _unanswered(self, error: KeyfoldError) -> KeyfoldError:
        """Return the error, or the brokers' refusal of the login or TLS if that is the reason for no answer.

        Replace a client that has had no answer for a while.
        """
        if not isinstance(error, SourceUnavailable):
            return error
        self._admin.poll(0)  # makes the client call its error callback
        with self._lock:
            now_s = self._clock.monotonic_s()
            if now_s - self._answered_s >= _SILENT_CLIENT_S:
                self._answered_s = now_s
                self._admin = self._open()
        return self._contact.believed_refusal(waited_s=self._timeout_s) or error

    def _fresh(self, key: tuple[str, str], age_s: float, ask: Callable[[], T]) -> T:
        """Return the answer, at most `age_s` old. One caller makes the request; the others share its result or error.

        If each caller made a request in turn, the last would wait for all time-outs while the cluster does not answer.
        """
        while True:
            with self._lock:
                asked_s = self._clock.monotonic_s()
                kept = self._cache.get(key)
                if kept is not None and asked_s - kept[0] < age_s:
                    value: T = kept[1]
                    return value
                theirs = self._asking.get(key)
                if theirs is None:
                    mine = self._asking[key] = Future[None]()
                    break
            theirs.result()  # then check whether it is fresh enough
        try:
            value = ask()
        except BaseException as error:
            with self._lock:
                del self._asking[key]
            mine.set_exception(error)
            raise
        with self._lock:
            self._cache[key] = (asked_s, value)
            del self._asking[key]
        mine.set_result(None)
        return value


def translate(error: KafkaError, what: str) -> SourceUnavailable | TopicGone | SourceForbidden:
    """Return the sink's error for an error of Kafka. `what` names the requested thing."""
    if error.code() in GONE:
        return TopicGone(
            f"Kafka does not know {what}: {error.str()}",
            hint="create the topic, or remove it from the sink's `topics`; records that were read are in the log",
        )
    if error.code() in FORBIDDEN:
        kind = TopicForbidden if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED else SourceForbidden
        return kind(f"Kafka refuses access to {what}: {error.str()}", hint="check the client's credentials and ACLs")
    return SourceUnavailable(f"Kafka did not answer the request for {what}: {error.str()}")
