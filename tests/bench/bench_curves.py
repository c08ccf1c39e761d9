"""How cost grows: CPU against work over decades, with the slope of both logarithms.

    python -m tests.bench.bench_curves [--curve NAME] [--quick] [--json]

    records       one pass over 100,000 to 1,000,000 records of 1 KB, half of them superseded
    keys          one pass over 50,000 records with keys of 8 to 1,024 bytes
    garbage       one pass over 100,000 records, 1 to 99 % of them superseded; work: the floor of `tests.bench._floors`
    workers       one pass over eight partitions of 50,000 records on Spark, with 1 to 8 workers of a standalone cluster
    partitions    one run over 1 to 20,000 partitions, none of them due
    segments      one look at a log of 10 to 10,000 segments of 10,000 records each: 100,000 to 100,000,000 records
    commits       one commit of the sink to such a log

A slope of 1 means that twice the work costs twice the CPU; below 1, a constant part still counts. A slope above
`SLOPE_MAX` is a defect, and the exit code is 1. Passes are those of the local engine in one thread, on logs in memory.
The logs of `segments` and `commits` are manifests without objects. CPU is the least of three runs. That of `workers` is
of the driver, all executors and their Python workers, once these are warm.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import click
import numpy as np
from pyspark.sql import SparkSession

from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.manifest_codec import encode_manifest
from keyfold.log.names import Place, Role, new_name
from keyfold.log.partition_log import PartitionLog
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import Create, ObjectStore
from keyfold.store.memory import MemoryStore
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.execute.executor import Executor
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.execute.run import Run, RunSettings
from keyfold_compactor.spark.executor import SparkExecutor
from keyfold_compactor.spark.session import spark_session
from keyfold_compactor.spark.tasks import TaskEnvironment
from keyfold_demo.java import QUICK_JVM
from tests.bench._floors import pass_floor_s
from tests.bench._folder_store import FolderStore
from tests.bench._processes import cpu_s, memory_folder
from tests.bench._records import Recipe, fill
from tests.bench.report.results import Row, rows_as_json
from tests.support.logs import MadeLog, records

SLOPE_MAX: Final = 1.1
RUNS: Final = 3
SEGMENT_RECORDS: Final = 10_000
TOPIC: Final = "curve"
_PLACE: Final = Place("topics", TOPIC, 0)
_SETTINGS: Final = TopicSettings(min_cleanable_dirty_ratio=0.0)
_CLUSTER_PARTITIONS: Final = 8
_CLUSTER: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "1g",
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@dataclass(frozen=True, slots=True)
class Point:
    """Work in the curve's unit, and the CPU seconds that it took."""

    work: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve: what its work is counted in, how to measure, and the amounts of work."""

    unit: str
    points: Callable[[Sequence[int]], Iterator[Point]]
    steps: Sequence[int]


def slope(points: Sequence[Point]) -> float:
    """Return the exponent of the power of the work that fits the CPU best. It needs two different amounts of work."""
    work, cpu_s = np.log([point.work for point in points]), np.log([point.cpu_s for point in points])
    return float(np.polyfit(work, cpu_s, 1)[0])


def least_s(*runs: Callable[[], object]) -> float:
    """Return the CPU seconds of the cheapest of several runs."""
    found = []
    for run in runs:
        begun_s = time.process_time()
        run()
        found.append(time.process_time() - begun_s)
    return min(found)


# Passes


Work = Callable[[Recipe, Manifest, FolderStore], float]
"""The work of a pass, from the log's recipe, the manifest before it and the store after it."""


def passes(recipe_of: Callable[[int], Recipe], work_of: Work, steps: Sequence[int]) -> Iterator[Point]:
    """Yield one point for each recipe: a pass over its log."""
    for step in steps:
        recipe = recipe_of(step)
        root = Path(tempfile.mkdtemp(prefix="keyfold-curve-", dir=memory_folder(2 * recipe.raw_bytes)))
        try:
            (before,) = fill(FolderStore(str(root / "made")), [(_PLACE, recipe)])
            copies = [root / f"copy{number}" for number in range(RUNS)]
            cpu_s = min([_pass_s(root / "made", copy) for copy in copies])
            yield Point(work_of(recipe, before, FolderStore(str(copies[0]))), cpu_s)
        finally:
            shutil.rmtree(root)


