"""Keys and values as what they stand for: text, JSON, Avro.

    string    UTF-8. Bytes that are none do not fit: Spark's own cast would keep them, or put U+FFFD for them
    json      a Spark type where one is given (`from_json`), else variant, which Spark has from version 4 on
    avro      see `keyfold.spark.typed_avro`

Null is null in every format, so a tombstone stays one. What does not fit fails the job with the record's place
(FAILFAST), or becomes null (PERMISSIVE), as in Spark's own functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as fn

from keyfold.errors import ConfigError
from keyfold.read.log import Log

Format = Literal["bytes", "string", "json", "avro"]
Mode = Literal["FAILFAST", "PERMISSIVE"]
ReaderSchema = str | Mapping[str, Any] | types.DataType | None
"""Avro's JSON as text or as parsed; for json a Spark type or its DDL."""

FORMATS: Final = ("bytes", "string", "json", "avro")
MODES: Final = ("FAILFAST", "PERMISSIVE")
_CORRUPT: Final = "_keyfold_corrupt"


@dataclass(frozen=True)
class Typing:
    """How one column, `key` or `value`, is read. Raises `ConfigError` for what cannot be."""

    column: Literal["key", "value"]
    format: Format = "bytes"
    reader_schema: ReaderSchema = None
    mode: Mode = "FAILFAST"

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigError(f"{self.column}_format", f"{self.format!r} is none of {', '.join(FORMATS)}")
        if self.mode not in MODES:
            raise ConfigError("mode", f"{self.mode!r} is none of {', '.join(MODES)}")
        name = "reader_schema" if self.column == "value" else "key_reader_schema"
        if self.reader_schema is not None and self.format not in {"json", "avro"}:
            raise ConfigError(name, f"is given, and {self.column}_format {self.format!r} takes none")
        if self.format == "json" and self.reader_schema is None and not hasattr(fn, "try_parse_json"):
            raise ConfigError(
                name,
                "is needed for json: this Spark has no variant type, and types are not guessed from the data",
                hint='give a DDL such as "id long, name string"',
            )

    @property
    def raises(self) -> bool:
        """Whether a value that does not fit fails the job."""
        return self.mode == "FAILFAST"


def typed(frame: DataFrame, log: Log, typings: Sequence[Typing]) -> DataFrame:
    """The same rows with columns of their formats."""
    columns: dict[str, Column] = {t.column: _converted(t, log.topic) for t in typings if t.format in {"string", "json"}}
    if columns:
        frame = frame.withColumns(columns)
    avro = [t for t in typings if t.format == "avro"]
    if avro:
        from keyfold.spark.typed_avro import typed_avro

        frame = typed_avro(frame, log, avro)
    return frame


def _converted(typing: Typing, topic: str) -> Column:
    text = _text(typing, topic)
    return text if typing.format == "string" else _json(typing, text, topic)


def misfit(typing: Typing, topic: str, what: str | Column) -> Column:
    """What stands for a value that does not fit: an error that names the record, or null."""
    if not typing.raises:
        return fn.lit(None)
    told = fn.lit(what) if isinstance(what, str) else what
    place = fn.concat(fn.lit(f"{topic}-"), fn.col("partition"), fn.lit(" offset "), fn.col("offset"))
    return fn.raise_error(fn.concat(place, fn.lit(f": the {typing.column} "), told))


def _text(typing: Typing, topic: str) -> Column:
    stored = fn.col(typing.column)
    if hasattr(fn, "is_valid_utf8"):
        text = stored.cast("string")
        fits = fn.is_valid_utf8(text)
    else:
        text = fn.decode(stored, "UTF-8")  # puts U+FFFD where bytes are no text; then they are not the same bytes again
        fits = fn.encode(text, "UTF-8") == stored
    return fn.when(~fits, misfit(typing, topic, "is not UTF-8")).otherwise(text)


def _json(typing: Typing, text: Column, topic: str) -> Column:
    if typing.reader_schema is None:
        parsed = fn.try_parse_json(text)
        return fn.when(text.isNotNull() & parsed.isNull(), misfit(typing, topic, "is not JSON")).otherwise(parsed)
    schema = _spark_type(typing)
    told = misfit(typing, topic, "is not JSON of the reader schema")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    if not isinstance(schema, types.StructType):
        parsed = fn.from_json(text, schema, options)
        return fn.when(_is_unread(text, parsed), told).otherwise(parsed)
    # Where a struct does not fit, Spark keeps the members that do, and says so in a member of its own.
    asked = types.StructType([*schema.fields, types.StructField(_CORRUPT, types.StringType())])
    parsed = fn.from_json(text, asked, options)
    wrong = _is_unread(text, parsed) | parsed[_CORRUPT].isNotNull()
    return fn.when(wrong, told).otherwise(parsed.dropFields(_CORRUPT))


def _is_unread(text: Column, parsed: Column) -> Column:
    return text.isNotNull() & parsed.isNull() & (fn.trim(text) != "null")


def _spark_type(typing: Typing) -> types.StructType | types.ArrayType | types.MapType:
    schema = typing.reader_schema
    if isinstance(schema, str):
        schema = types._parse_datatype_string(schema)  # noqa: SLF001 - StructType.fromDDL is of Spark 4
    if isinstance(schema, types.StructType | types.ArrayType | types.MapType):
        return schema
    raise ConfigError("reader_schema", "for json is a struct, an array or a map, as a Spark type or its DDL")
