"""Commands to a running task: pause, resume, flush. Reasons to pause are independent of each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, TopicPartition

from keyfold.runtime.clock import ManualClock
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Chaos, FaultKind, FaultyStore
from keyfold_sink.group.assignment import AssignedPartition, PauseReason
from keyfold_sink.group.fetching import PartitionFetching
from keyfold_sink.kafka.source import TOMBSTONES_REASON
from keyfold_sink.status import RunState
from keyfold_sink.task.commands import PendingCommands, TaskCommand, TaskCommands
from keyfold_sink.write.partition_health import PartitionHealth
from keyfold_sink.write.serial_queue import QueueRetry, SerialQueue
from tests.support.fake_group import FakeConsumer, Key
from tests.support.proof import read_segments
from tests.support.sink_rig import T0, T1, MakeRig, Rig, rigs


@pytest.fixture
def make() -> Iterator[MakeRig]:
    with rigs() as build:
        yield build


def offsets(rig: Rig, key: Key = T0) -> list[int]:
    return [record.offset for record in read_segments(rig.store, *key)]


def settle(rig: Rig) -> None:
    """Let the task's loop run a few rounds."""
    rounds = rig.kafka.rounds
    rig.until(lambda: rig.kafka.rounds > rounds + 3)


def test_the_last_pause_or_resume_counts_and_flushes_are_merged() -> None:
    commands = TaskCommands(threading.Event())
    for command in (TaskCommand.PAUSE, TaskCommand.FLUSH, TaskCommand.FLUSH, TaskCommand.RESUME, TaskCommand.PAUSE):
        commands.add(command)
    assert commands.take_pending() == PendingCommands(pause=True, flush=True)
    assert commands.take_pending() == PendingCommands(pause=True, flush=False)
    assert not commands.stop.is_set()
    commands.add(TaskCommand.STOP)
    assert commands.stop.is_set()


def test_a_pause_commits_pending_records_and_stops_reading_until_resumed(make: MakeRig) -> None:
    rig = make()
    rig.kafka.produce(T0, range(10))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.kafka.fetched.get(T0) == 10)
    rig.commands.add(TaskCommand.PAUSE)
    rig.until(lambda: rig.next_offset() == 10 and rig.says(RunState.PAUSED))
    rig.kafka.produce(T0, range(10, 20))
    settle(rig)
    assert rig.kafka.handed_over[T0] == 10
    assert not rig.kafka.closed
    status = rig.status()
    assert status is not None
    assert status.state is RunState.PAUSED
    rig.commands.add(TaskCommand.RESUME)
    rig.until(lambda: rig.says(RunState.RUNNING) and rig.kafka.handed_over[T0] == 20)
    rig.end()
    assert offsets(rig) == list(range(20))


def test_a_task_started_paused_reads_nothing(make: MakeRig) -> None:
    rig = make(pause=True)
    rig.kafka.produce(T0, range(10))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.runs() and rig.says(RunState.PAUSED))
    settle(rig)
    assert rig.kafka.handed_over[T0] == 0
    rig.commands.add(TaskCommand.RESUME)
    rig.until(lambda: rig.kafka.handed_over[T0] == 10)


def test_a_partition_assigned_while_paused_is_claimed_and_not_read(make: MakeRig) -> None:
    rig = make()
    rig.kafka.produce(T1, range(5))
    rig.kafka.tell("on_assign", T0)
    rig.until(rig.runs)
    rig.commands.add(TaskCommand.PAUSE)
    rig.until(lambda: rig.says(RunState.PAUSED))
    rig.kafka.tell("on_assign", T1)
    rig.until(lambda: rig.runs(T1))
    settle(rig)
    assert rig.kafka.handed_over[T1] == 0
    rig.commands.add(TaskCommand.RESUME)
    rig.until(lambda: rig.kafka.handed_over[T1] == 5)


def test_a_partition_reset_while_paused_stays_unread(make: MakeRig) -> None:
    rig = make(segment__ms="100")
    rig.kafka.produce(T0, range(5))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.kafka.group_offsets.get(T0) == 5)
    rig.log().claim_sink()
    rig.commands.add(TaskCommand.PAUSE)
    rig.until(lambda: rig.says(RunState.PAUSED))
    before = rig.task._group.assigned[T0]
    rig.kafka.produce(T0, range(5, 9))
    before.writer.read_to(9)  # type: ignore[union-attr]  # it is there, or the test fails
    rig.commands.add(TaskCommand.FLUSH)
    rig.until(lambda: rig.task._group.assigned[T0] is not before and rig.runs())
    settle(rig)
    assert rig.kafka.handed_over[T0] == 5
    rig.commands.add(TaskCommand.RESUME)
    rig.until(lambda: rig.next_offset() == 9)
    rig.end()
    assert offsets(rig) == list(range(9))


