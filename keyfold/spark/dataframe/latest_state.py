"""`latest_state`: the last record of each key as a DataFrame, without shuffling a value.

A log has a clean tail, below `first_dirty_offset`, in which a key occurs once, and a dirty head. So a value is the
latest of its key in two cases, and indexes alone, which have no values, tell which:

    tail    no record of the head has its key           offsets of keys that the head has are dropped  (anti join)
    head    it is the last of its key in the head       only those offsets are taken                   (semi join)

    head's index  ──▶ last offset by key ──┬──────────────────────────▶ offsets to take ──broadcast──▶ head's records
                      (shuffle: keys)      └─▶ join ─▶ offsets to drop ──broadcast──▶ tail's records
                                  tail's index ─┘  (keys and offsets; a small head is broadcast, then nothing moves)

Offsets are broadcast as bits: a row has 64 neighbouring offsets of one partition, so that where supersessions are dense
the row costs less than a bit each, and where they are rare no more than the offset would. There are at most as many
rows as keys in the head, on either side.

Deleted keys and records without a key have no latest state. State is by partition, as Kafka's is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from keyfold.formats.format import FormatName
from keyfold.read.log import open_log
from keyfold.spark.dataframe.paths import EngineName
from keyfold.spark.dataframe.read_log import at_one_moment, engine_for
from keyfold.spark.dataframe.scan import Engine, scan_index, scan_records
from keyfold.spark.dataframe.snapshot_pins import PartitionSnapshot, head_and_tail, pin_log
from keyfold.spark.dataframe.typed_columns import typed
from keyfold.spark.dataframe.value_formats import Mode, ReaderSchema, Typing
from keyfold.store.api import ObjectStore

BROADCAST_HEAD_RECORDS: Final = 1_000_000
"""A million keys take some 100 MB in each executor."""

_WORD_SHIFT: Final = 6  # 64 offsets a row


def latest_state(
    spark: SparkSession,
    url: str,
    topic: str,
    *,
    partitions: Iterable[int] | None = None,
    key_format: FormatName = "bytes",
    value_format: FormatName = "bytes",
    reader_schema: ReaderSchema = None,
    key_reader_schema: ReaderSchema = None,
    mode: Mode = "FAILFAST",
    engine: EngineName = "auto",
    root: str | None = None,
    store: ObjectStore | None = None,
    broadcast_head_records: int = BROADCAST_HEAD_RECORDS,
) -> DataFrame:
    """Return the last record of each key of each partition at one moment, in no guaranteed order.

    Keys whose last record is a tombstone, and records without a key, are omitted. Columns, errors and the other
    arguments are those of `read_log`. A dirty head of at most `broadcast_head_records` records is broadcast to the
    tail's indexes; a larger one is joined with them by key.
    """
    key = Typing("key", key_format, key_reader_schema, mode)
    value = Typing("value", value_format, reader_schema, mode)
    wanted = None if partitions is None else list(partitions)
    with open_log(url, topic, store=store) as log:
        chosen = engine_for(spark, url, log, engine, root)

        def make(pins: tuple[PartitionSnapshot, ...]) -> DataFrame:
            return _latest(spark, chosen, pins, broadcast_head_records)

        frame = at_one_moment(lambda: pin_log(log, wanted), make)
        return typed(frame, log, (key, value), wanted)


def _latest(
    spark: SparkSession, engine: Engine, pins: Sequence[PartitionSnapshot], broadcast_head_records: int
) -> DataFrame:
    heads, tails = head_and_tail(pins)
    if not heads:
        return _valued(scan_records(spark, engine, tails))
    words = _Words(partitions=max(pin.place.partition for pin in pins) + 1)
    last = _last_by_key(scan_index(spark, engine, heads))
    taken = words.of(last.where(~fn.col("is_tombstone")))
    head = words.keep(_valued(scan_records(spark, engine, heads)), taken)
    if not tails:
        return head
    dirty = {pin.place.partition for pin in heads}
    index = scan_index(spark, engine, [pin for pin in tails if pin.place.partition in dirty])
    if sum(pin.record_count for pin in heads) <= broadcast_head_records:
        last = fn.broadcast(last)
    dropped = words.of(_superseded(index, last))
    return words.drop(_valued(scan_records(spark, engine, tails)), dropped).unionByName(head)


def _valued(records: DataFrame) -> DataFrame:
    return records.where(fn.col("key").isNotNull() & fn.col("value").isNotNull())


def _last_by_key(index: DataFrame) -> DataFrame:
    """partition, key, offset, is_tombstone of the last row of each key.

    Offset and flag go through the aggregation as one number: Spark sorts for a struct and hashes for a long.
    """
    both = fn.col("offset") * 2 + fn.col("is_tombstone").cast("long")
    keyed = index.where(fn.col("partition").isNotNull() & fn.col("key").isNotNull())
    last = keyed.groupBy("partition", "key").agg(fn.max(both).alias("both"))
    return last.select(
        "partition",
        "key",
        fn.shiftright("both", 1).alias("offset"),
        (fn.col("both") % 2 == 1).alias("is_tombstone"),
    )


def _superseded(tail: DataFrame, last: DataFrame) -> DataFrame:
    """partition, offset of the tail's values whose key the head has.

    That the head's record is newer goes without saying. It is said so that Spark needs the offsets here too: then the
    head is aggregated once for both sides, and not a second time for its keys alone.
    """
    values = tail.where(fn.col("key").isNotNull() & ~fn.col("is_tombstone")).alias("tail")
    same_key = fn.expr("tail.partition = last.partition AND tail.key = last.key AND tail.offset < last.offset")
    return values.join(last.alias("last"), same_key, "left_semi").select("partition", "offset")


class _Words:
    """Sets of offsets as rows of `word` and 64 `bits`. Partition and offset share one long, which Spark joins best."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    @property
    def _word(self) -> Column:
        return fn.shiftright("offset", _WORD_SHIFT) * fn.lit(self._partitions) + fn.col("partition")

    @property
    def _bit(self) -> Column:
        return fn.expr(f"shiftleft(1L, cast(offset & {(1 << _WORD_SHIFT) - 1} as int))")

    def of(self, offsets: DataFrame) -> DataFrame:
        """The set of `partition`, `offset` rows.

        Its shuffle, of words and bits, also takes the work out of the broadcast, which Spark gives five minutes.
        """
        bits = offsets.select(self._word.alias("word"), self._bit.alias("bit"))
        return bits.groupBy("word").agg(fn.expr("bit_or(bit)").alias("bits"))

    def keep(self, records: DataFrame, offsets: DataFrame) -> DataFrame:
        """The records that are in the set."""
        return self._join(records, offsets, "left_semi")

    def drop(self, records: DataFrame, offsets: DataFrame) -> DataFrame:
        """The records that are not in the set."""
        return self._join(records, offsets, "left_anti")

    def _join(self, records: DataFrame, offsets: DataFrame, how: str) -> DataFrame:
        has = (self._word == fn.col("word")) & (fn.col("bits").bitwiseAND(self._bit) != 0)
        return records.join(fn.broadcast(offsets), has, how)
