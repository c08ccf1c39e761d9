"""The target in a real cluster: what `keyfold.restore.target` asks for, over keyfold.kafka.

A producer is idempotent, acknowledged by all replicas, and without gaps: where one record cannot be delivered, none
behind it is. What it cannot deliver within its time it gives up, so that nothing of it comes late
(`keyfold.restore.lease`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from keyfold.errors import KeyfoldError
from keyfold.kafka.client import BrokerErrors, KafkaError, KafkaException, Message, Producer, make_producer, plain
from keyfold.kafka.cluster import KafkaCluster, wait_for_topic
from keyfold.kafka.errors import KafkaTopicMissing, KafkaUnavailable
from keyfold.kafka.reading import read_topic
from keyfold.log.record import Record
from keyfold.restore.errors import RecordRefused, TargetMoved
from keyfold.restore.rows import Row
from keyfold.restore.target import TargetEnds, TargetTopic
from keyfold.runtime.clock import Clock, SystemClock

OWNED: Final = frozenset(
    {
        *("acks", "request.required.acks", "enable.idempotence", "transactional.id", "enable.gapless.guarantee"),
        *("message.timeout.ms", "delivery.timeout.ms", "message.max.bytes", "max.request.size", "retries"),
        *("message.send.max.retries", "delivery.report.only.error", "dr_cb", "on_delivery", "group.id"),
        *("request.timeout.ms", "transaction.timeout.ms"),
    }
)
"""Keys that a user cannot set: a restore is what it is because of them."""

_DEFAULTS: Final[Mapping[str, str | int]] = {
    "linger.ms": 20,
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 32 * 1024,
    "client.id": "keyfold-restore",
}
_BATCH_BYTES: Final = 1_000_000
_LEAST_MESSAGE_BYTES: Final = 1000
_MOST_MESSAGE_BYTES: Final = 1_000_000_000
_POLL_S: Final = 0.1
_BROKER_KEYS: Final = {
    "cleanup.policy": "log.cleanup.policy",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.type": "log.message.timestamp.type",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "retention.ms": "log.retention.ms",
    "retention.bytes": "log.retention.bytes",
    "min.insync.replicas": "min.insync.replicas",
    "compression.type": "compression.type",
}


def describe_target(cluster: KafkaCluster, name: str) -> TargetTopic | None:
    """The topic, or None if it does not exist."""
    try:
        facts = cluster.topic(name)
    except KafkaTopicMissing:
        return None
    return TargetTopic(
        name,
        facts.topic_id,
        cluster.cluster_id(),
        len(facts.partitions),
        cluster.topic_settings(name),
        min((p.in_sync for p in facts.partitions), default=0),
    )


def imagined_target(cluster: KafkaCluster, name: str, partitions: int, settings: Mapping[str, str]) -> TargetTopic:
    """The topic as it would be if it were made: the brokers' defaults, as far as they may be asked, and `settings`."""
    try:
        of_brokers = cluster.broker_settings()
    except KeyfoldError:
        of_brokers = {}
    known = {key: of_brokers[theirs] for key, theirs in _BROKER_KEYS.items() if theirs in of_brokers}
    if "retention.ms" not in known and "log.retention.hours" in of_brokers:
        known["retention.ms"] = str(int(of_brokers["log.retention.hours"]) * 3_600_000)
    return TargetTopic(name, "", cluster.cluster_id(), partitions, {**known, **settings}, exists=False)


def compression_of(topic: TargetTopic, settings: Mapping[str, str]) -> str:
    """How batches are compressed: as asked for, else as the topic keeps them, else lz4."""
    given = settings.get("compression.type", settings.get("compression.codec"))
    if given is not None:
        return given
    kept = topic.settings.get("compression.type", "producer")
    return {"producer": "lz4", "uncompressed": "none"}.get(kept, kept)


# The producer cannot go on; a new one can, from what has landed.
_OF_THE_PRODUCER: Final = frozenset(
    {
        KafkaError._FATAL,
        KafkaError._GAPLESS_GUARANTEE,
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.INVALID_PRODUCER_EPOCH,
    }
)


