"""`make bench` and `make bench-report`: figures are of one commit; pages, charts and the flame graph follow them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench.report import run
from tests.bench.report.charts import charts, draw
from tests.bench.report.flame import flame_svg, frames, stacks, tree
from tests.bench.report.pages import KEPT, PAGES, blocks, fill, parse_kept, write
from tests.bench.report.results import ROOT, Result, ResultsError, load, parse_rows, rows_as_json
from tests.bench.report.tables import significant, table

MACHINE = {
    "cpu": "a processor",
    "cores": 2,
    "memory_bytes": 8 << 30,
    "kernel": "Linux 6.1.0",
    "python": "3.11.7",
    "java": "17.0.9",
    **dict.fromkeys(("confluent-kafka", "fastavro", "numpy", "pyarrow", "pyspark", "zstandard"), "1.2"),
}
_SIDE = {"wall_s": 10.0, "cpu_s": 20.0}
_SPARK: list[tuple[str, float, float, int]] = [
    ("window", 6.6, 12.2, 574_000_000),
    ("latest_state jvm", 2.9, 4.9, 2_000_000),
    ("latest_state keyfold", 3.7, 6.5, 2_000_000),
]
ROWS: dict[str, list[dict[str, Any]]] = {
    "sink": [
        {
            "partitions": partitions,
            "value_bytes": size,
            "loop_cpu_us": 1.83,
            "sink_cpu_us": 2.87,
            "floor_cpu_us": 2.3,
            "sink_per_s": 451_234.5,
        }
        for partitions, size in ((1, 211), (1, 1000), (4, 211), (300, 1000))
    ],
    "sink-tasks": [
        {"tasks": tasks, "loop_cpu_us": 2.0, "sink_cpu_us": 3.0, "loop_per_s": 600_000.0, "sink_per_s": 400_000.0}
        for tasks in (1, 2, 4)
    ],
    "sink-memory": [{"partitions": 2000, "idle_bytes": 225 << 20, "peak_bytes": 305 << 20}],
    "compaction": [
        {
            "garbage_percent": garbage,
            "partitions": partitions,
            "peer": _SIDE,
            "keyfold": {"wall_s": 2.0, "cpu_s": 4.0},
            "floor_s": 3.0,
            "ratios": {"wall": 5.0, "cpu": 5.0},
        }
        for garbage, partitions in ((90, 1), (10, 4))
    ],
    "byte-rate": [
        {"tasks": 1, "rate_bytes_per_s": 2e6, "average_of_rate": 1.0, "worst_second_of_rate": 1.07},
        {"tasks": 8, "rate_bytes_per_s": 2e6, "average_of_rate": 1.0, "worst_second_of_rate": 1.12},
    ],
    "read-spark": [
        {"contest": "latest", "side": side, "wall_s": wall_s, "cpu_s": cpu_s, "shuffled_bytes": shuffled}
        for side, wall_s, cpu_s, shuffled in _SPARK
    ]
    + [
        {"contest": contest, "side": side, "wall_s": 2.0, "cpu_s": 3.0, "wall_of_peer": 1.25, "cpu_of_peer": 1.5}
        for contest, side in (("read", "read_log jvm"), ("clean", "latest_state keyfold"))
    ],
    "read-python": [
        {"case": "zstandard, 200 B", "fastavro_cpu_us": 3.73, "batches_cpu_us": 0.58, "floor_cpu_us": 0.41}
    ],
    "restore": [{"case": "100 B", "plain_per_s": 217_000, "restore_per_s": 209_000, "ratio": 0.963}],
    "sink-1kb-flame": [
        {"stack": "keyfold_sink.task.run;keyfold_sink.write.append", "samples": 7},
        {"stack": "keyfold_sink.task.run;keyfold_sink.kafka.<consume>", "samples": 3},
    ],
    "curves": [
        {"curve": "partitions", "unit": "partitions", "slope": 0.834, "work": [1, 20_000], "cpu_s": [0.000612, 2.25]}
    ],
    "peers": [
        {
            "contestant": name,
            "cpu_s": cpu_s,
            "ingest_cpu_s": cpu_s * 0.75,
            "maintenance_cpu_s": cpu_s * 0.25,
            "written_bytes": written_bytes,
            "fresh_median_s": 2.5,
            "scan_s": 1.0,
            "scan_cpu_s": 1.5,
            "scan_after_s": 0.5,
            "scan_after_cpu_s": 0.8,
        }
        for name, cpu_s, written_bytes in (("keyfold", 40.0, 1.2e9), ("iceberg", 100.0, 0.8e9), ("append", 20.0, 1e9))
    ],
}


def results(commit: str = "0123456789ab") -> dict[str, Result]:
    return {
        name: Result(name, commit, "2026-01-02", MACHINE, [], quick=False, seconds=1.0, rows=rows)
        for name, rows in ROWS.items()
    }


def save(found: dict[str, Result], folder: Path) -> None:
    for result in found.values():
        result.save(folder)


def test_every_benchmark_of_make_bench_is_reported() -> None:
    assert [bench.name for bench in run.BENCHES] == list(ROWS)


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    save(results(), tmp_path)
    assert load(tmp_path, list(ROWS)) == results()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"commit": "ba9876543210"}, "different commits: 0123456789ab: sink-tasks, .*; ba9876543210: sink;"),
        ({"machine": {**MACHINE, "cores": 64}}, "different machines"),
        ({"quick": True}, "different sizes"),
    ],
)
def test_results_of_two_sources_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    found = results()
    found["sink"] = replace(found["sink"], **change)
    save(dict(sorted(found.items(), key=lambda item: item[0] == "sink")), tmp_path)
    with pytest.raises(ResultsError, match=message):
        load(tmp_path, sorted(ROWS, key=lambda name: name == "sink"))


def test_results_of_uncommitted_changes_are_refused(tmp_path: Path) -> None:
    save(results("0123456789ab-dirty"), tmp_path)
    with pytest.raises(ResultsError, match="a tree with uncommitted changes"):
        load(tmp_path, list(ROWS))


def test_missing_results_are_named(tmp_path: Path) -> None:
    save({"sink": results()["sink"]}, tmp_path)
    with pytest.raises(ResultsError, match="no results of sink-tasks, sink-memory, compaction"):
        load(tmp_path, list(ROWS))


@pytest.mark.parametrize("name", PAGES)
def test_filling_a_page_again_changes_nothing(name: str) -> None:
    found = blocks(results())
    once = fill(name, (ROOT / name).read_text(encoding="utf-8"), found)
    assert fill(name, once, found) == once
    assert all(found[mark] in once for mark in PAGES[name])


def test_a_page_without_a_mark_is_refused() -> None:
    with pytest.raises(
        ResultsError, match=r"README.md has the marks none; it must have overview, peers-overview, each `<!-- bench:"
    ):
        fill("README.md", "# keyfold\n", blocks(results()))


def test_a_page_with_an_unknown_mark_is_refused() -> None:
    text = "<!-- bench: overview -->\n<!-- end -->\n<!-- bench: other -->\n<!-- end -->\n"
    with pytest.raises(ResultsError, match="has the marks overview, other"):
        fill("README.md", text, blocks(results()))


def test_figures_get_into_the_tables() -> None:
    found = blocks(results())
    assert (
        "| sink, records of 211 bytes, 450,000 a second | a bare `consume` loop | 1.6 times its CPU |"
        in (found["overview"])
    )
    assert "| 211 | 1.83 µs | 2.87 µs | 1.6 | 1.25 | 451,000 |" in found["sink"]
    assert "| 300 | 1,000 | 1.83 µs | 2.87 µs | 1.6 | 1.25 | 451,000 |" in found["sink-partitions"]
    assert "| 2 | 2.00 µs | 3.00 µs | 1.5 | 600,000 | 400,000 |" in found["sink-tasks"]
    assert "| 90 %, one | 10.0 s | 20.0 s | 2.0 s | 4.0 s | 5.0 times | 5.0 times | 3.0 s |" in found["compaction"]
    assert "| Iceberg 1.12, `MERGE` | 100 s | 0.8 GB | 2.5 s | 0.5 s |" in found["peers-overview"]
    assert (
        "| keyfold, passes as they fall due | 40 s | 1,200 MB | 2.5 s | 1.0 s, 1.5 s | 0.5 s, 0.8 s |" in found["peers"]
    )
    assert "| keyfold, passes as they fall due | 0.40 | 1.50 | 1.00 | 1.00 | 1.00 |" in found["peers"]
    assert "| partitions | partitions | 1: 0.612 ms; 20,000: 2.25 s | 0.83 |" in found["curves"]
    assert "Commit `0123456789ab`, 2026-01-02: a processor, 2 cores, 8 GiB of memory" in found["source"]


def test_a_missing_row_is_named() -> None:
    found = results()
    found["sink"] = replace(found["sink"], rows=found["sink"].rows[1:])
    with pytest.raises(ResultsError, match=r"results of sink have no row with \{'value_bytes': 211, 'partitions': 1\}"):
        blocks(found)


def test_charts_have_all_series_and_are_the_same_each_time() -> None:
    for chart in charts(results()):
        svg = draw(chart)
        assert svg == draw(chart)
        assert [text for text in (chart.title, *chart.series, *chart.groups) if f">{text}<" not in svg] == []
        assert all(len(values) == len(chart.groups) for values in chart.series.values())
        assert "<dc:date>" not in svg


def test_what_is_written_is_what_pages_show(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    write(results(), tmp_path)
    page = (tmp_path / "docs/benchmarks.md").read_text(encoding="utf-8")
    pictures = {path.name for path in (tmp_path / "docs/benchmarks").glob("*.svg")}
    assert pictures == {name for name in pictures if f"(benchmarks/{name})" in page}
    assert parse_kept((tmp_path / KEPT).read_text(encoding="utf-8")) == {
        name: result for name, result in results().items() if name != "sink-1kb-flame"
    }


def test_the_pages_show_the_results_that_are_kept() -> None:
    """No figure is edited by hand, and all are of one commit."""
    kept = parse_kept((ROOT / KEPT).read_text(encoding="utf-8"))
    assert len({result.commit for result in kept.values()}) == 1
    for name in PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert text == fill(name, text, blocks(kept)), "run `make bench-report`"


def test_a_benchmark_that_fails_leaves_no_result_and_the_next_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "commit", lambda: "0123456789ab")
    monkeypatch.setattr(run, "machine", lambda: MACHINE)
    commands = {"bad": "import sys; print('[{}]'); sys.exit(3)", "good": "print('text'); print('[{\"cpu_s\": 1}]')"}
    monkeypatch.setattr(run.Bench, "command", lambda bench, **_: [sys.executable, "-c", commands[bench.name]])
    (tmp_path / "bad.json").write_text("of an earlier run", encoding="utf-8")
    assert run.run([run.Bench("bad", ""), run.Bench("good", "")], tmp_path, quick=True) == ["bad"]
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["good.json"]
    assert load(tmp_path, ["good"])["good"].rows == [{"cpu_s": 1}]


def test_rows_are_printed_apart_from_text(capsys: pytest.CaptureFixture[str]) -> None:
    with rows_as_json(wanted=True) as rows:
        print("a table")
        rows.append({"cpu_s": 1.5})
    said = capsys.readouterr()
    assert (parse_rows(said.out), said.err) == ([{"cpu_s": 1.5}], "a table\n")


def test_rows_come_from_lists_and_from_lines() -> None:
    lines = ["noise", json.dumps([{"a_s": 1}, {"a_s": 2}]), json.dumps({"a_s": 3})]
    assert parse_rows("\n".join(lines)) == [{"a_s": 1}, {"a_s": 2}, {"a_s": 3}]


@pytest.mark.parametrize(
    ("value", "text"), [(1.19, "1.19"), (2.1, "2.10"), (10.34, "10.3"), (794.4, "794"), (710_123, "710,000"), (0, "0")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert significant(value) == text


def test_empty_cells_are_narrow() -> None:
    assert table(["a", "b"], [["1", ""]]) == "| a | b |\n| --- | --- |\n| 1 | |\n"


def test_frames_name_modules_and_no_folder_of_a_machine() -> None:
    stack = [
        'process 12:"/somewhere/bin/python -m keyfold_sink run"',
        "<module> (/somewhere/sink/keyfold_sink/__main__.py)",
        "run (keyfold_sink/task/run.py:12)",
        "compress (/elsewhere/lib/python3.11/site-packages/pkg/codec.py)",
        "wait (/elsewhere/lib/python3.11/threading.py)",
        "odd (/somewhere/odd.py)",
    ]
    assert frames(";".join(stack)) == [
        "keyfold_sink.__main__.<module>",
        "keyfold_sink.task.run.run",
        "pkg.codec.compress",
        "threading.wait",
        "odd.odd",
    ]


def test_rare_and_waiting_stacks_are_left_out() -> None:
    waiting = "IoPool._run (keyfold_sink/write/io_pool.py) 5000"
    raw = f'a (m.py);b (m.py) 9990\na (m.py);c (m.py) 1\n{waiting}\nprocess 12:"python" 7\n'
    assert stacks(raw) == [{"stack": "m.a;m.b", "samples": 9990}]


def test_the_flame_graph_has_each_function_by_its_share() -> None:
    found = results()["sink-1kb-flame"]
    svg = flame_svg(found)
    assert tree(found.rows).calls["keyfold_sink.task.run"].samples == 10
    assert "keyfold_sink.write.append: 70.0%" in svg
    assert "keyfold_sink.kafka.&lt;consume&gt;: 30.0%" in svg
