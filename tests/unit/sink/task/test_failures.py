"""An error of one partition fails that partition: it stays assigned and unread, and the others continue."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from keyfold.errors import (
    AccessDenied,
    BucketMissing,
    CommitUnknown,
    ConfigError,
    Corrupt,
    Fenced,
    FirstCopyUnfinished,
    IsReplica,
    KeyfoldError,
    ManifestLost,
    SourceError,
    StoreUnavailable,
)
from keyfold.log.manifest import ReplicaState
from keyfold.log.names import Place
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from keyfold_sink.group.error_scope import ErrorScope, PositionLost, scope_of
from keyfold_sink.kafka.source import SourceFacts, SourceForbidden, TopicForbidden, TopicGone
from keyfold_sink.status import RunState
from keyfold_sink.task.commands import TaskCommand
from keyfold_sink.task.sink_task import ClientBroke, ClientFailed, PartitionsFailed
from keyfold_sink.task.time_limits import TaskTimings
from tests.support.fake_group import FakeSource, Key
from tests.support.proof import read_segments
from tests.support.sink_rig import T0, T1, MakeRig, Rig, rigs


@pytest.fixture
def make() -> Iterator[MakeRig]:
    with rigs(TaskTimings(look_again_s=0.01)) as build:
        yield build


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Fenced("t", 0, "x"), ErrorScope.AGAIN),
        (CommitUnknown("t", 0, "x"), ErrorScope.AGAIN),
        (StoreUnavailable("k", "x"), ErrorScope.AGAIN),
        (PositionLost("x"), ErrorScope.AGAIN),
        (SourceError("t", 0, "x"), ErrorScope.PARTITION),
        (ManifestLost("t", 0, "x"), ErrorScope.PARTITION),
        (FirstCopyUnfinished("t", 0, "x"), ErrorScope.PARTITION),
        (Corrupt("t", 0, "x"), ErrorScope.PARTITION),
        (IsReplica("t", 0, "x", source="s3://log/topics"), ErrorScope.PARTITION),
        (TopicGone("x"), ErrorScope.PARTITION),
        (TopicForbidden("x"), ErrorScope.PARTITION),
        (SourceForbidden("x"), ErrorScope.TASK),
        (AccessDenied("k", "x"), ErrorScope.TASK),
        (BucketMissing("k", "x"), ErrorScope.TASK),
        (ConfigError("k", "x"), ErrorScope.TASK),
        (ValueError("a defect"), ErrorScope.TASK),
    ],
)
def test_each_error_has_the_scope_of_its_cause(error: BaseException, expected: ErrorScope) -> None:
    assert scope_of(error) is expected


def lose_manifest(rig: Rig, key: Key) -> None:
    """Delete the manifest: nobody may continue a log that has only segments."""
    place = Place("topics", *key)
    rig.store.put(place.key("00000000000000000000-00000001-s0000000000000000.avro"), b"x", Create())


def test_one_partition_fails_and_the_others_continue(make: MakeRig) -> None:
    store = MemoryStore()
    rig = make(store, segment__ms="100")
    lose_manifest(rig, T0)
    rig.kafka.produce(T0, range(5))
    rig.kafka.produce(T1, range(5))
    rig.kafka.tell("on_assign", T0, T1)
    rig.until(lambda: rig.says(RunState.FAILED) and rig.next_offset(T1) == 5)
    failed, other = rig.status(T0), rig.status(T1)
    assert failed is not None
    assert other is not None
    assert (failed.state, other.state) == (RunState.FAILED, RunState.RUNNING)
    assert "t-0" in failed.error
    assert failed.error_ms > 0
    assert failed.error in rig.statuses[-1].trace
    assert T0 not in rig.kafka.fetched
    rig.kafka.produce(T1, range(5, 9))
    rig.until(lambda: rig.next_offset(T1) == 9)
    assert not rig.kafka.closed
    rig.end()
    assert isinstance(rig.error, PartitionsFailed)
    assert "t-0" in str(rig.error)
    assert rig.kafka.closed


def test_a_log_that_becomes_a_replica_fails_its_partition_and_names_the_source(make: MakeRig) -> None:
    """The log is demoted under a running session by a promotion: records read since then are not committed anywhere."""
    rig = make(segment__ms="100")
    rig.kafka.produce(T0, range(5))
    rig.kafka.produce(T1, range(5))
    rig.kafka.tell("on_assign", T0, T1)
    rig.until(lambda: rig.next_offset(T0) == 5 and rig.next_offset(T1) == 5)
    log = rig.log(T0)
    promoted = replace(log.load().manifest, replica=ReplicaState(1, "c", "log", "s3://log/topics"))
    before = log.demote(promoted, name="log", source_url="s3://log-dr/topics").manifest
    rig.kafka.produce(T0, range(5, 10))
    rig.kafka.produce(T1, range(5, 10))
    rig.until(lambda: rig.says(RunState.FAILED) and rig.next_offset(T1) == 10)
    failed, other = rig.status(T0), rig.status(T1)
    assert failed is not None
    assert other is not None
    assert (failed.state, other.state) == (RunState.FAILED, RunState.RUNNING)
    assert "t-0: this log is the replica `log` of s3://log-dr/topics" in failed.error
    assert "write to the source" in failed.error
    assert failed.error in rig.statuses[-1].trace
    assert log.load().manifest == before
    rig.end()
    assert isinstance(rig.error, PartitionsFailed)


def test_a_failed_partition_restarts_when_it_is_assigned_again(make: MakeRig) -> None:
    rig = make(segment__ms="100")
    lose_manifest(rig, T0)
    rig.kafka.produce(T0, range(5))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.says(RunState.FAILED))
    rig.kafka.tell("on_revoke", T0)
    rig.until(lambda: rig.says(RunState.RUNNING))  # it has no partition, rightly
    rig.store.delete(Place("topics", *T0).key("00000000000000000000-00000001-s0000000000000000.avro"))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.next_offset() == 5 if rig.runs() else False)


def test_records_before_the_failure_are_committed(make: MakeRig) -> None:
    """The right to read is revoked in the middle of a segment."""
    rig = make()
    rig.kafka.produce(T0, range(5))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.kafka.fetched.get(T0) == 5)
    owner = rig.task._group.assigned[T0]
    rig.kafka.inject(T0, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    rig.until(lambda: rig.says(RunState.FAILED) and rig.next_offset() == 5 and owner.queue.idle)
    rig.wait_for_report()
    status = rig.status()
    assert status is not None
    assert status.next_offset == 5
    assert status.oldest_record_ms == -1
    assert "refuses" in status.error


@pytest.mark.parametrize("code", [KafkaError._AUTO_OFFSET_RESET, KafkaError._BAD_MSG])
def test_a_refused_position_is_retried_without_blocking_the_loop(make: MakeRig, code: int) -> None:
    """The client's position was lost. Earlier records are committed first, however long the store takes."""
    rig = make()
    rig.kafka.produce(T0, range(5))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.kafka.fetched.get(T0) == 5)
    rig.kafka.inject(T0, code)
    rig.until(lambda: rig.next_offset() == 5 and rig.runs())
    rig.kafka.produce(T0, range(5, 8))
    rig.until(lambda: rig.kafka.fetched.get(T0) == 8)
    rig.end()
    assert [record.offset for record in read_segments(rig.store, *T0)] == list(range(8))


