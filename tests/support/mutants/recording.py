"""Which tests run which lines: recorded by coverage once, and used until the next recording.

A recording is two files in `.cache/mutants`, named by the commit that it was made of:

    <commit>.coverage    coverage's own data; each context is a test function
    <commit>.json        seconds of each test, and where the source tree was

A recording of an older commit serves as well: the lines of a mutant are looked for in the module as it was then.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import coverage

from tests.support.mutants import ROOT
from tests.support.mutants.coverage_table import table
from tests.support.mutants.mutant import Mutant, MutantError
from tests.support.mutants.record_plugin import CONTEXT, FOLDER

FOLDERS: Final = ("keyfold", "sink", "compactor", "replicator", "server", "schemas")
_CONFIG: Final = """\
[run]
parallel = true
branch = true
data_file = {folder}/coverage
context = ${{{context}}}
disable_warnings = no-data-collected,module-not-measured,module-not-imported
include =
{include}
"""


@dataclass(frozen=True, slots=True)
class Recording:
    """What was recorded of `commit`, in the source tree `root`. `seconds` are those of every test that ran."""

    commit: str
    root: Path
    seconds: Mapping[str, float]
    data: coverage.CoverageData

    def tests_of(self, mutant: Mutant) -> frozenset[str] | None:
        """The tests that run its lines; None where that was not recorded.

        A line outside of functions is run when its module is imported, whichever test comes first: that says nothing.
        """
        try:
            path = mutant.path()
            name = path.relative_to(ROOT)
            then = _git("show", f"{self.commit}:{name}")
            lines = mutant.lines(then)
        except (subprocess.CalledProcessError, MutantError):
            return None
        if not _is_in_a_function(then, lines.start):
            return None
        by_line = self.data.contexts_by_lineno(str(self.root / name))
        found = frozenset(context for line in lines for context in by_line.get(line, ()) if context)
        return found or None


def newest(folder: Path) -> Recording | None:
    """The recording of this commit, else the youngest of any; None without one."""
    here = _git("rev-parse", "HEAD").strip()
    paths = sorted(folder.glob("*.json"), key=lambda path: (path.stem == here, path.stat().st_mtime))
    for path in reversed(paths):
        if _is_known(path.stem):
            told = json.loads(path.read_text(encoding="utf-8"))
            data = coverage.CoverageData(str(path.with_suffix(".coverage")))
            data.read()
            return Recording(path.stem, Path(told["root"]), told["seconds"], data)
    return None


def record(folder: Path, arguments: Sequence[str]) -> Recording:
    """Run the tests of `make test-full` under coverage, and keep what they reach. Tests may fail meanwhile."""
    changed = _git("status", "--porcelain", "--", *FOLDERS)
    if changed:
        raise SystemExit(f"commit what has changed before you record what tests reach:\n{changed}")
    folder.mkdir(parents=True, exist_ok=True)
    commit = _git("rev-parse", "HEAD").strip()
    with tempfile.TemporaryDirectory(prefix="keyfold-recording-") as made:
        work = Path(made)
        include = "\n".join(f"    {ROOT / name}/*" for name in FOLDERS)
        config = work / "coverage.cfg"
        config.write_text(_CONFIG.format(folder=work, context=CONTEXT, include=include), encoding="utf-8")
        plugin = "tests.support.mutants.record_plugin"
        command = [sys.executable, "-m", "pytest", "-q", "-p", plugin, "--tier", "full", *arguments]
        environment = {**os.environ, FOLDER: str(work), "COVERAGE_PROCESS_START": str(config), CONTEXT: ""}
        subprocess.run(command, cwd=ROOT, env=environment, check=False)
        seconds: Counter[str] = Counter()
        for path in work.glob("seconds-*.json"):
            seconds.update(json.loads(path.read_text(encoding="utf-8")))
        if not seconds:
            raise SystemExit("no test was run, so nothing was recorded")
        combined = coverage.Coverage(data_file=str(folder / f"{commit}.coverage"), config_file=False)
        combined.combine([str(path) for path in work.glob("coverage.*") if path != config])
        combined.save()
    told = {"root": str(ROOT), "seconds": {test: round(took_s, 3) for test, took_s in sorted(seconds.items())}}
    (folder / f"{commit}.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
    found = newest(folder)
    assert found is not None
    print("\n".join(table(folder / f"{commit}.coverage", ROOT, FOLDERS)))
    return found


def _is_in_a_function(text: str, line: int) -> bool:
    functions = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return any(node.lineno < line <= (node.end_lineno or node.lineno) for node in functions)


def _is_known(commit: str) -> bool:
    command = ["git", "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout
