"""A whole task with invalid records: only their partition is affected."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from confluent_kafka import KafkaError

from keyfold.log.manifest import Gap
from keyfold.log.record import RecordColumns
from keyfold_sink.group.assignment import PartitionStage
from keyfold_sink.status import RunState
from keyfold_sink.validate.convert.api import ConnectStage as At
from keyfold_sink.validate.convert.api import Rejected, SchemasPending
from tests.support.proof import read_segments
from tests.support.sink_rig import T0, T1, MakeRig, rigs
from tests.support.sink_validation import TOPIC, FakeTopic

LETTERS = {"errors__tolerance": "all", "errors__deadletterqueue__topic__name": TOPIC}
CONTEXT = {"errors__deadletterqueue__context__headers__enable": "true"}


class Checks:
    """Checks that reject values with `!`; those with `?` need a schema that arrives when the test says so."""

    def __init__(self) -> None:
        self.known = threading.Event()

    def judge(self, topic: str, partition: int, batch: RecordColumns) -> Sequence[Rejected]:
        if b"?" in batch.values and not self.known.is_set():
            raise SchemasPending
        return [Rejected(n, At.VALUE_CONVERTER, "C", "bad", "is bad") for n, v in enumerate(batch.values) if v == b"!"]

    def pending(self) -> bool:
        return not self.known.is_set()

    def close(self) -> None:
        pass


@pytest.fixture
def make() -> Iterator[MakeRig]:
    with rigs() as build:
        yield build


def test_a_rejected_record_fails_its_partition_after_the_records_before_it(make: MakeRig) -> None:
    rig = make(checks=Checks(), segment__ms="100")
    rig.kafka.produce(T0, range(5))
    rig.kafka.produce(T0, range(5, 6), b"!")
    rig.kafka.produce(T0, range(6, 9))
    rig.kafka.produce(T1, range(5))
    rig.kafka.tell("on_assign", T0, T1)
    rig.until(lambda: rig.says(RunState.FAILED))
    rig.kafka.produce(T1, range(5, 9))
    rig.until(lambda: rig.kafka.group_offsets.get(T1) == 9)
    rig.until(lambda: rig.next_offset(T0) == 5)
    assert rig.task._group.assigned[T0].stage is PartitionStage.FAILED
    assert "offset 5" in rig.statuses[-1].trace
    assert "errors.tolerance=all" in rig.statuses[-1].trace
    rig.end()
    assert "offset 5" in str(rig.error)
    assert rig.next_offset(T0) == 5


def test_skips_and_dead_letters_of_one_partition_among_others(make: MakeRig) -> None:
    topic = FakeTopic()
    rig = make(checks=Checks(), open_producer=topic.open, segment__ms="100", **LETTERS, **CONTEXT)
    for key in (T0, T1):
        rig.kafka.produce(key, range(10))
    rig.kafka.produce(T0, range(10, 15), b"!")
    rig.kafka.tell("on_assign", T0, T1)
    rig.until(lambda: rig.kafka.group_offsets.get(T0) == 15)
    rig.until(lambda: rig.kafka.group_offsets.get(T1) == 10)
    assert rig.log().load().manifest.gaps == (Gap(10, 15, "skipped: bad"),)
    assert topic.offsets == [10, 11, 12, 13, 14]
    rig.until(lambda: rig.statuses[-1].values.get("keyfold_sink_records_skipped_total|bad") == 5)


def test_undeliverable_dead_letters_block_only_their_partition(make: MakeRig) -> None:
    topic = FakeTopic()
    topic.is_away = True
    rig = make(checks=Checks(), open_producer=topic.open, segment__ms="100", **LETTERS, **CONTEXT)
    rig.kafka.produce(T0, range(3), b"!")
    rig.kafka.produce(T1, range(10))
    rig.kafka.tell("on_assign", T0, T1)
    rig.until(lambda: rig.kafka.group_offsets.get(T1) == 10)
    time.sleep(0.3)
    assert rig.next_offset(T0) == 0
    topic.is_away = False
    rig.until(lambda: rig.kafka.group_offsets.get(T0) == 3)


def test_only_the_partition_whose_schema_is_pending_waits_and_in_order(make: MakeRig) -> None:
    checks = Checks()
    rig = make(checks=checks, segment__ms="100")
    rig.kafka.produce(T0, range(5))
    rig.kafka.produce(T0, range(5, 6), b"?")
    rig.kafka.produce(T1, range(10))
    rig.kafka.tell("on_assign", T0, T1)
    rig.until(lambda: rig.kafka.group_offsets.get(T1) == 10)
    rig.until(lambda: T0 in rig.kafka.paused)
    rig.kafka.produce(T0, range(6, 9))
    assert rig.next_offset(T0) == 0
    assert T1 not in rig.kafka.paused
    checks.known.set()
    rig.until(lambda: rig.kafka.group_offsets.get(T0) == 9)
    assert [r.offset for r in read_segments(rig.store, "t", 0)] == list(range(9))


def test_a_partition_revoked_while_it_waits_is_read_again(make: MakeRig) -> None:
    checks = Checks()
    rig = make(checks=checks, segment__ms="100")
    rig.kafka.produce(T0, range(5), b"?")
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.task._validation.waiting_bytes > 0)
    rig.kafka.tell("on_revoke", T0)
    rig.until(lambda: rig.task._validation.waiting_bytes == 0)
    checks.known.set()
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.kafka.group_offsets.get(T0) == 5)


def test_a_refused_dead_letter_fails_only_its_partition(make: MakeRig) -> None:
    topic = FakeTopic()
    topic.judge = lambda _letter: KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "too large")
    rig = make(checks=Checks(), open_producer=topic.open, segment__ms="100", **LETTERS, **CONTEXT)
    rig.kafka.produce(T0, range(3), b"!")
    rig.kafka.produce(T1, range(10))
    rig.kafka.tell("on_assign", T0, T1)
    rig.until(lambda: rig.says(RunState.FAILED))
    rig.until(lambda: rig.kafka.group_offsets.get(T1) == 10)
    assert "max.message.bytes" in rig.statuses[-1].trace
    assert rig.next_offset(T0) == 0


def test_waiting_records_count_against_the_memory_budget(make: MakeRig) -> None:
    checks = Checks()
    rig = make(checks=checks, segment__ms="100", buffer__memory=str(16 * 1024 * 1024))
    rig.kafka.produce(T0, range(1), b"?")
    rig.kafka.tell("on_assign", T0)
    for begin in range(1, 301, 10):
        rig.kafka.produce(T0, range(begin, begin + 10), b"x" * 100_000)
        time.sleep(0.02)
    assert T0 in rig.kafka.paused
    assert 4_000_000 < rig.task._validation.waiting_bytes < 8_000_000
    checks.known.set()
    rig.until(lambda: rig.kafka.group_offsets.get(T0) == 301)
