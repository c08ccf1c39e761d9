"""One task and the real client: membership, commands, cached watermarks, new topics and partitions, static members."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewPartitions

from keyfold_sink.kafka.source import SourceForbidden
from keyfold_sink.status import RunState
from keyfold_sink.task.commands import TaskCommand
from keyfold_sink.task.time_limits import TaskTimings
from tests.conftest import fresh
from tests.support.kafka import KafkaBroker, produce_all, synthetic
from tests.support.live_task import LiveTask, MakeTask, live_tasks

pytestmark = pytest.mark.kafka

MakeTopic = Callable[..., str]


@pytest.fixture
def task(broker: KafkaBroker) -> Iterator[MakeTask]:
    with live_tasks(broker.bootstrap_servers) as make:
        yield make


def fill(broker: KafkaBroker, topic: str, count: int, partition: int = 0) -> None:
    now_ms = int(time.time() * 1000)
    rows = synthetic(count, key_count=10, partition=partition, base_timestamp_ms=now_ms)
    produce_all(broker.bootstrap_servers, topic, rows)


def test_a_member_without_partitions_is_running_and_idle(broker: KafkaBroker, topic: MakeTopic, task: MakeTask) -> None:
    name = topic()
    first = task(topics=name, name=name)
    first.until(lambda: first.last.state is RunState.RUNNING and first.keys == {(name, 0)})
    second = task(topics=name, name=name)
    second.until(lambda: second.last.state is RunState.RUNNING)
    assert second.keys | first.keys == {(name, 0)}
    assert len(second.keys) + len(first.keys) == 1


def test_nothing_is_read_while_paused_also_during_rebalances(
    broker: KafkaBroker, topic: MakeTopic, task: MakeTask
) -> None:
    name = topic(2)
    first = task(topics=name, name=name)
    fill(broker, name, 500)
    first.until(lambda: first.partition((name, 0)).next_offset == 500)
    first.commands.add(TaskCommand.PAUSE)
    first.until(lambda: first.last.state is RunState.PAUSED)
    fill(broker, name, 300)
    fill(broker, name, 200, partition=1)
    second = task(topics=name, name=name, pause=True)  # takes one of the two
    second.until(lambda: second.last.state is RunState.PAUSED and len(second.keys) == 1)
    first.until(lambda: len(first.keys) == 1)
    first.rests()
    second.rests()
    for one in (first, second):
        for partition in one.last.partitions:
            expected = 500 if partition.partition == 0 else 0
            assert partition.state is RunState.PAUSED
            assert (partition.position, partition.next_offset) == (expected, expected)
    second.end()  # its partition comes back, still paused
    first.until(lambda: len(first.keys) == 2 and first.last.state is RunState.PAUSED)
    first.until(lambda: all(p.state is RunState.PAUSED for p in first.last.partitions))
    first.rests()
    assert {p.position for p in first.last.partitions} == {500, 0}
    first.commands.add(TaskCommand.RESUME)
    first.until(lambda: [first.partition((name, n)).next_offset for n in (0, 1)] == [800, 200])
    assert first.last.state is RunState.RUNNING
    assert first.offsets((name, 0)) == list(range(800))
    assert first.offsets((name, 1)) == list(range(200))


def test_the_lag_is_known_while_nothing_is_read(broker: KafkaBroker, topic: MakeTopic, task: MakeTask) -> None:
    """The client's watermarks do not change while it does not fetch, so the cluster is asked."""
    name = topic()
    fill(broker, name, 100)
    one = task(topics=name, name=name, timings=TaskTimings(ends_interval_s=0.3))
    one.until(lambda: one.partition((name, 0)).next_offset == 100)
    one.until(lambda: one.partition((name, 0)).end_offset == 100)
    one.commands.add(TaskCommand.PAUSE)
    one.until(lambda: one.last.state is RunState.PAUSED)
    fill(broker, name, 50)
    one.until(lambda: one.partition((name, 0)).lag_records == 50)


def test_a_requested_flush_commits_before_the_segment_is_due(
    broker: KafkaBroker, topic: MakeTopic, task: MakeTask
) -> None:
    name = topic()
    fill(broker, name, 100)
    one = task(topics=name, name=name, segment__ms="600000")
    one.until(lambda: one.partition((name, 0)).position == 100)
    status = one.partition((name, 0))
    assert status.next_offset == 0
    assert abs(status.oldest_record_ms - time.time() * 1000) < 60_000
    one.commands.add(TaskCommand.FLUSH)
    one.until(lambda: one.partition((name, 0)).next_offset == 100)
    one.until(lambda: one.partition((name, 0)).oldest_record_ms == -1)


def test_a_transaction_blocks_a_partition_only_while_open_and_leaves_no_lag(
    broker: KafkaBroker, topic: MakeTopic, task: MakeTask
) -> None:
    """A transaction's marker is an offset without a record; the log's end moves over it."""
    name = topic()
    one = task(topics=name, name=name, timings=TaskTimings(transaction_ms=500))
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(5):
        producer.produce(name, b"%d" % number, partition=0)
    producer.flush(30)
    one.until(lambda: "transaction" in one.partition((name, 0)).error and one.partition((name, 0)).blocked_ms > 0)
    assert one.partition((name, 0)).lag_records == 5
    producer.commit_transaction(30)
    one.until(lambda: one.partition((name, 0)).next_offset == 6)  # five records and the marker
    one.until(lambda: one.partition((name, 0)).lag_records == 0 and one.partition((name, 0)).blocked_ms == -1)
    assert one.offsets((name, 0)) == list(range(5))


