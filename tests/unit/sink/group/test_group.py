"""A whole task over a fake consumer: partitions are assigned, revoked and assigned again while the store misbehaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from random import Random
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, TopicPartition

from keyfold.errors import StoreUnavailable
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.runtime.clock import SystemClock
from keyfold.store.api import ObjectStore
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Chaos, FaultyStore
from keyfold_sink.group import group
from keyfold_sink.group.assignment import PartitionStage
from keyfold_sink.status import RunState
from keyfold_sink.task.commands import TaskCommand
from keyfold_sink.task.time_limits import TaskTimings
from tests.support.fake_group import Key
from tests.support.proof import read_segments
from tests.support.sink_rig import T0, T1, MakeRig, Rig, rigs


@pytest.fixture
def make() -> Iterator[MakeRig]:
    with rigs() as build:
        yield build


def test_records_are_read_and_the_rest_is_committed_at_the_end(make: MakeRig) -> None:
    rig = make(segment__ms="100")
    rig.kafka.produce(T0, range(10))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.kafka.group_offsets.get(T0) == 10)
    rig.kafka.produce(T0, range(12, 15))
    rig.end()
    assert rig.error is None
    assert rig.kafka.closed
    assert [r.offset for r in read_segments(rig.store, "t", 0)][:10] == list(range(10))


def test_a_partition_reset_during_its_revocation_is_not_claimed_again(make: MakeRig) -> None:
    """The flush of a revocation finds a new owner's claim. It must not start another attempt."""
    rig = make()
    rig.kafka.produce(T0, range(10))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.kafka.fetched.get(T0) == 10)
    rival = rig.log().claim_sink()
    rig.kafka.tell("on_revoke", T0)
    rig.until(lambda: not rig.task._group.assigned)
    time.sleep(0.7)  # a set-back would have begun by now
    assert rig.task._group.assigned == {}
    assert rig.kafka.fetched == {}
    assert rival.refresh().sink.epoch == rival.epoch


def test_a_partition_revoked_while_paused_is_read_when_assigned_again(make: MakeRig) -> None:
    rig = make(segment__ms="100")
    rig.kafka.tell("on_assign", T0)
    rig.until(rig.runs)
    rig.kafka.pause([TopicPartition(*T0)])
    rig.kafka.tell("on_revoke", T0)
    rig.until(lambda: not rig.runs())
    rig.kafka.produce(T0, range(5))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.kafka.group_offsets.get(T0) == 5)


def test_remaining_partitions_are_read_during_a_rebalance(make: MakeRig) -> None:
    """Under cooperative rebalancing a remaining partition is neither claimed again nor paused."""
    rig = make(segment__ms="100")
    rig.kafka.produce(T0, range(5))
    rig.kafka.produce(T1, range(5))
    rig.kafka.tell("on_assign", T0, T1)
    rig.until(lambda: rig.next_offset() == 5 and rig.next_offset(T1) == 5)
    stays = rig.task._group.assigned[T1]
    rig.kafka.tell("on_revoke", T0)
    rig.kafka.produce(T1, range(5, 9))
    rig.until(lambda: not rig.runs() and rig.next_offset(T1) == 9)
    rig.kafka.tell("on_assign", T0)
    rig.until(rig.runs)
    assert rig.task._group.assigned[T1] is stays
    assert stays.writer is not None
    assert stays.writer.manifest.sink.epoch == 1
    assert rig.log().load().manifest.sink.epoch == 2


def test_records_are_committed_before_their_partition_is_revoked(make: MakeRig) -> None:
    rig = make()
    rig.kafka.produce(T0, range(7))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.kafka.fetched.get(T0) == 7)
    assert rig.next_offset() == 0
    rig.kafka.tell("on_revoke", T0)
    rig.until(lambda: not rig.task._group.assigned)
    assert rig.next_offset() == 7
    assert rig.kafka.group_offsets[T0] == 7


