"""Half a minute of faults over three workers of one group and 64 partitions; tests/soak has one of ten minutes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.kafka import KafkaBroker
from tests.support.moto import LocalS3Process
from tests.support.proof import Rig
from tests.support.sink_storm import Step, Storm, plan

SEED = int(os.environ.get("KEYFOLD_SEED", "9"))


@pytest.mark.full
@pytest.mark.kafka
def test_each_record_is_in_the_log_once_while_workers_join_leave_die_and_freeze(
    private_broker: KafkaBroker, local_s3: LocalS3Process, bucket: str, tmp_path: Path
) -> None:
    rig = Rig(private_broker, local_s3, bucket, tmp_path)
    print(Storm(rig, local_s3, seed=SEED, seconds=35, per_s=1200, segment_ms=2000).run())


def test_a_schedule_is_repeatable_from_its_seed_and_ends_each_fault() -> None:
    steps = plan(3, 600)
    assert steps == plan(3, 600) != plan(4, 600)
    assert {step.what for step in steps} >= {"leave", "kill", "freeze", "wake", "join", "deaf", "frozen", "pause"}
    for slot in range(3):
        own = [step for step in steps if step.slot == slot]
        assert [step.what in {"join", "wake"} for step in own] == [number % 2 == 1 for number in range(len(own))]
    assert str(Step(1.5, "kill", 2)) == "   1.50 s  kill 2"
