"""The data source's classes as Spark calls them, without a JVM: with every Spark 4, and what Spark 3.5 is told."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from keyfold.errors import ConfigError
from keyfold.spark.source_columns import ARROW, COLUMNS, ddl
from tests.support.spark_logs import FolderLog

pytestmark = pytest.mark.any_spark


def has_sources() -> bool:
    try:
        import pyspark.sql.datasource  # noqa: F401
    except ImportError:
        return False
    return True


needs_sources = pytest.mark.skipif(not has_sources(), reason="Spark 3.5 has no Python data sources")


@pytest.fixture
def log(tmp_path: Path) -> FolderLog:
    made = FolderLog(tmp_path)
    made.fill(0)
    return made


def source(log: FolderLog, **options: object) -> Any:
    from tests.support.spark_source import FolderDataSource

    given = {"url": log.url, "topic": log.topic, "s3.region": str(log.folder), "pollIntervalMs": 0, **options}
    return FolderDataSource({key.lower(): str(value) for key, value in given.items()})


def types(*names: str) -> Any:
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    header = StructType([StructField("name", StringType()), StructField("value", BinaryType())])
    fields = [
        StructField("partition", IntegerType(), nullable=False),
        StructField("offset", LongType(), nullable=False),
        StructField("timestamp", TimestampType()),
        StructField("timestamp_type", StringType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", ArrayType(header)),
        StructField("leader_epoch", IntegerType()),
    ]
    return StructType([one for one in fields if not names or one.name in names])


def offsets(reader: Any, tasks: list[Any]) -> list[int]:
    there = pickle.loads(pickle.dumps(reader))
    return [offset for task in tasks for batch in there.read(through(task)) for offset in batch["offset"].to_pylist()]


def through(task: Any) -> Any:
    return pickle.loads(pickle.dumps(task))


@pytest.mark.skipif(has_sources(), reason="this Spark has Python data sources")
def test_spark_without_data_sources_is_told_so() -> None:
    import keyfold.spark

    with pytest.raises(ConfigError, match=r"version 3\.5\.\d+ has no Python data sources.*read_log"):
        _ = keyfold.spark.register
    assert callable(keyfold.spark.read_log)


@needs_sources
def test_arrow_batches_are_what_spark_compares_them_with(log: FolderLog) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    from keyfold.spark.source_columns import schema_for

    schema = schema_for(types())
    assert schema == ARROW
    assert ddl(("offset", "key")) == "`offset` BIGINT NOT NULL, `key` BINARY"
    assert tuple(schema.names) == COLUMNS
    zoned: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    assert to_arrow_schema(types(), **zoned) == ARROW


@needs_sources
def test_a_batch_is_planned_and_read_in_other_processes(log: FolderLog) -> None:
    reader = source(log, maxPartitionBytes=3000).reader(types())
    tasks = reader.partitions()
    assert len(tasks) > 2
    assert offsets(reader, tasks) == [row[1] for row in log.records()]
    assert list(reader.read(None)) == []


@needs_sources
def test_filters_are_all_given_back_and_spark_may_think_that_there_are_none(log: FolderLog) -> None:
    from pyspark.sql.datasource import DataSourceReader

    class GreaterThan:
        attribute = ("offset",)
        value = 100

    reader = source(log).reader(types())
    filters = [GreaterThan()]
    assert list(reader.pushFilters(filters)) == filters
    assert min(offsets(reader, reader.partitions())) > 100
    if hasattr(DataSourceReader, "pushFilters"):
        assert reader.pushFilters.__func__ is DataSourceReader.pushFilters


class Driver:
    """Calls a stream reader as this Spark's streaming query does."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        from keyfold.spark.source import HAS_ADMISSION

        found: dict[str, Any] = (
            self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
            if HAS_ADMISSION
            else self.reader.latestOffset()
        )
        return found

    def batches(self, start: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[int]]]:
        while (end := self.latest(start)) != start:
            yield end, offsets(self.reader, self.reader.partitions(start, end))
            self.reader.commit(end)
            start = end


@needs_sources
def test_a_stream_keeps_its_limit_and_goes_on_after_a_restart(log: FolderLog) -> None:
    def driver() -> Driver:
        return Driver(source(log, startingOffsets="earliest", maxOffsetsPerTrigger=25).streamReader(types()))

    first = driver()
    found = list(first.batches(first.reader.initialOffset()))
    assert [offset for _, batch in found for offset in batch] == [row[1] for row in log.records()]
    assert max(len(batch) for _, batch in found) <= 25
    end = found[-1][0]
    log.fill(0, segments=1)
    second = driver()
    rest = list(second.batches(end))
    assert [offset for _, batch in [*found, *rest] for offset in batch] == [row[1] for row in log.records()]


@needs_sources
def test_a_stream_of_an_old_spark_that_runs_a_batch_again_knows_where_it_is(log: FolderLog) -> None:
    def driver() -> Driver:
        return Driver(source(log, startingOffsets="earliest", maxOffsetsPerTrigger=25).streamReader(types()))

    first = driver()
    (one, _), (two, batch) = list(first.batches(first.reader.initialOffset()))[:2]
    second = driver()
    assert offsets(second.reader, second.reader.partitions(one, two)) == batch
    assert len(next(second.batches(two))[1]) <= 25


@needs_sources
def test_a_stream_says_what_is_available_now(log: FolderLog) -> None:
    from keyfold.spark.source import HAS_ADMISSION

    if not HAS_ADMISSION:
        pytest.skip("since Spark 4.2")
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

    before = log.records()
    reader = source(log, startingOffsets="earliest").streamReader(types())
    assert reader.getDefaultReadLimit() == ReadAllAvailable()
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    log.fill(0, segments=1)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert offsets(reader, reader.partitions(start, end)) == [row[1] for row in before]
    assert reader.latestOffset(end, ReadMaxRows(3)) == end
    assert reader.reportLatestOffset()["partitions"]["0"]["offset"] == log.log.manifest().next_offset
    sized = source(log, maxBytesPerTrigger=500, startingOffsets="earliest").streamReader(types())
    assert sized.getDefaultReadLimit() == ReadMaxBytes(500)
