"""The data source over a folder: the same code, with another store, so that nothing but Spark is in between.

read(spark, log).load()            a `FolderLog` (`tests.support.spark_logs`) by the format `keyfold`
stream(spark, log).load()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyfold.spark.source.data_source import KeyfoldDataSource
from keyfold.spark.source.options import SourceOptions
from tests.bench._folder_store import FolderStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

    from tests.support.spark_logs import FolderLog


class FolderDataSource(KeyfoldDataSource):
    """Its URL's bucket is a folder, named by the option `s3.region`, which a folder has no other use for."""

    @classmethod
    def name(cls) -> str:
        """Not the product's."""
        return "keyfold-folder"

    def location(self, options: SourceOptions) -> Any:
        """A folder."""
        return FolderStore(str(options.region))


def read(spark: SparkSession, log: FolderLog, **options: object) -> DataFrameReader:
    """A batch reader."""
    spark.dataSource.register(FolderDataSource)
    return spark.read.format("keyfold-folder").options(**_options(log, options))


def stream(spark: SparkSession, log: FolderLog, **options: object) -> DataStreamReader:
    """A stream reader."""
    spark.dataSource.register(FolderDataSource)
    return spark.readStream.format("keyfold-folder").options(**_options(log, {"pollIntervalMs": 0, **options}))


def _options(log: FolderLog, options: dict[str, object]) -> dict[str, str]:
    given = {"url": log.url, "topic": log.topic, "s3.region": str(log.folder), **options}
    return {key: str(value) for key, value in given.items()}
