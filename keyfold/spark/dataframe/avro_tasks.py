"""Avro columns by keyfold's own decoder, in Python tasks: for sessions without Spark's `from_avro`.

Types are those of `keyfold.formats.arrow_types`, as near to `from_avro`'s as Spark takes Arrow's: timestamps to the µs,
times of a day as the number that Avro has. All columns go through Python, so that none is pruned before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, types
from pyspark.sql.pandas.types import from_arrow_type

from keyfold.errors import ConfigError
from keyfold.formats.arrow_types import NoArrowType, arrow_type
from keyfold.formats.avro_schema import NotAvro
from keyfold.formats.column_type import column_for
from keyfold.formats.column_width import in_parts
from keyfold.formats.columns import Column
from keyfold.formats.decoder import reader_type
from keyfold.formats.errors import mismatch_at
from keyfold.formats.format import Format, RecordPart
from keyfold.formats.schema_archive import SchemaArchive
from keyfold.read.log import Log
from keyfold.spark.dataframe.value_formats import Typing
from keyfold.spark.tasks import location_of, opened
from keyfold.store.api import StoreLocation

DECIMAL_DIGITS_MAX: Final = 38


@dataclass(frozen=True, slots=True)
class AvroTyping:
    """One column: what it is read as, and what is done about a row that does not fit."""

    part: RecordPart
    reader: str
    raises: bool
    type: pa.DataType


def typed_by_tasks(frame: DataFrame, log: Log, readers: Mapping[Typing, str]) -> DataFrame:
    """The same rows with Avro columns read. Raises `ConfigError` for a reader schema that Spark has no type for."""
    typings = [_avro_typing(typing, reader) for typing, reader in readers.items()]
    schema = types.StructType(frame.schema.fields)
    for typing in typings:
        at = schema.names.index(typing.part.value)
        schema.fields[at] = types.StructField(
            typing.part.value, from_arrow_type(typing.type, prefer_timestamp_ntz=True)
        )
    run = _decoding(location_of(log.store), log.topics_dir, log.topic, typings)
    return frame.mapInArrow(run, schema)


def _avro_typing(typing: Typing, reader: str) -> AvroTyping:
    try:
        kind = spark_arrow(arrow_type(reader_type(reader)))
    except (NoArrowType, NotAvro, ValueError) as error:
        raise ConfigError(typing.schema_option, f"cannot be a Spark column: {error}") from error
    return AvroTyping(RecordPart(typing.column), reader, typing.raises, kind)


def spark_arrow(kind: pa.DataType) -> pa.DataType:  # noqa: PLR0911 - one for each kind
    """The Arrow type that Spark takes for another. Raises `NoArrowType`."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, spark_arrow(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(spark_arrow(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(spark_arrow(kind.key_type), spark_arrow(kind.item_type))
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_time(kind):
        return pa.int32() if pa.types.is_time32(kind) else pa.int64()
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_decimal(kind) and kind.precision > DECIMAL_DIGITS_MAX:
        raise NoArrowType(f"a decimal has {kind.precision} digits; the limit in Spark is {DECIMAL_DIGITS_MAX}")
    return kind


def _decoding(
    location: StoreLocation, topics_dir: str, topic: str, typings: list[AvroTyping]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with opened(location) as store:
            archive = SchemaArchive(store, topics_dir)
            columns = [
                (typing, column_for(typing.part, Format.AVRO, archive, reader_type(typing.reader)))
                for typing in typings
            ]

            def decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
                for typing, column in columns:
                    batch = _decoded(batch, topic, typing, column)
                return batch

            for batch in batches:
                yield from in_parts(batch, decoded)

    return run


def _decoded(batch: pa.RecordBatch, topic: str, typing: AvroTyping, column: Column) -> pa.RecordBatch:
    name = typing.part.value
    decoded = column.decode(batch.column(name).cast(pa.binary()), batch.column("headers"))
    if decoded.mismatches and typing.raises:
        row, mismatch = decoded.mismatches[0]
        partition, offset = batch.column("partition")[row].as_py(), batch.column("offset")[row].as_py()
        hint = 'mode="PERMISSIVE" returns null for such values'
        raise mismatch_at(topic, partition, offset, typing.part, mismatch, hint=hint)
    array = decoded.array.cast(typing.type, safe=False)  # what is finer than a µs is cut off
    at = batch.schema.get_field_index(name)
    return batch.set_column(at, name, array)
