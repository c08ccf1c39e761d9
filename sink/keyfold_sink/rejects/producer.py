"""How the dead letter topic's producer is set up, and how the topic comes to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keyfold.errors import ConfigError, KeyfoldError
from keyfold_sink.config.client_checks import client_refusal
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.kafka.cluster import FORBIDDEN, GONE, REQUEST_TIMEOUT_S
from keyfold_sink.kafka.contact import QUIET, Contact
from keyfold_sink.kafka.source import SourceUnavailable
from keyfold_sink.rejects.dead_letters import Producer

# The largest that the client allows: the broker decides what is too large.
_LARGEST_MESSAGE_BYTES: Final = 1_000_000_000
_NAME_KEY: Final = "errors.deadletterqueue.topic.name"
_REPLICATION_KEY: Final = "errors.deadletterqueue.topic.replication.factor"


class LetterTopicRefused(KeyfoldError):
    """The dead letter topic is not there, and Kafka refuses to make it, or to tell about it."""


def producer_config(options: SinkOptions) -> dict[str, Any]:
    """Configuration of the producer; what connects the consumer connects it too, what the sink stands on wins."""
    return {
        "client.id": f"keyfold-sink-{options.name}-dead-letters",
        "linger.ms": 5,
        **QUIET,
        "message.max.bytes": _LARGEST_MESSAGE_BYTES,
        **options.producer_settings,
        "enable.idempotence": True,
        "acks": "all",
        "message.timeout.ms": 0,  # no end: a broker that is away is waited for
    }


def open_producer(options: SinkOptions, on_error: Callable[[KafkaError], None]) -> Producer:
    """A producer. Raises `ConfigError` for keys or values that the client refuses."""
    try:
        producer = confluent_kafka.Producer({**producer_config(options), "error_cb": on_error})
    except KafkaException as error:
        raise client_refusal("producer.override.", options.producer, error.args[0].str()) from error
    return cast("Producer", producer)


def ensure_topic(
    admin_config: Mapping[str, str],
    topic: str,
    replication_factor: int,
    contact: Contact,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> bool:
    """Make the dead letter topic, with one partition as Connect does, unless it is there. Returns whether it was made.

    `timeout_s` is the time-out of each request.

    Raises `SourceUnavailable` (ask again), `SourceForbidden`, `LetterTopicRefused`, and `ConfigError` for a replication
    factor that the cluster cannot have.
    """
    settings: dict[str, Any] = {**QUIET, **admin_config, "error_cb": contact.heard}
    try:
        admin = AdminClient(settings)
    except KafkaException as error:
        raise client_refusal("admin.override.", admin_config, error.args[0].str()) from error
    try:
        return _ensure(admin, topic, replication_factor, timeout_s)
    except SourceUnavailable as error:
        admin.poll(0)  # what brokers have against us is told on this call
        refusal = contact.believed_refusal(waited_s=timeout_s)
        if refusal is None:
            raise
        raise refusal from error


def _ensure(admin: AdminClient, topic: str, replication_factor: int, timeout_s: float) -> bool:
    found = _asked(lambda: admin.describe_topics(TopicCollection([topic]), request_timeout=timeout_s)[topic], timeout_s)
    if found is None:
        return False
    if found.code() not in GONE:
        raise _translated(topic, "tell about", found)
    wanted = NewTopic(topic, num_partitions=1, replication_factor=replication_factor)
    refused = _asked(lambda: admin.create_topics([wanted], operation_timeout=timeout_s)[topic], timeout_s)
    if refused is None:
        return True
    if refused.code() == KafkaError.TOPIC_ALREADY_EXISTS:
        return False
    if refused.code() == KafkaError.INVALID_REPLICATION_FACTOR:
        raise ConfigError(
            _REPLICATION_KEY,
            f"the cluster cannot keep {topic} in {replication_factor} copies: {refused.str()}",
            hint="set it to at most the number of brokers, or make the topic yourself",
        )
    raise _translated(topic, "make", refused)


def _asked(ask: Callable[[], Any], timeout_s: float) -> KafkaError | None:
    try:
        ask().result(timeout_s * 2)
    except KafkaException as error:
        return cast("KafkaError", error.args[0])
    except TimeoutError as error:
        raise SourceUnavailable("Kafka did not answer about the dead letter topic") from error
    return None


def _translated(topic: str, what: str, error: KafkaError) -> KeyfoldError:
    if error.code() in FORBIDDEN or error.code() == KafkaError.POLICY_VIOLATION:
        return LetterTopicRefused(
            f"Kafka refuses to {what} the dead letter topic {topic} ({_NAME_KEY}): {error.str()}",
            hint="make the topic, or give the sink's user the rights to describe, create and write it",
        )
    return SourceUnavailable(f"Kafka could not {what} the dead letter topic {topic}: {error.str()}")
