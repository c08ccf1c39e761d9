"""Logs as Spark DataFrames.

`read_log` returns one moment of a log, over all partitions or some; `latest_state` the last record of each key, without
deleted keys. `snapshot_errors` turns Spark's error about a deleted object into `SnapshotLost`. With Spark 4 and newer
there is also the data source, after `register(spark)`, for batch and stream: `spark.read.format("keyfold")`.
"""

from __future__ import annotations

from typing import Any

from keyfold.runtime.extras import needs_extra

with needs_extra("keyfold.spark", "spark"):
    import pyspark  # noqa: F401 - first, so that no package below is half imported if it is missing

    from keyfold.spark.dataframe.latest_state import latest_state
    from keyfold.spark.dataframe.read_log import read_log
    from keyfold.spark.dataframe.snapshot_lost import snapshot_errors

__all__ = ["KeyfoldDataSource", "latest_state", "read_log", "register", "snapshot_errors"]


def __getattr__(name: str) -> Any:
    # Spark 3.5 has no Python data sources: importing this package must not need them.
    if name in {"KeyfoldDataSource", "register"}:
        from keyfold.spark.source import data_source

        return getattr(data_source, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
