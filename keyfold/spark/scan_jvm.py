"""Pins read by Spark's own Avro and Parquet readers.

Spark gets the pinned list of objects, never a folder, and the schema, so it opens nothing before a job runs. The
partition comes out of the paths.

Nothing may be passed over in silence, whatever the session is set to: a missing or a damaged object fails the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from keyfold.spark.paths import AVRO, Root
from keyfold.spark.pins import Pin
from keyfold.spark.scan import INDEX, RECORDS

_STRICT: Final = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mode": "FAILFAST",
    "__globPaths__": "false",  # a `*` or `[` in topics.dir is itself
}
_AVRO_OPTIONS: Final = {**_STRICT, "datetimeRebaseMode": "CORRECTED"}
_PARQUET_OPTIONS: Final = {**_STRICT, "mergeSchema": "false", "parquet.page.verify-checksum.enabled": "true"}


@dataclass(frozen=True, slots=True)
class JvmEngine:
    """See `keyfold.spark.scan.Engine`."""

    spark: SparkSession
    root: Root

    def records(self, pins: Sequence[Pin]) -> DataFrame:
        """See `Engine.records`."""
        reader = self.spark.read.format(AVRO).schema(RECORDS).options(**_AVRO_OPTIONS, basePath=self.root.topic(pins))
        paths = [self.root.path(pin, entry.name) for pin in pins for entry in pin.entries]
        return reader.load(paths).select(*RECORDS.names)

    def index(self, pins: Sequence[Pin]) -> DataFrame:
        """See `Engine.index`."""
        reader = self.spark.read.schema(INDEX).options(**_PARQUET_OPTIONS, basePath=self.root.topic(pins))
        paths = [self.root.path(pin, entry.index_name) for pin in pins for entry in pin.entries]
        return reader.format("parquet").load(paths).select(*INDEX.names)
