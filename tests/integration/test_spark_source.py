"""`format("keyfold")` on a real Spark: a batch is what the Python reader gives, and filters save requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from keyfold.log.names import Place
from tests.support.cleaning import Sink, record
from tests.support.moto import ACCESS_KEY_ID, PASS, REGION, SECRET_ACCESS_KEY, Fault, LocalS3Process
from tests.support.spark_logs import FolderLog, rows
from tests.support.spark_source import read
from tests.support.tiers import Sharded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DataSourceReader = pytest.importorskip("pyspark.sql.datasource").DataSourceReader
pytestmark = [pytest.mark.spark, pytest.mark.any_spark]
COLUMNS = ["partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers", "leader_epoch"]


def test_a_batch_equals_the_python_readers_result(spark: SparkSession, log: FolderLog) -> None:
    for partition in (0, 1, 12):
        log.fill(partition)
    log.made(5)  # a partition without segments
    frame = read(spark, log).load()
    assert frame.columns == COLUMNS
    assert rows(frame) == log.records()
    log.clean()
    log.fill(1, segments=1)
    assert rows(read(spark, log).load()) == log.records()
    for size in (700, 5000):
        cut = read(spark, log, maxPartitionBytes=size).load()
        assert rows(cut) == log.records()
        assert cut.rdd.getNumPartitions() > 3
    assert read(spark, log, minPartitions=6).load().rdd.getNumPartitions() >= 6


def test_bounds_are_exact(spark: SparkSession, log: FolderLog) -> None:
    for partition in (0, 1):
        log.fill(partition)
    log.clean()
    every = log.records()
    first, last = every[len(every) // 8][1], every[len(every) // 3][1]
    found = read(spark, log, startingOffsets=f'{{"0": {first}, "1": -2}}', endingOffsets=f'{{"0": -1, "1": {last}}}')
    assert rows(found.load()) == [
        row for row in every if (row[0] == 0 and row[1] >= first) or (row[0] == 1 and row[1] < last)
    ]
    since = 1_700_000_050_000
    begins = {p: log.log.offset_for_time(since, p) or 0 for p in (0, 1)}
    assert rows(read(spark, log, startingTimestamp=since).load()) == [row for row in every if row[1] >= begins[row[0]]]
    assert rows(read(spark, log, endingTimestamp=since).load()) == [row for row in every if row[1] < begins[row[0]]]
    assert rows(read(spark, log, partitions="1").load()) == [row for row in every if row[0] == 1]


def test_a_subset_of_columns_can_be_read(spark: SparkSession, log: FolderLog) -> None:
    log.fill(0)
    pairs = [(row[1], row[4]) for row in log.records()]

    def found(frame: DataFrame) -> list[Any]:
        return [(r["offset"], None if r["key"] is None else bytes(r["key"])) for r in frame.orderBy("offset").collect()]

    for frame in (
        read(spark, log, columns="key,offset").load(),
        read(spark, log).schema("offset BIGINT, key BINARY").load(),
        read(spark, log, includeHeaders="false").load(),
    ):
        assert found(frame) == pairs
        assert "headers" not in frame.columns
    assert read(spark, log, columns="partition").load().count() == len(pairs)


@pytest.mark.sharded
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOfset": "earliest"}, "did you mean `startingOffsets`"),
        ({"maxOffsetsPerTrigger": 5}, "`maxOffsetsPerTrigger`: does not apply to a batch"),
        ({"startingOffsets": '{"0": 100000}'}, "offset 100000 is outside of the log"),
        ({"topic": "nobody"}, "topic `nobody` not found under"),
    ],
)
def test_a_wrong_option_is_explained(
    spark: SparkSession, log: FolderLog, options: dict[str, object], said: str
) -> None:
    log.fill(0)
    with pytest.raises(Exception, match=said):
        read(spark, log, **options).load().collect()


def test_a_foreign_schema_is_refused(spark: SparkSession, log: FolderLog, sharded: Sharded) -> None:
    log.fill(0)
    schemas = [("colour STRING", "unknown column `colour`"), ("offset INT", "column `offset` is bigint, not int")]
    for schema, said in sharded(schemas):
        with pytest.raises(Exception, match=said):
            read(spark, log).schema(schema).load().collect()


# Filters


@pytest.fixture(scope="module")
def server() -> Iterator[LocalS3Process]:
    with LocalS3Process() as s3:
        yield s3


class Bucket:
    """A bucket whose server counts the requests of all clients."""

    def __init__(self, server: LocalS3Process, name: str) -> None:
        self.server = server
        self.name = server.create_bucket(name)
        self.location = server.location(self.name)

    def load(self, spark: SparkSession, **options: object) -> DataFrame:
        from keyfold.spark import register

        register(spark)
        given: dict[str, Any] = {
            "topic": "users",
            "store.url": self.server.url,
            "s3.region": REGION,
            "aws.access.key.id": ACCESS_KEY_ID,
            "aws.secret.access.key": SECRET_ACCESS_KEY,
            **options,
        }
        return spark.read.format("keyfold").options(**given).load(f"s3://{self.name}/topics")

    def requests(self, frame: DataFrame) -> tuple[list[Any], dict[str, int]]:
        """Rows, and how many requests they took."""
        kinds = {"manifests": "_manifest", "indexes": "_index/", "segments": "avro"}
        self.server.set_faults(*(Fault(f"^GET .*{match}", status=PASS, times=-1) for match in kinds.values()))
        found = sorted((r["partition"], r["offset"]) for r in frame.collect())
        return found, dict(zip(kinds, self.server.struck(), strict=True))


def test_pushed_filters_save_store_requests(spark: SparkSession, server: LocalS3Process) -> None:
    """Four partitions of three segments with three blocks each, of an hour each."""
    if not hasattr(DataSourceReader, "pushFilters"):
        pytest.skip("Spark 4.0 tells a Python source no filters")
    bucket = Bucket(server, "filters")
    store = bucket.location.open()
    hour = 3_600_000
    for partition in range(4):
        sink = Sink.open(store, Place("topics", "users", partition), seed=partition)
        for s in range(3):
            sink.append(
                [record(30 * s + i, f"k{s}-{i}", "v" * 100, timestamp=hour * s + i) for i in range(30)],
                block_bytes=1200,
            )
    store.close()
    frame = bucket.load(spark)
    every, all_requests = bucket.requests(frame)
    assert every == [(p, o) for p in range(4) for o in range(90)]
    assert (all_requests["manifests"], all_requests["segments"]) == (4, 12)

    found, requests = bucket.requests(frame.where("partition = 2 AND offset BETWEEN 40 AND 45"))
    assert found == [(2, o) for o in range(40, 46)]
    assert (requests["manifests"], requests["segments"]) == (1, 1)

    found, requests = bucket.requests(frame.where("timestamp >= timestamp_millis(7200005) AND partition IN (0, 3)"))
    assert found == [(p, o) for p in (0, 3) for o in range(65, 90)]
    assert (requests["manifests"], requests["segments"]) == (2, 2)

    found, requests = bucket.requests(frame.where("key = CAST('k1-7' AS BINARY)"))
    assert found == [(p, 37) for p in range(4)]
    assert (requests["manifests"], requests["segments"], requests["indexes"]) == (4, 4, 12)

    found, requests = bucket.requests(frame.where("offset > 1000 OR partition < 0"))
    assert found == []
    found, requests = bucket.requests(frame.where("offset < 10 AND offset > 12"))
    assert (found, sum(requests.values())) == ([], 0)


@pytest.mark.full
def test_without_sparks_setting_filters_are_not_pushed_but_still_apply(spark: SparkSession, log: FolderLog) -> None:
    log.fill(0)
    some = [row for row in log.records() if row[1] > 40]
    name = "spark.sql.python.filterPushdown.enabled"
    for value in ("false", "true"):
        spark.conf.set(name, value)
        try:
            assert rows(read(spark, log).load().where("offset > 40")) == some
        finally:
            spark.conf.unset(name)
