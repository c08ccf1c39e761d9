"""Loads of a sink beyond the ordinary, at a small scale; tests/soak has the full one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.kafka import KafkaBroker
from tests.support.moto import DROP, Fault, LocalS3Process
from tests.support.proof import Rig
from tests.support.sink_limits import (
    FOREVER,
    MIB,
    hot_among_idle,
    large_records,
    many_partitions,
    outage,
    stuck_partition,
)

pytestmark = pytest.mark.kafka

MakeTopic = Callable[..., str]
ANY = "partition(=|%3D)"


@pytest.fixture
def rig(broker: KafkaBroker, local_s3: LocalS3Process, bucket: str, tmp_path: Path) -> Rig:
    return Rig(broker, local_s3, bucket, tmp_path)


@pytest.mark.full
def test_a_hundred_partitions_stay_within_the_memory_of_one(rig: Rig, topic: MakeTopic) -> None:
    name = topic(partitions=100, config=FOREVER)
    print(many_partitions(rig, name, 100, count=150_000, buffer_memory=24 * MIB)[1])


@pytest.mark.full
def test_idle_partitions_cost_no_requests(rig: Rig, topic: MakeTopic, local_s3: LocalS3Process) -> None:
    hot, idle = topic(config=FOREVER), topic(partitions=100, config=FOREVER)
    print(hot_among_idle(rig, local_s3, hot, idle, 100, seconds=4))


@pytest.mark.full
def test_records_of_twenty_megabytes(rig: Rig, topic: MakeTopic) -> None:
    name = topic(config={**FOREVER, "max.message.bytes": str(24 * MIB)})
    print(large_records(rig, name, count=4, size_bytes=20_000_000, buffer_memory=128 * MIB))


@pytest.mark.full
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(ANY, status=503, times=-1), id="throttled"),
        pytest.param(Fault(ANY, status=DROP, late_ms=3000, times=-1), id="late"),
    ],
)
def test_a_failing_store_is_awaited(rig: Rig, topic: MakeTopic, local_s3: LocalS3Process, fault: Fault) -> None:
    name = topic(partitions=4, config=FOREVER)
    told = outage(
        rig,
        name,
        4,
        begin=lambda: local_s3.set_faults(fault),
        end=local_s3.set_faults,
        seconds=9,
        count=50_000,
        keys=[("consumer_override_max_poll_interval_ms", 7000)],
    )
    print(told)


@pytest.mark.full
def test_a_permanently_throttled_partition_blocks_no_other(
    rig: Rig, topic: MakeTopic, local_s3: LocalS3Process
) -> None:
    name = topic(partitions=4, config=FOREVER)
    print(stuck_partition(rig, local_s3, name, 4, count=100_000))
