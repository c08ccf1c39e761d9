"""The two engines of the compactor on the same logs, from a start without Spark: from which size on Spark is faster.

    python -m tests.bench.bench_engines [--records 400,40000,400000,2000000] [--garbage 90,10] [--rounds 3] [--json]

Four partitions share the records of 1 KB, in a folder in memory. Spark's start is measured once and added to each of
its runs, as `--once` has it; the run itself is measured in the warm session, so Spark's figure is its best.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random, SystemRandom

import click

from keyfold.log.names import Place
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.retry import RetryPolicy
from keyfold_compactor.engine import processor_count
from keyfold_compactor.execute.executor import Executor
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.execute.run import Run, RunSettings
from keyfold_compactor.spark.executor import SparkExecutor
from keyfold_compactor.spark.session import spark_session
from keyfold_compactor.spark.tasks import TaskEnvironment
from tests.bench._folder_store import FolderStore
from tests.bench._processes import memory_folder
from tests.bench.bench_compactor import SETTINGS, Cost, fill, measured

OnSpark = Callable[[FolderStore], SparkExecutor]
MAP_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Figures:
    """One size of log; `start_s` is Spark's start."""

    stored_bytes: int
    start_s: float
    spark: Cost
    local: Cost

    @property
    def ratio(self) -> float:
        """How many times longer the local engine takes than Spark with its start."""
        return self.local.wall_s / (self.start_s + self.spark.wall_s)


def run(store: FolderStore, executor: Executor, places: list[Place]) -> None:
    """One run of the compactor."""
    settings = RunSettings(settings_of=lambda *_: SETTINGS)
    report = Run(store, settings, lambda _: executor, clock=SystemClock(), random=Random()).clean(places)
    assert report.exit_code == 0, report.document()


def compare(folder: Path, records: int, garbage: int, rounds: int, spark: OnSpark, start_s: float) -> Figures:
    """Both engines by turns; the runs of median wall time."""
    filled = FolderStore(str(folder / "filled"))
    places = [Place("topics", "users", partition) for partition in range(4)]
    manifests = [fill(filled, p, max(1, records // 4), garbage, p.partition) for p in places]
    costs: dict[str, list[Cost]] = {"spark": [], "local": []}
    for number in range(rounds):
        for engine in sorted(costs, reverse=number % 2 == 0):
            root = folder / engine
            shutil.copytree(folder / "filled" / "topics", root / "topics", copy_function=os.link)
            store = FolderStore(str(root))
            executor: Executor
            if engine == "local":
                retry = RetryPolicy(SystemClock(), SystemRandom())
                slots = processor_count()
                executor = LocalExecutor(store, retry, slots=slots, is_single_stage=True, map_bytes=MAP_BYTES)
            else:
                executor = spark(store)
            costs[engine].append(measured(partial(run, store, executor, places)))
            shutil.rmtree(root)
    shutil.rmtree(folder / "filled")
    middle = {engine: sorted(found, key=lambda c: c.wall_s)[rounds // 2] for engine, found in costs.items()}
    stored_bytes = sum(s.size_bytes for m in manifests for s in m.segments)
    return Figures(stored_bytes, start_s, middle["spark"], middle["local"])


@click.command()
@click.option("--records", default="400,40000,400000,2000000", help="Records of 1 KB in all four partitions.")
@click.option("--garbage", default="90,10", help="Percent of records that are superseded.")
@click.option("--rounds", default=3, help="Runs of each engine; the one of median wall time counts.")
@click.option("--json", "as_json", is_flag=True)
def main(records: str, garbage: str, rounds: int, *, as_json: bool) -> None:
    """Print costs and ratios."""
    os.environ["PYTHONPATH"] = str(Path.cwd())
    counts = [int(count) for count in records.split(",")]
    found: dict[tuple[int, int], Figures] = {}
    with tempfile.TemporaryDirectory(dir=memory_folder(3 * max(counts) * 1024)) as temporary:
        begun_s = time.monotonic()
        with spark_session("bench", {"spark.master": f"local[{processor_count()}]"}) as session:
            start_s = time.monotonic() - begun_s

            def on_spark(store: FolderStore) -> SparkExecutor:
                return SparkExecutor(session, TaskEnvironment(store, None, 5.0), map_bytes=MAP_BYTES)

            compare(Path(temporary, "warm"), 40_000, 50, 2, on_spark, start_s)
            for percent in map(int, garbage.split(",")):
                for count in counts:
                    figures = compare(Path(temporary, "log"), count, percent, rounds, on_spark, start_s)
                    found[percent, count] = figures
                    if not as_json:
                        show(percent, figures)
    if as_json:
        print(json.dumps([{"garbage_percent": p, "records": n, "ratio": f.ratio} for (p, n), f in found.items()]))


def show(garbage: int, found: Figures) -> None:
    """One line of figures."""
    local, spark = found.local, found.spark
    print(
        f"{garbage:2d} % garbage, {found.stored_bytes / 1e6:8,.1f} MB   "
        f"local {local.wall_s:6.2f} s, {local.cpu_s:6.2f} CPU s, {local.cpu_s / local.wall_s:.1f} cores   "
        f"Spark {spark.wall_s:6.2f} s, {spark.cpu_s:6.2f} CPU s, and"
        f" {found.start_s:.1f} s of start   local takes {found.ratio:.2f} of Spark's time",
        flush=True,
    )


if __name__ == "__main__":
    main()