@pytest.mark.parametrize("error", [AccessDenied("k", "no right"), SourceForbidden("no right")])
def test_an_error_of_the_whole_task_ends_it(make: MakeRig, error: KeyfoldError) -> None:
    rig = make()

    def refuse(*_arguments: Any) -> Any:
        raise error

    rig.task._resources.source.facts = refuse  # type: ignore[method-assign, assignment]  # replaced for this test
    rig.kafka.tell("on_assign", T0)
    deadline_s = time.monotonic() + 60
    while rig.error is None and time.monotonic() < deadline_s:
        time.sleep(0.005)
    assert rig.error is error
    assert rig.kafka.closed


def test_a_deleted_topic_fails_only_its_partitions(make: MakeRig) -> None:
    rig = make(segment__ms="100")
    rig.kafka.produce(T1, range(3))
    source = cast("FakeSource", rig.task._resources.source)
    facts = source.facts

    def gone(topic: str, partition: int) -> SourceFacts:
        if partition == 0:
            raise TopicGone("the topic is gone")
        return facts(topic, partition)

    source.facts = gone  # type: ignore[method-assign]  # replaced for this test
    rig.kafka.tell("on_assign", T0, T1)
    rig.until(lambda: rig.says(RunState.FAILED) and rig.next_offset(T1) == 3)
    failed = rig.status(T0)
    assert failed is not None
    assert failed.state is RunState.FAILED


