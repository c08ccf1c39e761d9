"""Settings for the Kafka clients: Java's names, settings that the sink reserves, and those that librdkafka refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyfold_sink.config.client_settings import translated
from keyfold_sink.config.examine import examine
from keyfold_sink.config.memory_plan import plan_memory
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.kafka.consumer import consumer_config

BASE = {"name": "users", "bootstrap.servers": "h:1", "topics": "users", "s3.bucket.name": "log"}
JAAS = 'org.apache.kafka.common.security.{}LoginModule required username="me" password="p\\"w;=1" ;'


def mistakes(**more: str) -> dict[str, str]:
    values = {**BASE, **{key.replace("__", "."): value for key, value in more.items()}}
    return {mistake.key: str(mistake) for mistake in examine(values, {"PASSWORD": "hunter22"}).mistakes}


@pytest.mark.parametrize("module", ["plain.Plain", "scram.Scram"])
def test_user_and_password_are_read_from_a_jaas_configuration(module: str) -> None:
    found = translated({"sasl.mechanism": "PLAIN", "sasl.jaas.config": JAAS.format(module)})
    assert found == {"sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": 'p"w;=1'}


@pytest.mark.parametrize(
    "text",
    ["", "hunter22", JAAS.format("oauthbearer.OAuthBearer"), JAAS.format("plain.Plain").replace("username", "user")],
)
def test_an_unsupported_jaas_configuration_is_refused_and_not_quoted(text: str) -> None:
    found = mistakes(consumer__override__sasl__jaas__config=text)
    assert list(found) == ["consumer.override.sasl.jaas.config"]
    assert "sasl.username" in found["consumer.override.sasl.jaas.config"]
    assert "hunter22" not in str(found)


def test_javas_setting_names_are_translated() -> None:
    options = SinkOptions.parse({**BASE, "consumer.override.fetch.max.wait.ms": "50"})
    config = consumer_config(options, plan_memory(options.buffer_memory))
    assert config["fetch.wait.max.ms"] == "50"
    assert "fetch.max.wait.ms" not in config
    found = mistakes(consumer__override__fetch__max__wait__ms="1", consumer__override__fetch__wait__max__ms="2")
    assert "both are set" in found["consumer.override.fetch.max.wait.ms"]


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("consumer.override.no.such.key", "1", "is not a setting of the Kafka client"),
        ("consumer.override.fetch.min.bytes", "many", "the Kafka client refuses this setting"),
        ("consumer.override.ssl.truststore.location", "/t.jks", "ssl.ca.location"),
        ("consumer.override.max.poll.records", "500", "buffer.memory"),
        ("consumer.override.group.id", "mine", "connect-<name>"),
        ("consumer.override.isolation.level", "read_uncommitted", "committed records"),
        ("consumer.override.bootstrap.server", "h:1", "is not a setting"),
        ("producer.override.acks", "1", "replicas"),
        ("producer.override.transactional.id", "t", "no transaction"),
        ("producer.override.no.such.key", "1", "is not a setting"),
        ("admin.override.no.such.key", "1", "is not a setting"),
        ("ssl.truststore.password", "hunter22", "PEM"),
        ("ssl.no.such", "hunter22", "is not a setting"),
        ("security.protocol", "TLS", "security.protocol"),
        ("consumer.override.bootstrap.servers", "other:1", "same cluster"),
        ("admin.override.bootstrap.servers", "other:1", "same cluster"),
        ("producer.override.delivery.timeout.ms", "5", "retried without limit"),
        ("consumer.override.error_cb", "x", "refuses this setting"),
        ("consumer.override.on_commit", "x", "refuses this setting"),
    ],
)
def test_an_invalid_setting_is_refused_by_its_name(key: str, value: str, says: str) -> None:
    found = mistakes(**{key: value})
    assert list(found) == [key]
    assert says in found[key]
    assert "hunter22" not in found[key]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("consumer.override.auto.offset.reset", "earliest"),
        ("consumer.override.isolation.level", "read_committed"),
        ("consumer.override.client.rack", "a"),
        ("producer.override.acks", "all"),
        ("producer.override.linger.ms", "5"),
        ("admin.override.client.id", "me"),
        ("consumer.override.group.instance.id", "pod"),
    ],
)
def test_valid_settings_are_accepted(key: str, value: str) -> None:
    assert mistakes(**{key: value}) == {}


def test_all_invalid_settings_are_named_together() -> None:
    found = mistakes(
        consumer__override__one="1",
        consumer__override__two="2",
        admin__override__three="3",
        sasl__four="4",
        flush__sice="1",
    )
    assert set(found) == {
        "consumer.override.one",
        "consumer.override.two",
        "admin.override.three",
        "sasl.four",
        "flush.sice",
    }


def test_files_and_dependent_settings_are_checked(tmp_path: Path) -> None:
    found = mistakes(security__protocol="SSL", ssl__ca__location=str(tmp_path / "gone.pem"))
    assert list(found) == ["ssl.ca.location"]
    found = mistakes(security__protocol="SASL_PLAINTEXT", sasl__mechanism="SCRAM-SHA-256", sasl__username="me")
    assert list(found) == ["sasl.username"] or list(found) == ["sasl.password"]
    assert list(mistakes(security__protocol="SASL_SSL")) == ["sasl.mechanism"]
    found = mistakes(consumer__override__security__protocol="SASL_SSL")
    assert list(found) == ["consumer.override.sasl.mechanism"]


def test_top_level_credentials_apply_to_all_clients_unless_overridden() -> None:
    options = SinkOptions.parse(
        {
            **BASE,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "me",
            "sasl.password": "all",
            "admin.override.sasl.password": "admins",
            "consumer.override.sasl.username": "reader",
        }
    )
    assert options.consumer_settings["sasl.username"] == "reader"
    assert options.admin_settings["sasl.password"] == "admins"
    assert options.producer_settings["sasl.username"] == "reader"
    assert options.producer_settings["sasl.password"] == "all"
    assert options.producer_settings["bootstrap.servers"] == "h:1"
    for text in (repr(options), str(options.shown()), options.model_dump_json()):
        assert "admins" not in text


def test_examining_a_configuration_runs_no_command_and_loads_no_library(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mistakes(
        security__protocol="SASL_PLAINTEXT",
        sasl__mechanism="GSSAPI",
        sasl__kerberos__kinit__cmd=f"touch {mark}",
        consumer__override__plugin__library__paths="no-such-library",
        consumer__override__ssl__engine__location="/no/such/engine.so",
    )
    assert not mark.exists()


@pytest.mark.parametrize("options", ["a" * 1_000_000, "a " * 500_000, 'a="' + '\\"a=' * 250_000])
def test_a_long_invalid_login_is_scanned_in_linear_time(options: str) -> None:
    """Anybody with access to the REST API may send such a value for validation."""
    values = {"name": "n", "topics": "t", "bootstrap.servers": "x", "s3.bucket.name": "b"}
    found = SinkOptions.examine({**values, "sasl.jaas.config": f"PlainLoginModule required {options};"})
    assert [mistake.key for mistake in found.mistakes] == ["sasl.jaas.config"]


@pytest.mark.parametrize("order", [1, -1])
def test_a_prefix_as_documentation_writes_it_is_an_unknown_key(order: int) -> None:
    """Someone may copy `consumer.override.*` from a page."""
    asked = [("consumer.override.*", ""), ("consumer.override.0000000", "")][::order]
    found = {mistake.key: str(mistake) for mistake in SinkOptions.examine({**BASE, **dict(asked)}).mistakes}
    assert "unknown key `consumer.override.*`" in found["consumer.override.*"]