def test_a_flush_commits_pending_records_and_reading_continues(make: MakeRig) -> None:
    rig = make()
    rig.kafka.produce(T0, range(10))
    rig.kafka.produce(T1, range(3))
    rig.kafka.tell("on_assign", T0, T1)
    rig.until(lambda: rig.kafka.fetched.get(T0) == 10 and rig.kafka.fetched.get(T1) == 3)
    rig.commands.add(TaskCommand.FLUSH)
    rig.until(lambda: rig.next_offset() == 10 and rig.next_offset(T1) == 3)
    rig.kafka.produce(T0, range(10, 12))
    rig.until(lambda: rig.kafka.handed_over[T0] == 12)
    assert rig.next_offset() == 10


def test_a_paused_task_can_be_stopped(make: MakeRig) -> None:
    rig = make(pause=True)
    rig.kafka.tell("on_assign", T0)
    rig.until(rig.runs)
    rig.end()
    assert rig.error is None
    assert rig.kafka.closed


# Long pauses


def paused_over(make: MakeRig, *, pause_ms: int, retention_ms: int, policy: str, tail: int = 2) -> Rig:
    """Return a task with a compacted topic that was read to 5, paused, and lost 5 to 8; `tail` records follow."""
    rig = make(source__gap__policy=policy)
    settings = {"cleanup.policy": "compact", "delete.retention.ms": str(retention_ms)}
    rig.task._resources.source.settings = lambda _topic: settings  # type: ignore[method-assign, assignment]  # replaced for this test
    rig.kafka.produce(T0, range(5))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.kafka.handed_over[T0] == 5)
    rig.commands.add(TaskCommand.PAUSE)
    rig.until(lambda: rig.next_offset() == 5 and rig.kafka.paused == {T0})
    rig.kafka.hole(T0, 3)
    rig.kafka.produce(T0, range(8, 8 + tail))
    time.sleep(pause_ms / 1000)
    rig.commands.add(TaskCommand.RESUME)
    return rig


def test_a_pause_longer_than_the_retention_of_tombstones_is_a_gap(make: MakeRig) -> None:
    """A pause has the same effect as a stop of that length: otherwise a deleted key would stay in the log unnoticed."""
    rig = paused_over(make, pause_ms=60, retention_ms=50, policy="record")
    rig.until(lambda: rig.kafka.fetched.get(T0) == 10)
    rig.end()
    assert offsets(rig) == [*range(5), 8, 9]
    gaps = rig.log().load().manifest.gaps
    assert [(gap.from_offset, gap.to_offset, gap.reason) for gap in gaps] == [(5, 10, TOMBSTONES_REASON)]


def test_a_hole_at_the_end_does_not_hide_a_too_long_pause(make: MakeRig) -> None:
    rig = paused_over(make, pause_ms=60, retention_ms=50, policy="record", tail=0)
    rig.until(lambda: (status := rig.status()) is not None and status.position == 8)
    rig.kafka.produce(T0, range(8, 10))
    rig.until(lambda: rig.kafka.fetched.get(T0) == 10)
    rig.end()
    assert [(gap.from_offset, gap.to_offset) for gap in rig.log().load().manifest.gaps] == [(5, 10)]


def test_a_too_long_pause_fails_the_partition_if_gaps_do(make: MakeRig) -> None:
    rig = paused_over(make, pause_ms=60, retention_ms=50, policy="fail")
    rig.until(lambda: rig.says(RunState.FAILED))
    status = rig.status()
    assert status is not None
    assert "delete.retention.ms" in status.error
    assert rig.next_offset() == 5
    rig.end()


def test_a_pause_within_the_retention_of_tombstones_is_no_gap(make: MakeRig) -> None:
    rig = paused_over(make, pause_ms=60, retention_ms=86_400_000, policy="fail")
    rig.until(lambda: rig.kafka.fetched.get(T0) == 10)
    rig.end()
    assert rig.error is None
    assert rig.log().load().manifest.gaps == ()


# Reasons