def test_a_lost_partition_is_no_longer_written(make: MakeRig) -> None:
    rig = make()
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.says(RunState.RUNNING))
    owner = rig.task._group.assigned[T0]
    rig.kafka.tell("on_lost", T0)
    rig.until(lambda: not rig.task._group.assigned)
    written: list[str] = []
    owner.queue.submit(lambda: written.append("a commit that waited"))
    assert owner.queue.wait_idle(60)
    assert written == []


def test_a_late_poll_ends_the_membership_until_the_next_assignment(make: MakeRig) -> None:
    rig = make()
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.says(RunState.RUNNING))
    rig.kafka.say(KafkaError._MAX_POLL_EXCEEDED, "too late")
    rig.until(lambda: rig.says(RunState.UNASSIGNED) and "too late" in rig.statuses[-1].trace)
    rig.kafka.tell("on_lost", T0)
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.says(RunState.RUNNING) and rig.statuses[-1].trace == "")


def test_topics_that_match_later_are_subscribed_to_and_others_are_not(
    make: MakeRig,
) -> None:
    rig = make(wait=False, topics="", topics__regex="t.*", timings=TaskTimings(topics_interval_s=0.02))
    rig.until(lambda: rig.says(RunState.UNASSIGNED) and "topics.regex" in rig.statuses[-1].trace)
    rig.kafka.produce(("other", 0), range(3))
    rig.kafka.produce(("t2", 0), range(3))
    rig.until(lambda: rig.kafka.subscribed == [["t2"]])
    rig.kafka.produce(T0, range(3))
    rig.until(lambda: rig.kafka.subscribed == [["t2"], ["t", "t2"]])
    assert rig.statuses[-1].trace == ""


def test_repeated_fencing_is_reported_as_two_sinks_of_one_log(make: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "reset_delay_s", lambda _set_backs, _random: 0.0)
    rig = make(segment__ms="100")
    rig.kafka.produce(T0, range(5))
    rig.kafka.tell("on_assign", T0)
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        owner = rig.task._group.assigned.get(T0)
        if owner is not None and owner.stage is PartitionStage.FAILED:
            break
        if owner is not None and owner.stage is PartitionStage.RUNNING:
            rig.log().claim_sink()
            rig.until(
                lambda owner=owner: (  # type: ignore[misc]  # mypy does not infer a lambda with a default
                    owner.failure is not None or rig.task._group.assigned.get(T0) is not owner
                )
            )
        time.sleep(0.001)
    rig.until(lambda: bool(rig.statuses) and rig.statuses[-1].state is RunState.FAILED)
    assert "two sinks write the same log" in rig.statuses[-1].trace
    assert rig.next_offset() == 0


def test_refused_group_offsets_are_committed_again(make: MakeRig) -> None:
    rig = make(segment__ms="100", offset__flush__interval__ms="20")
    refusals = iter([KafkaError(KafkaError.REBALANCE_IN_PROGRESS)] * 2)
    rig.kafka.refuse = lambda offset: None if offset.metadata else next(refusals, None)
    rig.kafka.produce(T0, range(5))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.kafka.group_offsets.get(T0) == 5)


