"""Many keys or values as one Arrow array.

A row that does not fit is null in the array and named in `mismatches`; the reader of the log decides what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from keyfold.formats.arrow_types import arrow_type
from keyfold.formats.avro_read import Into
from keyfold.formats.avro_schema import Type, has_decimals
from keyfold.formats.avro_vector import Misplaced, read_arrow
from keyfold.formats.column_width import MEMORY_BYTES, ColumnMemory, TooWide, measure_of, null_bytes
from keyfold.formats.errors import FormatMismatch, Unsuited
from keyfold.formats.format import RecordPart
from keyfold.formats.framed_columns import Frame, Raw, find_frames, named_headers
from keyfold.formats.json_values import compile_json
from keyfold.formats.json_vector import compile_columns
from keyfold.formats.schema_archive import SchemaArchive
from keyfold.formats.values import JsonValues, WriterReaders, read_whole, text_of
from keyfold.runtime.arrow_types import ArrowArray, column_of, nulls, values_of

BadRows = list[tuple[int, FormatMismatch]]


@dataclass(frozen=True, slots=True)
class Decoded:
    """An array of the column's type, and the rows of it that are null because they do not fit, ascending."""

    array: ArrowArray
    mismatches: BadRows


class Column(Protocol):
    """Keys or values of one topic, of one Arrow `type`. Safe to use from several threads."""

    @property
    def type(self) -> pa.DataType:
        """The type of all arrays."""

    def decode(self, data: ArrowArray, headers: ArrowArray | None) -> Decoded:
        """Decode binary `data`, with the headers of the same records if there are any, into values.

        Raises `TooWide` where that many rows would take too much memory (see `keyfold.formats.column_width.in_parts`).
        """


class BytesColumn:
    """Bytes as they are."""

    type = pa.binary()

    def decode(self, data: ArrowArray, headers: ArrowArray | None) -> Decoded:  # noqa: ARG002 - Avro looks at headers
        """See `Column`."""
        return Decoded(data, [])


class StringColumn:
    """Text in UTF-8."""

    type = pa.string()

    def decode(self, data: ArrowArray, headers: ArrowArray | None) -> Decoded:  # noqa: ARG002 - the signature of the protocol
        """See `Column`."""
        try:
            return Decoded(data.cast(pa.string()), [])
        except pa.ArrowInvalid:
            return _within_memory(data, self.type, lambda memory: _one_by_one(data, text_of, self.type, memory))


class JsonColumn:
    """JSON, by a schema."""

    def __init__(self, schema: Type) -> None:
        """Raises `NoArrowType`."""
        self.type = arrow_type(schema)
        self._values = JsonValues(exact=has_decimals(schema))
        self._fit = compile_json(schema)
        self._build = compile_columns(schema)

    def decode(self, data: ArrowArray, headers: ArrowArray | None) -> Decoded:  # noqa: ARG002 - the signature of the protocol
        """See `Column`."""
        return _within_memory(
            data, self.type, lambda memory: _one_by_one(data, self._value, self.type, memory, self._at_once)
        )

    def _at_once(self, data: list[bytes | None], memory: ColumnMemory) -> ArrowArray | None:
        """The values as an array, if none of them is wrong and they are in no envelope. Raises `TooWide`."""
        documents = self._values.documents(data)
        if documents is None:
            return None
        left_bytes = memory.left_bytes
        try:
            return self._build(documents, memory)
        except (Unsuited, FormatMismatch, RecursionError, *_REFUSED):
            memory.left_bytes = left_bytes
            return None

    def _value(self, data: bytes) -> object:
        value = self._values.value(data, ())
        try:
            return None if value is None else self._fit(value)
        except RecursionError as error:
            raise FormatMismatch("is nested too deeply") from error


