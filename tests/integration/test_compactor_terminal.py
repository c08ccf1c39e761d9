"""What a person sees of `keyfold compact run` and `plan`: stages, results, errors, Ctrl-C, narrow terminals, pipes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from keyfold.log.names import Place
from keyfold.runtime.clock import SystemClock
from keyfold.store.s3 import S3Location
from tests.support import compact_command
from tests.support.cleaning import Sink, load, record
from tests.support.terminal import CTRL_C, WAIT_TIMEOUT_S, at_terminal, wait_for

HERE = ("-m", "tests.support.compact_at_terminal")
COMMAND = ("-c", "from keyfold.cli import main; main()", "compact")
config = partial(compact_command.config, min_cleanable_dirty_ratio="0", log_cleaner_backoff_ms="600000")


def fill(location: S3Location, partition: int = 0, topic: str = "users", *, is_lost: bool = False) -> Place:
    place = Place("topics", topic, partition)
    store = location.open()
    try:
        Sink.open(store, place, clock=SystemClock()).append([record(n, f"k{n % 2}", "v" * 100) for n in range(40)])
        if is_lost:
            store.delete(place.manifest_key)
    finally:
        store.close()
    return place


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    folder = tmp_path / "gate"
    folder.mkdir()
    return folder


def test_a_run_shows_its_stages_and_leaves_a_line_per_topic(tmp_path: Path, location: S3Location) -> None:
    fill(location)
    fill(location, 1)
    fill(location, 0, "orders")
    path = config(tmp_path, location, topics="users,orders")
    with at_terminal(tmp_path, *HERE, "run", path, "--once") as shown:
        code, lines = shown.ends()
        assert code == 0, lines
        assert b"starting Spark" in shown.raw
    assert lines[0].startswith("orders: 1 cleaned; 38 records removed, ")
    assert lines[1].startswith("users: 2 cleaned; 76 records removed, ")
    assert " freed, " in lines[1]
    assert lines[1].endswith(" s")
    text = " ".join(line.strip() for line in lines[2:])
    assert text.startswith("3 partitions in ")
    assert "114 records removed" in text
    assert "starting" not in text, "the bar is gone"


def test_a_verbose_run_has_a_line_per_partition(tmp_path: Path, location: S3Location) -> None:
    fill(location)
    with at_terminal(tmp_path, *HERE, "run", config(tmp_path, location), "--once", "-v") as shown:
        code, lines = shown.ends()
    assert code == 0, lines
    assert lines[0].startswith("users-0: 40 -> 2 records (38 superseded")
    assert any(line.startswith("users: 1 cleaned") for line in lines)


def test_a_failing_run_has_an_error_per_partition_then_the_summary(tmp_path: Path, location: S3Location) -> None:
    fill(location)
    fill(location, 1, is_lost=True)
    with at_terminal(tmp_path, *HERE, "run", config(tmp_path, location), "--once") as shown:
        code, lines = shown.ends()
    assert code == 1
    text = " ".join(line.strip() for line in lines)
    assert lines[0].startswith("error: users-1: ")
    assert "keyfold log repair" in text
    assert text.count("error: ") == 1
    assert "hint: " in text
    assert next(line for line in lines if line.startswith("users: ")).startswith("users: 1 cleaned, 1 failed; ")
    assert "Traceback" not in text


def test_a_start_that_fails_shows_what_spark_printed_once(tmp_path: Path, location: S3Location) -> None:
    fill(location)
    fill(location, 1)
    environment = {"KEYFOLD_TEST_START": "[JAVA_GATEWAY_EXITED] Java gateway process exited"}
    with at_terminal(
        tmp_path, *HERE, "run", config(tmp_path, location), "--once", environment=environment, columns=300
    ) as shown:
        code, lines = shown.ends()
    assert code == 1
    assert lines[0].startswith(
        "error: users-0, users-1 not cleaned: Spark could not start: [JAVA_GATEWAY_EXITED] Java gateway process exited"
    )
    assert [line.strip() for line in lines[1:3]] == ["Spark printed:", "java: not found"]
    assert lines[3].startswith("hint: ")
    assert lines[4] == "users: 2 failed"


def test_ctrl_c_once_ends_after_the_current_step_and_says_so(tmp_path: Path, location: S3Location, gate: Path) -> None:
    place = fill(location)
    environment = {"KEYFOLD_TEST_GATE": str(gate)}
    with at_terminal(tmp_path, *HERE, "run", config(tmp_path, location), "--once", environment=environment) as shown:
        wait_for((gate / "at-work").exists, "a pass")
        shown.terminal.press(CTRL_C)
        shown.sees("stopping after the current step; Ctrl-C again ends at once")
        (gate / "go").touch()
        code, lines = shown.ends()
    assert code == 0, lines
    assert any(line.startswith("users: 1 cleaned; 38 records removed") for line in lines)
    store = location.open()
    assert load(store, place).compactor.lease_until_ms == 0
    store.close()


def test_ctrl_c_while_spark_starts_cleans_nothing(tmp_path: Path, location: S3Location, gate: Path) -> None:
    fill(location)
    environment = {"KEYFOLD_TEST_GATE": str(gate), "KEYFOLD_TEST_START": "gate"}
    with at_terminal(tmp_path, *HERE, "run", config(tmp_path, location), "--once", environment=environment) as shown:
        wait_for((gate / "at-work").exists, "the start")
        shown.terminal.press(CTRL_C)
        shown.sees("Ctrl-C again ends at once")
        (gate / "go").touch()
        code, lines = shown.ends()
    assert code == 0, lines
    assert "users: 1 left for the next run" in lines


def test_ctrl_c_twice_ends_at_once_and_leaves_a_clean_line(tmp_path: Path, location: S3Location, gate: Path) -> None:
    fill(location)
    environment = {"KEYFOLD_TEST_GATE": str(gate)}
    with at_terminal(tmp_path, *HERE, "run", config(tmp_path, location), environment=environment) as shown:
        wait_for((gate / "at-work").exists, "a pass")
        shown.terminal.press(CTRL_C)
        shown.sees("Ctrl-C again ends at once")
        shown.terminal.press(CTRL_C)
        code, lines = shown.ends()
        assert b"\x1b[?25l" not in shown.raw, "the cursor was never hidden"
    assert code == -signal.SIGINT
    assert lines[-1] == "ended at once; its leases expire by themselves"


@pytest.mark.full
def test_sixty_columns_break_no_word(tmp_path: Path, location: S3Location) -> None:
    for partition in range(3):
        fill(location, partition, is_lost=partition == 2)
    path = config(tmp_path, location)
    for number, arguments in enumerate((("plan", path), ("run", path, "--once", "-v"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        with at_terminal(folder, *HERE, *arguments, columns=60) as shown:
            code, lines = shown.ends()
        assert code == 1
        assert all(len(line) <= 60 for line in lines)
        follows = [after for before, after in pairwise(lines) if len(before) == 60]
        assert all(after.startswith(("    ", "error", "hint", "users")) for after in follows), lines


@pytest.mark.sharded
@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"NO_COLOR": "1", "TERM": "dumb"}])
def test_no_colours_where_none_are_wanted(tmp_path: Path, location: S3Location, environment: dict[str, str]) -> None:
    fill(location)
    with at_terminal(tmp_path, *HERE, "run", config(tmp_path, location), "--once", environment=environment) as shown:
        code, lines = shown.ends()
        raw = shown.raw
    assert code == 0, lines
    assert b"\x1b[3" not in raw
    assert b"\x1b[9" not in raw
    if "TERM" in environment:
        assert b"\x1b" not in raw
        assert any("run started" in line for line in lines)
    assert any(line.startswith("users: 1 cleaned") for line in lines)


def test_a_pipe_gets_whole_lines_and_events_without_escape_codes(tmp_path: Path, location: S3Location) -> None:
    fill(location)
    command = [sys.executable, *HERE, "run", config(tmp_path, location), "--once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 2
    for word in ("run started", "starting spark", "run ended"):
        assert word in done.stderr
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=WAIT_TIMEOUT_S, check=False)
    assert json.loads(done.stdout)["partitions"] == []
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert [event["event"] for event in events] == ["run started", "run ended"], "also when nothing was due"
    assert (events[1]["partitions"], events[1]["cleaned"], events[1]["failed"]) == (1, 0, 0)
    assert all("timestamp" in event for event in events)


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.any_spark
def test_a_real_start_of_spark_shows_no_line_of_its_jvm(tmp_path: Path, location: S3Location) -> None:
    fill(location)
    path = config(tmp_path, location, spark_master="local[1]")
    with at_terminal(tmp_path, *COMMAND, "run", path, "--once") as shown:
        code, lines = shown.ends()
        raw = shown.raw.decode()
    assert code == 0, lines
    assert "starting Spark" in raw
    for word in ("WARN", "incubator", "log level to", "NativeCodeLoader", "log4j"):
        assert word not in raw
    assert lines[0].startswith("users: 1 cleaned; 38 records removed"), lines


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.any_spark
def test_a_real_start_that_fails_says_why(tmp_path: Path, location: S3Location) -> None:
    fill(location)
    path = config(tmp_path, location, spark_master=compact_command.NO_SPARK)
    with at_terminal(tmp_path, *COMMAND, "run", path, "--once", columns=300) as shown:
        code, lines = shown.ends()
    assert code == 1
    assert lines[0].startswith("error: users-0 not cleaned: Spark could not start: ")
    assert "JAVA_HOME" in lines[0], "what to do"
    assert lines[1].strip() == "Spark printed:"
    assert " ".join(lines).count("SparkException") == 1, lines
    assert not [line for line in lines if line.strip().startswith("at ")]
    assert "users: 1 failed" in lines
