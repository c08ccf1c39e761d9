"""A log restored into a real Kafka, read from a real (local) S3, by the command as an operator runs it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from keyfold.errors import KeyfoldError
from keyfold.kafka.cluster import KafkaCluster
from keyfold.kafka.settings import client_settings
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.read.log import Log
from keyfold.runtime.clock import SystemClock
from keyfold.store.s3 import S3Store
from tests.support.cleaning import EAGER, new_run
from tests.support.command_here import Ended, run_here
from tests.support.kafka import KafkaBroker, produce_all, synthetic
from tests.support.logs import MadeLog, latest_of
from tests.support.moto import LocalS3Process
from tests.support.proof import Rig, read_segments, read_topic

pytestmark = pytest.mark.kafka

MakeTopic = Callable[..., str]
FOREVER = {"retention.ms": "-1"}
COMPACTED = {"cleanup.policy": "compact", "min.compaction.lag.ms": "86400000"}


@pytest.fixture
def rig(broker: KafkaBroker, local_s3: LocalS3Process, bucket: str, tmp_path: Path) -> Rig:
    return Rig(broker, local_s3, bucket, tmp_path)


def command(rig: Rig, topic: str, *options: str) -> Ended:
    servers = ("-b", rig.broker.bootstrap_servers)
    return run_here(rig.s3.environment, "restore", f"s3://{rig.bucket}/topics", topic, *servers, *options)


def restored(rig: Rig, topic: str, *options: str) -> list[dict[str, object]]:
    done = command(rig, topic, "--json", *options)
    assert done.code == 0, done.out + done.err
    return [json.loads(line) for line in done.out.splitlines()]


def bare(records: list[Record]) -> list[Record]:
    return [replace(r, offset=0, leader_epoch=0) for r in records]


def test_unusual_records_are_restored_byte_for_byte(rig: Rig, topic: MakeTopic) -> None:
    name, target = topic(config=FOREVER), topic(config=FOREVER)
    producer = Producer({"bootstrap.servers": rig.broker.bootstrap_servers, "message.max.bytes": 10_000_000})
    for message in (
        {"key": b"k", "value": b"v", "timestamp": 1},
        {"key": b"k", "value": None},
        {"key": b"k", "value": b""},
        {"key": b"", "value": b"empty key"},
        {"key": None, "value": b"no key"},
        {"key": None, "value": None},
        {"key": b"\xff\x00", "value": bytes(range(256)) * 9000, "timestamp": 1_900_000_000_000 - 300_000_000_000},
        {"key": b"h", "value": b"v", "headers": [("a", b"1"), ("a", None), ("", b""), ("a", b"1"), ("ü", b"\xff")]},
    ):
        producer.produce(name, partition=0, **message)
    assert producer.flush(30) == 0
    rig.catch_up(rig.config(name))
    expected = read_topic(rig.broker.bootstrap_servers, name, 0)
    dry = restored(rig, name, "--to-topic", target, "--dry-run")
    assert [(row["records"], row["landed"]) for row in dry if row["type"] == "plan"] == [(8, 0)]
    assert read_topic(rig.broker.bootstrap_servers, target, 0) == []

    (row,) = restored(rig, name, "--to-topic", target)
    assert (row["records"], row["written"], row["first_offset"], row["next_offset"]) == (8, 8, 0, 8)
    assert bare(read_topic(rig.broker.bootstrap_servers, target, 0)) == bare(expected)
    (row,) = restored(rig, name, "--to-topic", target)
    assert (row["was_finished"], row["written"]) == (True, 0)
    assert len(read_topic(rig.broker.bootstrap_servers, target, 0)) == 8


def test_kafka_sink_compact_restore_sink_again_gives_the_same_state(rig: Rig, topic: MakeTopic) -> None:
    name, target = topic(partitions=2, config=COMPACTED), topic(partitions=2, config=COMPACTED)
    now = int(time.time() * 1000)
    for partition in (0, 1):
        rows = synthetic(
            4000, key_count=150, tombstone_share=0.2, partition=partition, seed=partition, base_timestamp_ms=now - 9000
        )
        produce_all(rig.broker.bootstrap_servers, name, rows)
    rig.catch_up(rig.config(name, flush_size=900))
    store = rig.store()
    whole = {p: latest_of(read_topic(rig.broker.bootstrap_servers, name, p)) for p in (0, 1)}
    run = new_run(store, replace(EAGER, delete_retention_ms=86_400_000), clock=SystemClock())
    run.clean([Place("topics", name, partition) for partition in (0, 1)])
    compacted = {p: read_segments(store, name, p) for p in (0, 1)}
    assert all(len(found) < 400 for found in compacted.values())

    rows_of = {row["partition"]: row for row in restored(rig, name, "--to-topic", target)}
    rig.catch_up(rig.config(target))
    for partition in (0, 1):
        again = read_segments(store, target, partition)
        assert rows_of[partition]["records"] == len(again)
        assert bare(again) == bare(compacted[partition])
        state = latest_of(again)
        assert {k: bare([r]) for k, r in state.items()} == {k: bare([r]) for k, r in whole[partition].items()}
    store.close()  # type: ignore[attr-defined]  # the store is in S3


@pytest.fixture
def store(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    for name, value in rig.s3.environment.items():
        monkeypatch.setenv(name, value)
    return S3Store(rig.bucket)


def made_log(store: S3Store, topic: str, count: int = 500, **changes: object) -> MadeLog:
    log = MadeLog(store=store, place=Place("topics", topic, 0), clock=SystemClock(), block_bytes=4000)
    now = int(time.time() * 1000) - 3_600_000
    batch = [
        Record(o, now + o, "CreateTime", b"k%d" % (o % 70), None if o % 9 == 0 else b"v%d" % o * 9)
        for o in range(count)
    ]
    for at in range(0, count, 200):
        log.append(batch[at : at + 200])
    return log


def test_a_new_topic_is_made_and_only_the_latest_state_is_written(rig: Rig, store: S3Store) -> None:
    log = made_log(store, "new-one")
    rows = restored(rig, "new-one", "--latest", "--offset-header", "at", "--topic-config", "retention.ms=-1",
                    "--to-topic", "made-for-it")  # fmt: skip
    assert [row["type"] for row in rows] == ["restored"]
    found = read_topic(rig.broker.bootstrap_servers, "made-for-it", 0)
    expected = list(Log(store, "topics", "new-one").latest())
    assert [r.headers for r in found] == [(("at", b"%d" % r.offset),) for r in expected]
    assert [(r.key, r.value, r.timestamp) for r in found] == [(r.key, r.value, r.timestamp) for r in expected]
    assert log.manifest.next_offset == 500
    store.close()


def test_group_offsets_point_at_the_restored_records(
    rig: Rig, store: S3Store, topic: MakeTopic, tmp_path: Path
) -> None:
    log = made_log(store, "grouped")
    log.compact()
    target = topic(config=FOREVER)
    left = [r.offset for r in read_segments(store, "grouped", 0)]
    asked = [0, 17, left[0], left[1], left[40], left[40] + 1, 499, 500]
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    old.write_text("".join(f'"a group, quoted",grouped,0,{offset}\n' for offset in asked) + "g,other,0,5\n")
    rows = restored(rig, "grouped", "--to-topic", target, "--group-offsets", str(old), "--group-offsets-to", str(new))
    assert rows[-1] == {"type": "group_offsets", "file": str(new), "rows": len(asked), "left_out": 1}
    expected = [sum(offset < at for offset in left) for at in asked]
    assert new.read_text() == "".join(f'"a group, quoted",{target},0,{offset}\n' for offset in expected)
    store.close()


def test_records_that_kafka_would_refuse_or_drop_are_reported_before_writing(
    rig: Rig, store: S3Store, topic: MakeTopic
) -> None:
    made_log(store, "warned")
    now = int(time.time() * 1000)
    log = MadeLog(store=store, place=Place("topics", "hard", 0), clock=SystemClock(), block_bytes=4000)
    log.append([Record(0, now, "CreateTime", None, b"x" * 5000), Record(1, now + 10**8, "CreateTime", b"k", b"v")])

    target = topic(
        config={"cleanup.policy": "compact", "max.message.bytes": "4000", "compression.type": "uncompressed"}
    )
    done = command(rig, "hard", "--to-topic", target)
    assert done.code == 1
    assert "error: partition 0 has 1 record without a key, the first at offset 0" in done.err
    assert "larger than max.message.bytes=4000" in done.err
    assert "message.timestamp.after.max.ms=3600000: Kafka rejects them" in done.err
    assert "Traceback" not in done.err
    assert read_topic(rig.broker.bootstrap_servers, target, 0) == []

    target = topic(config={"retention.ms": "1000", "message.timestamp.type": "LogAppendTime"})
    done = command(rig, "warned", "--to-topic", target, "--strict")
    assert done.code == 1
    assert "LogAppendTime: every record gets the time of the restore" in done.err
    done = command(rig, "warned", "--to-topic", target)
    assert done.code == 0
    assert "warning: topic" in done.err

    target = topic(config={"retention.ms": "60000"})
    done = command(rig, "warned", "--to-topic", target, "--dry-run")
    assert "partition 0 has 500 records older than retention.ms=60000" in done.err

    done = command(rig, "warned", "--to-topic", topic(partitions=2))
    assert (done.code, "has 2 partitions, but the log has 1" in done.err) == (1, True)
    store.close()


def test_a_restore_respects_its_rate_limit(rig: Rig, store: S3Store, topic: MakeTopic) -> None:
    made_log(store, "slow", 400)
    target = topic(config=FOREVER)
    started = time.monotonic()
    restored(rig, "slow", "--to-topic", target, "--max-records-per-second", "200")
    assert time.monotonic() - started > 1.0
    assert len(read_topic(rig.broker.bootstrap_servers, target, 0)) == 400
    store.close()


def test_a_missing_broker_and_an_unknown_key_are_reported(rig: Rig, store: S3Store, tmp_path: Path) -> None:
    made_log(store, "nowhere", 10)
    url = f"s3://{rig.bucket}/topics"

    def run(*options: str) -> Ended:
        return run_here(rig.s3.environment, "restore", url, "nowhere", *options)

    done = run()
    assert (done.code, "missing required key `bootstrap.servers`" in done.err) == (2, True)
    file = tmp_path / "client.properties"
    file.write_text("acks=0\n")
    done = run("-b", "127.0.0.1:9", "--kafka-config", str(file))
    assert (done.code, "`acks`: cannot be set" in done.err) == (2, True)
    done = run("-b", "127.0.0.1:9", "--kafka-config", str(tmp_path / "none"))
    assert done.code == 2
    with KafkaCluster({**client_settings(rig.broker.bootstrap_servers), "security.protocol": "SASL_PLAINTEXT",
                  "sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "secret9"},
                 timeout_s=2) as cluster, pytest.raises(KeyfoldError) as caught:  # fmt: skip
        cluster.cluster_id()
    assert "secret9" not in str(caught.value)
    store.close()