def test_new_partitions_are_read_from_their_first_record(broker: KafkaBroker, topic: MakeTopic, task: MakeTask) -> None:
    name = topic()
    fill(broker, name, 100)
    one = task(topics=name, name=name)
    one.until(lambda: one.partition((name, 0)).next_offset == 100)
    broker.admin.create_partitions([NewPartitions(name, 3)])[name].result(60)
    time.sleep(0.5)
    fill(broker, name, 40, partition=2)
    one.until(lambda: one.partition((name, 2)).next_offset == 40)
    assert one.offsets((name, 2)) == list(range(40))


def test_new_matching_topics_are_found_and_deleted_ones_are_ignored(
    broker: KafkaBroker, topic: MakeTopic, task: MakeTask
) -> None:
    base = topic()
    one = task(topics__regex=f"{base}-.*", name=base, timings=TaskTimings(topics_interval_s=0.5))
    one.rests()
    assert one.last.state is RunState.UNASSIGNED
    assert "topics.regex" in one.last.trace
    first, second = topic(name=f"{base}-a"), topic(name=f"{base}-b")
    fill(broker, first, 30)
    fill(broker, second, 20)
    one.until(lambda: one.partition((first, 0)).next_offset == 30 and one.partition((second, 0)).next_offset == 20)
    broker.delete_topic(first)
    one.until(lambda: one.keys == {(second, 0)} and one.last.state is RunState.RUNNING, name="the topic to be given up")
    fill(broker, second, 20)
    one.until(lambda: one.partition((second, 0)).next_offset == 40)
    assert one.offsets((first, 0)) == list(range(30))


def test_a_topic_that_is_missing_is_named_and_read_once_it_is_there(
    broker: KafkaBroker, topic: MakeTopic, task: MakeTask
) -> None:
    name = topic()
    missing = f"{name}-later"
    one = task(topics=f"{name},{missing}", name=name)
    one.until(lambda: missing in one.last.trace and one.last.state is RunState.RUNNING)
    topic(name=missing)
    fill(broker, missing, 10)
    one.until(lambda: one.partition((missing, 0)).next_offset == 10)
    one.until(lambda: one.last.trace == "")


def test_a_static_member_returns_to_its_partitions_without_a_rebalance(
    broker: KafkaBroker, topic: MakeTopic, task: MakeTask
) -> None:
    name = topic(2)

    def member(number: int) -> LiveTask:
        return task(topics=name, name=name, consumer__override__group__instance__id=f"{name}-{number}")

    first = member(1)
    second = member(2)
    first.until(lambda: len(first.keys) == 1 and first.last.state is RunState.RUNNING)
    second.until(lambda: len(second.keys) == 1 and second.last.state is RunState.RUNNING)
    mine, others = first.keys, second.keys
    owner = second.task._group.assigned[next(iter(others))]
    first.end()
    again = member(1)
    again.until(lambda: again.keys == mine and again.last.state is RunState.RUNNING)
    assert second.keys == others
    assert second.task._group.assigned[next(iter(others))] is owner, "the other one had to claim again"


def test_of_two_members_with_one_name_one_ends_with_a_hint(
    broker: KafkaBroker, topic: MakeTopic, task: MakeTask
) -> None:
    name = topic()
    first = task(topics=name, name=name, consumer__override__group__instance__id=name)
    first.until(lambda: first.last.state is RunState.RUNNING and len(first.keys) == 1)
    second = task(topics=name, name=name, consumer__override__group__instance__id=name)
    error = first.wait_error()
    assert isinstance(error, SourceForbidden)
    assert "group.instance.id" in str(error)
    second.until(lambda: second.last.state is RunState.RUNNING and len(second.keys) == 1)


@pytest.mark.full
def test_an_expelled_task_is_not_running_until_it_rejoins_the_group(
    private_broker: KafkaBroker,
) -> None:
    name = fresh("topic")
    private_broker.create_topic(name)
    quick = {"consumer__override__session__timeout__ms": "3000", "consumer__override__heartbeat__interval__ms": "500"}
    with live_tasks(private_broker.bootstrap_servers) as task:
        one = task(topics=name, name=name, **quick)
        one.until(lambda: one.last.state is RunState.RUNNING and len(one.keys) == 1)
        os.kill(private_broker.pid, signal.SIGSTOP)
        try:
            one.until(lambda: one.last.state is RunState.UNASSIGNED, 120, "the session to be over")
        finally:
            os.kill(private_broker.pid, signal.SIGCONT)
        one.until(lambda: one.last.state is RunState.RUNNING and len(one.keys) == 1)
        fill(private_broker, name, 10)
        one.until(lambda: one.partition((name, 0)).next_offset == 10)
        one.until(lambda: one.last.trace == "")


def test_unreachable_brokers_are_named(task: MakeTask) -> None:
    one = task(topics="t", name="nowhere", bootstrap__servers="127.0.0.1:1")
    one.until(lambda: "Kafka:" in one.last.trace)
    assert one.last.state is RunState.UNASSIGNED
