"""The configuration in Connect's form: definitions, and the results of `validate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keyfold.cli.app import run
from keyfold.config.config_file import Resolved
from keyfold.config.option_fields import entries
from keyfold.formats.format import FORMAT_NAMES
from keyfold_sink.config.connect_definitions import CONNECTOR_CLASS, GROUPS, ConnectDefinitions, definitions, validate
from keyfold_sink.config.options import SinkOptions
from tests.support.untyped import untyped

GOOD = {"name": "users", "bootstrap.servers": "h:1", "topics": "users", "s3.bucket.name": "log"}
TYPES = {"BOOLEAN", "STRING", "INT", "SHORT", "LONG", "DOUBLE", "LIST", "CLASS", "PASSWORD"}
DEFINITION = {
    *("name", "type", "required", "default_value", "importance", "documentation"),
    *("group", "width", "display_name", "dependents", "order"),
}


def by_name(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {config["value"]["name"]: config for config in answer["configs"]}


def test_every_key_has_one_definition_in_connects_form() -> None:
    found = untyped(definitions())
    names = [key["name"] for key in found]
    assert sorted(names) == sorted(entry.key for entry in entries(SinkOptions) if not entry.is_prefix)
    for key in found:
        assert set(key) == DEFINITION
        assert key["type"] in TYPES
        assert key["importance"] in {"HIGH", "MEDIUM", "LOW"}
        assert key["width"] in {"NONE", "SHORT", "MEDIUM", "LONG"}
        assert key["group"] in GROUPS
        assert key["documentation"]
        assert key["default_value"] is None or isinstance(key["default_value"], str)
        assert set(key["dependents"]) <= set(names)
    orders = [(GROUPS.index(key["group"]), key["order"]) for key in found]
    assert orders == sorted(set(orders))
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("name", {"type": "STRING", "required": True, "default_value": None, "importance": "HIGH"}),
        ("tasks.max", {"type": "INT", "required": False, "default_value": "1"}),
        ("segment.bytes", {"type": "LONG", "default_value": "134217728"}),
        ("topics", {"type": "LIST", "default_value": ""}),
        ("value.converter", {"type": "CLASS", "default_value": "bytes", "group": "Converters"}),
        ("errors.log.enable", {"type": "BOOLEAN", "default_value": "false", "width": "SHORT"}),
        ("aws.secret.access.key", {"type": "PASSWORD", "default_value": None}),
        ("source.gap.policy", {"type": "STRING", "default_value": "fail"}),
    ],
)
def test_a_definition_says_type_and_default(key: str, expected: dict[str, object]) -> None:
    (found,) = [definition for definition in definitions() if definition["name"] == key]
    assert {name: found[name] for name in expected} == expected


def test_a_valid_configuration_has_no_errors_and_every_value() -> None:
    answer = validate({**GOOD, "flush.size": "5"}, {})
    assert answer["error_count"] == 0
    assert answer["name"] == CONNECTOR_CLASS
    assert answer["groups"] == list(GROUPS)
    values = {name: config["value"] for name, config in by_name(answer).items()}
    assert values["flush.size"] == {
        "name": "flush.size",
        "value": "5",
        "recommended_values": [],
        "errors": [],
        "visible": True,
    }
    assert values["tasks.max"]["value"] == "1"
    assert values["s3.region"]["value"] is None
    assert values["errors.tolerance"]["recommended_values"] == ["none", "all"]
    assert values["key.converter"]["recommended_values"] == list(FORMAT_NAMES)


def test_each_error_is_attached_to_its_key_and_counted() -> None:
    answer = validate(
        {
            "connector.class": "io.confluent.connect.s3.S3SinkConnector",
            "topics": "a",
            "flush.size": "many",
            "rotate.interval.ms": "5",
            "consumer.override.no.such": "1",
            "topic.a.segment.ms": "x",
            "errors.deadletterqueue.topic.name": "a",
            "nonsense": "1",
        },
        {},
    )
    found = by_name(answer)
    wrong = {name for name, config in found.items() if config["value"]["errors"]}
    assert wrong == {
        *("name", "bootstrap.servers", "s3.bucket.name", "flush.size", "errors.deadletterqueue.topic.name"),
        *("rotate.interval.ms", "consumer.override.no.such", "topic.a.segment.ms", "nonsense"),
    }
    assert answer["error_count"] == len(wrong)
    assert answer["name"] == "io.confluent.connect.s3.S3SinkConnector"
    for name in ("rotate.interval.ms", "consumer.override.no.such", "topic.a.segment.ms", "nonsense"):
        assert found[name]["definition"] is None
    assert found["flush.size"]["value"]["value"] == "many"


def test_no_answer_shows_a_secret(tmp_path: Path) -> None:
    secrets = tmp_path / "s.properties"
    secrets.write_text("password=hunter22\n")
    values = {
        **GOOD,
        "aws.access.key.id": "AK",
        "aws.secret.access.key": "hunter22",
        "rest.token": f"${{file:{secrets}:password}}",
        "flush.size": "${env:SECRET}",
        "consumer.override.sasl.password": "hunter22",
        "consumer.override.sasl.jaas.config": "hunter22",
        "ssl.key.pem": "hunter22",
        "s3.proxy.password": "hunter22",
        "value.converter": "avro",
        "value.converter.schema.registry.url": "http://me:hunter22@registry:8081",
        "value.converter.basic.auth.user.info": "me:hunter22",
        "topics": "${env:SECRET} is no name",
        "store.url": "http://me:hunter22@s3:9000",
        "nonsense": "${env:SECRET}",
    }
    answer = validate(values, {"SECRET": "hunter22"})
    assert "hunter22" not in json.dumps(answer)
    assert untyped(answer["error_count"]) > 3
    found = by_name(answer)
    assert found["aws.secret.access.key"]["value"]["value"] == "[hidden]"
    assert found["flush.size"]["value"]["value"] == "${env:SECRET}"
    assert found["nonsense"]["value"]["value"] == "${env:SECRET}"


def test_an_unresolvable_placeholder_is_an_error_of_its_key_only() -> None:
    answer = validate({**GOOD, "bootstrap.servers": "${env:BROKERS}", "flush.size": "${env:SIZE}"}, {})
    assert answer["error_count"] == 2
    found = by_name(answer)
    assert found["bootstrap.servers"]["value"]["errors"] == [
        "`bootstrap.servers`: the environment variable `BROKERS` is not set"
    ]


def test_the_shown_running_configuration_is_valid_again() -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="hunter22";'
    given = {**GOOD, "consumer.override.sasl.jaas.config": jaas, "rest.token": "hunter22"}
    running = SinkOptions.parse(given)
    assert validate(running.shown(), {})["error_count"] == 1
    answer = ConnectDefinitions(running).validate(running.shown())
    assert answer["error_count"] == 0
    assert "hunter22" not in json.dumps(answer)
    answer = ConnectDefinitions(running).validate({**running.shown(), "flush.size": "x"})
    assert by_name(answer)["flush.size"]["value"]["value"] == "x"


def test_a_providers_value_is_not_searched_for_placeholders() -> None:
    running = SinkOptions.parse({**GOOD, "rest.token": Resolved("${env:HOME}", "${env:TOKEN}")})
    assert ConnectDefinitions(running).validate(running.shown())["error_count"] == 0


def test_a_device_is_not_accepted_as_a_secrets_file() -> None:
    answer = validate({**GOOD, "rest.token": "${file:/dev/zero:x}"}, {})
    assert "is not a regular file" in by_name(answer)["rest.token"]["value"]["errors"][0]


def test_values_given_under_an_alias_appear_at_the_canonical_key() -> None:
    found = by_name(validate({**GOOD, "rotate.schedule.interval.ms": "60000"}, {}))
    assert found["segment.ms"]["value"]["value"] == "60000"


def test_the_command_lists_every_mistake_with_a_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sink.json"
    path.write_text(json.dumps({**GOOD, "flush.sise": "1", "segment.ms": "soon", "rotate.interval.ms": "1"}))
    assert run(["sink", "validate", str(path)]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert said.err.count("error: ") == 3
    assert "hint: did you mean `flush.size`?" in said.err
    assert run(["sink", "validate", str(path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error_count"] == 3


def test_the_command_prints_ok_and_the_keys_without_effect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sink.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in {**GOOD, "s3.part.size": "5"}.items()))
    assert run(["sink", "validate", str(path)]) == 0
    said = capsys.readouterr()
    assert said.out == "ok: sink users, topics users, to s3://log/topics\n"
    assert said.err.startswith("note: `s3.part.size` has no effect")


def test_an_unreadable_file_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sink.json"
    path.write_text("{")
    assert run(["sink", "validate", str(path)]) == 2
    assert "is not valid JSON" in capsys.readouterr().err
