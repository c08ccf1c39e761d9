"""Typed columns that follow the records: each value is read by the schema that wrote it, and put into a table's type.

So a row does not depend on when it was synchronised: a field that its schema does not have is null, whatever the newest
schema says of it. With a reader's schema, all values are read by that one.

JSON names no schema. Its type is what the values have in common (`keyfold.formats.json_type`). A place with values of
several kinds holds them as JSON text from then on: the table remembers these places as `TextPaths`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from keyfold.formats.arrow_types import NoArrowType, arrow_type
from keyfold.formats.avro_schema import JSON_TEXT, Array, Map, Primitive, RecordType, Type, Union
from keyfold.formats.column_type import column_for, survey_for
from keyfold.formats.columns import BadRows, Column, Decoded
from keyfold.formats.errors import FormatMismatch, SchemaKey
from keyfold.formats.format import Format, RecordPart
from keyfold.formats.framed_columns import find_frames, named_headers
from keyfold.formats.handlers import TypeSurvey, schema_needed
from keyfold.formats.schema_archive import SchemaArchive
from keyfold.log.arrow_numbers import Ints
from keyfold.runtime.arrow_types import ArrowArray, column_of, nulls
from keyfold.table.conform import conform
from keyfold.table.types import NoIcebergType

TextPath = tuple[str, ...]
TextPaths = frozenset[TextPath]
"""Places whose values are JSON as text: the column's name, names of fields, `[]` for items and `{}` for values."""

_TEXT: Final = Primitive("string", JSON_TEXT)
_NOTHING: Final = Primitive("null")


@dataclass(frozen=True, slots=True)
class PartFormat:
    """How to read the keys or the values of a topic. `reader` is a reader's schema, if the user gave one."""

    part: RecordPart
    format: Format
    reader: Type | None = None

    def survey(self) -> TypeSurvey | None:
        """Return a survey that has to look at the rows first; None if their type is known."""
        return survey_for(self.part, self.format, self.reader)


@dataclass(frozen=True, slots=True)
class WrittenTypes:
    """The types of some rows, by writer schema (None: of all rows), and the places in them that are JSON text."""

    types: Mapping[SchemaKey | None, Type]
    texts: TextPaths = frozenset()

    def arrow(self, part: RecordPart) -> list[pa.DataType]:
        """Return the Arrow types. Raises `ConfigError` if one has none: a reader's schema must say what to take."""
        try:
            return [arrow_type(kind) for kind in self.types.values()]
        except NoArrowType as error:
            raise schema_needed(part, str(error)) from error


def written_types(found: PartFormat, survey: TypeSurvey | None, schemas: SchemaArchive, old: TextPaths) -> WrittenTypes:
    """Return the types of rows that were surveyed, with text at the places where the table has text already."""
    if survey is None:
        return WrittenTypes({None: found.reader or Primitive(_FIXED[found.format])})
    types = {key: _as_text(kind, (found.part.value,), old) for key, kind in survey.writer_types(schemas).items()}
    texts = frozenset(path for kind in types.values() for path in _text_paths(kind, (found.part.value,)))
    return WrittenTypes(types, texts)


_FIXED: Final = {Format.BYTES: "bytes", Format.STRING: "string"}


def require_same_texts(new: TextPaths, old: TextPaths, known: frozenset[TextPath]) -> None:
    """Raise `NoIcebergType` if a place that has a type in the table has values of several types now."""
    for path in sorted(new - old):
        if path in known:
            raise NoIcebergType(f"`{'.'.join(path)}` has one type in the table, and newer records have several")


def _as_text(kind: Type, at: TextPath, texts: TextPaths) -> Type:
    if at in texts:
        return _TEXT
    match kind:
        case Union():
            return Union(tuple(_as_text(branch, at, texts) for branch in kind.branches))
        case Array():
            return replace(kind, items=_as_text(kind.items, (*at, "[]"), texts))
        case Map():
            return replace(kind, values=_as_text(kind.values, (*at, "{}"), texts))
        case RecordType():
            fields = tuple(replace(each, type=_as_text(each.type, (*at, each.name), texts)) for each in kind.fields)
            return replace(kind, fields=fields)
    return kind


