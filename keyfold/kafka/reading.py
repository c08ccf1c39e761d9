"""Reader of a range of a topic's partition, as records of a log, and a topic for the comparison with one.

Records that Kafka no longer has (compaction, retention, transaction markers) are missing: offsets ascend with holes, as
in a log. Memory holds the consumer's queue, which is small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Final, Self, cast

from keyfold.kafka.client import BrokerErrors, KafkaError, make_consumer, plain
from keyfold.kafka.cluster import KafkaCluster, TopicFacts
from keyfold.kafka.errors import KafkaUnavailable
from keyfold.log.record import NO_LEADER_EPOCH, TIMESTAMP_TYPES, Header, Record
from keyfold.runtime.clock import Clock, SystemClock

from confluent_kafka import Message, TopicPartition  # isort: skip - after `client` has proved that it is there

_BATCH: Final = 1000
_WAIT_S: Final = 1.0
# The end of a partition; and that there are no rights to a group, which a read without a group does not need.
_NO_ERROR: Final = frozenset({KafkaError._PARTITION_EOF, KafkaError.GROUP_AUTHORIZATION_FAILED})
_SETTINGS: Final[Mapping[str, object]] = {
    "fetch.queue.backoff.ms": 5,
    "queued.max.messages.kbytes": 16 * 1024,
    "queued.min.messages": 20_000,
}


def read_topic(
    settings: Mapping[str, str],
    topic: str,
    partition: int,
    from_offset: int,
    to_offset: int,
    *,
    committed: bool = True,
    retry_timeout_s: float = 60.0,
    clock: Clock | None = None,
) -> Iterator[Record]:
    """Yield records with `from_offset <= offset < to_offset`, in order; `to_offset` is at most the partition's end.

    `committed` omits records of aborted transactions. Raise `KafkaUnavailable` if no record arrives for
    `retry_timeout_s`, and the errors of `keyfold.kafka.client.plain`: a `from_offset` outside of the partition is a
    `KeyfoldError`.
    """
    if from_offset >= to_offset:
        return
    time = clock or SystemClock()
    contact = BrokerErrors()
    isolation = "read_committed" if committed else "read_uncommitted"
    place = TopicPartition(topic, partition, from_offset)
    consumer = make_consumer(settings, contact, {**_SETTINGS, "isolation.level": isolation})
    try:
        consumer.assign([place])
        heard_s = time.monotonic_s()
        while True:
            messages = consumer.consume(_BATCH, _WAIT_S)
            if messages:
                heard_s = time.monotonic_s()
            elif time.monotonic_s() - heard_s > retry_timeout_s:
                raise contact.refusal() or KafkaUnavailable(
                    f"no record of {topic}-{partition} arrived for {retry_timeout_s:.0f} s",
                    hint="run the command again",
                )
            for message in messages:
                _raise_error(message, f"the read of {topic}-{partition}", contact)
                if (message.offset() or 0) >= to_offset:
                    return
                if message.error() is None:
                    yield record_of(message)
            # What follows the last record below `to_offset` may be markers alone: the position says so.
            if consumer.position([place])[0].offset >= to_offset:
                return
    finally:
        consumer.close()


def _raise_error(message: Message, what: str, contact: BrokerErrors) -> None:
    error = message.error()
    if error is not None and error.code() not in _NO_ERROR:
        raise plain(error, what, contact)


def record_of(message: Message) -> Record:
    """A consumed message as a record of a log."""
    kind, timestamp = message.timestamp()
    headers = cast("tuple[Header, ...]", tuple(message.headers() or ()))
    epoch = message.leader_epoch()
    return Record(
        message.offset(),  # type: ignore[arg-type]  # a record has an offset
        timestamp,
        TIMESTAMP_TYPES[kind],
        message.key(),
        message.value(),
        headers,
        NO_LEADER_EPOCH if epoch is None else epoch,
    )


class KafkaTopic:
    """A read-only topic (`keyfold.verify.compare.TopicReader`). A context manager; thread-safe.

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
