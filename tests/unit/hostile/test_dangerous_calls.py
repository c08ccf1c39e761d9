"""Calls that run what they are given are in a list, each with its reason. Ruff's rules (S) find more, by import."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.root import ROOT

HERE = "tests/unit/hostile/test_dangerous_calls.py"

# Text, not syntax: a program in a string counts too. `tmp_path_factory.mktemp` makes a folder and takes it.
RULES = {
    "pickle": r"\bpickle\.(?:loads?|Unpickler)\b|\b(?:import|from) (?:marshal|shelve|dill|cloudpickle)\b",
    "eval": r"(?<![.\w])(?:eval|exec)\(",
    "yaml": r"\byaml\.(?:(?:unsafe_|full_)?load(?:_all)?\(|Unsafe|Full)",
    "shell": r"\bshell=(?!False)|\bos\.(?:system|popen)\(|\bget(?:status)?output\(|\bcreate_subprocess_shell\(",
    "mktemp": r"(?<!tmp_path_factory\.)\bmktemp\(",
}

# What is left, how often, and why.
EXCEPTIONS = {
    ("tests/support/pickled.py", "pickle"): (1, "reads what it has just written, as Spark sends values"),
    ("tests/integration/test_replica_transfer_s3.py", "pickle"): (1, "a child reads what the test writes to its stdin"),
    ("tests/integration/test_read_with.py", "eval"): (1, "runs the examples of a page of this repository"),
    ("tests/integration/test_table_docs.py", "eval"): (1, "runs the examples of a page of this repository"),
    ("tests/support/table_spark.py", "eval"): (1, "runs the examples of a page of this repository"),
    ("tests/unit/read/test_docs.py", "eval"): (1, "runs the examples of a page of this repository"),
    ("tests/unit/log/test_format_doc.py", "eval"): (1, "runs the code of a page of this repository"),
    ("tests/unit/sink/validate/test_docs.py", "eval"): (1, "runs the example of a page of this repository"),
}


def found(text: str) -> Iterator[str]:
    for rule, pattern in RULES.items():
        yield from [rule] * len(re.findall(pattern, text))


def python_files() -> Iterator[tuple[str, str]]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.split("\0"):
        if name.endswith(".py") and name != HERE and (ROOT / name).is_file():
            yield name, (ROOT / name).read_text(encoding="utf-8")


def test_every_call_that_executes_its_input_is_listed() -> None:
    calls = Counter((name, rule) for name, text in python_files() for rule in found(text))
    assert calls == {place: count for place, (count, _) in EXCEPTIONS.items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pickle.loads(data)", ["pickle"]),
        ("pickle.load(file)", ["pickle"]),
        ("import marshal", ["pickle"]),
        ("pickle.dumps(value)", []),
        ("eval(text)", ["eval"]),
        ("exec(compile(text))", ["eval"]),
        ("session.exec(query)", []),
        ("yaml.load(text, Loader=yaml.UnsafeLoader)", ["yaml", "yaml"]),
        ("yaml.safe_load(text)", []),
        ("run(words, shell=True)", ["shell"]),
        ("run(words, shell=False)", []),
        ("os.system(text)", ["shell"]),
        ("tempfile.mktemp()", ["mktemp"]),
        ("tmp_path_factory.mktemp('x')", []),
    ],
)
def test_the_rules_detect_dangerous_calls(text: str, expected: list[str]) -> None:
    assert list(found(text)) == expected
