"""One check of each of many things, as one test that names all things that fail.

    @each("path", {"index.md": path, ...})
    def test_lines_have_a_readable_length(path: Path) -> None:

For checks that take less time than an item of pytest's own. Fixtures are those of the whole test.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

Test = Callable[..., None]


def each(argument: str, cases: Mapping[str, Any]) -> Callable[[Test], Test]:
    """Make a test of one case a test of all cases, given by the names that a failure shall list."""

    def of_all(test: Test) -> Test:
        @functools.wraps(test)
        def check(**fixtures: Any) -> None:
            assert cases, "there is nothing to check"
            wrong: dict[str, str] = {}
            for name, case in cases.items():
                try:
                    test(**{argument: case}, **fixtures)
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - whatever it is, the others are checked
                    wrong[name] = f"{type(error).__name__}: {error}"
            assert not wrong, "\n\n".join(f"{name}\n{why}" for name, why in wrong.items())

        signature = inspect.signature(test)
        others = [parameter for name, parameter in signature.parameters.items() if name != argument]
        check.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]  # pytest reads it
        return check

    return of_all


def by_name(cases: Iterable[str]) -> dict[str, str]:
    """Cases that are their own names."""
    return {case: case for case in cases}
