"""Status reports of a task: true at every stage, and cheap with thousands of partitions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from keyfold.errors import StoreUnavailable
from keyfold.runtime.clock import ManualClock, SystemClock
from keyfold.store.api import ObjectStore
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Chaos, FaultKind, FaultyStore
from keyfold_sink.group import group
from keyfold_sink.group.client_errors import ClientErrors
from keyfold_sink.status import UNKNOWN, PartitionStatus, RunState, TaskStatus, dump, load_task, standstill
from keyfold_sink.task.report import StatusReporter
from keyfold_sink.task.time_limits import TaskTimings
from keyfold_sink.write.partition_health import PartitionHealth
from tests.support.clocks import BOTH_WAYS, SkewedClock
from tests.support.sink_rig import T0, T1, MakeRig, rigs

QUICK = TaskTimings(commit_timeout_s=0.1)


@pytest.fixture
def make() -> Iterator[MakeRig]:
    with rigs(QUICK) as build:
        yield build


def away(store: FaultyStore) -> None:
    store._chaos = Chaos(Random(1), rate=1.0, kinds=(FaultKind.UNAVAILABLE,))


def test_a_task_is_unassigned_until_it_has_partitions(make: MakeRig) -> None:
    rig = make()
    rig.until(lambda: rig.says(RunState.UNASSIGNED))
    rig.kafka.tell("on_assign")
    rig.until(lambda: rig.says(RunState.RUNNING))
    assert rig.statuses[-1].partitions == ()


def test_a_task_that_cannot_claim_its_partitions_is_not_running_and_has_the_reason(make: MakeRig) -> None:
    store = FaultyStore(MemoryStore())
    away(store)
    rig = make(store, task__shutdown__graceful__timeout__ms="200")
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: (status := rig.status()) is not None and status.error != "")
    status = rig.status()
    assert status is not None
    assert rig.statuses[-1].state is RunState.UNASSIGNED
    assert status.state is RunState.UNASSIGNED
    assert 0 < status.blocked_ms <= status.error_ms
    assert status.next_offset == status.position == UNKNOWN
    store._chaos = None
    rig.until(lambda: rig.says(RunState.RUNNING))
    rig.wait_for_report()
    status = rig.status()
    assert status is not None
    assert status.blocked_ms == UNKNOWN
    assert status.error != ""  # the last one that there was


def test_a_partition_is_blocked_no_later_than_its_first_error() -> None:
    class TickingClock(ManualClock):
        """A clock that advances by a millisecond at each reading."""

        def now_ms(self) -> int:
            self.advance(1)
            return super().now_ms()

    health = PartitionHealth(TickingClock())
    health.failed("the store is away")
    assert 0 < health.blocked_ms <= health.error_ms


def test_an_unconfirmed_membership_is_reported(make: MakeRig) -> None:
    rig = make(task__shutdown__graceful__timeout__ms="200")
    rig.kafka.refuse = lambda offset: KafkaError(KafkaError.REBALANCE_IN_PROGRESS) if offset.metadata else None
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: (status := rig.status()) is not None and "membership" in status.error)
    assert rig.says(RunState.UNASSIGNED)


def test_an_expelled_member_is_not_running(make: MakeRig) -> None:
    rig = make()
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.says(RunState.RUNNING))
    rig.kafka.tell("on_lost", T0)
    rig.until(lambda: rig.says(RunState.UNASSIGNED))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.says(RunState.RUNNING))


def test_idle_and_blocked_partitions_are_distinguished(make: MakeRig) -> None:
    store = FaultyStore(MemoryStore())
    rig = make(store, segment__ms="100", task__shutdown__graceful__timeout__ms="200")
    rig.kafka.produce(T0, range(1000, 1005))
    rig.kafka.tell("on_assign", T0, T1)
    rig.until(lambda: (status := rig.status()) is not None and status.next_offset == 1005)
    rig.wait_for_report()
    idle = rig.status()
    assert idle is not None
    assert (idle.state, idle.lag_records, idle.oldest_record_ms, idle.blocked_ms) == (
        RunState.RUNNING,
        0,
        UNKNOWN,
        UNKNOWN,
    )
    assert idle.committed_ms > 0
    away(store)
    rig.kafka.produce(T0, range(1005, 1010))
    rig.until(lambda: (status := rig.status()) is not None and status.blocked_ms > 0)
    rig.wait_for_report()
    blocked = rig.status()
    assert blocked is not None
    assert blocked.state is RunState.RUNNING
    assert (blocked.next_offset, blocked.position, blocked.end_offset) == (1005, 1010, 1010)
    assert blocked.lag_records == 5
    assert blocked.oldest_record_ms == 1005  # the fake's timestamps are its offsets
    assert "unavailable" in blocked.error or blocked.error
    other = rig.status(T1)
    assert other is not None
    assert other.blocked_ms == UNKNOWN
    store._chaos = None
    rig.until(lambda: (status := rig.status()) is not None and status.next_offset == 1010)
    rig.wait_for_report()
    after = rig.status()
    assert after is not None
    assert (after.blocked_ms, after.oldest_record_ms) == (UNKNOWN, UNKNOWN)


def test_a_hole_at_the_end_of_an_idle_partition_stops_counting_as_lag(make: MakeRig) -> None:
    """A transaction's marker or compacted records have nothing to read, and the log's end moves over them."""
    rig = make(segment__ms="200")
    rig.kafka.produce(T0, range(5))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.kafka.group_offsets.get(T0) == 5)
    rig.kafka.hole(T0, 2)
    rig.until(lambda: rig.kafka.group_offsets.get(T0) == 7)
    rig.until(lambda: (status := rig.status()) is not None and status.lag_records == 0)


def test_a_topic_that_does_not_exist_is_named_in_the_trace(make: MakeRig) -> None:
    rig = make()
    rig.kafka.tell("on_assign")
    rig.kafka.inject(("misspelt", 0), KafkaError.UNKNOWN_TOPIC_OR_PART)
    rig.until(lambda: rig.says(RunState.RUNNING) and rig.statuses[-1].trace != "")


def test_a_task_reports_during_its_last_flush(make: MakeRig) -> None:
    """A report proves that the task is alive: the longest wait of the main loop must not look like a hang."""
    store = FaultyStore(MemoryStore())
    limits = {"offset__flush__timeout__ms": "1000", "task__shutdown__graceful__timeout__ms": "1000"}
    rig = make(store, timings=replace(QUICK, report_interval_s=0.05), **limits)
    rig.kafka.produce(T0, range(5))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.kafka.fetched.get(T0) == 5)
    away(store)
    before = len(rig.statuses)
    rig.kafka.tell("on_revoke", T0)
    rig.until(lambda: not rig.task._group.assigned)
    assert len(rig.statuses) - before >= 3, "the task was silent while it flushed"


class Refusing:
    url = "memory://away"

    def __getattr__(self, _name: str) -> Any:
        def call(*_arguments: Any, **_options: Any) -> Any:
            raise StoreUnavailable("k", "away")

        return call


def test_two_thousand_partitions_are_reported_quickly(make: MakeRig) -> None:
    """The main loop builds a report each second, so a report must be cheap."""
    rig = make(cast("ObjectStore", Refusing()), task__shutdown__graceful__timeout__ms="10")
    keys = [("t", number) for number in range(2000)]
    rig.kafka.tell("on_assign", *keys)
    rig.until(lambda: bool(rig.statuses) and len(rig.statuses[-1].partitions) == 2000, 60)
    called = 0

    def count(_frame: object, event: str, _more: object) -> None:
        nonlocal called
        called += event == "call"

    sys.setprofile(count)
    try:
        rig.task._report.send_now()
    finally:
        sys.setprofile(None)
    said = rig.statuses[-1]
    assert load_task(dump(said)) == said
    assert called < 2000 * 20


def test_a_status_has_its_process_and_counts() -> None:
    said: list[TaskStatus] = []
    reporter = StatusReporter(3, SystemClock(), said.append, lambda: {"records": 5.0})
    assert reporter.is_due()
    reporter.send_state(RunState.UNASSIGNED, "waiting")
    assert not reporter.is_due()
    assert (said[0].number, said[0].trace, said[0].values) == (3, "waiting", {"records": 5.0})
    assert said[0].pid > 0
    assert said[0].reported_ms >= said[0].started_ms > 0


def test_health_counts_from_the_first_failure_to_the_first_success() -> None:
    clock = ManualClock()
    health = PartitionHealth(clock)
    health.failed("first")
    began_ms = clock.now_ms()
    clock.advance(500)
    health.failed("second")
    assert (health.error, health.blocked_ms, health.error_ms) == ("second", began_ms, began_ms + 500)
    health.went_on()
    assert (health.error, health.blocked_ms) == ("second", UNKNOWN)


@pytest.mark.parametrize("by_ms", BOTH_WAYS)
def test_a_clock_jump_does_not_change_how_long_a_partition_is_blocked(by_ms: int) -> None:
    """Otherwise a stalled partition looks healthy for an hour, or a first error looks like a stall."""
    base = ManualClock()
    clock = SkewedClock(base)
    health = PartitionHealth(clock)
    health.failed("away")
    base.advance(70_000)
    before_ms = health.blocked_ms
    clock.jump(by_ms)
    assert clock.now_ms() - health.blocked_ms == 70_000
    assert health.blocked_ms == before_ms + by_ms
    status = TaskStatus(0, RunState.RUNNING, partitions=(blocked_partition(health.blocked_ms),))
    assert standstill(status, clock.now_ms()) == ("t-0 has made no progress for 70 s: away", False)


def blocked_partition(blocked_ms: int) -> PartitionStatus:
    return PartitionStatus(
        "t", 0, RunState.RUNNING, next_offset=1, end_offset=9, error="away", error_ms=1, blocked_ms=blocked_ms
    )


def test_a_slewed_clock_does_not_change_a_reported_time() -> None:
    """A worker writes a changed status into the bucket: some milliseconds are not a change."""
    clock = SkewedClock.manual()
    health = PartitionHealth(clock)
    health.failed("away")
    before_ms = health.blocked_ms
    clock.jump(300)
    assert health.blocked_ms == before_ms


def test_unreachable_brokers_are_reported_until_records_arrive(make: MakeRig) -> None:
    rig = make()
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.says(RunState.RUNNING))
    rig.kafka.say(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
    rig.until(lambda: "brokers are down" in rig.statuses[-1].trace)
    assert rig.says(RunState.RUNNING)
    rig.kafka.produce(T0, range(3))
    rig.until(lambda: rig.statuses[-1].trace == "")


def test_client_errors_expire_after_a_while_and_topic_errors_when_the_topic_is_assigned() -> None:
    clock = ManualClock()
    client_errors = ClientErrors(clock)
    client_errors.note(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    client_errors.note(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), "misspelt")
    assert len(client_errors.words()) == 2
    clock.advance(61_000)
    assert len(client_errors.words()) == 1
    client_errors.assigned("misspelt")
    assert client_errors.words() == []


def test_a_reset_partition_is_blocked_until_it_is_claimed_again(make: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "reset_delay_s", lambda _set_backs, _random: 0.3)
    rig = make(segment__ms="100")
    rig.kafka.tell("on_assign", T0)
    rig.until(rig.runs)
    rig.log().claim_sink()
    rig.kafka.produce(T0, range(3))
    rig.until(lambda: (status := rig.status()) is not None and status.blocked_ms > 0)
    rig.until(lambda: (status := rig.status()) is not None and status.next_offset == 3)
    rig.until(lambda: (status := rig.status()) is not None and status.blocked_ms == UNKNOWN)


def test_an_abandoned_transaction_is_named_as_what_blocks_a_partition(make: MakeRig) -> None:
    """Kafka has more records, a reader of committed ones does not get them, and the sink works correctly."""
    rig = make(segment__ms="100", timings=replace(QUICK, transaction_ms=200))
    rig.kafka.produce(T0, range(5))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: (status := rig.status()) is not None and status.next_offset == 5)
    assert rig.status().blocked_ms == UNKNOWN  # type: ignore[union-attr]  # it is there, or the test fails
    rig.kafka.open_transaction(T0, 3)
    rig.until(lambda: (status := rig.status()) is not None and status.blocked_ms > 0)
    status = rig.status()
    assert status is not None
    assert "3 offsets are blocked by an open transaction in the topic" in status.error
    assert (status.lag_records, status.position) == (3, 5)
    rig.kafka.open_transaction(T0, 0)
    rig.until(lambda: (status := rig.status()) is not None and status.next_offset == 8)
    rig.until(lambda: (status := rig.status()) is not None and status.blocked_ms == UNKNOWN)
