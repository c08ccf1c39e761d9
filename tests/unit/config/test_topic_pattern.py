"""`topics.regex` is matched in bounded time, also if the pattern comes from an attacker."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from keyfold.config import topic_pattern as module
from keyfold.config.topic_pattern import LENGTH_MAX, TopicPattern, may_be_slow
from keyfold.errors import ConfigError
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.sockets import listening
from keyfold_sink.config.connect_definitions import ConnectDefinitions
from keyfold_sink.config.option_groups import REST
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.rest.server import serve
from tests.support.fake_service import FakeService, make_options

ENDLESS = [
    "(a+)+b",
    "(a|a)*b",
    "(a?){80}b",
    "a?" * 80 + "b",
    "(a|a)" * 60 + "b",
    "(?:a|aa)+b",
    r"(a+)\1+\1+b",
    "(?x)#[\n(a+)+b#]",
]
HIDDEN = ["(?#[)(a+)+b(?#])", "(?i:(a+)+)b", "(?-i:(a+)+)b", "(?s)(a+)+b", r"[\]](a+)+b"]
USUAL = [
    "orders",
    r"orders\..*",
    "(orders|users)-[0-9]+",
    "^(?!dead).*$",
    ".*",
    r"(?:dev|prod)\.[a-z_+*]+",
    r"a\+\*\?b",
    "[]*+?{}]x",
]
NAME = "a" * 120


@pytest.mark.parametrize("regex", ENDLESS + HIDDEN)
def test_patterns_that_could_backtrack_are_recognised(regex: str) -> None:
    assert may_be_slow(regex)


@pytest.mark.parametrize("regex", USUAL)
def test_common_patterns_are_matched_in_this_process(regex: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not may_be_slow(regex)
    monkeypatch.setattr(module, "_matched_elsewhere", pytest.fail)
    names = ["orders", "orders.new", "users-1", "dead", "dev.x", "]x", "a+*?b"]
    assert TopicPattern(regex).choose(names) == sorted(name for name in names if re.fullmatch(regex, name))


@pytest.mark.parametrize("regex", ["(a+)+b", "(a|a)*b"])
def test_a_pattern_that_never_ends_is_refused(regex: str) -> None:
    began_s = time.monotonic()
    with pytest.raises(ConfigError, match=r"topics\.regex.*took longer than"):
        TopicPattern(regex, within_s=0.5).choose([NAME])
    assert time.monotonic() - began_s >= 0.5


def test_a_suspect_pattern_that_ends_matches_as_usual_and_each_name_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = TopicPattern(r"(?:[a-z]+\.)*orders")
    assert may_be_slow(r"(?:[a-z]+\.)*orders")
    names = ["shop.eu.orders", "orders", "orders.old", "Orders", "grün"]
    assert pattern.choose(names) == ["orders", "shop.eu.orders"]
    monkeypatch.setattr(module, "_matched_elsewhere", pytest.fail)
    assert pattern.choose(names) == ["orders", "shop.eu.orders"]
    assert pattern.choose([]) == []
    assert not pattern.matches("Orders")


def test_the_cache_of_matches_is_bounded() -> None:
    pattern = TopicPattern("(?:a|b)*", known_max=3)
    assert pattern.choose(["a", "b", "c"]) == ["a", "b"]
    assert pattern.choose(["a", "d", "ba"]) == ["a", "ba"]
    assert len(pattern._known) == 3


@pytest.mark.parametrize(
    ("regex", "says"),
    [
        ("(", "is not a valid regular expression"),
        ("a{99999999999999}", "is not a valid regular expression"),
        ("(" * 4000 + ")" * 4000, "nested too deeply"),
        ("a" * (LENGTH_MAX + 1), "characters"),
    ],
)
def test_an_invalid_pattern_is_refused(regex: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        TopicPattern(regex)
    values = {"name": "n", "topics.regex": regex, "bootstrap.servers": "x", "s3.bucket.name": "b"}
    found = SinkOptions.examine({**values, "errors.deadletterqueue.topic.name": "dead"})
    assert [mistake.key for mistake in found.mistakes] == ["topics.regex"]


@given(st.text("ab()|*+?.[]{}^$\\1,", max_size=12))
def test_patterns_judged_quick_are_quick(regex: str) -> None:
    """A slow pattern would take years for this name, and the test would end by its time limit."""
    try:
        compiled = re.compile(regex)
    except (re.error, OverflowError, FutureWarning):
        return
    if not may_be_slow(regex):
        compiled.fullmatch(NAME)


@contextmanager
def validating() -> Iterator[str]:
    """Yield the address of a REST API over the sink's own definitions."""
    options, clock = make_options(), SystemClock()
    with listening(options.listeners, REST) as sockets:
        definitions = ConnectDefinitions(options)
        with serve(
            FakeService(options), sockets, metrics=lambda _: (b"", ""), definitions=definitions, clock=clock
        ) as server:
            yield server.addresses[0]


def test_a_worker_keeps_answering_while_it_validates_a_slow_pattern() -> None:
    config = {
        "name": "users",
        "topics.regex": "(a+)+b",
        "bootstrap.servers": "x",
        "s3.bucket.name": "b",
        "errors.deadletterqueue.topic.name": NAME,
    }
    with validating() as url:
        path = f"{url}/connector-plugins/KeyfoldSinkConnector/config/validate"
        said: list[requests.Response] = []
        asking = threading.Thread(target=lambda: said.append(requests.put(path, json=config, timeout=60)))
        asking.start()
        answered = 0
        while asking.is_alive():
            assert requests.get(f"{url}/health/live", timeout=60).status_code == 200
            answered += asking.is_alive()
            asking.join(0.05)
        assert answered > 1, "no answer came before that of the validation"
    (answer,) = said
    assert answer.status_code == 200
    wrong = {row["value"]["name"]: row["value"]["errors"] for row in answer.json()["configs"] if row["value"]["errors"]}
    assert list(wrong) == ["topics.regex"]


def test_a_long_value_with_many_opened_placeholders_is_scanned_in_linear_time() -> None:
    with validating() as url:
        path = f"{url}/connector-plugins/KeyfoldSinkConnector/config/validate"
        for value in ("${" * 400_000, "${a" * 250_000):
            assert requests.put(path, json={"name": value}, timeout=60).status_code == 200
        refused = requests.put(path, json={"name": "${a:" * 200_000}, timeout=60)
        assert refused.status_code == 400
