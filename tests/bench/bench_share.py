"""How much faster two compactors clean a backlog than one, with a core each and the default settings.

    python -m tests.bench.bench_share [--logs 64] [--records 40000] [--behind 0]

First one run cleans all logs, then two runs clean as many equal ones, started together (or one `--behind` seconds
later). Each is a process with a core of its own and a warm Spark with one task at a time; the logs are links to the
objects of one. The ratio is the time until both have ended to the time of the one. The goal is 0.65 at most, where each
of the two cleans a third at least. On a machine with other work the two lack a core that the one had: the same ratio of
CPU seconds, the busier one's, says what it would be.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import click

from keyfold.log.names import Place
from keyfold.runtime.clock import SystemClock
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.execute.run import Run, RunSettings
from keyfold_compactor.report.report import PartitionOutcome, RunReport
from tests.bench import _many
from tests.bench._folder_store import FolderStore
from tests.bench._many import TalliedFolder
from tests.bench._processes import cpu_s, memory_folder

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Ended:
    """What one run did, and when it ended, by the clock that all processes share."""

    cleaned: int
    ended_s: float
    used_s: float


def compactor(source: TalliedFolder, number: int, commands: Connection) -> None:
    """One compactor on one core: each command is some places and when to begin; None is the end."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    from keyfold_compactor.spark.executor import SparkExecutor
    from keyfold_compactor.spark.session import spark_session
    from keyfold_compactor.spark.tasks import TaskEnvironment

    with spark_session("bench", {"spark.master": "local[1]", "spark.driver.memory": "1g"}) as spark:
        executor = SparkExecutor(spark, TaskEnvironment(source, None, 5.0), map_bytes=64 * MIB)

        def clean(places: list[Place]) -> RunReport:
            settings = RunSettings(
                settings_of=lambda *_: TopicSettings(min_cleanable_dirty_ratio=0.0), holder=f"run-{number}"
            )
            run = Run(source.open(), settings, lambda _: executor, clock=SystemClock(), random=Random())
            report = run.clean(places)
            assert report.exit_code == 0, report.document()
            return report

        clean([Place("topics", f"warm-{number}", 0)])
        cpu_s()
        commands.send(None)
        while (command := commands.recv()) is not None:
            places, begins_s = command
            time.sleep(max(0.0, begins_s - time.monotonic()))
            begun_cpu_s = cpu_s()
            report = clean(places)
            cleaned = sum(p.outcome is PartitionOutcome.CLEANED for p in report.partitions)
            commands.send(Ended(cleaned, time.monotonic(), cpu_s() - begun_cpu_s))


def timed(compactors: list[Connection], places: list[Place], behind_s: float) -> tuple[float, list[Ended]]:
    """Let some compactors clean the same places; seconds until all have ended, and what each has done."""
    begun_s = time.monotonic() + 0.2
    for number, each in enumerate(compactors):
        each.send((places, begun_s + number * behind_s))
    found = [each.recv() for each in compactors]
    assert sum(each.cleaned for each in found) == len(places), found
    return max(each.ended_s for each in found) - begun_s, found


@click.command()
@click.option("--logs", default=64)
@click.option("--records", default=40_000, help="Of 1 KB, in each log.")
@click.option("--behind", "behind_s", default=0.0, help="Seconds by which the second run starts later.")
@click.option("--folder", default=None, help="Where the logs are; memory or a temporary folder otherwise.")
def main(logs: int, records: int, behind_s: float, folder: str | None) -> None:
    """Print the ratio, and the shares."""
    os.environ["PYTHONPATH"] = str(Path.cwd())
    needed = 2 * logs * records * 1024
    root = Path(tempfile.mkdtemp(prefix="keyfold-share-", dir=folder or memory_folder(needed)))
    context = get_context("spawn")
    processes = []
    try:
        tally = root / "tally"
        tally.mkdir()
        source = TalliedFolder(str(root / "logs"), str(tally))
        template = _many.make(root / "logs", logs, records=records, segments=4, garbage=0.5)
        store = FolderStore(source.root)
        again = [Place("topics", "again", number) for number in range(logs)]
        for place in (*again, Place("topics", "warm-0", 0), Place("topics", "warm-1", 0)):
            _many.link(store, template, place)
        commands = []
        for number in range(2):
            here, there = context.Pipe()
            processes.append(context.Process(target=compactor, args=(source, number, there)))
            processes[-1].start()
            there.close()
            here.recv()
            commands.append(here)
        alone_s, (alone,) = timed(commands[:1], _many.places(logs), 0.0)
        both_s, both = timed(commands, again, behind_s)
        busier_s = max(each.used_s for each in both)
        print(
            f"{logs} logs of {template.size_bytes / 1e6:.1f} MB; one run with one core: {alone_s:.1f} s, "
            f"{alone.used_s:.1f} CPU s"
        )
        print(
            f"two runs with a core each: {both_s:.1f} s, {both_s / alone_s:.2f} of that, and {busier_s:.1f} CPU s, "
            f"{busier_s / alone.used_s:.2f} of that; they cleaned {both[0].cleaned} and {both[1].cleaned}",
            flush=True,
        )
        for each in commands:
            each.send(None)
        for process in processes:
            process.join(60)
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
                process.join()
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
