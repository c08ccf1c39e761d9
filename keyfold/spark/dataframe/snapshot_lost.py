"""Errors about a snapshot's objects that are deleted while Spark reads them.

A DataFrame is one version of the log, whose objects stay for `file.delete.delay.ms` after a compaction has replaced
them. A job always fails on a missing object: Spark's options to skip missing files are off. Spark's own error is
`FILE_NOT_EXIST`, with advice about REFRESH TABLE that does not help. `snapshot_errors` translates it:

    with snapshot_errors():
        read_log(spark, url, "users").write.parquet(target)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from keyfold.errors import SnapshotLost
from keyfold.log.names import topic_of_folder
from keyfold.spark.jvm import SPARK_ERRORS

_SIGNS: Final = re.compile("FILE_NOT_EXIST|PATH_NOT_FOUND|FileNotFoundException|SnapshotLost|ObjectNotFound")
_OBJECT: Final = re.compile(
    r"(?P<topic>[^/\s]+)/partition=(?P<partition>\d+)/(?:_index/)?\d{20}-\d{8,}-[sc][0-9a-f]{16}\.(?:avro|parquet)"
)


def lost_snapshot(error: BaseException) -> SnapshotLost | None:
    """Return the error for a Spark error about a deleted object of a log; None for other errors."""
    text = f"{type(error).__name__}: {error}"
    found = _OBJECT.search(text) if _SIGNS.search(text) else None
    if found is None:
        return None
    return gone(topic_of_folder(found["topic"]) or found["topic"], int(found["partition"]), found[0])


def gone(topic: str, partition: int, key: str) -> SnapshotLost:
    """Return the error for a deleted object of a DataFrame's version."""
    return SnapshotLost(
        topic,
        partition,
        f"`{key}` is missing: a compaction replaced the version that the DataFrame reads, and deleted the object",
        hint="create the DataFrame again, which reads the newest version, and repeat the whole job; "
        "file.delete.delay.ms must be longer than such a job",
    )


@contextmanager
def snapshot_errors() -> Iterator[None]:
    """Raise `SnapshotLost` for a deleted object during actions of keyfold's DataFrames; pass other errors on.

    with snapshot_errors():
        read_log(spark, url, "users").write.parquet(target)
    """
    try:
        yield
    except SPARK_ERRORS as error:
        lost = lost_snapshot(error)
        if lost is None:
            raise
        raise lost from error