@pytest.mark.parametrize("code", [KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART])
def test_records_read_before_a_topic_is_deleted_are_committed(make: MakeRig, code: int) -> None:
    """The client reports each partition before the group revokes it. These records cannot be read again."""
    rig = make()
    rig.kafka.produce(T0, range(5))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.kafka.fetched.get(T0) == 5)

    def gone(*_arguments: Any) -> Any:
        raise TopicGone("the topic is gone")

    for name in ("facts", "topic_id", "settings"):
        setattr(rig.task._resources.source, name, gone)
    rig.kafka.inject(T0, code)
    rig.until(lambda: rig.says(RunState.FAILED))
    assert rig.next_offset() == 5
    assert [record.offset for record in read_segments(rig.store, *T0)] == list(range(5))


def test_a_deleted_topic_leaves_no_uncommitted_segment(make: MakeRig) -> None:
    """The first commit detects it. Later segments are pending or being filled, and all of them belong to the topic."""
    rig = make(flush__size="5")

    def gone(topic: str) -> str:
        raise TopicGone(f"{topic}: the topic is gone")

    rig.task._resources.source.topic_id = gone  # type: ignore[method-assign]  # replaced for this test
    rig.kafka.produce(T0, range(12))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.says(RunState.FAILED))
    owner = rig.task._group.assigned[T0]
    rig.until(lambda: owner.queue.idle)
    assert [record.offset for record in read_segments(rig.store, *T0)] == list(range(12))
    assert rig.next_offset() == 12
    rig.wait_for_report()
    status = rig.status()
    assert status is not None
    assert "the topic is gone" in status.error


def reports_gone(rig: Rig) -> FakeSource:
    """Return a task with an idle partition whose topic the client reports as unknown."""
    rig.kafka.produce(T0, range(5))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.next_offset() == 5)
    rig.wait_for_report()
    rig.kafka.say(KafkaError.UNKNOWN_TOPIC_OR_PART, "t [0]: topic does not exist")
    return cast("FakeSource", rig.task._resources.source)


def test_a_topic_deleted_while_idle_fails_its_partitions(make: MakeRig) -> None:
    """No commit is due, so the client's error and the cluster's answer are the only evidence."""
    rig = make(segment__ms="100")

    def gone(topic: str) -> str:
        raise TopicGone(f"{topic}: the topic is gone")

    reports_gone(rig).topic_id = gone  # type: ignore[method-assign]  # replaced for this test
    rig.until(lambda: rig.says(RunState.FAILED), 60)
    status = rig.status()
    assert status is not None
    assert "the topic is gone" in status.error
    assert status.next_offset == 5


def test_a_topic_unknown_to_a_broker_for_a_moment_is_still_read(make: MakeRig) -> None:
    rig = make(segment__ms="100")
    asked: list[str] = []

    def unknown_at_first(topic: str) -> str:
        asked.append(topic)
        if len(asked) < 5:
            raise TopicGone(f"{topic}: the topic is gone")
        return "T"

    reports_gone(rig).topic_id = unknown_at_first  # type: ignore[method-assign]  # replaced for this test
    rig.until(lambda: len(asked) >= 5, 60)
    rig.kafka.produce(T0, range(5, 8))
    rig.until(lambda: rig.next_offset() == 8)
    assert all(one.state is not RunState.FAILED for one in rig.statuses)


def test_a_right_revoked_while_idle_fails_nothing(make: MakeRig) -> None:
    rig = make(segment__ms="100")
    asked: list[str] = []

    def refuse(topic: str) -> str:
        asked.append(topic)
        raise TopicForbidden(f"{topic}: no right")

    source = reports_gone(rig)
    source.topic_id = refuse  # type: ignore[method-assign]  # replaced for this test
    rig.until(lambda: bool(asked))
    rig.wait_for_report()
    del source.topic_id
    rig.kafka.produce(T0, range(5, 8))
    rig.until(lambda: rig.next_offset() == 8)
    assert all(one.state is not RunState.FAILED for one in rig.statuses)


