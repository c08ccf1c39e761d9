"""The tables of README.md and docs/benchmarks.md, from results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import floor, log10
from typing import Any, Final

from tests.bench.report.results import LIBRARIES, Result, ResultsError, Row

MIB: Final = 2**20
COMPACTION_SIDES: Final = (
    ("peer, time", "peer", "wall_s"),
    ("keyfold, time", "keyfold", "wall_s"),
    ("peer, CPU", "peer", "cpu_s"),
    ("keyfold, CPU", "keyfold", "cpu_s"),
)
_WORDS: Final = {1: "one", 4: "four"}
_SPARK_SIDES: Final = {
    "window": "`row_number()` by key",
    "spark.read avro": "`spark.read` of its Avro files",
    "spark.read parquet": "`spark.read` of the same rows in Parquet",
    **{
        f"{read} {engine}": f"keyfold, engine `{engine}`"
        for read in ("latest_state", "read_log")
        for engine in ("jvm", "keyfold")
    },
}
_SPARK_SCANS: Final = {"read": "every record", "clean": "latest state of a clean log"}
PEERS: Final = {
    "keyfold": "keyfold, passes as they fall due",
    "keyfold-once": "keyfold, one pass at the end",
    "keyfold-each": "keyfold, a pass after each batch",
    "iceberg": "Iceberg 1.12, `MERGE`",
    "delta": "Delta 3.3, `MERGE`",
    "hudi": "Hudi 1.2, upsert",
    "append": "Avro files, then a window job",
}
MERGING: Final = ("iceberg", "delta", "hudi")
_READ_CASE: Final = "zstandard, 200 B"


def significant(value: float, digits: int = 3) -> str:
    """Format a number with `digits` significant digits: 1.19, 88.8, 710,000."""
    if value < 10 ** (digits - 1):
        return f"{value:#.{digits}g}".rstrip(".") if value else "0"
    return f"{round(value, digits - 1 - floor(log10(value))):,.0f}"


def seconds(value: float) -> str:
    return f"{value:.1f} s"


def mib(value: float) -> str:
    return f"{value / MIB:.0f} MiB"


def amount(value: float) -> str:
    """Format a count in full, and any other number with three digits."""
    return f"{value:,.0f}" if value == int(value) else significant(value)


def cpu(value_s: float) -> str:
    """Format CPU of milliseconds up to minutes."""
    return f"{significant(value_s)} s" if value_s >= 1 else f"{significant(1000 * value_s)} ms"


def times(value: float) -> str:
    return f"{value:.1f} times"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|\n" for cells in lines)


def row_of(result: Result, **fields: Any) -> Row:
    """Return the row with these fields. Raise `ResultsError` if no row has them."""
    for row in result.rows:
        if all(row.get(key) == value for key, value in fields.items()):
            return row
    raise ResultsError(f"the results of {result.bench} have no row with {fields}; run `make bench` with its full sizes")


def garbage_case(row: Row) -> str:
    return f"{row['garbage_percent']} %, {_WORDS.get(row['partitions'], row['partitions'])}"


def spark_side(row: Row) -> str:
    return _SPARK_SIDES[row["side"]].replace("`", "")


def source(results: Mapping[str, Result]) -> str:
    """Name the commit, the machine and the versions."""
    one = next(iter(results.values()))
    on = one.machine
    dates = sorted({result.date for result in results.values()})
    libraries = ", ".join(f"{name} {on[name]}" for name in LIBRARIES)
    days = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    memory = f"{on['memory_bytes'] / 2**30:.0f} GiB of memory"
    return (
        f"Commit `{one.commit}`, {days}: {on['cpu']}, {on['cores']} cores, {memory},\n"
        f"{on['kernel']}, Python {on['python']}, Java {on['java']},\n{libraries}.\n"
    )


def sink_rows(results: Mapping[str, Result]) -> list[Row]:
    """Return the rows of one partition."""
    return [row for row in results["sink"].rows if row["partitions"] == 1]


def sink(results: Mapping[str, Result]) -> str:
    head = ["bytes of a value", "peer, CPU per record", "keyfold, CPU per record", "ratio", "keyfold, of its floor"]
    return table([*head, "keyfold, records per second"], map(_sink_cells, sink_rows(results)))


def _sink_cells(row: Row) -> list[str]:
    return [
        f"{row['value_bytes']:,}",
        *_beside_a_loop(row),
        f"{row['sink_cpu_us'] / row['floor_cpu_us']:.2f}",
        significant(row["sink_per_s"]),
    ]


def _beside_a_loop(row: Row) -> list[str]:
    return [
        f"{significant(row['loop_cpu_us'])} µs",
        f"{significant(row['sink_cpu_us'])} µs",
        f"{row['sink_cpu_us'] / row['loop_cpu_us']:.1f}",
    ]


def sink_partitions(results: Mapping[str, Result]) -> str:
    head = ["partitions", "bytes of a value", "peer, CPU per record", "keyfold, CPU per record", "ratio"]
    return table(
        [*head, "keyfold, of its floor", "keyfold, records per second"],
        [[f"{row['partitions']:,}", *_sink_cells(row)] for row in results["sink"].rows if row["partitions"] > 1],
    )


def sink_tasks(results: Mapping[str, Result]) -> str:
    head = ["tasks", "peer, CPU per record", "keyfold, CPU per record", "ratio", "peer, records per second"]
    return table(
        [*head, "keyfold, records per second"],
        [
            [
                str(row["tasks"]),
                *_beside_a_loop(row),
                *(significant(row[f"{side}_per_s"]) for side in ("loop", "sink")),
            ]
            for row in results["sink-tasks"].rows
        ],
    )


def sink_memory(results: Mapping[str, Result]) -> str:
    return table(
        ["partitions written at once", "idle, all claimed", "at most", "difference"],
        [
            [
                f"{row['partitions']:,}",
                mib(row["idle_bytes"]),
                mib(row["peak_bytes"]),
                mib(row["peak_bytes"] - row["idle_bytes"]),
            ]
            for row in results["sink-memory"].rows
        ],
    )


def compaction(results: Mapping[str, Result]) -> str:
    head = ["garbage, partitions", "peer", "peer's CPU", "keyfold", "keyfold's CPU", "faster", "less CPU", "CPU floor"]
    return table(
        [*head, "keyfold, of its floor"],
        [
            [
                garbage_case(row),
                *(seconds(row[side][unit]) for side in ("peer", "keyfold") for unit in ("wall_s", "cpu_s")),
                times(row["ratios"]["wall"]),
                times(row["ratios"]["cpu"]),
                seconds(row["floor_s"]),
                f"{row['keyfold']['cpu_s'] / row['floor_s']:.2f}",
            ]
            for row in results["compaction"].rows
        ],
    )


def byte_rate(results: Mapping[str, Result]) -> str:
    return table(
        ["tasks", "average of the rate", "worst second"],
        [
            [str(row["tasks"]), f"{row['average_of_rate']:.2f}", f"{row['worst_second_of_rate']:.2f}"]
            for row in results["byte-rate"].rows
        ],
    )


def read_spark(results: Mapping[str, Result]) -> str:
    rows = [row for row in results["read-spark"].rows if row["contest"] == "latest"]
    peer = rows[0]
    return table(
        ["latest state", "time", "CPU", "shuffled", "faster", "less CPU"],
        [
            [
                _SPARK_SIDES[row["side"]],
                seconds(row["wall_s"]),
                seconds(row["cpu_s"]),
                f"{significant(row['shuffled_bytes'] / 1e6, 2)} MB",
                *(["", ""] if row is peer else [times(peer[unit] / row[unit]) for unit in ("wall_s", "cpu_s")]),
            ]
            for row in rows
        ],
    )


def read_spark_scans(results: Mapping[str, Result]) -> str:
    """The table of reads that Spark does without keyfold as well: of Avro files, and of Parquet files."""
    rows = [row for row in results["read-spark"].rows if row["contest"] in _SPARK_SCANS]
    return table(
        ["read", "time", "CPU", "of the peer's time", "of its CPU"],
        [
            [
                f"{_SPARK_SCANS[row['contest']]}: {_SPARK_SIDES[row['side']]}",
                seconds(row["wall_s"]),
                seconds(row["cpu_s"]),
                *(f"{row[of]:.2f}" for of in ("wall_of_peer", "cpu_of_peer")),
            ]
            for row in rows
        ],
    )


def read_python(results: Mapping[str, Result]) -> str:
    return table(
        ["segments", "fastavro, CPU per record", "keyfold, CPU per record", "less CPU", "CPU floor"],
        [
            [
                row["case"],
                f"{significant(row['fastavro_cpu_us'])} µs",
                f"{significant(row['batches_cpu_us'], 2)} µs",
                times(row["fastavro_cpu_us"] / row["batches_cpu_us"]),
                f"{significant(row['floor_cpu_us'], 2)} µs",
            ]
            for row in results["read-python"].rows
        ],
    )


def restore(results: Mapping[str, Result]) -> str:
    return table(
        ["records", "peer, records per second", "keyfold, records per second", "ratio"],
        [
            [row["case"], significant(row["plain_per_s"]), significant(row["restore_per_s"]), f"{row['ratio']:.2f}"]
            for row in results["restore"].rows
        ],
    )


def curves(results: Mapping[str, Result]) -> str:
    return table(
        ["curve", "unit of the work", "work: CPU", "slope"],
        [
            [
                row["curve"],
                row["unit"],
                "; ".join(
                    f"{amount(work)}: {cpu(cpu_s)}" for work, cpu_s in zip(row["work"], row["cpu_s"], strict=True)
                ),
                f"{row['slope']:.2f}",
            ]
            for row in results["curves"].rows
        ],
    )


def peers_overview(results: Mapping[str, Result]) -> str:
    """The table of the peers in README.md."""
    return table(
        ["", "CPU", "written", "readable after", "latest state read in"],
        [
            [
                PEERS[row["contestant"]],
                f"{row['cpu_s']:.0f} s",
                f"{row['written_bytes'] / 1e9:.1f} GB",
                seconds(row["fresh_median_s"]),
                seconds(row["scan_after_s"]),
            ]
            for row in results["peers"].rows
        ],
    )


def peers(results: Mapping[str, Result]) -> str:
    """The table of the peers, and how keyfold compares with the best of those that merge."""
    rows = results["peers"].rows
    figures = table(
        ["", "CPU", "written", "readable after", "read before, CPU", "read after, CPU"],
        [
            [
                PEERS[row["contestant"]],
                f"{row['cpu_s']:.0f} s",
                f"{row['written_bytes'] / 1e6:,.0f} MB",
                seconds(row["fresh_median_s"]),
                *(f"{seconds(row[f'{scan}_s'])}, {seconds(row[f'{scan}_cpu_s'])}" for scan in ("scan", "scan_after")),
            ]
            for row in rows
        ],
    )
    units = ("cpu_s", "written_bytes", "fresh_median_s", "scan_s", "scan_after_s")
    best = {unit: min(float(row[unit]) for row in rows if row["contestant"] in MERGING) for unit in units}
    compared = table(
        ["of the best peer that merges", "CPU", "written", "readable after", "read before", "read after"],
        [
            [PEERS[row["contestant"]], *(f"{row[unit] / best[unit]:.2f}" for unit in units)]
            for row in rows
            if row["contestant"].startswith("keyfold")
        ],
    )
    return f"{figures}\n{compared}"


def overview(results: Mapping[str, Result]) -> str:
    """The table of README.md."""
    small = row_of(results["sink"], value_bytes=211, partitions=1)
    much = row_of(results["compaction"], garbage_percent=90, partitions=1)
    little = row_of(results["compaction"], garbage_percent=10, partitions=4)
    window = row_of(results["read-spark"], contest="latest", side="window")
    latest = row_of(results["read-spark"], contest="latest", side="latest_state jvm")
    batches = row_of(results["read-python"], case=_READ_CASE)
    restored = [row["ratio"] for row in results["restore"].rows]
    rates = results["byte-rate"].rows
    average = sum(row["average_of_rate"] for row in rates) / len(rates)
    worst = max(row["worst_second_of_rate"] for row in rates)
    tasks = [row["tasks"] for row in rates]
    job = "the Spark job that one would write (`row_number()` by key)"
    return table(
        ["what", "peer", "ratio"],
        [
            [
                f"sink, records of 211 bytes, {significant(small['sink_per_s'], 2)} a second",
                "a bare `consume` loop",
                f"{small['sink_cpu_us'] / small['loop_cpu_us']:.1f} times its CPU",
            ],
            ["compaction, 90 % garbage, one partition", job, f"{times(much['ratios']['wall'])} faster"],
            ["compaction, 10 % garbage, four partitions", "the same", f"{times(little['ratios']['wall'])} faster"],
            [
                "Spark, the latest state, 20 % dirty",
                "`row_number()` over a window by key",
                f"{times(window['wall_s'] / latest['wall_s'])} faster",
            ],
            [
                "Python, records of 200 bytes as Arrow batches",
                "fastavro on the same segments",
                f"{times(batches['fastavro_cpu_us'] / batches['batches_cpu_us'])} less CPU",
            ],
            [
                "restore into Kafka",
                "a plain producer with the records in memory",
                f"{min(restored):.1f} to {max(restored):.1f} of its speed",
            ],
            [
                f"byte rate of {rates[0]['rate_bytes_per_s'] / 1e6:g} MB/s, {min(tasks)} to {max(tasks)} tasks",
                "",
                f"average {average:.2f}, worst second {worst:.2f}",
            ],
        ],
    )


TABLES: Final[Mapping[str, Callable[[Mapping[str, Result]], str]]] = {
    "overview": overview,
    "peers-overview": peers_overview,
    "source": source,
    "sink": sink,
    "sink-partitions": sink_partitions,
    "sink-tasks": sink_tasks,
    "sink-memory": sink_memory,
    "compaction": compaction,
    "byte-rate": byte_rate,
    "read-spark": read_spark,
    "read-spark-scans": read_spark_scans,
    "read-python": read_python,
    "restore": restore,
    "curves": curves,
    "peers": peers,
}
