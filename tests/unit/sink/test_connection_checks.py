"""`keyfold sink validate --connect`: which key an outage or a refusal is blamed on. Brokers: test_sink_security."""

from __future__ import annotations

from random import Random

import pytest
from confluent_kafka import KafkaError

from keyfold.errors import AccessDenied, BucketMissing, ConditionsIgnored, ConfigError, StoreError, StoreUnavailable
from keyfold.runtime.clock import ManualClock
from keyfold_sink import connection_checks
from keyfold_sink.config.options import SinkOptions
from tests.support.moto import LocalS3Process
from tests.support.schema_registry import StubRegistry

CONFIG = {
    "name": "users",
    "topics": "users",
    "bootstrap.servers": "127.0.0.1:1",
    "s3.bucket.name": "no-such-bucket",
    "value.converter": "avro",
}


def registry_findings(url: str, **more: str) -> tuple[list[ConfigError], list[str]]:
    good: list[str] = []
    options = SinkOptions.parse({**CONFIG, "value.converter.schema.registry.url": url, **more})
    return list(connection_checks._registry(options, good.append)), good


def test_a_registry_that_answers_is_good() -> None:
    with StubRegistry() as registry:
        assert registry_findings(registry.url) == ([], [f"the Schema Registry answers at {registry.url}"])


def test_a_registry_without_an_answer_is_the_mistake_of_its_url() -> None:
    with StubRegistry() as registry:
        registry.answer = 503
        (mistake,), good = registry_findings(registry.url)
    assert mistake.key == "value.converter.schema.registry.url"
    assert "unavailable" in mistake.message
    assert good == []


def test_a_certificate_that_cannot_be_read_is_a_mistake() -> None:
    more = {"value.converter.schema.registry.ssl.ca.location": "/no/such/file.pem"}
    (mistake,), good = registry_findings("https://127.0.0.1:1", **more)
    assert "no/such/file.pem" in str(mistake)
    assert good == []


def test_a_missing_bucket_is_the_mistake_of_its_key(local_s3: LocalS3Process, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in local_s3.environment.items():
        monkeypatch.setenv(name, value)
    options = SinkOptions.parse({**CONFIG, "value.converter": "bytes"})
    good: list[str] = []
    (mistake,) = connection_checks._store(options, ManualClock(), Random(1), good.append)
    assert mistake.key == "s3.bucket.name"
    assert "no-such-bucket" in mistake.message
    assert good == []


@pytest.mark.parametrize(
    ("error", "key"),
    [
        (AccessDenied("key", "no"), "aws.access.key.id"),
        (BucketMissing("key", "no"), "s3.bucket.name"),
        (ConditionsIgnored("key", "no"), "store.url"),
        (StoreUnavailable("key", "no"), "store.url"),
        (StoreError("key", "no"), "s3.bucket.name"),
    ],
)
def test_each_error_of_the_store_has_a_key(error: StoreError, key: str) -> None:
    assert connection_checks._blamed(error) == key


def test_a_topic_that_may_not_be_described_is_told_from_a_missing_one() -> None:
    refused = connection_checks._topic_mistake("users", KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    missing = connection_checks._topic_mistake("users", None)
    assert refused.message.endswith("the sink may not describe topic `users`")
    assert "topic `users` not found" in missing.message
