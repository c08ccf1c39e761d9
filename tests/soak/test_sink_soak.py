"""The long storms of the sink; short ones are in tests/integration/test_sink_faults.py and test_sink_group.py."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.support.kafka import KafkaBroker
from tests.support.moto import DROP, Fault, LocalS3Process
from tests.support.proof import Flow, Rig
from tests.support.sink_storm import Storm

pytestmark = [pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(1800)]

MakeTopic = Callable[..., str]
FOREVER = {"retention.ms": "-1"}
SEED = int(os.environ.get("KEYFOLD_SEED", "1"))
STORM_S = float(os.environ.get("KEYFOLD_STORM_S", "600"))


@pytest.fixture
def rig(broker: KafkaBroker, local_s3: LocalS3Process, bucket: str, tmp_path: Path) -> Rig:
    return Rig(broker, local_s3, bucket, tmp_path)


def test_fifty_kills_while_records_keep_coming(rig: Rig, topic: MakeTopic) -> None:
    name = topic(partitions=4, config=FOREVER)
    random = Random(SEED)
    config = rig.config(name, segment_bytes=100_000, segment_ms=200)
    with Flow(rig, name) as flow:
        for number in range(50):
            with rig.start(config) as sink:
                if number % 5:
                    sink.until("partition claimed")
                time.sleep(random.uniform(0.0, 2.5))
                sink.kill()
    rig.catch_up(config, timeout_s=300)
    assert rig.prove(name, 4) == flow.count


def test_sinks_survive_suspensions_kills_and_takeovers_on_a_faulty_store(
    rig: Rig, topic: MakeTopic, local_s3: LocalS3Process
) -> None:
    name = topic(partitions=3, config=FOREVER)
    random = Random(SEED)
    configs = [rig.config(name, name=group, segment_bytes=50_000, segment_ms=200) for group in ("one", "one", "two")]
    local_s3.set_faults(
        Fault(r"^PUT .*/_manifest", status=DROP, applied=True, times=-1, chance=0.05),
        Fault(r"^PUT .*/_manifest", status=DROP, late_ms=500, times=-1, chance=0.05),
        Fault(r"^PUT .*/_manifest", status=409, times=-1, chance=0.05),
        Fault(r"^PUT .*partition(=|%3D)", status=503, times=-1, chance=0.1),
        seed=SEED,
    )
    with Flow(rig, name) as flow:
        end = time.monotonic() + 150
        sinks = [rig.start(config) for config in configs]
        try:
            while time.monotonic() < end:
                at = random.randrange(len(sinks))
                if random.random() < 0.5:
                    sinks[at].signal(signal.SIGSTOP)
                    time.sleep(random.uniform(0.1, 9.0))
                    sinks[at].signal(signal.SIGCONT)
                else:
                    sinks[at].kill()
                    sinks[at] = rig.start(configs[at])
                time.sleep(random.uniform(0.1, 3.0))
                assert [sink.process.poll() for sink in sinks] == [None] * len(sinks), [s.said[-500:] for s in sinks]
        finally:
            for sink in sinks:
                sink.signal(signal.SIGCONT)
                sink.kill()
    local_s3.set_faults()
    rig.catch_up(configs[0], timeout_s=300)
    assert rig.prove(name, 3) == flow.count


def test_three_workers_survive_a_ten_minute_storm(rig: Rig, local_s3: LocalS3Process) -> None:
    print(Storm(rig, local_s3, seed=SEED, seconds=STORM_S, per_s=1500, segment_ms=5000).run())
