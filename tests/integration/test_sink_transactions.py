"""`--until-caught-up` over a real broker, with transactions that are committed, aborted, or never ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.support.kafka import KafkaBroker, produce_all, synthetic
from tests.support.moto import LocalS3Process
from tests.support.proof import Rig

pytestmark = pytest.mark.kafka

MakeTopic = Callable[..., str]
FOREVER = {"retention.ms": "-1"}
WAITS = "waiting for an open transaction"


@pytest.fixture
def rig(broker: KafkaBroker, local_s3: LocalS3Process, bucket: str, tmp_path: Path) -> Rig:
    return Rig(broker, local_s3, bucket, tmp_path)


def open_transaction(rig: Rig, topic: str, count: int = 20) -> Producer:
    """Produce records below an open transaction."""
    producer = Producer({"bootstrap.servers": rig.broker.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(count):
        producer.produce(topic, b"%d" % number, b"k", partition=0)
    producer.flush(60)
    return producer


def fill(rig: Rig, topic: str, count: int, partition: int = 0) -> None:
    rows = synthetic(count, key_count=10, partition=partition)
    produce_all(rig.broker.bootstrap_servers, topic, rows)


@pytest.mark.sharded
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_transaction_that_ends_is_awaited_with_the_records_after_it(
    rig: Rig, topic: MakeTopic, is_committed: bool
) -> None:
    name = topic(config=FOREVER)
    fill(rig, name, 50)
    producer = open_transaction(rig, name)
    fill(rig, name, 30)
    with rig.start(rig.config(name, segment_ms=600_000), "--until-caught-up") as sink:
        sink.until(WAITS)
        assert '"last_stable_offset": 50' in sink.said
        assert '"end_offset": 100' in sink.said
        (producer.commit_transaction if is_committed else producer.abort_transaction)(60)
        assert sink.wait() == 0
    assert rig.prove(name) == (100 if is_committed else 80)
    assert rig.manifest(name).next_offset >= 100


@pytest.mark.full
@pytest.mark.parametrize("tasks", [1, 2])
def test_an_abandoned_transaction_is_named_and_has_its_own_exit_code(rig: Rig, topic: MakeTopic, tasks: int) -> None:
    name = topic(partitions=2, config=FOREVER)
    fill(rig, name, 50)
    fill(rig, name, 70, partition=1)
    producer = open_transaction(rig, name)
    config = rig.config(name, segment_ms=600_000, tasks_max=tasks)
    said = rig.run(config, "--until-caught-up", "--transaction-timeout", "2", code=3)
    assert WAITS in said
    error = next(line for line in said.splitlines() if line.startswith("error:"))
    assert f"{name}-0: last stable offset 50, end offset 70" in error
    assert f"{name}-1" not in error
    assert rig.prove(name, 2) == 120
    producer.abort_transaction(60)
    rig.catch_up(config)
    assert rig.manifest(name).next_offset == 71  # the abort's marker included


def test_catching_up_does_not_wait_for_markers_and_aborted_records_at_the_end(rig: Rig, topic: MakeTopic) -> None:
    name = topic(config=FOREVER)
    fill(rig, name, 10)
    producer = open_transaction(rig, name)
    producer.abort_transaction(60)
    said = rig.run(rig.config(name), "--until-caught-up", "--transaction-timeout", "0")
    assert WAITS not in said
    assert rig.manifest(name).next_offset == 31
    assert rig.prove(name) == 10