def _text_paths(kind: Type, at: TextPath) -> set[TextPath]:
    match kind:
        case Union():
            return {path for branch in kind.branches for path in _text_paths(branch, at)}
        case Array():
            return _text_paths(kind.items, (*at, "[]"))
        case Map():
            return _text_paths(kind.values, (*at, "{}"))
        case RecordType():
            return {path for each in kind.fields for path in _text_paths(each.type, (*at, each.name))}
    return {at} if kind == _TEXT else set()


class TableColumn:
    """A column of a table, for rows whose types are known (`WrittenTypes`). See `keyfold.formats.columns.Column`."""

    def __init__(self, found: PartFormat, written: WrittenTypes, schemas: SchemaArchive, kind: pa.DataType) -> None:
        self.type = kind
        self._by_schema = found.reader is None and found.format is Format.AVRO
        self._header = found.part.schema_header
        self._columns: dict[SchemaKey | None, Column] = {
            key: column_for(found.part, found.format, schemas, reader) for key, reader in written.types.items()
        }
        if None not in self._columns:  # for rows that name no schema, or none that can be read
            self._columns[None] = column_for(found.part, found.format, schemas, _NOTHING)

    def decode(self, data: ArrowArray, headers: ArrowArray | None) -> Decoded:
        """See `Column.decode`."""
        groups = self._groups(data, headers)
        if len(groups) == 1 and len(groups[0][1]) == len(data):
            return self._of(groups[0][0], data, headers)
        pieces: list[ArrowArray] = []
        mismatches: BadRows = []
        order = np.full(len(data), -1, np.int64)
        for key, rows in groups:
            taken = column_of(rows)
            found = self._of(key, data.take(taken), None if headers is None else headers.take(taken))
            mismatches += [(int(rows[row]), mismatch) for row, mismatch in found.mismatches]
            order[rows] = np.arange(len(rows)) + sum(map(len, pieces))
            pieces.append(found.array)
        mismatches.sort(key=lambda bad: bad[0])
        joined = pa.concat_arrays(pieces) if pieces else nulls(0, self.type)
        return Decoded(joined.take(column_of(order, mask=order < 0)), mismatches)

    def _groups(self, data: ArrowArray, headers: ArrowArray | None) -> Sequence[tuple[SchemaKey | None, Ints]]:
        """Return the rows of each writer schema. Rows without a value are in none, unless there is one schema only."""
        if not self._by_schema:
            return [(None, np.arange(len(data)))]
        frames, _ = find_frames(data, named_headers(headers, self._header), self._header)
        groups = [(frame.key if frame.key in self._columns else None, frame.rows) for frame in frames]
        rest = data.is_valid().to_numpy(zero_copy_only=False)
        for _, rows in groups:
            rest[rows] = False
        return [*groups, (None, np.flatnonzero(rest))] if rest.any() else groups

    def _of(self, key: SchemaKey | None, data: ArrowArray, headers: ArrowArray | None) -> Decoded:
        decoded = self._columns[key].decode(data, headers)
        try:
            return Decoded(conform(decoded.array, self.type), decoded.mismatches)
        except pa.ArrowInvalid:
            return self._one_by_one(decoded)

    def _one_by_one(self, decoded: Decoded) -> Decoded:
        """Find the rows with values that the table's type does not have, such as times beyond its range."""
        pieces: list[ArrowArray] = []
        mismatches = list(decoded.mismatches)
        for row in range(len(decoded.array)):
            try:
                pieces.append(conform(decoded.array.slice(row, 1), self.type))
            except pa.ArrowInvalid as error:
                pieces.append(nulls(1, self.type))
                mismatches.append((row, FormatMismatch(f"does not fit into the table: {error}")))
        mismatches.sort(key=lambda bad: bad[0])
        return Decoded(pa.concat_arrays(pieces), mismatches)
