"""What becomes of records that fail their check: skipped with a trace, failing their partition, or waited for."""

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
from tests.support.sink_desk import Desk, FakeChecks, FakeTopic, MakeDesk, desks, message


@pytest.fixture
def make() -> Iterator[MakeDesk]:
    with desks() as build:
        yield build


def offsets(desk: Desk) -> list[int]:
    return [record.offset for record in read_segments(desk.store, "t", 0)]


def test_without_checks_a_batch_goes_straight_on(make: MakeDesk) -> None:
    desk = make()
    desk.values(0, b"a", b"!b", b"?c")
    assert desk.commit().gaps == ()
    assert offsets(desk) == [0, 1, 2]


def test_skipped_records_leave_gaps_with_their_cause_around_what_stays(make: MakeDesk) -> None:
    desk = make(checks=FakeChecks())
    desk.values(0, b"a", b"!x", b"!x", b"b", b"!y", b"!x", b"c")
    manifest = desk.commit()
    assert manifest.gaps == (Gap(1, 3, "skipped: x"), Gap(4, 5, "skipped: y"), Gap(5, 6, "skipped: x"))
    assert offsets(desk) == [0, 3, 6]
    assert manifest.next_offset == 7
    assert desk.count("kafka_connect_task_error_metrics_total_records_skipped") == 4
    assert desk.count("keyfold_sink_records_skipped_total|x") == 3
    assert desk.count("kafka_connect_task_error_metrics_last_error_timestamp") == desk.clock.now_ms()


def test_skips_over_a_hole_are_one_gap_that_counts_its_records(make: MakeDesk) -> None:
    desk = make(checks=FakeChecks())
    desk.take(message(3, b"!x"), message(7, b"!x"), message(9, b"v"), message(12, b"!x"))
    assert desk.commit().gaps == (Gap(3, 8, "skipped: x", 2), Gap(12, 13, "skipped: x"))


def test_a_log_of_skips_alone_moves_its_end(make: MakeDesk) -> None:
    desk = make(checks=FakeChecks())
    desk.values(0, *[b"!x"] * 5)
    desk.clock.advance(60_000)
    desk.writer.roll_if_due()  # nobody else comes to finish it
    manifest = desk.settle()
    assert (manifest.next_offset, manifest.segments, manifest.gaps) == (5, (), (Gap(0, 5, "skipped: x"),))
    desk.values(5, b"v")
    desk.values(6, b"!x")
    manifest = desk.commit()
    assert [(s.base_offset, s.next_offset) for s in manifest.segments] == [(0, 7)]
    desk.values(7, b"!x")
    assert desk.commit().gaps == (Gap(0, 5, "skipped: x"), Gap(6, 8, "skipped: x"))


def test_a_segment_that_ends_within_a_batch_takes_only_the_gaps_that_it_passes(make: MakeDesk) -> None:
    desk = make(checks=FakeChecks(), flush_size=2)
    desk.values(0, b"a", b"!x", b"b", b"!x", b"c", b"!x", b"d", b"!x")
    desk.settle()
    firsts = {s.next_offset: s for s in desk.session.manifest.segments}
    assert list(firsts) == [3, 7]
    assert desk.session.manifest.gaps == (Gap(1, 2, "skipped: x"), Gap(3, 4, "skipped: x"), Gap(5, 6, "skipped: x"))
    assert desk.commit().gaps[-1] == Gap(7, 8, "skipped: x")
    assert [report.next_offset for report in desk.reports] == [3, 7, 8]


def test_with_tolerance_none_what_came_before_is_written_and_the_error_says_all(make: MakeDesk) -> None:
    desk = make(checks=FakeChecks(), tolerates=False)
    with pytest.raises(RejectedRecord) as caught:
        desk.values(0, b"a", b"b", b"!not JSON", b"c", b"!x")
    said = str(caught.value)
    for word in ("t-0", "offset 2", "VALUE_CONVERTER", "JsonConverter", "is poison", "errors.tolerance=all"):
        assert word in said
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 0, 2)
    assert (desk.commit().next_offset, desk.session.manifest.gaps, offsets(desk)) == (2, (), [0, 1])
    assert desk.count("kafka_connect_task_error_metrics_total_record_errors") == 1
    assert desk.count("kafka_connect_task_error_metrics_total_records_skipped") == 0


def test_records_that_the_log_has_already_are_not_judged_again(make: MakeDesk) -> None:
    desk = make(checks=FakeChecks())
    desk.values(0, b"a", b"b")
    desk.commit()
    desk.values(1, b"!x", b"c")  # the converter is another one now
    assert desk.commit().gaps == ()
    assert offsets(desk) == [0, 1, 2]


