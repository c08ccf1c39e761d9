"""Refusals are distinguished from unreachable brokers, and believed if they last."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from keyfold.runtime.clock import ManualClock
from keyfold_sink.kafka.contact import REFUSAL_LASTS_AT_FIRST_S, REFUSAL_LASTS_S, BrokerContact, why_refused

LOGIN = KafkaError(KafkaError._AUTHENTICATION, "sasl_plaintext://h:1/1: SASL SCRAM-SHA-256 mechanism handshake failed")
AWAY = KafkaError(KafkaError._TRANSPORT, "h:1/1: Connect to ipv4#127.0.0.1:1 failed: Connection refused")


@pytest.mark.parametrize(
    ("code", "text", "hint"),
    [
        (
            KafkaError._AUTHENTICATION,
            "sasl_plaintext://h:1/1: SASL authentication error: Invalid password (after 312ms in state AUTH_REQ)",
            "sasl.password",
        ),
        (
            KafkaError._SSL,
            "ssl://h:1/bootstrap: SSL handshake failed: error:0A000086:SSL routines::certificate verify failed",
            "ssl.ca.location",
        ),
        (KafkaError._SSL, "ssl://h:1: SSL handshake failed: SSL routines::wrong version number", "security.protocol"),
        (KafkaError._SSL, "ssl://h:1: SSL alert certificate required", "ssl.certificate.location"),
        (
            KafkaError._TRANSPORT,
            "ssl://h:1/1: Receive failed: error:0A000412:SSL routines::ssl/tls alert bad certificate: SSL alert 42",
            "ssl.certificate.location",
        ),
        (
            KafkaError._TRANSPORT,
            "ssl://h:1/1: SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener?",
            "security.protocol",
        ),
    ],
)
def test_a_refusal_says_what_to_check(code: int, text: str, hint: str) -> None:
    why = why_refused(KafkaError(code, text))
    assert why is not None
    assert hint in (why.hint or "")
    assert "in state" not in why.message
    assert not why.retriable


def test_an_unreachable_broker_is_not_a_refusal() -> None:
    clock = ManualClock()
    contact = BrokerContact(clock)
    for _ in range(1000):
        contact.on_error(AWAY)
        clock.sleep(1)
    assert contact.refusal() is None
    assert contact.believed_refusal() is None


def test_a_refusal_is_believed_when_it_lasts() -> None:
    clock = ManualClock()
    contact = BrokerContact(clock)
    contact.on_error(LOGIN)
    assert contact.refusal() is not None
    assert contact.believed_refusal() is None
    clock.sleep(REFUSAL_LASTS_AT_FIRST_S + 1)
    assert contact.believed_refusal() is None  # said once only
    assert contact.believed_refusal(waited_s=REFUSAL_LASTS_AT_FIRST_S) is not None
    contact.on_error(LOGIN)
    assert contact.believed_refusal() is not None


def test_brokers_that_have_answered_get_more_time_and_an_answer_clears_the_refusal() -> None:
    clock = ManualClock()
    contact = BrokerContact(clock)
    contact.answered()
    contact.on_error(LOGIN)
    clock.sleep(REFUSAL_LASTS_AT_FIRST_S + 1)
    contact.on_error(LOGIN)
    assert contact.believed_refusal() is None
    contact.answered()
    assert contact.refusal() is None
    contact.on_error(LOGIN)
    clock.sleep(REFUSAL_LASTS_S)
    contact.on_error(LOGIN)
    assert contact.believed_refusal() is not None
