"""Headers of many records at once, and spans of raw bytes as Arrow arrays.

Headers are read in rounds: the first header of every record that has one, the second of every record that has two, and
so on. When few records are left (most have the same few headers, one may have thousands), the rest is read one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

import numpy as np
import pyarrow as pa

from keyfold.log.arrow_numbers import Flags, Ints, Misplaced, Octets, read_numbers, refuse
from keyfold.log.avro import read_varint
from keyfold.runtime.arrow_types import ArrowArray, buffer_of, lists_of, values_of

HEADER: Final = pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())])
HEADERS: Final = pa.list_(HEADER)

# For fewer records, a round of numpy costs more than reading the headers one by one.
FEW_RECORDS: Final = 48


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of raw bytes, ascending and disjoint. `is_null` None means that none is null; a null has size 0."""

    starts: Ints
    sizes: Ints
    is_null: Flags | None = None


@dataclass(frozen=True, slots=True)
class HeaderSpans:
    """The headers of the records `rows`: their number per record, names and values in order, and their ends."""

    rows: Ints
    counts: Ints
    names: Spans
    values: Spans
    ends: Ints


def are_text(raw: bytes, spans: Spans) -> bool:
    """Whether all bytes at `spans` are UTF-8. Nothing is copied: what lies between spans is null, and not looked at."""
    n = len(spans.starts)
    valid = buffer_of(np.full(n // 4 + 1, 0b01010101, np.uint8))
    pieces = pa.Array.from_buffers(pa.binary(), 2 * n - 1, [valid, _bounds(spans), pa.py_buffer(raw)])
    try:
        pieces.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _bounds(spans: Spans) -> pa.Buffer:
    """Bounds of the spans and of what lies between them."""
    bounds = np.empty(2 * len(spans.starts), np.int32)
    bounds[0::2] = spans.starts
    bounds[1::2] = spans.starts + spans.sizes
    return buffer_of(bounds)


def cut(raw: bytes, spans: Spans) -> ArrowArray:
    """Return the bytes at `spans` as an Arrow binary array, with one copy made by Arrow."""
    n = len(spans.starts)
    wanted = np.zeros(2 * n - 1, np.bool_)
    wanted[0::2] = True
    pieces = pa.Array.from_buffers(pa.binary(), 2 * n - 1, [None, _bounds(spans), pa.py_buffer(raw)])
    found = pieces.filter(pa.array(wanted))
    if spans.is_null is None:
        return found
    _, offsets, data = found.buffers()
    valid = buffer_of(np.packbits(~spans.is_null, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), n, [valid, offsets, data], int(spans.is_null.sum()), found.offset)


def header_list(raw: bytes, row_count: int, spans: HeaderSpans | None) -> ArrowArray:
    """Return a list of headers for each row, empty for none. Raises `Misplaced` if a name is not UTF-8."""
    if spans is None:
        return lists_of(np.zeros(row_count + 1, np.int32), pa.array([], HEADER))
    per_row = np.zeros(row_count + 1, np.int32)
    per_row[spans.rows + 1] = spans.counts
    names = cut(raw, spans.names)
    try:
        texts = names.cast(pa.string())
    except pa.ArrowInvalid as e:
        raise Misplaced(_first_without_text(spans, names), "has a header name that is not UTF-8") from e
    structs = pa.StructArray.from_arrays([texts, cut(raw, spans.values)], fields=list(HEADER))
    return lists_of(np.cumsum(per_row, dtype=np.int32), structs)


def _first_without_text(spans: HeaderSpans, names: ArrowArray) -> int:
    for number, name in enumerate(values_of(names)):
        try:
            name.decode()
        except UnicodeDecodeError:
            return int(spans.rows[np.searchsorted(np.cumsum(spans.counts), number, side="right")])
    return int(spans.rows[0])


def read_headers(
    raw: bytes, octets: Octets, starts: Ints, limits: Ints, rows: Ints, few_records: int = FEW_RECORDS
) -> HeaderSpans:
    """Read the headers of the records `rows`, of which each has at least one, from `starts` to at most `limits`.

    The headers of fewer than `few_records` records are read one by one. Raises `Misplaced` for malformed headers.
    """
    try:
        return _Rounds(raw, octets, rows, starts[rows], limits[rows]).walk(few_records)
    except Misplaced as fault:
        raise Misplaced(int(rows[fault.row]), str(fault)) from fault


class _Rounds:
    """One read of headers. Row numbers count the records that are read."""

    def __init__(self, raw: bytes, octets: Octets, rows: Ints, starts: Ints, limits: Ints) -> None:
        self._raw = raw
        self._octets = octets
        self._rows = rows
        self._limits = limits
        self._counts, self._at = read_numbers(octets, starts)
        refuse((self._counts <= 0) | (self._counts > limits - self._at), "has an impossible number of headers")
        self._found: list[tuple[Ints, Ints, Ints, Ints, Flags]] = []

    def walk(self, few_records: int) -> HeaderSpans:
        active = np.arange(len(self._counts))
        number = 0
        while len(active) >= few_records:
            self._round(active)
            number += 1
            active = active[self._counts[active] > number]
        for row in active.tolist():
            self._one_by_one(row, int(self._counts[row]) - number)
        refuse(self._at >= self._limits, "has headers beyond its end")
        refuse(self._octets[self._at] != 0, "has headers without an end marker")
        name_at, name_size, value_at, value_size, is_null = self._columns()
        order = np.argsort(name_at, kind="stable")
        names = Spans(name_at[order], name_size[order])
        values = Spans(value_at[order], value_size[order], is_null[order])
        return HeaderSpans(self._rows, self._counts, names, values, self._at + 1)

    def _columns(self) -> tuple[Ints, Ints, Ints, Ints, Flags]:
        columns = zip(*self._found, strict=True)
        return cast("tuple[Ints, Ints, Ints, Ints, Flags]", tuple(np.concatenate(column) for column in columns))

    def _round(self, active: Ints) -> None:
        """Read the next header of each of `active`."""
        limits = self._limits[active]
        try:
            name_size, name_at = read_numbers(self._octets, self._at[active])
            refuse((name_size < 0) | (name_size >= limits - name_at), "has a header length beyond its end")
            at = name_at + name_size
            branch = self._octets[at]
            refuse((branch != 0) & (branch != 2), "has a header value that is neither null nor bytes")
            is_null = branch == 0
            refuse(at + 1 >= limits, "has a header beyond its end")
            value_size, behind = read_numbers(self._octets, at + 1)
            value_size = np.where(is_null, 0, value_size)
            value_at = np.where(is_null, at + 1, behind)
            refuse((value_size < 0) | (value_size >= limits - value_at), "has a header length beyond its end")
        except Misplaced as fault:
            raise Misplaced(int(active[fault.row]), str(fault)) from fault
        self._at[active] = value_at + value_size
        self._found.append((name_at, name_size, value_at, value_size, is_null))

    def _one_by_one(self, row: int, count: int) -> None:
        at, limit = int(self._at[row]), int(self._limits[row])
        found = np.empty((4, count), np.int64)
        is_null = np.zeros(count, np.bool_)
        for i in range(count):
            name_at, name_size = self._length(row, at, limit)
            at = name_at + name_size
            branch = self._raw[at]
            if branch not in {0, 2}:
                raise Misplaced(row, "has a header value that is neither null nor bytes")
            is_null[i] = branch == 0
            value_at, value_size = (at + 1, 0) if branch == 0 else self._length(row, at + 1, limit)
            at = value_at + value_size
            found[:, i] = name_at, name_size, value_at, value_size
        self._at[row] = at
        self._found.append((*found, is_null))

    def _length(self, row: int, at: int, limit: int) -> tuple[int, int]:
        """Return start and length of a byte string that at least one byte follows."""
        try:
            size, at = read_varint(self._raw, at)
        except ValueError as e:
            raise Misplaced(row, str(e)) from e
        if not 0 <= size < limit - at:
            raise Misplaced(row, "has a header length beyond its end")
        return at, size
