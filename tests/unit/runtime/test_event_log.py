"""Log lines: fields for machines, short lines for people, and never a secret."""

from __future__ import annotations

import io
import json
import logging
import tomllib
from collections.abc import Iterator

import pytest
import structlog
from pydantic import SecretStr

from keyfold.errors import ConfigError, StoreUnavailable
from keyfold.runtime import event_log
from tests.support.root import ROOT


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    logging.getLogger("keyfold").setLevel(logging.NOTSET)


def rows(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_object_with_its_fields() -> None:
    stream = io.StringIO()
    event_log.configure(json=True, stream=stream)
    event_log.bind(task=3)
    event_log.get_logger("keyfold.x").info("segment committed", topic="users", next_offset=36, key=b"a\xff")
    (row,) = rows(stream)
    assert row.pop("timestamp")
    assert row == {
        "event": "segment committed",
        "level": "info",
        "logger": "keyfold.x",
        "topic": "users",
        "next_offset": 36,
        "key": "a\\xff",
        "task": 3,
    }


def test_the_level_applies_to_keyfold_and_libraries_log_warnings() -> None:
    stream = io.StringIO()
    event_log.configure(json=True, level="debug", stream=stream)
    event_log.get_logger("keyfold.x").debug("ours")
    logging.getLogger("botocore.x").info("theirs, quiet")
    logging.getLogger("botocore.x").warning("theirs, %s", "loud")
    assert [row["event"] for row in rows(stream)] == ["ours", "theirs, loud"]
    event_log.configure(json=True, level="error", stream=stream)
    event_log.get_logger("keyfold.x").warning("not now")
    assert len(rows(stream)) == 2


def test_the_level_applies_to_every_package_of_keyfold() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "root_packages"
    ]
    stream = io.StringIO()
    event_log.configure(json=True, stream=stream)
    for package in packages:
        event_log.get_logger(f"{package}.x").info("said", package=package)
    assert {row["package"] for row in rows(stream)} == {*packages} - {"keyfold_schemas"}, (
        "schemas have no code that logs"
    )


def test_an_error_is_logged_with_its_kind_and_hint() -> None:
    stream = io.StringIO()
    event_log.configure(json=True, stream=stream)
    error = StoreUnavailable("t/_manifest.avro", "no answer", hint="it is repeated")
    event_log.get_logger("keyfold.x").warning("commit repeated", error=error)
    (row,) = rows(stream)
    assert row["error"] == "`t/_manifest.avro`: no answer; it is repeated"
    assert row["error_kind"] == "StoreUnavailable"


@pytest.mark.parametrize("as_json", [True, False])
def test_tracebacks_and_fields_contain_no_secret(as_json: bool) -> None:
    stream = io.StringIO()
    event_log.configure(json=as_json, stream=stream)
    password = "hunter" + "2"
    log = event_log.get_logger("keyfold.x")
    try:
        raise ValueError("went wrong") from OSError(len(password))
    except ValueError:
        log.exception("task failed", secret=SecretStr(password), inside={"secret": SecretStr(password)})
    assert "went wrong" in stream.getvalue()
    assert "hunter" not in stream.getvalue().replace('"hunter" + "2"', "")


def test_an_unknown_level_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"log\.level"):
        event_log.configure(json=True, level="loud")


def test_a_level_applies_to_a_logger_and_its_descendants() -> None:
    stream = io.StringIO()
    event_log.configure(json=True, stream=stream)
    log = event_log.get_logger("keyfold.levels.deep")
    log.debug("too fine")
    assert "keyfold.levels.deep" in event_log.set_level("keyfold.levels", "DEBUG")
    log.debug("fine")
    assert [row["event"] for row in rows(stream)] == ["fine"]
    assert event_log.get_level("keyfold.levels.deep") == "DEBUG"
    event_log.set_level("keyfold.levels", "OFF")
    log.critical("nothing")
    assert [row["event"] for row in rows(stream)] == ["fine"]


def test_descendants_are_found_by_whole_name_components() -> None:
    event_log.get_logger("keyfold.near").info("made")
    before = event_log.get_level("keyfold.near")
    assert "keyfold.near" not in event_log.set_level("keyfold.ne", "ERROR")
    assert event_log.get_level("keyfold.near") == before


def test_the_root_logger_is_listed_and_a_logger_without_a_level_is_not() -> None:
    event_log.configure(json=True, stream=io.StringIO())
    assert event_log.set_levels()["root"] == "WARN"
    assert event_log.set_levels()["keyfold"] == "INFO"
    assert event_log.get_level("keyfold.nobody.asked") is None
    with pytest.raises(KeyError):
        event_log.set_level("keyfold", "LOUD")
