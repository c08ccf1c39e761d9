"""A mutant: one plausible mistake in one module, as a small text file.

    mistake: what is wrong with the code, in one line
    harm: what it does to a user's records, in one line
    module: keyfold.log.commit

    --- before
    whole lines of the module, as they are
    --- after
    the same lines with the mistake

The lines are looked for as text, and must be in the module exactly once. So a mutant survives whatever changes around
it, and a change of the lines themselves is noticed at once (`tests/unit/support/test_mutants.py`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.mutants import ROOT

FOLDER: Final = ROOT / "tests" / "mutants"
"""A folder below it is an area: `log`, `read`, `restore`, `sink`, `compactor`, `replicator`."""

_FIELDS: Final = ("mistake", "harm", "module")
_BEFORE: Final = "--- before\n"
_AFTER: Final = "--- after\n"


class MutantError(ValueError):
    """A mutant that cannot be read, or does not fit its module."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake. `before` and `after` are whole lines."""

    name: str
    mistake: str
    harm: str
    module: str
    before: str
    after: str

    @property
    def area(self) -> str:
        """The part of keyfold that the mistake is in: the first part of the name."""
        return self.name.partition("/")[0]

    def path(self, root: Path = ROOT) -> Path:
        """The module's file. Raises `MutantError` if there is none."""
        return module_path(self.module, root)

    def first_line(self, text: str) -> int:
        """The number of the first line of `before` in the module's text. Raises `MutantError`."""
        count = f"\n{text}".count(f"\n{self.before}")
        if count != 1:
            raise MutantError(f"{self.name}: its lines are in {self.module} {count} times and must be there once")
        return f"\n{text}"[: f"\n{text}".index(f"\n{self.before}") + 1].count("\n")

    def lines(self, text: str) -> range:
        """The numbers of the lines that the mistake changes. Raises `MutantError`."""
        first = self.first_line(text)
        return range(first, first + self.before.count("\n"))

    def within(self, text: str) -> list[str]:
        """The names of the classes and functions that its first line is in, the outermost first."""
        line = self.first_line(text)
        kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
        return [node.name for node in found if node.lineno <= line <= (node.end_lineno or node.lineno)]

    def applied(self, text: str) -> str:
        """The module's text with the mistake in it. Raises `MutantError` where that is no other program."""
        at = self.first_line(text)
        kept = text.splitlines(keepends=True)
        made = "".join([*kept[: at - 1], self.after, *kept[at - 1 + self.before.count("\n") :]])
        try:
            is_other = ast.dump(ast.parse(made)) != ast.dump(ast.parse(text))
        except SyntaxError as error:
            raise MutantError(f"{self.name}: {self.module} is no Python with it: {error}") from error
        if not is_other:
            raise MutantError(f"{self.name}: changes nothing but the layout of {self.module}")
        return made


def parse(name: str, text: str) -> Mutant:
    """Read a mutant's file. Raises `MutantError`."""
    head, found, rest = text.partition(_BEFORE)
    before, also_found, after = rest.partition(_AFTER)
    if not (found and also_found):
        raise MutantError(f"{name}: needs the lines `{_BEFORE.strip()}` and `{_AFTER.strip()}`")
    fields = dict(_field(name, line) for line in head.splitlines() if line.strip())
    if tuple(fields) != _FIELDS:
        raise MutantError(f"{name}: has the fields {', '.join(fields)}, and needs {', '.join(_FIELDS)} in this order")
    if not before.endswith("\n") or (after and not after.endswith("\n")):
        raise MutantError(f"{name}: its lines must be whole ones")
    return Mutant(name, **fields, before=before, after=after)


def _field(name: str, line: str) -> tuple[str, str]:
    field, separator, value = line.partition(": ")
    if not separator or not value.strip():
        raise MutantError(f"{name}: {line!r} is not `field: text`")
    return field, value.strip()


def load(folder: Path = FOLDER) -> list[Mutant]:
    """Read every mutant, by name. Raises `MutantError`."""
    return [parse(name, path.read_text(encoding="utf-8")) for name, path in sorted(_files(folder))]


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.glob("*/*.txt"):
        yield f"{path.parent.name}/{path.stem}", path


def module_path(module: str, root: Path = ROOT) -> Path:
    """The file of a module by its dotted name. Raises `MutantError` if there is none."""
    parts = Path(*module.split("."))
    for top in (root, *sorted(path for path in root.iterdir() if path.is_dir())):
        for path in (top / parts.with_suffix(".py"), top / parts / "__init__.py"):
            if path.is_file():
                return path
    raise MutantError(f"there is no module {module}; was it renamed?")
