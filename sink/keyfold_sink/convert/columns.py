"""Checks of a column of bytes: what goes over all records with C's own loops, and what says why one of them fails.

Every check has a quick pass that only finds out whether all is well, nearly always the end of it, and a slow one that
looks at each record when it is not. None is a null key or value, or a header that has none: it passes every check.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from keyfold.log.record import Header

Headers = Sequence[Sequence[Header] | None]
BatchId = tuple[str, int, int, int, int]
"""Topic, partition, first and last offset, and how many: the same batch, when it is judged once more."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One record of the column that fails: its place, a short cause, and what is wrong with it."""

    index: int
    cause: str
    message: str


class ColumnCheck(Protocol):
    """One converter over one column of a batch."""

    def failures(self, batch: BatchId, column: Sequence[bytes | None], headers: Headers) -> Sequence[Failure]:
        """The records that fail, in order of their index. May raise `SchemasPending`, or `KeyfoldError`."""

    def pending(self) -> bool:
        """Whether something is being asked for."""

    def close(self) -> None:
        """Stop asking."""


class LocalCheck:
    """A check that asks nobody."""

    def pending(self) -> bool:
        """Never."""
        return False

    def close(self) -> None:
        """Nothing to stop."""


class TextCheck(LocalCheck):
    """Valid UTF-8."""

    def failures(self, _batch: BatchId, column: Sequence[bytes | None], _headers: Headers) -> Sequence[Failure]:
        """See `ColumnCheck`."""
        # `filter(None, ...)` leaves out nulls and what is empty: both pass.
        if all(map(bytes.isascii, filter(None, column))):
            return ()
        try:
            exhaust(map(bytes.decode, filter(None, column)))
        except UnicodeDecodeError:
            return [
                Failure(index, "not UTF-8", message)
                for index, value in enumerate(column)
                if value is not None and (message := _not_utf8(value))
            ]
        return ()


class NumberCheck(LocalCheck):
    """As many bytes as the type has; for a boolean also one of its two values."""

    def __init__(self, size_bytes: int, *, is_boolean: bool = False) -> None:
        self._size_bytes = size_bytes
        self._is_boolean = is_boolean

    def failures(self, _batch: BatchId, column: Sequence[bytes | None], _headers: Headers) -> Sequence[Failure]:
        """See `ColumnCheck`."""
        if self._is_boolean:
            if set(column) <= {b"\x00", b"\x01", None}:
                return ()
        elif set(map(len, (value for value in column if value is not None))) <= {self._size_bytes}:
            return ()
        return [
            Failure(index, "wrong size", message)
            for index, value in enumerate(column)
            if value is not None and (message := self._wrong(value))
        ]

    def _wrong(self, value: bytes) -> str:
        if len(value) != self._size_bytes:
            return f"has {len(value)} bytes where the type has {self._size_bytes}"
        return f"is the byte {value[0]}, and neither 0 nor 1" if self._is_boolean and value[0] > 1 else ""


def exhaust(iterator: Iterable[object]) -> None:
    """Run through to the end, keeping nothing."""
    deque(iterator, maxlen=0)


def _not_utf8(value: bytes) -> str:
    try:
        value.decode()
    except UnicodeDecodeError as error:
        return f"is not UTF-8: {error.reason} at byte {error.start} of {len(value)}"
    return ""
