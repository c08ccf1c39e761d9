"""The pages for operators: commands and options exist, links resolve, tables are current."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
import pytest
import yaml
from starlette.testclient import TestClient

from keyfold.cli.app import cli, run
from keyfold_sink.rest.server import make_app
from tests.support.each import each
from tests.support.fake_service import FakeService, make_backend
from tests.support.operations_docs import COMMAND, PAGE, page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FOLDER = DOCS / "operations"
PAGES = sorted(FOLDER.rglob("*.md"))
CHART = ROOT / "infra" / "helm" / "keyfold"
KAFKAS_KEYS = {"max.message.bytes", "group.instance.id", "session.timeout.ms"}
ABOUT_KEYS = ("upgrade", "scaling", "disaster-recovery", "kubernetes", "cost")
RUNBOOKS = sorted((FOLDER / "runbooks").glob("*.md"))

BLOCK = re.compile(r"^ *```\w*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`(keyfold [a-z][^`]*)`(?!`)")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)

each_page = each("path", {path.relative_to(FOLDER).as_posix(): path for path in PAGES})
each_runbook = each("path", {path.stem: path for path in RUNBOOKS})


@dataclass(frozen=True, slots=True)
class Written:
    """A command on a page; inside a sentence its subject may be omitted."""

    line: str
    is_whole: bool


def commands(text: str) -> Iterator[Written]:
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip().startswith("keyfold "):
                yield Written(line.strip(), is_whole=True)
    for span in SPAN.findall(BLOCK.sub("", text)):
        yield Written(span, is_whole=False)


def mistake(written: Written) -> str:
    """Return click's error for a command without running it, or "" if it is valid."""
    words = shlex.split(written.line, comments=True)[1:]
    for end in ("|", ">", "&&", "..."):
        words = words[: words.index(end)] if end in words else words
    command: click.Command = cli
    context = click.Context(cli, info_name="keyfold")
    while isinstance(command, click.Group):
        if not words:
            return "" if not written.is_whole else "no command"
        found = command.get_command(context, words[0])
        if found is None:
            return f"no command {words[0]}"
        command, words = found, words[1:]
        context = click.Context(command, info_name=command.name, parent=context)
    try:
        given, _, _ = command.make_parser(context).parse_args(list(words))
        for parameter in command.get_params(context):
            value = given.get(parameter.name)
            if parameter.required and not isinstance(value, str | tuple | list) and written.is_whole:
                return f"{parameter.human_readable_name} is missing"
            if isinstance(value, str) and isinstance(parameter.type, click.Choice | click.IntRange | click.FloatRange):
                parameter.type_cast_value(context, value)
    except click.UsageError as error:
        return error.format_message()
    return ""


@each_page
def test_every_command_on_a_page_exists_in_keyfold(path: Path) -> None:
    wrong = {written.line: mistake(written) for written in commands(path.read_text(encoding="utf-8"))}
    assert {line: why for line, why in wrong.items() if why} == {}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("keyfold log verfy s3://log/topics users", "no command verfy"),
        ("keyfold log verify s3://log/topics users --partitions 3", "No such option"),
        ("keyfold log verify s3://log/topics", "TOPIC is missing"),
        ("keyfold log repair s3://log/topics users -p 3 --from versions", "is not one of"),
        ("keyfold log verify s3://log/topics users --sample 2", "not in the range"),
        ("keyfold replica promote", "PLACE is missing"),
        ("keyfold replica", "no command"),
    ],
)
def test_a_wrong_command_is_detected(line: str, why: str) -> None:
    assert why in mistake(Written(line, is_whole=True))


@pytest.fixture(scope="module", autouse=True)
def _all_commands() -> None:
    """Load the parts of the command that it otherwise collects when it runs."""
    with contextlib.redirect_stdout(io.StringIO()):
        assert run(["--version"]) == 0


@pytest.fixture(scope="module")
def rest_paths() -> list[str]:
    client = TestClient(make_app(make_backend(FakeService()), token=None), base_url="http://localhost")
    return list(client.get("/openapi.json").json()["paths"])


@each_page
def test_every_request_on_a_page_exists_in_the_rest_api(path: Path, rest_paths: list[str]) -> None:
    known = [re.compile(re.sub(r"\{\w+\}", "[^/]+", one) + r"$") for one in rest_paths]
    asked = re.findall(r"\$sink(/[\w/-]*)", path.read_text(encoding="utf-8"))
    assert [one for one in asked if not any(path.match(one) for path in known)] == []


@each_page
def test_links_lead_to_an_existing_page_and_heading(path: Path) -> None:
    for link in LINK.findall(path.read_text(encoding="utf-8")):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading"


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub makes of headings."""
    headings = HEADING.findall(BLOCK.sub("", path.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_runbook
def test_a_runbook_has_all_its_sections(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    parts = ("**Symptom.**", "**What it means for the data.**", "## Causes, the likeliest first", "## Commands")
    places = [text.find(part) for part in (*parts, "**Wake somebody else**")]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("name", ["sink-partition-failed", "compactor-partition-fails"])
def test_quoted_error_messages_exist_in_the_code(name: str) -> None:
    packages = ("keyfold", "sink", "compactor")
    said = "".join(path.read_text(encoding="utf-8") for package in packages for path in (ROOT / package).rglob("*.py"))
    said = re.sub(r'"\s+f?"', "", said)  # one sentence over several lines
    rows = re.findall(r"^\| (`.*?) \|", (FOLDER / "runbooks" / f"{name}.md").read_text(encoding="utf-8"), re.MULTILINE)
    words = [span for cell in rows for span in re.findall(r"`([^`]+)`", cell)]
    assert len(words) > 3
    assert [span for span in words if span not in said] == []


@each_page
def test_lines_have_a_readable_length(path: Path) -> None:
    lines = BLOCK.sub("", path.read_text(encoding="utf-8")).splitlines()
    assert [line for line in lines if len(line) > 130 and not line.lstrip().startswith("|")] == []


@each("path", {path.stem: path for path in (*RUNBOOKS, PAGE, *(FOLDER / f"{name}.md" for name in ABOUT_KEYS))})
def test_quoted_configuration_keys_exist(path: Path) -> None:
    """Known keys are those of the configuration, the chart's values and the manifest; a few are Kafka's."""
    known = (DOCS / "configuration.md").read_text(encoding="utf-8") + (DOCS / "format.md").read_text(encoding="utf-8")
    text = BLOCK.sub("", path.read_text(encoding="utf-8"))
    spans = re.findall(r"`((?:topic\.<name>\.)?[a-z]+(?:\.[a-z]+)+)(?:=[^`]*)?`", text)
    keys = {span.removeprefix("topic.<name>.") for span in spans} - KAFKAS_KEYS
    unknown = {
        key for key in keys if f"`{key}`" not in known and not key.startswith("spark.") and not key.endswith(".json")
    }
    assert {key for key in unknown if not is_value_of_chart(key)} == set()


@cache
def values_of_chart() -> object:
    return yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))


def is_value_of_chart(key: str) -> bool:
    value = values_of_chart()
    for word in key.split("."):
        if not isinstance(value, dict) or word not in value:
            return False
        value = value[word]
    return True


def test_the_table_of_alerts_matches_the_rules() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), f"run `{COMMAND}`"


def test_every_page_is_in_the_table_of_contents() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [one.name for one in FOLDER.glob("*.md") if one != PAGE and f"({one.name})" not in text] == []