class Two:
    """A group with two partitions that are fetched."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.kafka = FakeConsumer()
        self.assigned: dict[Key, AssignedPartition] = {}
        self.fetching = PartitionFetching(self.assigned, ManualClock())
        self.fetching.set_consumer(self.kafka)
        for key in (T0, T1):
            queue = SerialQueue(pool, lambda _error: None)
            owner = AssignedPartition(
                key, queue, QueueRetry(queue, Random(0)), cast("Any", None), PartitionHealth(ManualClock())
            )
            self.assigned[key] = owner
            self.fetching.start_fetching(owner, TopicPartition(*key, 0))


@pytest.fixture
def two() -> Iterator[Two]:
    with ThreadPoolExecutor(1) as pool:
        yield Two(pool)


def test_backpressure_and_a_requested_pause_do_not_undo_each_other(two: Two) -> None:
    for first, second in ((PauseReason.REQUEST, PauseReason.MEMORY), (PauseReason.MEMORY, PauseReason.REQUEST)):
        two.fetching.pause(first)
        two.fetching.pause(second)
        two.fetching.resume(first)
        assert two.kafka.paused == {T0, T1}
        two.fetching.resume(second)
        assert two.kafka.paused == set()


def test_a_held_partition_stays_held_when_the_task_resumes(two: Two) -> None:
    two.fetching.pause(PauseReason.REQUEST)
    two.fetching.hold(two.assigned[T0], PauseReason.SCHEMAS)
    two.fetching.resume(PauseReason.REQUEST)
    assert two.kafka.paused == {T0}
    two.fetching.pause(PauseReason.REQUEST)
    two.fetching.release(two.assigned[T0], PauseReason.SCHEMAS)
    assert two.kafka.paused == {T0, T1}
    two.fetching.resume(PauseReason.REQUEST)
    assert two.kafka.paused == set()


def test_partitions_are_paused_exactly_while_they_have_a_reason(two: Two) -> None:
    random = Random(4)
    reasons: dict[Key | None, set[PauseReason]] = {None: set(), T0: set(), T1: set()}
    for _ in range(2000):
        key = random.choice((None, T0, T1))
        reason = random.choice(tuple(PauseReason))
        add = random.random() < 0.5
        (reasons[key].add if add else reasons[key].discard)(reason)
        if key is None:
            (two.fetching.pause if add else two.fetching.resume)(reason)
        else:
            (two.fetching.hold if add else two.fetching.release)(two.assigned[key], reason)
        assert two.kafka.paused == {k for k in (T0, T1) if reasons[None] or reasons[k]}


def test_backpressure_lasts_across_a_pause_and_resume(make: MakeRig) -> None:
    """A store that takes nothing fills the budget; a resumed sink must not read beyond it."""
    inner = MemoryStore()
    store = FaultyStore(inner)
    rig = make(store, buffer__memory=str(16 * 1024 * 1024), segment__bytes="1048576")
    rig.kafka.tell("on_assign", T0)
    rig.until(rig.runs)
    store._chaos = Chaos(Random(1), rate=1.0, kinds=(FaultKind.UNAVAILABLE,))
    at = 0
    deadline_s = time.monotonic() + 60
    while PauseReason.MEMORY not in rig.task._group.fetching.reasons and time.monotonic() < deadline_s:
        rig.kafka.produce(T0, range(at, at + 4), Random(at).randbytes(256 * 1024))
        at += 4
        time.sleep(0.005)
    rig.commands.add(TaskCommand.PAUSE)
    rig.until(lambda: rig.says(RunState.PAUSED))
    rig.commands.add(TaskCommand.RESUME)
    rig.until(lambda: rig.says(RunState.RUNNING))
    assert rig.kafka.paused == {T0}
    assert "buffer.memory" in rig.statuses[-1].trace
    store._chaos = None
    rig.until(lambda: rig.kafka.paused == set() and rig.kafka.handed_over[T0] == at)
    rig.end()
    store.land()
    assert [record.offset for record in read_segments(inner, *T0)] == list(range(at))


def test_membership_is_confirmed_while_the_task_is_paused(make: MakeRig) -> None:
    refusals = iter([KafkaError(KafkaError.REBALANCE_IN_PROGRESS)] * 2)
    rig = make(pause=True)
    rig.kafka.refuse = lambda offset: next(refusals, None) if offset.metadata else None
    rig.kafka.tell("on_assign", T0)
    rig.until(rig.runs)


def test_a_renew_command_looks_up_credentials_and_topics_and_stops_nothing(make: MakeRig) -> None:
    renewed = threading.Event()
    rig = make(wait=False, topics="", topics__regex="t|new")
    rig.task._renew = renewed.set
    rig.kafka.produce(T0, range(5))
    rig.commands.add(TaskCommand.RENEW)
    rig.until(lambda: rig.kafka.subscribed == [["t"]])
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.says(RunState.RUNNING))
    renewed.clear()
    rig.kafka.produce(("new", 0), range(5))
    rig.commands.add(TaskCommand.RENEW)  # by itself it would look in 15 s
    rig.until(lambda: rig.kafka.subscribed == [["t"], ["new", "t"]], 10)
    assert renewed.is_set()
    assert rig.says(RunState.RUNNING)
