"""`make bench`: run the benchmarks that README.md and docs/benchmarks.md quote, one after another.

    python -m tests.bench.report.run [--quick] [--only sink,read] [--missing]

Results and logs are files in build/bench (build/bench-quick with --quick). If a benchmark fails, the others still run,
and the exit code is 1. `make bench-report` makes charts and tables from the files. The benchmark `peers` runs in the
Python that PEERS_PYTHON names, which `make bench` sets.
"""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from tests.bench.report.results import ROOT, Result, commit, machine, parse_rows, result_path

FOLDER: Final = ROOT / "build" / "bench"
QUICK_FOLDER: Final = ROOT / "build" / "bench-quick"


@dataclass(frozen=True, slots=True)
class Bench:
    """A benchmark that prints JSON to stdout. `quick` are the arguments of a run that only shows that it works."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    quick: tuple[str, ...] = ("--quick",)
    json: tuple[str, ...] = ("--json",)
    python: str = sys.executable

    def command(self, *, quick: bool) -> list[str]:
        """Return the command."""
        return [self.python, "-m", f"tests.bench.{self.module}", *self.arguments, *(self.quick * quick), *self.json]


BENCHES: Final = (
    Bench("sink", "bench_sink", ("--only", "sizes")),
    Bench("sink-tasks", "bench_sink", ("--only", "tasks")),
    Bench("sink-memory", "bench_sink_memory"),
    Bench("compaction", "bench_compactor", quick=("--records", "40000", "--rounds", "1")),
    Bench("byte-rate", "bench_throttle", quick=("--seconds", "2")),
    Bench("read-spark", "bench_spark_read", quick=("--records", "40000", "--rounds", "1")),
    Bench("read-python", "bench_read"),
    Bench("restore", "bench_restore"),
    Bench("sink-1kb-flame", "report.flame"),
    Bench("curves", "bench_curves"),
    Bench(
        "peers",
        "peers",
        quick=("--changes", "20000", "--keys", "2000", "--batches", "4"),
        python=os.environ.get("PEERS_PYTHON", sys.executable),  # with the Spark that all peers have a release for
    ),
)


def measure(bench: Bench, folder: Path, *, quick: bool) -> bool:
    """Run one benchmark and write its result. Return whether it succeeded; a failed one leaves no result."""
    result_path(folder, bench.name).unlink(missing_ok=True)
    command, before, begun_s = bench.command(quick=quick), commit(), time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{bench.name}.log"
    with log.open("w", encoding="utf-8") as said:
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=said, text=True, check=False)
    took_s = time.monotonic() - begun_s
    rows = parse_rows(done.stdout)
    if done.returncode or not rows:
        click.echo(
            f"== {bench.name}: failed with exit code {done.returncode} and {len(rows)} rows; see {log}", err=True
        )
        return False
    if commit() != before:
        click.echo(f"== {bench.name}: the tree changed from {before} to {commit()} meanwhile", err=True)
        return False
    date = dt.datetime.now(dt.UTC).date().isoformat()
    Result(bench.name, before, date, machine(), command[3:], quick, round(took_s, 1), rows).save(folder)
    click.echo(f"== {bench.name}: {len(rows)} rows in {took_s:.0f} s", err=True)
    return True


def selected(only: str, *, missing: bool, folder: Path) -> list[Bench]:
    """Return the benchmarks to run. Raise `click.BadParameter` for an unknown name."""
    names = [bench.name for bench in BENCHES]
    wanted = only.split(",") if only else names
    if unknown := [name for name in wanted if name not in names]:
        raise click.BadParameter(f"unknown: {', '.join(unknown)}; known: {', '.join(names)}")
    return [b for b in BENCHES if b.name in wanted and not (missing and result_path(folder, b.name).exists())]


def run(benches: Sequence[Bench], folder: Path, *, quick: bool) -> list[str]:
    """Run the benchmarks. Return the names of those that failed."""
    failed = []
    for number, bench in enumerate(benches, 1):
        click.echo(f"== {bench.name} ({number} of {len(benches)}), commit {commit()}", err=True)
        if not measure(bench, folder, quick=quick):
            failed.append(bench.name)
    return failed


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="tiny sizes, in a few minutes: do all benchmarks run?")
@click.option("--only", default="", help="names of benchmarks, separated by commas")
@click.option("--missing", is_flag=True, help="run only the benchmarks that have no result yet")
def main(quick: bool, only: str, missing: bool) -> None:
    """Run the benchmarks."""
    folder = QUICK_FOLDER if quick else FOLDER
    failed = run(selected(only, missing=missing, folder=folder), folder, quick=quick)
    if failed:
        click.echo(f"failed: {', '.join(failed)}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
