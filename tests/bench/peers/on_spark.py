"""Spark jobs that keep a table of a topic's latest state, as users run them in place of keyfold; a class for each.

A micro-batch has all records that have arrived. A window by key selects the newest change of each key, and the table
formats merge its decoded row. Every peer has one session with 2 GiB, S3A as its file system, and its checkpoint on a
local disk.

    iceberg   MERGE, merge-on-read, format version 3, its own catalog type `hadoop`
    delta     MERGE with deletion vectors
    hudi      upsert into a merge-on-read table
    append    no merge: Avro files as they arrive, and a job that writes the last change of each key as maintenance
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.avro.functions import from_avro

from keyfold_compactor.spark.session import spark_session
from keyfold_demo.java import JarSet, default_cache, jars
from keyfold_demo.stock_spark import local_settings
from tests.bench.peers.changes import FIELDS, FRAME_BYTES, SCHEMA, Digest

BUCKET: Final = "bench"

_SPARK: Final = "3.5.9"
_KAFKA: Final = "3.5.7"
_HADOOP: Final = "3.3.4"
_COLUMNS: Final = ", ".join(
    ("key STRING", *(f"{name} {'BIGINT' if kind == 'long' else 'STRING'}" for name, kind in FIELDS.items()))
)

# Spark itself has the excluded jars.
CONNECTORS: Final = JarSet(
    "Spark's connectors for Kafka, Avro and S3",
    f"peer-libs/spark-{_SPARK}-{_KAFKA}-{_HADOOP}",
    (
        ("org.apache.spark", "spark-sql-kafka-0-10_2.12", _KAFKA),
        ("org.apache.spark", "spark-avro_2.12", _SPARK),
        ("org.apache.hadoop", "hadoop-aws", _HADOOP),
    ),
    (
        ("org.apache.hadoop", "hadoop-client-api"),
        ("org.apache.hadoop", "hadoop-client-runtime"),
        ("org.apache.spark", "spark-tags_2.12"),
        ("org.scala-lang", ""),
        ("org.slf4j", ""),
        ("org.lz4", ""),
        ("org.xerial.snappy", ""),
        ("com.github.luben", ""),
        ("commons-logging", ""),
    ),
)


class SparkPeer(ABC):
    """One table for each topic."""

    name: ClassVar[str]
    own_jars: ClassVar[JarSet | None] = None
    own_settings: ClassVar[Mapping[str, str]] = {}

    def __init__(self, spark: SparkSession, bootstrap_servers: str, folder: Path) -> None:
        self.spark = spark
        self._bootstrap_servers = bootstrap_servers
        self._folder = folder

    @classmethod
    @contextmanager
    def opened(cls, bootstrap_servers: str, folder: Path) -> Iterator[SparkPeer]:
        """Yield the peer in a session of its own. The store is that of the usual AWS variables."""
        folders = [jars(each, default_cache()) for each in (CONNECTORS, cls.own_jars) if each is not None]
        path = {"spark.driver.extraClassPath": ":".join(f"{each}/*" for each in folders)}
        with spark_session("peer", {**_settings(folder), **path, **cls.own_settings}) as spark:
            yield cls(spark, bootstrap_servers, folder)

    def ingest(self, topic: str) -> None:
        """Make the topic's new records readable."""
        arrived = (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._bootstrap_servers)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
        )
        writer = self._write(topic, arrived)
        writer.option("checkpointLocation", str(self._folder / topic)).trigger(
            availableNow=True
        ).start().awaitTermination()

    def scan(self, topic: str) -> None:
        """Read all columns of the latest state. Delta's reader does not plan for the format `noop`."""
        self.latest(topic).agg(F.max(F.xxhash64("key", *FIELDS))).collect()

    def digest(self, topic: str) -> Digest:
        """Return the digest of the latest state."""
        text = F.concat_ws("|", "key", *FIELDS)
        hashed = F.conv(F.substring(F.md5(text.cast("binary")), 1, 15), 16, 10).cast("decimal(38,0)")
        found = self.latest(topic).select(hashed.alias("hash")).agg(F.count("hash"), F.sum("hash")).collect()[0]
        return Digest(int(found[0]), int(found[1] or 0))

    @abstractmethod
    def latest(self, topic: str) -> DataFrame:
        """Return the latest state: `key` and the columns of a row."""

    @abstractmethod
    def maintain(self, topic: str) -> None:
        """Compact the data, so that it is read faster."""

    @abstractmethod
    def _write(self, topic: str, arrived: DataFrame) -> Any:
        """Return the writer of the stream."""


