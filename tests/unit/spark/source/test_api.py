"""The data source's classes as Spark calls them, without a JVM: with every Spark 4, and the error of Spark 3.5."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pyspark
import pytest

from keyfold.errors import ConfigError
from keyfold.spark.source.columns import ARROW, COLUMNS, ddl
from tests.support.pickled import sent
from tests.support.spark_logs import FolderLog

pytestmark = pytest.mark.any_spark


def has_sources() -> bool:
    try:
        import pyspark.sql.datasource  # noqa: F401 - importing it is the test
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
    there = sent(reader)
    return [offset for task in tasks for batch in there.read(sent(task)) for offset in batch["offset"].to_pylist()]


def test_a_spark_without_data_sources_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 3.5 has no data sources; those of a newer Spark cannot be imported here."""
    import keyfold.spark.source

    if has_sources():
        monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)
        monkeypatch.delitem(sys.modules, "keyfold.spark.source.data_source", raising=False)
        monkeypatch.delattr(keyfold.spark.source, "data_source", raising=False)
    version = re.escape(pyspark.__version__)
    with pytest.raises(ConfigError, match=rf"version {version} has no Python data sources.*read_log"):
        _ = keyfold.spark.register
    assert callable(keyfold.spark.read_log)


@needs_sources
def test_arrow_batches_have_the_type_that_spark_checks(log: FolderLog) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    from keyfold.spark.source.columns import schema_for

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
def test_all_filters_are_returned_to_spark(log: FolderLog) -> None:
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
    """Calls a stream reader as this Spark's streaming query does: before 4.2 it asks for the end first."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader

    def begin(self) -> Iterator[tuple[dict[str, Any], list[int]]]:
        """A new query."""
        from keyfold.spark.source.data_source import HAS_ADMISSION

        if HAS_ADMISSION:
            yield from self.go_on(self.reader.initialOffset())
            return
        end = self.reader.latestOffset()
        yield end, offsets(self.reader, self.reader.partitions(self.reader.initialOffset(), end))
        yield from self.go_on(end)

    def go_on(self, start: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[int]]]:
        """From an offset that is committed."""
        while (end := self.latest(start)) != start:
            yield end, offsets(self.reader, self.reader.partitions(start, end))
            self.reader.commit(end)
            start = end

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        from keyfold.spark.source.data_source import HAS_ADMISSION

        arguments = (start, self.reader.getDefaultReadLimit()) if HAS_ADMISSION else ()
        found: dict[str, Any] = self.reader.latestOffset(*arguments)
        return found


def limited(log: FolderLog, begin: str = "earliest") -> Driver:
    return Driver(source(log, startingOffsets=begin, maxOffsetsPerTrigger=25).streamReader(types()))


@needs_sources
def test_a_stream_keeps_its_limit_and_continues_after_a_restart(log: FolderLog) -> None:
    from keyfold.spark.source.data_source import HAS_ADMISSION

    found = list(limited(log).begin())
    assert [offset for _, batch in found for offset in batch] == [row[1] for row in log.records()]
    assert not HAS_ADMISSION or max(len(batch) for _, batch in found) <= 25
    log.fill(0, segments=1)
    log.fill(5, segments=1)
    rest = list(limited(log).go_on(found[-1][0]))
    every = sorted(offset for _, batch in [*found, *rest] for offset in batch)
    assert every == sorted(row[1] for row in log.records())


@needs_sources
def test_a_stream_from_the_end_misses_nothing_between_two_calls(log: FolderLog) -> None:
    old = len(log.records())
    driver = limited(log, "latest")
    if has_admission():
        batches, seen = driver.go_on(driver.reader.initialOffset()), []
    else:
        batches = driver.begin()
        seen = next(batches)[1]
    log.fill(0, segments=1)
    seen += [offset for _, batch in batches for offset in batch]
    assert seen == [row[1] for row in log.records()][old:]


@needs_sources
def test_a_rerun_batch_is_identical_and_sets_the_streams_position(log: FolderLog) -> None:
    first = limited(log)
    ends = [end for end, _ in first.begin()]
    log.fill(0, segments=2)
    one, two = ends[-1], first.latest(ends[-1])
    batch = offsets(first.reader, first.reader.partitions(one, two))
    second = limited(log)
    assert offsets(second.reader, second.reader.partitions(one, two)) == batch
    assert len(next(second.go_on(two))[1]) <= 25


def has_admission() -> bool:
    from keyfold.spark.source.data_source import HAS_ADMISSION

    return HAS_ADMISSION


@needs_sources
def test_a_stream_reports_what_is_available_now(log: FolderLog) -> None:
    if not has_admission():
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
