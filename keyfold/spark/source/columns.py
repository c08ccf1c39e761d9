"""The data source's columns, in Spark's types and in Arrow's, and blocks' batches brought into that shape.

Spark compares the Arrow schema of what a Python source gives with its own, field names of list elements included, so
batches are cast to exactly that. The casts that are made copy numbers; keys and values are passed on as they are.

A `.schema(...)` that names fewer columns, or `columns`, is the only way to tell a Python source which columns are
wanted; what is not wanted is not taken out of the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyfold.errors import ConfigError
from keyfold.runtime.arrow_types import ArrowArray, ArrowField, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_HEADER: Final = pa.struct([pa.field("name", pa.string()), pa.field("value", pa.binary())])
ARROW: Final = arrow_schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestamp_type", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.field("element", _HEADER))),
        pa.field("leader_epoch", pa.int32()),
    ]
)
COLUMNS: Final = tuple(ARROW.names)
DDL: Final = {
    "partition": "INT NOT NULL",
    "offset": "BIGINT NOT NULL",
    "timestamp": "TIMESTAMP",
    "timestamp_type": "STRING",
    "key": "BINARY",
    "value": "BINARY",
    "headers": "ARRAY<STRUCT<name: STRING, value: BINARY>>",
    "leader_epoch": "INT",
}
"""Each column's type in Spark's words."""

_US_MAX_MS: Final = (2**63 - 1) // 1000


def ddl(names: Sequence[str]) -> str:
    """The schema of these columns, as Spark parses it."""
    return ", ".join(f"`{name}` {DDL[name]}" for name in names)


def wanted(schema: pa.Schema) -> tuple[str, ...]:
    """The columns of a log that a schema needs; offsets where it needs none, to be counted."""
    return tuple(name for name in schema.names if name != "partition") or ("offset",)


def shaped(batch: pa.RecordBatch, partition: int, schema: pa.Schema) -> pa.RecordBatch:
    """A batch of `keyfold.log.arrow.RECORDS`' columns as Spark wants it."""
    numbers = pa.array(np.full(len(batch), partition, np.int32))
    given = (numbers if name == "partition" else batch.column(name) for name in schema.names)
    arrays = [_cast(array, kind) for array, kind in zip(given, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(array: ArrowArray, to: pa.DataType) -> ArrowArray:
    if array.type == to:
        return array
    try:
        return array.cast(to)
    except pa.ArrowInvalid:
        if not pa.types.is_timestamp(to):
            raise
    # Kafka takes any 64 bits as a timestamp; Spark's end in the year 294247 and begin 290308 years before Christ.
    numbers = array.cast(pa.int64())
    least, most = pa.scalar(-_US_MAX_MS), pa.scalar(_US_MAX_MS)
    held = cast("ArrowArray", pc.max_element_wise(numbers, least, skip_nulls=False))
    held = cast("ArrowArray", pc.min_element_wise(held, most, skip_nulls=False))
    return held.cast(array.type).cast(to)


def schema_for(schema: StructType) -> pa.Schema:
    """The Arrow schema for Spark's. Raises `ConfigError` where it has a column that is not ours, or of another type."""
    fields = [_field(one.name, one.dataType.simpleString(), is_nullable=one.nullable) for one in schema.fields]
    return pa.schema(fields)


def _field(name: str, kind: str, *, is_nullable: bool) -> ArrowField:
    if name not in COLUMNS:
        raise ConfigError("schema", f"unknown column `{name}`; the columns are {', '.join(COLUMNS)}")
    own = DDL[name].removesuffix(" NOT NULL").lower().replace(": ", ":").replace(", ", ",")
    if kind.lower() != own:
        raise ConfigError("schema", f"column `{name}` is {own}, not {kind}", hint="cast it after reading")
    return ARROW.field(name).with_nullable(is_nullable)
