"""Invalid records among good ones, with a real Kafka: the content of the log, its gaps and the dead letters."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from keyfold.log.gaps import records_in
from keyfold.log.manifest import Gap
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.runtime.clock import SystemClock
from keyfold.verify.partition import verify_partition
from tests.conftest import fresh
from tests.support.kafka import KafkaBroker
from tests.support.moto import LocalS3Process
from tests.support.proof import SOON_MISSED, TOPICS_DIR, Rig, read_segments, read_topic, wait_for
from tests.support.raw_produce import raw_produce

pytestmark = pytest.mark.kafka

MakeTopic = Callable[..., str]
REASON = "skipped: not JSON"


@pytest.fixture
def rig(broker: KafkaBroker, local_s3: LocalS3Process, bucket: str, tmp_path: Path) -> Rig:
    return Rig(broker, local_s3, bucket, tmp_path)


def config(rig: Rig, topic: str, letters: str = "", **keys: Any) -> Path:
    if letters:
        keys = {
            "errors_tolerance": "all",
            "errors_deadletterqueue_topic_name": letters,
            "errors_deadletterqueue_topic_replication_factor": "1",
            "errors_deadletterqueue_context_headers_enable": "true",
            **keys,
        }
    return rig.config(topic, value_converter="json", **keys)


def produce(rig: Rig, topic: str, values: Sequence[bytes | None], **more: Any) -> None:
    producer = Producer({"bootstrap.servers": rig.broker.bootstrap_servers, "linger.ms": 5})
    for value in values:
        producer.produce(topic, value=value, partition=0, **more)
        producer.poll(0)
    assert producer.flush(60) == 0


def error_of(said: str) -> str:
    """Return the error with its hint, without the lines after it."""
    assert "Traceback" not in said
    before, *errors = f"\n{said}".split("\nerror:")
    assert len(errors) == 1, before[-2000:]
    return errors[0]


def is_rejected(record: Record) -> bool:
    return record.value is not None and record.value.startswith(b"not")


def prove(rig: Rig, topic: str, letters: str = "") -> list[Gap]:
    """Assert that each record is in the log once, or in a gap once and among the dead letters at least once."""
    produced = read_topic(rig.broker.bootstrap_servers, topic, 0)
    store = rig.store()
    try:
        kept = read_segments(store, topic, 0)
        report = verify_partition(store, Place(TOPICS_DIR, topic, 0), clock=SystemClock(), random=Random(0))
        assert [finding for finding in report.findings if finding.kind.is_damage] == []
    finally:
        store.close()  # type: ignore[attr-defined]  # the store is in S3
    assert kept == [record for record in produced if not is_rejected(record)]
    rejected = [record.offset for record in produced if is_rejected(record)]
    manifest = rig.manifest(topic)
    assert manifest.next_offset == produced[-1].offset + 1
    assert sum(map(records_in, manifest.gaps)) == len(rejected)
    assert all(any(g.from_offset <= offset < g.to_offset for g in manifest.gaps) for offset in rejected)
    if letters:
        found = read_topic(rig.broker.bootstrap_servers, letters, 0)
        assert {int(dict(r.headers)["__connect.errors.offset"] or b"") for r in found} == set(rejected)
    return list(manifest.gaps)


def test_rejected_records_are_sent_unchanged_to_a_created_dead_letter_topic(rig: Rig, topic: MakeTopic) -> None:
    name, letters = topic(), fresh("letters")
    rows: list[dict[str, Any]] = [
        {"key": b"a", "value": b"{}"},
        {"key": b"", "value": b"not JSON", "headers": [("h", b"1"), ("h", None), ("h", b"\xff\x00"), ("\u00fc", b"")]},
        {"key": None, "value": b"not\xff\x00text", "timestamp": 1_600_000_000_123},
        {"key": b"\x00\xff", "value": b"not", "headers": [("__connect.errors.topic", b"elsewhere")]},
        {"key": b"b", "value": None},
        {"key": b"c", "value": b"not" + b"x" * 2_000_000},
        {"key": b"d", "value": b"7"},
    ]
    producer = Producer({"bootstrap.servers": rig.broker.bootstrap_servers, "message.max.bytes": 10_000_000})
    for row in rows:
        producer.produce(name, partition=0, **row)
    assert producer.flush(60) == 0
    said = rig.catch_up(config(rig, name, letters))
    assert "dead letter topic created" in said
    found = read_topic(rig.broker.bootstrap_servers, letters, 0)
    produced = {record.offset: record for record in read_topic(rig.broker.bootstrap_servers, name, 0)}
    assert len(found) == 4
    for dead, offset in zip(found, (1, 2, 3, 5), strict=True):
        alive = produced[offset]
        assert (dead.key, dead.value, dead.timestamp) == (alive.key, alive.value, alive.timestamp)
        assert dead.headers[: len(alive.headers)] == alive.headers
        added = dict(dead.headers[len(alive.headers) :])
        expected = {
            "topic": name.encode(),
            "partition": b"0",
            "offset": b"%d" % offset,
            "connector.name": name.encode(),
            "task.id": b"0",
            "stage": b"VALUE_CONVERTER",
            "class.name": b"org.apache.kafka.connect.json.JsonConverter",
            "exception.class.name": b"org.apache.kafka.connect.errors.DataException",
        }
        if offset == 3:
            del expected["topic"]  # the record has one of its own
        for key, value in expected.items():
            assert added.pop(f"__connect.errors.{key}") == value
        assert set(added) == {"__connect.errors.exception.message", "__connect.errors.exception.stacktrace"}
    assert prove(rig, name)[0].from_offset == 1


def test_tolerance_none_commits_earlier_records_and_gives_a_hint(rig: Rig, topic: MakeTopic) -> None:
    name = topic()
    produce(rig, name, [b"{}"] * 50 + [b"not JSON"] + [b"{}"] * 50, key=b"k")
    for _ in range(2):  # a second start fails in the same place
        error = error_of(rig.run(config(rig, name), "--until-caught-up", code=1))
        for word in (f"{name}-0", "offset 50", "VALUE_CONVERTER", "JsonConverter", "errors.tolerance=all"):
            assert word in error
        manifest = rig.manifest(name)
        assert (manifest.next_offset, manifest.record_count, manifest.gaps) == (50, 50, ())
    said = rig.catch_up(config(rig, name, errors_tolerance="all", errors_log_enable="true"))
    assert "record failed its check" in said
    assert "records skipped" in said
    assert [(g.from_offset, g.to_offset) for g in prove(rig, name)] == [(50, 51)]


def test_a_topic_with_only_rejected_records_followed_by_good_ones(rig: Rig, topic: MakeTopic) -> None:
    name, letters = topic(), topic()
    produce(rig, name, [b"not JSON"] * 3000)
    rig.catch_up(config(rig, name, letters))
    (gap,) = prove(rig, name, letters)
    assert (gap.from_offset, gap.to_offset) == (0, 3000)
    produce(rig, name, [b"1"] * 10)
    rig.catch_up(config(rig, name, letters))
    assert prove(rig, name, letters) == [gap]


def test_the_manifest_stays_small_if_every_third_record_is_rejected(rig: Rig, topic: MakeTopic) -> None:
    name, letters = topic(), topic()
    produce(rig, name, [b"not JSON" if n % 3 == 0 else b"{}" for n in range(30_000)])
    rig.catch_up(config(rig, name, letters, flush_size="2500"))
    assert len(prove(rig, name, letters)) < 400


def test_a_dead_letter_too_large_for_its_topic_fails_the_partition(rig: Rig, topic: MakeTopic) -> None:
    name, letters = topic(), topic(config={"max.message.bytes": "1000"})
    produce(rig, name, [b"{}", b"not" + b"x" * 5000, b"{}"])
    error = error_of(rig.run(config(rig, name, letters), "--until-caught-up", code=1))
    for word in (f"{name}-0", "offset 1", letters, "max.message.bytes"):
        assert word in error
    assert rig.manifest(name).next_offset <= 1


@pytest.fixture(scope="module")
def guarded_broker() -> Iterator[KafkaBroker]:
    """Yield a broker with authorization: a topic that has ACLs is limited to them."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "early.start.listeners": "CONTROLLER",
    }
    with KafkaBroker(settings=settings) as broker:
        yield broker