def test_what_is_skipped_is_said_now_and_then_and_not_of_every_cause(make: MakeDesk) -> None:
    desk = make(checks=FakeChecks())
    with capture_logs() as said:
        desk.values(0, *(b"!cause %d" % (n // 2) for n in range(50)))
        desk.validation.resume_waiting()
        assert said == []
        desk.clock.advance(10_000)
        desk.validation.resume_waiting()
        desk.validation.resume_waiting()
    assert len(said) == 21
    assert {**said[0], "log_level": ""} == {
        "event": "records skipped", "topic": "t", "partition": 0, "cause": "cause 0", "records": 2, "log_level": "",
    }  # fmt: skip
    assert (said[-1]["event"], said[-1]["records"]) == ("more records skipped", 10)


@pytest.mark.parametrize("messages", [True, False])
def test_each_record_is_logged_where_that_is_asked_for_and_quoted_only_then(make: MakeDesk, *, messages: bool) -> None:
    desk = make(checks=FakeChecks(), logs=True, logs_messages=messages)
    with capture_logs() as said:
        desk.values(0, b"a", b"!x")
    (event,) = [event for event in said if event["event"] == "record failed its check"]
    assert (event["topic"], event["partition"], event["offset"], event["cause"]) == ("t", 0, 1, "x")
    assert ("is poison" in str(event)) is messages
    assert desk.count("kafka_connect_task_error_metrics_total_errors_logged") == 1


# A schema is being asked for


def test_what_waits_keeps_its_order_and_the_end_of_the_partition_waits_too(make: MakeDesk) -> None:
    checks = FakeChecks()
    desk = make(checks=checks)
    desk.values(0, b"a", b"?b")
    desk.values(2, b"c", b"!x")
    desk.validation.read_to(desk.owner, 4)  # the partition's end must not pass what was not judged yet
    assert desk.writer.position == 0
    assert desk.validation.kept_bytes > 0
    assert desk.commit().next_offset == 0
    desk.validation.resume_waiting()
    assert checks.judged == 1
    checks.answer()
    desk.validation.resume_waiting()
    assert desk.validation.kept_bytes == 0
    assert desk.commit().next_offset == 4
    assert offsets(desk) == [0, 1, 2]
    desk.values(4, b"d")
    assert desk.commit().next_offset == 5


def test_a_partition_that_waits_for_longer_is_paused_alone(make: MakeDesk) -> None:
    checks = FakeChecks()
    desk = make(checks=checks)
    desk.values(0, b"?a")
    desk.validation.resume_waiting()
    assert desk.fetching.said == []
    desk.clock.advance(600)
    desk.validation.resume_waiting()
    desk.validation.resume_waiting()
    assert desk.fetching.said == [("hold", PauseReason.SCHEMAS)]
    checks.answer()
    desk.validation.resume_waiting()
    assert desk.fetching.said == [("hold", PauseReason.SCHEMAS), ("release", PauseReason.SCHEMAS)]


def test_it_is_judged_again_now_and_then_while_others_keep_asking(make: MakeDesk) -> None:
    checks = FakeChecks()
    desk = make(checks=checks)
    desk.values(0, b"?a")
    checks.known = True  # mine is there; somebody else's is still asked for
    desk.validation.resume_waiting()
    assert desk.writer.position == 0
    desk.clock.advance(1000)
    desk.validation.resume_waiting()
    assert desk.writer.position == 1


def test_what_waits_is_dropped_with_its_attempt(make: MakeDesk) -> None:
    checks = FakeChecks()
    desk = make(checks=checks)
    desk.values(0, b"?a")
    desk.claim()
    checks.answer()
    desk.validation.resume_waiting()
    assert desk.validation.kept_bytes == desk.writer.position == 0
    desk.values(0, b"?a")
    assert desk.commit().next_offset == 1


def test_an_error_of_the_registry_fails_the_partition_wherever_it_comes(make: MakeDesk) -> None:
    checks = FakeChecks()
    desk = make(checks=checks)
    checks.error = KeyfoldError("the registry refuses the credentials")
    with pytest.raises(KeyfoldError, match="refuses the credentials"):
        desk.values(0, b"a")
    checks.error = None
    desk.values(0, b"?a")
    checks.error = KeyfoldError("later")
    checks.answer()
    desk.validation.resume_waiting()
    assert [str(error) for error in desk.failures] == ["later"]
    assert desk.validation.kept_bytes == 0


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
def test_a_record_whose_headers_cannot_be_read_is_skipped(make: MakeDesk, checks: FakeChecks | None) -> None:
    topic = FakeTopic()
    desk = make(checks=checks, topic=topic)
    desk.take(*(_unreadable(n, b"bad headers" if n in (1, 2, 4) else b"v") for n in range(5)))
    desk.take(*(_unreadable(n, b"bad headers") for n in range(5, 7)))
    reason = "skipped: header name is not UTF-8"
    manifest = desk.commit()
    assert manifest.gaps == (Gap(1, 3, reason), Gap(4, 7, reason))
    assert (manifest.next_offset, offsets(desk)) == (7, [0, 3])
    assert topic.offsets == [1, 2, 4, 5, 6]
    assert {letter["value"] for letter in topic.letters} == {b"bad headers"}
    assert dict(topic.letters[0]["headers"])["__connect.errors.stage"] == b"HEADER_CONVERTER"


@pytest.mark.usefixtures("unreadable")
def test_with_tolerance_none_it_fails_the_partition_behind_what_came_before(make: MakeDesk) -> None:
    desk = make(tolerates=False)
    with pytest.raises(RejectedRecord, match=r"offset 2 .*a header whose name is not UTF-8"):
        desk.take(*(_unreadable(n, b"bad headers" if n == 2 else b"v") for n in range(5)))
    assert desk.commit().next_offset == 2
