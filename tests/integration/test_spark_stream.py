"""`readStream.format("keyfold")` on a real Spark: restarts, limits, and a log that is cleaned meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.spark_logs import FolderLog, rows
from tests.support.spark_source import stream
from tests.support.tiers import Sharded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytest.importorskip("pyspark.sql.datasource")
pytestmark = [pytest.mark.spark, pytest.mark.any_spark]


@pytest.fixture
def log(tmp_path: Path) -> FolderLog:
    return FolderLog(tmp_path / "bucket")


def has_admission() -> bool:
    from keyfold.spark.source.data_source import HAS_ADMISSION

    return HAS_ADMISSION


class Sink:
    """Keeps each batch by its id, so that one that comes twice is there once."""

    def __init__(self, fail_at: int = -1) -> None:
        self.batches: dict[int, list[Any]] = {}
        self.fail_at = fail_at

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = rows(frame)
        if batch_id == self.fail_at:
            self.fail_at = -1
            raise RuntimeError("the machine died")

    @property
    def rows(self) -> list[Any]:
        return [row for batch_id in sorted(self.batches) for row in self.batches[batch_id]]


def run(spark: SparkSession, log: FolderLog, checkpoint: Path, sink: Sink, **options: object) -> None:
    """Everything that is there now, to its end. Raises what the query dies of."""
    reader = stream(spark, log, **{"startingOffsets": "earliest", **options})
    writer = reader.load().writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()


def test_each_retained_record_arrives_once_across_restarts_compaction_and_gc(
    spark: SparkSession, log: FolderLog, tmp_path: Path
) -> None:
    for partition in (0, 1):
        log.fill(partition, segments=2, records=30, keys=30)
    first = log.records()
    sink, checkpoint = Sink(fail_at=2 if has_admission() else 0), tmp_path / "checkpoint"
    with pytest.raises(Exception, match="the machine died"):
        run(spark, log, checkpoint, sink, maxOffsetsPerTrigger=50)
    log.fill(0, segments=1)
    log.fill(7, segments=1)  # a new partition
    run(spark, log, checkpoint, sink, maxOffsetsPerTrigger=50)
    before = log.records()
    log.clean()
    log.fill(1, segments=1)
    run(spark, log, checkpoint, sink, maxOffsetsPerTrigger=50)
    assert len(sink.batches) > 5 or not has_admission()
    places = [row[:2] for row in sink.rows]
    assert len(places) == len(set(places))
    assert {row[:2]: row for row in sink.rows} == {row[:2]: row for row in [*first, *before, *log.records()]}


def test_limits_are_respected(spark: SparkSession, log: FolderLog, tmp_path: Path, sharded: Sharded) -> None:
    if not has_admission():
        pytest.skip("Spark has no admission control for Python sources before 4.2")
    for partition in (0, 1):
        log.fill(partition, segments=2, records=40)
    for limit in sharded([{"maxOffsetsPerTrigger": 40}, {"maxBytesPerTrigger": log.log.manifest(0).size_bytes}]):
        sink = Sink()
        run(spark, log, tmp_path / f"{next(iter(limit))}", sink, **limit)
        assert 2 <= len(sink.batches) <= 8
        assert max(map(len, sink.batches.values())) <= 100
        assert sorted(sink.rows) == sorted(log.records())


@pytest.mark.full
def test_a_parquet_sink_has_each_record_once(spark: SparkSession, log: FolderLog, tmp_path: Path) -> None:
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    for number in range(2):
        log.fill(number, segments=2)
        reader = stream(spark, log, startingOffsets="earliest", maxOffsetsPerTrigger=80).load()
        query = reader.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint)
        running = query.trigger(availableNow=True).start()
        assert running.awaitTermination(300)
    assert rows(spark.read.parquet(out)) == log.records()


def test_a_running_stream_sees_what_is_appended(spark: SparkSession, log: FolderLog, tmp_path: Path) -> None:
    log.fill(0, segments=1)
    sink = Sink()
    reader = stream(spark, log, startingOffsets="latest").load()
    query = reader.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        query.processAllAvailable()
        old = {row[:2] for row in log.records()}
        assert sink.rows == []
        log.fill(0, segments=1)
        log.fill(3, segments=1)
        query.processAllAvailable()
        assert sorted(sink.rows) == [row for row in log.records() if row[:2] not in old]
        if has_admission():
            progress: Any = query.lastProgress
            (source,) = progress.sources
            assert json.loads(source.latestOffset)["partitions"]["0"]["offset"] == log.log.manifest(0).next_offset
    finally:
        query.stop()


def test_a_stream_behind_the_delete_horizon_fails(spark: SparkSession, log: FolderLog, tmp_path: Path) -> None:
    log.fill(0, segments=2, keys=500)
    sink, checkpoint = Sink(), tmp_path / "checkpoint"
    run(spark, log, checkpoint, sink)
    log.fill(0, segments=2, keys=500)
    for _ in range(2):
        log.fill(0, segments=1, keys=500)
        log.clean()
    assert log.log.manifest(0).purged_to > max(row[1] for row in sink.rows)
    with pytest.raises(Exception, match=r"tombstones up to offset \d+ were removed before this reader") as caught:
        run(spark, log, checkpoint, sink)
    assert "failOnDataLoss" in str(caught.value)
    seen = {row[:2] for row in sink.rows}
    run(spark, log, checkpoint, sink, failOnDataLoss="false")
    rest = [row for row in log.records() if row[:2] not in seen]
    assert rest
    assert [row for row in sink.rows if row[:2] not in seen] == rest
