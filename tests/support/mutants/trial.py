"""One mutant's trial: stage after stage until a test fails that passes without the mutant."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

import pytest

from tests.support.mutants.choice import Stage
from tests.support.mutants.mutant import Mutant
from tests.support.mutants.tree import Tree
from tests.support.mutants.trial_plugin import FAILED, VARIABLE
from tests.support.tiers import Tier

COMMANDS: Final = {Tier.TEST: "test", Tier.REST: "test-full"}
"""The target of `make` that would have caught a mutant, by the tier of the test that did."""

SHARE: Final = "1/8"
"""Of enumerations `make test` runs a share that chance chooses. What one share catches is less than what all do."""

TEST_TIMEOUT_S: Final = 300
UNIT_TEST_TIMEOUT_S: Final = 120
"""A mutant may make a test wait for ever."""

_PLUGIN: Final = "tests.support.mutants.trial_plugin"


class Outcome(StrEnum):
    """What came of a mutant."""

    CAUGHT = "caught"
    SURVIVED = "SURVIVED"
    UNFINISHED = "UNFINISHED"  # out of time, or pytest itself failed


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What came of a mutant: the command and the test that caught it, or what was in the way."""

    mutant: str
    outcome: Outcome
    tier: str = ""
    test: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class Known:
    """Tests that were run without any mutant, and whether they passed. Shared by all trials."""

    passes: dict[str, bool] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class _OutOfTime(Exception):
    """The mutant has had its time."""


class _PytestFailed(Exception):
    """Pytest ended without a result."""


class Trial:
    """Tries one mutant in a tree that is its own for that long."""

    def __init__(self, mutant: Mutant, tree: Tree, known: Known, limit_s: float, log: Path) -> None:
        self._mutant = mutant
        self._tree = tree
        self._known = known
        self._until_s = time.monotonic() + limit_s
        self._log = log

    def run(self, stages: Sequence[Stage]) -> TrialResult:
        """Run the stages. Raises `MutantError` where the mutant does not fit."""
        began_s = time.monotonic()
        result = self._judged(stages)
        return replace(result, seconds=round(time.monotonic() - began_s, 1))

    def _judged(self, stages: Sequence[Stage]) -> TrialResult:
        name = self._mutant.name
        for stage in stages:
            try:
                test = self._caught_by(stage)
            except _OutOfTime:
                return TrialResult(name, Outcome.UNFINISHED, COMMANDS[stage.tier], "out of time")
            except _PytestFailed as error:
                return TrialResult(name, Outcome.UNFINISHED, COMMANDS[stage.tier], str(error))
            if test:
                return TrialResult(name, Outcome.CAUGHT, COMMANDS[stage.tier], test)
        return TrialResult(name, Outcome.SURVIVED, test="" if stages else "no test was found that reaches it")

    def _caught_by(self, stage: Stage) -> str:
        """The test of a stage that fails because of the mutant; empty where none does."""
        while True:
            deselected = [f"--deselect={test}" for test, passes in self._known.passes.items() if not passes]
            self._tree.plant(self._mutant)
            try:
                failed = self._pytest([*deselected, "--tier", stage.tier, "--share", SHARE], stage.tests)
            finally:
                self._tree.mend()
            if not failed or self._passes_without(failed):
                return failed

    def _passes_without(self, test: str) -> bool:
        """Whether a test passes in the tree as it is."""
        with self._known.lock:
            if test not in self._known.passes:
                self._known.passes[test] = not self._pytest([], [test])
            return self._known.passes[test]

    def _pytest(self, options: Sequence[str], tests: Sequence[str]) -> str:
        """Run tests until one fails; that one's id, or nothing."""
        with tempfile.TemporaryDirectory(prefix="keyfold-trial-") as folder:
            told, listed = Path(folder) / "told", Path(folder) / "tests"
            listed.write_text("\n".join(tests), encoding="utf-8")
            timeout_s = UNIT_TEST_TIMEOUT_S if tests[0].startswith("tests/unit/") else TEST_TIMEOUT_S
            command = [
                *(str(self._tree.python), "-m", "pytest", "-x", "-q", "-p", _PLUGIN),
                *("-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0"),
                *("-o", f"timeout={timeout_s}", *options, f"@{listed}"),
            ]
            code = self._ended(command, {**os.environ, VARIABLE: str(told)})
            last = told.read_text(encoding="utf-8") if told.is_file() else ""
        if code in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            return ""
        if last.startswith(FAILED):
            return last.removeprefix(FAILED)
        if last and code not in {pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR}:
            return last  # pytest was ended in the middle of this test
        raise _PytestFailed(f"pytest ended with {code}; see {self._log}")

    def _ended(self, command: Sequence[str], environment: dict[str, str]) -> int:
        environment.pop("PYTHONPATH", None)
        environment.pop("VIRTUAL_ENV", None)
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                command, cwd=self._tree.root, env=environment, stdout=log, stderr=log, start_new_session=True
            )
            try:
                return process.wait(max(0.0, self._until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise _OutOfTime from None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
