"""A log read by Spark: keyfold's readers against what a user would write, on the same objects, in one warm session.

    python -m tests.bench.bench_spark_read [--records 800000] [--dirty 20] [--rounds 3] [--json]

    read       every record of a log of 1 KB records       peer: spark.read.format("avro") on the same list of segments
    latest     the last record of each key, of a log       peer: that, row_number() over a window by key, keep one
               whose clean tail has each key once and
               whose head, `--dirty` percent, writes
               some of them again
    clean      the same of a log that is wholly clean      peer: spark.read.parquet of the same rows, as Spark writes
                                                           them by default

Each side's rows go to Spark's `noop` sink, so that every column is decoded. Sides run by turns, and the middle run
counts: compare the ratios, not the seconds. CPU is that of the driver, the JVM and all workers; shuffled bytes are
those of Spark's event log. `wall_of_peer` and `cpu_of_peer` are multiples of the peer's seconds. The log is in memory
where there is room for it.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import click
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.read.log import Log
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.retry import Backoff, RetryPolicy
from keyfold.spark import latest_state, read_log
from keyfold.spark.dataframe.paths import AVRO
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.execute.run import Run, RunSettings
from keyfold_compactor.spark.session import spark_session
from tests.bench._folder_store import FolderStore
from tests.bench._processes import cpu_s, event_log, memory_folder, spark_traffic
from tests.bench._records import RECORD_BYTES, SEGMENT_RECORDS, Recipe, SegmentJob
from tests.bench.report.results import Row

URL, TOPIC = "s3://bucket/topics", "users"
PLACE, CLEAN = Place("topics", TOPIC, 0), Place("topics", "clean", 0)
Side = Callable[[], DataFrame]


@dataclass(frozen=True, slots=True)
class Cost:
    """One run of one side. Times in seconds; `begin_ms`, `end_ms` since the epoch, to find its tasks by."""

    wall_s: float
    cpu_s: float
    begin_ms: float
    end_ms: float
    shuffled_bytes: int = 0


def write_log(store: FolderStore, records: int, dirty: int, place: Place = PLACE) -> None:
    """A clean tail of which half the keys are written again in the head."""
    head = records * dirty // 100
    PartitionLog(store, place, clock=SystemClock(), random=Random()).create()
    _append(store, place, Recipe(records - head, garbage=0, seed=1), 0, records - head)
    settings = RunSettings(settings_of=lambda *_: TopicSettings(min_cleanable_dirty_ratio=0.0))
    executor = LocalExecutor(store, RetryPolicy(SystemClock(), Random(), Backoff(), 60.0))
    report = Run(store, settings, lambda _: executor, clock=SystemClock(), random=Random()).clean([place])
    assert report.exit_code == 0, report.document()
    _append(store, place, Recipe(records, garbage=50, seed=2), records - head, records)


def _append(store: FolderStore, place: Place, recipe: Recipe, start: int, end: int) -> None:
    sink = PartitionLog(store, place, clock=SystemClock(), random=Random()).claim_sink()
    for base in range(start, end, SEGMENT_RECORDS):
        stop = min(base + SEGMENT_RECORDS, end)
        name, sync = sink.new_name(base), sink.manifest.sync_marker
        sink.append(SegmentJob(store, place, name, recipe, base, stop, sync, "zstandard").write_to(store))


def sides(spark: SparkSession, store: FolderStore) -> dict[str, dict[str, Side]]:
    """What is compared, the peer first."""
    where: dict[str, Any] = {"store": store, "root": Path(store.root).as_uri()}
    entries = Log(store, "topics", TOPIC).manifest().segments
    paths = [f"{where['root']}/{PLACE.key(entry.name)}" for entry in entries]
    parquet = str(Path(store.root, "parquet"))
    read_log(spark, URL, CLEAN.topic, engine="jvm", **where).write.parquet(parquet)
    newest = Window.partitionBy("key").orderBy(F.col("offset").desc())

    def stock() -> DataFrame:
        return spark.read.format(AVRO).load(paths)

    def window() -> DataFrame:
        ranked = stock().where("key IS NOT NULL").withColumn("rank", F.row_number().over(newest))
        return ranked.where("rank = 1 AND value IS NOT NULL").drop("rank")

    def by_engine(read: Callable[..., DataFrame], topic: str) -> dict[str, Side]:
        engines = ("jvm", "keyfold")
        return {f"{read.__name__} {name}": partial(read, spark, URL, topic, engine=name, **where) for name in engines}

    return {
        "read": {"spark.read avro": stock, **by_engine(read_log, TOPIC)},
        "latest": {"window": window, **by_engine(latest_state, TOPIC)},
        "clean": {"spark.read parquet": lambda: spark.read.parquet(parquet), **by_engine(latest_state, CLEAN.topic)},
    }


def measured(side: Side) -> Cost:
    """What making a DataFrame and all its rows costs, but for the shuffle."""
    begin_ms, wall, cpu = time.time() * 1000, time.monotonic(), cpu_s()
    side().write.format("noop").mode("overwrite").save()
    return Cost(time.monotonic() - wall, cpu_s() - cpu, begin_ms, time.time() * 1000)


def compare(contest: Mapping[str, Side], rounds: int) -> dict[str, list[Cost]]:
    """Each side's runs; a first one of each warms up, and must give as many rows as the others."""
    counts = {name: side().count() for name, side in contest.items()}
    assert len(set(counts.values())) == 1, counts
    costs: dict[str, list[Cost]] = {name: [] for name in contest}
    for number in range(rounds):
        order = list(contest)
        for name in order[number % len(order) :] + order[: number % len(order)]:
            costs[name].append(measured(contest[name]))
    return costs


