"""Invalid records: skipped with a gap, failing their partition, or waiting for a schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Message
from structlog.testing import capture_logs

from keyfold.errors import KeyfoldError
from keyfold.log.manifest import Gap
from keyfold_sink.group.assignment import PauseReason
from keyfold_sink.validate.dead_letter import RejectedRecord
from keyfold_sink.write import batch as batch_module
from tests.support.proof import read_segments
from tests.support.sink_validation import (
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


def offsets(rig: ValidationRig) -> list[int]:
    return [record.offset for record in read_segments(rig.store, "t", 0)]


def test_a_batch_without_checks_is_written_immediately(make: MakeValidationRig) -> None:
    rig = make()
    rig.values(0, b"a", b"!b", b"?c")
    assert rig.commit().gaps == ()
    assert offsets(rig) == [0, 1, 2]


def test_skipped_records_leave_gaps_with_their_cause(make: MakeValidationRig) -> None:
    rig = make(checks=FakeChecks())
    rig.values(0, b"a", b"!x", b"!x", b"b", b"!y", b"!x", b"c")
    manifest = rig.commit()
    assert manifest.gaps == (Gap(1, 3, "skipped: x"), Gap(4, 5, "skipped: y"), Gap(5, 6, "skipped: x"))
    assert offsets(rig) == [0, 3, 6]
    assert manifest.next_offset == 7
    assert rig.count("kafka_connect_task_error_metrics_total_records_skipped") == 4
    assert rig.count("keyfold_sink_records_skipped_total|x") == 3
    assert rig.count("kafka_connect_task_error_metrics_last_error_timestamp") == rig.clock.now_ms()


def test_skips_over_a_hole_are_one_gap_that_counts_its_records(make: MakeValidationRig) -> None:
    rig = make(checks=FakeChecks())
    rig.take(message(3, b"!x"), message(7, b"!x"), message(9, b"v"), message(12, b"!x"))
    assert rig.commit().gaps == (Gap(3, 8, "skipped: x", 2), Gap(12, 13, "skipped: x"))


def test_a_log_with_only_skipped_records_advances(make: MakeValidationRig) -> None:
    rig = make(checks=FakeChecks())
    rig.values(0, *[b"!x"] * 5)
    rig.clock.advance(60_000)
    rig.writer.roll_if_due()  # nobody else comes to finish it
    manifest = rig.settle()
    assert (manifest.next_offset, manifest.segments, manifest.gaps) == (5, (), (Gap(0, 5, "skipped: x"),))
    rig.values(5, b"v")
    rig.values(6, b"!x")
    manifest = rig.commit()
    assert [(s.base_offset, s.next_offset) for s in manifest.segments] == [(0, 7)]
    rig.values(7, b"!x")
    assert rig.commit().gaps == (Gap(0, 5, "skipped: x"), Gap(6, 8, "skipped: x"))


def test_a_segment_that_ends_within_a_batch_takes_only_the_gaps_below_its_end(make: MakeValidationRig) -> None:
    rig = make(checks=FakeChecks(), flush_size=2)
    rig.values(0, b"a", b"!x", b"b", b"!x", b"c", b"!x", b"d", b"!x")
    rig.settle()
    firsts = {s.next_offset: s for s in rig.session.manifest.segments}
    assert list(firsts) == [3, 7]
    assert rig.session.manifest.gaps == (Gap(1, 2, "skipped: x"), Gap(3, 4, "skipped: x"), Gap(5, 6, "skipped: x"))
    assert rig.commit().gaps[-1] == Gap(7, 8, "skipped: x")
    assert [report.next_offset for report in rig.reports] == [3, 7, 8]


def test_tolerance_none_writes_earlier_records_and_reports_the_rejection(make: MakeValidationRig) -> None:
    rig = make(checks=FakeChecks(), tolerates=False)
    with pytest.raises(RejectedRecord) as caught:
        rig.values(0, b"a", b"b", b"!not JSON", b"c", b"!x")
    said = str(caught.value)
    for word in ("t-0", "offset 2", "VALUE_CONVERTER", "JsonConverter", "is poison", "errors.tolerance=all"):
        assert word in said
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 0, 2)
    assert (rig.commit().next_offset, rig.session.manifest.gaps, offsets(rig)) == (2, (), [0, 1])
    assert rig.count("kafka_connect_task_error_metrics_total_record_errors") == 1
    assert rig.count("kafka_connect_task_error_metrics_total_records_skipped") == 0


def test_records_already_in_the_log_are_not_checked_again(make: MakeValidationRig) -> None:
    rig = make(checks=FakeChecks())
    rig.values(0, b"a", b"b")
    rig.commit()
    rig.values(1, b"!x", b"c")  # the converter is another one now
    assert rig.commit().gaps == ()
    assert offsets(rig) == [0, 1, 2]


def test_skips_are_logged_at_intervals_for_a_limited_number_of_causes(make: MakeValidationRig) -> None:
    rig = make(checks=FakeChecks())
    with capture_logs() as said:
        rig.values(0, *(b"!cause %d" % (n // 2) for n in range(50)))
        rig.validation.resume_waiting()
        assert said == []
        rig.clock.advance(10_000)
        rig.validation.resume_waiting()
        rig.validation.resume_waiting()
    assert len(said) == 21
    assert {**said[0], "log_level": ""} == {
        "event": "records skipped", "topic": "t", "partition": 0, "cause": "cause 0", "records": 2, "log_level": "",
    }  # fmt: skip
    assert (said[-1]["event"], said[-1]["records"]) == ("more records skipped", 10)


@pytest.mark.parametrize("messages", [True, False])
def test_each_record_is_logged_where_that_is_asked_for_and_quoted_only_then(
    make: MakeValidationRig, *, messages: bool
) -> None:
    rig = make(checks=FakeChecks(), logs=True, logs_messages=messages)
    with capture_logs() as said:
        rig.values(0, b"a", b"!x")
    (event,) = [event for event in said if event["event"] == "record failed its check"]
    assert (event["topic"], event["partition"], event["offset"], event["cause"]) == ("t", 0, 1, "x")
    assert ("is poison" in str(event)) is messages
    assert rig.count("kafka_connect_task_error_metrics_total_errors_logged") == 1


# A schema is being asked for


def test_waiting_records_keep_their_order_and_delay_the_partitions_end(make: MakeValidationRig) -> None:
    checks = FakeChecks()
    rig = make(checks=checks)
    rig.values(0, b"a", b"?b")
    rig.values(2, b"c", b"!x")
    rig.validation.read_to(rig.owner, 4)  # the partition's end must not pass what was not judged yet
    assert rig.writer.position == 0
    assert rig.validation.waiting_bytes > 0
    assert rig.commit().next_offset == 0
    rig.validation.resume_waiting()
    assert checks.judged == 1
    checks.answer()
    rig.validation.resume_waiting()
    assert rig.validation.waiting_bytes == 0
    assert rig.commit().next_offset == 4
    assert offsets(rig) == [0, 1, 2]
    rig.values(4, b"d")
    assert rig.commit().next_offset == 5


def test_only_a_partition_that_waits_longer_is_paused(make: MakeValidationRig) -> None:
    checks = FakeChecks()
    rig = make(checks=checks)
    rig.values(0, b"?a")
    rig.validation.resume_waiting()
    assert rig.fetching.said == []
    rig.clock.advance(600)
    rig.validation.resume_waiting()
    rig.validation.resume_waiting()
    assert rig.fetching.said == [("hold", PauseReason.SCHEMAS)]
    checks.answer()
    rig.validation.resume_waiting()
    assert rig.fetching.said == [("hold", PauseReason.SCHEMAS), ("release", PauseReason.SCHEMAS)]


def test_a_waiting_batch_is_checked_again_at_intervals_while_other_schemas_are_pending(make: MakeValidationRig) -> None:
    checks = FakeChecks()
    rig = make(checks=checks)
    rig.values(0, b"?a")
    checks.known = True  # this batch's schema is known; another one is still pending
    rig.validation.resume_waiting()
    assert rig.writer.position == 0
    rig.clock.advance(1000)
    rig.validation.resume_waiting()
    assert rig.writer.position == 1


def test_waiting_records_are_dropped_with_their_attempt(make: MakeValidationRig) -> None:
    checks = FakeChecks()
    rig = make(checks=checks)
    rig.values(0, b"?a")
    rig.claim()
    checks.answer()
    rig.validation.resume_waiting()
    assert rig.validation.waiting_bytes == rig.writer.position == 0
    rig.values(0, b"?a")
    assert rig.commit().next_offset == 1


def test_a_registry_error_fails_the_partition_at_any_point(make: MakeValidationRig) -> None:
    checks = FakeChecks()
    rig = make(checks=checks)
    checks.error = KeyfoldError("the registry refuses the credentials")
    with pytest.raises(KeyfoldError, match="refuses the credentials"):
        rig.values(0, b"a")
    checks.error = None
    rig.values(0, b"?a")
    checks.error = KeyfoldError("later")
    checks.answer()
    rig.validation.resume_waiting()
    assert [str(error) for error in rig.failures] == ["later"]
    assert rig.validation.waiting_bytes == 0


# Header names that are not UTF-8


class _Unreadable(Message):
    asked = False

    def headers(self) -> Any:
        if self.value() == b"bad headers":
            assert not self.asked, "the client's process would die now"
            self.asked = True
            raise SystemError("returned a result with an exception set")
        return super().headers()


def _unreadable(offset: int, value: bytes) -> Message:
    return _Unreadable(topic="t", partition=0, offset=offset, key=b"k", value=value, timestamp=(1, 5))


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "Message", _Unreadable)


@pytest.mark.usefixtures("unreadable")
@pytest.mark.parametrize("checks", [None, FakeChecks()])
def test_a_record_with_unreadable_headers_is_skipped(make: MakeValidationRig, checks: FakeChecks | None) -> None:
    topic = FakeTopic()
    rig = make(checks=checks, topic=topic)
    rig.take(*(_unreadable(n, b"bad headers" if n in (1, 2, 4) else b"v") for n in range(5)))
    rig.take(*(_unreadable(n, b"bad headers") for n in range(5, 7)))
    reason = "skipped: header name is not UTF-8"
    manifest = rig.commit()
    assert manifest.gaps == (Gap(1, 3, reason), Gap(4, 7, reason))
    assert (manifest.next_offset, offsets(rig)) == (7, [0, 3])
    assert topic.offsets == [1, 2, 4, 5, 6]
    assert {letter["value"] for letter in topic.letters} == {b"bad headers"}
    assert dict(topic.letters[0]["headers"])["__connect.errors.stage"] == b"HEADER_CONVERTER"


@pytest.mark.usefixtures("unreadable")
def test_tolerance_none_fails_the_partition_after_the_records_before_unreadable_headers(
    make: MakeValidationRig,
) -> None:
    rig = make(tolerates=False)
    with pytest.raises(RejectedRecord, match=r"offset 2 .*a header whose name is not UTF-8"):
        rig.take(*(_unreadable(n, b"bad headers" if n == 2 else b"v") for n in range(5)))
    assert rig.commit().next_offset == 2
