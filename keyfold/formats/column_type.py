"""Which column a format makes, and what must be known of all the data before the first array is made.

A reader's schema says the type, for Avro and JSON alike. Without one all the data is looked at first:

    avro    the ids of the writer schemas that come by. One: it is the reader's schema too. Several: the one with the
            highest id is, the newest that the registry gave out; GUIDs have no order, and need a reader's schema.
    json    `keyfold.formats.json_type` says what the values have in common.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import pyarrow as pa

from keyfold.errors import ConfigError
from keyfold.formats.arrow_types import NoArrowType
from keyfold.formats.avro_schema import NotAvro, Primitive, Type, avro_type
from keyfold.formats.columns import AvroColumn, BytesColumn, Column, JsonColumn, StringColumn
from keyfold.formats.format import Format, Part
from keyfold.formats.format_mismatch import FormatMismatch, SchemaKey
from keyfold.formats.framed_columns import find_frames, named_headers
from keyfold.formats.json_type import Shape
from keyfold.formats.schema_archive import SchemaArchive
from keyfold.formats.values import JsonValues


class Survey(Protocol):
    """Looks at the data of one partition, one array after another."""

    def look(self, data: pa.Array, headers: pa.Array | None) -> None:
        """Look at binary `data`. What does not fit its format is passed over: it is said when it is decoded."""


class AvroSurvey:
    """The writer schemas of keys or values."""

    def __init__(self, part: Part) -> None:
        self._header = part.schema_header
        self.keys: set[SchemaKey] = set()

    def look(self, data: pa.Array, headers: pa.Array | None) -> None:
        """See `Survey`."""
        if len(data):
            frames, _ = find_frames(data, named_headers(headers, self._header), self._header)
            self.keys |= {frame.key for frame in frames}


class JsonSurvey:
    """The shape of keys or values."""

    def __init__(self) -> None:
        self.shape = Shape()
        self._values = JsonValues()

    def look(self, data: pa.Array, headers: pa.Array | None) -> None:  # noqa: ARG002 - Avro looks at headers
        """See `Survey`."""
        for raw in data.to_pylist():
            if raw is not None:
                try:
                    envelope, document = self._values.opened(raw)
                except FormatMismatch:
                    continue  # it is said when it is decoded
                if envelope is None or envelope.type is None:
                    self.shape.add(document)
                else:
                    self.shape.add_type(envelope.type)


def survey_for(part: Part, kind: Format, reader: Type | None) -> Survey | None:
    """What must be looked at before `column` can be made; None where nothing must."""
    if reader is not None:
        return None
    if kind is Format.AVRO:
        return AvroSurvey(part)
    return JsonSurvey() if kind is Format.JSON else None


def surveyed_type(surveys: Iterable[Survey], schemas: SchemaArchive, part: Part) -> Type:
    """The type for all the data that was looked at. Raises `ConfigError` where a reader's schema is needed."""
    keys: set[SchemaKey] = set()
    shape: Shape | None = None
    for survey in surveys:
        if isinstance(survey, AvroSurvey):
            keys |= survey.keys
        elif isinstance(survey, JsonSurvey):
            shape = shape or Shape()
            shape.merge(survey.shape)
    return _newest(keys, schemas, part) if shape is None else shape.type(part.value)


def _newest(keys: set[SchemaKey], schemas: SchemaArchive, part: Part) -> Type:
    if not keys:
        return Primitive("bytes")
    if len(keys) > 1 and any(isinstance(key, str) for key in keys):
        names = ", ".join(sorted(map(str, keys)))
        message = f"{part.value}s were written with several schemas, and GUIDs do not show which is the newest: {names}"
        raise needed(part, message)
    key = max(keys) if len(keys) > 1 else next(iter(keys))
    try:
        return avro_type(schemas.schema(key))
    except (NotAvro, FormatMismatch) as error:
        raise needed(part, f"the newest schema of the {part.value}s, {key}, cannot be used: {error}") from error


def needed(part: Part, message: str) -> ConfigError:
    """The error that asks for a reader's schema."""
    option = "--reader-schema" if part is Part.VALUE else "--key-reader-schema"
    return ConfigError(option, message, hint=f"set a reader schema with {option} FILE")


def column_for(part: Part, kind: Format, schemas: SchemaArchive, reader: Type | None) -> Column:
    """The column of a format; `reader` is the type of Avro's and JSON's. Raises `ConfigError`."""
    if kind is Format.BYTES:
        return BytesColumn()
    if kind is Format.STRING:
        return StringColumn()
    assert reader is not None, "this format needs a schema"
    try:
        return AvroColumn(part, schemas, reader) if kind is Format.AVRO else JsonColumn(reader)
    except NoArrowType as error:
        raise needed(part, str(error)) from error
