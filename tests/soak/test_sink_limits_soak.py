"""The limits of a sink at full scale; tests/integration has the small version."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.kafka import KafkaBroker
from tests.support.moto import DROP, PASS, Fault, LocalS3Process
from tests.support.proof import Rig
from tests.support.sink_limits import (
    FOREVER,
    MIB,
    freeze,
    hot_among_idle,
    large_records,
    many_partitions,
    outage,
    wake,
)

pytestmark = [pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(1800)]

MakeTopic = Callable[..., str]
ANY = "partition(=|%3D)"


@pytest.fixture
def rig(broker: KafkaBroker, local_s3: LocalS3Process, bucket: str, tmp_path: Path) -> Rig:
    return Rig(broker, local_s3, bucket, tmp_path)


def test_two_thousand_partitions_stay_within_the_budget(local_s3: LocalS3Process, bucket: str, tmp_path: Path) -> None:
    with KafkaBroker(heap_mb=2048) as broker:  # the other tests' is too small for so many
        broker.create_topic("many", 2000, FOREVER)
        rig = Rig(broker, local_s3, bucket, tmp_path)
        print(many_partitions(rig, "many", 2000, count=1_000_000, buffer_memory=64 * MIB)[1])


def test_one_hot_partition_among_a_thousand_idle_ones(rig: Rig, topic: MakeTopic, local_s3: LocalS3Process) -> None:
    hot, idle = topic(config=FOREVER), topic(partitions=1000, config=FOREVER)
    print(hot_among_idle(rig, local_s3, hot, idle, 1000, seconds=75))


def test_many_records_of_twenty_megabytes_are_written(rig: Rig, topic: MakeTopic) -> None:
    name = topic(config={**FOREVER, "max.message.bytes": str(24 * MIB)})
    print(large_records(rig, name, count=40, size_bytes=20_000_000, buffer_memory=128 * MIB))


def storms(store: LocalS3Process) -> Iterator[tuple[str, Callable[[], None], Callable[[], None]]]:
    """Name, beginning and end of each kind of outage with the store."""
    for name, fault in (
        ("throttled", Fault(ANY, status=503, times=-1)),
        ("half throttled", Fault(ANY, status=503, times=-1, chance=0.7)),
        ("deaf", Fault(ANY, status=DROP, times=-1)),
        ("late", Fault(ANY, status=DROP, late_ms=5000, times=-1)),
        ("slow", Fault(ANY, status=PASS, slow_ms=3000, times=-1)),
    ):
        yield name, lambda fault=fault: store.set_faults(fault), store.set_faults  # type: ignore[misc]  # mypy does not infer a lambda with a default
    yield "frozen", freeze(store.pid), wake(store.pid)


@pytest.mark.parametrize("number", range(6))
def test_an_unavailable_store_for_minutes_loses_nothing(
    rig: Rig, topic: MakeTopic, local_s3: LocalS3Process, number: int
) -> None:
    kind, begin, end = list(storms(local_s3))[number]
    name = topic(partitions=8, config=FOREVER)
    print(kind, outage(rig, name, 8, begin=begin, end=end, seconds=180, count=200_000, buffer_memory=48 * MIB))


def test_kafka_unavailable_for_minutes_loses_nothing(rig: Rig, topic: MakeTopic) -> None:
    name = topic(partitions=4, config=FOREVER)

    def away() -> None:
        freeze(rig.broker.pid)()
        time.sleep(180)
        wake(rig.broker.pid)()

    told = outage(rig, name, 4, begin=away, end=lambda: None, seconds=0, count=50_000, keeps_membership=False)
    print(told)
