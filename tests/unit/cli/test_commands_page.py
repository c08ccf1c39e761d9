"""docs/commands.md names every command, and nothing that does not exist."""

from __future__ import annotations

import re

import click

from keyfold.cli.app import cli
from keyfold.runtime.log_level import LEVEL_VARIABLE
from tests.support.root import ROOT

PAGE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")


def test_the_table_has_every_command_once(commands: dict[str, click.Command]) -> None:
    table = PAGE.partition("\n## ")[0]
    named: list[str] = []
    for cell in re.findall(r"\| (`keyfold [^|]+) \|", table):
        group, *others = re.findall(r"`([^`]+)`", cell)
        words = group.removeprefix("keyfold ").split()
        is_command = " ".join(words[:2]) in commands
        named.append(" ".join(words[:2] if is_command else words[:1]))
        named += [f"{words[0]} {other}" for other in others]
    assert sorted(named) == sorted(commands)


def test_every_option_of_the_page_exists(commands: dict[str, click.Command]) -> None:
    known = {spelling for command in commands.values() for p in command.params for spelling in p.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) - {"--help"} <= known


def test_completion_and_environment_are_those_of_the_code() -> None:
    for line in re.findall(r"\| (?:bash|zsh|fish) \| `(.+?)` \|", PAGE):
        assert line.replace("\\|", "|") in (cli.epilog or "")
    assert len(re.findall(r"`.*_KEYFOLD_COMPLETE=\w+_source", PAGE)) == 3
    sources = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("keyfold", "demo", "sink")
        for path in (ROOT / folder).rglob("*.py")
    )
    for variable in re.findall(r"^\| `(KEYFOLD_\w+)", PAGE, re.MULTILINE):
        assert f'"{variable}"' in sources, variable
    assert LEVEL_VARIABLE in PAGE
