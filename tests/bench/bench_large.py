"""Ten million records of 1 KB over one and over 16 partitions: what each process of a pass needs of memory.

    python -m tests.bench.bench_large [--records 1000000] [--partitions 1,16] [--garbage 50] [--key-bytes 17]
                                      [--limit-mb 4096]

The goal is for `--records 10000000` (10 GB of records, 7 GB of disk while it runs): driver, JVM and each worker stay
below 4 GB. The peaks are those that the kernel keeps (VmHWM); the log is written by other processes beforehand.
`--key-bytes` makes keys longer by what they have in common, which an index hardly stores, but memory does, and
`log.cleaner.map.bytes` counts stored bytes.
Exit code 1 where a process needed more.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

import click

from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.runtime.clock import SystemClock
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.execute.run import Run, RunSettings
from keyfold_compactor.spark.executor import SparkExecutor
from keyfold_compactor.spark.session import spark_session
from keyfold_compactor.spark.tasks import TaskEnvironment
from tests.bench._folder_store import FolderStore
from tests.bench._processes import ROLES, Peaks
from tests.bench._records import KEY_BYTES, Recipe, fill

MIB: Final = 1024 * 1024
MAP_BYTES: Final = 64 * MIB
"""The default of `log.cleaner.map.bytes`."""


def measure(root: Path, recipe: Recipe, partitions: int, codec: str, heap: str) -> Peaks:
    """Write the logs, clean them in a fresh session, check what is left, print what it took."""
    store = FolderStore(str(root))
    places = [Place("topics", "large", p) for p in range(partitions)]
    begun = time.monotonic()
    before = fill(store, [(p, replace(recipe, seed=p.partition)) for p in places], codec=codec)
    filled_s = time.monotonic() - begun
    stored = sum(s.size_bytes for m in before for s in m.segments)
    indexes = sum(s.index_size_bytes for m in before for s in m.segments)
    print(
        f"{recipe.count * partitions:,} records over {partitions} partitions, {recipe.garbage} % garbage: "
        f"{recipe.raw_bytes * partitions / 1e9:.1f} GB of records, {stored / 1e9:.2f} GB stored, "
        f"indexes of {indexes / 1e6:.0f} MB ({indexes / partitions / MAP_BYTES:.1f} times map.bytes a log), "
        f"written in {filled_s:.0f} s",
        flush=True,
    )
    conf = {"spark.master": "local[2]", "spark.driver.memory": heap}
    with spark_session("bench", conf) as spark, Peaks() as peaks:
        executor = SparkExecutor(spark, TaskEnvironment(store, None, 5.0), map_bytes=MAP_BYTES)
        settings = RunSettings(settings_of=lambda *_: TopicSettings(min_cleanable_dirty_ratio=0.0))
        run = Run(store, settings, lambda _: executor, clock=SystemClock(), random=Random())
        begun = time.monotonic()
        report = run.clean(places)
        took_s = time.monotonic() - begun
    assert report.exit_code == 0, report.document()
    left = [PartitionLog(store, p, clock=SystemClock(), random=Random()).load().manifest for p in places]
    assert [m.record_count for m in left] == [recipe.key_count] * partitions
    print(f"  cleaned in {took_s:.1f} s, {recipe.raw_bytes * partitions / 1e6 / took_s:.0f} MB of records a second")
    return peaks


@click.command()
@click.option("--records", default=1_000_000)
@click.option("--partitions", default="1,16")
@click.option("--garbage", default=50, help="Percent of records that are superseded.")
@click.option("--codec", default="zstandard")
@click.option("--key-bytes", default=KEY_BYTES)
@click.option("--heap", default="3g", help="spark.driver.memory")
@click.option("--limit-mb", default=4096, help="What no process may exceed, MiB.")
@click.option("--folder", default=None, help="Where the logs are written; a temporary folder otherwise.")
def main(
    records: int,
    partitions: str,
    garbage: int,
    codec: str,
    key_bytes: int,
    heap: str,
    limit_mb: int,
    folder: str | None,
) -> None:
    """Print peaks of memory by process."""
    os.environ["PYTHONPATH"] = str(Path.cwd())
    fits = True
    for count in map(int, partitions.split(",")):
        root = Path(tempfile.mkdtemp(prefix="keyfold-large-", dir=folder))
        try:
            peaks = measure(root, Recipe(records // count, garbage, key_bytes=key_bytes), count, codec, heap)
        finally:
            shutil.rmtree(root)
        for role in ROLES:
            found = peaks.of(role)
            good = bool(found) and found[0] < limit_mb * MIB
            fits &= good
            text = ", ".join(f"{peak / MIB:,.0f}" for peak in found)
            print(f"  {role:<7} peak {text} MiB: below {limit_mb:,} MiB: {'yes' if good else 'no'}", flush=True)
    sys.exit(0 if fits else 1)


if __name__ == "__main__":
    main()
