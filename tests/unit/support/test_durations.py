"""The table of the tests' durations, from a separate run with two workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.root import ROOT

TESTS = """
import time
import pytest

@pytest.fixture(scope="module")
def slow():
    time.sleep(0.2)
    return 1

def test_one(slow):
    assert slow

def test_two(slow):
    time.sleep(0.1)
"""


@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.full)])
def test_files_and_fixtures_are_listed_slowest_first(tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_slow.py").write_text(TESTS)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "conftest.py").write_text("")  # then pytest calls the other folder's hooks without this one's
    (tmp_path / "inner" / "test_fast.py").write_text("def test_it():\n    pass\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.support.durations",
        "-p",
        "no:schemathesis",
        "-n",
        workers,
    ]
    run = subprocess.run(
        [*command, "--dist", "loadfile", "--rootdir", str(tmp_path), "-c", "/dev/null", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
        timeout=120,
    )
    lines = run.stdout.splitlines()
    words = ("test_slow.py", "test_fast.py", "2 of them")
    slow, fast, files = (next(line for line in lines if word in line) for word in words)
    assert lines.index(slow) < lines.index(fast) < lines.index(files)
    assert "2 tests" in slow
    (fixture,) = [line for line in lines if line.endswith("set-ups  slow")]
    seconds, _, count, *_ = fixture.split()
    assert float(seconds) >= 0.2
    assert count == "1"
