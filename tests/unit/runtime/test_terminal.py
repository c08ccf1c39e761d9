"""Text from the bucket, from Kafka and over HTTP cannot reach a terminal as a control sequence."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfold.cli.app import run
from keyfold.cli.context import CliContext
from keyfold.log.manifest import Gap
from keyfold.runtime import event_log
from keyfold.runtime.terminal import echo, echo_json, escaped
from tests.support.logs import MadeLog, records

# The window's title, the screen cleared, C1's introducer, a right-to-left override, half of a surrogate pair.
ATTACKS = ("\x1b]0;owned\x07", "\x1b[2J", "\x9b31m", "\u202egnp.exe", "a\nerror: all is lost", "\r$ ", "\ud800", "\x7f")


@pytest.mark.parametrize("attack", ATTACKS)
def test_only_printable_characters_remain(attack: str) -> None:
    assert escaped(f"key {attack}\tvalue").replace("\t", "").isprintable()


@given(st.text(st.characters(exclude_categories=[])))
def test_characters_are_escaped_as_in_json(text: str) -> None:
    inside = text.replace("\\", "").replace('"', "").replace("\t", "")
    assert json.loads(f'"{escaped(inside)}"') == inside


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_line_and_a_document_are_printed_escaped(attack: str, capsys: pytest.CaptureFixture[str]) -> None:
    echo(attack)
    echo(attack, err=True)
    echo_json({attack: [attack]}, indent=2)
    said = capsys.readouterr()
    first, document = said.out.split("\n", 1)
    assert first == escaped(attack)
    assert json.loads(document) == {attack: [attack]}
    assert said.err == f"{escaped(attack)}\n"


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_event_in_the_text_log_is_escaped(attack: str, capsys: pytest.CaptureFixture[str]) -> None:
    event_log.configure(json=False)
    try:
        try:
            raise ValueError(attack)
        except ValueError:
            event_log.get_logger("keyfold.test").exception(attack, topic=attack)
        logging.getLogger("keyfold.test").warning("%s", attack)
    finally:
        logging.getLogger().handlers.clear()
    said = capsys.readouterr().err
    assert all(line.isprintable() for line in said.split("\n")), repr(said)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_gaps_reason_is_shown_escaped(capsys: pytest.CaptureFixture[str], *, as_json: bool) -> None:
    attack = "".join(ATTACKS[:5])
    made = MadeLog()
    made.append(records("a=1"))
    made.log.claim_sink().advance(6, gaps=[Gap(1, 6, attack)])
    world = CliContext(lambda _url: (made.store, "topics"), made.clock, made.random)
    assert run(["log", "describe", "s3://b/topics", "users", *["--json"] * as_json], world) == 0
    said = capsys.readouterr().out
    assert said.replace("\n", "").isprintable()
    assert not as_json or json.loads(said)["gaps"][0]["reason"] == attack
    assert as_json or escaped(attack) in said
