"""Fake tasks: one behind the `Process` protocol, for manual clocks, and a real process of a few lines.

python -m tests.support.fake_task BEHAVIOUR --report-fd FD      BEHAVIOUR: see `main`
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from keyfold_sink.status import PartitionStatus, RunState, TaskStatus, dump
from keyfold_sink.task.commands import TaskCommand
from keyfold_sink.worker.wire import decode_command, lines


@dataclass(eq=False)
class FakeProcess:
    """A task's process that a test controls."""

    number: int
    paused: bool
    pid: int
    commands: list[TaskCommand] = field(default_factory=list)
    signals: list[signal.Signals] = field(default_factory=list)
    code: int | None = None
    closed: bool = False
    reports: list[bytes] = field(default_factory=list)
    deaf: bool = False

    def send(self, line: bytes) -> None:
        self.commands.append(decode_command(line))

    def take_lines(self) -> list[bytes]:
        taken, self.reports = self.reports, []
        return taken

    def poll(self) -> int | None:
        return self.code

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)
        if number is signal.SIGKILL and not self.deaf:
            self.code = -signal.SIGKILL

    def close(self) -> None:
        self.closed = True

    def report(
        self,
        state: RunState = RunState.RUNNING,
        trace: str = "",
        partitions: tuple[PartitionStatus, ...] = (),
        values: Mapping[str, float] | None = None,
    ) -> None:
        status = TaskStatus(self.number, state, trace, pid=self.pid, partitions=partitions, values=values or {})
        self.reports.append(dump(status))


class FakeTasks:
    """A function that starts `FakeProcess`es and remembers them."""

    def __init__(self) -> None:
        self.started: list[FakeProcess] = []
        self.refuse = False

    def __call__(self, number: int, paused: bool) -> FakeProcess:
        if self.refuse:
            raise OSError(11, "Resource temporarily unavailable")
        self.started.append(FakeProcess(number, paused, 1000 + len(self.started)))
        return self.started[-1]

    def live(self, number: int = 0) -> FakeProcess:
        """Return the last process of a task."""
        return [process for process in self.started if process.number == number][-1]


LAST_WORDS = {"failed": ("no right to the bucket", 1), "silent": ("", 1), "held-up": ("a transaction is open", 3)}
CODES = {"defect": 70, "done": 0}


def main(behaviour: str, fd: int) -> None:
    """Report and obey until told to stop; the behaviour says what else.

    well       nothing else
    hang       no report after the second, and deaf to SIGTERM
    defect     exit code 70 after the first report
    failed     FAILED, and exit code 1
    held-up    FAILED, and exit code 3
    done       exit code 0 after the first report
    silent     exit code 1 without a word
    garbage    nonsense before each report
    slow       the first report after a second
    stubborn   reports, but never stops
    """
    if behaviour in {"hang", "stubborn"}:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    commands: list[TaskCommand] = []
    threading.Thread(target=follow, args=(commands,), daemon=True).start()
    if behaviour == "slow":
        time.sleep(1)
    if behaviour in LAST_WORDS:
        trace, code = LAST_WORDS[behaviour]
        if trace:
            say(fd, TaskStatus(0, RunState.FAILED, trace, pid=os.getpid()))
        sys.exit(code)
    for count in range(10_000):
        if behaviour == "hang" and count == 2:
            signal.pause()
        if behaviour == "garbage":
            os.write(fd, b"\xff\x00{]\n" + b"x" * 30_000 + b'\n{"number": 0}\n[1]\n')
        report(fd, commands)
        if behaviour in CODES:
            sys.exit(CODES[behaviour])
        if behaviour != "stubborn" and TaskCommand.STOP in commands:
            sys.exit(0)
        time.sleep(0.05)


def follow(commands: list[TaskCommand]) -> None:
    for line in lines(lambda: os.read(0, 4096)):
        if b'"config"' not in line:
            commands += [decode_command(line)]
    commands += [TaskCommand.STOP]


def report(fd: int, commands: Sequence[TaskCommand]) -> None:
    told = [command for command in commands if command in {TaskCommand.PAUSE, TaskCommand.RESUME}]
    state = RunState.PAUSED if told[-1:] == [TaskCommand.PAUSE] else RunState.RUNNING
    say(fd, TaskStatus(0, state, pid=os.getpid(), values={"flushes": commands.count(TaskCommand.FLUSH)}))


def say(fd: int, status: TaskStatus) -> None:
    data = memoryview(dump(status) + b"\n")
    while data:
        data = data[os.write(fd, data) :]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[-1]))
