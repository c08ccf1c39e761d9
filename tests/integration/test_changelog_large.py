"""The history of a git repository through a real broker, the sink and the compactor, record by record.

7,768 records in `make test`, the 98,257 of Apache Kafka's own repository in `make test-full`, over one and over eight
partitions, in small segments. What the topic holds is read with a plain consumer, and a dict says what compaction must
leave of it; nothing is taken from what the services report.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, TopicPartition

from keyfold.log.record import Record
from keyfold.read.log import Log
from keyfold.runtime.clock import SystemClock
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from keyfold.store.s3 import S3Location, S3Store
from keyfold.verify.partition import verify_partition
from tests.conftest import fresh
from tests.support.changelog import LARGE, SMALL, Facts, changes, root_tree
from tests.support.kafka import KafkaBroker, produce_changes
from tests.support.keyfold_here import here
from tests.support.moto import LocalS3Process
from tests.support.versitygw import Versitygw

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@dataclass(frozen=True, slots=True)
class Size:
    """A changelog, and how it is cut: the segments of a sink, those of the compactor, and how many reads are tried."""

    facts: Facts
    flush_size: int
    segment_bytes: int  # so small that there are several segments after compaction too
    reads: int


IN_FULL = Size(LARGE, flush_size=1000, segment_bytes=128 * 1024, reads=100)
IN_SHORT = Size(SMALL, flush_size=200, segment_bytes=16 * 1024, reads=20)

Row = tuple[int, int, bytes | None, bytes | None]
"""offset, timestamp in ms, key, value"""

Rows = dict[int, list[Row]]
"""By partition, in offset order."""

# Kafka's own cleaner is held, and segments do not roll by the records' times: the topic keeps every record.
TOPIC_SETTINGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1", "segment.ms": str(2**63 - 1)}


def consume(bootstrap_servers: str, topic: str, partitions: int, count: int) -> Rows:
    """All that is in the topic, by a plain consumer."""
    rows: Rows = {partition: [] for partition in range(partitions)}
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": fresh("plain"), "enable.auto.commit": False}
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in rows])
        left = count
        while left:
            messages = consumer.consume(min(left, 10_000), timeout=120)
            assert messages, f"{left} records are missing"
            for message in messages:
                assert message.error() is None
                offset, partition = message.offset(), message.partition()
                assert offset is not None
                assert partition is not None
                rows[partition].append((offset, message.timestamp()[1], message.key(), message.value()))
            left -= len(messages)
    finally:
        consumer.close()
    return rows


def keyfold(environment: Mapping[str, str], *arguments: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "keyfold.cli", *arguments],
        env={**os.environ, **environment, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


def write(path: Path, values: Mapping[str, str]) -> str:
    path.write_text(json.dumps(values))
    return str(path)


def as_row(record: Record) -> Row:
    return record.offset, record.timestamp, record.key, record.value


def rows_of(log: Log) -> Rows:
    return {partition: [as_row(r) for r in log.read(partition)] for partition in log.partitions()}


def last_of_each_key(rows: Rows) -> Rows:
    return {p: sorted({row[2]: row for row in of_partition}.values()) for p, of_partition in rows.items()}


def alive(rows: Rows) -> Rows:
    return {p: [row for row in of_partition if row[3] is not None] for p, of_partition in rows.items()}


def count(rows: Rows) -> int:
    return sum(len(of_partition) for of_partition in rows.values())


def tree(log: Log) -> str:
    return root_tree({r.key or b"": r.value or b"" for partition in log.partitions() for r in log.latest(partition)})


def assert_sound(log: Log) -> None:
    for partition in log.partitions():
        report = verify_partition(log.store, log.place(partition), clock=SystemClock(), random=Random(1))
        assert report.is_sound, report.findings


def copied(log: Log) -> Log:
    """The same objects in memory, where thousands of reads cost little: a log can be copied."""
    store = MemoryStore()
    for info in log.store.list(""):
        store.put(info.key, log.store.get(info.key).data, Create())
    return Log(store, log.topics_dir, log.topic)


def removed_offsets(sunk: Rows, left: Rows) -> Iterator[tuple[int, int, int | None]]:
    """Each offset that is gone, and the next that is there: None where only the end of the log is."""
    for partition, rows in sunk.items():
        offsets = [row[0] for row in left[partition]]
        there = set(offsets)
        for row in rows:
            if row[0] not in there:
                place = bisect_left(offsets, row[0])
                yield partition, row[0], offsets[place] if place < len(offsets) else None


def assert_removed_offsets_are_positions(log: Log, sunk: Rows, left: Rows, *, sample: int) -> None:
    """A read from a removed offset starts at the next one that is there."""
    removed = list(removed_offsets(sunk, left))
    assert len(removed) == count(sunk) - count(left)
    edges = {(p, s.base_offset) for p in log.partitions() for s in log.manifest(p).segments}
    edges |= {(p, s.next_offset - 1) for p in log.partitions() for s in log.manifest(p).segments}
    chosen = [row for row in removed if (row[0], row[1]) in edges or row[2] is None]
    chosen += Random(7).sample(removed, sample)
    for partition, offset, following in chosen:
        first = next(log.read(partition, from_offset=offset), None)
        assert (None if first is None else first.offset) == following, (partition, offset)


def check_changelog(
    size: Size,
    broker: KafkaBroker,
    topic: Callable[..., str],
    environment: Mapping[str, str],
    location: S3Location,
    folder: Path,
) -> None:
    """Sink it, compact it twice, and compare the log with the topic each time. The fixture `spark` has to be there."""
    with closing(location.open()) as store:
        _check_changelog(size, broker, topic, environment, store, folder)


def _check_changelog(
    size: Size,
    broker: KafkaBroker,
    topic: Callable[..., str],
    environment: Mapping[str, str],
    store: S3Store,
    folder: Path,
) -> None:
    facts, partition_counts = size.facts, {fresh("one"): 1, fresh("eight"): 8}
    sunk: dict[str, Rows] = {}
    for name, partitions in partition_counts.items():
        topic(partitions, TOPIC_SETTINGS, name)
        assert produce_changes(broker.bootstrap_servers, name, changes(facts)) == facts.record_count
        sunk[name] = consume(broker.bootstrap_servers, name, partitions, facts.record_count)
    location = store.location
    common = {"topics": ",".join(partition_counts), "s3.bucket.name": location.bucket, "topics.dir": "topics"}
    sink = common | {
        "name": fresh("sink"),
        "bootstrap.servers": broker.bootstrap_servers,
        "flush.size": str(size.flush_size),
    }
    compact = common | {
        "min.cleanable.dirty.ratio": "0",
        "delete.retention.ms": "0",
        "file.delete.delay.ms": "0",
        "segment.bytes": str(size.segment_bytes),
        "store.url": str(location.endpoint_url),
        "s3.region": str(location.region),
        "aws.access.key.id": str(location.access_key_id),
        "aws.secret.access.key": str(location.secret_access_key),
    }
    logs = {name: Log(store, "topics", name) for name in partition_counts}

    keyfold(environment, "sink", "run", write(folder / "sink.json", sink), "--until-caught-up")
    for name, log in logs.items():
        assert sum(len(log.manifest(p).segments) for p in log.partitions()) >= facts.record_count // size.flush_size
        assert rows_of(log) == sunk[name]
        assert tree(log) == facts.root_tree

    compact_config = write(folder / "compact.json", compact)
    for expected_of, expected_count in (
        (last_of_each_key, facts.key_count),
        (lambda rows: alive(last_of_each_key(rows)), facts.latest_count),
    ):
        done = here("compact", "run", compact_config, "--once", "--engine", "spark")
        assert done.returncode == 0, done.stdout + done.stderr
        for name, log in logs.items():
            expected = expected_of(sunk[name])
            assert count(expected) == expected_count
            assert rows_of(log) == expected
            assert tree(log) == facts.root_tree
            assert_sound(log)
            assert_removed_offsets_are_positions(log, sunk[name], expected, sample=size.reads)
            in_memory = copied(log)
            assert_removed_offsets_are_positions(in_memory, sunk[name], expected, sample=10 * size.reads)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("size", [IN_SHORT, pytest.param(IN_FULL, marks=pytest.mark.full)], ids=["small", "large"])
def test_a_changelog_keeps_every_guarantee_on_moto(
    size: Size,
    broker: KafkaBroker,
    topic: Callable[..., str],
    local_s3: LocalS3Process,
    location: S3Location,
    tmp_path: Path,
) -> None:
    check_changelog(size, broker, topic, local_s3.environment, location, tmp_path)


@pytest.mark.usefixtures("spark")
@pytest.mark.real
def test_a_large_changelog_keeps_every_guarantee_on_versitygw(
    broker: KafkaBroker, topic: Callable[..., str], versitygw: Versitygw, tmp_path: Path
) -> None:
    location = versitygw.location(versitygw.create_bucket(fresh("bucket")))
    check_changelog(IN_FULL, broker, topic, versitygw.environment, location, tmp_path)
