"""What Kafka itself has of the topic, read from this machine by the port that the stack publishes."""

from __future__ import annotations

from typing import Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

SERVERS: Final = "127.0.0.1:9092"
TOPIC: Final = "users"
_RETRY_TIMEOUT_S: Final = 60.0

Latest = dict[str, tuple[int, int, str]]
"""Key -> partition, offset, value of its last record, without keys whose last record is a deletion."""


def end_offsets() -> dict[int, int]:
    """By partition, as the broker has them."""
    consumer = _consumer()
    try:
        found = consumer.list_topics(TOPIC, timeout=_RETRY_TIMEOUT_S).topics[TOPIC].partitions
        ends = {}
        for partition in found:
            marks = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=_RETRY_TIMEOUT_S)
            ends[partition] = int(marks[1])
        return ends
    finally:
        consumer.close()


def latest(ends: dict[int, int]) -> Latest:
    """The last record of each key, of all records below `ends`."""
    consumer = _consumer()
    last: dict[str, tuple[int, int, str | None]] = {}
    open_ends = {partition for partition, end in ends.items() if end}
    try:
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in open_ends])
        while open_ends:
            message = consumer.poll(_RETRY_TIMEOUT_S)
            assert message is not None, f"partitions {sorted(open_ends)} cannot be read to their end"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                open_ends.discard(message.partition())
                continue
            key, value = message.key(), message.value()
            assert isinstance(key, bytes)
            text = value.decode() if isinstance(value, bytes) else None
            last[key.decode()] = (int(message.partition() or 0), int(message.offset() or 0), text)
    finally:
        consumer.close()
    return {key: (partition, offset, value) for key, (partition, offset, value) in last.items() if value is not None}


def _consumer() -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": SERVERS,
            "group.id": "compose-try",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
