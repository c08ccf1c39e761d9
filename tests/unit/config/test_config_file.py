"""Configuration files: three formats with one result, placeholders, and mistakes that name their key."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyfold.config.config_file import Resolved, parse_json, parse_properties, read_config
from keyfold.errors import ConfigError

FLAT = '{"name": "users", "topics": "a,b", "flush.size": 3000, "pause": true}'
REST = (
    '{"name": "users", "config": {"topics": "a,b", "flush.size": "3000", "pause": "true"}, "tasks": [], "type": "sink"}'
)
PROPERTIES = "# a comment\nname = users\ntopics: a,\\\n    b\nflush.size 3000\n! another\n\npause=true"
EXPECTED = {"name": "users", "topics": "a,b", "flush.size": "3000", "pause": "true"}


@pytest.mark.parametrize(
    ("file_name", "text"),
    [("c.json", FLAT), ("c.json", REST), ("c.properties", PROPERTIES), ("c", FLAT), ("c.conf", PROPERTIES)],
)
def test_all_file_formats_give_the_same_values(tmp_path: Path, file_name: str, text: str) -> None:
    path = tmp_path / file_name
    path.write_text(text)
    assert read_config(path) == EXPECTED


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a=b=c", {"a": "b=c"}),
        ("a = b ", {"a": "b "}),
        ("a:b", {"a": "b"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        (r"a\ b\=c=d", {"a b=c": "d"}),
        (r"a=\u00e9\t\\x", {"a": "é\t\\x"}),
        ("a=one\\\r\n  two\r\nb=3", {"a": "onetwo", "b": "3"}),
        ("a=ends in two\\\\\nb=1", {"a": "ends in two\\", "b": "1"}),
        ("a=x\\\n# no comment here", {"a": "x# no comment here"}),
        ("a=last line\\", {"a": "last line"}),
        ("a=1\na=1", {"a": "1"}),
        ("p={x}", {"p": "{x}"}),
    ],
)
def test_properties_files_follow_javas_syntax(line: str, expected: dict[str, str]) -> None:
    assert parse_properties(line) == expected


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ("{", "c.json", "is not valid JSON.*line 1"),
        ("[]", "c.json", "one JSON object"),
        ('{"a": null}', "a", "not null"),
        ('{"a": [1]}', "a", "nested"),
        ('{"a": "1", "a": "2"}', "a", "twice"),
        ('{"name": "x", "config": {"name": "y"}}', "name", "outside of `config`"),
        ('{"config": {}, "topics": "a"}', "topics", "is outside of `config`"),
    ],
)
def test_an_invalid_json_file_names_the_mistake(text: str, key: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse_json(text, "c.json")
    assert caught.value.key == key


def test_a_property_given_twice_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"`a`.*twice"):
        parse_properties("a=1\na=2")


def test_placeholders_are_resolved_once_and_marked(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets.properties"
    secrets.write_text("s3.key = ${env:NO}\n")
    path = tmp_path / "c.properties"
    path.write_text(f"a=${{env:USER_}}-${{file:{secrets}:s3.key}}\nb=$5 {{x}} ${{plain}}\n")
    values = read_config(path, environ={"USER_": "me"})
    assert values == {"a": "me-${env:NO}", "b": "$5 {x} ${plain}"}
    assert isinstance(values["a"], Resolved)
    assert not isinstance(values["b"], Resolved)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("${env:GONE}", "environment variable `GONE`"),
        ("${file:/nowhere/x.properties:key}", "`/nowhere/x.properties` cannot be read"),
        ("${file:only-a-key}", "does not name a key"),
        ("${vault:a:b}", "unknown provider `vault`"),
    ],
)
def test_an_unresolvable_placeholder_names_its_key(tmp_path: Path, value: str, says: str) -> None:
    path = tmp_path / "c.properties"
    path.write_text(f"aws.secret.access.key={value}\n")
    with pytest.raises(ConfigError, match=says) as caught:
        read_config(path, environ={})
    assert caught.value.key == "aws.secret.access.key"


def test_a_missing_key_in_a_secrets_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "s.properties").write_text("other=hunter2")
    (tmp_path / "c.properties").write_text(f"a=${{file:{tmp_path / 's.properties'}:wanted}}")
    with pytest.raises(ConfigError, match="no key `wanted`") as caught:
        read_config(tmp_path / "c.properties")
    assert "hunter2" not in str(caught.value)


def test_a_missing_or_binary_file_gives_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file") as caught:
        read_config(tmp_path / "gone.json")
    assert caught.value.message.count("gone.json") == 1
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_config(tmp_path / "binary.json")
