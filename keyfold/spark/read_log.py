"""`read_log`: one moment of a log as a DataFrame.

    1. pin        the newest manifest of each partition, in the driver (`keyfold.spark.pins`)
    2. choose     segments whose offsets and timestamps can match; the rest is not opened
    3. scan       by the JVM or by keyfold's tasks, then exact filters on rows (`keyfold.spark.scan`)
    4. type       key and value, if asked for (`keyfold.spark.typed`)

The DataFrame is lazy, and stays the version that was pinned: computed twice it gives the same rows, whatever was
appended or compacted between. Its objects live for `file.delete.delay.ms` after a compaction has replaced them; a job
that comes later fails (`keyfold.spark.lost`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from keyfold.errors import ObjectNotFound, SnapshotLost
from keyfold.read.log import Log, open_log
from keyfold.spark.formats import Format, Mode, ReaderSchema, Typing
from keyfold.spark.lost import lost_snapshot
from keyfold.spark.paths import EngineName, choose_engine
from keyfold.spark.pins import Offsets, Pin, Times, When, pin_log
from keyfold.spark.scan import Engine, scan_records
from keyfold.spark.scan_jvm import JvmEngine
from keyfold.spark.scan_tasks import TaskEngine
from keyfold.spark.tasks import location_of
from keyfold.spark.typed import typed
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
    key_format: Format = "bytes",
    value_format: Format = "bytes",
    reader_schema: ReaderSchema = None,
    key_reader_schema: ReaderSchema = None,
    mode: Mode = "FAILFAST",
    engine: EngineName = "auto",
    root: str | None = None,
    store: ObjectStore | None = None,
) -> DataFrame:
    """The records of `topic` below `url` (`s3://<bucket>/<topics.dir>`), of one moment, in no promised order.

    Columns: partition int, offset long, timestamp timestamp (to the ms; 1969-12-31T23:59:59.999Z where the record has
    none), timestamp_type string, key, value binary or as typed, headers array<struct<name string, value binary>>,
    leader_epoch int. Records are as stored: superseded ones and tombstones (a key with a null value) are among them.

    partitions                      None: all that there are
    from_offset, to_offset          inclusive, exclusive; a number for all partitions, or a dict for some of them
    from_timestamp, to_timestamp    inclusive, exclusive; ms or an aware datetime. A filter on each record's own
                                    timestamp, not a position
    key_format, value_format        "bytes", "string" (UTF-8), "json", "avro" (Confluent's wire format)
    reader_schema                   what values become: Avro's JSON for avro (None: the newest kept schema), a Spark
                                    type or DDL for json (None: variant, from Spark 4 on); `key_reader_schema` for keys
    mode                            "FAILFAST": a value that does not fit fails the job; "PERMISSIVE": it becomes null
    engine                          "auto", "jvm" (Spark's Avro reader and S3 file system), "keyfold" (neither needed)
    root                            how Spark reaches the bucket, such as `s3a://bucket`; None: by what the session has
    store                           where manifests are read; None: the URL's bucket, by the AWS settings of the driver

    Raises `TopicNotFound`, `LogNotFound`, `ManifestLost`, `OffsetOutOfRange`, `ConfigError`, `SnapshotLost` now. A job
    fails where an object was collected meanwhile or is damaged; `snapshot_errors` names the former.
    """
    key = Typing("key", key_format, key_reader_schema, mode)
    value = Typing("value", value_format, reader_schema, mode)
    times = Times.of(from_timestamp, to_timestamp)
    wanted = None if partitions is None else list(partitions)
    with open_log(url, topic, store=store) as log:

        def pin() -> tuple[Pin, ...]:
            return pin_log(log, wanted, from_offset=from_offset, to_offset=to_offset, times=times)

        chosen = engine_for(spark, url, log, engine, root)
        frame = at_one_moment(pin, lambda pins: scan_records(spark, chosen, pins))
        return typed(frame, log, (key, value), wanted)


def engine_for(spark: SparkSession, url: str, log: Log, engine: EngineName, root: str | None) -> Engine:
    """What reads objects in this session. Raises `ConfigError`."""
    found = choose_engine(spark, url, engine, root)
    if found is not None:
        return JvmEngine(spark, found)
    return TaskEngine(spark, location_of(log.store))


def at_one_moment(pin: Callable[[], tuple[Pin, ...]], make: Callable[[tuple[Pin, ...]], _T]) -> _T:
    """Make something of pins; of newer ones where Spark, which looks whether files exist, finds one collected.

    Nothing has been read by then, so that beginning again mixes no versions.
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