class AvroColumn:
    """Avro in Confluent's framing, for a reader's schema."""

    def __init__(self, part: RecordPart, schemas: SchemaArchive, reader: Type) -> None:
        """Raises `NoArrowType`."""
        self.type = arrow_type(reader)
        self._header = part.schema_header
        self._readers = WriterReaders(schemas, reader, Into.RAW)

    def decode(self, data: ArrowArray, headers: ArrowArray | None) -> Decoded:
        """See `Column`."""
        if not len(data):
            return Decoded(pa.array([], self.type), [])
        return _within_memory(data, self.type, lambda memory: self._decoded(data, headers, memory))

    def _decoded(self, data: ArrowArray, headers: ArrowArray | None, memory: ColumnMemory) -> Decoded:
        frames, mismatches = find_frames(data, named_headers(headers, self._header), self._header)
        pieces: list[ArrowArray] = []
        order = np.full(len(data), -1, np.int64)
        for frame in frames:
            try:
                found = self._group(data, frame, memory)
            except FormatMismatch as mismatch:  # the schema is to blame, for all of them
                mismatches += [(row, mismatch) for row in frame.rows.tolist()]
                continue
            mismatches += [(int(frame.rows[row]), mismatch) for row, mismatch in found.mismatches]
            order[frame.rows] = np.arange(len(frame.rows)) + sum(map(len, pieces))
            pieces.append(found.array)
        mismatches.sort(key=lambda found: found[0])
        if len(pieces) == 1 and len(pieces[0]) == len(data):
            return Decoded(pieces[0], mismatches)
        joined = pa.concat_arrays(pieces) if pieces else pa.array([], self.type)
        return Decoded(joined.take(column_of(order, mask=order < 0)), mismatches)

    def _group(self, data: ArrowArray, frame: Frame, memory: ColumnMemory) -> Decoded:
        """The values of one writer schema. Raises `FormatMismatch` where the schema cannot be had, and `TooWide`."""
        action = self._readers.action(frame.key)
        bytes_of = Raw.of(data)
        starts, ends = bytes_of.bounds[:-1][frame.rows] + frame.begin, bytes_of.bounds[1:][frame.rows]
        try:
            return Decoded(read_arrow(action, self.type, bytes_of.padded, starts, ends, memory), [])
        except (Misplaced, Unsuited, RecursionError, pa.ArrowException):
            pass  # one by one it is found which of them are wrong
        read = self._readers.of(frame.key)
        values = data.take(column_of(frame.rows))
        return _one_by_one(values, lambda raw: read_whole(read, raw, frame.begin, frame.key), self.type, memory)


# A small number: most objects made of them die young, while Python's gc would visit all of a batch repeatedly.
FEW: Final = 512


def _within_memory(data: ArrowArray, kind: pa.DataType, decode: Callable[[ColumnMemory], Decoded]) -> Decoded:
    """What `decode` finds. Raises `TooWide`; a row that is too wide by itself is null."""
    memory = ColumnMemory(data.nbytes)
    try:
        memory.reserve(len(data) * null_bytes(kind))
        return decode(memory)
    except TooWide:
        if len(data) > 1:
            raise
        mismatch = FormatMismatch(f"needs more than {MEMORY_BYTES} bytes as columns, for {data.nbytes} bytes of data")
        return Decoded(nulls(1, kind), [(0, mismatch)])


def _one_by_one(
    data: ArrowArray,
    decode: Callable[[bytes], object],
    kind: pa.DataType,
    memory: ColumnMemory,
    at_once: Callable[[list[bytes | None], ColumnMemory], ArrowArray | None] = lambda *_: None,
) -> Decoded:
    """Decode each value, where `at_once` does not make an array of some of them."""
    pieces: list[ArrowArray] = []
    mismatches: BadRows = []
    measure = measure_of(kind)
    for first in range(0, len(data), FEW):
        values = values_of(data.slice(first, FEW))
        whole = at_once(values, memory)
        if whole is not None:
            pieces.append(whole)
            continue
        bad: BadRows = []
        for row, raw in enumerate(values):
            if raw is not None:
                try:
                    values[row] = decode(raw)
                except FormatMismatch as mismatch:
                    values[row] = None
                    bad.append((row, mismatch))
                memory.reserve(measure(values[row]))
        found = _built(values, kind, bad)
        pieces.append(found.array)
        mismatches += [(first + row, mismatch) for row, mismatch in found.mismatches]
    return Decoded(pa.concat_arrays(pieces) if pieces else pa.array([], kind), mismatches)


_REFUSED = (pa.ArrowException, OverflowError, ValueError, TypeError)


def _built(values: list[object], kind: pa.DataType, mismatches: BadRows) -> Decoded:
    """An array of raw values. What Arrow refuses (a decimal with more digits than its type) is a mismatch too."""
    try:
        return Decoded(pa.array(values, kind), mismatches)
    except _REFUSED:
        pass
    for row, value in enumerate(values):
        try:
            pa.array([value], kind)
        except _REFUSED as error:
            mismatches.append((row, FormatMismatch(f"does not fit into the columns: {error}")))
            values[row] = None
    mismatches.sort(key=lambda found: found[0])
    return Decoded(pa.array(values, kind), mismatches)