def test_a_topic_recreated_while_idle_is_no_longer_read(make: MakeRig) -> None:
    rig = make(segment__ms="100")
    reports_gone(rig).id = "another"
    rig.until(lambda: rig.says(RunState.FAILED), 60)
    status = rig.status()
    assert status is not None
    assert "created again" in status.error


def test_a_partitions_error_ends_the_task_with_until_caught_up(make: MakeRig) -> None:
    rig = make(catch_up={T0: 5, T1: 5})
    lose_manifest(rig, T0)
    rig.kafka.produce(T0, range(5))
    rig.kafka.produce(T1, range(5))
    rig.kafka.tell("on_assign", T0, T1)
    deadline_s = time.monotonic() + 60
    while rig.error is None and time.monotonic() < deadline_s:
        time.sleep(0.005)
    assert isinstance(rig.error, ManifestLost)


def test_of_many_failures_a_few_are_named_and_the_rest_counted(make: MakeRig) -> None:
    rig = make()
    keys = [("t", number) for number in range(25)]
    for key in keys:
        lose_manifest(rig, key)
    rig.kafka.tell("on_assign", *keys)
    rig.until(
        lambda: rig.says(RunState.FAILED) and sum(p.state is RunState.FAILED for p in rig.statuses[-1].partitions) == 25
    )
    trace = rig.statuses[-1].trace
    assert trace.startswith("25 partitions have failed")
    assert trace.endswith("and 15 more")
    assert trace.count("\n") == 11


@pytest.mark.parametrize(("fatal", "expected"), [(True, ClientFailed), (False, ClientBroke)])
def test_a_client_that_refuses_a_call_ends_the_task_for_good_only_when_it_says_so(
    make: MakeRig, fatal: bool, expected: type[Exception]
) -> None:
    rig = make()

    def refuse(_partitions: list[TopicPartition]) -> None:
        raise KafkaException(KafkaError(KafkaError._STATE, "no", fatal))

    rig.kafka.pause = refuse  # type: ignore[method-assign, assignment]  # replaced for this test
    rig.kafka.tell("on_assign", T0)
    rig.until(rig.runs)
    rig.commands.add(TaskCommand.PAUSE)
    deadline_s = time.monotonic() + 60
    while rig.error is None and time.monotonic() < deadline_s:
        time.sleep(0.005)
    assert isinstance(rig.error, expected)


def test_a_fatal_client_error_ends_the_task_also_if_only_its_code_is_fatal(make: MakeRig) -> None:
    """A replaced static member would be in no group and read nothing for ever."""
    rig = make()
    rig.kafka.tell("on_assign", T0)
    rig.until(rig.runs)
    error = KafkaError(KafkaError._FATAL, "Static consumer fenced by other consumer with same group.instance.id")
    rig.kafka.inject(("", 0), KafkaError._FATAL, error)
    deadline_s = time.monotonic() + 60
    while rig.error is None and time.monotonic() < deadline_s:
        time.sleep(0.005)
    assert isinstance(rig.error, SourceForbidden)
    assert "of its own" in str(rig.error)


def test_the_tasks_error_is_kept_if_closing_the_client_fails(make: MakeRig) -> None:
    rig = make()
    rig.kafka.tell("on_assign", T0)
    rig.until(rig.runs)

    def refuse(_partitions: list[TopicPartition]) -> None:
        raise KafkaException(KafkaError(KafkaError._FATAL, "ended", True))

    rig.kafka.incremental_unassign = refuse  # type: ignore[method-assign, assignment]  # replaced for this test
    rig.kafka.inject(("", 0), KafkaError.GROUP_AUTHORIZATION_FAILED)
    deadline_s = time.monotonic() + 60
    while rig.error is None and time.monotonic() < deadline_s:
        time.sleep(0.005)
    assert isinstance(rig.error, SourceForbidden)
    assert rig.kafka.closed


def test_a_missing_right_to_commit_offsets_fails_only_that_topics_partitions(make: MakeRig) -> None:
    rig = make()
    rig.kafka.refuse = lambda offset: (
        KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED) if offset.partition == 0 else None
    )
    rig.kafka.tell("on_assign", T0, T1)
    rig.until(lambda: rig.says(RunState.FAILED) and rig.runs(T1))
    assert rig.statuses[-1].trace.startswith("t-0: ")
    rig.until(lambda: (status := rig.status()) is not None and status.state is RunState.FAILED)
