"""The log has every part of every record: a real broker, the local store, and sinks as processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.support.kafka import KafkaBroker, produce_all, synthetic
from tests.support.moto import LocalS3Process
from tests.support.proof import Rig, read_segments, read_topic, wait_for

pytestmark = pytest.mark.kafka

MakeTopic = Callable[..., str]
FOREVER = {"retention.ms": "-1"}


@pytest.fixture
def rig(broker: KafkaBroker, local_s3: LocalS3Process, bucket: str, tmp_path: Path) -> Rig:
    return Rig(broker, local_s3, bucket, tmp_path)


def produce(rig: Rig, topic: str, *messages: dict[str, object], config: dict[str, object] | None = None) -> None:
    producer = Producer({"bootstrap.servers": rig.broker.bootstrap_servers, **(config or {})})
    for message in messages:
        producer.produce(topic, partition=0, **message)  # type: ignore[arg-type]  # fields by name, of any type
    assert producer.flush(30) == 0


def test_nulls_empties_duplicate_headers_and_tombstones_are_read_back_unchanged(rig: Rig, topic: MakeTopic) -> None:
    name = topic(config=FOREVER)
    produce(
        rig,
        name,
        {"key": b"k", "value": b"v"},
        {"key": b"k", "value": None},
        {"key": b"k", "value": b""},
        {"key": b"", "value": b"empty key"},
        {"key": None, "value": b"no key"},
        {"key": None, "value": None},
        {"key": b"\xff\x00", "value": bytes(range(256)) * 1000},
        {"key": b"h", "value": b"v", "headers": [("a", b"1"), ("a", None), ("", b""), ("a", b"1"), ("ü", b"\xff")]},
        {"key": b"t", "value": b"old", "timestamp": 1},
    )
    rig.catch_up(rig.config(name))
    assert rig.prove(name) == 9
    (entry,) = rig.manifest(name).segments
    assert (entry.record_count, entry.tombstone_count, entry.keyless_count) == (9, 1, 2)


def test_log_append_time_is_distinguished_from_create_time(rig: Rig, topic: MakeTopic) -> None:
    name = topic(config={"message.timestamp.type": "LogAppendTime"})
    produce(rig, name, {"key": b"k", "value": b"v", "timestamp": 5})
    rig.catch_up(rig.config(name))
    store = rig.store()
    (record,) = read_segments(store, name, 0)
    store.close()  # type: ignore[attr-defined]  # the store is in S3
    assert record.timestamp_type == "LogAppendTime"
    assert record.timestamp > 1_000_000_000_000
    rig.prove(name)


def test_a_compacted_source_has_holes_and_the_log_has_the_same(rig: Rig, topic: MakeTopic) -> None:
    name = topic(
        config={
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0",
            "internal.segment.bytes": "20000",
            "delete.retention.ms": "86400000",
            "min.compaction.lag.ms": "0",
        }
    )
    now = int(time.time() * 1000)
    rows = synthetic(3000, key_count=20, partition=0, base_timestamp_ms=now - 3000)
    produce_all(rig.broker.bootstrap_servers, name, rows, config={"batch.num.messages": 50})
    wait_for(lambda: len(read_topic(rig.broker.bootstrap_servers, name, 0)) < 2000, 60, "Kafka's cleaner")
    rig.catch_up(rig.config(name, segment_bytes=5000))
    manifest = rig.manifest(name)
    assert manifest.next_offset == 3000
    assert manifest.settings["cleanup.policy"] == "compact"
    store = rig.store()
    offsets = [r.offset for r in read_segments(store, name, 0)]
    store.close()  # type: ignore[attr-defined]  # the store is in S3
    assert len(offsets) < 2000
    # Kafka's cleaner may have gone on since: each record that is still there must be in the log.
    assert {r.offset for r in read_topic(rig.broker.bootstrap_servers, name, 0)} <= set(offsets)


def test_aborted_transactions_are_omitted_and_catching_up_ends_after_their_markers(rig: Rig, topic: MakeTopic) -> None:
    name = topic(config=FOREVER)
    producer = Producer({"bootstrap.servers": rig.broker.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        for row in range(50):
            producer.produce(name, key=b"%d" % row, value=b"%d" % number, partition=0)
        if number % 2:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    rig.catch_up(rig.config(name, flush_size=40))
    assert rig.prove(name) == 150
    assert rig.manifest(name).next_offset == 306  # the last abort and its marker included


def test_a_topic_with_only_aborted_records_is_caught_up(rig: Rig, topic: MakeTopic) -> None:
    name = topic(config=FOREVER)
    producer = Producer({"bootstrap.servers": rig.broker.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"v", b"k", partition=0)
    producer.flush(30)
    producer.abort_transaction(30)
    rig.catch_up(rig.config(name))
    manifest = rig.manifest(name)
    assert (manifest.segments, manifest.next_offset) == ((), 2)


def test_many_partitions_and_small_segments(rig: Rig, topic: MakeTopic) -> None:
    name = topic(partitions=8, config=FOREVER)
    produce_all(rig.broker.bootstrap_servers, name, synthetic(6_000, key_count=500, tombstone_share=0.1))
    rig.catch_up(rig.config(name, segment_bytes=20_000, topics_dir="topics"))
    assert rig.prove(name, 8) == 6_000
    assert len(rig.manifest(name, 3).segments) > 1


@pytest.mark.sharded
@pytest.mark.parametrize("codec", ["null", "snappy", "deflate"])
def test_other_codecs(rig: Rig, topic: MakeTopic, codec: str) -> None:
    name = topic(config=FOREVER)
    produce_all(rig.broker.bootstrap_servers, name, synthetic(1000, key_count=50, partition=0))
    rig.catch_up(rig.config(name, avro_codec=codec))
    assert rig.prove(name) == 1000


def test_a_segment_larger_than_a_part_is_uploaded_in_parts(rig: Rig, topic: MakeTopic) -> None:
    name = topic(config=FOREVER)
    rows = synthetic(13_000, key_count=5000, value_bytes=1000, partition=0)
    produce_all(rig.broker.bootstrap_servers, name, rows)
    rig.catch_up(rig.config(name, avro_codec="null", segment_ms=60_000))
    assert rig.prove(name) == 13_000
    (entry,) = rig.manifest(name).segments
    assert entry.size_bytes > 13_000_000


def test_an_empty_topic_is_caught_up_immediately(rig: Rig, topic: MakeTopic) -> None:
    name = topic(partitions=3)
    rig.catch_up(rig.config(name))
    assert [rig.manifest(name, p).next_offset for p in range(3)] == [0, 0, 0]


def test_topics_by_regular_expression_match_whole_names(rig: Rig, topic: MakeTopic) -> None:
    one, two = topic(config=FOREVER), topic(config=FOREVER)
    other = topic(name=f"{one}x", config=FOREVER)
    for name in (one, two, other):
        produce(rig, name, {"key": b"k", "value": name.encode()})
    config = rig.config("", name=one, topics_regex=f"{one}|{two}")
    text = config.read_text().replace('"topics": "", ', "")
    config.write_text(text)
    rig.catch_up(config)
    assert rig.prove(one) == rig.prove(two) == 1
    store = rig.store()
    assert list(store.list(f"topics/{other}/")) == []
    store.close()  # type: ignore[attr-defined]  # the store is in S3
