"""`keyfold log verify --bootstrap-servers` against a real broker: its own cleaner, transactions, planted damage."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from keyfold.cli.app import run
from keyfold.cli.context import CliContext
from keyfold.kafka.errors import KafkaTopicMissing
from keyfold.kafka.reading import KafkaTopic
from keyfold.log.record import Record
from keyfold.read.log import Log
from keyfold.verify.compare import Comparison, compare_partition
from keyfold.verify.findings import FindingKind
from tests.conftest import MakeTopic, fresh
from tests.support.kafka import KafkaBroker, produce_all, synthetic
from tests.support.kafka_cleaner import BASE_MS, Lab, Message, sentinel
from tests.support.logs import MadeLog
from tests.support.proof import read_topic

pytestmark = pytest.mark.kafka

FOREVER = {"retention.ms": "-1"}


def log_of(broker: KafkaBroker, topic: str, *, without: tuple[int, ...] = ()) -> MadeLog:
    """What a sink makes of the topic as it is now, in segments of 400 records; some records are lost on the way."""
    made = MadeLog(block_bytes=4000)
    made.place = replace(made.place, topic=topic)
    source = read_topic(broker.bootstrap_servers, topic, 0)
    with KafkaTopic({"bootstrap.servers": broker.bootstrap_servers}, topic) as reader:
        made.log.create(topic_id=reader.topic_id(), start_offset=source[0].offset)
        made._sink = made.log.claim_sink()
    append(made, [r for r in source if r.offset not in without])
    return made


def append(made: MadeLog, source: list[Record]) -> None:
    for at in range(0, len(source), 400):
        batch = source[at : at + 400]
        made.append(batch, next_offset=batch[-1].offset + 1)


def compare(broker: KafkaBroker, made: MadeLog) -> Comparison:
    topic = made.place.topic
    log = Log(made.store, made.place.topics_dir, topic)
    with KafkaTopic({"bootstrap.servers": broker.bootstrap_servers}, topic) as reader:
        return compare_partition(log, 0, reader, random=random.Random(0))


def damage(comparison: Comparison) -> list[tuple[FindingKind, int]]:
    return [(f.kind, f.offset) for f in comparison.findings if f.kind.is_damage]


def test_a_log_equals_its_topic_for_any_records(broker: KafkaBroker, topic: MakeTopic) -> None:
    name = topic(config={"cleanup.policy": "compact"})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": fresh("t")})
    producer.init_transactions(30)
    for number in range(40):
        producer.begin_transaction()
        for i in range(10):
            headers = [("a", b"1"), ("a", None), ("ü", b"\xff")] if i % 3 == 0 else None
            value = None if i == 7 else b"%d-%d" % (number, i)
            producer.produce(name, value, b"key-%d" % (i + number % 5 * 10), headers=headers)  # type: ignore[arg-type]  # a list of our headers is one of its
        assert producer.flush(60) == 0  # the client drops what it has not sent when it aborts
        (producer.abort_transaction if number % 4 == 3 else producer.commit_transaction)(60)
    made = log_of(broker, name)
    comparison = compare(broker, made)
    assert comparison == Comparison((), 300)
    made.compact()
    made.compact(purge=True, merge=True)
    assert damage(compare(broker, made)) == []


def test_a_log_equals_its_topic_after_either_was_cleaned(broker: KafkaBroker) -> None:
    lab, name = Lab(broker), fresh("cleaned")
    lab.create(name, {"delete.retention.ms": "0"})
    rows = [Message(b"k%d" % (i % 40), None if i % 9 == 4 else b"v%d" % i, BASE_MS + i) for i in range(400)]
    lab.produce({name: [rows, [sentinel(1)]]})
    made = log_of(broker, name)
    assert damage(compare(broker, made)) == []
    lab.set({name: {"min.cleanable.dirty.ratio": "0"}})
    lab.wait_for_passes({name: 400})
    left = read_topic(broker.bootstrap_servers, name, 0)
    assert len(left) < 60
    assert damage(compare(broker, made)) == []
    made.compact()
    assert damage(compare(broker, made)) == []
    made.compact(purge=True)
    assert damage(compare(broker, made)) == []


def test_planted_damage_is_always_found_by_comparing_with_kafka(broker: KafkaBroker, topic: MakeTopic) -> None:
    name = topic(config={"cleanup.policy": "compact"})
    rows = [*synthetic(1000, key_count=2000, tombstone_share=0.1, partition=0)]
    assert produce_all(broker.bootstrap_servers, name, iter(rows)) == 1000
    last = {key: at for at, (key, *_) in enumerate(rows)}
    newest = sorted(last.values())
    tombstone = next(at for at in newest if rows[at][1] is None and at > 500)
    value = next(at for at in newest if rows[at][1] is not None and at > 300)
    made = log_of(broker, name, without=(tombstone, value))
    assert sorted(damage(compare(broker, made)), key=lambda f: f[1]) == [
        (FindingKind.RECORD_LOST, value), (FindingKind.TOMBSTONE_LOST, tombstone),
    ]  # fmt: skip
    made.compact()  # what a pass writes is no sink's segment: now the keys must tell
    found = compare(broker, made)
    assert sorted(damage(found), key=lambda f: f[1]) == [
        (FindingKind.RECORD_LOST, value), (FindingKind.TOMBSTONE_LOST, tombstone),
    ]  # fmt: skip
    assert repr(rows[tombstone][0]) in next(f.lost for f in found.findings if f.kind is FindingKind.TOMBSTONE_LOST)


def test_the_command_reports_a_missing_topic(
    broker: KafkaBroker, topic: MakeTopic, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = topic(config=FOREVER)
    produce_all(broker.bootstrap_servers, name, synthetic(500, key_count=50, partition=0))
    made = log_of(broker, name)
    world = CliContext(lambda _url: (made.store, "topics"), made.clock, made.random)
    config = tmp_path / "client.properties"
    config.write_text(f"bootstrap.servers={broker.bootstrap_servers}\n")
    url = "s3://bucket/topics"

    def reports(*flags: str, code: int = 0) -> list[dict[str, Any]]:
        assert run(["log", "verify", url, name, "--json", *flags], world) == code
        return [json.loads(line) for line in capfd.readouterr().out.splitlines()]

    assert reports("--bootstrap-servers", broker.bootstrap_servers)[0]["compared"] == 500
    (report,) = reports("--kafka-config", str(config), "--from-offset", "100", "--to-offset", "150")
    assert (report["compared"], report["ok"]) == (50, True)
    assert reports()[0]["compared"] is None
    reports("--sample", "0.5", code=2)
    broker.admin.delete_topics([name])[name].result(60)
    with pytest.raises(KafkaTopicMissing), KafkaTopic({"bootstrap.servers": broker.bootstrap_servers}, "not-there"):
        pass


def test_a_recreated_topic_is_reported(broker: KafkaBroker, topic: MakeTopic) -> None:
    name = topic(config=FOREVER)
    produce_all(broker.bootstrap_servers, name, synthetic(20, key_count=50, partition=0))
    made = log_of(broker, name)
    broker.admin.delete_topics([name])[name].result(60)
    again = fresh("again")
    broker.create_topic(again, 1, FOREVER)
    produce_all(broker.bootstrap_servers, again, synthetic(30, key_count=50, partition=0))
    log = Log(made.store, made.place.topics_dir, name)
    with KafkaTopic({"bootstrap.servers": broker.bootstrap_servers}, again) as reader:
        found = compare_partition(log, 0, reader, random=random.Random(0))
    assert [f.kind for f in found.findings] == [FindingKind.TOPIC_DIFFERS]
