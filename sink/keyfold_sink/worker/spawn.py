"""A task as a process of this program, with the two pipes of `keyfold_sink.worker.wire`.

The supervisor sends the configuration, as it was when the worker began, in the first line of the task's stdin. So a
restarted task has the configuration of the other tasks, even if the file was changed while the worker runs.

A task belongs to the worker's process group, so Ctrl-Z and SIGKILL to the group reach it. Ctrl-C and a closed terminal
also signal the whole group, but only the worker must handle them, and then tells its tasks to stop. So a task is
started with these signals blocked, and never unblocks them.

If the worker shows a view at a terminal, it reads what the task prints to standard error, and prints it above the view.

No call blocks. Bytes that do not fit into a pipe are kept until they do, and one call reads a limited number of
reports.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, Final

import orjson

from keyfold.config.config_file import Resolved

_FOR_THE_WORKER: Final = (signal.SIGINT, signal.SIGHUP)
_LONGEST_LINE_BYTES: Final = 64 * 1024 * 1024
_PIECE_BYTES: Final = 1024 * 1024
_LONGEST_OUTPUT_BYTES: Final = 64 * 1024
_LAST_OUTPUT_S: Final = 1.0


class TaskProcess:
    """See `keyfold_sink.worker.task_process.ProcessHandle`."""

    def __init__(self, command: Sequence[str], first_line: bytes, say: Callable[[str], None] | None = None) -> None:
        """Start `command ... --report-fd FD`. Raises `OSError`.

        With `say`, a thread passes each line that the task prints to standard error to it.
        """
        ours, theirs = os.pipe()
        self._reports = io.FileIO(ours)  # a file can be closed twice; a number may be another file's by then
        try:
            with _blocked(_FOR_THE_WORKER):
                self._popen = subprocess.Popen(  # noqa: S603 - runs this program
                    [*command, "--report-fd", str(theirs)],
                    stdin=subprocess.PIPE,
                    stderr=None if say is None else subprocess.PIPE,
                    pass_fds=(theirs,),
                    bufsize=0,
                )
        except BaseException:
            self._reports.close()
            raise
        finally:
            os.close(theirs)
        assert self._popen.stdin is not None
        _widen(self._reports)
        self._stdin = self._popen.stdin
        os.set_blocking(self._reports.fileno(), False)
        os.set_blocking(self._stdin.fileno(), False)
        self._unsent = bytearray()
        self._rest = bytearray()
        self._printed: threading.Thread | None = None
        if say is not None and self._popen.stderr is not None:
            self._printed = threading.Thread(
                target=_pass_on, args=(self._popen.stderr, say), name="keyfold-task-output", daemon=True
            )
            self._printed.start()
        self.send(first_line)

    @property
    def pid(self) -> int:
        """See `ProcessHandle.pid`."""
        return self._popen.pid

    def send(self, line: bytes) -> None:
        """See `ProcessHandle.send`."""
        self._unsent += line
        self._push()

    def take_lines(self) -> list[bytes]:
        """See `ProcessHandle.take_lines`."""
        self._push()
        while True:
            piece = self._reports.read(_PIECE_BYTES)
            if not piece:  # None if the task has written nothing new
                break
            self._rest += piece
            if len(self._rest) > _LONGEST_LINE_BYTES:
                break  # the loop has other work, and a task could write without end
        *lines, rest = self._rest.split(b"\n")
        self._rest = bytearray() if len(rest) > _LONGEST_LINE_BYTES else rest
        return [bytes(line) for line in lines]

    def poll(self) -> int | None:
        """See `ProcessHandle.poll`."""
        return self._popen.poll()

    def signal(self, number: signal.Signals) -> None:
        """See `ProcessHandle.signal`."""
        self._popen.send_signal(number)

    def close(self) -> None:
        """See `ProcessHandle.close`. Wait for a process that was just killed."""
        self._reports.close()
        self._stdin.close()
        self._popen.wait()
        if self._printed is not None:
            self._printed.join(_LAST_OUTPUT_S)  # a process that the task has started may keep the pipe open

    def _push(self) -> None:
        try:
            while self._unsent:
                written = self._stdin.write(self._unsent)
                if not written:  # the pipe is full
                    return
                del self._unsent[:written]
        except BrokenPipeError:  # the process has ended, which `poll` reports
            self._unsent.clear()


def _pass_on(output: IO[bytes], say: Callable[[str], None]) -> None:
    """Pass on lines until the other end is closed. The terminal may be gone before the task is."""
    with io.BufferedReader(output) as lines:  # type: ignore[type-var]  # a raw file, as bufsize is 0
        while line := lines.readline(_LONGEST_OUTPUT_BYTES):
            with contextlib.suppress(OSError):
                say(line.decode(errors="replace").rstrip("\n"))


@contextmanager
def _blocked(numbers: Sequence[signal.Signals]) -> Iterator[None]:
    """Block signals in this thread, so that a process started meanwhile inherits the mask from its first instruction.

    The worker itself misses no signal: another thread receives it, or this thread does a moment later.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _widen(pipe: io.FileIO) -> None:
    """Enlarge a pipe so that a report of thousands of partitions fits, where the system supports it (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIECE_BYTES)


def first_line(values: Mapping[str, str]) -> bytes:
    """Encode a configuration for a task's stdin."""
    resolved = {key: value.written for key, value in values.items() if isinstance(value, Resolved)}
    return orjson.dumps({"config": {key: str(value) for key, value in values.items()}, "resolved": resolved}) + b"\n"


def read_first_line(fd: int) -> dict[str, str]:
    """Read the configuration that the supervisor sent, and nothing after it. Raise `ValueError` if there is none."""
    line = bytearray()
    while not line.endswith(b"\n"):
        sign = os.read(fd, 1)
        if not sign:
            raise ValueError("the supervisor sent no configuration")
        line += sign
    found: dict[str, Any] = orjson.loads(line)
    resolved: dict[str, str] = found["resolved"]
    return {key: Resolved(value, resolved[key]) if key in resolved else value for key, value in found["config"].items()}


def task_command(arguments: Sequence[str], number: int, *, paused: bool, proven: bool = False) -> list[str]:
    """Return the command line of one task; `arguments` are those of `keyfold sink run`."""
    flags = ["--paused"] * paused + ["--proven"] * proven
    return [sys.executable, "-m", "keyfold_sink", "run", *arguments, "--task", str(number), *flags]
