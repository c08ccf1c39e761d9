"""The rules of this repository that no linter knows. Each failure lists every offender."""

from __future__ import annotations

import ast
import gc
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "keyfold/",
    "sink/keyfold_sink/",
    "compactor/keyfold_compactor/",
    "replicator/keyfold_replicator/",
    "server/keyfold_server/",
    "schemas/keyfold_schemas/",
    "demo/keyfold_demo/",
)

MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
CONFTEST_LINES_MAX = 150
CELL_LENGTH_MAX = 120

# Only the clock knows the time, and chance is a caller's Random. The demo talks to a person and uses the real clock.
CLOCK_SEAMS = {"keyfold/runtime/clock.py"}
RANDOM_CLASSES = {"Random", "SystemRandom"}  # where a main program makes what it hands on
DATE_CALLS = {"now", "utcnow", "today"}
OUTSIDE_CALLS = {
    *("time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.sleep"),
    *("uuid.uuid1", "uuid.uuid4", "uuid4", "secrets.token_hex", "secrets.randbits", "os.urandom"),
}

# A finding of a tool that is silenced says why, on the same line.
SILENCED = re.compile(r"#\s*(?:ruff:\s*)?(?:noqa|type:\s*ignore)\b")
REASON = re.compile(
    r"# (?:ruff: )?noqa: [A-Z]+[0-9]+(?:, [A-Z]+[0-9]+)* - \S|# type: ignore\[[a-z-]+(?:, [a-z-]+)*\]  (?=# \S)"
)

# Written in pieces, so that this file does not offend itself.
MACHINE_PATHS = re.compile("|".join("/" + part for part in ("work/", "root/", "opt/wheels", "tmp/kf", r"home/\w+/")))
REGISTRY_HOSTS = re.compile(
    "|".join(
        re.escape(".".join(parts))
        for parts in (
            ("pypi", "org"),
            ("pythonhosted", "org"),
            ("repo1", "maven"),
            ("repo", "maven"),
            ("proxy", "golang", "org"),
        )
    )
)


@cache
def tracked() -> tuple[str, ...]:
    """Files that git knows, as paths from the root."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(name for name in listed.split("\0") if name and (ROOT / name).is_file())


def python_files() -> Iterator[tuple[str, str]]:
    for name in tracked():
        if name.endswith(".py"):
            yield name, (ROOT / name).read_text(encoding="utf-8")


def package_files() -> Iterator[tuple[str, ast.Module]]:
    for name, text in python_files():
        if name.startswith(PACKAGES):
            yield name, parsed(text)


def parsed(text: str) -> ast.Module:
    """Parse a module while the garbage collector rests.

    Finalisers run Python, and other threads with it. If such a thread parses too, CPython 3.11 loses count of its
    recursion and raises `SystemError`.
    """
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        gc.enable()


def test_modules_stay_small() -> None:
    sizes = {name: text.count("\n") for name, text in python_files()}
    assert {name: size for name, size in sizes.items() if size > MODULE_LINES_MAX} == {}
    conftests = {name: size for name, size in sizes.items() if Path(name).name == "conftest.py"}
    assert {name: size for name, size in conftests.items() if size > CONFTEST_LINES_MAX} == {}


def test_functions_stay_small() -> None:
    long = {
        f"{name}: {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for name, text in python_files()
        for node in ast.walk(parsed(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {function: size for function, size in long.items() if size > FUNCTION_LINES_MAX} == {}


def test_every_module_opens_with_its_idea() -> None:
    assert [name for name, tree in package_files() if not ast.get_docstring(tree)] == []


def test_nothing_is_a_heap_of_leftovers() -> None:
    assert [name for name in tracked() if Path(name).name in {"utils.py", "util.py", "helpers.py", "misc.py"}] == []


def test_a_public_class_has_a_name_of_its_own() -> None:
    """Two classes of one name make a reader ask which one is meant. Tests, the demo and private names are free."""
    found: dict[str, list[str]] = {}
    for name, tree in package_files():
        for node in ast.walk(tree) if not name.startswith("demo/") else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(f"{name}:{node.lineno}")
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_cells_of_the_overview_are_short() -> None:
    cells = [
        f"{page}:{number}: {len(cell.strip())} characters"
        for page in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
        for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1)
        if line.startswith("|")
        for cell in re.sub(r"\]\([^)]*\)", "]", line).split("|")
        if len(cell.strip()) > CELL_LENGTH_MAX
    ]
    assert cells == []


def test_documents_name_only_tests_that_exist() -> None:
    """A page names a test by its function, by the end of its module's path, or by both."""
    modules = {f"/{name}": (ROOT / name).read_text() for name in tracked() if re.search(r"/test_\w+\.py$", name)}
    code = "\n".join(modules.values())
    quoted = re.compile(r"`((?:[\w/]*/)?test_\w+\.py)?(?:::)?(test_\w+)?`")
    offenders = []
    for page in (name for name in tracked() if name.endswith(".md")):
        for path, function in quoted.findall((ROOT / page).read_text()):
            text = "\n".join(found for name, found in modules.items() if name.endswith(f"/{path}")) if path else code
            if not text or (function and f"def {function}(" not in text):
                offenders.append(f"{page}: {path} {function}")
    assert offenders == []


