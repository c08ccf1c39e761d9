"""How this Spark session reaches a log's objects: which engine reads them, and under which paths.

    jvm        Spark's own Avro and Parquet readers, over the S3 file system that the session has
    keyfold    Python tasks with keyfold's own client and decoder, for a session that has none of these

`auto` takes jvm where the session has both an Avro reader and a file system for the bucket: the scheme of the URL if
it is known (EMR has `s3`), else `s3a`. A session of Spark Connect does not show its JVM: there `auto` is keyfold, but
where a root says how the JVM finds the bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pyspark.sql import SparkSession

from keyfold.errors import ConfigError
from keyfold.log.names import topic_folder
from keyfold.spark.dataframe.snapshot_pins import PartitionSnapshot
from keyfold.spark.jvm import has_class, has_file_system, jvm_of
from keyfold.store.location import parse_url

EngineName = Literal["auto", "jvm", "keyfold"]

# The class is in Spark itself since 4.0, and in the package spark-avro before. The short name `avro` needs a service
# file that only the package has.
AVRO: Final = "org.apache.spark.sql.avro.AvroFileFormat"
AVRO_FUNCTIONS: Final = "org.apache.spark.sql.avro.AvroDataToCatalyst"
_SCHEMES: Final = ("s3a", "s3")


@dataclass(frozen=True, slots=True)
class Root:
    """A bucket as Spark's file systems name it: `s3a://bucket`, or `file:///some/folder` for a copy of one."""

    uri: str

    def path(self, pin: PartitionSnapshot, name: str) -> str:
        """Where an object is that the pin's manifest names."""
        return f"{self.uri}/{pin.place.key(name)}"

    def topic(self, pins: Sequence[PartitionSnapshot]) -> str:
        """The topic's folder: below it Spark finds the partition in a path."""
        place = pins[0].place
        head = f"{place.topics_dir}/" if place.topics_dir else ""
        return f"{self.uri}/{head}{topic_folder(place.topic)}"


def choose_engine(spark: SparkSession, url: str, engine: EngineName, root: str | None) -> Root | None:
    """Where the JVM finds the bucket of `url`, or None where keyfold's own tasks are to read.

    Raises `ConfigError` where the JVM is asked for and cannot.
    """
    if engine not in {"auto", "jvm", "keyfold"}:
        raise ConfigError("engine", f"must be one of auto, jvm, keyfold, not {engine!r}")
    if engine == "keyfold":
        return None
    missing = "" if root else _file_system_missing(spark, url)
    if jvm_of(spark) is not None and not has_class(spark, AVRO):
        missing = f"this session has no {AVRO}"
    if not missing:
        return Root((root or _uri(spark, url)).rstrip("/"))
    if engine == "auto":
        return None
    raise ConfigError(
        "engine",
        f"the JVM cannot read this log: {missing}",
        hint="add hadoop-aws and, before Spark 4, spark-avro to Spark (docs/reading-spark.md), or omit engine",
    )


def _file_system_missing(spark: SparkSession, url: str) -> str:
    if _scheme(spark, url) is not None:
        return ""
    return f"this session has no file system for {' or '.join(f'{s}://' for s in _SCHEMES)}"


def _uri(spark: SparkSession, url: str) -> str:
    return f"{_scheme(spark, url)}://{parse_url(url)[0]}"


def _scheme(spark: SparkSession, url: str) -> str | None:
    """The scheme to read `url` by: its own, where the session knows it."""
    own = url.partition("://")[0]
    return next((scheme for scheme in (own, *_SCHEMES) if has_file_system(spark, scheme)), None)
