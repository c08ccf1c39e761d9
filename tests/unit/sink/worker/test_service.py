"""The service over several workers and a store in memory: status of a sink, and changes of its offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest

from keyfold.errors import StoreUnavailable
from keyfold.log.manifest import Gap
from keyfold.runtime.clock import ManualClock
from keyfold.store.wrappers.faults import Call, Fault, FaultKind
from keyfold_sink.control import NoSuchTask, NotStopped, OffsetRefused, SinkControl
from keyfold_sink.kafka.source import ASKED_REASON
from keyfold_sink.status import UNKNOWN, PartitionStatus, RunState, TaskStatus
from keyfold_sink.worker import desired_state
from keyfold_sink.worker.desired_state import DesiredStateDocument, Restart, RestartScope
from tests.support.sink_world import FOLDER, Worker, World


def stopped(**values: str) -> tuple[World, Worker, Worker]:
    world = World(**values)
    world.written_to(20)
    world.written_to(5, "users", 1)
    a, b = world.workers("a", "b")
    a.service.stop()
    for worker in (a, b):
        worker.turn()
    world.clock.advance(6000)
    b.turn()
    return world, a, b


def part(partition: int, next_offset: int, state: RunState = RunState.RUNNING, topic: str = "users") -> PartitionStatus:
    return PartitionStatus(topic, partition, state, next_offset)


# What is said


def test_the_sink_service_implements_the_protocol() -> None:
    world = World()
    service: SinkControl = world.workers("a")[0].service
    assert service.worker_id == "a"
    assert service.options.name == "users"
    assert service.cluster_id() == "C"
    assert service.is_alive()


def test_the_cluster_id_is_unknown_without_an_answer_and_requested_again_later() -> None:
    world = World()
    (a,) = world.workers("a")
    world.away = True
    assert a.service.cluster_id() == ""
    world.away = False
    assert a.service.cluster_id() == ""
    world.clock.advance(20_000)
    assert a.service.cluster_id() == "C"


def test_workers_start_with_this_one_and_keep_the_last_known_others_during_an_outage() -> None:
    world = World()
    a, b = world.workers("a", "b")
    b.tasks.of = (TaskStatus(0, RunState.RUNNING),)
    b.turn()
    assert [(w.worker_id, w.slot, len(w.tasks)) for w in a.service.workers()] == [("a", 0, 0), ("b", 1, 1)]
    a.faulty.add(Fault(lambda _call: True, FaultKind.UNAVAILABLE, times=10_000))
    world.clock.advance(600_000)
    a.tasks.of = (TaskStatus(1, RunState.FAILED),)
    assert [(w.worker_id, len(w.tasks)) for w in a.service.workers()] == [("a", 1), ("b", 1)]
    assert a.service.target() is RunState.RUNNING
    with pytest.raises(StoreUnavailable):
        a.service.pause()
    assert a.service.target() is RunState.RUNNING


def test_a_request_to_one_worker_changes_the_state_of_all() -> None:
    a, b = World().workers("a", "b")
    for call, state in (
        (a.service.pause, RunState.PAUSED),
        (b.service.resume, RunState.RUNNING),
        (a.service.stop, RunState.STOPPED),
    ):
        call()
        b.turn()
        a.turn()
        assert a.service.target() is b.service.target() is state


def test_a_restart_of_a_task_reaches_its_worker_from_any_worker() -> None:
    a, b = World().workers("a", "b")
    b.tasks.of = (TaskStatus(0, RunState.RUNNING), TaskStatus(1, RunState.FAILED))
    b.turn()
    a.registry._looked_s = None
    a.service.restart_task(3)
    assert b.document.refresh().restarts == (Restart(1, RestartScope.ONE, "b", 1),)
    with pytest.raises(NoSuchTask, match="no worker has a task with id 0"):
        a.service.restart_task(0)
    a.service.restart(include_tasks=True, only_failed=True)
    a.service.restart(include_tasks=True, only_failed=False)
    a.service.restart(include_tasks=False, only_failed=False)
    scopes = [asked.scope for asked in b.document.refresh().restarts]
    assert scopes == [RestartScope.ONE, RestartScope.FAILED, RestartScope.ALL, RestartScope.CONNECTOR]
    a.service.flush()
    assert b.document.refresh().flushes == 1


def task(number: int, state: RunState, trace: str = "", pid: int = 7, reported_ms: int | None = None) -> TaskStatus:
    return TaskStatus(
        number, state, trace, pid, reported_ms=ManualClock().now_ms() if reported_ms is None else reported_ms
    )


def blocked(number: int, *since_ms: int) -> TaskStatus:
    """Return a task whose partitions have been blocked by the store for that long, with unread records."""
    now_ms = ManualClock().now_ms()
    partitions = tuple(
        PartitionStatus(
            "users", at, RunState.RUNNING, next_offset=1, end_offset=9, error="away", blocked_ms=now_ms - each_ms
        )
        for at, each_ms in enumerate(since_ms)
    )
    return replace(task(number, RunState.RUNNING), partitions=partitions)


@pytest.mark.parametrize(
    ("tasks", "why"),
    [
        ((), "task 0 has not been started yet; task 1 has not been started yet"),
        (
            (task(0, RunState.RUNNING), task(1, RunState.UNASSIGNED)),
            "task 1 has not joined the consumer group yet",
        ),
        ((task(0, RunState.RUNNING), task(1, RunState.FAILED, "no right")), "task 1 has failed: no right"),
        (
            (task(0, RunState.RUNNING), task(1, RunState.RESTARTING, "x", UNKNOWN)),
            "task 1 is being restarted: x",
        ),
        ((task(0, RunState.RUNNING), task(1, RunState.RUNNING, reported_ms=0)), "task 1 has not reported for"),
        ((task(0, RunState.RUNNING), task(1, RunState.PAUSED)), ""),
        (
            (task(0, RunState.RUNNING), blocked(1, 61_000)),
            "task 1 makes no progress: users-0 has made no progress for 61 s: away",
        ),
        ((task(0, RunState.RUNNING), blocked(1, 59_000)), ""),
        ((task(0, RunState.RUNNING), blocked(1, 61_000, 1_000)), ""),
    ],
)
def test_a_worker_that_is_not_ready_has_a_reason(tasks: tuple[TaskStatus, ...], why: str) -> None:
    world = World()
    worker = Worker(world, "a")
    assert "desired state" in worker.service.not_ready()
    worker.document.refresh()
    worker.tasks.of = tasks
    assert worker.service.not_ready().startswith(why)
    assert bool(worker.service.not_ready()) == bool(why)
    worker.service.stop()
    assert worker.service.not_ready() == ""


def test_offsets_come_from_tasks_or_else_from_manifests() -> None:
    world = World()
    world.written_to(20)
    world.written_to(5, "users", 1)
    world.written_to(3, "orders", 0)
    world.written_to(9, "somebody-elses", 0)
    a, b = world.workers("a", "b")
    a.tasks.of = (TaskStatus(0, RunState.RUNNING, partitions=(part(0, 30), part(1, UNKNOWN, RunState.UNASSIGNED))),)
    b.tasks.of = (TaskStatus(0, RunState.RUNNING, partitions=(part(0, 25), part(7, 1, topic="new"))),)
    b.turn()
    assert a.service.offsets() == {("new", 7): 1, ("orders", 0): 3, ("users", 0): 30, ("users", 1): 5}
    assert a.service.topics() == ["new", "orders", "users"]


# Altering offsets


def test_a_log_end_moves_forward_over_a_gap_with_its_reason() -> None:
    world, a, _ = stopped()
    epoch = world.manifest().sink.epoch
    a.service.alter_offsets({("users", 0): 60, ("users", 1): 5, ("orders", 0): 10})
    manifest = world.manifest()
    assert (manifest.next_offset, manifest.gaps) == (60, (Gap(20, 60, ASKED_REASON),))
    assert manifest.sink.epoch == epoch + 1
    assert world.manifest("users", 1).gaps == ()
    assert world.manifest("orders").gaps == (Gap(0, 10, ASKED_REASON),), "a log that is not there yet begins with it"
    assert a.service.offsets() == {("orders", 0): 10, ("users", 0): 60, ("users", 1): 5}
    a.service.alter_offsets({("users", 0): 60})
    assert world.manifest().version == manifest.version, "asking again changes nothing"


@pytest.mark.parametrize(
    ("offsets", "why"),
    [
        ({("users", 1): 6, ("users", 0): 19}, "ends at offset 20 and cannot move back to 19"),
        ({("users", 1): 6, ("users", 0): 101}, "beyond the topic's end 100"),
        ({("users", 1): 6, ("users", 2): 0}, "users has no partition 2"),
        ({("users", 1): 6, ("others", 0): 0}, "this sink does not read topic others"),
        ({("users", 1): 6, ("users", 0): -1}, "-1 is not a valid offset"),
        ({("users", 1): 6, ("users", 0): None}, "cannot be reset"),
        ({("users", 1): 6, ("users", 0): True}, "True is not a valid offset"),
    ],
)
def test_a_move_that_would_lose_or_repeat_records_is_refused_and_nothing_moves(
    offsets: Mapping[tuple[str, int], int], why: str
) -> None:
    world, a, _ = stopped()
    with pytest.raises(OffsetRefused, match=why):
        a.service.alter_offsets(offsets)
    assert world.manifest().next_offset == 20
    assert world.manifest("users", 1).next_offset == 5


def test_a_deleted_or_recreated_topic_is_refused() -> None:
    world, a, _ = stopped()
    del world.cluster.ends["orders", 0]
    with pytest.raises(OffsetRefused, match="does not exist"):
        a.service.alter_offsets({("orders", 0): 1})
    world.cluster.topic_id = "another"
    with pytest.raises(OffsetRefused, match="created again"):
        a.service.alter_offsets({("users", 0): 21})


def test_a_new_log_cannot_be_moved_below_the_topics_start() -> None:
    world, a, _ = stopped()
    world.cluster.earliest = 4
    with pytest.raises(OffsetRefused, match="ends at offset 4"):
        a.service.alter_offsets({("orders", 0): 3})
    a.service.alter_offsets({("orders", 0): 4})
    assert world.manifest("orders").next_offset == 4


def test_nothing_is_moved_unless_the_sink_is_stopped() -> None:
    world = World()
    world.written_to(20)
    (a,) = world.workers("a")
    with pytest.raises(NotStopped, match="RUNNING"):
        a.service.alter_offsets({("users", 0): 30})
    a.service.pause()
    with pytest.raises(NotStopped, match="PAUSED"):
        a.service.alter_offsets({("users", 0): 30})


def test_nothing_is_moved_while_any_task_still_exists() -> None:
    world, a, b = stopped()
    b.tasks.of = (TaskStatus(0, RunState.RUNNING),)
    world.clock.advance(6000)
    b.turn()
    with pytest.raises(NotStopped, match="worker b"):
        a.service.alter_offsets({("users", 0): 30})
    b.tasks.of = ()
    b.tasks.version = 1  # it has not followed yet
    world.clock.advance(6000)
    b.turn()
    with pytest.raises(NotStopped, match="worker b"):
        a.service.alter_offsets({("users", 0): 30})
    assert world.manifest().next_offset == 20


def test_a_killed_worker_delays_a_move_for_less_than_its_membership() -> None:
    """The killed worker had tasks, and never read the stop."""
    world = World()
    world.written_to(20)
    a, b = world.workers("a", "b")
    b.tasks.of = (TaskStatus(0, RunState.RUNNING),)
    b.turn()
    a.service.stop()
    a.turn()
    with pytest.raises(NotStopped, match="worker b"):
        a.service.alter_offsets({("users", 0): 30})
    world.clock.advance(14_000)
    with pytest.raises(NotStopped, match="worker b"):
        a.service.alter_offsets({("users", 0): 30})
    world.clock.advance(2_000)
    a.service.alter_offsets({("users", 0): 30})
    assert world.manifest().next_offset == 30


def test_a_worker_killed_while_its_tasks_ended_delays_a_move_for_a_limited_time() -> None:
    world, a, b = stopped()
    b.tasks.of = (TaskStatus(0, RunState.RUNNING),)
    b.turn()
    world.clock.advance(30_000)
    with pytest.raises(NotStopped, match="worker b"):
        a.service.alter_offsets({("users", 0): 30})
    world.clock.advance(13_000)
    a.service.alter_offsets({("users", 0): 30})
    assert world.manifest().next_offset == 30


def test_a_worker_that_reports_delays_a_move_for_as_long_as_its_tasks_take() -> None:
    world, a, b = stopped()
    b.tasks.of = (TaskStatus(0, RunState.RUNNING),)
    for _ in range(10):
        world.clock.advance(31_000)
        b.turn()
        with pytest.raises(NotStopped, match="worker b"):
            a.service.alter_offsets({("users", 0): 30})


def test_a_resume_by_another_worker_prevents_a_move() -> None:
    _, a, b = stopped()
    b.service.resume()
    with pytest.raises(NotStopped, match="RUNNING"):
        a.service.alter_offsets({("users", 0): 30})


def test_a_task_that_claims_during_a_move_is_detected() -> None:
    world, a, _ = stopped()

    def claim_between(call: Call) -> None:
        if call.operation == "put" and "users/partition=0" in call.key and call.key.endswith("_manifest.avro"):
            a.faulty.on_call = None
            world.log().claim_sink()

    a.faulty.on_call = claim_between
    with pytest.raises(NotStopped, match="no offset was changed before it"):
        a.service.alter_offsets({("users", 0): 30})
    assert world.manifest().next_offset == 20


@pytest.mark.parametrize("kind", [FaultKind.LOST_ANSWER, FaultKind.LATE, FaultKind.UNAVAILABLE, FaultKind.CONFLICT])
@pytest.mark.parametrize("times", [1, 3, 9])
def test_lost_answers_move_a_log_end_once(kind: FaultKind, times: int) -> None:
    world, a, _ = stopped()

    def is_manifest(call: Call) -> bool:
        return call.operation == "put" and call.key.endswith("_manifest.avro")

    a.faulty.add(Fault(is_manifest, kind, lands_after=3, times=times))
    a.service.alter_offsets({("users", 0): 30})
    a.faulty.land()
    assert world.manifest().next_offset == 30
    assert world.manifest().gaps == (Gap(20, 30, ASKED_REASON),)


@pytest.mark.parametrize("kind", [FaultKind.LOST_ANSWER, FaultKind.UNAVAILABLE])
def test_a_move_without_an_answer_within_its_time_limit_is_made_once(kind: FaultKind) -> None:
    world, a, _ = stopped()
    puts: list[Call] = []

    def is_advance(call: Call) -> bool:
        puts.extend([call] * (call.operation == "put" and call.key.endswith("_manifest.avro")))
        return len(puts) > 1 and puts[-1] is call

    a.faulty.add(Fault(is_advance, kind, times=12))
    a.service.alter_offsets({("users", 0): 30})
    assert len(puts) > 8
    assert world.manifest().next_offset == 30
    assert world.manifest().gaps == (Gap(20, 30, ASKED_REASON),)


def test_an_error_names_the_partitions_that_were_already_moved() -> None:
    world, a, _ = stopped()

    def is_second(call: Call) -> bool:
        return call.operation == "put" and "users/partition=1" in call.key

    a.faulty.add(Fault(is_second, FaultKind.UNAVAILABLE, times=100_000))
    with pytest.raises(OffsetRefused, match=r"the offset of users-1 was not changed \(already changed: users-0\)"):
        a.service.alter_offsets({("users", 0): 30, ("users", 1): 6})
    assert world.manifest().next_offset == 30


def test_topics_of_a_regex_are_the_matching_ones() -> None:
    world = World()
    world.values = {"topics": "", "topics.regex": "us.*"}
    world.written_to(20)
    world.written_to(3, "orders", 0)
    (a,) = world.workers("a")
    assert a.service.topics() == ["users"]
    a.service.stop()
    a.turn()
    with pytest.raises(OffsetRefused, match="this sink does not read topic orders"):
        a.service.alter_offsets({("orders", 0): 9})
    a.service.alter_offsets({("users", 0): 21})


def test_an_unknown_desired_state_is_read_from_the_store() -> None:
    world = World()
    worker = Worker(world, "a")
    DesiredStateDocument(world.store, FOLDER, world.clock, Random(0)).change(desired_state.target(RunState.PAUSED))
    assert worker.service.target() is RunState.PAUSED
