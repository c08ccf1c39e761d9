"""Sinks that are killed, suspended or rivals, and stores that misbehave: every record is in the log once, in order."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.support.kafka import KafkaBroker, produce_all, synthetic
from tests.support.moto import DROP, Fault, LocalS3Process
from tests.support.proof import SOON_MISSED, Flow, Rig, wait_for

pytestmark = pytest.mark.kafka

MakeTopic = Callable[..., str]
FOREVER = {"retention.ms": "-1"}
LARGE = 13_000
"""Records that are two parts of an upload and a rest."""


@pytest.fixture
def rig(broker: KafkaBroker, local_s3: LocalS3Process, bucket: str, tmp_path: Path) -> Rig:
    return Rig(broker, local_s3, bucket, tmp_path)


@pytest.mark.full
def test_a_repeatedly_killed_sink_loses_nothing_and_repeats_nothing(rig: Rig, topic: MakeTopic) -> None:
    name = topic(partitions=3, config=FOREVER)
    random = Random(7)
    config = rig.config(name, segment_bytes=30_000, segment_ms=200, **SOON_MISSED)
    with Flow(rig, name) as flow:
        for _ in range(3):
            with rig.start(config) as sink:
                sink.until("partition claimed")
                time.sleep(random.uniform(0.0, 2.0))
                sink.kill()
    rig.catch_up(config)
    assert rig.prove(name, 3) == flow.count


@pytest.mark.full
def test_two_sinks_of_different_groups_compete_for_a_partition(rig: Rig, topic: MakeTopic) -> None:
    name = topic(config=FOREVER)
    one = rig.config(name, name="one", segment_ms=100, flush_size=500)
    two = rig.config(name, name="two", segment_ms=100, flush_size=500)
    with Flow(rig, name) as flow, rig.start(one) as first, rig.start(two) as second:
        wait_for(
            lambda: "partition reset" in first.said and "partition reset" in second.said, 120, "both are fenced in turn"
        )
    rig.catch_up(one)
    assert rig.prove(name) == flow.count


@pytest.mark.full
def test_a_suspended_sink_that_resumes_after_a_takeover_writes_nothing(rig: Rig, topic: MakeTopic) -> None:
    name = topic(config=FOREVER)
    config = rig.config(name, segment_ms=100, flush_size=500, **SOON_MISSED)
    with Flow(rig, name) as flow, rig.start(config) as first:
        first.until("segment committed")
        with rig.start(config) as second:
            first.signal(signal.SIGSTOP)
            second.until("partition claimed", 120)
            epoch = rig.manifest(name).sink.epoch
            first.signal(signal.SIGCONT)
            time.sleep(3)
            second.until("segment committed")
            assert rig.manifest(name).sink.epoch == epoch, "the sleeper fenced the rightful owner"
            assert second.end() == 0
        first.until("partition claimed")
    rig.catch_up(config)
    assert rig.prove(name) == flow.count


@pytest.mark.full
def test_partitions_move_to_a_second_sink_and_back_without_a_hole(rig: Rig, topic: MakeTopic) -> None:
    name = topic(partitions=4, config=FOREVER)
    config = rig.config(name, segment_ms=300)
    with Flow(rig, name) as flow, rig.start(config) as first:
        first.until("segment committed")
        with rig.start(config) as second:
            second.until("partition claimed")
            second.until("segment committed")
            assert second.end() == 0
        assert first.end() == 0
    rig.catch_up(config)
    assert rig.prove(name, 4) == flow.count


@pytest.mark.full
def test_two_sinks_that_catch_up_together_both_end(rig: Rig, topic: MakeTopic) -> None:
    name = topic(partitions=4, config=FOREVER)
    produce_all(rig.broker.bootstrap_servers, name, synthetic(20_000, key_count=100))
    config = rig.config(name)
    with rig.start(config, "--until-caught-up") as first, rig.start(config, "--until-caught-up") as second:
        assert (first.wait(), second.wait()) == (0, 0)
    assert rig.prove(name, 4) == 20_000


@pytest.mark.full
def test_tasks_max_runs_several_processes_of_one_group(rig: Rig, topic: MakeTopic) -> None:
    name = topic(partitions=4, config=FOREVER)
    produce_all(rig.broker.bootstrap_servers, name, synthetic(10_000, key_count=100))
    rig.run(rig.config(name, tasks_max=2), "--until-caught-up")
    assert rig.prove(name, 4) == 10_000
    with rig.start(rig.config(name, tasks_max=2)) as sink:
        sink.until("partition claimed")
        assert sink.end() == 0


@pytest.mark.full
def test_a_store_that_is_busy_and_loses_answers_is_awaited(
    rig: Rig, topic: MakeTopic, local_s3: LocalS3Process
) -> None:
    name = topic(partitions=2, config=FOREVER)
    produce_all(rig.broker.bootstrap_servers, name, synthetic(6_000, key_count=100))
    local_s3.set_faults(
        Fault(r"^PUT .*/_manifest", status=DROP, applied=True, times=-1, chance=0.1),
        Fault(r"^PUT .*/_manifest", status=DROP, late_ms=300, times=-1, chance=0.05),
        Fault(r"^PUT .*/_manifest", status=409, times=-1, chance=0.1),
        Fault(r"^PUT .*/_manifest", status=500, applied=True, times=-1, chance=0.1),
        Fault(r"^PUT .*partition(=|%3D)", status=503, times=-1, chance=0.2),
        Fault(r"^PUT .*partition(=|%3D)", status=DROP, applied=True, times=-1, chance=0.1),
        seed=3,
    )
    rig.catch_up(rig.config(name, segment_bytes=20_000))
    assert sum(local_s3.struck()) > 20
    local_s3.set_faults()
    assert rig.prove(name, 2) == 6_000


@pytest.mark.full
def test_a_part_of_an_upload_that_fails_is_sent_again(rig: Rig, topic: MakeTopic, local_s3: LocalS3Process) -> None:
    name = topic(config=FOREVER)
    produce_all(rig.broker.bootstrap_servers, name, synthetic(LARGE, key_count=100, value_bytes=1000, partition=0))
    local_s3.set_faults(
        Fault(r"^PUT .*partNumber=", status=503, times=6),
        Fault(r"^POST .*uploadId=", status=DROP, applied=True, times=1),
        Fault(r"^POST .*uploads", status=500, times=1),
        seed=1,
    )
    rig.catch_up(rig.config(name, avro_codec="null", segment_ms=60_000))
    local_s3.set_faults()
    assert rig.prove(name) == LARGE


def test_a_lost_upload_rewinds_the_partition(rig: Rig, topic: MakeTopic, local_s3: LocalS3Process) -> None:
    name = topic(config=FOREVER)
    produce_all(rig.broker.bootstrap_servers, name, synthetic(LARGE, key_count=100, value_bytes=1000, partition=0))
    local_s3.set_faults(Fault(r"^POST .*uploadId=", status=409, times=1))
    said = rig.catch_up(rig.config(name, avro_codec="null", segment_ms=60_000))
    assert "partition reset" in said
    local_s3.set_faults()
    assert rig.prove(name) == LARGE
