"""Pins read by Spark's own Avro and Parquet readers.

Spark gets the schema, so it opens nothing before a job runs. The partition comes out of the paths.

Spark reads exactly the pinned objects. It lists their folders with a filter of names, because it asks S3 three times
for each object of a list of paths. If it has not found the pinned objects and no others, it gets the list of paths:
then its own check says which object is missing. That check comes before Spark lists the paths, and it passes over what
is deleted between the two, so what it has found is compared here again.

Some releases misread null keys of an index (`reads_null_keys`). There the rows of segments with records without a key
come from the segments themselves: slower, and right.

Nothing may be passed over in silence, whatever the session is set to: a missing or a damaged object fails the job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import structlog
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from keyfold.errors import ObjectNotFound
from keyfold.spark.dataframe.paths import AVRO, Root
from keyfold.spark.dataframe.scan import INDEX, RECORDS
from keyfold.spark.dataframe.snapshot_pins import PartitionSnapshot
from keyfold.spark.jvm import SPARK_ERRORS

log = structlog.get_logger(__name__)

_STRICT: Final = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mode": "FAILFAST",
    "__globPaths__": "false",  # a `*` or `[` in topics.dir is itself
}
_SOUND_PATCHES: Final = {(3, 5): 9, (4, 0): 5}
_AVRO_OPTIONS: Final = {**_STRICT, "datetimeRebaseMode": "CORRECTED"}
_NAMES_MAX: Final = 2_000
"""Spark's driver compares each listed object with every name of the filter."""
_SEGMENTS_PER_LISTING: Final = 500
"""S3 lists a thousand objects at a time, and Spark 4 lists a partition's indexes with its segments."""
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
        return _load(lambda: self._reader(AVRO, pins).schema(RECORDS).options(**_AVRO_OPTIONS), pins, paths, RECORDS)

    def _indexes(self, pins: Sequence[PartitionSnapshot], paths: list[str]) -> DataFrame:
        return _load(
            lambda: self._reader("parquet", pins).schema(INDEX).options(**_PARQUET_OPTIONS), pins, paths, INDEX
        )

    def _reader(self, source: str, pins: Sequence[PartitionSnapshot]) -> DataFrameReader:
        return self.spark.read.format(source).option("basePath", self.root.topic(pins))


def _load(
    reader: Callable[[], DataFrameReader], pins: Sequence[PartitionSnapshot], paths: list[str], schema: StructType
) -> DataFrame:
    """Return the rows of exactly these objects of `pins`. Raise `ObjectNotFound` if Spark does not find one."""
    folders = list(dict.fromkeys(path.rpartition("/")[0] for path in paths))
    listings = len(folders) + sum(len(pin.manifest.segments) for pin in pins) // _SEGMENTS_PER_LISTING
    frame = _listed(reader(), folders, paths) if listings < len(paths) <= _NAMES_MAX else None
    if frame is None:
        frame = reader().load(paths)
        found = _object_names(frame.inputFiles())
        for path in paths:
            if _object_name(path) not in found:
                raise ObjectNotFound(path, "was deleted before Spark listed it")
    return frame.select(*schema.names)


def _listed(reader: DataFrameReader, folders: list[str], paths: list[str]) -> DataFrame | None:
    """Return the rows of these objects, found by listing their folders; None if Spark finds other objects."""
    # The names consist of digits, letters, dots and hyphens, which mean themselves in a filter.
    names = ",".join(path.rpartition("/")[2] for path in paths)
    try:
        frame = reader.option("pathGlobFilter", f"{{{names}}}").load(folders)
        found = frame.inputFiles()
    except SPARK_ERRORS as error:
        cause = str(error).partition("\n")[0]
    else:
        if _object_names(found) == _object_names(paths):
            return frame
        cause = f"{len(found)} of {len(paths)} objects were found"
    log.warning("Spark's listing differs from the manifests; Spark asks for each object", cause=cause)
    return None


def _object_names(paths: Sequence[str]) -> set[str]:
    return {_object_name(path) for path in paths}


def _object_name(path: str) -> str:
    """Return the object's partition and name. Spark encodes odd characters of the folders before them."""
    return path[path.rindex("/partition=") :]


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