def test_a_task_ends_even_if_leaving_the_group_fails(make: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen broker blocks the client's commit and close for minutes (seen with librdkafka 2.16)."""
    thawed, leaving = threading.Event(), SimpleQueue[threading.Thread]()
    rig = make(segment__ms="100", timings=TaskTimings(leave_wait_s=0.2))

    def close() -> None:
        leaving.put(threading.current_thread())
        thawed.wait(60)

    monkeypatch.setattr(rig.kafka, "close", close)
    rig.kafka.tell("on_assign", T0)
    rig.until(rig.runs)
    rig.end()
    assert rig.error is None
    closing = leaving.get(timeout=60)
    assert closing.is_alive(), "the task waited until Kafka let it go"
    thawed.set()
    closing.join(60)


def test_a_task_can_be_stopped_at_every_stage(make: MakeRig) -> None:
    class Away:
        url = "memory://away"

        def __getattr__(self, _name: str) -> Any:
            def call(*_arguments: Any, **_options: Any) -> Any:
                raise StoreUnavailable("k", "away")

            return call

    brief = TaskTimings(commit_timeout_s=0.1)  # a call to the store ends by itself, and the task waits for that
    loading = make(cast("ObjectStore", Away()), timings=brief, task__shutdown__graceful__timeout__ms="500")
    loading.kafka.tell("on_assign", T0)
    confirming = make(task__shutdown__graceful__timeout__ms="500")
    confirming.kafka.refuse = lambda _offset: KafkaError(KafkaError.REBALANCE_IN_PROGRESS)
    confirming.kafka.tell("on_assign", T0)
    confirming.until(
        lambda: (
            confirming.task._group.assigned[T0].stage is PartitionStage.CONFIRMING
            if confirming.task._group.assigned
            else False
        )
    )
    for rig in (loading, confirming):
        rig.end()
        assert rig.error is None
        assert rig.kafka.closed


class Storm:
    """Partitions are assigned, revoked and paused, rivals claim, and records arrive with holes between them."""

    def __init__(self, rig: Rig, store: ObjectStore, random: Random) -> None:
        self.rig, self.store, self.random = rig, store, random
        self.owned: set[Key] = set()
        self.expected: dict[Key, list[int]] = {T0: [], T1: []}
        self.actions = (self.produce, self.produce, self.produce, self.swap, self.rival, self.pause, self.command)

    def log(self, key: Key) -> PartitionLog:
        return PartitionLog(self.store, Place("topics", *key), clock=SystemClock(), random=self.random)

    def produce(self, key: Key) -> None:
        begin = self.rig.kafka.end(key) + self.random.choice((0, 0, 2))
        fresh = range(begin, begin + self.random.randrange(1, 60))
        self.rig.kafka.produce(key, fresh)
        self.expected[key] += fresh

    def swap(self, key: Key) -> None:
        was_owned = key in self.owned
        if was_owned:
            self.rig.kafka.tell(self.random.choice(("on_revoke", "on_lost")), key)
            self.owned.discard(key)
        if not was_owned or self.random.random() < 0.7:
            self.rig.kafka.tell("on_assign", key)
            self.owned.add(key)

    def rival(self, key: Key) -> None:
        if self.random.random() < 0.3:
            self.log(key).create(topic_id="T", cluster_id="C")
            self.log(key).claim_sink()

    def pause(self, key: Key) -> None:
        call = self.random.choice((self.rig.kafka.pause, self.rig.kafka.resume))
        call([TopicPartition(*key)])

    def command(self, _key: Key) -> None:
        self.rig.commands.add(
            self.random.choice((TaskCommand.PAUSE, TaskCommand.RESUME, TaskCommand.RESUME, TaskCommand.FLUSH))
        )

    def settle(self) -> None:
        self.rig.commands.add(TaskCommand.RESUME)
        for key in {T0, T1} - self.owned:
            self.rig.kafka.tell("on_assign", key)
        self.rig.kafka.resume([TopicPartition(*T0), TopicPartition(*T1)])

    def is_done(self) -> bool:
        return all(self.log(k).create().manifest.next_offset >= self.rig.kafka.end(k) for k in (T0, T1))


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(6))
def test_rapid_rebalances_lose_and_repeat_nothing(make: MakeRig, seed: int) -> None:
    inner, random = MemoryStore(), Random(seed)
    store = FaultyStore(inner, chaos=Chaos(Random(seed), rate=0.1))
    rig = make(store, segment__ms="100", flush__size="50", offset__flush__timeout__ms="50")
    storm = Storm(rig, inner, random)
    for _ in range(60):
        random.choice(storm.actions)(random.choice((T0, T1)))
        time.sleep(random.random() * 0.02)
        assert rig.error is None
    storm.settle()
    rig.until(storm.is_done, 60)
    rig.end()
    store.land()
    for key in (T0, T1):
        assert [r.offset for r in read_segments(inner, *key)] == storm.expected[key]
    assert rig.task._in_flight.size_bytes == 0
