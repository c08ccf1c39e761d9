"""Which of many keys or values were written by which schema, without looking at them one by one where that can be.

Nearly always all of a batch have the same five bytes before their data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from keyfold.formats.confluent_framing import ID_BYTES, head_of, read_frame, read_head
from keyfold.formats.errors import FormatMismatch, SchemaKey
from keyfold.log.arrow_numbers import PADDING, Ints
from keyfold.log.record import Header
from keyfold.runtime.arrow_types import ArrowArray, ArrowLists, numbers_in, values_of


@dataclass(frozen=True, slots=True)
class Frame:
    """Rows that one schema has written, ascending; their data begins `begin` bytes after their beginning."""

    key: SchemaKey
    begin: int
    rows: Ints


@dataclass(frozen=True, slots=True)
class Raw:
    """The bytes of a binary array in one piece with `PADDING` zeros behind them, and the bounds of its rows."""

    padded: bytes
    bounds: Ints

    @staticmethod
    def of(data: ArrowArray) -> Raw:
        """The bytes of `data`: one copy of them."""
        _, offsets, values = data.buffers()
        bounds = numbers_in(offsets, np.int32)[data.offset : data.offset + len(data) + 1].astype(np.int64)
        piece = memoryview(values)[int(bounds[0]) : int(bounds[-1])] if values is not None else b""
        return Raw(b"".join([piece, bytes(PADDING)]), bounds - bounds[0])


def named_headers(headers: ArrowArray | None, name: str) -> dict[int, list[Header]]:
    """The headers of one name, by row; rows without one are left out."""
    if headers is None or not len(cast("ArrowLists", headers).flatten()):
        return {}
    found = {}
    for row, pairs in enumerate(values_of(headers)):
        mine = [(each["name"], each["value"]) for each in pairs or () if each["name"] == name]
        if mine:
            found[row] = mine
    return found


def find_frames(
    data: ArrowArray, named: Mapping[int, Sequence[Header]], header: str
) -> tuple[list[Frame], list[tuple[int, FormatMismatch]]]:
    """The schemas of all rows that are not null, and the rows that name none. `named` are headers that may name it."""
    rows = np.flatnonzero(data.is_valid().to_numpy(zero_copy_only=False))
    if not named and len(rows):
        key = _common_id(data, rows)
        if key is not None:
            return [Frame(key, ID_BYTES, rows)], []
    return _one_by_one(data, rows, named, header)


def _common_id(data: ArrowArray, rows: Ints) -> int | None:
    """The id that all rows begin with."""
    raw = Raw.of(data)
    if int((raw.bounds[1:] - raw.bounds[:-1])[rows].min()) < ID_BYTES:
        return None
    octets = np.frombuffer(raw.padded, np.uint8)
    heads = octets[raw.bounds[:-1][rows][:, None] + np.arange(ID_BYTES)]
    if heads[0][0] != 0 or (heads != heads[0]).any():
        return None
    return int.from_bytes(heads[0][1:].tobytes())


def _one_by_one(
    data: ArrowArray, rows: Ints, named: Mapping[int, Sequence[Header]], header: str
) -> tuple[list[Frame], list[tuple[int, FormatMismatch]]]:
    known: dict[bytes, tuple[SchemaKey, int] | FormatMismatch] = {}
    groups: dict[tuple[SchemaKey, int], list[int]] = {}
    mismatches: list[tuple[int, FormatMismatch]] = []

    def frame(row: int) -> tuple[SchemaKey, int] | FormatMismatch:
        raw = data[row].as_py()
        if row in named:
            return _frame(lambda: read_frame(raw, named[row], header))
        head = head_of(raw)
        if head not in known:
            known[head] = _frame(lambda: read_head(head))
        return known[head]

    for row in rows.tolist():
        found = frame(row)
        if isinstance(found, FormatMismatch):
            mismatches.append((row, found))
        else:
            groups.setdefault(found, []).append(row)
    return [Frame(key, begin, np.array(of_key, np.int64)) for (key, begin), of_key in groups.items()], mismatches


def _frame(read: Callable[[], tuple[SchemaKey, int]]) -> tuple[SchemaKey, int] | FormatMismatch:
    try:
        found: tuple[SchemaKey, int] = read()
    except FormatMismatch as mismatch:
        return mismatch
    return found