def _pass_s(made: Path, copy: Path) -> float:
    """Return the CPU seconds of a pass over a copy of a log."""
    store = _copied(made, copy)
    return _cleaned_s(store, LocalExecutor(store, RetryPolicy(SystemClock(), Random())), [_PLACE], time.process_time)


def _copied(made: Path, copy: Path) -> FolderStore:
    """Copy logs. Objects are never changed, so links are a copy."""
    shutil.copytree(made, copy, copy_function=os.link)
    return FolderStore(str(copy))


def _cleaned_s(store: FolderStore, executor: Executor, places: Sequence[Place], used_s: Callable[[], float]) -> float:
    """Clean logs, and return the CPU seconds that this took."""
    run, begun_s = new_run(store, executor), used_s()
    report = run.clean(places)
    took_s = used_s() - begun_s
    assert report.exit_code == 0, report.document()
    return took_s


def _floor_s(_recipe: Recipe, before: Manifest, store: FolderStore) -> float:
    after = PartitionLog(store, _PLACE, clock=SystemClock(), random=Random()).load().manifest
    return pass_floor_s(store, _PLACE, before, after)


def new_run(store: ObjectStore, executor: Executor | None) -> Run:
    """Return a run. Without an executor nothing may be due."""

    def given(_due_bytes: int) -> Executor:
        assert executor is not None, "nothing is due"
        return executor

    return Run(store, RunSettings(settings_of=lambda *_: _SETTINGS), given, clock=SystemClock(), random=Random())


def cluster_passes(steps: Sequence[int]) -> Iterator[Point]:
    """Yield one point for each number of workers: a pass over the same logs."""
    places = [replace(_PLACE, partition=number) for number in range(_CLUSTER_PARTITIONS)]
    recipe = Recipe(50_000, 50)
    root = Path(tempfile.mkdtemp(prefix="keyfold-curve-", dir=memory_folder(4 * len(places) * recipe.raw_bytes)))
    os.environ.update(PYTHONPATH=str(Path.cwd()), PYSPARK_PYTHON=sys.executable)  # for the workers
    try:
        fill(FolderStore(str(root / "made")), [(place, recipe) for place in places])
        for count in steps:
            with spark_session("curve", {"spark.master": f"local-cluster[{count},1,1024]", **_CLUSTER}) as spark:
                yield Point(count, min(_passes_on(spark, root, places)[1:]))  # the first one warms the workers up
    finally:
        shutil.rmtree(root)


def _passes_on(spark: SparkSession, root: Path, places: Sequence[Place]) -> list[float]:
    found = []
    for _ in range(1 + RUNS):
        copy = root / "copy"
        store = _copied(root / "made", copy)
        executor = SparkExecutor(spark, TaskEnvironment(store, None, 5.0), map_bytes=64 * 1024 * 1024)
        found.append(_cleaned_s(store, executor, places, cpu_s))
        shutil.rmtree(copy)
    return found


# Manifests


def idle_runs(steps: Sequence[int]) -> Iterator[Point]:
    """Yield one point for each number of partitions: a run that finds nothing to do."""
    for count in steps:
        store = MemoryStore()
        made = MadeLog(store=store, place=_PLACE, clock=SystemClock())
        made.append(records("a=1 b=2"))
        new_run(store, LocalExecutor(store, RetryPolicy(SystemClock(), Random()))).clean([_PLACE])
        places = [replace(_PLACE, partition=number) for number in range(count)]
        for place in places[1:]:
            manifest = replace(made.manifest, partition=place.partition, log_id=f"log-{place.partition}")
            store.put(place.manifest_key, encode_manifest(manifest), Create())
        new_run(store, None).clean(places)  # does what is left to do after a pass
        yield Point(count, least_s(*[partial(new_run(store, None).clean, places) for _ in range(RUNS)]))


def looks(steps: Sequence[int]) -> Iterator[Point]:
    """Yield one point for each number of segments: a look that reads the manifest and decides."""
    for count in steps:
        store = MemoryStore()
        _long_log(store, count)
        yield Point(count, least_s(*[partial(new_run(store, None).review, [_PLACE]) for _ in range(RUNS)]))


