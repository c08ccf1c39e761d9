"""The table of formats: what a key or a value is taken for.

A new format is a member of `Format`, a row here, a row in `keyfold.formats.handlers`, and a check of the sink
(`keyfold_sink.validate.convert`). The options of commands, the arguments of Spark, the sink's converters and their
documentation take their names from this table; tests compare them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal


class Format(StrEnum):
    """The format of a topic's keys or values. Null keys and values are null in every one."""

    BYTES = "bytes"
    STRING = "string"
    JSON = "json"
    AVRO = "avro"


@dataclass(frozen=True, slots=True)
class FormatInfo:
    """One row. `converter_class` is Connect's class, `accepts` a phrase for tables: what passes the sink's check."""

    format: Format
    converter_class: str
    accepts: str
    has_reader_schema: bool = False


FORMATS: Final[Mapping[Format, FormatInfo]] = MappingProxyType(
    {
        info.format: info
        for info in (
            FormatInfo(Format.BYTES, "org.apache.kafka.connect.converters.ByteArrayConverter", "anything"),
            FormatInfo(Format.STRING, "org.apache.kafka.connect.storage.StringConverter", "UTF-8"),
            FormatInfo(
                Format.JSON,
                "org.apache.kafka.connect.json.JsonConverter",
                "a JSON document; with `schemas.enable=true` in Connect's envelope",
                has_reader_schema=True,
            ),
            FormatInfo(
                Format.AVRO,
                "io.confluent.connect.avro.AvroConverter",
                "Avro with a schema id of a Schema Registry",
                has_reader_schema=True,
            ),
        )
    }
)

FormatName = Literal["bytes", "string", "json", "avro"]
"""The names for type checkers, which cannot read the table."""

FORMAT_NAMES: Final = tuple(each.value for each in FORMATS)
FORMATS_WITH_SCHEMA: Final = tuple(info.format.value for info in FORMATS.values() if info.has_reader_schema)


class RecordPart(StrEnum):
    """Which part of a record."""

    KEY = "key"
    VALUE = "value"

    @property
    def schema_header(self) -> str:
        """The header in which newer serializers may write the schema's id."""
        return f"__{self.value}_schema_id"
