"""A task as a process of this very program, with the two lines of `keyfold_sink.wire` to it.

The configuration goes with it, as it was when the worker began, in the first line of its stdin: a file that is changed
while the worker runs must not make a task that is started again another one than its brothers.

A task belongs to the worker's group of processes, so Ctrl-Z and SIGKILL to the group reach it. Ctrl-C and a terminal
that goes away signal the whole group too, but they are for the worker alone, which then orders its tasks to stop. So
a task is started with these signals blocked, and never unblocks them.

Nothing here waits. What does not fit into a pipe is kept until it does; a task that reports without end is cut off.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import orjson

from keyfold.config_file import Resolved

_FOR_THE_WORKER: Final = (signal.SIGINT, signal.SIGHUP)
_LONGEST_LINE_BYTES: Final = 64 * 1024 * 1024
_PIECE_BYTES: Final = 1024 * 1024


class TaskProcess:
    """See `keyfold_sink.running.children.Process`."""

    def __init__(self, command: Sequence[str], first_line: bytes) -> None:
        """Start `command ... --report-fd FD`. Raises `OSError`."""
        reports, theirs = os.pipe()
        try:
            with _blocked(_FOR_THE_WORKER):
                self._popen = subprocess.Popen(  # noqa: S603 - this very program
                    [*command, "--report-fd", str(theirs)], stdin=subprocess.PIPE, pass_fds=(theirs,), bufsize=0
                )
        except BaseException:
            os.close(reports)
            raise
        finally:
            os.close(theirs)
        assert self._popen.stdin is not None
        _widen(reports)
        self._reports = reports
        self._stdin = self._popen.stdin
        os.set_blocking(reports, False)
        os.set_blocking(self._stdin.fileno(), False)
        self._unsent = bytearray()
        self._rest = bytearray()
        self.send(first_line)

    @property
    def pid(self) -> int:
        """See `Process.pid`."""
        return self._popen.pid

    def send(self, line: bytes) -> None:
        """See `Process.send`."""
        self._unsent += line
        self._push()

    def take(self) -> list[bytes]:
        """See `Process.take`."""
        self._push()
        while True:
            try:
                piece = os.read(self._reports, _PIECE_BYTES)
            except BlockingIOError:
                break
            if not piece:
                break
            self._rest += piece
            if len(self._rest) > _LONGEST_LINE_BYTES:
                break  # the loop has other things to do, and a task could go on for ever
        *lines, rest = self._rest.split(b"\n")
        self._rest = bytearray() if len(rest) > _LONGEST_LINE_BYTES else rest
        return [bytes(line) for line in lines]

    def poll(self) -> int | None:
        """See `Process.poll`."""
        return self._popen.poll()

    def signal(self, number: signal.Signals) -> None:
        """See `Process.signal`."""
        self._popen.send_signal(number)

    def close(self) -> None:
        """See `Process.close`; waits for a process that was killed a moment ago."""
        os.close(self._reports)
        self._stdin.close()
        self._popen.wait()

    def _push(self) -> None:
        try:
            while self._unsent:
                written = self._stdin.write(self._unsent)
                if not written:  # the pipe is full
                    return
                del self._unsent[:written]
        except BrokenPipeError:  # it has ended, which `poll` tells
            self._unsent.clear()


@contextmanager
def _blocked(numbers: Sequence[signal.Signals]) -> Iterator[None]:
    """Block signals in this thread: a process that is started meanwhile inherits that, from its first instruction on.

    The worker itself misses none of them. They come to another thread, or to this one a moment later.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _widen(pipe: int) -> None:
    """Let a report of thousands of partitions go through in one piece, where that can be had (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIECE_BYTES)


def first_line(values: Mapping[str, str]) -> bytes:
    """A configuration for a task's stdin."""
    resolved = {key: value.written for key, value in values.items() if isinstance(value, Resolved)}
    return orjson.dumps({"config": {key: str(value) for key, value in values.items()}, "resolved": resolved}) + b"\n"


def read_first_line(fd: int) -> dict[str, str]:
    """The configuration that the supervisor sent; what comes after it is left to be read. Raises `ValueError`."""
    line = bytearray()
    while not line.endswith(b"\n"):
        sign = os.read(fd, 1)
        if not sign:
            raise ValueError("the supervisor has sent no configuration")
        line += sign
    found: dict[str, Any] = orjson.loads(line)
    resolved: dict[str, str] = found["resolved"]
    return {key: Resolved(value, resolved[key]) if key in resolved else value for key, value in found["config"].items()}


def task_command(arguments: Sequence[str], number: int, *, paused: bool, proven: bool = False) -> list[str]:
    """The command of one task; `arguments` are those of `keyfold sink run`."""
    flags = ["--paused"] * paused + ["--proven"] * proven
    return [sys.executable, "-m", "keyfold_sink", "run", *arguments, "--task", str(number), *flags]
