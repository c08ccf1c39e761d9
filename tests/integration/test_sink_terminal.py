"""What a person sees of `keyfold sink run`, and of the commands that control it: the view, errors, Ctrl-C, pipes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_here import run_here
from tests.support.kafka import KafkaBroker, produce_all, synthetic
from tests.support.moto import Fault, LocalS3Process
from tests.support.proof import SOON_MISSED, Rig
from tests.support.terminal import CTRL_C, WAIT_TIMEOUT_S, Shown, at_terminal, wait_for

pytestmark = pytest.mark.kafka

MakeTopic = Callable[..., str]
RECORDS = 2000
REST = re.compile(rb"REST: (http://127\.0\.0\.1:\d+)")
# Nothing is committed before it is asked for.
KEYS = {
    "listeners": "http://127.0.0.1:0",
    "segment_ms": 600_000,
    "task_shutdown_graceful_timeout_ms": 600_000,
}
COMMAND = ("-m", "keyfold_sink")


@pytest.fixture
def rig(broker: KafkaBroker, local_s3: LocalS3Process, bucket: str, tmp_path: Path) -> Rig:
    return Rig(broker, local_s3, bucket, tmp_path)


@pytest.fixture
def name(rig: Rig, topic: MakeTopic) -> str:
    made = topic(partitions=2, config={"retention.ms": "-1"})
    produce_all(rig.broker.bootstrap_servers, made, synthetic(RECORDS, key_count=100))
    return made


def address(shown: Shown) -> str:
    shown.sees("REST: http")
    found = REST.search(shown.raw)
    assert found is not None
    return found[1].decode()


def test_the_view_shows_what_was_read_and_the_commands_control_it(rig: Rig, name: str) -> None:
    config = str(rig.config(name, **KEYS))
    with at_terminal(rig.folder, *COMMAND, "run", config, environment=rig.s3.environment) as shown:
        url = address(shown)
        shown.sees(f"{name}: 2 partitions ({name} 0-1), ")
        shown.sees("lag          2,000 offsets, most in ")
        shown.sees("buffered     2,000 records, ")
        shown.sees("next roll    in 10 min: ")
        shown.sees("last commit  -")
        shown.sees("committed    0 records in 0 segments, 0 B, 0 records/s")
        assert "2 partitions" in run_here({}, "sink", "status", "--url", url).out
        assert run_here({}, "sink", "flush", "--url", url, "--wait", "120").out == f"{name}: flushed\n"
        shown.sees("committed    2,000 records in 2 segments, ")
        shown.sees("lag          0 offsets")
        shown.sees(f" s ago: {name}-")  # the last commit, however long the flush took to answer
        assert run_here({}, "sink", "pause", "--url", url, "--wait", "120").out == f"{name}: PAUSED\n"
        shown.sees(f"{name}: PAUSED, 2 partitions")
        assert run_here({}, "sink", "stop", "--url", url, "--wait", "120").out == f"{name}: STOPPED\n"
        shown.sees(f"{name}: no task runs")
        shown.terminal.press(CTRL_C)
        code, lines = shown.ends()
        assert b"\x1b[?25l" not in shown.raw, "the cursor was never hidden"
    assert code == 0, lines
    assert lines[0] == f"REST: {url}"
    rest = " ".join(lines[1:])
    assert re.fullmatch(rf"{name}: committed 2,000 records in 2 segments, [0-9.]+ KiB, [0-9,]+ records/s", rest), (
        "the view is gone, and its result stays"
    )
    assert rig.prove(name, 2) == RECORDS


@pytest.mark.full
def test_sixty_columns_cut_lines_and_break_none(rig: Rig, name: str) -> None:
    config = str(rig.config(name, **KEYS))
    environment = {**rig.s3.environment, "NO_COLOR": "1"}
    with at_terminal(rig.folder, *COMMAND, "run", config, columns=60, environment=environment) as shown:
        shown.sees("buffered     2,000 records, ")
        view = shown.lines
        shown.terminal.press(CTRL_C)
        shown.sees("stopping: committing what was read; Ctrl-C again ends at once"[:55])
        code, lines = shown.ends()
        raw = shown.raw
    assert code == 0, lines
    assert b"\x1b[3" not in raw
    assert all(len(line) <= 60 for line in (*view, *lines))
    assert sum(line.startswith("  lag ") for line in view) == 1, view
    assert "2,000 records in 2 segments" in " ".join(lines)


def test_what_a_task_logs_stands_above_the_view_and_an_error_ends_the_output(rig: Rig, name: str) -> None:
    config = str(rig.config(name, **KEYS, flush_size=3, s3_bucket_name="no-such-bucket"))
    with at_terminal(rig.folder, *COMMAND, "run", config, columns=200, environment=rig.s3.environment) as shown:
        code, lines = shown.ends()
    assert code == 1
    text = "\n".join(lines)
    assert "tiny segments" in text
    assert "no-such-bucket" in text
    assert "Traceback" not in text
    assert lines[-1].startswith(("error: ", "hint: ")), lines


@pytest.mark.full
def test_a_second_ctrl_c_ends_at_once(rig: Rig, name: str, local_s3: LocalS3Process) -> None:
    config = str(rig.config(name, **KEYS, **SOON_MISSED))
    with at_terminal(rig.folder, *COMMAND, "run", config, environment=rig.s3.environment) as shown:
        shown.sees("buffered     2,000 records, ")
        local_s3.set_faults(Fault(r"partition", status=503, times=-1))
        shown.terminal.press(CTRL_C)
        shown.sees("operation failed; retrying")
        shown.terminal.press(CTRL_C)
        code, lines = shown.ends()
    local_s3.set_faults()
    assert code == 130, lines
    rig.catch_up(rig.config(name, **SOON_MISSED))
    assert rig.prove(name, 2) == RECORDS


def test_a_pipe_gets_the_start_and_the_result_as_events(rig: Rig, name: str) -> None:
    config = str(rig.config(name, **KEYS, flush_size=500))
    command = [sys.executable, *COMMAND, "run", config, "--until-caught-up"]
    environment = {**os.environ, **rig.s3.environment}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=WAIT_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "\x1b" not in done.stderr
    events = done.stderr.splitlines()
    assert "sink started" in events[0]
    assert "tiny segments" in events[1]
    assert "sink ended" in events[-1]
    assert "records=2000" in events[-1]
    again = subprocess.run(
        [*command, "--json"], capture_output=True, text=True, env=environment, timeout=WAIT_TIMEOUT_S, check=False
    )
    said = [json.loads(line) for line in again.stderr.splitlines()]
    assert (said[0]["event"], said[-1]["event"]) == ("sink started", "sink ended")
    assert said[-1]["records"] == 0, "also when nothing was due"


@pytest.mark.full
def test_a_terminal_that_cannot_move_its_cursor_gets_events(rig: Rig, name: str) -> None:
    config = str(rig.config(name, **KEYS))
    environment = {**rig.s3.environment, "TERM": "dumb"}
    with at_terminal(
        rig.folder, *COMMAND, "run", config, "--until-caught-up", columns=200, environment=environment
    ) as shown:
        code, lines = shown.ends()
        assert b"\x1b" not in shown.raw
    assert code == 0, lines
    assert "sink started" in lines[0]
    assert "sink ended" in lines[-1]


@pytest.mark.full
def test_watch_at_a_terminal_changes_in_place(rig: Rig, name: str) -> None:
    config = str(rig.config(name, **KEYS))
    log_folder = rig.folder / "watch"
    log_folder.mkdir()
    with at_terminal(rig.folder, *COMMAND, "run", config, environment=rig.s3.environment) as sink:
        url = address(sink)
        sink.sees("buffered     2,000 records, ")
        with at_terminal(log_folder, *COMMAND, "status", "--url", url, "--watch") as shown:
            wait_for(lambda: any(re.search(r"RUNNING +2,000 +2,000 ", line) for line in shown.lines), "the lag")
            assert run_here({}, "sink", "flush", "--url", url).code == 0
            wait_for(lambda: any(re.search(r"RUNNING +0 +0 ", line) for line in shown.lines), "no lag")
            assert sum("TOPIC" in line for line in shown.lines) == 1
            shown.terminal.press(CTRL_C)
            assert shown.ends()[0] == 130
        sink.terminal.press(CTRL_C)
        assert sink.ends()[0] == 0
