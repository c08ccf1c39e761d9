"""Records that wait until they fill a block, in little memory.

With thousands of partitions, all records of a sink may wait. In lists, a record would take 186 bytes beside its key and
its value: two numbers, two `bytes` objects and seven places. Here numbers are in arrays, and keys and values joined:
it takes 45. The same memory then makes fewer and larger segments.

Large values stay as they are: their overhead is small, and the encoder takes them without another copy.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import lt
from typing import Final, overload

import numpy as np
import numpy.typing as npt

from keyfold.log.record import TIMESTAMP_TYPES, Header, RecordColumns, check_columns, check_lengths

LARGE_BYTES: Final = 1000
"""Values stay apart if the first has this size. With compression that costs as much CPU at 1 KB as if Arrow joins them,
and about a tenth less from 2 KB on (measured)."""

_NULL: Final = -1
_TYPES: Final = bytes(range(len(TIMESTAMP_TYPES)))
# Of each record: offset, timestamp, type, leader epoch, two lengths and a place for headers. Of a value that stays
# apart, its place and its object. Of each append, the objects and places of two joined pieces.
_RECORD_BYTES: Final = 8 + 8 + 1 + 4 + 2 * 8 + 8
_APART_BYTES: Final = 8 + 33
_APPEND_BYTES: Final = 2 * (8 + 33)


class JoinedBytes(Sequence[bytes | None]):
    """Byte strings and nulls as their lengths, and their bytes in a few pieces. Can only grow.

    For reading as a whole: an index costs as much as iterating over all of them.
    """

    __slots__ = ("_lengths", "_pieces")

    def __init__(self, strings: Sequence[bytes | None] = ()) -> None:
        self._lengths = array("q")
        self._pieces: list[bytes] = []
        if strings:
            self.extend(strings)

    def extend(self, strings: Sequence[bytes | None]) -> int:
        """Add strings at the end, and return the number of their bytes."""
        if all(strings):
            lengths = list(map(len, strings))  # type: ignore[arg-type]  # None is not among them
            piece = b"".join(strings)  # type: ignore[arg-type]  # as above
        else:
            lengths = [_NULL if string is None else len(string) for string in strings]
            piece = b"".join(filter(None, strings))
        self._lengths.fromlist(lengths)  # takes half the CPU of `extend`
        self._pieces.append(piece)
        return len(piece)

    def joined(self) -> bytes:
        """Return all strings in one piece."""
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0] if self._pieces else b""

    def lengths(self) -> npt.NDArray[np.int64]:
        """Return the length of each string, -1 for a null."""
        return np.array(self._lengths, np.int64)

    def __len__(self) -> int:
        return len(self._lengths)

    @overload
    def __getitem__(self, index: int) -> bytes | None: ...

    @overload
    def __getitem__(self, index: slice) -> list[bytes | None]: ...

    def __getitem__(self, index: int | slice) -> bytes | list[bytes | None] | None:
        return list(self)[index]

    def __iter__(self) -> Iterator[bytes | None]:
        joined, begin = self.joined(), 0
        for length in self._lengths:
            if length == _NULL:
                yield None
            else:
                yield joined[begin : begin + length]
                begin += length


class WaitingRecords:
    """Records of one segment in the order of their offsets."""

    __slots__ = (
        "_appends",
        "_epochs",
        "_headers",
        "_keys",
        "_offsets",
        "_timestamps",
        "_types",
        "_values",
        "content_bytes",
    )

    def __init__(self) -> None:
        self._offsets, self._timestamps, self._epochs = array("q"), array("q"), array("i")
        self._types = bytearray()
        self._keys = JoinedBytes()
        self._values: JoinedBytes | list[bytes | None] = JoinedBytes()
        self._headers: list[Sequence[Header] | None] = []
        self._appends = 0
        self.content_bytes = 0
        """Bytes of keys, values and headers."""

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def overhead_bytes(self) -> int:
        """Memory beside those bytes."""
        apart = _APART_BYTES if isinstance(self._values, list) else 0
        return len(self) * (_RECORD_BYTES + apart) + self._appends * _APPEND_BYTES

    def add(self, columns: RecordColumns, last_offset: int) -> None:
        """Add records after `last_offset`. Raises `ValueError`, as `check_columns` does, and then adds none."""
        check_lengths(columns)
        try:  # the arrays refuse numbers that do not fit
            offsets, timestamps = array("q", columns.offsets), array("q", columns.timestamps)
            types, epochs = bytes(list(columns.timestamp_types)), array("i", columns.leader_epochs)
        except (OverflowError, ValueError):
            check_columns(columns, last_offset)  # raises an error that names the number
            raise
        if types.strip(_TYPES) or offsets[0] <= last_offset or not all(map(lt, offsets, islice(offsets, 1, None))):
            check_columns(columns, last_offset)
        content_bytes = _headers_bytes(columns.headers)
        if not self._offsets and has_large_values(columns.values):
            self._values = []
        self._offsets += offsets
        self._timestamps += timestamps
        self._types += types
        self._epochs += epochs
        self._headers += columns.headers
        content_bytes += self._keys.extend(columns.keys)
        if isinstance(self._values, list):
            self._values.extend(columns.values)
            content_bytes += sum(map(len, filter(None, columns.values)))
        else:
            content_bytes += self._values.extend(columns.values)
        self.content_bytes += content_bytes
        self._appends += 1

    def columns(self) -> RecordColumns:
        """Return all records."""
        return RecordColumns(
            self._offsets, self._timestamps, self._types, self._keys, self._values, self._headers, self._epochs
        )


def _headers_bytes(headers: Sequence[Sequence[Header] | None]) -> int:
    """Return about the bytes that headers take in a block."""
    if not any(headers):
        return 0
    return sum(
        len(name.encode()) + len(value or b"") + 12 for record in filter(None, headers) for name, value in record
    )


def has_large_values(values: Sequence[bytes | None]) -> bool:
    """Whether to keep these values apart, by the first of them."""
    return not isinstance(values, JoinedBytes) and len(values[0] or b"") >= LARGE_BYTES
