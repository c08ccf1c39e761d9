"""Avro through a whole sink: a real Kafka, a registry over HTTP, and the schemas archived beside the log."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer

from keyfold.errors import LogNotFound
from keyfold.log.names import schema_key
from tests.conftest import fresh
from tests.support.avro_cases import encode, framed
from tests.support.kafka import KafkaBroker
from tests.support.moto import LocalS3Process
from tests.support.proof import TOPICS_DIR, Rig, wait_for
from tests.support.schema_registry import StubRegistry

pytestmark = pytest.mark.kafka

MakeTopic = Callable[..., str]
OLD = {"type": "record", "name": "User", "fields": [{"name": "id", "type": "long"}]}
NEW = {
    "type": "record",
    "name": "User",
    "fields": [{"name": "id", "type": "long"}, {"name": "home", "type": ["null", "geo.Place"], "default": None}],
}
PLACE = {"type": "record", "name": "Place", "namespace": "geo", "fields": [{"name": "city", "type": "string"}]}


@pytest.fixture
def rig(broker: KafkaBroker, local_s3: LocalS3Process, bucket: str, tmp_path: Path) -> Rig:
    return Rig(broker, local_s3, bucket, tmp_path)


@pytest.fixture
def registry() -> Iterator[StubRegistry]:
    with StubRegistry(first_id=70_000) as found:
        yield found


def config(rig: Rig, topic: str, registry: StubRegistry, **keys: str) -> Path:
    return rig.config(
        topic,
        key_converter="string",
        value_converter="io.confluent.connect.avro.AvroConverter",
        value_converter_schema_registry_url=registry.url,
        **keys,
    )


def produce(rig: Rig, topic: str, values: list[bytes | None], partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": rig.broker.bootstrap_servers, "linger.ms": 5})
    for number, value in enumerate(values):
        producer.produce(topic, key=b"k%d" % (number % 7), value=value, partition=partition)
        producer.poll(0)
    assert producer.flush(60) == 0


def next_offset(rig: Rig, topic: str, partition: int) -> int:
    try:
        return rig.manifest(topic, partition).next_offset
    except LogNotFound:
        return 0


def kept(rig: Rig, number: int | str) -> object:
    store = rig.store()
    try:
        return json.loads(store.get(schema_key(TOPICS_DIR, number)).data)
    finally:
        store.close()  # type: ignore[attr-defined]  # the store is in S3


def test_a_segment_may_have_several_versions_of_a_schema_and_all_are_archived(
    rig: Rig, topic: MakeTopic, registry: StubRegistry
) -> None:
    name = topic()
    old = registry.register("users-value", OLD)
    registry.register("place", PLACE)
    new = registry.register("users-value", NEW, references=[("geo.Place", "place", 1)])
    home = b"\0" + new.to_bytes(4) + b"\x0e\x02" + encode("string", "Bern")
    produce(rig, name, [framed(old, OLD, {"id": 1}), home, None] * 500)
    rig.catch_up(config(rig, name, registry))
    assert rig.prove(name) == 1500
    assert len(rig.manifest(name).segments) == 1, "a schema's versions cut no segment"
    assert kept(rig, old) == OLD
    assert encode(kept(rig, new), {"id": 7, "home": ("geo.Place", {"city": "Bern"})}) == home[5:]
    assert sorted(registry.requests) == sorted(
        [f"/schemas/ids/{old}", f"/schemas/ids/{new}", "/subjects/place/versions/1"]
    ), "each is asked for once"


@pytest.mark.full
def test_an_unreachable_registry_blocks_only_its_own_partitions(
    rig: Rig, topic: MakeTopic, registry: StubRegistry
) -> None:
    name = topic(partitions=2)
    first, second = registry.register("a", OLD), registry.register("b", "string")
    produce(rig, name, [framed(first, OLD, {"id": n}) for n in range(100)], partition=0)
    with rig.start(config(rig, name, registry, errors_retry_delay_max_ms="500")) as sink:
        wait_for(lambda: next_offset(rig, name, 0) == 100, 60, "the first records")
        registry.answer = 503
        produce(rig, name, [framed(second, "string", "x")] * 100, partition=1)
        wait_for(lambda: f"/schemas/ids/{second}" in registry.requests, 120, "the question")
        produce(rig, name, [framed(first, OLD, {"id": n}) for n in range(100)], partition=0)
        wait_for(lambda: next_offset(rig, name, 0) == 200, 60, "the other partition to go on")
        assert next_offset(rig, name, 1) == 0
        asked = len(registry.requests)
        time.sleep(1)
        assert len(registry.requests) - asked < 20, "asked again with patience"
        registry.answer = 0
        wait_for(lambda: next_offset(rig, name, 1) == 100, 60, "the partition that waited")
        sink.signal(signal.SIGTERM)
        assert sink.wait(60) == 0
    assert rig.prove(name, partitions=2) == 300


def test_refused_credentials_of_the_registry_end_the_sink_with_a_hint(
    rig: Rig, topic: MakeTopic, registry: StubRegistry
) -> None:
    name = topic()
    registry.user_info = "me:s3cret"
    produce(rig, name, [framed(registry.register("a", OLD), OLD, {"id": 1})])
    said = rig.run(
        config(rig, name, registry, value_converter_basic_auth_user_info="me:wr0ng"), "--until-caught-up", code=1
    )
    assert "refuses" in said
    assert "value.converter.basic.auth" in said
    assert "wr0ng" not in said
    rig.catch_up(config(rig, name, registry, value_converter_basic_auth_user_info="me:s3cret"))
    assert rig.prove(name) == 1


def test_another_registry_is_refused_before_its_records_are_committed(
    rig: Rig, topic: MakeTopic, registry: StubRegistry
) -> None:
    name = topic()
    number = registry.register("a", OLD)
    produce(rig, name, [framed(number, OLD, {"id": 1})])
    rig.catch_up(config(rig, name, registry))
    with StubRegistry(first_id=number) as other:
        other.register("a", "string")
        produce(rig, name, [framed(number, "string", "x")])
        said = rig.run(config(rig, name, other), "--until-caught-up", code=1)
    assert schema_key(TOPICS_DIR, number) in said
    assert rig.manifest(name).next_offset == 1
    assert kept(rig, number) == OLD


def test_damaged_values_among_good_ones_go_to_the_dead_letter_topic(
    rig: Rig, topic: MakeTopic, registry: StubRegistry
) -> None:
    name, letters, random = topic(), fresh("letters"), Random(4)
    good = framed(registry.register("a", OLD), OLD, {"id": 1000})
    bad = [b"", b"{}", good[:-1], good + b"\0", b"\0\0\0\0\x01" + good[5:], b"\1" + good]
    values = [random.choice([good, good, good, None, random.choice(bad)]) for _ in range(400)]
    produce(rig, name, values)
    rig.catch_up(
        config(
            rig,
            name,
            registry,
            errors_tolerance="all",
            errors_deadletterqueue_topic_name=letters,
            errors_deadletterqueue_topic_replication_factor="1",
        )
    )
    manifest = rig.manifest(name)
    assert manifest.next_offset == 400
    assert sum(entry.record_count for entry in manifest.segments) == sum(value in {good, None} for value in values)
    assert {gap.reason for gap in manifest.gaps} == {
        "skipped: no magic byte",
        "skipped: does not decode",
        "skipped: bytes left over",
        "skipped: unknown schema",
        "skipped: no schema id",
    }