class KafkaTopics:
    """`keyfold.restore.run.TargetTopics` in a cluster."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster

    def describe(self, name: str) -> TargetTopic | None:
        """See `Topics.describe`."""
        return describe_target(self._cluster, name)

    def imagine(self, name: str, partitions: int, settings: Mapping[str, str]) -> TargetTopic:
        """See `Topics.imagine`."""
        return imagined_target(self._cluster, name, partitions, settings)

    def create(self, name: str, partitions: int, settings: Mapping[str, str], replication_factor: int) -> TargetTopic:
        """See `Topics.create`."""
        self._cluster.create_topic(name, partitions, settings, replication_factor=replication_factor)
        wait_for_topic(self._cluster, name, partitions)
        found = describe_target(self._cluster, name)
        if found is None:
            raise KafkaUnavailable(
                f"topic {name} was created, but the brokers do not know it yet", hint="run the command again"
            )
        return found

    def compression(self, topic: TargetTopic) -> str:
        """See `Topics.compression`."""
        return compression_of(topic, self._cluster.settings)

    def open(self, topic: TargetTopic, *, send_s: float, largest_bytes: int) -> KafkaTarget:
        """See `Topics.open`."""
        return KafkaTarget(self._cluster, topic, send_s=send_s, largest_bytes=largest_bytes)


class KafkaTarget:
    """A `Target` in a cluster. `largest_bytes`: no record is larger, before compression."""

    def __init__(
        self,
        cluster: KafkaCluster,
        topic: TargetTopic,
        *,
        send_s: float,
        largest_bytes: int,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._cluster = cluster
        self._topic = topic
        limit = int(topic.settings.get("max.message.bytes", _BATCH_BYTES))
        self._own = {
            "acks": "all",
            "enable.idempotence": True,
            "enable.gapless.guarantee": True,
            "message.timeout.ms": max(1, int(send_s * 1000)),
            "request.timeout.ms": max(1, int(send_s * 1000 / 2)),
            "message.max.bytes": min(max(limit, 2 * largest_bytes, _LEAST_MESSAGE_BYTES), _MOST_MESSAGE_BYTES),
            "compression.type": compression_of(topic, cluster.settings),
        }
        settings = {key: value for key, value in cluster.settings.items() if key != "compression.codec"}
        queue_kbytes = max(int(_DEFAULTS["queue.buffering.max.kbytes"]), 4 * largest_bytes // 1024)
        batch_bytes = max(1, min(_BATCH_BYTES, limit - 512))
        self._settings = {
            **{key: str(value) for key, value in _DEFAULTS.items()},
            "queue.buffering.max.kbytes": str(queue_kbytes),
            "batch.size": str(batch_bytes),
            **settings,
        }

    def ends(self, partition: int) -> TargetEnds:
        """See `Target.ends`."""
        found = self._cluster.ends(self._topic.name, [partition])[partition]
        return TargetEnds(found.start_offset, found.end_offset)

    def records(self, partition: int, start: int, end: int) -> Iterator[Record]:
        """See `Target.records`."""
        return read_topic(self._cluster.settings, self._topic.name, partition, start, end, committed=False)

    def channel(self, partition: int, next_offset: int) -> KafkaChannel:
        """See `Target.channel`."""
        contact = BrokerErrors()
        producer = make_producer(self._settings, contact, self._own)
        return KafkaChannel(producer, contact, self._topic.name, partition, next_offset, self._clock)


class KafkaChannel:
    """A `Channel`: one idempotent producer."""

    def __init__(
        self, producer: Producer, contact: BrokerErrors, topic: str, partition: int, next_offset: int, clock: Clock
    ) -> None:
        self._producer = producer
        self._produce = partial(producer.produce, topic, partition=partition, on_delivery=self._reported)
        self._now_s = clock.monotonic_s
        self._contact = contact
        self._topic = topic
        self._partition = partition
        self._landed = next_offset
        self._sent = next_offset
        self._failure: KeyfoldError | None = None

    @property
    def landed_offset(self) -> int:
        """See `Channel.landed_offset`."""
        return self._landed

    def send(self, rows: list[Row], fresh_until_s: float) -> int:
        """See `Channel.send`."""
        produce, now_s, taken = self._produce, self._now_s, 0
        try:
            for _, timestamp, key, value, headers in rows:
                if now_s() > fresh_until_s:
                    break
                produce(value=value, key=key, timestamp=timestamp, headers=headers)  # type: ignore[arg-type]  # a list of our headers is one of its
                taken += 1
        except BufferError:
            self._producer.poll(_POLL_S)
        except KafkaException as error:
            self._producer.poll(0)
            self._check()
            raise self._refusal(error.args[0], self._sent + taken) from error
        self._sent += taken
        self._producer.poll(0)
        self._check()
        return taken

    def settle(self) -> None:
        """See `Channel.settle`."""
        while self._landed < self._sent:
            self._producer.flush(_POLL_S)
            self._check()
        self._check()

    def close(self) -> bool:
        """See `Channel.close`."""
        if self._landed < self._sent:
            self._producer.purge(in_queue=True, in_flight=False)
        self._failure = self._failure or KeyfoldError("the channel is closed")
        return int(self._producer.flush(_POLL_S * 20)) == 0

    def _reported(self, error: KafkaError | None, message: Message) -> None:
        """What became of a record, in the order in which they were sent."""
        if self._failure is not None:
            return
        if error is None:
            if message.offset() == self._landed:
                self._landed += 1
            else:
                self._failure = TargetMoved(
                    f"{self._topic}-{self._partition}: a record landed at offset {message.offset()}, not at "
                    f"{self._landed}: something else writes into the target",
                    hint="the restored records can no longer be identified: restore into a new topic, and let nothing "
                    "else write into it",
                )
        else:
            self._failure = self._refusal(error, self._landed)

    def _refusal(self, error: KafkaError, target_offset: int) -> KeyfoldError:
        what = f"a record for {self._topic}-{self._partition}"
        if error.code() in _OF_THE_PRODUCER:
            return KafkaUnavailable(
                f"the producer of {self._topic}-{self._partition} has to be restarted: {error.str()}"
            )
        found = plain(error, what, self._contact)
        if type(found) is KeyfoldError:
            return RecordRefused(found.message, target_offset=target_offset)
        return found

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
