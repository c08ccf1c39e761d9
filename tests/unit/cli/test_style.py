"""One style of all commands, those of the services too: the same spelling, type and text of the same option.

`DIFFERENT` names each command that differs, and why. A row that is not needed fails as well, so the table stays exact.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest

import keyfold

ROOT = Path(keyfold.__file__).parents[1]
CLI_FOLDERS = (
    "keyfold/cli",
    "keyfold/export",
    "keyfold/restore",
    "keyfold/table",
    "keyfold/verify",
    "demo/keyfold_demo",
    "sink/keyfold_sink",
    "compactor/keyfold_compactor",
    "replicator/keyfold_replicator",
    "server/keyfold_server",
)

Form = tuple[frozenset[str], str, bool, str]
"""Spellings, type, whether it is repeatable, help."""

# The form of the most frequent options, with a pattern of the help. Others are only compared with each other.
RULES: Mapping[str, Form] = {
    "--partition": (frozenset({"--partition", "-p"}), "integer range", True, r"Only this partition\. Repeatable\."),
    "--parallel": (frozenset({"--parallel"}), "integer range", False, r"Number of \w+ to .* at the same time\b.*"),
    "--limit": (frozenset({"--limit", "-n"}), "integer range", False, r"(Stop after|Write only the first) N records.*"),
    "--json": (frozenset({"--json"}), "boolean", False, r"Print one JSON (document|object per line)\b.*"),
    "--dry-run": (frozenset({"--dry-run"}), "boolean", False, r"Print what would be done; write nothing\."),
    "--from-offset": (frozenset({"--from-offset"}), "integer range", False, r"Start at this offset, .*"),
    "--to-offset": (frozenset({"--to-offset"}), "integer range", False, r"Stop before this offset\."),
    "--topic": (frozenset({"--topic", "-t"}), "text", True, r"Only this topic\b.*Repeatable\."),
    "--verbose": (frozenset({"--verbose", "-v"}), "boolean", False, r"Log more: --log-level debug\."),
    "--quiet": (frozenset({"--quiet", "-q"}), "boolean", False, r"Log errors only, .*--log-level error\."),
    "--log-level": (frozenset({"--log-level"}), "choice", False, r"Lowest level of events .*"),
}
# Former spellings, which still work.
ALIASES = frozenset({"--max-records", "--at-once"})

DIFFERENT: Mapping[tuple[str, str], str] = {
    ("--json", "sink run"): "the output is the service's log, so the option says how events are logged",
    ("--json", "replica run"): "prints a document with --once only",
    ("--json", "sink validate"): "the document is Connect's",
    ("--verbose", "compact run"): "reports every partition besides",
    ("--task", "sink restart"): "the hidden option of `sink run` has no text",
    ("--task", "sink run"): "hidden: given by the worker to its tasks",
    ("--once", "compact run"): "a run is not a round",
    ("--once", "replica run"): "a round is not a run",
    ("--exact", "log describe"): "counts superseded records, a plan counts what a pass would remove",
    ("--exact", "log map"): "counts superseded records, a plan counts what a pass would remove",
    ("--exact", "compact plan"): "counts what a pass would remove",
    ("--force", "compact plan"): "cleans; for a replica, it promotes",
    ("--force", "compact run"): "cleans; for a replica, it promotes",
    ("--force", "replica promote"): "promotes; for a log, it cleans",
    ("--from-offset", "log verify"): "the range of a comparison",
    ("--to-offset", "log verify"): "the range of a comparison",
    ("--to-offset", "restore"): "an offset for all partitions, or one for each",
    ("--partitions", "log list"): "rows per partition; a restore can create a topic",
    ("--partitions", "sink status"): "rows per partition; a restore can create a topic",
    ("--partitions", "restore"): "the number of partitions of a created topic",
    ("--paused", "replica add"): "the hidden option of `sink run` has no text",
    ("--paused", "sink run"): "hidden: given by the worker to its tasks",
    ("--follow", "log cat"): "waits for records",
    ("--follow", "table sync"): "syncs again and again",
    ("--to", "log export"): "a folder",
    ("--to", "table sync"): "a table",
    ("--to", "replica add"): "the location of a replica",
    ("--to", "replica edit"): "the location of a replica",
}


@pytest.fixture
def options(commands: dict[str, click.Command]) -> dict[str, list[click.Option]]:
    """The options of each command."""
    return {name: [p for p in one.params if isinstance(p, click.Option)] for name, one in commands.items()}


def name_of(option: click.Option) -> str:
    """The first long spelling."""
    return next(name for name in option.opts if name.startswith("--"))


def form_of(option: click.Option) -> Form:
    spellings = frozenset(option.opts) - ALIASES
    return spellings, option.type.name, option.multiple, option.help or ""


def uses(options: Mapping[str, list[click.Option]]) -> Iterator[tuple[str, str, click.Option]]:
    for command, of_command in options.items():
        yield from ((name_of(option), command, option) for option in of_command)


def different(options: Mapping[str, list[click.Option]]) -> set[tuple[str, str]]:
    """Options that break a rule; and of options without a rule, all uses if they are not the same."""
    found = set()
    forms: dict[str, Counter[Form]] = defaultdict(Counter)
    for name, command, option in uses(options):
        if name in RULES:
            spellings, type_name, multiple, text = RULES[name]
            is_like = (
                set(option.opts) - ALIASES == spellings
                and option.type.name == type_name
                and option.multiple == multiple
                and re.fullmatch(text, option.help or "", re.DOTALL)
            )
            if not is_like:
                found.add((name, command))
        else:
            forms[name][form_of(option)] += 1
    return found | {(name, command) for name, command, _ in uses(options) if len(forms[name]) > 1}


def test_the_same_option_is_the_same_in_every_command(options: dict[str, list[click.Option]]) -> None:
    offenders = different(options) - DIFFERENT.keys()
    shown = [f"{command}: {form_of(o)}" for name, command, o in uses(options) if (name, command) in offenders]
    assert not offenders, "\n" + "\n".join(shown)


def test_every_listed_difference_exists(options: dict[str, list[click.Option]]) -> None:
    assert DIFFERENT.keys() <= different(options), DIFFERENT.keys() - different(options)


def test_every_command_takes_the_common_options(options: dict[str, list[click.Option]]) -> None:
    for command, of_command in options.items():
        names = {name_of(option) for option in of_command}
        assert {"--verbose", "--quiet", "--log-level"} <= names, command


def test_every_option_has_a_text_that_is_a_sentence(options: dict[str, list[click.Option]]) -> None:
    texts = [(command, name, o.help or "") for name, command, o in uses(options) if not o.hidden]
    assert not [each for each in texts if not re.fullmatch(r"[A-Z_\[s].*\.", each[2], re.DOTALL)]


def test_former_spellings_come_after_the_spelling_of_today(options: dict[str, list[click.Option]]) -> None:
    for name, command, option in uses(options):
        assert name not in ALIASES, command
        assert option.opts[0] not in ALIASES, command


def test_a_count_of_one_has_a_singular() -> None:
    """Text such as `{count:,} records` says `1 records`; `count_text` does not."""
    allowed = {
        # Numbers that are never one.
        "demo/keyfold_demo/story.py": 3,
        "keyfold/restore/hazards.py": 1,
        "sink/keyfold_sink/config/small_segments.py": 3,
        "sink/keyfold_sink/progress.py": 1,
    }
    found = Counter[str]()
    for folder in CLI_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            lines = path.read_text(encoding="utf-8").splitlines()
            found[path.relative_to(ROOT).as_posix()] += sum(bool(re.search(r":,\} [a-z]+s\b", line)) for line in lines)
    assert {name: count for name, count in found.items() if count} == allowed
