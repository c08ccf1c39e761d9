"""The figures of a benchmark as JSON: rows with units in their names, with the commit and the machine.

A benchmark with `--json` prints its rows, and its tables to stderr (`rows_as_json`). `make bench` adds the rest.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

Row = dict[str, Any]

ROOT: Final = Path(__file__).parents[3]
LIBRARIES: Final = ("confluent-kafka", "fastavro", "numpy", "pyarrow", "pyspark", "zstandard")


class ResultsError(Exception):
    """These results cannot make a report; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Result:
    """The rows of one benchmark and their origin. `quick` results only show that the benchmark runs."""

    bench: str
    commit: str
    date: str
    machine: dict[str, Any]
    arguments: list[str]
    quick: bool
    seconds: float
    rows: list[Row]

    def save(self, folder: Path) -> None:
        """Write `folder`/`bench`.json."""
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False)
        result_path(folder, self.bench).write_text(text + "\n", encoding="utf-8")


def result_path(folder: Path, bench: str) -> Path:
    return folder / f"{bench}.json"


@contextmanager
def rows_as_json(wanted: bool) -> Iterator[list[Row]]:
    """Yield a list for rows. If `wanted`, print it as JSON at the end, and everything else to stderr."""
    rows: list[Row] = []
    with redirect_stdout(sys.stderr) if wanted else nullcontext():
        yield rows
    if wanted:
        print(json.dumps(rows))


def parse_rows(text: str) -> list[Row]:
    """Return the rows that a benchmark printed: lines of JSON, each a row or a list of them."""
    rows: list[Row] = []
    for line in text.splitlines():
        if line.startswith(("{", "[")):
            found = json.loads(line)
            rows += found if isinstance(found, list) else [found]
    return rows


def load(folder: Path, benches: Sequence[str]) -> dict[str, Result]:
    """Return the results of all `benches`. Raise `ResultsError` if one is missing, or not of the others' commit."""
    missing = [bench for bench in benches if not result_path(folder, bench).is_file()]
    if missing:
        raise ResultsError(f"{folder} has no results of {', '.join(missing)}; run `make bench ARGS=--missing`")
    results = {bench: Result(**json.loads(result_path(folder, bench).read_text(encoding="utf-8"))) for bench in benches}
    require_one_source(results)
    return results


def require_one_source(results: Mapping[str, Result]) -> None:
    """Raise `ResultsError` unless all results are of one clean commit, one machine, and of one size."""
    for what, value_of in (
        ("commits", lambda result: result.commit),
        ("machines", lambda result: json.dumps(result.machine, sort_keys=True)),
        ("sizes (--quick)", lambda result: str(result.quick)),
    ):
        found: dict[str, list[str]] = {}
        for bench, result in results.items():
            found.setdefault(value_of(result), []).append(bench)
        if len(found) > 1:
            told = "; ".join(f"{value}: {', '.join(benches)}" for value, benches in found.items())
            raise ResultsError(f"results are of different {what}: {told}; run `make bench` again")
    commit = next(iter(results.values())).commit
    if commit.endswith("-dirty"):
        raise ResultsError(f"results are of {commit}, a tree with uncommitted changes; commit, then run `make bench`")


def commit() -> str:
    """Return the commit, with `-dirty` if a tracked file differs from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def machine() -> dict[str, Any]:
    """Return the hardware and the versions that figures depend on."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": f"{platform.system()} {'.'.join(platform.release().split('-')[0].split('.')[:3])}",
        "python": platform.python_version(),
        "java": _java_version(),
        **{name: version(name) for name in LIBRARIES},
    }


def _cpu_model() -> str:
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.machine()


def _java_version() -> str:
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else Path("java")
    told = subprocess.run([str(java), "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "([^"]+)"', told)
    return found[1] if found else "unknown"
