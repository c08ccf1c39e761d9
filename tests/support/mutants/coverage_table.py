"""Line and branch coverage of each package, from a recording: the table that `--record` prints."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import coverage


@dataclass(slots=True)
class Covered:
    """Lines and branches of a package, and how many of them ran."""

    lines: int = 0
    lines_run: int = 0
    branches: int = 0
    branches_run: int = 0

    def add(self, summary: dict[str, int]) -> None:
        """Count a file, as coverage's JSON report sums it up."""
        self.lines += summary["num_statements"]
        self.lines_run += summary["covered_lines"]
        self.branches += summary["num_branches"]
        self.branches_run += summary["covered_branches"]


def table(data_file: Path, root: Path, folders: Sequence[str]) -> list[str]:
    """A line for each package, and one for all of them. Files that no test imports count as well."""
    loaded = coverage.Coverage(data_file=str(data_file), config_file=False, branch=True)
    loaded.load()
    loaded.get_data().touch_files([str(path) for name in folders for path in (root / name).rglob("*.py")])
    with tempfile.TemporaryDirectory(prefix="keyfold-coverage-") as folder:
        report = Path(folder) / "report.json"
        loaded.json_report(outfile=str(report))
        files = json.loads(report.read_text(encoding="utf-8"))["files"]
    packages: dict[str, Covered] = {}
    every = Covered()
    for name, found in files.items():
        for counted in (packages.setdefault(_package(Path(name).resolve(), root), Covered()), every):
            counted.add(found["summary"])
    rows = [_row(name, packages[name]) for name in sorted(packages)]
    return [f"{'package':34} {'lines':>18} {'branches':>18}", *rows, _row("all", every)]


def _package(path: Path, root: Path) -> str:
    """`keyfold.log` for `keyfold/log/commit.py`; a module that stands beside packages counts for what is around it."""
    inside = path.relative_to(root).parts
    name = inside if (root / inside[0] / "__init__.py").is_file() else inside[1:]
    return ".".join(name[:-1][:2])


def _row(name: str, covered: Covered) -> str:
    return f"{name:34} {_share(covered.lines_run, covered.lines)} {_share(covered.branches_run, covered.branches)}"


def _share(run: int, there: int) -> str:
    percent = 100 * run / there if there else 100.0
    return f"{run:>5} / {there:>5} {percent:5.1f}%"
