"""Import every module of the library and run commands, in a Python that may lack optional libraries.

Started as a file by the Python in question, so it imports keyfold and the standard library alone. Standard input has
`{"hidden": [...], "commands": [[...], ...]}`: top-level modules to hide, and commands to run in this process. Standard
output gets `{"modules": {name: missing extra or error}, "commands": [{"code", "out", "err"}, ...]}`.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path

import keyfold
from keyfold.cli.app import run
from keyfold.errors import ExtraMissing


class Hiding(MetaPathFinder):
    """Hides top-level modules, as if they were not installed."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Raise what Python raises for a missing module."""
        if fullname.partition(".")[0] in self._names:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def failed_imports() -> Iterator[tuple[str, str]]:
    """Yield each module of the library that cannot be imported, with the extra it names, or with the error."""
    folder = Path(keyfold.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        words = ["keyfold", *file.relative_to(folder).with_suffix("").parts]
        if words[-1] == "__main__":
            continue
        name = ".".join(words[:-1] if words[-1] == "__init__" else words)
        try:
            importlib.import_module(name)
        except ExtraMissing as error:
            yield name, error.extra
        except Exception as error:  # noqa: BLE001 - reported, whatever it is
            yield name, f"{type(error).__name__}: {error}"


def outcome(words: Sequence[str]) -> dict[str, object]:
    """Run one command in this process."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = run(words)
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


if __name__ == "__main__":
    task = json.load(sys.stdin)
    sys.meta_path.insert(0, Hiding(frozenset(task["hidden"])))
    # The compactor asks `find_spec` for pyspark, which takes None for "not installed" and lets an error through.
    for module in {"pyspark", "py4j"}.intersection(task["hidden"]):
        sys.modules[module] = None  # type: ignore[assignment]  # None is how Python says so
    found = {"modules": dict(failed_imports()), "commands": [outcome(words) for words in task["commands"]]}
    print(json.dumps(found))
