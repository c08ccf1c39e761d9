"""The tiers of the tests: `make test` and the rest of `make test-full` together run each test once."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.root import ROOT
from tests.support.tiers import Choice, Share, Tier, in_share

TESTS = """
import pytest
from hypothesis import given, settings, strategies as st

def test_plain():
    pass

@pytest.mark.full
def test_long():
    pass

@pytest.mark.real
def test_built_by_go():
    pass

@pytest.mark.soak
def test_hours():
    pass

@pytest.mark.sharded
@pytest.mark.parametrize("number", range(20))
def test_faults(number):
    pass

@pytest.mark.sharded
@settings(max_examples=80, database=None)
@given(st.integers())
def test_property(number):
    print("example")

def test_loop(sharded):
    print("cases", sharded(range(4)))

@pytest.mark.full
def test_long_loop(sharded):
    print("cases", sharded(range(4)))
"""

LONG_FILE = """
import pytest

pytestmark = [pytest.mark.kafka, pytest.mark.full]
print("imported")

def test_of_a_long_file():
    pass
"""


def run(folder: Path, *flags: str) -> tuple[set[str], str]:
    (folder / "test_tiers_of.py").write_text(TESTS)
    (folder / "test_long_of.py").write_text(LONG_FILE)
    command = [sys.executable, "-m", "pytest", "-v", "-s", "-p", "tests.support.tiers", "--rootdir", str(folder)]
    given = ["-c", "/dev/null", "-W", "ignore::pytest.PytestUnknownMarkWarning", *flags, str(folder)]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*command, *given], capture_output=True, text=True, cwd=ROOT, env=alone, check=True, timeout=120
    )
    names = (word for line in done.stdout.splitlines() for word in line.split() if "::" in word)
    return {name.partition("::")[2] for name in names}, done.stdout


def test_the_quick_tier_and_the_rest_together_have_each_test_once(tmp_path: Path) -> None:
    quick, shown = run(tmp_path, "--tier", "test", "--share", "2/4")
    assert "tier: test, of enumerations share 2/4" in shown
    assert "cases [1]" in shown
    assert shown.count("example") == 80 // 4
    assert "imported" not in shown
    rest, shown = run(tmp_path, "--tier", "rest", "--share", "2/4")
    assert "cases [0, 2, 3]" in shown
    assert shown.count("example") == 80 - 80 // 4
    assert "cases [0, 1, 2, 3]" in shown
    full, shown = run(tmp_path, "--tier", "full")
    assert shown.count("example") == 80
    assert "test_of_a_long_file" in rest
    assert quick & rest == {"test_loop", "test_property"}, "a loop has cases for both, a property examples"
    assert quick | rest == full
    assert {"test_plain", "test_loop"} <= quick
    assert {"test_long", "test_built_by_go", "test_long_loop"} <= rest
    assert len([name for name in quick if name.startswith("test_faults")]) == 5
    assert "test_hours" not in full
    named, _ = run(tmp_path)
    assert named == full | {"test_hours"}


def test_shares_together_have_each_item_once() -> None:
    ids = [f"test[{number}]" for number in range(21)]
    shares = [in_share(ids, Share(index, 8)) for index in range(8)]
    assert sorted(item for share in shares for item in share) == sorted(ids)
    assert shares == [in_share(ids[::-1], Share(index, 8)) for index in range(8)]


@pytest.mark.parametrize("count", range(1, 10))
def test_each_share_has_a_case_of_every_test(count: int) -> None:
    for index in range(8):
        quick, rest = (Choice(tier, Share(index, 8)).cases(range(count)) for tier in (Tier.TEST, Tier.REST))
        assert quick
        assert sorted(quick + rest) == list(range(count))


@pytest.mark.parametrize("text", ["", "0/8", "9/8", "3", "a/b", "-1/8", "3/0"])
def test_an_invalid_share_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no share"):
        Share.parse(text)
