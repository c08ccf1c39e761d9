"""A pytest plugin that records coverage: each line with the test function that ran it.

Parameters of a test are not told apart. What a fixture of a wider scope than a function runs is recorded for the whole
file (`::*`). Processes that a test starts find what they need in their environment, and are recorded with the test,
unless they are killed.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import coverage
import pytest

FOLDER: Final = "KEYFOLD_RECORD_INTO"
CONTEXT: Final = "KEYFOLD_RECORD_TEST"
WHOLE_FILE: Final = "::*"


def id_of(nodeid: str) -> str:
    """A test's id without its parameters."""
    return nodeid.partition("[")[0]


class _Recorder:
    def __init__(self, folder: Path, config_file: Path) -> None:
        self._folder = folder
        self._seconds: defaultdict[str, float] = defaultdict(float)
        os.environ.setdefault(CONTEXT, "")
        self._coverage = coverage.Coverage(config_file=str(config_file))
        self._coverage.start()

    def _switch(self, context: str) -> None:
        os.environ[CONTEXT] = context
        self._coverage.switch_context(context)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        """Note what this test runs."""
        self._switch(id_of(item.nodeid))
        try:
            return (yield)
        finally:
            self._switch("")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
        if fixturedef.scope == "function":
            return (yield)
        before = os.environ[CONTEXT]
        self._switch(before.partition("::")[0] + WHOLE_FILE)
        try:
            return (yield)
        finally:
            self._switch(before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[id_of(report.nodeid)] += report.duration

    def pytest_unconfigure(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        (self._folder / f"seconds-{os.getpid()}.json").write_text(json.dumps(self._seconds), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to record, in each process that runs tests."""
    folder = os.environ.get(FOLDER)
    if folder is not None and (hasattr(config, "workerinput") or not config.getoption("numprocesses", None)):
        config.pluginmanager.register(_Recorder(Path(folder), Path(folder) / "coverage.cfg"))
