"""docs/replica.md: every command there is one, with options that it has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click

from keyfold_replicator.cli import replica
from keyfold_replicator.registry import compaction_rule
from keyfold_replicator.state.states import SyncState
from tests.support.each import by_name, each
from tests.support.root import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands() -> list[str]:
    """`keyfold replica ...` in blocks of all pages: lines joined, comments and optional parts as they are typed."""
    found = []
    for page in PAGES:
        for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
            joined = block.replace("\\\n", " ").replace("$ keyfold", "keyfold")
            found += [line for line in joined.splitlines() if line.startswith("keyfold replica ")]
    return found


@each("line", by_name(commands()))
def test_every_documented_command_runs(line: str) -> None:
    words = shlex.split(re.sub(r"[\[\]]", "", line), comments=True)[2:]
    command = replica.commands[words[0]]
    with click.Context(replica) as parent:
        context = command.make_context(words[0], words[1:], parent=parent)
    assert context.params


def test_every_state_and_command_is_on_the_page() -> None:
    page = (ROOT / "docs" / "replica.md").read_text(encoding="utf-8")
    assert {state.value for state in SyncState if f"`{state.value}`" not in page} == set()
    assert {name for name in replica.commands if f"keyfold replica {name}" not in page} == set()


def test_hints_name_existing_commands() -> None:
    said = (ROOT / "keyfold" / "log" / "edits_replica.py").read_text(encoding="utf-8")
    said += Path(compaction_rule.__file__).read_text(encoding="utf-8")
    named = set(re.findall(r"keyfold replica ([a-z-]+)", said))
    assert named
    assert named <= set(replica.commands)
