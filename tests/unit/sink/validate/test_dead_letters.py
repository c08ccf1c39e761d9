"""Dead letters: their content, and that no commit passes their offsets before Kafka has them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from keyfold.errors import LogError
from keyfold.log.manifest import Gap
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Fault, FaultKind, FaultyStore, SimulatedCrash
from keyfold_sink.group.assignment import PauseReason
from keyfold_sink.validate.convert.api import ConnectStage
from keyfold_sink.validate.dead_letter import DeadLetterOrigin, InvalidRecord, build_dead_letter
from keyfold_sink.validate.dead_letter_topic import DeadLetterRefused
from tests.support.sink_validation import (
    CONVERTER,
    PLACE,
    FakeChecks,
    FakeTopic,
    MakeValidationRig,
    ValidationRig,
    message,
    validation_rigs,
)


@pytest.fixture
def make() -> Iterator[MakeValidationRig]:
    with validation_rigs() as build:
        yield build


def failure(**changes: Any) -> InvalidRecord:
    given: dict[str, Any] = {
        "offset": 42,
        "timestamp": 7,
        "key": b"\xff",
        "value": b"\x00",
        "headers": [("a", b"1"), ("a", None)],
        "stage": ConnectStage.VALUE_CONVERTER,
        "converter": CONVERTER,
        "cause": "not JSON",
        "message": "not JSON: \udcff",
    }
    return InvalidRecord(**(given | changes))


def wait_until(rig: ValidationRig, offset: int) -> None:
    assert rig.owner.queue.wait_idle(60)
    assert rig.session.refresh().next_offset == offset


def test_a_dead_letter_is_the_record_with_connects_headers_appended() -> None:
    made = build_dead_letter(("t", 3), failure(), DeadLetterOrigin("sink", 5, context=True))
    assert (made.offset, made.timestamp, made.key, made.value) == (42, 7, b"\xff", b"\x00")
    exception = b"org.apache.kafka.connect.errors.DataException"
    assert made.headers == [
        ("a", b"1"),
        ("a", None),
        ("__connect.errors.topic", b"t"),
        ("__connect.errors.partition", b"3"),
        ("__connect.errors.offset", b"42"),
        ("__connect.errors.connector.name", b"sink"),
        ("__connect.errors.task.id", b"5"),
        ("__connect.errors.stage", b"VALUE_CONVERTER"),
        ("__connect.errors.class.name", CONVERTER.encode()),
        ("__connect.errors.exception.class.name", exception),
        ("__connect.errors.exception.message", b"not JSON: \\udcff"),
        ("__connect.errors.exception.stacktrace", exception + b": not JSON: \\udcff\n"),
    ]


def test_a_dead_letter_without_context_is_the_record_alone() -> None:
    assert build_dead_letter(("t", 3), failure(), DeadLetterOrigin("sink", 5, context=False)).headers == [
        ("a", b"1"),
        ("a", None),
    ]


def test_a_header_that_the_record_already_has_is_not_repeated() -> None:
    """A record of another dead letter topic keeps the headers of its first origin, as in Connect."""
    old = [("__connect.errors.topic", b"first"), ("__connect.errors.offset", b"1")]
    headers = build_dead_letter(("t", 3), failure(headers=old), DeadLetterOrigin("sink", 5, context=True)).headers
    assert headers[:2] == old
    assert [name for name, _ in headers].count("__connect.errors.topic") == 1
    assert ("__connect.errors.partition", b"3") in headers


def test_dead_letters_are_delivered_before_the_commit_that_skips_their_records(make: MakeValidationRig) -> None:
    topic = FakeTopic()
    rig = make(checks=FakeChecks(), topic=topic)
    topic.is_away = True
    rig.take(message(0), message(1, b"!x", headers=[("h", b"1")]), message(2, b"!y", timestamp=(0, 0)))
    rig.writer.roll_if_due()
    rig.clock.advance(60_000)
    rig.writer.roll_if_due()
    assert not rig.owner.queue.wait_idle(0.1)
    assert rig.session.manifest.next_offset == 0
    assert rig.in_flight.size_bytes > 0
    topic.is_away = False
    wait_until(rig, 3)
    first, second = topic.letters
    assert (first["key"], first["value"], first["timestamp"], first["headers"][0]) == (b"k1", b"!x", 1001, ("h", b"1"))
    assert "timestamp" not in second
    assert topic.offsets == [1, 2]
    assert rig.in_flight.size_bytes == 0
    assert rig.count("kafka_connect_task_error_metrics_deadletterqueue_produce_requests") == 2
    assert rig.count("kafka_connect_task_error_metrics_deadletterqueue_produce_failures") == 0


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "the right to write"),
        (KafkaError.MSG_SIZE_TOO_LARGE, "max.message.bytes"),
        (KafkaError._UNKNOWN_TOPIC, "deleted"),
        (KafkaError.INVALID_RECORD, "correct the cause of Kafka's error"),
    ],
)
def test_a_refused_dead_letter_fails_the_partition_and_commits_nothing(
    make: MakeValidationRig, code: int, hint: str
) -> None:
    topic = FakeTopic()
    rig = make(checks=FakeChecks(), topic=topic)
    topic.judge = lambda _letter: KafkaError(code, "no")
    rig.values(0, b"a", b"!x", b"b")
    assert rig.commit().next_offset == 0
    (crash,) = rig.crashes
    assert isinstance(crash, DeadLetterRefused)
    assert isinstance(crash, LogError)
    assert not crash.retriable
    assert "offset 1" in str(crash)
    assert hint in str(crash)
    assert rig.in_flight.size_bytes == 0
    assert rig.count("kafka_connect_task_error_metrics_deadletterqueue_produce_failures") == 1


@pytest.mark.parametrize(
    "error",
    [
        KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION, "moved", False, True),
        KafkaError(KafkaError._MSG_TIMED_OUT),
        KafkaError(KafkaError._TRANSPORT),
    ],
)
def test_a_temporarily_refused_dead_letter_is_sent_again(make: MakeValidationRig, error: KafkaError) -> None:
    topic = FakeTopic()
    rig = make(checks=FakeChecks(), topic=topic)
    answers: list[KafkaError | None] = [error, error, None]
    topic.judge = lambda _letter: answers.pop(0)
    rig.values(0, b"!x")
    ticking = threading.Event()

    def tick() -> None:
        while not ticking.wait(0.002):
            rig.clock.advance(500)

    clock = threading.Thread(target=tick)
    clock.start()
    manifest = rig.commit()
    ticking.set()
    clock.join()
    assert (manifest.next_offset, topic.offsets, answers) == (1, [0], [])


def test_a_timestamp_that_the_topic_refuses_is_omitted(make: MakeValidationRig) -> None:
    topic = FakeTopic()
    rig = make(checks=FakeChecks(), topic=topic)
    topic.judge = lambda letter: KafkaError(KafkaError.INVALID_TIMESTAMP) if "timestamp" in letter else None
    rig.values(0, b"!x")
    assert rig.commit().next_offset == 1
    assert topic.offsets == [0]


@pytest.mark.parametrize("raises", [True, False])
def test_a_broken_producer_is_replaced_and_all_dead_letters_are_sent_again(
    make: MakeValidationRig, monkeypatch: pytest.MonkeyPatch, *, raises: bool
) -> None:
    topic = FakeTopic()
    rig = make(checks=FakeChecks(), topic=topic)
    fatal = KafkaError(KafkaError._FATAL, "out of order", True)
    first = topic.producers[0]
    if raises:

        def poll(timeout: float) -> int:
            raise KafkaException(fatal)

        monkeypatch.setattr(first, "poll", poll)
    else:
        topic.judge = lambda _letter: fatal if len(topic.producers) == 1 else None
    rig.values(0, b"!x", b"!x", b"v")
    letters = rig.letters
    assert letters is not None
    letters.serve(0.0)
    assert len(topic.producers) == 2
    rig.clock.advance(1000)
    assert rig.commit().next_offset == 3
    assert topic.offsets == [0, 1]
    for _letter, on_delivery in first.queue:
        on_delivery(None, None)  # an old answer that comes late
    assert rig.in_flight.size_bytes == 0


def test_a_password_refused_for_long_enough_ends_the_wait(make: MakeValidationRig) -> None:
    topic = FakeTopic()
    topic.is_away = True
    rig = make(checks=FakeChecks(), topic=topic)
    rig.values(0, b"!x")
    for _ in range(2):  # a broker that restarts may refuse for a moment
        topic.producers[0].on_error(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
        rig.clock.advance(20_000)
        rig.validation.resume_waiting()
    assert rig.commit().next_offset == 0
    (crash,) = rig.crashes
    assert isinstance(crash, DeadLetterRefused)
    assert "wrong password" in str(crash)
    assert rig.in_flight.size_bytes == 0


def test_a_missing_right_to_write_ends_the_wait_immediately(make: MakeValidationRig) -> None:
    topic = FakeTopic()
    topic.is_away = True
    rig = make(checks=FakeChecks(), topic=topic)
    rig.values(0, b"!x")
    topic.producers[0].on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    topic.producers[0].on_error(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no right", True))
    assert rig.commit().next_offset == 0
    assert "no right" in str(rig.crashes[0])


def test_reading_continues_until_pending_dead_letters_fill_their_share_of_memory(
    make: MakeValidationRig,
) -> None:
    topic = FakeTopic()
    topic.is_away = True
    checks = FakeChecks()
    rig = make(checks=checks, topic=topic, limit_bytes=2000)
    rig.values(0, *[b"!x"] * 3)
    assert rig.writer.position == 3
    rig.values(3, b"!x", b"v")
    assert rig.writer.position == 3
    judged = checks.judged
    for _ in range(10):
        rig.clock.advance(600)
        rig.validation.resume_waiting()
    assert checks.judged == judged  # a batch is not judged again and again for nothing
    assert rig.fetching.said == [("hold", PauseReason.LETTERS)]
    topic.is_away = False
    rig.validation.resume_waiting()
    assert rig.fetching.said[-1] == ("release", PauseReason.LETTERS)
    assert rig.writer.position == 5
    assert rig.commit().next_offset == 5
    assert topic.offsets == [0, 1, 2, 3]


def test_dead_letters_beyond_the_clients_queue_are_sent_later(make: MakeValidationRig) -> None:
    topic = FakeTopic()
    topic.queue_max = 2
    rig = make(checks=FakeChecks(), topic=topic)
    rig.values(0, *[b"!x"] * 5)
    for _ in range(3):
        rig.clock.advance(1000)
        rig.validation.resume_waiting()
    assert topic.offsets == [0, 1, 2, 3, 4]
    assert rig.commit().next_offset == 5


def test_a_closed_queue_waits_for_no_dead_letter(make: MakeValidationRig) -> None:
    topic = FakeTopic()
    topic.is_away = True
    rig = make(checks=FakeChecks(), topic=topic)
    rig.values(0, b"!x")
    rig.commit_later()
    rig.owner.queue.close()
    assert rig.owner.queue.wait_idle(60)
    assert rig.session.refresh().next_offset == 0
    assert rig.crashes == []


@pytest.mark.parametrize("kind", [FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER])
def test_a_crash_between_delivery_and_commit_repeats_a_dead_letter_and_loses_none(
    make: MakeValidationRig, kind: FaultKind
) -> None:
    inner = MemoryStore()
    topic = FakeTopic()
    faulty = FaultyStore(inner)
    rig = make(checks=FakeChecks(), topic=topic, store=faulty)
    faulty.add(Fault(lambda call: call.operation == "put" and call.key == PLACE.manifest_key, kind))
    rig.values(0, b"a", b"!x", b"b")
    rig.commit_later()
    assert rig.owner.queue.wait_idle(60)
    assert isinstance(rig.crashes[0], SimulatedCrash)
    assert topic.offsets == [1]
    rig.store = inner
    rig.claim()
    landed = kind is FaultKind.CRASH_AFTER
    assert rig.writer.position == (3 if landed else 0)
    rig.values(0, b"a", b"!x", b"b")
    manifest = rig.commit()
    assert topic.offsets == ([1] if landed else [1, 1])
    assert (manifest.next_offset, manifest.record_count, manifest.gaps) == (3, 2, (Gap(1, 2, "skipped: x"),))
