"""Many keys or values as one Arrow array.

A row that does not fit is null in the array and named in `misfits`: who reads the log decides what becomes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from keyfold.log.record import Header
from keyfold.typed.arrow_types import arrow_type
from keyfold.typed.avro_read import Into, Read
from keyfold.typed.avro_schema import Logical, Primitive, Type, nodes
from keyfold.typed.formats import Part
from keyfold.typed.framing import head_of, read_frame, read_head
from keyfold.typed.json_fit import compile_json
from keyfold.typed.kept import KeptSchemas
from keyfold.typed.misfit import Misfit, SchemaKey
from keyfold.typed.values import JsonValues, WriterReaders, read_whole, text_of

BadRows = list[tuple[int, Misfit]]


@dataclass(frozen=True, slots=True)
class Decoded:
    """An array of the column's type, and the rows of it that are null because they do not fit, ascending."""

    array: pa.Array
    misfits: BadRows


class Column(Protocol):
    """Keys or values of one topic, of one Arrow `type`. Safe to use from several threads."""

    @property
    def type(self) -> pa.DataType:
        """The type of all arrays."""

    def decode(self, data: pa.Array, headers: pa.Array | None) -> Decoded:
        """Turn binary `data`, and the headers of the same records where there are any, into typed values."""


class BytesColumn:
    """Bytes as they are."""

    type = pa.binary()

    def decode(self, data: pa.Array, headers: pa.Array | None) -> Decoded:  # noqa: ARG002 - Avro looks at headers
        """See `Column`."""
        return Decoded(data, [])


class StringColumn:
    """Text in UTF-8."""

    type = pa.string()

    def decode(self, data: pa.Array, headers: pa.Array | None) -> Decoded:  # noqa: ARG002
        """See `Column`."""
        try:
            return Decoded(data.cast(pa.string()), [])
        except pa.ArrowInvalid:
            return _one_by_one(data.to_pylist(), text_of, self.type)


class JsonColumn:
    """JSON, by a schema."""

    def __init__(self, schema: Type) -> None:
        """Raises `NoArrowType`."""
        self.type = arrow_type(schema)
        self._values = JsonValues(exact=_has_decimals(schema))
        self._fit = compile_json(schema)

    def decode(self, data: pa.Array, headers: pa.Array | None) -> Decoded:  # noqa: ARG002
        """See `Column`."""
        return _one_by_one(data.to_pylist(), self._value, self.type)

    def _value(self, data: bytes) -> Any:
        value = self._values.value(data, ())
        return None if value is None else self._fit(value)


def _has_decimals(schema: Type) -> bool:
    return any(
        isinstance(node, Primitive) and isinstance(node.logical, Logical) and node.logical.name == "decimal"
        for node in nodes(schema)
    )


class AvroColumn:
    """Avro in Confluent's framing, for a reader's schema."""

    def __init__(self, part: Part, schemas: KeptSchemas, reader: Type) -> None:
        """Raises `NoArrowType`."""
        self.type = arrow_type(reader)
        self._header = part.schema_header
        self._readers = WriterReaders(schemas, reader, Into.RAW)

    def decode(self, data: pa.Array, headers: pa.Array | None) -> Decoded:
        """See `Column`."""
        named = named_headers(headers, self._header)
        misfits: BadRows = []
        values: list[Any] = []
        known: dict[bytes, tuple[Read, SchemaKey, int]] = {}
        for row, raw in enumerate(data.to_pylist()):
            value = None
            if raw is not None:
                try:
                    read, key, begin = self._read(raw, named.get(row, ()), known)
                    value = read_whole(read, raw, begin, key)
                except Misfit as misfit:
                    misfits.append((row, misfit))
            values.append(value)
        return _built(values, self.type, misfits)

    def _read(
        self, raw: bytes, headers: Sequence[Header], known: dict[bytes, tuple[Read, SchemaKey, int]]
    ) -> tuple[Read, SchemaKey, int]:
        if headers:
            key, begin = read_frame(raw, headers, self._header)
            return self._readers.of(key), key, begin
        head = head_of(raw)
        if head not in known:
            key, begin = read_head(head)
            known[head] = self._readers.of(key), key, begin
        return known[head]


def named_headers(headers: pa.Array | None, name: str) -> dict[int, list[Header]]:
    """The headers of one name, by row; rows without one are left out."""
    if headers is None or not len(headers.flatten()):
        return {}
    found = {}
    for row, pairs in enumerate(headers.to_pylist()):
        mine = [(each["name"], each["value"]) for each in pairs or () if each["name"] == name]
        if mine:
            found[row] = mine
    return found


def _one_by_one(data: list[bytes | None], decode: Callable[[bytes], Any], kind: pa.DataType) -> Decoded:
    misfits: BadRows = []
    values = []
    for row, raw in enumerate(data):
        value = None
        if raw is not None:
            try:
                value = decode(raw)
            except Misfit as misfit:
                misfits.append((row, misfit))
        values.append(value)
    return _built(values, kind, misfits)


_REFUSED = (pa.ArrowException, OverflowError, ValueError, TypeError)


def _built(values: list[Any], kind: pa.DataType, misfits: BadRows) -> Decoded:
    """An array of raw values. What Arrow refuses (a decimal with more digits than its type) is a misfit too."""
    try:
        return Decoded(pa.array(values, kind), misfits)
    except _REFUSED:
        pass
    for row, value in enumerate(values):
        try:
            pa.array([value], kind)
        except _REFUSED as error:
            misfits.append((row, Misfit(f"has no place in the columns: {error}")))
            values[row] = None
    misfits.sort(key=lambda found: found[0])
    return Decoded(pa.array(values, kind), misfits)