def test_time_and_chance_are_arguments() -> None:
    offenders = [
        f"{name}:{line}: {what}"
        for name, tree in package_files()
        if name not in CLOCK_SEAMS and not name.startswith("demo/")
        for line, what in reaches_outside(tree)
    ]
    assert offenders == []


def reaches_outside(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Where a module asks the machine for the time or for chance. A parameter may well be named `random`."""
    nodes = list(ast.walk(tree))
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module in {"time", "random", "secrets"}:
            for alias in node.names:
                if alias.name not in RANDOM_CLASSES:
                    yield node.lineno, f"from {node.module} import {alias.name}"
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            owner, _, name = called.rpartition(".")
            is_date = name in DATE_CALLS and owner in {"datetime", "datetime.datetime", "date", "datetime.date"}
            is_chance = owner == "random" and "random" in modules and name not in RANDOM_CLASSES
            if called in OUTSIDE_CALLS or is_date or is_chance:
                yield node.lineno, called


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import time\ntime.time()", True),
        ("from time import time", True),
        ("from datetime import datetime\ndatetime.now()", True),
        ("import datetime\ndatetime.datetime.now(datetime.UTC)", True),
        ("import random\nrandom.choice([1])", True),
        ("from random import choice", True),
        ("import uuid\nuuid.uuid4()", True),
        ("from random import Random\ndef f(random: Random): return random.random()", False),
        ("import random\nrandom.Random(7)", False),
        ("clock.now()", False),
        ("from datetime import datetime\ndatetime.fromtimestamp(0)", False),
    ],
)
def test_the_rule_about_time_and_chance_sees_what_it_must(text: str, expected: bool) -> None:
    assert bool(list(reaches_outside(ast.parse(text)))) is expected


def test_nothing_names_this_machine_or_a_registry() -> None:
    offenders = []
    for name in tracked():
        content = (ROOT / name).read_bytes()
        if b"\0" in content[:8192]:
            continue
        for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
            if MACHINE_PATHS.search(line) or REGISTRY_HOSTS.search(line):
                offenders.append(f"{name}:{number}: {line.strip()[:100]}")
    assert offenders == []


def test_constraints_are_names_and_versions_alone() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []
    assert len({line.partition("==")[0].lower() for line in lines}) == len(lines)


def test_a_silenced_finding_says_why() -> None:
    offenders = [
        f"{name}:{number}: {comment}"
        for name, text in python_files()
        if any(map(is_without_reason, text.splitlines()))
        for number, comment in comments(text)
        if is_without_reason(comment)
    ]
    assert offenders == []


def is_without_reason(line: str) -> bool:
    return len(SILENCED.findall(line)) > len(REASON.findall(line))


def comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("# noqa: S603", True),
        ("# noqa", True),
        ("# noqa: S603, S607 - a program of ours", False),
        ("# ruff: noqa: INP001 - a script", False),
        ("# type: ignore[arg-type]", True),
        ("# type: ignore[arg-type]  # ", True),
        ("# type: ignore[arg-type, misc]  # the stubs lack it", False),
        ("# type: ignore[override]  # noqa: N802 - the name in Spark", False),
        ("# type: ignore[override]  # noqa: N802", True),
        ("# about nothing", False),
    ],
)
def test_the_rule_about_silenced_findings_sees_what_it_must(line: str, expected: bool) -> None:
    assert is_without_reason(line) is expected


def test_no_promise_is_left_in_a_comment() -> None:
    word = re.compile("#.*\\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + ")\\b")
    assert [
        f"{name}: {line.strip()}" for name, text in python_files() for line in text.splitlines() if word.search(line)
    ] == []
