"""`make bench-report`: make the charts and tables of README.md and docs/benchmarks.md from results of `make bench`.

    python -m tests.bench.report.pages [--results FOLDER] [--into FOLDER]

A table stands between marks. All results must be of one commit and one machine. The results are kept as
docs/benchmarks/results.json, and a test compares the pages with them.

<!-- bench: sink -->
...
<!-- end -->
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from tests.bench.report.charts import Chart, charts, draw
from tests.bench.report.flame import FLAME, flame_svg
from tests.bench.report.results import ROOT, Result, ResultsError, load
from tests.bench.report.run import BENCHES, FOLDER
from tests.bench.report.tables import TABLES

OVERVIEWS: Final = ("overview", "peers-overview")
PAGES: Final = {
    "README.md": OVERVIEWS,
    "docs/benchmarks.md": (*(name for name in TABLES if name not in OVERVIEWS), FLAME),
}
CHARTS: Final = "docs/benchmarks"
KEPT: Final = f"{CHARTS}/results.json"

_MARKED: Final = re.compile(r"(<!-- bench: ([a-z0-9-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def blocks(results: Mapping[str, Result]) -> dict[str, str]:
    """Return the text between each pair of marks: a table, a chart, or both."""
    found = {name: made(results) for name, made in TABLES.items()}
    for chart in charts(results):
        found[chart.name] += f"\n{_picture(chart)}"
    found[FLAME] = f"![Flame graph of the sink at 1 KB](benchmarks/{FLAME}.svg)\n"
    return found


def _picture(chart: Chart) -> str:
    return f"![{chart.title}](benchmarks/{chart.name}.svg)\n"


def fill(name: str, text: str, found: Mapping[str, str]) -> str:
    """Return a page with its tables filled in. Raise `ResultsError` if marks are missing, or are not this page's."""
    marks = [match[2] for match in _MARKED.finditer(text)]
    if sorted(marks) != sorted(PAGES[name]):
        raise ResultsError(
            f"{name} has the marks {', '.join(marks) or 'none'}; it must have {', '.join(PAGES[name])}, "
            "each `<!-- bench: NAME -->` with `<!-- end -->` after it"
        )
    return _MARKED.sub(lambda match: f"{match[1]}\n{found[match[2]]}\n{match[3]}", text)


def parse_kept(text: str) -> dict[str, Result]:
    """Return the results that results.json keeps."""
    return {name: Result(**fields) for name, fields in json.loads(text).items()}


def write(results: Mapping[str, Result], into: Path) -> None:
    """Write pages, charts and results below `into`."""
    found = blocks(results)
    pages = {name: fill(name, (ROOT / name).read_text(encoding="utf-8"), found) for name in PAGES}
    folder = into / CHARTS
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (into / name).write_text(text, encoding="utf-8")
    for chart in charts(results):
        (folder / f"{chart.name}.svg").write_text(draw(chart), encoding="utf-8")
    (folder / f"{FLAME}.svg").write_text(flame_svg(results[FLAME]), encoding="utf-8")
    kept = {name: asdict(result) for name, result in results.items() if name != FLAME}
    (into / KEPT).write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


@click.command(help=__doc__)
@click.option("--results", type=click.Path(path_type=Path), default=FOLDER, help="folder of `make bench`")
@click.option("--into", type=click.Path(path_type=Path), default=ROOT, help="write there instead of the repository")
def main(results: Path, into: Path) -> None:
    """Write charts and tables."""
    try:
        found = load(results, [bench.name for bench in BENCHES])
        if into == ROOT and any(result.quick for result in found.values()):
            raise ResultsError("results of --quick do not belong in the repository; use --into FOLDER")
        write(found, into)
    except ResultsError as error:
        click.echo(str(error), err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
