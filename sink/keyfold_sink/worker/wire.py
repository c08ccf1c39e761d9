"""The protocol between a worker's supervisor and its tasks: JSON, one object per line.

    supervisor ──{"order": "pause"}──► the task's stdin             its end means that the supervisor is gone: stop
               ──{"logger": "keyfold", "level": "DEBUG"}──► the same pipe; carried out by the reading thread
    task ──────TaskStatus────────────► an inherited descriptor      about every second, from the task's main loop

A status is a heartbeat, so a task that waits for the store or a broker at its start also sends one (state UNASSIGNED).
The last status before a task ends with a `KeyfoldError` is FAILED, with the error as its trace. It tells the supervisor
that another start would fail in the same way.

Neither side ever waits for the other. Commands are a few bytes in a pipe that is read at once. Only the newest status
is kept until the supervisor reads it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

import orjson
import structlog

from keyfold.runtime import event_log
from keyfold_sink.status import TaskStatus, dump
from keyfold_sink.task.commands import TaskCommand

_LAST_WORD_S: Final = 2.0


def encode_command(command: TaskCommand) -> bytes:
    """Encode a command as a line."""
    return orjson.dumps({"order": command}) + b"\n"


def encode_level(logger: str, level: str) -> bytes:
    """Encode a logger (empty for the root) and its level, one of `event_log.CONNECT_LEVELS`, as a line."""
    return orjson.dumps({"logger": logger, "level": level}) + b"\n"


def decode_command(line: bytes) -> TaskCommand:
    """Decode a command. Raise `ValueError` for anything else."""
    found = orjson.loads(line)
    if not isinstance(found, dict):
        raise ValueError("not a command")  # noqa: TRY004 - a decoded value, not an argument
    return TaskCommand(found.get("order", ""))


def follow_commands(
    fd: int, give: Callable[[TaskCommand], None], afterwards: Callable[[], None] = lambda: None
) -> None:
    """Pass on the commands read from `fd`, in a thread of its own. At its end, or if reading fails, pass on STOP.

    `afterwards` is then called on that thread.
    """
    threading.Thread(target=_follow, args=(fd, give, afterwards), name="keyfold-commands", daemon=True).start()


def _follow(fd: int, give: Callable[[TaskCommand], None], afterwards: Callable[[], None]) -> None:
    try:
        for line in lines(lambda: os.read(fd, 65_536)):  # not sys.stdin: its lock would be held at the end
            try:
                if not _set_level(line):
                    give(decode_command(line))
            except ValueError as error:  # a command of a newer supervisor
                structlog.get_logger("keyfold.sink").warning("unknown command ignored", error=str(error))
    finally:
        give(TaskCommand.STOP)
        afterwards()


def _set_level(line: bytes) -> bool:
    found = orjson.loads(line)
    if not isinstance(found, dict) or "level" not in found:
        return False
    if found["level"] not in event_log.CONNECT_LEVELS:
        raise ValueError(f"{found['level']!r} is not a log level")
    event_log.set_level(str(found.get("logger", "")), found["level"])
    return True


def lines(read: Callable[[], bytes]) -> Iterator[bytes]:
    """Yield the lines that `read` returns in pieces, until it returns nothing. An unfinished last line is dropped."""
    rest: list[bytes] = []
    while piece := read():
        first, *others = piece.split(b"\n")
        rest.append(first)
        if others:
            yield b"".join(rest)
            yield from others[:-1]
            rest = [others[-1]]


def _line(status: TaskStatus) -> bytes:
    """Encode a status as a line. If it is not valid JSON text (half a surrogate pair), send a reduced status."""
    try:
        return dump(status) + b"\n"
    except TypeError:
        return dump(replace(status, trace=ascii(status.trace), partitions=(), values={})) + b"\n"


class StatusPipe:
    """Write a task's newest status to the supervisor's descriptor, in a thread of its own.

    A supervisor that does not read (it was stopped by a signal) does not block the task. A supervisor that is gone is
    no error here, because the end of the commands' pipe reports it.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._next: TaskStatus | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._write, name="keyfold-reports", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait a moment for the last status to be written."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(_LAST_WORD_S)

    def __call__(self, status: TaskStatus) -> None:
        """Send a status. Never blocks."""
        with self._changed:
            self._next = status
            self._changed.notify()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next is not None or self._closing)
                status, self._next = self._next, None
            if status is None:
                return
            rest = memoryview(_line(status))
            try:
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
            except OSError:
                return
