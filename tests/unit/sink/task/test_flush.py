"""Errors of a task that ends before it has committed all records: first its cause, then what is left, and why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from keyfold.errors import AccessDenied, UploadLost
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Fault, FaultKind, FaultyStore
from keyfold_sink.task.commands import TaskCommand
from keyfold_sink.task.sink_task import NotFlushed, ShutdownTimeout
from tests.support.proof import wait_for
from tests.support.sink_rig import T0, T1, MakeRig, Rig, rigs


@pytest.fixture
def make() -> Iterator[MakeRig]:
    with rigs() as build:
        yield build


def read_five(rig: Rig) -> None:
    """Return a task that has read five records of each partition, with no segment due."""
    for key in (T0, T1):
        rig.kafka.produce(key, range(5))
    rig.kafka.tell("on_assign", T0, T1)
    rig.until(lambda: rig.kafka.fetched == {T0: 5, T1: 5})


def refuse_commits(rig: Rig, error: Exception, partition: int = 0) -> None:
    def refuse(*_arguments: object, **_keywords: object) -> None:
        raise error

    writer = rig.task._group.assigned["t", partition].writer
    assert writer is not None
    writer._session.append = refuse  # type: ignore[method-assign, assignment]  # replaced for this test


def test_a_failed_task_names_its_error_before_uncommitted_records(make: MakeRig) -> None:
    """There was no stop command, and no time limit was reached."""
    rig = make()
    read_five(rig)
    refuse_commits(rig, error := AccessDenied("partition=0/x", "no right to write"))
    with capture_logs() as logs:
        rig.commands.add(TaskCommand.FLUSH)
        wait_for(lambda: rig.error is not None, 60, "the task ends")
    assert rig.error is error
    told = [(entry["event"], entry.get("error", "")) for entry in logs if entry["log_level"] in {"warning", "error"}]
    assert "no right to write" in told[0][1], told
    assert not any("stop order" in words or "within" in words for _, words in told), told
    assert rig.next_offset(T1) == 5, "what could be flushed was"


def test_a_stop_names_partitions_not_committed_in_time(make: MakeRig) -> None:
    faulty = FaultyStore(MemoryStore())
    rig = make(faulty, task__shutdown__graceful__timeout__ms="200")
    read_five(rig)
    faulty.add(Fault(lambda call: "partition=0" in call.key, FaultKind.UNAVAILABLE, times=1_000_000))
    rig.end()
    assert isinstance(rig.error, ShutdownTimeout)
    assert "t-0" in str(rig.error)
    assert "t-1" not in str(rig.error)
    assert "within 200 ms of the stop order" in str(rig.error)
    assert rig.next_offset(T1) == 5


def test_a_stop_whose_commit_fails_names_the_error_and_no_time_limit(make: MakeRig) -> None:
    rig = make()
    read_five(rig)
    refuse_commits(rig, UploadLost("partition=0/x", "the upload was lost"))
    rig.end()
    assert isinstance(rig.error, NotFlushed)
    assert not isinstance(rig.error, ShutdownTimeout)
    assert "t-0" in str(rig.error)
    assert "the upload was lost" in str(rig.error)
    assert "ms" not in str(rig.error).split()
