"""Catching up with open transactions: the task waits for them, reports it, and ends with a list of the rest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from keyfold_sink.group.catchup import TransactionOpen
from tests.support.proof import read_segments, wait_for
from tests.support.sink_rig import T0, T1, MakeRig, Rig, rigs


@pytest.fixture
def make() -> Iterator[MakeRig]:
    with rigs() as build:
        yield build


def held_up(make: MakeRig, timeout_s: float) -> Rig:
    """Return a task that can read five records of each partition; in the first an open transaction of three follows."""
    rig = make(catch_up={T0: 8, T1: 5}, transaction_timeout_s=timeout_s)
    for key in (T0, T1):
        rig.kafka.produce(key, range(5))
    rig.kafka.open_transaction(T0, 3)
    rig.kafka.tell("on_assign", T0, T1)
    return rig


def test_catching_up_waits_for_an_open_transaction(make: MakeRig) -> None:
    with capture_logs() as logs:
        rig = held_up(make, 600)
        rig.until(lambda: any(entry["event"] == "waiting for an open transaction" for entry in logs))
    waits = next(entry for entry in logs if entry["event"] == "waiting for an open transaction")
    found = (waits["topic"], waits["partition"], waits["last_stable_offset"], waits["end_offset"], waits["at_most_s"])
    assert found == ("t", 0, 5, 8, 600)
    assert rig.next_offset() == rig.next_offset(T1) == 5, "what can be read is not kept waiting"
    rig.kafka.open_transaction(T0, 0)  # aborted: a hole
    wait_for(lambda: rig.kafka.closed, 60, "it has caught up")
    assert rig.error is None
    assert rig.next_offset() == 8


def test_a_waiting_task_names_the_partition_with_the_open_transaction(make: MakeRig) -> None:
    """Another task had the partition before, and has been waiting already."""
    before = held_up(make, 600)
    before.until(lambda: before.next_offset() == before.next_offset(T1) == 5)
    before.end()
    rig = make(before.store, catch_up={T0: 8}, transaction_timeout_s=600)
    rig.kafka.produce(T0, range(5))
    rig.kafka.open_transaction(T0, 3)
    rig.until(lambda: bool(rig.task._catching_up and rig.task._catching_up._held_up))
    with capture_logs() as logs:
        rig.kafka.tell("on_assign", T0)
        rig.until(lambda: any(entry["event"] == "waiting for an open transaction" for entry in logs), 60)


def test_an_abandoned_transaction_ends_the_task_and_the_rest_is_named(make: MakeRig) -> None:
    rig = held_up(make, 0.5)
    wait_for(lambda: rig.error is not None, 60, "it ends")
    assert isinstance(rig.error, TransactionOpen)
    assert "t-0: last stable offset 5, end offset 8" in str(rig.error)
    assert "t-1" not in str(rig.error)
    for key in (T0, T1):
        assert [record.offset for record in read_segments(rig.store, *key)] == list(range(5))
    assert rig.kafka.closed


def test_the_transaction_limit_does_not_run_while_other_work_is_left(make: MakeRig) -> None:
    """The transaction's time limit does not concern an unassigned partition."""
    rig = make(catch_up={T0: 8, T1: 5}, transaction_timeout_s=0)
    rig.kafka.produce(T0, range(5))
    rig.kafka.open_transaction(T0, 3)
    rig.kafka.produce(T1, range(5))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.next_offset() == 5)
    for _ in range(3):
        rig.wait_for_report()
    assert not rig.kafka.closed
    rig.kafka.tell("on_assign", T1)
    wait_for(lambda: rig.error is not None, 60, "it ends")
    assert isinstance(rig.error, TransactionOpen)
    assert rig.next_offset(T1) == 5
