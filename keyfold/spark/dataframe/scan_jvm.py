"""Pins read by Spark's own Avro and Parquet readers.

Spark gets the pinned list of objects, never a folder, and the schema, so it opens nothing before a job runs. The
partition comes out of the paths.

Some releases misread null keys of an index (`reads_null_keys`). There the rows of segments with records without a key
come from the segments themselves: slower, and right.

Nothing may be passed over in silence, whatever the session is set to: a missing or a damaged object fails the job.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from keyfold.spark.dataframe.paths import AVRO, Root
from keyfold.spark.dataframe.scan import INDEX, RECORDS
from keyfold.spark.dataframe.snapshot_pins import PartitionSnapshot

_STRICT: Final = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mode": "FAILFAST",
    "__globPaths__": "false",  # a `*` or `[` in topics.dir is itself
}
_SOUND_PATCHES: Final = {(3, 5): 9, (4, 0): 5}
_AVRO_OPTIONS: Final = {**_STRICT, "datetimeRebaseMode": "CORRECTED"}
_PARQUET_OPTIONS: Final = {**_STRICT, "mergeSchema": "false", "parquet.page.verify-checksum.enabled": "true"}


@dataclass(frozen=True, slots=True)
class JvmEngine:
    """See `keyfold.spark.dataframe.scan.Engine`."""

    spark: SparkSession
    root: Root

    def records(self, pins: Sequence[PartitionSnapshot]) -> DataFrame:
        """See `Engine.records`."""
        return self._segments(pins, [self.root.path(pin, entry.name) for pin in pins for entry in pin.entries])

    def index(self, pins: Sequence[PartitionSnapshot]) -> DataFrame:
        """See `Engine.index`."""
        misread = frozenset[str]()
        if not reads_null_keys(self.spark.version):
            misread = frozenset(entry.name for pin in pins for entry in pin.entries if entry.keyless_count)
        listed = [(pin, entry) for pin in pins for entry in pin.entries]
        indexes = [self.root.path(pin, entry.index_name) for pin, entry in listed if entry.name not in misread]
        segments = [self.root.path(pin, entry.name) for pin, entry in listed if entry.name in misread]
        frames = [self._indexes(pins, indexes)] if indexes else []
        if segments:
            is_tombstone = fn.col("key").isNotNull() & fn.col("value").isNull()
            rows = self._segments(pins, segments).withColumn("is_tombstone", is_tombstone)
            frames.append(rows.select(*INDEX.names))
        return reduce(DataFrame.unionByName, frames)

    def _segments(self, pins: Sequence[PartitionSnapshot], paths: list[str]) -> DataFrame:
        reader = self.spark.read.format(AVRO).schema(RECORDS).options(**_AVRO_OPTIONS, basePath=self.root.topic(pins))
        return reader.load(paths).select(*RECORDS.names)

    def _indexes(self, pins: Sequence[PartitionSnapshot], paths: list[str]) -> DataFrame:
        reader = self.spark.read.schema(INDEX).options(**_PARQUET_OPTIONS, basePath=self.root.topic(pins))
        return reader.format("parquet").load(paths).select(*INDEX.names)


def reads_null_keys(version: str) -> bool:
    """Whether this Spark reads an index's keys where some are null.

    Older ones take the lengths of such a column from the wrong rows and give other keys, without an error (seen in
    3.5.0 and 4.0.0; not in 3.5.9, nor in 4.0.5 and what came after). Patch releases between are not trusted.
    """
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if found is None:
        return False
    major, minor, patch = (int(number) for number in found.groups())
    return patch >= _SOUND_PATCHES.get((major, minor), 0)
