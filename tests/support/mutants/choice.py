"""Which tests to run for a mutant, and in which order: in stages, each of which is one run of pytest.

Tests that reach the mutant's lines, those of `make test` before the rest of `make test-full`. Within a tier units come
first and whole processes last; within a stage the quickest come first. Where nothing was recorded of the lines, or of a
test, the test files that import the module are taken, the nearest first, in stages of their own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Final

from tests.support.mutants import ROOT
from tests.support.mutants.import_distance import distances
from tests.support.mutants.mutant import Mutant
from tests.support.mutants.record_plugin import WHOLE_FILE
from tests.support.mutants.recording import Recording
from tests.support.tiers import Tier

KINDS: Final = ("unit", "golden", "contract", "property", "model", "infra", "integration", "soak")
"""Folders of tests, the cheapest first."""

NOT_FOR_MUTANTS: Final = frozenset({"tests/unit/support/test_mutants.py", "tests/unit/test_tidy.py"})
"""What looks at the source tree as text would notice any change."""

_FAR: Final = 2
"""By how many imports a test may be away that was not recorded, where others were."""

_FAR_WITHOUT_A_RECORDING: Final = 6
_FILES_AT_ONCE: Final = 8
"""Without a recording: pytest reads all files of a stage before it runs the first test."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One run of pytest: tests (or whole files) of one kind, in the order in which they are to run."""

    tier: Tier
    tests: tuple[str, ...]


def stages(mutant: Mutant, recording: Recording | None, kinds: Collection[str]) -> list[Stage]:
    """The stages of a mutant's trial."""
    groups = _recorded(mutant, recording) or _near(mutant)
    found: list[Stage] = []
    for tier in (Tier.TEST, Tier.REST):
        for group in groups:
            wanted = [test for test in group if test.partition("::")[0] not in NOT_FOR_MUTANTS]
            of_kinds = [tuple(test for test in wanted if _kind(test) == kind) for kind in KINDS if kind in kinds]
            found += [Stage(tier, tests) for tests in of_kinds if tests]
    return found


def _recorded(mutant: Mutant, recording: Recording | None) -> list[list[str]]:
    """Tests that reach the lines, the quickest first, and before them near ones that were not there to be recorded."""
    reached = None if recording is None else recording.tests_of(mutant)
    if recording is None or reached is None:
        return []
    fresh = [test for file in sorted(distances(mutant.module, _FAR)) for test in sorted(_functions(file))]
    known = sorted(_still_there(reached), key=lambda test: (recording.seconds.get(test, inf), test))
    return [[*(test for test in fresh if test not in recording.seconds), *known]]


def _near(mutant: Mutant) -> list[list[str]]:
    """Test files, the nearest first, and of one distance those first that speak most of the functions around it."""
    near = distances(mutant.module, _FAR_WITHOUT_A_RECORDING)
    names = "|".join(mutant.within(mutant.path().read_text(encoding="utf-8"))) or mutant.module.rpartition(".")[2]
    spoken = re.compile(rf"\b({names})\b")
    mentions = {file: len(spoken.findall((ROOT / file).read_text(encoding="utf-8"))) for file in near}
    found: list[list[str]] = []
    for distance in sorted(set(near.values())):
        files = sorted((f for f in near if near[f] == distance), key=lambda file: (-mentions[file], file))
        found += [files[at : at + _FILES_AT_ONCE] for at in range(0, len(files), _FILES_AT_ONCE)]
    return found


def _still_there(tests: Iterable[str]) -> list[str]:
    """Those of these tests that still exist; a whole file (`::*`) by its path."""
    found: list[str] = []
    for test in tests:
        file = test.partition("::")[0]
        if test.endswith(WHOLE_FILE):
            found += [file] if _functions(file) else []
        elif test in _functions(file):
            found.append(test)
    return found


@cache
def _functions(file: str) -> frozenset[str]:
    """The tests of a file, without parameters; none where there is no such file."""
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    body = ast.parse(path.read_text(encoding="utf-8")).body
    found = {f"{file}::{name}" for name in _names(body)}
    for node in body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{file}::{node.name}::{name}" for name in _names(node.body)}
        elif isinstance(node, ast.Assign) and ".TestCase" in ast.unparse(node.value):
            found.add(f"{file}::{ast.unparse(node.targets[0])}::runTest")  # a state machine of hypothesis
    return frozenset(found)


def _names(body: Iterable[ast.stmt]) -> list[str]:
    return [node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test")]


def _kind(test: str) -> str:
    return test.split("/")[1]
