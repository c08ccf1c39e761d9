"""Which tests a run takes: `make test`, what `make test` leaves out, or both.

    pytest --tier test --share 3/8      what `make test` runs: nothing long, and of each enumeration one share of eight
    pytest --tier rest --share 3/8      what the line above leaves out
    pytest --tier full                  both; so are tests that are named without a tier, and soaks if `-m soak` asks

A test that is long, or that needs what Go builds, has the mark `full` or `real` and is left out by `make test`. Of a
test with the mark `sharded`, whose parameters enumerate faults or seeds, each share has some of the items, and all
shares together have each item once. A test that enumerates in a loop asks the fixture `sharded` for its cases. Of a
property of Hypothesis with this mark, a share has a share of the examples.

`make test` chooses a share by chance and prints it; `make test SHARE=3/8` repeats it. It does not even import a file
whose `pytestmark` has one of these marks.
"""

from __future__ import annotations

import argparse
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from hypothesis import is_hypothesis_test, settings

T = TypeVar("T")
Sharded = Callable[[Sequence[Any]], list[Any]]
"""What the fixture `sharded` is: it gives the cases of a loop that this run takes, in their order."""

APART: Final = frozenset({"soak", "kube"})
"""Marks of tests that no tier has."""
LONG: Final = frozenset({"full", "real"})
"""Marks of tests that `make test` leaves out."""
EXAMPLES_MIN: Final = 10
"""A property is tried with no fewer examples, unless it asks for fewer."""


_SETTINGS: Final = "_hypothesis_internal_use_settings"
_LONG_FILE: Final = re.compile(rf"^pytestmark = .*\bmark\.({'|'.join(sorted(LONG | APART))})\b", re.MULTILINE)


class Tier(StrEnum):
    """What a run takes."""

    TEST = "test"
    REST = "rest"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Share:
    """Number `index` (from 0) of `count` shares."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Share:
        """Read `3/8`: the third of eight. Raises `argparse.ArgumentTypeError`."""
        number, _, count = text.partition("/")
        if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
            raise argparse.ArgumentTypeError(f"{text!r} is no share: write 3/8 for the third of eight")
        return cls(int(number) - 1, int(count))

    def __str__(self) -> str:
        return f"{self.index + 1}/{self.count}"

    def takes(self, position: int, positions: int) -> bool:
        """Whether a case is in this share. Of fewer cases than shares, each share has one."""
        shares = min(self.count, positions)
        return position % shares == self.index % shares


@dataclass(frozen=True, slots=True)
class Choice:
    """The tier and the share of a run; without a tier, a run takes all that was named."""

    tier: Tier | None
    share: Share

    def takes(self, marks: Iterable[str], *, is_in_share: bool) -> bool:
        """Whether a run takes a test with these marks."""
        if self.tier is None:
            return True
        found = frozenset(marks)
        is_quick = not found & LONG and is_in_share
        return not found & APART and (self.tier is Tier.FULL or is_quick == (self.tier is Tier.TEST))

    def examples(self, count: int) -> int:
        """How many examples of a property a run tries."""
        if self.tier is None or self.tier is Tier.FULL:
            return count
        quick = max(min(count, EXAMPLES_MIN), count // self.share.count)
        return quick if self.tier is Tier.TEST else max(1, count - quick)

    def cases(self, cases: Sequence[T]) -> list[T]:
        """The cases of a loop that a run takes."""
        if self.tier is None or self.tier is Tier.FULL:
            return list(cases)
        wanted = self.tier is Tier.TEST
        return [case for at, case in enumerate(cases) if self.share.takes(at, len(cases)) == wanted]


def choice_of(config: pytest.Config) -> Choice:
    """The choice that a command line asks for."""
    tier = config.getoption("--tier")
    return Choice(None if tier is None else Tier(tier), config.getoption("--share"))


def in_share(ids: Sequence[str], share: Share) -> set[str]:
    """Those items of one test that a share has, whatever order they are in."""
    ranked = sorted(ids, key=lambda item: (zlib.crc32(item.encode()), item))
    return {item for at, item in enumerate(ranked) if share.takes(at, len(ranked))}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--tier` and `--share`."""
    group = parser.getgroup("tiers of the tests")
    group.addoption("--tier", choices=list(Tier), help="test: quick ones; rest: what `test` leaves out; full: both")
    group.addoption("--share", type=Share.parse, default="1/8", metavar="K/N", help="which share of enumerations")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say which share a run has, so that it can be repeated."""
    choice = choice_of(config)
    if choice.tier is None:
        return None
    return f"tier: {choice.tier}, of enumerations share {choice.share}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Pass over files of which `make test` takes nothing: importing them all takes seconds in each worker."""
    is_file = choice_of(config).tier is Tier.TEST and collection_path.suffix == ".py"
    return True if is_file and _LONG_FILE.search(collection_path.read_text(encoding="utf-8")) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the run does not take."""
    choice = choice_of(config)
    if choice.tier is None:
        return
    by_test: dict[str, list[str]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sharded") and not _has_examples(item):
            by_test[item.nodeid.partition("[")[0]].append(item.nodeid)
    shared = {item for ids in by_test.values() for item in in_share(ids, choice.share)}
    taken: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        is_property = "sharded" in marks and _has_examples(item)
        is_in_share = "sharded" not in marks or is_property or item.nodeid in shared
        # A loop has cases for both tiers, and a property has examples.
        is_taken = choice.takes(marks, is_in_share=is_in_share) or _is_rest_of_one(item, choice, marks)
        if is_property and not marks & LONG:
            _thin_out(item, choice)
        (taken if is_taken else left).append(item)
    items[:] = taken
    config.hook.pytest_deselected(items=left)


def _is_rest_of_one(item: pytest.Item, choice: Choice, marks: set[str]) -> bool:
    is_loop = "sharded" in getattr(item, "fixturenames", ())
    is_property = "sharded" in marks and _has_examples(item)
    return choice.tier is Tier.REST and not marks & APART and (is_loop or is_property)


def _has_examples(item: pytest.Item) -> bool:
    return is_hypothesis_test(getattr(item, "obj", None))


def _thin_out(item: pytest.Item, choice: Choice) -> None:
    """Give a property the number of examples that the run tries."""
    test = getattr(item, "obj")  # noqa: B009 - not every item has one
    given: settings = getattr(test, _SETTINGS, None) or settings()
    setattr(test, _SETTINGS, settings(given, max_examples=choice.examples(given.max_examples)))


@pytest.fixture
def sharded(request: pytest.FixtureRequest) -> Sharded:
    """The cases of a loop that this run takes: all of them in a test that `make test` leaves out as a whole."""
    is_long = any(mark.name in LONG for mark in request.node.iter_markers())
    return list if is_long else choice_of(request.config).cases
