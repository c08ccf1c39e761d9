"""Refusals of a sink: one clear line with the cause and the place, exit code 1, and an unchanged log."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from keyfold.log.manifest import Manifest
from tests.support.kafka import KafkaBroker, produce_all, synthetic
from tests.support.moto import Fault, LocalS3Process
from tests.support.proof import Rig, SinkProcess

pytestmark = pytest.mark.kafka

MakeTopic = Callable[..., str]
FOREVER = {"retention.ms": "-1"}


@pytest.fixture
def rig(broker: KafkaBroker, local_s3: LocalS3Process, bucket: str, tmp_path: Path) -> Rig:
    return Rig(broker, local_s3, bucket, tmp_path)


def error_of(said: str) -> str:
    lines = [line for line in said.splitlines() if line.startswith("error:")]
    assert len(lines) == 1, said[-2000:]
    assert "Traceback" not in said
    return lines[0]


def fill(rig: Rig, topic: str, count: int = 100, *, ahead_ms: int = 0) -> None:
    now = int(time.time() * 1000)
    rows = synthetic(count, key_count=10, partition=0, base_timestamp_ms=now + ahead_ms)
    produce_all(rig.broker.bootstrap_servers, topic, rows)


def delete_records(rig: Rig, topic: str, before: int) -> None:
    place = TopicPartition(topic, 0, before)
    rig.broker.admin.delete_records([place])[place].result(60)


def content(manifest: Manifest) -> object:
    return (manifest.log_id, manifest.next_offset, manifest.segments, manifest.gaps, manifest.topic_id)


def recreate(rig: Rig, topic: str) -> None:
    rig.broker.delete_topic(topic)
    rig.broker.create_topic(topic, 1, FOREVER)


def test_a_recreated_topic(rig: Rig, topic: MakeTopic) -> None:
    name = topic(config=FOREVER)
    fill(rig, name)
    rig.catch_up(rig.config(name))
    before = rig.manifest(name)
    recreate(rig, name)
    fill(rig, name, 200)
    error = error_of(rig.fail(rig.config(name)))
    assert "created again" in error
    assert f"{name}-0" in error
    assert content(rig.manifest(name)) == content(before)


@pytest.mark.full
def test_a_topic_recreated_while_the_sink_runs(rig: Rig, topic: MakeTopic) -> None:
    name = topic(config=FOREVER)
    fill(rig, name)
    with rig.start(rig.config(name, consumer_override_topic_metadata_refresh_interval_ms=500)) as sink:
        sink.until("segment committed")
        recreate(rig, name)
        fill(rig, name, 500)
        sink.until("partition failed", 90)
        assert sink.end() == 1
        assert "created again" in sink.said or "does not exist" in sink.said or "no longer exists" in sink.said
    assert rig.manifest(name).next_offset == 100


@pytest.mark.full
def test_a_topic_deleted_while_the_sink_has_nothing_to_write(rig: Rig, topic: MakeTopic) -> None:
    """With the client's own settings and soon after its start, nothing else would detect it."""
    name, other = topic(config=FOREVER), topic(config=FOREVER)
    fill(rig, name)
    with rig.start(rig.config(f"{name},{other}")) as sink:
        sink.until("segment committed")
        rig.broker.delete_topic(name)
        sink.until("partition failed")
        fill(rig, other)
        sink.until(f'"topic": "{other}", "partition": 0, "next_offset": 100')
        assert sink.end() == 1
        assert f"Kafka does not know topic {name}" in sink.said
    assert rig.manifest(name).next_offset == 100


@pytest.mark.parametrize("policy", ["fail", "record"])
def test_records_lost_at_the_source(rig: Rig, topic: MakeTopic, policy: str) -> None:
    name = topic(config=FOREVER)
    fill(rig, name)
    rig.catch_up(rig.config(name))
    before = rig.manifest(name)
    fill(rig, name)
    delete_records(rig, name, 150)
    if policy == "fail":
        error = error_of(rig.fail(rig.config(name)))
        assert "offset 100" in error
        assert "150" in error
        assert content(rig.manifest(name)) == content(before)
        return
    rig.catch_up(rig.config(name, source_gap_policy="record"))
    after = rig.manifest(name)
    assert [(gap.from_offset, gap.to_offset) for gap in after.gaps] == [(100, 150)]
    assert (after.record_count, after.next_offset) == (150, 200)


@pytest.mark.full
def test_records_lost_while_the_sink_reads_them(rig: Rig, topic: MakeTopic) -> None:
    """The client's position is out of range: earlier records are committed, and the gap is recorded."""
    name = topic(config=FOREVER)
    fill(rig, name, 1000)
    config = rig.config(name, source_gap_policy="record", consumer_override_max_partition_fetch_bytes=1000)
    with rig.start(config) as sink:
        sink.until("segment committed")
        fill(rig, name, 1000)
        delete_records(rig, name, 2000)
        fill(rig, name, 10)
        sink.until('"next_offset": 2010', 120)
        assert sink.end() == 0
    manifest = rig.manifest(name)
    lost = sum(gap.to_offset - gap.from_offset for gap in manifest.gaps)
    assert manifest.record_count + lost == 2010


