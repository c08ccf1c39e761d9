"""Checks of a column of bytes, with a fast pass over all records in C loops.

Every check has a fast pass that only finds out whether all records are valid, which is the usual case. If one is not, a
slow pass checks each record. None is a null key, value or header; it passes every check.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from keyfold.log.record import Header

Headers = Sequence[Sequence[Header] | None]
BatchId = tuple[str, int, int, int, int]
"""Topic, partition, first and last offset, and count, which identify a batch that is validated again."""


@dataclass(frozen=True, slots=True)
class ColumnFailure:
    """A record of the column that fails: its index, a short cause, and a message."""

    index: int
    cause: str
    message: str


class ColumnCheck(Protocol):
    """The check of one column of a batch."""

    def failures(self, batch: BatchId, column: Sequence[bytes | None], headers: Headers) -> Sequence[ColumnFailure]:
        """Return the records that fail, in order of their index. May raise `SchemasPending` or `KeyfoldError`."""

    def pending(self) -> bool:
        """Whether a request is outstanding."""

    def close(self) -> None:
        """Stop requests."""


class LocalCheck:
    """A check that makes no requests."""

    def pending(self) -> bool:
        """Never."""
        return False

    def close(self) -> None:
        """Do nothing."""


class TextCheck(LocalCheck):
    """The check of text: valid UTF-8."""

    def failures(self, _batch: BatchId, column: Sequence[bytes | None], _headers: Headers) -> Sequence[ColumnFailure]:
        """See `ColumnCheck`."""
        # `filter(None, ...)` leaves out nulls and empty values, which both pass.
        if all(map(bytes.isascii, filter(None, column))):
            return ()
        try:
            exhaust(map(bytes.decode, filter(None, column)))
        except UnicodeDecodeError:
            return [
                ColumnFailure(index, "not UTF-8", message)
                for index, value in enumerate(column)
                if value is not None and (message := _not_utf8(value))
            ]
        return ()


class NumberCheck(LocalCheck):
    """The check of numbers: the size of the type and, for a boolean, one of its two values."""

    def __init__(self, size_bytes: int, *, is_boolean: bool = False) -> None:
        self._size_bytes = size_bytes
        self._is_boolean = is_boolean

    def failures(self, _batch: BatchId, column: Sequence[bytes | None], _headers: Headers) -> Sequence[ColumnFailure]:
        """See `ColumnCheck`."""
        if self._is_boolean:
            if set(column) <= {b"\x00", b"\x01", None}:
                return ()
        elif set(map(len, (value for value in column if value is not None))) <= {self._size_bytes}:
            return ()
        return [
            ColumnFailure(index, "wrong size", message)
            for index, value in enumerate(column)
            if value is not None and (message := self._wrong(value))
        ]

    def _wrong(self, value: bytes) -> str:
        if len(value) != self._size_bytes:
            return f"has {len(value)} bytes instead of {self._size_bytes}"
        return f"is the byte {value[0]}, which is neither 0 nor 1" if self._is_boolean and value[0] > 1 else ""


def exhaust(iterator: Iterable[object]) -> None:
    """Consume an iterator without keeping its items."""
    deque(iterator, maxlen=0)


def _not_utf8(value: bytes) -> str:
    try:
        value.decode()
    except UnicodeDecodeError as error:
        return f"is not UTF-8: {error.reason} at byte {error.start} of {len(value)}"
    return ""