def commits(steps: Sequence[int]) -> Iterator[Point]:
    """Yield one point for each number of segments: the commit of one more."""
    for count in steps:
        store = MemoryStore()
        last = _long_log(store, count)
        sink = PartitionLog(store, _PLACE, clock=SystemClock(), random=Random(1)).claim_sink()
        more = [_moved(last, count + number, sink.epoch) for number in range(RUNS)]
        yield Point(count, least_s(*[partial(sink.append, entry) for entry in more]))


def _long_log(store: MemoryStore, count: int) -> SegmentEntry:
    """Make a log of `count` segments, of which only the manifest exists. Return the last one's entry."""
    made = MadeLog(store=store, place=_PLACE, clock=SystemClock())
    made.append(records("a=1"))
    manifest: Manifest = made.manifest
    entries = [_moved(manifest.segments[0], number) for number in range(count)]
    long = replace(manifest, segments=tuple(entries), next_offset=count * SEGMENT_RECORDS)
    store.delete(_PLACE.manifest_key)
    store.put(_PLACE.manifest_key, encode_manifest(long), Create())
    return entries[-1]


def _moved(entry: SegmentEntry, number: int, epoch: int = 1) -> SegmentEntry:
    """Return an entry like this one, for the segment with this number."""
    base, end = number * SEGMENT_RECORDS, (number + 1) * SEGMENT_RECORDS
    name = new_name(base, epoch, Role.SINK, Random(number))
    return replace(
        entry,
        name=str(name),
        index_name=str(name.index),
        base_offset=base,
        last_offset=end - 1,
        next_offset=end,
        record_count=SEGMENT_RECORDS,
    )


CURVES: Final = {
    "records": Curve(
        "records",
        partial(passes, lambda count: Recipe(count, 50), lambda recipe, *_: recipe.count),
        (100_000, 200_000, 500_000, 1_000_000),
    ),
    "keys": Curve(
        "bytes of a key",
        partial(passes, lambda size: Recipe(50_000, 50, key_bytes=size), lambda recipe, *_: recipe.key_bytes),
        (8, 17, 64, 256, 1024),
    ),
    "garbage": Curve(
        "CPU seconds of the floor",
        partial(passes, lambda percent: Recipe(100_000, percent), _floor_s),
        (1, 10, 50, 90, 99),
    ),
    "workers": Curve("workers", cluster_passes, (1, 2, 4, 8)),
    "partitions": Curve("partitions", idle_runs, (1, 10, 100, 1_000, 5_000, 20_000)),
    "segments": Curve("segments", looks, (10, 100, 1_000, 10_000)),
    "commits": Curve("segments", commits, (10, 100, 1_000, 10_000)),
}


def show(name: str, curve: Curve, points: Sequence[Point]) -> Row:
    """Print a curve and return it as a row."""
    found = slope(points)
    costs = ", ".join(
        f"{point.work:,.{0 if point.work >= 10 else 2}f}: {point.cpu_s * 1000:,.1f} ms" for point in points
    )
    verdict = "" if found <= SLOPE_MAX else "   grows faster than its work"
    print(f"{name:<12}slope {found:5.2f}{verdict}\n            {curve.unit}: {costs}", flush=True)
    return {
        "curve": name,
        "unit": curve.unit,
        "slope": found,
        "work": [point.work for point in points],
        "cpu_s": [point.cpu_s for point in points],
    }


@click.command(help=__doc__)
@click.option("--curve", "names", multiple=True, type=click.Choice(list(CURVES)), help="all by default")
@click.option("--quick", is_flag=True, help="only the two smallest amounts of work")
@click.option("--json", "as_json", is_flag=True, help="print rows as JSON, the table to stderr")
def main(names: tuple[str, ...], quick: bool, as_json: bool) -> None:
    """Measure the curves."""
    with rows_as_json(as_json) as rows:
        for name in names or CURVES:
            curve = CURVES[name]
            rows.append(show(name, curve, list(curve.points(curve.steps[:2] if quick else curve.steps))))
    if not quick and any(row["slope"] > SLOPE_MAX for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
