"""`keyfold log verify --spark` on a real Spark finds what the command finds without it, whatever is planted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from keyfold.log.manifest_codec import encode_manifest
from keyfold.log.names import Place
from keyfold.runtime.clock import SystemClock
from keyfold.store.api import Create, Update
from keyfold.store.s3 import S3Store
from keyfold.verify.findings import FindingKind, VerifyReport
from keyfold.verify.partition import verify_partition
from tests.support.logs import MadeLog, record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.moto import LocalS3Process

pytestmark = pytest.mark.spark


@pytest.fixture
def store(local_s3: LocalS3Process, bucket: str) -> Iterator[S3Store]:
    opened = S3Store(bucket, endpoint_url=local_s3.url, access_key_id="testkey", secret_access_key="testsecret")
    yield opened
    opened.close()


@pytest.fixture
def logs(store: S3Store) -> list[MadeLog]:
    """Three partitions: 600 records each in four segments, 300 keys, two of three cleaned."""
    made = [
        MadeLog(store=store, place=Place("topics", "users", p), clock=SystemClock(), random=Random(p), block_bytes=2000)
        for p in range(3)
    ]
    for log in made:
        for start in range(0, 600, 150):
            batch = [record(o, f"key {o % 300:03}", None if o % 50 == 7 else f"value {o}" * 5)
                     for o in range(start, start + 150)]  # fmt: skip
            log.append(batch)
        if log.place.partition:
            log.compact()
    made[2].append([record(600, "key 003", "again")])
    return made


def overwrite(made: MadeLog, name: str, data: bytes) -> None:
    made.store.delete(made.place.key(name))
    made.store.put(made.place.key(name), data, Create())


def flip(made: MadeLog) -> None:
    name = made.manifest.segments[-1].name
    data = bytearray(made.store.get(made.place.key(name)).data)
    data[-100] ^= 1
    overwrite(made, name, bytes(data))


def lose_a_segment(made: MadeLog) -> None:
    made.store.delete(made.place.key(made.manifest.segments[0].name))


def call_dirty_clean(made: MadeLog) -> None:
    """A manifest that promises what no pass has done: 300 keys occur twice below it."""
    pinned = made.log.load()
    changed = replace(pinned.manifest, first_dirty_offset=pinned.manifest.next_offset)
    made.store.put(made.place.manifest_key, encode_manifest(changed), Update(pinned.etag))


def lose_what_a_pass_kept(made: MadeLog) -> None:
    """The last segment goes from the manifest's list with its 150 keys; the sources of the pass still tell."""
    pinned = made.log.load()
    segments = list(pinned.manifest.segments)
    lost = segments.pop(1)
    segments[0] = replace(segments[0], next_offset=lost.next_offset)
    changed = replace(pinned.manifest, segments=tuple(segments))
    made.store.put(made.place.manifest_key, encode_manifest(changed), Update(pinned.etag))


def both(spark: SparkSession, store: S3Store, logs: list[MadeLog]) -> list[VerifyReport]:
    from keyfold.spark.verify import verify_on_spark

    clock, random = SystemClock(), Random(0)
    there = list(verify_on_spark(store, [log.place for log in logs], clock=clock, random=random, spark=spark))
    here = [verify_partition(store, log.place, clock=clock, random=random) for log in logs]
    for one, other in zip(there, here, strict=True):
        assert (one.place, one.version, one.segments, one.records) == (
            other.place, other.version, other.segments, other.records,
        )  # fmt: skip
        assert sorted(map(str, one.findings)) == sorted(map(str, other.findings))
    return there


@pytest.mark.full
def test_spark_reports_what_the_command_reports(spark: SparkSession, store: S3Store, logs: list[MadeLog]) -> None:
    sound = both(spark, store, logs)
    assert all(report.is_sound for report in sound)
    assert [report.records for report in sound] == [600, 300, 301]
    plants: list[tuple[int, Callable[[MadeLog], None], FindingKind]] = [
        (0, call_dirty_clean, FindingKind.RECORD_SUPERSEDED),
        (1, lose_what_a_pass_kept, FindingKind.RECORD_LOST),
        (2, flip, FindingKind.SEGMENT_CHECKSUM),
    ]
    for partition, plant, _ in plants:
        plant(logs[partition])
    for (_, _, kind), report in zip(plants, both(spark, store, logs), strict=True):
        assert kind in {f.kind for f in report.damage}
    lose_a_segment(logs[0])
    logs[1].store.delete(logs[1].place.manifest_key)
    found = both(spark, store, logs)
    assert FindingKind.SEGMENT_MISSING in {f.kind for f in found[0].damage}
    assert [f.kind for f in found[1].damage] == [FindingKind.MANIFEST_LOST]