def middle(runs: Sequence[Cost]) -> Cost:
    """The run of median wall time (of an even number: the later half's first)."""
    return sorted(runs, key=lambda cost: cost.wall_s)[len(runs) // 2]


def row(contest: str, side: str, cost: Cost, peer: Cost, runs: Sequence[Cost]) -> Row:
    """The figures of one side: its middle run, that as a multiple of the peer's, and all runs."""
    rounds = {"wall_s": [run.wall_s for run in runs], "cpu_s": [run.cpu_s for run in runs]}
    return {
        "contest": contest,
        "side": side,
        "wall_s": cost.wall_s,
        "cpu_s": cost.cpu_s,
        "wall_of_peer": cost.wall_s / peer.wall_s,
        "cpu_of_peer": cost.cpu_s / peer.cpu_s,
        "shuffled_bytes": cost.shuffled_bytes,
        "rounds": rounds,
    }


@click.command(help=__doc__)
@click.option("--records", default=800_000, show_default=True)
@click.option("--dirty", default=20, show_default=True, help="percent of the records that are above first_dirty_offset")
@click.option("--rounds", default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(records: int, dirty: int, rounds: int, *, as_json: bool) -> None:
    """Write the log, run all sides, print."""
    with (
        tempfile.TemporaryDirectory(dir=memory_folder(7 * records * RECORD_BYTES)) as root,
        tempfile.TemporaryDirectory() as events,
    ):
        write_log(FolderStore(root), records, dirty)
        write_log(FolderStore(root), records, 0, CLEAN)
        settings = {"spark.master": "local[2]", "spark.driver.memory": "3g", "spark.sql.shuffle.partitions": "8"}
        with spark_session("bench", {**settings, **event_log(Path(events))}) as spark:
            contests = sides(spark, FolderStore(root))
            runs = {name: compare(contest, rounds) for name, contest in contests.items()}
        found = {name: {side: middle(costs) for side, costs in sides.items()} for name, sides in runs.items()}
        for costs in found.values():
            for name, cost in costs.items():
                traffic = spark_traffic(Path(events), cost.begin_ms, cost.end_ms)
                costs[name] = replace(cost, shuffled_bytes=traffic.shuffled_bytes)
    rows = [
        row(contest, side, cost, next(iter(costs.values())), runs[contest][side])
        for contest, costs in found.items()
        for side, cost in costs.items()
    ]
    if as_json:
        click.echo(json.dumps(rows))
        return
    for one in rows:
        click.echo(
            f"{one['contest']:7} {one['side']:22} {one['wall_s']:7.2f} s {one['cpu_s']:7.2f} s of CPU "
            f"{one['shuffled_bytes'] / 1e6:8.1f} MB shuffled  {one['wall_of_peer']:5.2f} of the peer's time, "
            f"{one['cpu_of_peer']:5.2f} of its CPU"
        )


if __name__ == "__main__":
    main()
