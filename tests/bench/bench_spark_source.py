"""The data source `keyfold` against Spark's own Avro reader and a Python source with fastavro, on the same objects.

    python -m tests.bench.bench_spark_source [--records 800000] [--rounds 3] [--json]

    all        every column of a log of 1 KB records       peer: the JVM's Avro reader on the same list of segments
    keys       offsets and keys alone                      peer: that, with these columns selected
    slice      a hundredth of the offsets                  peer: that, with a filter

The goal is the JVM's speed. Rows go to Spark's `noop` sink, sides run by turns in one warm session, and the middle run
counts: compare ratios, not seconds. CPU is that of the driver, the JVM and all workers.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import fastavro
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from keyfold.read.log import Log
from keyfold.spark.dataframe.paths import AVRO
from keyfold.spark.source.columns import COLUMNS, ddl
from keyfold_compactor.spark.session import spark_session
from tests.bench._folder_store import FolderStore
from tests.bench._processes import memory_folder
from tests.bench._records import RECORD_BYTES
from tests.bench.bench_spark_read import PLACE, TOPIC, URL, Cost, Side, compare, middle, write_log
from tests.support.spark_source import FolderDataSource

PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


class FastavroSource(DataSource):
    """What a user would write: one task a file, one tuple a record."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "fastavro"

    def schema(self) -> str:
        """The same columns."""
        return ddl(COLUMNS)

    def reader(self, schema: Any) -> DataSourceReader:
        """All files of the option `paths`."""
        return FastavroReader(self.options["paths"].split(","))


class FastavroReader(DataSourceReader):
    """See `FastavroSource`."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def partitions(self) -> list[InputPartition]:
        """One a file."""
        return [InputPartition(path) for path in self._paths]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Record after record."""
        with Path(partition.value).open("rb") as file:
            one: Any
            for one in fastavro.reader(file):
                headers = [(header["name"], header["value"]) for header in one["headers"]]
                yield (
                    0,
                    one["offset"],
                    one["timestamp"],
                    one["timestamp_type"],
                    one["key"],
                    one["value"],
                    headers,
                    one["leader_epoch"],
                )


def sides(spark: SparkSession, store: FolderStore, records: int) -> dict[str, dict[str, Side]]:
    """What is compared, the peer first."""
    entries = Log(store, "topics", TOPIC).manifest().segments
    files = [str(store.path(PLACE.key(entry.name))) for entry in entries]
    low, high = records // 2, records // 2 + records // 100

    def stock() -> DataFrame:
        return spark.read.format(AVRO).load(files)

    def ours(**options: str) -> DataFrame:
        given = {"url": URL, "topic": TOPIC, "s3.region": store.root, **options}
        return spark.read.format("keyfold-folder").options(**given).load()

    def plain() -> DataFrame:
        return spark.read.format("fastavro").option("paths", ",".join(files)).load()

    def slice_of(frame: DataFrame) -> DataFrame:
        return frame.where(f"offset >= {low} AND offset < {high}")

    def keys_of(frame: DataFrame) -> DataFrame:
        return frame.select("offset", "key")

    return {
        "all": {"spark.read avro": stock, "keyfold": ours, "fastavro": plain},
        "keys": {"spark.read avro": lambda: keys_of(stock()), "keyfold": lambda: ours(columns="offset,key")},
        "slice": {"spark.read avro": lambda: slice_of(stock()), "keyfold": lambda: slice_of(ours())},
    }


@click.command(help=__doc__)
@click.option("--records", default=800_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(records: int, rounds: int, *, as_json: bool) -> None:
    """Write the log, run all sides, print."""
    found: dict[str, dict[str, Cost]] = {}
    with tempfile.TemporaryDirectory(dir=memory_folder(4 * records * RECORD_BYTES)) as root:
        write_log(FolderStore(root), records, 20)
        settings = {"spark.master": "local[2]", "spark.driver.memory": "3g", PUSH_DOWN: "true"}
        with spark_session("bench", settings) as spark:
            spark.dataSource.register(FolderDataSource)
            spark.dataSource.register(FastavroSource)
            for name, contest in sides(spark, FolderStore(root), records).items():
                found[name] = {side: middle(runs) for side, runs in compare(contest, rounds).items()}
    if as_json:
        click.echo(json.dumps({c: {n: asdict(cost) for n, cost in costs.items()} for c, costs in found.items()}))
        return
    for contest_name, costs in found.items():
        peer = next(iter(costs.values()))
        for name, cost in costs.items():
            click.echo(
                f"{contest_name:7} {name:17} {cost.wall_s:7.2f} s {cost.cpu_s:7.2f} s of CPU   "
                f"{peer.wall_s / cost.wall_s:5.2f} times as fast, {peer.cpu_s / cost.cpu_s:5.2f} times as cheap"
            )


if __name__ == "__main__":
    main()
