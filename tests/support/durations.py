"""Where the time of a run of the tests went: seconds for each test file, and for each fixture's set-up.

    make test-durations                        the table at the end of `make test`
    pytest -p tests.support.durations ...      the same for any run, with any number of workers

A fixture's seconds are those of its own set-up, without the fixtures that it asks for by its arguments. They are a part
of the seconds of the file whose test asked first.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Final, cast

import pytest

FILES_SHOWN: Final = 80
FIXTURES_SHOWN: Final = 40
_FIXTURE: Final = "fixture seconds"


@dataclass(slots=True)
class Spent:
    """Seconds, and how many tests or set-ups they were spent on."""

    seconds: float = 0.0
    count: int = 0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count one more."""
        self.seconds += seconds
        self.count += count


@dataclass(slots=True, eq=False)  # pytest keeps plugins in sets
class Durations:
    """What a run took. In a worker only `waiting` is filled: its reports carry that to the process that prints."""

    files: dict[str, Spent] = field(default_factory=lambda: defaultdict(Spent))
    fixtures: dict[str, Spent] = field(default_factory=lambda: defaultdict(Spent))
    waiting: list[tuple[str, float]] = field(default_factory=list)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        """Measure a set-up."""
        begun_s = time.perf_counter()
        try:
            return (yield)
        finally:
            self.waiting.append((fixturedef.argname, time.perf_counter() - begun_s))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Send the set-ups along with the test that asked for them."""
        report = yield
        report.user_properties += [(_FIXTURE, measured) for measured in self.waiting]
        self.waiting.clear()
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up a phase of a test."""
        self.files[report.nodeid.partition("::")[0]].add(report.duration, count=report.when == "call")
        for name, measured in report.user_properties:
            if name == _FIXTURE:
                fixture, seconds = cast("tuple[str, float]", measured)
                self.fixtures[fixture].add(seconds)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print both tables."""
        for title, what, found, most in (
            ("seconds for each file", "tests", self.files, FILES_SHOWN),
            ("seconds for each fixture's set-up", "set-ups", self.fixtures, FIXTURES_SHOWN),
        ):
            terminalreporter.section(title)
            for line in table(found, what, most):
                terminalreporter.write_line(line)


def table(found: dict[str, Spent], what: str, most: int) -> list[str]:
    """The slowest first, and a last line with the sum of all."""
    ranked = sorted(found.items(), key=lambda item: -item[1].seconds)
    lines = [f"{spent.seconds:9.1f} s {spent.count:7} {what}  {name}" for name, spent in ranked[:most]]
    total_s = sum(spent.seconds for spent in found.values())
    count = sum(spent.count for spent in found.values())
    return [*lines, f"{total_s:9.1f} s {count:7} {what}  in all, {len(found)} of them"]


def pytest_configure(config: pytest.Config) -> None:
    """Begin."""
    config.pluginmanager.register(Durations(), "keyfold-durations")