class _MergePeer(SparkPeer):
    """Merges each micro-batch with a table, which the first one creates."""

    def __init__(self, spark: SparkSession, bootstrap_servers: str, folder: Path) -> None:
        super().__init__(spark, bootstrap_servers, folder)
        self._created: set[str] = set()

    def _write(self, topic: str, arrived: DataFrame) -> Any:
        if topic not in self._created:
            self._create(topic)
            self._created.add(topic)

        def merge(batch: DataFrame, _number: int) -> None:
            rows = _newest(batch).select(_key(), "offset", _row(), F.isnull("value").alias("is_deletion"))
            self._merge(topic, rows.select("key", "offset", "row.*", "is_deletion"))

        return arrived.writeStream.foreachBatch(merge)

    @abstractmethod
    def _create(self, topic: str) -> None:
        """Make an empty table."""

    @abstractmethod
    def _merge(self, topic: str, changes: DataFrame) -> None:
        """Merge the newest change of each key."""


class _SqlMergePeer(_MergePeer):
    """Merges by SQL."""

    def _merge(self, topic: str, changes: DataFrame) -> None:
        changes.createOrReplaceTempView("changes")
        columns = ("key", *FIELDS)
        updates = ", ".join(f"{name} = changes.{name}" for name in FIELDS)
        inserts = ", ".join(f"changes.{name}" for name in columns)
        changes.sparkSession.sql(
            f"MERGE INTO {self._table(topic)} AS state USING changes ON state.key = changes.key "  # noqa: S608 - names of ours
            "WHEN MATCHED AND changes.is_deletion THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {updates} "
            f"WHEN NOT MATCHED AND NOT changes.is_deletion THEN INSERT ({', '.join(columns)}) VALUES ({inserts})"
        )

    def latest(self, topic: str) -> DataFrame:
        return self.spark.table(self._table(topic))

    @abstractmethod
    def _table(self, topic: str) -> str:
        """Return the table's name in SQL."""


class IcebergPeer(_SqlMergePeer):
    """Merge-on-read with format version 3, whose deletion vectors take the place of small files of deletions."""

    name = "iceberg"
    own_jars = JarSet(
        "Iceberg's jar",
        "peer-libs/iceberg-1.12.0",
        (("org.apache.iceberg", "iceberg-spark-runtime-3.5_2.12", "1.12.0"),),
    )
    own_settings: ClassVar = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.cache-enabled": "false",  # a stream's session has a catalog of its own
        "spark.sql.catalog.lake.warehouse": f"s3a://{BUCKET}/iceberg",
    }

    def _table(self, topic: str) -> str:
        return f"lake.state.`{topic}`"

    def _create(self, topic: str) -> None:
        modes = ", ".join(f"'write.{what}.mode' = 'merge-on-read'" for what in ("delete", "update", "merge"))
        self.spark.sql(
            f"CREATE TABLE {self._table(topic)} ({_COLUMNS}) USING iceberg "
            f"TBLPROPERTIES ('format-version' = '3', {modes})"
        )

    def maintain(self, topic: str) -> None:
        options = "map('delete-file-threshold', '1', 'remove-dangling-deletes', 'true')"
        self.spark.sql(f"CALL lake.system.rewrite_data_files(table => 'state.`{topic}`', options => {options})")


class DeltaPeer(_SqlMergePeer):
    """Deletion vectors, which MERGE writes where a table has them."""

    name = "delta"
    own_jars = JarSet("Delta's jars", "peer-libs/delta-3.3.3", (("io.delta", "delta-spark_2.12", "3.3.3"),))
    own_settings: ClassVar = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",  # the default, 50, is for far larger tables
    }

    def _table(self, topic: str) -> str:
        return f"delta.`s3a://{BUCKET}/delta/{topic}`"

    def _create(self, topic: str) -> None:
        properties = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        self.spark.sql(f"CREATE TABLE {self._table(topic)} ({_COLUMNS}) USING delta {properties}")

    def maintain(self, topic: str) -> None:
        self.spark.sql(f"OPTIMIZE {self._table(topic)}")


