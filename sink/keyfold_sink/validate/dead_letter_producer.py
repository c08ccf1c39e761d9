"""Configure the producer of dead letters, and create the dead letter topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final, cast

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keyfold.errors import ConfigError, KeyfoldError
from keyfold_sink.config.client_checks import client_refusal
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.kafka.cluster import FORBIDDEN, GONE, REQUEST_TIMEOUT_S
from keyfold_sink.kafka.contact import NO_BROKERS, QUIET, BrokerContact, watch_brokers
from keyfold_sink.kafka.source import SourceUnavailable
from keyfold_sink.validate.dead_letter_topic import Producer

# The client's maximum: the broker's limit decides.
_LARGEST_MESSAGE_BYTES: Final = 1_000_000_000
_NAME_KEY: Final = "errors.deadletterqueue.topic.name"
_REPLICATION_KEY: Final = "errors.deadletterqueue.topic.replication.factor"


class DeadLetterTopicRefused(KeyfoldError):
    """The dead letter topic does not exist, and Kafka refuses to create or describe it."""


def producer_config(options: SinkOptions) -> dict[str, object]:
    """Return the producer's configuration: the consumer's connection, overrides, and settings the sink relies on."""
    return {
        "client.id": f"keyfold-sink-{options.name}-dead-letters",
        "linger.ms": 5,
        **QUIET,
        "message.max.bytes": _LARGEST_MESSAGE_BYTES,
        **options.producer_settings,
        "enable.idempotence": True,
        "acks": "all",
        "message.timeout.ms": 0,  # no time limit: wait for brokers that do not answer
    }


def open_producer(options: SinkOptions, on_error: Callable[[KafkaError], None]) -> Producer:
    """Open a producer. Raise `ConfigError` for keys or values that the client refuses.

    A producer that has forgotten all brokers reports that as a fatal error.
    """
    watch = watch_brokers(lambda: on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN, NO_BROKERS, True)))
    try:
        producer = confluent_kafka.Producer({**producer_config(options), "error_cb": on_error, **watch})
    except KafkaException as error:
        raise client_refusal("producer.override.", options.producer, error.args[0].str()) from error
    return cast("Producer", producer)


def ensure_topic(
    admin_config: Mapping[str, str],
    topic: str,
    replication_factor: int,
    contact: BrokerContact,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> bool:
    """Create the dead letter topic if it is missing, with one partition as in Connect. Return whether it was created.

    `timeout_s` is the time-out of each request.

    Raise `SourceUnavailable` (retriable), `SourceForbidden`, `DeadLetterTopicRefused`, or `ConfigError` for a
    replication factor that the cluster does not support.
    """
    settings: dict[str, Any] = {**QUIET, **admin_config, "error_cb": contact.on_error}
    try:
        admin = AdminClient(settings)
    except KafkaException as error:
        raise client_refusal("admin.override.", admin_config, error.args[0].str()) from error
    try:
        return _ensure(admin, topic, replication_factor, timeout_s)
    except SourceUnavailable as error:
        admin.poll(0)  # makes the client call its error callback
        refusal = contact.believed_refusal(waited_s=timeout_s)
        if refusal is None:
            raise
        raise refusal from error


def _ensure(admin: AdminClient, topic: str, replication_factor: int, timeout_s: float) -> bool:
    found = _asked(lambda: admin.describe_topics(TopicCollection([topic]), request_timeout=timeout_s)[topic], timeout_s)
    if found is None:
        return False
    if found.code() not in GONE:
        raise _translated(topic, "describe", found)
    wanted = NewTopic(topic, num_partitions=1, replication_factor=replication_factor)
    refused = _asked(lambda: admin.create_topics([wanted], operation_timeout=timeout_s)[topic], timeout_s)
    if refused is None:
        return True
    if refused.code() == KafkaError.TOPIC_ALREADY_EXISTS:
        return False
    if refused.code() == KafkaError.INVALID_REPLICATION_FACTOR:
        raise ConfigError(
            _REPLICATION_KEY,
            f"the cluster cannot create {topic} with {replication_factor} replicas: {refused.str()}",
            hint="set it to at most the number of brokers, or create the topic yourself",
        )
    raise _translated(topic, "create", refused)


def _asked(ask: Callable[[], Future[object]], timeout_s: float) -> KafkaError | None:
    try:
        ask().result(timeout_s * 2)
    except KafkaException as error:
        return cast("KafkaError", error.args[0])
    except TimeoutError as error:
        raise SourceUnavailable("Kafka did not answer the request for the dead letter topic") from error
    return None


def _translated(topic: str, what: str, error: KafkaError) -> KeyfoldError:
    if error.code() in FORBIDDEN or error.code() == KafkaError.POLICY_VIOLATION:
        return DeadLetterTopicRefused(
            f"Kafka refuses to {what} the dead letter topic {topic} ({_NAME_KEY}): {error.str()}",
            hint="create the topic, or give the sink's user the rights to describe, create and write it",
        )
    return SourceUnavailable(f"Kafka could not {what} the dead letter topic {topic}: {error.str()}")
