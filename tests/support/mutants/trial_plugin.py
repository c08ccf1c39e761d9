"""What pytest does while a mutant is tried: it says which test failed first, and refuses to test another tree.

The file `KEYFOLD_TRIAL` gets the test that is under way, and `failed` before it once it has failed. So whoever ends
pytest, or finds it dead, knows which test it was.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

import keyfold

VARIABLE: Final = "KEYFOLD_TRIAL"
FAILED: Final = "failed "


class _Reporter:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._has_failed = False

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if not self._has_failed:
            self._path.write_text(nodeid, encoding="utf-8")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._fail(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._fail(report.nodeid)

    def _fail(self, nodeid: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._path.write_text(FAILED + nodeid, encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to report."""
    path = os.environ.get(VARIABLE)
    if path is None:
        return
    if not Path(keyfold.__file__).is_relative_to(config.rootpath):
        pytest.exit(f"{keyfold.__file__} is not in {config.rootpath}", returncode=pytest.ExitCode.USAGE_ERROR)
    config.pluginmanager.register(_Reporter(Path(path)))