class HudiPeer(_MergePeer):
    """A merge-on-read table without partitions; its compaction runs as maintenance, not within a write."""

    name = "hudi"
    own_jars = JarSet(
        "Hudi's jar", "peer-libs/hudi-1.2.0", (("org.apache.hudi", "hudi-spark3.5-bundle_2.12", "1.2.0"),)
    )
    own_settings: ClassVar = {
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
    }

    def _path(self, topic: str) -> str:
        return f"s3a://{BUCKET}/hudi/{topic}"

    def _create(self, topic: str) -> None:
        """The first write creates it."""

    def _merge(self, topic: str, changes: DataFrame) -> None:
        options = {
            "hoodie.table.name": topic.replace("-", "_"),
            "hoodie.datasource.write.table.type": "MERGE_ON_READ",
            "hoodie.datasource.write.operation": "upsert",
            "hoodie.datasource.write.recordkey.field": "key",
            "hoodie.table.ordering.fields": "offset",
            "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
            "hoodie.upsert.shuffle.parallelism": "4",
            "hoodie.compact.inline": "false",
            # By default Hudi rewrites each base file below 104 MB with its updates, and so copies the whole table.
            "hoodie.parquet.small.file.limit": "0",
        }
        rows = changes.withColumnRenamed("is_deletion", "_hoodie_is_deleted")
        rows.write.format("hudi").options(**options).mode("append").save(self._path(topic))

    def latest(self, topic: str) -> DataFrame:
        return self.spark.read.format("hudi").load(self._path(topic)).select("key", *FIELDS)

    def maintain(self, topic: str) -> None:
        self.spark.sql(
            f"CALL run_compaction(op => 'scheduleAndExecute', path => '{self._path(topic)}', "
            "options => 'hoodie.compact.inline.max.delta.commits=1')"
        )


class AppendPeer(SparkPeer):
    """Spark in the place of a Kafka Connect sink and of a job over its files. Keys and values stay bytes."""

    name = "append"
    own_settings: ClassVar = {"spark.sql.avro.compression.codec": "zstandard"}

    def __init__(self, spark: SparkSession, bootstrap_servers: str, folder: Path) -> None:
        super().__init__(spark, bootstrap_servers, folder)
        self._reduced: set[str] = set()

    def _path(self, topic: str, what: str) -> str:
        return f"s3a://{BUCKET}/append/{topic}/{what}"

    def _write(self, topic: str, arrived: DataFrame) -> Any:
        self._reduced.discard(topic)
        columns = arrived.select("key", "value", "partition", "offset")
        return columns.writeStream.format("avro").option("path", self._path(topic, "changes"))

    def _changes(self, topic: str) -> DataFrame:
        return self.spark.read.format("avro").load(self._path(topic, "changes"))

    def latest(self, topic: str) -> DataFrame:
        if topic in self._reduced:
            found = self.spark.read.format("avro").load(self._path(topic, "latest"))
        else:
            found = _newest(self._changes(topic)).where("value IS NOT NULL")
        return found.select(_key(), _row()).select("key", "row.*")

    def maintain(self, topic: str) -> None:
        rows = _newest(self._changes(topic)).where("value IS NOT NULL").select("key", "value", "partition", "offset")
        rows.write.format("avro").mode("overwrite").save(self._path(topic, "latest"))
        self._reduced.add(topic)


PEERS: Final[Mapping[str, type[SparkPeer]]] = {
    peer.name: peer for peer in (IcebergPeer, DeltaPeer, HudiPeer, AppendPeer)
}


def _newest(changes: DataFrame) -> DataFrame:
    newest = Window.partitionBy("key").orderBy(F.col("offset").desc())
    return changes.withColumn("rank", F.row_number().over(newest)).where("rank = 1")


def _key() -> Column:
    return F.col("key").cast("string").alias("key")


def _row() -> Column:
    return from_avro(F.expr(f"substring(value, {FRAME_BYTES + 1})"), json.dumps(SCHEMA)).alias("row")


def _settings(folder: Path) -> dict[str, str]:
    return {
        "spark.master": "local[2]",
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "4",
        "spark.hadoop.fs.s3a.directory.marker.retention": "keep",  # newer Hadoop's default: fewer requests
        **local_settings(folder),
    }
