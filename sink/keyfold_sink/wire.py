"""What goes between a worker's supervisor and its tasks: JSON, one object a line.

    supervisor ──{"order": "pause"}──► the task's stdin             its end: the supervisor is gone, stop as if told to
               ──{"logger": "keyfold", "level": "DEBUG"}──► likewise; carried out where it is read
    task ──────TaskStatus────────────► an inherited descriptor      about every second, made in the task's main loop

A status is a sign of life, so a task must make one also while it waits for a store or a broker to answer at its start
(state UNASSIGNED). Its last one before it ends with a `KeyfoldError` says FAILED, with the error as its trace: that
tells the supervisor that another start would end the same way.

Neither side ever waits for the other: orders are a few bytes in a pipe that is read at once, and of statuses only the
newest is kept until the supervisor takes it.
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

from keyfold import logs
from keyfold_sink.status import TaskStatus, dump
from keyfold_sink.task.orders import Order

_LAST_WORD_S: Final = 2.0


def encode_order(order: Order) -> bytes:
    """An order as a line."""
    return orjson.dumps({"order": order}) + b"\n"


def encode_level(logger: str, level: str) -> bytes:
    """A level of `keyfold.logs.CONNECT_LEVELS` for a logger (empty: the root) as a line."""
    return orjson.dumps({"logger": logger, "level": level}) + b"\n"


def decode_order(line: bytes) -> Order:
    """Read an order back. Raises `ValueError` for anything else."""
    found = orjson.loads(line)
    if not isinstance(found, dict):
        raise ValueError("this is no order")  # noqa: TRY004 - a value that was read, not an argument
    return Order(found.get("order", ""))


def follow_orders(fd: int, give: Callable[[Order], None], afterwards: Callable[[], None] = lambda: None) -> None:
    """Give what `fd` says, in a thread of its own; at its end, or where it cannot be read, the order to stop.

    `afterwards` is called on that thread when nothing more can come.
    """
    threading.Thread(target=_follow, args=(fd, give, afterwards), name="keyfold-orders", daemon=True).start()


def _follow(fd: int, give: Callable[[Order], None], afterwards: Callable[[], None]) -> None:
    try:
        for line in lines(lambda: os.read(fd, 65_536)):  # not sys.stdin: its lock would be held at the end
            try:
                if not _set_level(line):
                    give(decode_order(line))
            except ValueError as error:  # one that a newer supervisor knows
                structlog.get_logger("keyfold.sink").warning("order not understood", error=str(error))
    finally:
        give(Order.STOP)
        afterwards()


def _set_level(line: bytes) -> bool:
    found = orjson.loads(line)
    if not isinstance(found, dict) or "level" not in found:
        return False
    if found["level"] not in logs.CONNECT_LEVELS:
        raise ValueError(f"{found['level']!r} is no level")
    logs.set_level(str(found.get("logger", "")), found["level"])
    return True


def lines(read: Callable[[], bytes]) -> Iterator[bytes]:
    """Lines of what `read` gives piece by piece, until it gives nothing. What has no end of line then is lost."""
    rest: list[bytes] = []
    while piece := read():
        first, *others = piece.split(b"\n")
        rest.append(first)
        if others:
            yield b"".join(rest)
            yield from others[:-1]
            rest = [others[-1]]


def _line(status: TaskStatus) -> bytes:
    """A status as a line. One that is no JSON (a message with half a character in it) says at least what it can."""
    try:
        return dump(status) + b"\n"
    except TypeError:
        return dump(replace(status, trace=ascii(status.trace), partitions=(), values={})) + b"\n"


class Reporter:
    """A task's voice: writes statuses to the supervisor's descriptor from a thread, the newest only.

    A supervisor that does not read (it was stopped by a signal) holds nothing up; one that is gone is no error here,
    for the end of the orders says so.
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
        """Let the last status out, for a moment."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(_LAST_WORD_S)

    def __call__(self, status: TaskStatus) -> None:
        """Report. Never waits."""
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
