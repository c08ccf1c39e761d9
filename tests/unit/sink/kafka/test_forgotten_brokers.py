"""A client that has forgotten all brokers is noticed and replaced.

A client that was never told of any broker stands for it: both have none, and neither says so by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin._metadata import ClusterMetadata

from keyfold.runtime.clock import ManualClock, SystemClock
from keyfold_sink.config.memory_plan import plan_memory
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.kafka import cluster, consumer, contact
from keyfold_sink.kafka.cluster import AdminSource
from keyfold_sink.kafka.consumer import open_consumer
from keyfold_sink.kafka.contact import NO_BROKERS, BrokerContact, watch_brokers
from keyfold_sink.kafka.source import SourceUnavailable
from keyfold_sink.validate import dead_letter_producer
from keyfold_sink.validate.dead_letter_producer import open_producer

_OPTIONS = SinkOptions.parse(
    {"name": "users", "topics": "users", "bootstrap.servers": "127.0.0.1:1", "s3.bucket.name": "b"}
)
_WITH_BROKER = '{"brokers":{"h:1/1":{"source":"learned"}}}'
_WITHOUT = '{"brokers":{"GroupCoordinator":{"source":"logical"}}}'


def _until(condition: Callable[[], bool], turn: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        turn()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(contact, "_STATISTICS_INTERVAL_MS", 20)
    return monkeypatch


def test_a_consumer_without_brokers_ends_the_task_which_is_started_again(often: pytest.MonkeyPatch) -> None:
    often.setattr(consumer, "consumer_config", lambda *_: {"group.id": "users"})
    opened = open_consumer(_OPTIONS, plan_memory(2**28), lambda *_: None, lambda _: None, BrokerContact(SystemClock()))
    with pytest.raises(KafkaException, match="forgotten all brokers") as raised:
        _until(lambda: False, lambda: opened.consume(1, 0.1))
    assert not raised.value.args[0].fatal()
    opened.close()


def test_a_producer_without_brokers_says_that_it_must_be_replaced(often: pytest.MonkeyPatch) -> None:
    often.setattr(dead_letter_producer, "producer_config", lambda *_: {})
    errors: list[KafkaError] = []
    opened = open_producer(_OPTIONS, errors.append)
    _until(lambda: bool(errors), lambda: opened.poll(0.1))
    assert errors[0].fatal()
    assert errors[0].str() == NO_BROKERS


def test_clients_whose_brokers_do_not_answer_are_kept(often: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    plain = contact.watch_brokers

    def watched(told: Callable[[], None]) -> dict[str, object]:
        watch = plain(told)
        heard = watch["stats_cb"]
        assert callable(heard)

        def both(text: str) -> None:
            said.append(text)
            heard(text)

        return {**watch, "stats_cb": both}

    often.setattr(dead_letter_producer, "watch_brokers", watched)
    errors: list[KafkaError] = []
    opened = open_producer(_OPTIONS, errors.append)
    _until(lambda: len(said) >= 10, lambda: opened.poll(0.1))
    assert not any(error.fatal() for error in errors)


def test_an_admin_client_without_an_answer_for_a_minute_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    class Admin:
        opened: ClassVar[int] = 0

        def __init__(self, _settings: Mapping[str, object]) -> None:
            Admin.opened += 1
            self.number = Admin.opened

        def poll(self, _timeout_s: float) -> int:
            return 0

        def list_topics(self, timeout: float) -> ClusterMetadata:
            clock.sleep(timeout)
            if self.number == 1 and clock.monotonic_s() >= forgets_at_s:
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))
            return ClusterMetadata()

    clock = ManualClock()
    forgets_at_s = clock.monotonic_s() + 100
    monkeypatch.setattr(cluster, "AdminClient", Admin)
    source = AdminSource({}, clock, 15.0)
    clock.sleep(80)
    source.topics()
    for _ in range(4):
        with pytest.raises(SourceUnavailable):
            source.topics()
    assert Admin.opened == 2
    assert source.topics() == frozenset()
    clock.sleep(1000)
    source.topics()
    assert Admin.opened == 2


def test_brokers_are_forgotten_only_after_two_reports_without_any() -> None:
    told: list[bool] = []
    heard = watch_brokers(lambda: told.append(True))["stats_cb"]
    assert callable(heard)
    for text in [_WITH_BROKER, _WITHOUT, _WITH_BROKER, _WITHOUT]:
        heard(text)
    assert told == []
    for _ in range(5):
        heard(_WITHOUT)
    assert told == [True]
