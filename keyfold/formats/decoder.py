"""Records' keys and values as Python values.

    decoder = Decoder(value_format="avro", schemas=SchemaArchive(store, topics_dir))
    for record in log.read(partition=0):
        print(record.offset, decoder.value(record))

What is not of its format is a `FormatMismatch`.
"""

from __future__ import annotations

from collections.abc import Sequence

from keyfold.formats.avro_default import check_defaults
from keyfold.formats.avro_schema import NotAvro, Type, parse_avro
from keyfold.formats.format import Format, RecordPart
from keyfold.formats.handlers import HANDLERS
from keyfold.formats.schema_archive import SchemaArchive
from keyfold.log.record import Header, Record


class Decoder:
    """Keys and values of one topic. Nulls stay null. Safe to use from several threads."""

    def __init__(
        self,
        *,
        key_format: Format | str = Format.BYTES,
        value_format: Format | str = Format.BYTES,
        schemas: SchemaArchive | None = None,
        reader_schema: str | bytes | None = None,
    ) -> None:
        """`schemas` is needed for Avro. Avro *values* are resolved to `reader_schema`, the text of an Avro schema.

        Without it each value has the type of its own writer's schema. Raise `ValueError` for an unknown format and for
        an invalid reader schema.
        """
        reader = None if reader_schema is None else reader_type(reader_schema)
        self._key = HANDLERS[Format(key_format)].values(RecordPart.KEY, schemas, None)
        self._value = HANDLERS[Format(value_format)].values(RecordPart.VALUE, schemas, reader)

    def key(self, record: Record) -> object:
        """A record's key. Raises `FormatMismatch`, which does not know where the record is."""
        return None if record.key is None else self._key.value(record.key, record.headers)

    def value(self, record: Record) -> object:
        """A record's value. Raises `FormatMismatch`, which does not know where the record is."""
        return None if record.value is None else self._value.value(record.value, record.headers)

    def decode(self, part: RecordPart, data: bytes | None, headers: Sequence[Header] = ()) -> object:
        """As `key` and `value`, for bytes that are in no record."""
        values = self._key if part is RecordPart.KEY else self._value
        return None if data is None else values.value(data, headers)


def reader_type(text: str | bytes) -> Type:
    """A reader's schema, with its defaults checked. Raises `ValueError`."""
    try:
        schema = parse_avro(text)
        check_defaults(schema)
    except NotAvro as error:
        raise ValueError(f"is not an Avro schema: {error}") from error
    return schema