def test_a_compacted_topic_not_read_for_longer_than_delete_retention(rig: Rig, topic: MakeTopic) -> None:
    name = topic(config={"cleanup.policy": "compact", "delete.retention.ms": "100", "min.cleanable.dirty.ratio": "1"})
    fill(rig, name)
    rig.catch_up(rig.config(name))
    time.sleep(0.5)
    rig.catch_up(rig.config(name))  # nothing is unread: no reason to worry
    produce_all(
        rig.broker.bootstrap_servers,
        name,
        synthetic(10, key_count=5, partition=0, base_timestamp_ms=int(time.time() * 1000) - 60_000),
    )
    error = error_of(rig.fail(rig.config(name)))
    assert "delete.retention.ms" in error
    rig.catch_up(rig.config(name, source_gap_policy="record"))
    assert [gap.from_offset for gap in rig.manifest(name).gaps] == [100]
    assert rig.prove(name) == 110


def test_an_idle_compacted_topic_is_not_refused(rig: Rig, topic: MakeTopic) -> None:
    name = topic(config={"cleanup.policy": "compact", "delete.retention.ms": "100"})
    fill(rig, name)
    rig.catch_up(rig.config(name))
    time.sleep(0.5)
    fill(rig, name, 5, ahead_ms=60_000)  # young, however long a sink takes to start
    rig.catch_up(rig.config(name))
    assert rig.manifest(name).gaps == ()


def test_a_missing_bucket(rig: Rig, topic: MakeTopic) -> None:
    error = error_of(rig.fail(rig.config(topic(), s3_bucket_name="no-such-bucket-here")))
    assert "no-such-bucket-here" in error


def test_missing_rights(rig: Rig, topic: MakeTopic, local_s3: LocalS3Process) -> None:
    local_s3.set_faults(Fault(r"^PUT ", status=403, times=-1))
    error = error_of(rig.fail(rig.config(topic())))
    assert "denied" in error.lower() or "403" in error


def test_a_store_that_refuses_every_condition(rig: Rig, topic: MakeTopic, local_s3: LocalS3Process) -> None:
    local_s3.set_faults(Fault(r"^PUT ", status=412, times=-1))
    error = error_of(rig.fail(rig.config(topic())))
    assert "If-None-Match" in error


def test_a_topic_that_does_not_exist(rig: Rig) -> None:
    error = error_of(rig.run(rig.config("no-such-topic"), "--until-caught-up", code=1))
    assert "no-such-topic" in error


def test_a_lost_manifest(rig: Rig, topic: MakeTopic, local_s3: LocalS3Process) -> None:
    name = topic(config=FOREVER)
    fill(rig, name)
    rig.catch_up(rig.config(name))
    client = local_s3.client()
    client.delete_object(Bucket=rig.bucket, Key=f"topics/{name}/partition=0/_manifest.avro")
    folder = {"Bucket": rig.bucket, "Prefix": f"topics/{name}/"}
    keys = [row["Key"] for row in client.list_objects_v2(**folder)["Contents"]]
    said = rig.fail(rig.config(name))
    assert "keyfold log repair" in said
    assert [row["Key"] for row in client.list_objects_v2(**folder)["Contents"]] == keys
    client.close()


def test_a_wrong_key_in_the_configuration(rig: Rig, topic: MakeTopic) -> None:
    config = rig.config(topic())
    config.write_text(json.dumps({**json.loads(config.read_text()), "flush.sice": "3"}))
    said = rig.run(config, code=2)
    assert "flush.sice" in error_of(said)
    assert "flush.size" in said


@pytest.mark.full
def test_a_store_unreachable_at_the_start_is_awaited(rig: Rig, topic: MakeTopic, local_s3: LocalS3Process) -> None:
    name = topic(config=FOREVER)
    fill(rig, name)
    local_s3.set_faults(Fault(r"", status=503, times=-1))
    sink: SinkProcess
    with rig.start(rig.config(name)) as sink:
        sink.until("waiting for an answer")
        local_s3.set_faults()
        sink.until("segment committed")
        assert sink.end() == 0


@pytest.mark.full
def test_sigterm_during_a_store_outage_ends_in_time_and_is_reported(
    rig: Rig, topic: MakeTopic, local_s3: LocalS3Process
) -> None:
    name = topic(config=FOREVER)
    with rig.start(rig.config(name, task_shutdown_graceful_timeout_ms=2000)) as sink:
        sink.until("partition claimed")
        local_s3.set_faults(Fault(r"partition(=|%3D)0", status=503, times=-1))
        fill(rig, name)
        time.sleep(2)
        assert sink.end(40) == 1
        assert "nothing is lost" in sink.said
    local_s3.set_faults()
    rig.catch_up(rig.config(name))
    assert rig.prove(name) == 100
