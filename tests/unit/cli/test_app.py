"""The command's frame: exit codes, errors in words, quick help, closed pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points

import click
import pytest

import keyfold
from keyfold.cli.app import run
from keyfold.cli.context import CliContext
from keyfold.errors import AccessDenied, BucketMissing, ConfigError
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.event_log import configure, get_level

PACKAGES = {point.name: point for point in entry_points(group="keyfold.commands")}
HEAVY = ("boto3", "pyarrow", "pyspark", "confluent_kafka", "numpy", "fastavro", "pydantic", "rich")


def test_every_exported_name_exists() -> None:
    for name in keyfold.__all__:
        assert getattr(keyfold, name).__name__ == name
    assert sorted(keyfold.__all__) == keyfold.__all__
    assert set(keyfold.__all__) <= set(dir(keyfold))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        keyfold.nothing  # noqa: B018 - the access is what is tested


def test_importing_the_package_or_the_command_imports_nothing_heavy() -> None:
    code = f"import sys, keyfold, keyfold.cli, keyfold.cli.log; print([m for m in {HEAVY!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


@pytest.mark.parametrize("args", [["--help"], ["log", "--help"], ["log", "cat", "--help"], ["log", "verify", "--help"]])
def test_help_has_an_example_and_imports_nothing_heavy(args: list[str]) -> None:
    code = f"""
import sys
from keyfold.cli.app import run
assert run({args!r}) == 0
print("heavy:", [m for m in {HEAVY!r} if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "keyfold log" in done.stdout
    assert "s3://bucket/topics" in done.stdout
    assert done.stdout.endswith("heavy: []\n")


@pytest.mark.parametrize(("given", "used"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "2"}, "2")])
def test_numpy_starts_no_threads_unless_the_user_asks_for_them(given: dict[str, str], used: str) -> None:
    code = """
import os, threading
from keyfold.cli.app import run
assert run(["log", "--help"]) == 0
import numpy
print(os.environ["OPENBLAS_NUM_THREADS"])
if os.environ["OPENBLAS_NUM_THREADS"] == "1" and os.path.exists("/proc/self/task"):
    assert len(os.listdir("/proc/self/task")) == threading.active_count() == 1
"""
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environment, **given}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == used


@pytest.mark.parametrize("name", ["log", *sorted(PACKAGES)])
def test_help_shows_no_markers_of_unwrapped_paragraphs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"    keyfold {name} " in text or f"    keyfold {name}\n" in text
    assert "\\b" not in text


