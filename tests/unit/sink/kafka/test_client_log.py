"""Log lines of every Kafka client become events and never reach standard error directly."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from random import Random

import pytest

from keyfold.runtime.clock import SystemClock
from keyfold_sink.config.memory_plan import plan_memory
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.connection_checks import check_connections
from keyfold_sink.kafka.cluster import AdminSource
from keyfold_sink.kafka.consumer import admin_config, open_consumer
from keyfold_sink.kafka.contact import CLIENT_LOG, BrokerContact
from keyfold_sink.kafka.source import SourceUnavailable
from keyfold_sink.validate.dead_letter_producer import ensure_topic, open_producer

# A port at which nobody is; each client then has an error a second to tell, and at this level much more.
LOUD = {"log_level": "7", "debug": "broker"}
NOBODY = "127.0.0.1:1"
SHORT_TIMEOUT_S = 0.5


def options(loud: dict[str, str]) -> SinkOptions:
    overrides = {f"{kind}.override.{key}": v for kind in ("consumer", "producer", "admin") for key, v in loud.items()}
    values = {"name": "users", "topics": "users", "bootstrap.servers": NOBODY, "s3.bucket.name": "b"}
    return SinkOptions.parse({**values, "store.url": "http://127.0.0.1:1", **overrides})


def consume(loud: dict[str, str]) -> None:
    plan = plan_memory(2**28)
    consumer = open_consumer(options(loud), plan, lambda *_: None, lambda _: None, BrokerContact(SystemClock()))
    consumer.subscribe(["users"])
    for _ in range(5):
        consumer.consume(1, 0.1)
    consumer.close()


def produce(loud: dict[str, str]) -> None:
    opened = open_producer(options(loud), lambda _: None)
    for _ in range(5):
        opened.poll(0.1)


def make_topic(loud: dict[str, str]) -> None:
    with pytest.raises(SourceUnavailable):
        ensure_topic(options(loud).admin_settings, "dead", 1, BrokerContact(SystemClock()), SHORT_TIMEOUT_S)


def ask(loud: dict[str, str]) -> None:
    source = AdminSource(admin_config(options(loud)), SystemClock(), SHORT_TIMEOUT_S)
    with pytest.raises(SourceUnavailable):
        source.topics()


def check(loud: dict[str, str]) -> None:
    found = next(check_connections(options(loud), SystemClock(), Random(), timeout_s=SHORT_TIMEOUT_S))
    assert found.key == "bootstrap.servers"


@pytest.mark.parametrize("client", [consume, produce, make_topic, ask, check])
def test_client_log_lines_become_events(
    client: Callable[[dict[str, str]], None], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG, logger=CLIENT_LOG.name):
        client(LOUD)
    time.sleep(0.1)  # the client's threads write by themselves
    logged = [record for record in caplog.records if record.name == CLIENT_LOG.name]
    assert any("127.0.0.1:1" in record.getMessage() for record in logged)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("client", [consume, produce, make_topic, ask, check])
def test_a_client_does_not_log_errors_by_default(
    client: Callable[[dict[str, str]], None], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG, logger=CLIENT_LOG.name):
        client({})
    assert [record for record in caplog.records if record.name == CLIENT_LOG.name] == []
    assert capfd.readouterr().err == ""
