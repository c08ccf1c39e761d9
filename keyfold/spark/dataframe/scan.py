"""What both engines give for pins: their records, and the rows of their indexes.

    records    partition, offset, timestamp, timestamp_type, key, value, headers, leader_epoch
    index      partition, offset, key, is_tombstone                          (never a value is touched)

Rows outside a pin's bounds are filtered here, exactly, whichever segments an engine has opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from pyspark.sql import Column, DataFrame, SparkSession, types
from pyspark.sql import functions as fn

from keyfold.spark.dataframe.snapshot_pins import PartitionSnapshot, Times

_HEADER: Final = types.StructType().add("name", types.StringType()).add("value", types.BinaryType())
RECORDS: Final = (
    types.StructType()
    .add("partition", types.IntegerType())
    .add("offset", types.LongType())
    .add("timestamp", types.TimestampType())
    .add("timestamp_type", types.StringType())
    .add("key", types.BinaryType())
    .add("value", types.BinaryType())
    .add("headers", types.ArrayType(_HEADER))
    .add("leader_epoch", types.IntegerType())
)
INDEX: Final = (
    types.StructType()
    .add("partition", types.IntegerType())
    .add("offset", types.LongType())
    .add("key", types.BinaryType())
    .add("is_tombstone", types.BooleanType())
)


class Engine(Protocol):
    """Opens the segments, or the indexes, of pins. Which rows come out is left to the caller."""

    def records(self, pins: Sequence[PartitionSnapshot]) -> DataFrame:
        """All records of the segments of `pins`, in the columns of `RECORDS`."""

    def index(self, pins: Sequence[PartitionSnapshot]) -> DataFrame:
        """All rows of the indexes of `pins`, in the columns of `INDEX`."""


def scan_records(spark: SparkSession, engine: Engine, pins: Sequence[PartitionSnapshot]) -> DataFrame:
    """The records of `pins` that are within their bounds."""
    opened = [pin for pin in pins if pin.entries]
    if not opened:
        return spark.createDataFrame([], RECORDS)
    frame = _within(engine.records(opened), opened)
    times = opened[0].times
    return frame if times.are_all else frame.where(_is_at(times))


def scan_index(spark: SparkSession, engine: Engine, pins: Sequence[PartitionSnapshot]) -> DataFrame:
    """The index rows of `pins` that are within their offsets."""
    opened = [pin for pin in pins if pin.entries]
    if not opened:
        return spark.createDataFrame([], INDEX)
    return _within(engine.index(opened), opened)


def _within(frame: DataFrame, pins: Sequence[PartitionSnapshot]) -> DataFrame:
    cut = [pin for pin in pins if pin.is_cut]
    if not cut:
        return frame
    bounds = {(pin.start, pin.end) for pin in pins}
    if len(bounds) == 1:
        start, end = bounds.pop()
        return frame.where((fn.col("offset") >= start) & (fn.col("offset") < end))
    starts = _of_partition({pin.place.partition: pin.start for pin in pins})
    ends = _of_partition({pin.place.partition: pin.end for pin in pins})
    return frame.where((fn.col("offset") >= starts) & (fn.col("offset") < ends))


def _of_partition(numbers: dict[int, int]) -> Column:
    """A number for each partition: one literal array, so that a thousand partitions cost what one does."""
    listed = ",".join(f"{numbers.get(partition, 0)}L" for partition in range(max(numbers) + 1))
    return fn.expr(f"array({listed})[partition]")


def _is_at(times: Times) -> Column:
    at = fn.col("timestamp")
    since = at >= fn.expr(f"timestamp_millis({times.first_ms}L)")
    return since if times.to_ms is None else since & (at < fn.expr(f"timestamp_millis({times.to_ms}L)"))
