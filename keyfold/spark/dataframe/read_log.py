"""`read_log`: one moment of a log as a DataFrame.

    1. pin        the newest manifest of each partition, in the driver (`keyfold.spark.dataframe.snapshot_pins`)
    2. choose     segments whose offsets and timestamps can match; the rest is not opened
    3. scan       by the JVM or by keyfold's tasks, then exact filters on rows (`keyfold.spark.dataframe.scan`)
    4. type       key and value, if asked for (`keyfold.spark.dataframe.typed_columns`)

The DataFrame is lazy and stays at the pinned version: computed twice it returns the same rows, regardless of appends
and compactions in between. Its objects stay for `file.delete.delay.ms` after a compaction has replaced them; a later
job fails (`keyfold.spark.dataframe.snapshot_lost`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from keyfold.errors import ObjectNotFound, SnapshotLost
from keyfold.formats.format import FormatName
from keyfold.read.log import Log, open_log
from keyfold.spark.dataframe.paths import EngineName, choose_engine
from keyfold.spark.dataframe.scan import Engine, scan_records
from keyfold.spark.dataframe.scan_jvm import JvmEngine
from keyfold.spark.dataframe.scan_tasks import TaskEngine
from keyfold.spark.dataframe.snapshot_lost import lost_snapshot
from keyfold.spark.dataframe.snapshot_pins import Offsets, PartitionSnapshot, Times, When, pin_log
from keyfold.spark.dataframe.typed_columns import typed
from keyfold.spark.dataframe.value_formats import Mode, ReaderSchema, Typing
from keyfold.spark.tasks import location_of
from keyfold.store.api import ObjectStore

PIN_ATTEMPTS: Final = 3

_T = TypeVar("_T")


def read_log(
    spark: SparkSession,
    url: str,
    topic: str,
    *,
    partitions: Iterable[int] | None = None,
    from_offset: Offsets = None,
    to_offset: Offsets = None,
    from_timestamp: When = None,
    to_timestamp: When = None,
    key_format: FormatName = "bytes",
    value_format: FormatName = "bytes",
    reader_schema: ReaderSchema = None,
    key_reader_schema: ReaderSchema = None,
    mode: Mode = "FAILFAST",
    engine: EngineName = "auto",
    root: str | None = None,
    store: ObjectStore | None = None,
) -> DataFrame:
    """Return the records of `topic` below `url` (`s3://<bucket>/<topics.dir>`) at one moment, in no guaranteed order.

    Columns: partition int, offset long, timestamp timestamp (to the ms; 1969-12-31T23:59:59.999Z for none),
    timestamp_type string, key, value binary or typed, headers array<struct<name string, value binary>>, leader_epoch
    int. Records are as stored, including superseded ones and tombstones (a key with a null value).

    partitions                      None: all partitions
    from_offset, to_offset          inclusive, exclusive; a number for all partitions, or a dict for some of them
    from_timestamp, to_timestamp    inclusive, exclusive; ms or an aware datetime. A filter on each record's own
                                    timestamp, not a position
    key_format, value_format        "bytes", "string" (UTF-8), "json", "avro" (Confluent's wire format)
    reader_schema                   the type of values: an Avro schema for avro (None: the newest kept schema), a Spark
                                    type or DDL for json (None: variant, with Spark 4); `key_reader_schema` for keys
    mode                            "FAILFAST": a value that does not fit fails the job; "PERMISSIVE": it becomes null
    engine                          "auto", "jvm" (Spark's Avro reader and S3 file system), "keyfold" (neither needed)
    root                            Spark's URL of the bucket, such as `s3a://bucket`; None: by the session's settings
    store                           the store of the manifests; None: the URL's bucket with the driver's AWS settings

    Raises `TopicNotFound`, `LogNotFound`, `ManifestLost`, `OffsetOutOfRange`, `ConfigError`, `SnapshotLost`
    immediately. A job fails if an object was deleted meanwhile or is damaged; `snapshot_errors` reports the former.
    """
    key = Typing("key", key_format, key_reader_schema, mode)
    value = Typing("value", value_format, reader_schema, mode)
    times = Times.of(from_timestamp, to_timestamp)
    wanted = None if partitions is None else list(partitions)
    with open_log(url, topic, store=store) as log:

        def pin() -> tuple[PartitionSnapshot, ...]:
            return pin_log(log, wanted, from_offset=from_offset, to_offset=to_offset, times=times)

        chosen = engine_for(spark, url, log, engine, root)
        frame = at_one_moment(pin, lambda pins: scan_records(spark, chosen, pins))
        return typed(frame, log, (key, value), wanted)


def engine_for(spark: SparkSession, url: str, log: Log, engine: EngineName, root: str | None) -> Engine:
    """Return the engine that reads objects in this session. Raises `ConfigError`."""
    found = choose_engine(spark, url, engine, root)
    if found is not None:
        return JvmEngine(spark, found)
    return TaskEngine(spark, location_of(log.store))


def at_one_moment(
    pin: Callable[[], tuple[PartitionSnapshot, ...]], make: Callable[[tuple[PartitionSnapshot, ...]], _T]
) -> _T:
    """Call `make` with pins, and with newer ones if Spark, which checks that files exist, finds a deleted file.

    Nothing has been read by then, so starting again does not mix versions.
    """
    for _ in range(PIN_ATTEMPTS - 1):
        try:
            return make(pin())
        except (AnalysisException, ObjectNotFound) as error:
            if not isinstance(error, ObjectNotFound) and lost_snapshot(error) is None:
                raise
    try:
        return make(pin())
    except (AnalysisException, ObjectNotFound) as error:
        lost: SnapshotLost | None = lost_snapshot(error)
        if lost is None:
            raise
        raise lost from error