@pytest.fixture
def guarded(guarded_broker: KafkaBroker, local_s3: LocalS3Process, bucket: str, tmp_path: Path) -> Rig:
    return Rig(guarded_broker, local_s3, bucket, tmp_path)


def _allow(rig: Rig, topic: str, *operations: AclOperation) -> None:
    """Allow only these operations to everybody; another user's rule denies the rest."""
    rules = [("User:*", operation) for operation in operations] + [("User:other", AclOperation.ALL)]
    bindings = [
        AclBinding(
            ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, user, "*", operation, AclPermissionType.ALLOW
        )
        for user, operation in rules
    ]
    for future in rig.broker.admin.create_acls(bindings).values():
        future.result(60)
    time.sleep(1)


@pytest.mark.full
def test_a_dead_letter_topic_without_rights(guarded: Rig) -> None:
    name = fresh("topic")
    guarded.broker.create_topic(name)
    produce(guarded, name, [b"{}", b"not JSON"])

    hidden = fresh("letters")
    _allow(guarded, hidden)
    error = error_of(guarded.run(config(guarded, name, hidden), "--until-caught-up", code=1))
    assert hidden in error
    assert "rights" in error

    readable = fresh("letters")
    guarded.broker.create_topic(readable)
    _allow(guarded, readable, AclOperation.DESCRIBE)
    error = error_of(guarded.run(config(guarded, name, readable), "--until-caught-up", code=1))
    for word in (f"{name}-0", "offset 1", readable, "the right to write"):
        assert word in error
    assert guarded.manifest(name).next_offset <= 1


