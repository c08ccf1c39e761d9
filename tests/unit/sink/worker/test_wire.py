"""The lines between a supervisor and a task: complete, in order, and without blocking."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfold_sink.status import PartitionStatus, RunState, TaskStatus, load_task
from keyfold_sink.task.commands import TaskCommand
from keyfold_sink.worker.wire import StatusPipe, decode_command, encode_command, follow_commands, lines


class Pipe:
    """A pipe whose ends are closed once: closed twice, a number may be that of another thread's file by then."""

    def __init__(self) -> None:
        self.ends = os.pipe()
        self._open = set(self.ends)

    def close(self, *ends: int) -> None:
        for end in self._open.intersection(ends):
            self._open.remove(end)
            os.close(end)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close(*made.ends)


def status(number: int, partitions: int = 0, trace: str = "") -> TaskStatus:
    parts = tuple(PartitionStatus("a-topic", at, RunState.RUNNING, number) for at in range(partitions))
    return TaskStatus(0, RunState.RUNNING, trace, reported_ms=number, partitions=parts)


@pytest.mark.parametrize("command", TaskCommand)
def test_commands_are_encoded_and_decoded(command: TaskCommand) -> None:
    assert decode_command(encode_command(command)) is command


@pytest.mark.parametrize("line", [b"", b"[]", b"{}", b'{"order": "dance"}', b'{"order": 1}', b'"pause"', b"\xff"])
def test_an_invalid_command_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        decode_command(line)


@given(st.lists(st.binary(max_size=30)), st.data())
def test_lines_are_complete_however_the_bytes_arrive(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    rest = iter([piece for piece in pieces if piece] + [b""])
    assert list(lines(lambda: next(rest))) == whole.split(b"\n")[:-1]


def test_commands_are_passed_on_in_order_and_their_end_means_stop(pipe: Pipe) -> None:
    read, write = pipe.ends
    given_commands: list[TaskCommand] = []
    ended = threading.Event()

    def give(command: TaskCommand) -> None:
        given_commands.append(command)
        if command is TaskCommand.STOP:
            ended.set()

    follow_commands(read, give)
    os.write(write, encode_command(TaskCommand.PAUSE) + b"nonsense\n" + encode_command(TaskCommand.FLUSH) + b'{"order"')
    pipe.close(write)
    assert ended.wait(60)
    assert given_commands == [TaskCommand.PAUSE, TaskCommand.FLUSH, TaskCommand.STOP]


def test_the_last_report_arrives_complete_and_a_slow_reader_misses_only_older_ones(pipe: Pipe) -> None:
    read, write = pipe.ends
    with StatusPipe(write) as report:
        for number in range(50):  # no call waits, although nothing is read before all are made
            report(status(number, partitions=2000))
            time.sleep(0.001)
        taken: list[bytes] = []
        reader = threading.Thread(target=lambda: taken.extend(lines(lambda: os.read(read, 65_536))))
        reader.start()
        time.sleep(0.2)
    pipe.close(write)
    reader.join()
    found = [load_task(line) for line in taken]
    assert found[-1] == status(49, partitions=2000)
    assert len(found) < 10


def test_reporting_to_a_dead_supervisor_is_no_error(pipe: Pipe) -> None:
    read, write = pipe.ends
    pipe.close(read)
    with StatusPipe(write) as report:
        for number in range(3):
            report(status(number))
            time.sleep(0.02)


def test_a_reporter_ends_although_its_supervisor_never_reads(pipe: Pipe) -> None:
    read, write = pipe.ends
    with StatusPipe(write) as report:
        report(status(1, partitions=5000))
    pipe.close(read)  # the first thing that happens to the reading end
    for thread in threading.enumerate():  # or it writes its rest into another test's pipe, by the number of this one
        if thread.name == "keyfold-reports":
            thread.join()


def test_an_undecodable_message_does_not_stop_reports(pipe: Pipe) -> None:
    read, write = pipe.ends
    with StatusPipe(write) as report:
        report(status(1, trace="half a character: \ud800"))
    found = load_task(os.read(read, 65_536).strip())
    assert "ud800" in found.trace
