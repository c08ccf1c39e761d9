"""Thousands of small partitions in one run, and what a run and a plan cost that find nothing to do.

    python -m tests.bench.bench_partitions [--partitions 5000] [--records 1000] [--segments 4] [--garbage 0.5]

Each partition has 1,000 records of 1 KB in four segments, half of them garbage; the data are links to one partition's
objects, in memory where there is room. Spark is warm. Idle figures are those of a process of its own, without Spark:
everything but its start and its imports. Requests are counted over all processes. A store that answers at once is not
S3: `log.cleaner.threads` requests wait there side by side, so add requests x latency / threads for the driver's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Final

import click

from keyfold.log import catalog
from keyfold.log.names import Place
from keyfold.runtime.clock import SystemClock
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.execute.executor import Executor
from keyfold_compactor.execute.run import Run, RunSettings
from keyfold_compactor.report.report import RunReport
from tests.bench import _many
from tests.bench._folder_store import FolderStore
from tests.bench._many import TalliedFolder
from tests.bench._processes import ROLES, Peaks, cpu_s, memory_folder

MIB: Final = 1024 * 1024
SETTINGS: Final = TopicSettings(min_cleanable_dirty_ratio=0.0)


def new_run(source: TalliedFolder, executor: Executor | None) -> Run:
    """A run with the defaults of the command; without an executor it must not need one."""

    def given(_due_bytes: int) -> Executor:
        assert executor is not None, "a run with nothing to do asks for no Spark"
        return executor

    settings = RunSettings(settings_of=lambda *_: SETTINGS)
    return Run(source.open(), settings, given, clock=SystemClock(), random=Random())


def cleaned(source: TalliedFolder, places: list[Place], warm: Place) -> None:
    """Clean all in a warm session; print what it took."""
    from keyfold_compactor.spark.executor import SparkExecutor
    from keyfold_compactor.spark.session import spark_session
    from keyfold_compactor.spark.tasks import TaskEnvironment

    conf = {"spark.master": "local[2]", "spark.driver.memory": "2g"}
    with spark_session("bench", conf) as spark:
        executor = SparkExecutor(spark, TaskEnvironment(source, None, 5.0), map_bytes=64 * MIB)
        _checked(new_run(source, executor).clean([warm]))
        tracker = spark.sparkContext.statusTracker()
        jobs, requests = len(tracker.getJobIdsForGroup(None)), source.requests()
        with Peaks() as peaks:
            begun_s, begun_cpu_s = time.monotonic(), cpu_s()
            report = _checked(new_run(source, executor).clean(places))
            took_s, used_s = time.monotonic() - begun_s, cpu_s() - begun_cpu_s
        jobs = len(tracker.getJobIdsForGroup(None)) - jobs
    count = len(places)
    print(
        f"clean: {took_s:.1f} s, {count / took_s:.0f} partitions/s, {used_s:.1f} CPU s "
        f"({1000 * used_s / count:.1f} ms a partition), {jobs} Spark jobs"
    )
    memory = ", ".join(f"{role} {sum(peaks.of(role)) / MIB:,.0f}" for role in ROLES)
    print(f"  memory at most, MiB: {memory}")
    _print_requests(source.requests() - requests, count)
    freed = sum(p.before.bytes - p.after.bytes for p in report.partitions)
    print(f"  {freed / 1e6:,.0f} MB freed of {sum(p.before.bytes for p in report.partitions) / 1e6:,.0f}", flush=True)


def _checked(report: RunReport) -> RunReport:
    assert report.exit_code == 0, report.document()
    assert all(p.removed for p in report.partitions)
    return report


def _print_requests(requests: Counter[str], count: int) -> None:
    found = ", ".join(f"{name} {number / count:.2f}" for name, number in sorted(requests.items()))
    print(f"  {sum(requests.values()) / count:.1f} requests a partition: {found}", flush=True)


def idle(root: str, tally: str) -> None:
    """In a process of its own: a run for the maintenance that is left, a plan and a run with nothing to do."""
    source = TalliedFolder(root, tally)
    for name in ("maintenance", "idle plan", "idle run"):
        requests = source.requests()
        begun_s, begun_cpu_s = time.monotonic(), time.process_time()
        places = [p for p in catalog.places(source.open(), "topics") if p.topic == _many.TOPIC]
        if name == "idle plan":
            looks = new_run(source, None).review(places)
            assert not any(k.error or k.decision is None or k.decision.is_due or k.decision.maintenance for k in looks)
        else:
            report = new_run(source, None).clean(places)
            assert report.exit_code == 0
            assert not report.partitions
        took_s, used_s = time.monotonic() - begun_s, time.process_time() - begun_cpu_s
        print(f"{name}: {took_s:.1f} s, {used_s:.1f} CPU s, {len(places) / took_s:.0f} partitions/s")
        _print_requests(source.requests() - requests, len(places))
    assert "pyspark" not in sys.modules
    print("  pyspark was not imported", flush=True)


@click.command()
@click.option("--partitions", default=5_000)
@click.option("--records", default=1_000, help="Of 1 KB, in each partition.")
@click.option("--segments", default=4, help="In each partition.")
@click.option("--garbage", default=0.5)
@click.option("--folder", default=None, help="Where the logs are; memory or a temporary folder otherwise.")
def main(partitions: int, records: int, segments: int, garbage: float, folder: str | None) -> None:
    """Print partitions a second, CPU, memory and requests."""
    os.environ["PYTHONPATH"] = str(Path.cwd())
    needed = 2 * partitions * records * 1024
    root = Path(tempfile.mkdtemp(prefix="keyfold-many-", dir=folder or memory_folder(needed)))
    try:
        tally = root / "tally"
        tally.mkdir()
        source = TalliedFolder(str(root / "logs"), str(tally))
        begun_s = time.monotonic()
        template = _many.make(root / "logs", partitions, records=records, segments=segments, garbage=garbage)
        made_s = time.monotonic() - begun_s
        print(
            f"{partitions:,} partitions of {template.record_count:,} records, {template.size_bytes / 1e6:.2f} MB "
            f"stored in {len(template.segments)} segments, {garbage:.0%} garbage; made in {made_s:.1f} s",
            flush=True,
        )
        warm = Place("topics", "warm", 0)
        _many.link(FolderStore(source.root), template, warm)
        cleaned(source, _many.places(partitions), warm)
        code = "import sys; from tests.bench.bench_partitions import idle; idle(*sys.argv[1:])"
        subprocess.run([sys.executable, "-c", code, source.root, source.tally], check=True)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
