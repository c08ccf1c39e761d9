"""Charts of results as SVG. Equal figures give equal bytes. The ground is white, for light and dark pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from tests.bench.report.results import Result
from tests.bench.report.tables import COMPACTION_SIDES, garbage_case, significant, sink_rows, spark_side

COLOURS: Final = ("#9aa5b1", "#1f6feb", "#d29922", "#57606a", "#2da44e")
_PEERS: Final = {
    "keyfold": "keyfold, when due",
    "keyfold-once": "keyfold, once",
    "keyfold-each": "keyfold, each batch",
    "iceberg": "Iceberg",
    "delta": "Delta",
    "hudi": "Hudi",
    "append": "files, window job",
}
_STYLE: Final[dict[Any, Any]] = {
    "svg.hashsalt": "keyfold",
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,
}


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars in groups, a colour for each series."""

    name: str
    title: str
    unit: str
    groups: Sequence[str]
    series: Mapping[str, Sequence[float]]
    log: bool = False


def charts(results: Mapping[str, Result]) -> Iterator[Chart]:
    """Yield the charts of docs/benchmarks.md."""
    rows = sink_rows(results)
    yield Chart(
        "sink",
        "Sink: CPU per record, by bytes of a value",
        "µs (log)",
        [f"{row['value_bytes']:,} B" for row in rows],
        {
            "consume loop": [row["loop_cpu_us"] for row in rows],
            "keyfold": [row["sink_cpu_us"] for row in rows],
            "floor: loop and compression": [row["floor_cpu_us"] for row in rows],
        },
        log=True,
    )
    rows = results["compaction"].rows
    yield Chart(
        "compaction",
        "Compaction: one pass",
        "seconds",
        [garbage_case(row) for row in rows],
        {title: [row[side][unit] for row in rows] for title, side, unit in COMPACTION_SIDES}
        | {"floor, CPU": [row["floor_s"] for row in rows]},
    )
    rows = [row for row in results["read-spark"].rows if row["contest"] == "latest"]
    yield Chart(
        "read-spark",
        "Spark: latest state of each key",
        "seconds",
        [spark_side(row) for row in rows],
        {"time": [row["wall_s"] for row in rows], "CPU": [row["cpu_s"] for row in rows]},
    )
    rows = results["read-python"].rows
    yield Chart(
        "read-python",
        "Python: every record as Arrow batches",
        "CPU µs per record",
        [row["case"] for row in rows],
        {
            "fastavro": [row["fastavro_cpu_us"] for row in rows],
            "keyfold": [row["batches_cpu_us"] for row in rows],
            "floor": [row["floor_cpu_us"] for row in rows],
        },
    )
    rows = results["restore"].rows
    yield Chart(
        "restore",
        "Restore into Kafka",
        "records per second",
        [row["case"] for row in rows],
        {
            "plain producer": [row["plain_per_s"] for row in rows],
            "keyfold": [row["restore_per_s"] for row in rows],
        },
    )
    rows = results["peers"].rows
    yield Chart(
        "peers",
        "From the topic to the latest state: CPU",
        "seconds",
        [_PEERS[row["contestant"]] for row in rows],
        {
            "writing": [row["ingest_cpu_s"] for row in rows],
            "passes, or the table's compaction": [row["maintenance_cpu_s"] for row in rows],
        },
    )


def draw(chart: Chart) -> str:
    """Return the chart as SVG."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(9, 3.8), facecolor="white", layout="constrained")
        axes = figure.add_subplot()
        width = 0.8 / len(chart.series)
        for number, (name, values) in enumerate(chart.series.items()):
            places = [group - 0.4 + width * (number + 0.5) for group in range(len(chart.groups))]
            bars = axes.bar(places, list(values), width, label=name, color=COLOURS[number])
            axes.bar_label(bars, [significant(value) for value in values], fontsize=7, padding=1)
        if chart.log:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: significant(value, 1))
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_xticks(range(len(chart.groups)), chart.groups)
        axes.set_ylabel(chart.unit)
        axes.set_title(chart.title)
        axes.margins(y=0.12)
        axes.legend(frameon=False, fontsize=8)
        out = StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
