"""The servers that the other integration tests take for granted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError
from confluent_kafka import Consumer, KafkaException, TopicPartition

from keyfold.errors import KeyfoldError
from tests.support.changelog import SMALL, changes
from tests.support.kafka import KafkaBroker, produce_all, produce_changes, synthetic
from tests.support.versitygw import Versitygw


def consume(broker: KafkaBroker, topic: str, partition: int, count: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0)])
    rows: list[Any] = []
    while len(rows) < count:
        got = consumer.consume(count - len(rows), timeout=60)  # waits for that many
        assert got
        rows += got
    consumer.close()
    return rows


@pytest.mark.kafka
def test_a_changelog_goes_in_and_comes_out_in_order(broker: KafkaBroker, topic: Callable[..., str]) -> None:
    name = topic(config={"cleanup.policy": "compact", "segment.bytes": "104857600", "min.cleanable.dirty.ratio": "1"})
    assert produce_changes(broker.bootstrap_servers, name, changes(SMALL)) == SMALL.record_count
    rows = consume(broker, name, 0, SMALL.record_count)
    assert [(row.key(), row.value(), row.timestamp()[1]) for row in rows] == [
        (row.key, row.value, row.timestamp_ms) for row in changes(SMALL)
    ]
    assert [row.offset() for row in rows] == list(range(SMALL.record_count))


@pytest.mark.kafka
def test_a_refused_record_is_an_error_and_not_a_gap(broker: KafkaBroker, topic: Callable[..., str]) -> None:
    name = topic(config={"cleanup.policy": "compact"})
    with pytest.raises(KeyfoldError, match=name):
        produce_all(broker.bootstrap_servers, name, [(None, b"keyless in a compacted topic", None, 0)])


@pytest.mark.kafka
def test_topics_are_never_created_by_accident(broker: KafkaBroker, topic: Callable[..., str]) -> None:
    config = {"message.timeout.ms": 3000, "log_level": 0}
    with pytest.raises(KeyfoldError, match="nobody-made-this"):
        produce_all(broker.bootstrap_servers, "nobody-made-this", synthetic(1, key_count=1), config=config)
    name = topic(3)
    with pytest.raises(KafkaException, match="already exists"):
        topic(3, name=name)


@pytest.mark.real
def test_versitygw_keeps_conditions_credentials_and_checksums(versitygw: Versitygw) -> None:
    bucket = versitygw.create_bucket("support")
    client = versitygw.client()
    client.put_object(Bucket=bucket, Key="a", Body=b"x", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=bucket, Key="a", Body=b"x", IfNoneMatch="*")
    with pytest.raises(ClientError):
        client.put_object(Bucket=bucket, Key="a", Body=b"x", ChecksumSHA256="A" * 43 + "=")
    client.close()
