"""What each format makes of keys and values: Python values, a column, and a column's type from the data alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol

from keyfold.errors import ConfigError
from keyfold.formats.avro_schema import NotAvro, Primitive, Type, avro_type
from keyfold.formats.columns import FEW, AvroColumn, BytesColumn, Column, JsonColumn, StringColumn
from keyfold.formats.errors import FormatMismatch, SchemaKey
from keyfold.formats.format import Format, RecordPart
from keyfold.formats.framed_columns import find_frames, named_headers
from keyfold.formats.json_type import Shape
from keyfold.formats.schema_archive import SchemaArchive
from keyfold.formats.values import AvroValues, BytesValues, JsonValues, StringValues, Values
from keyfold.runtime.arrow_types import ArrowArray, values_of


class TypeSurvey(Protocol):
    """Finds the type of a column in the data of one partition, one array after another."""

    def add(self, data: ArrowArray, headers: ArrowArray | None) -> None:
        """Look at binary `data`. Values that do not fit the format are ignored; decoding reports them."""

    def merge(self, other: Any) -> None:
        """Add what another survey of the same format has found."""

    def type(self, schemas: SchemaArchive, part: RecordPart) -> Type:
        """Return the type for all data. Raise `ConfigError` if a reader's schema is needed."""

    def writer_types(self, schemas: SchemaArchive) -> Mapping[SchemaKey | None, Type]:
        """Return the type that each writer schema gave its rows; JSON has one type for all rows, under None.

        What was always null is `null`. Schemas that cannot be read are left out; decoding reports their rows.
        """


class AvroSurvey:
    """The writer schemas of keys or values."""

    def __init__(self, part: RecordPart) -> None:
        self._header = part.schema_header
        self.keys: set[SchemaKey] = set()

    def add(self, data: ArrowArray, headers: ArrowArray | None) -> None:
        """See `TypeSurvey.add`."""
        if len(data):
            frames, _ = find_frames(data, named_headers(headers, self._header), self._header)
            self.keys |= {frame.key for frame in frames}

    def merge(self, other: AvroSurvey) -> None:
        """See `TypeSurvey.merge`."""
        self.keys |= other.keys

    def type(self, schemas: SchemaArchive, part: RecordPart) -> Type:
        """See `TypeSurvey.type`."""
        keys = self.keys
        if not keys:
            return Primitive("bytes")
        if len(keys) > 1 and any(isinstance(key, str) for key in keys):
            names = ", ".join(sorted(map(str, keys)))
            what = f"{part.value}s were written with several schemas, and GUIDs do not show which is the newest"
            raise schema_needed(part, f"{what}: {names}")
        key = max(keys) if len(keys) > 1 else next(iter(keys))
        try:
            return avro_type(schemas.schema(key))
        except (NotAvro, FormatMismatch) as error:
            message = f"the newest schema of the {part.value}s, {key}, cannot be used: {error}"
            raise schema_needed(part, message) from error

    def writer_types(self, schemas: SchemaArchive) -> Mapping[SchemaKey | None, Type]:
        """See `TypeSurvey.writer_types`."""
        found: dict[SchemaKey | None, Type] = {}
        for key in sorted(self.keys, key=str):
            with suppress(NotAvro, FormatMismatch):
                found[key] = avro_type(schemas.schema(key))
        return found


class JsonSurvey:
    """The shape of keys or values."""

    def __init__(self, part: RecordPart) -> None:  # noqa: ARG002 - every survey is made for a part
        self._shape = Shape()
        self._values = JsonValues()

    def add(self, data: ArrowArray, headers: ArrowArray | None) -> None:  # noqa: ARG002 - Avro looks at headers
        """See `TypeSurvey.add`."""
        for first in range(0, len(data), FEW):
            raws = values_of(data.slice(first, FEW))
            documents = self._values.documents(raws)
            self._shape.add(self._opened(raws) if documents is None else documents)

    def _opened(self, raws: Sequence[bytes | None]) -> list[object]:
        """Take the types of envelopes, and return the documents without one."""
        found = []
        for raw in filter(None, raws):
            with suppress(FormatMismatch):  # decoding reports it
                envelope, document = self._values.opened(raw)
                if envelope is None or envelope.type is None:
                    found.append(document)
                else:
                    self._shape.add_type(envelope.type)
        return found

    def merge(self, other: JsonSurvey) -> None:
        """See `TypeSurvey.merge`."""
        self._shape.merge(other._shape)

    def type(self, schemas: SchemaArchive, part: RecordPart) -> Type:  # noqa: ARG002 - the signature of the protocol
        """See `TypeSurvey.type`."""
        return self._shape.type(part.value)

    def writer_types(self, schemas: SchemaArchive) -> Mapping[SchemaKey | None, Type]:  # noqa: ARG002 - the protocol's
        """See `TypeSurvey.writer_types`."""
        return {None: self._shape.type(unseen=Primitive("null"))}


def schema_needed(part: RecordPart, message: str) -> ConfigError:
    """Return the error that asks for a reader's schema."""
    option = "--reader-schema" if part is RecordPart.VALUE else "--key-reader-schema"
    return ConfigError(option, message, hint=f"set a reader schema with {option} FILE")


@dataclass(frozen=True, slots=True)
class FormatHandler:
    """One row. The archive is only used by formats whose bytes name a writer schema.

    `values` gets the archive, if there is one, and the reader's type, if there is one. `column` gets a reader's type if
    the format has reader schemas. `survey` is None if the format always has the same type.
    """

    values: Callable[[RecordPart, SchemaArchive | None, Type | None], Values]
    column: Callable[[RecordPart, SchemaArchive, Type | None], Column]
    survey: Callable[[RecordPart], TypeSurvey] | None = None


def _avro_values(part: RecordPart, schemas: SchemaArchive | None, reader: Type | None) -> Values:
    if schemas is None:
        raise ValueError("pass `schemas`: the format avro needs the kept schemas")
    return AvroValues(part, schemas, reader)


def _required(reader: Type | None) -> Type:
    assert reader is not None, "this format needs a schema"
    return reader


HANDLERS: Final[Mapping[Format, FormatHandler]] = MappingProxyType(
    {
        Format.BYTES: FormatHandler(lambda *_: BytesValues(), lambda *_: BytesColumn()),
        Format.STRING: FormatHandler(lambda *_: StringValues(), lambda *_: StringColumn()),
        Format.JSON: FormatHandler(
            lambda *_: JsonValues(), lambda _part, _schemas, reader: JsonColumn(_required(reader)), JsonSurvey
        ),
        Format.AVRO: FormatHandler(
            _avro_values, lambda part, schemas, reader: AvroColumn(part, schemas, _required(reader)), AvroSurvey
        ),
    }
)