@pytest.mark.full
def test_a_repeatedly_killed_sink_loses_no_dead_letter(rig: Rig, topic: MakeTopic) -> None:
    name, letters = topic(), topic()
    path = config(rig, name, letters, segment_ms="300", errors_log_enable="true", **SOON_MISSED)
    values: list[bytes | None] = [b"not JSON" if n % 7 == 3 else b"{}" for n in range(2000)]
    for _ in range(3):
        with rig.start(path) as sink:
            produce(rig, name, values)
            sink.until("segment committed")
            sink.kill()
    rig.catch_up(path)
    prove(rig, name, letters)


@pytest.mark.full
def test_the_broker_is_unreachable_for_a_while_with_dead_letters_pending(guarded: Rig) -> None:
    """A frozen broker acts like a network that drops everything: nothing is committed before its dead letters."""
    name, letters = fresh("topic"), fresh("letters")
    guarded.broker.create_topic(name)
    guarded.broker.create_topic(letters)
    values: list[bytes | None] = [b"not JSON" if n % 5 == 0 else b"{}" for n in range(5000)]
    with guarded.start(config(guarded, name, letters, segment_ms="500")) as sink:
        produce(guarded, name, values)
        sink.until("partition claimed")
        os.kill(guarded.broker.pid, signal.SIGSTOP)
        try:
            time.sleep(8)
        finally:
            os.kill(guarded.broker.pid, signal.SIGCONT)
        try:
            wait_for(lambda: guarded.manifest(name).next_offset == 5000, 180, "all is committed")
        except AssertionError:
            pytest.fail(f"not all is committed; the sink said: {sink.said[-4000:]}")
        assert sink.end() == 0
    prove(guarded, name, letters)


@pytest.mark.full
def test_a_deleted_dead_letter_topic_fails_the_partition_and_is_recreated_at_the_next_start(
    rig: Rig, topic: MakeTopic
) -> None:
    name, letters = topic(), topic()
    # The client believes that a topic is gone when it has not come up for a while: 30 s unless told otherwise.
    gone = {"producer_override_topic_metadata_propagation_max_ms": 2000}
    path = config(rig, name, letters, producer_override_topic_metadata_refresh_interval_ms=500, **gone)
    produce(rig, name, [b"{}", b"not JSON", b"{}"])
    with rig.start(path) as sink:
        sink.until("segment committed")
        rig.broker.delete_topic(letters)
        time.sleep(2)
        produce(rig, name, [b"{}", b"not JSON", b"{}"])
        sink.until("partition failed", 90)
        assert letters in sink.said
        assert "restart the sink to create" in sink.said
    assert rig.manifest(name).next_offset <= 4
    assert "dead letter topic created" in rig.catch_up(path)
    assert [gap.from_offset for gap in prove(rig, name)] == [1, 4]
    (dead,) = read_topic(rig.broker.bootstrap_servers, letters, 0)
    assert dict(dead.headers)["__connect.errors.offset"] == b"4"


def test_records_with_undecodable_header_names_are_skipped_and_sent_to_the_dead_letter_topic(
    rig: Rig, topic: MakeTopic
) -> None:
    name, letters = topic(), topic()
    produce(rig, name, [b"{}"])
    bad = [(b"fine", b"1"), (b"\xff\xfe", b"2")]
    first = raw_produce(
        rig.broker.bootstrap_servers, name, 0, [(b"k", b"{}", bad), (b"l", None, bad), (b"m", b"1", [])]
    )
    produce(rig, name, [b"{}"])
    error = error_of(rig.run(config(rig, name), "--until-caught-up", code=1))
    assert f"offset {first}" in error
    assert "not UTF-8" in error
    assert rig.manifest(name).next_offset == first
    rig.catch_up(config(rig, name, letters))
    manifest = rig.manifest(name)
    assert manifest.gaps == (Gap(first, first + 2, "skipped: header name is not UTF-8"),)
    assert (manifest.next_offset, manifest.record_count) == (first + 4, 3)
    found = read_topic(rig.broker.bootstrap_servers, letters, 0)
    assert [(r.key, r.value) for r in found] == [(b"k", b"{}"), (b"l", None)]
    assert dict(found[0].headers)["__connect.errors.stage"] == b"HEADER_CONVERTER"