@pytest.mark.parametrize(
    "args",
    [
        ["nonsense"],
        ["log", "cat"],
        ["log", "cat", "s3://b/t", "users", "--partition", "-1"],
        ["log", "cat", "s3://b/t", "users", "--from-timestamp", "yesterday"],
        ["log", "cat", "s3://b/t", "users", "--from-offset", "1", "--from-timestamp", "2"],
        ["log", "cat", "s3://b/t", "users", "--latest", "--to-offset", "9"],
        ["log", "repair", "s3://b/t", "users"],
    ],
)
def test_a_usage_error_exits_with_2(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(args) == 2
    captured = capsys.readouterr()
    assert not captured.out
    assert [line.partition(": ")[0] for line in captured.err.splitlines()] == ["error", "hint"]


@pytest.mark.parametrize(
    ("args", "error", "hint"),
    [
        (["lgo"], "no such command `lgo`", "did you mean `log`?"),
        (["sikn"], "no such command `sikn`", "did you mean `sink`?"),
        (["log", "cta"], "no such command `cta`", "did you mean `cat`?"),
        (["qqq"], "no such command `qqq`", "see `keyfold --help`"),
        (["log", "cat", "--lates"], "no such option `--lates`", "did you mean `--latest`?"),
        (["replica", "run", "--onse"], "no such option `--onse`", "did you mean `--once`?"),
        (["replica", "run", "--set", "a=b"], "no such option `--set`", "see `keyfold replica run --help`"),
        (["log", "list", "--zzz"], "no such option `--zzz`", "see `keyfold log list --help`"),
        (["log", "cat"], "missing argument `URL`", "see `keyfold log cat --help`"),
        (
            ["log", "repair", "s3://b/t", "users", "-p", "x"],
            "invalid value for `--partition` / `-p`: 'x' is not a valid integer range",
            "see `keyfold log repair --help`",
        ),
        (
            ["log", "-v", "list", "s3://b/t", "--quiet"],
            "-v, -q and --log-level contradict each other: give one of them",
            "see `keyfold log list --help`",
        ),
    ],
)
def test_a_usage_error_says_what_to_do(
    args: list[str], error: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(args) == 2
    assert capsys.readouterr().err.splitlines() == [f"error: {error}", f"hint: {hint}"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_of_a_shell_is_printed(
    shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_KEYFOLD_COMPLETE", f"{shell}_source")
    assert run([]) == 0
    assert f"_KEYFOLD_COMPLETE={shell}_complete" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("keyfold re", ["replica", "restore"]),
        ("keyfold log ver", ["verify"]),
        ("keyfold log cat --lat", ["--latest"]),
        ("keyfold log cat --log", ["--log-level"]),
        ("keyfold sink --log-level w", ["warning"]),
        ("keyfold replica pau", ["pause"]),
    ],
)
def test_completion_offers_commands_and_options(
    words: str, found: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_KEYFOLD_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    assert run([]) == 0
    assert capsys.readouterr().out.splitlines() == [f"plain,{name}" for name in found]


def test_completion_of_commands_imports_no_package() -> None:
    code = """
import os, sys
from keyfold.cli.app import run
os.environ.update({"_KEYFOLD_COMPLETE": "bash_complete", "COMP_WORDS": "keyfold s", "COMP_CWORD": "1"})
run([])
print([m for m in sys.modules if m.startswith(("keyfold_", "pydantic", "boto3"))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["plain,serve", "plain,sink", "[]"]


@pytest.mark.parametrize(
    ("options", "level"),
    [
        (["-v"], "debug"),
        (["-q"], "error"),
        (["--log-level", "Warning"], "warning"),
        (["-v", "--log-level", "debug"], "debug"),
        ([], None),
    ],
)
@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_the_log_level_is_accepted_everywhere_and_ends_with_the_command(
    options: list[str], level: str | None, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels: list[str | None] = []

    def note(_url: str) -> tuple[object, str]:
        levels.append(os.environ.get("KEYFOLD_LOG_LEVEL"))
        raise BucketMissing("b", "the bucket does not exist")

    monkeypatch.delenv("KEYFOLD_LOG_LEVEL", raising=False)
    words = ["log", "list", "s3://b/t"]
    world = CliContext(note, SystemClock(), None)  # type: ignore[arg-type]  # no store is opened
    assert run([*words[:at], *options, *words[at:]], world) == 1
    assert levels == [level]
    assert "KEYFOLD_LOG_LEVEL" not in os.environ


def test_the_asked_level_replaces_the_configured_one(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        monkeypatch.setenv("KEYFOLD_LOG_LEVEL", "DEBUG")
        configure(json=False, level="error")
        assert get_level("keyfold") == "DEBUG"
        monkeypatch.setenv("KEYFOLD_LOG_LEVEL", "loud")
        with pytest.raises(ConfigError, match="`KEYFOLD_LOG_LEVEL`: must be one of debug, info, warning, error"):
            configure(json=False)
    finally:
        monkeypatch.delenv("KEYFOLD_LOG_LEVEL")
        configure(json=False, level="warning")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (BucketMissing("b", "the bucket does not exist", hint="create it"), "error: `b`: the bucket does not exist"),
        (AccessDenied("t/users/", "403\nForbidden"), "error: `t/users/`: 403 Forbidden"),
        (RuntimeError("odd"), "error: RuntimeError: odd"),
    ],
)
def test_a_failure_prints_one_line_and_a_hint(
    error: Exception, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_url: str) -> tuple[object, str]:
        raise error

    monkeypatch.delenv("KEYFOLD_DEBUG", raising=False)
    world = CliContext(refuse, SystemClock(), None)  # type: ignore[arg-type]  # no store is opened
    assert run(["log", "list", "s3://b/t"], world) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == line
    assert all(text.startswith("hint: ") for text in lines[1:])
    monkeypatch.setenv("KEYFOLD_DEBUG", "1")
    assert run(["log", "list", "s3://b/t"], world) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["ftp://host/topics", "s3://", "bucket/topics", "s3://b/a//b"])
def test_an_invalid_url_is_a_usage_error(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "list", url]) == 2
    assert url in capsys.readouterr().err


def test_every_command_has_an_example(commands: dict[str, click.Command], capsys: pytest.CaptureFixture[str]) -> None:
    without = []
    for words in commands:
        assert run([*words.split(), "--help"]) == 0
        if f"keyfold {words}" not in capsys.readouterr().out.partition("\n")[2]:
            without.append(words)
    assert without == []


@pytest.mark.parametrize(("args", "code"), [(["odd", "run", "--once"], 1), (["odd", "--help"], 0)])
def test_a_package_with_missing_libraries_says_so_even_for_help(
    args: list[str], code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = EntryPoint("odd", "keyfold_no_such_package:odd", "keyfold.commands")
    monkeypatch.setattr("keyfold.cli.app._packages", lambda: {"odd": package})
    assert run(args) == code
    told = "".join(capsys.readouterr())
    assert "`keyfold odd` cannot start: No module named 'keyfold_no_such_package'" in told
    assert "pip install 'keyfold[all]'" in told


CAT_FOR_EVER = """
from random import Random
from keyfold.cli.app import main
from keyfold.cli.context import CliContext
from keyfold.runtime.clock import SystemClock
from tests.support.logs import MadeLog, record
made = MadeLog()
made.append([record(o, f"k{o}", "v" * 100) for o in range(20_000)])
main(["log", "cat", "s3://b/topics", "users", "--json"],
     context=CliContext(lambda url: (made.store, "topics"), SystemClock(), Random()))
"""


def test_a_closed_pipe_ends_the_command_silently() -> None:
    process = subprocess.Popen([sys.executable, "-c", CAT_FOR_EVER], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.readline())["offset"] == 0
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 0
    assert errors == b""
