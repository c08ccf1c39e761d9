"""TLS and SASL to a real broker: working settings, and the sink's errors for wrong ones."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keyfold.cli.app import run
from tests.conftest import fresh
from tests.support.clocks import HurriedClock
from tests.support.kafka import produce_all, synthetic
from tests.support.moto import LocalS3Process
from tests.support.proof import Rig
from tests.support.secure_kafka import PASSWORDS, STORE_PASSWORD, SecureBroker

pytestmark = pytest.mark.kafka

COUNT = 200


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with SecureBroker(tmp_path_factory.mktemp("secure")) as running:
        yield running


@pytest.fixture
def rig(broker: SecureBroker, local_s3: LocalS3Process, bucket: str, tmp_path: Path) -> Rig:
    return Rig(broker, local_s3, bucket, tmp_path)


@pytest.fixture
def topic(broker: SecureBroker) -> str:
    name = fresh("topic")
    broker.create_topic(name, 1, {"retention.ms": "-1"})
    rows = synthetic(COUNT, key_count=10, partition=0, base_timestamp_ms=int(time.time() * 1000))
    assert produce_all(broker.bootstrap_servers, name, rows) == COUNT
    return name


def settings(broker: SecureBroker, listener: str, **more: str) -> dict[str, str]:
    """Return the right settings of a sink for a listener, changed by `more`."""
    protocols = {"TLS": "SSL", "MUTUAL": "SSL", "LOGIN": "SASL_PLAINTEXT", "BOTH": "SASL_SSL"}
    found = {"bootstrap.servers": broker.servers[listener], "security.protocol": protocols[listener]}
    if listener != "LOGIN":
        found["ssl.ca.location"] = str(broker.certificates.authority)
    if listener in {"LOGIN", "BOTH"}:
        found |= {"sasl.mechanism": "PLAIN", "sasl.username": "keyfold", "sasl.password": PASSWORDS["keyfold"]}
    return {**found, **more}


def write(rig: Rig, topic: str, keys: dict[str, str]) -> Path:
    """Write a configuration with exactly these keys; some contain underscores."""
    path = rig.config(topic)
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))
    return path


@pytest.mark.sharded
@pytest.mark.parametrize(
    "case", ["tls", "mutual", "mutual with a key store", "plain", "scram", "scram over tls", "jaas"]
)
def test_a_sink_reads_through_every_kind_of_listener(rig: Rig, broker: SecureBroker, topic: str, case: str) -> None:
    files = broker.certificates
    keys = {
        "tls": settings(broker, "TLS"),
        "mutual": settings(
            broker,
            "MUTUAL",
            **{"ssl.certificate.location": str(files.client), "ssl.key.location": str(files.client_key)},
        ),
        "mutual with a key store": settings(
            broker,
            "MUTUAL",
            **{"ssl.keystore.location": str(files.client_store), "ssl.keystore.password": STORE_PASSWORD},
        ),
        "plain": settings(broker, "LOGIN"),
        "scram": settings(broker, "LOGIN", **{"sasl.mechanism": "SCRAM-SHA-256"}),
        "scram over tls": settings(
            broker,
            "BOTH",
            **{"sasl.mechanism": "SCRAM-SHA-512", "sasl.password": f"${{file:{rig.folder}/secrets.properties:kafka}}"},
        ),
        # As Connect has it: everything in the consumer's overrides, in Java's words. The admin client gets it, too.
        "jaas": {
            "bootstrap.servers": broker.servers["LOGIN"],
            "consumer.override.security.protocol": "SASL_PLAINTEXT",
            "consumer.override.sasl.mechanism": "SCRAM-SHA-256",
            "consumer.override.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="keyfold" password="{PASSWORDS["keyfold"]}";',
        },
    }[case]
    (rig.folder / "secrets.properties").write_text(f"kafka={PASSWORDS['keyfold']}\n")
    said = rig.catch_up(write(rig, topic, keys))
    assert rig.prove(topic) == COUNT
    assert PASSWORDS["keyfold"] not in said
    assert STORE_PASSWORD not in said


@pytest.mark.sharded
@pytest.mark.parametrize(
    ("listener", "wrong", "says"),
    [
        ("LOGIN", {"sasl.password": "wr0ng-one"}, ("refuses the login", "sasl.password")),
        (
            "BOTH",
            {"sasl.mechanism": "SCRAM-SHA-512", "sasl.password": "wr0ng-one"},
            ("refuses the login", "sasl.password"),
        ),
        (
            "LOGIN",
            {"sasl.password": "wr0ng-one", "errors.tolerance": "all", "errors.deadletterqueue.topic.name": "dead"},
            ("refuses the login", "sasl.password"),
        ),
        ("TLS", {"ssl.ca.location": "{other}"}, ("certificate verify failed", "ssl.ca.location")),
        ("MUTUAL", {}, ("the TLS connection to Kafka failed", "ssl.certificate.location")),
        ("TLS", {"bootstrap.servers": "{plain}"}, ("the TLS connection to Kafka failed", "security.protocol")),
    ],
    ids=["password", "scram password", "password and dead letters", "authority", "no certificate", "plain listener"],
)
def test_a_refusal_ends_the_task_and_says_what_to_check(
    rig: Rig, broker: SecureBroker, topic: str, listener: str, wrong: dict[str, str], says: tuple[str, str]
) -> None:
    places = {"other": str(broker.certificates.other_authority), "plain": broker.bootstrap_servers}
    keys = settings(broker, listener, **{key: value.format(**places) for key, value in wrong.items()})
    said = rig.fail(write(rig, topic, keys), HurriedClock(10))  # a refusal is believed after ten seconds
    for words in says:
        assert words in said
    assert "wr0ng-one" not in said
    assert "Traceback" not in said
    assert "%3|" not in said  # the client's own log
    assert said.count("kafka client error") < 10


@pytest.mark.full
def test_a_refusal_is_found_also_while_reading_the_end_offsets(rig: Rig, broker: SecureBroker, topic: str) -> None:
    keys = settings(broker, "LOGIN", **{"sasl.password": "wr0ng-one"})
    said = rig.run(write(rig, topic, keys), "--until-caught-up", code=1)
    assert "refuses the login" in said
    assert "wr0ng-one" not in said


def validate(rig: Rig, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, *flags: str) -> tuple[int, str]:
    for name, value in rig.s3.environment.items():
        monkeypatch.setenv(name, value)
    code = run(["sink", "validate", str(path), "--connect", *flags])
    said = capsys.readouterr()
    return code, said.out + said.err


def test_validate_connects_and_finds_no_mistake(
    rig: Rig, broker: SecureBroker, topic: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(rig, topic, settings(broker, "BOTH", **{"errors.deadletterqueue.topic.name": "dead"}))
    code, said = validate(rig, path, monkeypatch, capsys)
    assert code == 0, said
    assert "1 of 1 topics can be read" in said
    assert "honours conditional writes" in said
    assert "dead does not exist yet" in said
    assert said.splitlines()[0] == f"ok: sink {topic}, topics {topic}, to s3://{rig.bucket}/topics"


@pytest.mark.full
@pytest.mark.parametrize(
    ("keys", "key", "says"),
    [
        ({"sasl.password": "wr0ng-one"}, "bootstrap.servers", "refuses the login"),
        ({"ssl.ca.location": "{other}"}, "bootstrap.servers", "certificate verify failed"),
        ({"bootstrap.servers": "127.0.0.1:1"}, "bootstrap.servers", "no broker of 127.0.0.1:1 answered within"),
        ({"topics": "no-such-topic"}, "topics", "topic `no-such-topic` not found"),
        (
            {"sasl.username": "stranger", "sasl.password": PASSWORDS["stranger"]},
            "topics",
            "not found, or the sink may not describe it",
        ),
        ({"s3.bucket.name": "no-such-bucket-here"}, "s3.bucket.name", "no-such-bucket-here"),
        (
            {"value.converter": "avro", "value.converter.schema.registry.url": "http://127.0.0.1:1"},
            "value.converter.schema.registry.url",
            "does not answer",
        ),
    ],
    ids=["password", "authority", "no broker", "no topic", "no right", "no bucket", "no registry"],
)
def test_validate_names_what_cannot_be_reached(
    rig: Rig,
    broker: SecureBroker,
    topic: str,
    keys: dict[str, str],
    key: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"other": str(broker.certificates.other_authority)}
    given = {name: value.format(**places) if "{" in value else value for name, value in keys.items()}
    path = write(rig, topic, settings(broker, "BOTH", **given))
    code, said = validate(rig, path, monkeypatch, capsys, "--json")
    assert code == 1, said
    answer, _ = json.JSONDecoder().raw_decode(said)  # what the Kafka client has to say follows, on standard error
    errors = {config["value"]["name"]: config["value"]["errors"] for config in answer["configs"]}
    (found,) = [error for errors in errors.values() for error in errors]
    assert errors[key] == [found]
    assert says in found
    assert "wr0ng-one" not in said
    assert PASSWORDS["keyfold"] not in said
