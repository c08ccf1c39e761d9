"""The demo's judgement and its handling of processes; the whole of it is in `tests/integration/test_demo.py`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from keyfold.errors import KeyfoldError
from keyfold.log.record import Record
from keyfold_demo.commands import Commands, shown
from keyfold_demo.narration import Narrator
from keyfold_demo.numbers import Logs, Summary, last_of_each_key, without_tombstones
from keyfold_demo.story import removed_offset
from keyfold_demo.treeproof import SMALL

PYTHON = sys.executable


def record(offset: int, key: bytes, value: bytes | None) -> Record:
    return Record(
        offset=offset, timestamp=offset, timestamp_type="create", key=key, value=value, headers=(), leader_epoch=0
    )


SUNK: Logs = {0: [record(0, b"a", b"1"), record(1, b"b", b"1"), record(2, b"a", b"2"), record(3, b"b", None)]}


def test_a_dict_gives_the_records_that_compaction_must_leave() -> None:
    first = last_of_each_key(SUNK)
    assert [r.offset for r in first[0]] == [2, 3]
    assert [r.offset for r in without_tombstones(first)[0]] == [2]


def test_a_removed_offset_has_a_later_surviving_record() -> None:
    assert removed_offset(SUNK, last_of_each_key(SUNK)) == (0, 1, 2)
    assert removed_offset(SUNK, without_tombstones(last_of_each_key(SUNK))) == (0, 1, 2)
    with pytest.raises(KeyfoldError, match="nothing"):
        removed_offset(SUNK, SUNK)


def test_the_demo_holds_only_if_something_was_checked_and_every_check_passed() -> None:
    summary = Summary(SMALL, 4)
    outcomes = [summary.holds]
    for sentence, holds in (("one", True), ("two", False)):
        summary.check(sentence, holds=holds)
        outcomes.append(summary.holds)
    assert outcomes == [False, True, False]
    assert summary.to_json()["checks"] == {"one": True, "two": False}


def test_a_command_returns_its_output(tmp_path: Path) -> None:
    commands = Commands(tmp_path, {"GREETING": "hello"})
    code = "import os,sys; print(os.environ['GREETING'], sys.stdin.read()); print('aside', file=sys.stderr)"
    finished = commands.run("greet", [PYTHON, "-c", code], stdin="you")
    assert (finished.exit_code, finished.out, finished.err) == (0, "hello you\n", "aside\n")


def test_a_failed_command_is_named_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(KeyfoldError, match=r"`greet` ended with exit code 3:\nno way"):
        Commands(tmp_path, {}).run("greet", [PYTHON, "-c", "import sys; print('no way'); sys.exit(3)"])


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("is_deaf", [False, True])
def test_an_interrupted_command_ends_its_children(tmp_path: Path, *, is_deaf: bool) -> None:
    child = "import time; time.sleep(600)"
    if is_deaf:
        child = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + child
    pid_file = tmp_path / "pid"
    code = (
        f"import pathlib,subprocess,sys; p=subprocess.Popen([sys.executable, '-c', {child!r}]); "
        f"pathlib.Path({str(pid_file)!r}).write_text(str(p.pid)); p.wait()"
    )

    def interrupt() -> None:
        if pid_file.exists() and pid_file.read_text():
            time.sleep(0.3)  # the child has time to become deaf
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Commands(tmp_path, {}, retry_timeout_s=0.5).run("sleep", [PYTHON, "-c", code], watch=interrupt)
    pid = int(pid_file.read_text())
    deadline = time.monotonic() + 60
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(pid)


def test_a_command_line_is_shown_as_it_would_be_typed() -> None:
    assert shown("log", "cat", "s3://b/t", "a b") == "keyfold log cat s3://b/t 'a b'"


def test_steps_are_plain_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    narrator = Narrator()
    with narrator.step("Count [things]") as step:
        step.note("halfway")
        step.result = "seven"
    with pytest.raises(ValueError, match="no"), narrator.step("Fail"):
        raise ValueError("no")
    out = capsys.readouterr().out
    assert out.startswith("✓ Count [things]  0.0 s\n    seven\n")
    assert out.endswith("✗ Fail\n")
    assert "\x1b" not in out
