"""Every planted bug applies to the code, and `make mutants` selects and reports correctly."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.each import each
from tests.support.mutants import ROOT, coverage_table, table
from tests.support.mutants.choice import KINDS, NOT_FOR_MUTANTS, stages
from tests.support.mutants.import_distance import distances
from tests.support.mutants.mutant import Mutant, MutantError, load, module_path, parse
from tests.support.mutants.trial import Outcome, TrialResult
from tests.support.tiers import Tier

LEAST = {"log": 12, "read": 8, "restore": 6, "sink": 14, "compactor": 12, "replicator": 10}
LINE_MAX = 140

TEXT = """\
mistake: The sum is a difference.
harm: A record is counted away.
module: keyfold.sums

--- before
    return one + other
--- after
    return one - other
"""
MODULE = "def add(one, other):\n    return one + other\n"


@each("mutant", {mutant.name: mutant for mutant in load()})
def test_every_mutant_applies_to_its_module(mutant: Mutant) -> None:
    mutant.applied(mutant.path().read_text(encoding="utf-8"))
    assert len(mutant.mistake) <= LINE_MAX
    assert len(mutant.harm) <= LINE_MAX


def test_every_area_has_mutants() -> None:
    found = Counter(mutant.area for mutant in load())
    assert {area: found[area] for area, least in LEAST.items() if found[area] < least} == {}
    assert found.total() >= 60


def test_no_mutant_is_defined_twice() -> None:
    found = Counter((mutant.module, mutant.before, mutant.after) for mutant in load())
    assert [mutant for mutant, count in found.items() if count > 1] == []


def test_a_mutant_changes_only_its_lines() -> None:
    mutant = parse("area/name", TEXT)
    assert mutant.applied(MODULE) == "def add(one, other):\n    return one - other\n"
    assert list(mutant.lines(MODULE)) == [2]
    assert mutant.area == "area"


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("def add(one, other):\n    return other\n", "0 times"),
        (MODULE + MODULE, "2 times"),
        ("def add(one, other):\n        return one + other\n", "0 times"),
    ],
)
def test_lines_that_do_not_occur_exactly_once_are_refused(module: str, message: str) -> None:
    with pytest.raises(MutantError, match=message):
        parse("area/name", TEXT).applied(module)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT.replace("one - other", "one +"), "no Python"),
        (TEXT.replace("one - other", "(one + other)"), "nothing but the layout"),
        (TEXT.replace("harm: A record is counted away.\n", ""), "needs mistake, harm, module"),
        (TEXT.replace("--- after\n", ""), "needs the lines"),
        (TEXT.replace("mistake: ", "mistake "), "is not `field: text`"),
        (TEXT.rstrip("\n"), "whole ones"),
    ],
)
def test_an_incomplete_mutant_is_refused(text: str, message: str) -> None:
    with pytest.raises(MutantError, match=message):
        parse("area/name", text).applied(MODULE)


def test_a_module_is_found_by_its_name() -> None:
    assert module_path("keyfold.log.commit") == ROOT / "keyfold" / "log" / "commit.py"
    assert module_path("keyfold_sink.group.group").is_relative_to(ROOT / "sink")
    with pytest.raises(MutantError, match="was it renamed"):
        module_path("keyfold.log.nosuch")


def test_tests_are_close_to_the_modules_that_they_import() -> None:
    found = distances("keyfold.log.gaps", 2)
    assert found["tests/unit/log/test_gaps.py"] == 1
    assert max(found.values()) == 2


def test_the_closest_unit_tests_run_first_without_a_recording() -> None:
    found = stages(next(m for m in load() if m.module == "keyfold.log.gaps"), None, KINDS)
    assert found[0].tests[0] == "tests/unit/log/test_gaps.py"
    half = len(found) // 2
    assert [stage.tier for stage in found] == [Tier.TEST] * half + [Tier.REST] * half
    assert not any(test in NOT_FOR_MUTANTS for stage in found for test in stage.tests)


def test_survivors_and_too_few_in_the_first_tier_are_complaints(tmp_path: Path) -> None:
    caught = [TrialResult(f"log/{n}", Outcome.CAUGHT, "test", "tests/unit/test_a.py::test_b", 1.0) for n in range(9)]
    late = TrialResult("log/late", Outcome.CAUGHT, "test-full", "tests/integration/test_c.py::test_d", 90.0)
    assert table.complaints([*caught, late], "test") == []
    assert table.complaints([*caught[:8], late], "test") == ["`make test` catches 8 of 9, less than nine in ten"]
    assert table.complaints([*caught, TrialResult("log/alive", Outcome.SURVIVED)], "test") == ["log/alive: SURVIVED"]
    shown = table.table([*caught, late])
    assert "all           10 planted: 9 caught by test, 1 caught by test-full" in shown
    assert json.loads(table.as_json([late]))[0]["test"] == late.test


def test_coverage_is_shown_for_each_package_including_files_that_are_never_imported(tmp_path: Path) -> None:
    for name, text in {
        "pack/__init__.py": "",
        "pack/inner/__init__.py": "",
        "pack/inner/odd.py": "def is_odd(number):\n    if number % 2:\n        return True\n    return False\n",
        "room/found/__init__.py": "",
        "room/found/unread.py": "ANSWER = 1\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    program = "import sys; sys.path.insert(0, '.'); from pack.inner.odd import is_odd; is_odd(1)"
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, "-m", "coverage", "run", "--branch", "--source=pack", "--data-file=found", "program.py"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    shown = coverage_table.table(tmp_path / "found", tmp_path, ["pack", "room"])
    rows = {line.split()[0]: line.split()[1:] for line in shown}
    assert rows["pack.inner"] == ["3", "/", "4", "75.0%", "1", "/", "2", "50.0%"]
    assert rows["found"] == ["0", "/", "1", "0.0%", "0", "/", "0", "100.0%"]
    assert rows["all"] == ["3", "/", "5", "60.0%", "1", "/", "2", "50.0%"]
