"""Keys and values as what they stand for: text, JSON, Avro.

    string    UTF-8. Invalid bytes do not fit: Spark's own cast would keep them, or put U+FFFD for them
    json      a Spark type where one is given (`from_json`), else variant, which Spark has from version 4 on; nothing
              but white space is null, as it is for Connect
    avro      see `keyfold.spark.dataframe.avro_columns`

Null is null in every format, so a tombstone stays one. What does not fit fails the job with the record's place
(FAILFAST), or becomes null (PERMISSIVE), as in Spark's own functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as fn

from keyfold.errors import ConfigError
from keyfold.formats.format import Format
from keyfold.read.log import Log
from keyfold.spark.dataframe.avro_columns import typed_avro
from keyfold.spark.dataframe.value_formats import Typing, mismatch

_CORRUPT: Final = "_keyfold_corrupt"
_BLANK: Final = r"^[ \t\r\n]*(null)?[ \t\r\n]*$"


def typed(frame: DataFrame, log: Log, typings: Sequence[Typing], partitions: Sequence[int] | None) -> DataFrame:
    """Return the same rows, of these partitions or of all, with columns of their formats."""
    columns: dict[str, Column] = {
        t.column: EXPRESSIONS[Format(t.format)](t, log.topic) for t in typings if t.format in EXPRESSIONS
    }
    if columns:
        frame = frame.withColumns(columns)
    avro = [t for t in typings if t.format == "avro"]
    return typed_avro(frame, log, avro, partitions or log.partitions()) if avro else frame


def _text(typing: Typing, topic: str) -> Column:
    stored = fn.col(typing.column)
    if hasattr(fn, "is_valid_utf8"):
        text = stored.cast("string")
        fits = fn.is_valid_utf8(text)
    else:
        text = fn.decode(stored, "UTF-8")  # puts U+FFFD where bytes are no text; then they are not the same bytes again
        fits = fn.encode(text, "UTF-8") == stored
    return fn.when(~fits, mismatch(typing, topic, "is not UTF-8")).otherwise(text)


def _json(typing: Typing, topic: str) -> Column:
    text = _text(typing, topic)
    blank = text.rlike(_BLANK)
    if typing.reader_schema is None:
        parsed = fn.try_parse_json(text)
        unread = parsed.isNull() & text.isNotNull() & ~blank
        return fn.when(unread, mismatch(typing, topic, "is not JSON")).otherwise(parsed)
    schema = _spark_type(typing)
    told = mismatch(typing, topic, "is not JSON that fits the reader schema")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    if not isinstance(schema, types.StructType):
        parsed = fn.from_json(text, schema, options)
        return fn.when(parsed.isNull() & text.isNotNull() & ~blank, told).otherwise(parsed)
    # Where a struct does not fit, Spark keeps the members that do, and says so in a member of its own.
    asked = types.StructType([*schema.fields, types.StructField(_CORRUPT, types.StringType())])
    parsed = fn.from_json(text, asked, options)
    wrong = (parsed.isNull() & text.isNotNull()) | parsed[_CORRUPT].isNotNull()
    return fn.when(wrong & ~blank, told).when(wrong, None).otherwise(parsed.dropFields(_CORRUPT))


def _spark_type(typing: Typing) -> types.StructType | types.ArrayType | types.MapType:
    schema = typing.reader_schema
    if isinstance(schema, str):
        schema = types._parse_datatype_string(schema)  # noqa: SLF001 - StructType.fromDDL is of Spark 4
    if isinstance(schema, types.StructType | types.ArrayType | types.MapType):
        return schema
    raise ConfigError(typing.schema_option, "must be a struct, an array or a map for json, as a Spark type or its DDL")


# Bytes stay as they are, and Avro columns need the log's schemas.
EXPRESSIONS: Final[Mapping[Format, Callable[[Typing, str], Column]]] = MappingProxyType(
    {Format.STRING: _text, Format.JSON: _json}
)
