"""Configure the sink's Kafka clients, and open the consumer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from keyfold.errors import ConfigError
from keyfold_sink.config.client_checks import client_refusal
from keyfold_sink.config.memory_plan import MemoryPlan
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.kafka.client import GroupConsumer, OnCommit
from keyfold_sink.kafka.contact import NO_BROKERS, QUIET, BrokerContact, watch_brokers
from keyfold_sink.kafka.source import SourceForbidden

# With librdkafka's default of a second, the sink is idle after its queue was full for a moment.
_FETCH_BACKOFF_MS: Final = 5
# The client does not report an unknown topic for this time after it first saw it, as its creation may still be in
# progress. librdkafka's default of 30 s would hide a topic that is deleted soon after the sink has started.
_TOPIC_PROPAGATION_MS: Final = 5000
_PARTITION_FETCH_BYTES: Final = 1024 * 1024
_RECEIVE: Final = "receive.message.max.bytes"
_LEAST_RECEIVE_BYTES: Final = 100_000_000


def consumer_config(options: SinkOptions, plan: MemoryPlan) -> dict[str, object]:
    """Return the consumer's configuration: the user's overrides, then the settings that the sink relies on."""
    return {
        "client.id": f"keyfold-sink-{options.name}",
        "fetch.queue.backoff.ms": _FETCH_BACKOFF_MS,
        "topic.metadata.propagation.max.ms": _TOPIC_PROPAGATION_MS,
        "max.partition.fetch.bytes": min(_PARTITION_FETCH_BYTES, plan.fetch_bytes),
        **QUIET,
        **options.consumer_settings,
        "group.id": options.group_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "partition.assignment.strategy": "cooperative-sticky",
        "queued.max.messages.kbytes": plan.queue_bytes // 1024,
        "queued.min.messages": plan.queue_records,
        "fetch.max.bytes": plan.fetch_bytes,
        # A record larger than one fetch still arrives; the client only requires that this limit is the larger one.
        _RECEIVE: max(_LEAST_RECEIVE_BYTES, plan.fetch_bytes + 1024 * 1024, _receive_bytes(options)),
    }


def _receive_bytes(options: SinkOptions) -> int:
    text = options.consumer_settings.get(_RECEIVE, "0")
    if not text.isdecimal():
        raise ConfigError(f"consumer.override.{_RECEIVE}", f"must be a number of bytes, not {text!r}")
    return int(text)


def admin_config(options: SinkOptions) -> dict[str, str]:
    """Return the admin client's configuration, which shares the consumer's connection settings."""
    return options.admin_settings


def open_consumer(
    options: SinkOptions,
    plan: MemoryPlan,
    on_commit: OnCommit,
    on_error: Callable[[KafkaError], None],
    contact: BrokerContact,
) -> GroupConsumer:
    """Open a consumer, not subscribed yet. Raise `ConfigError` for keys or values that the client refuses.

    Its `consume` raises `SourceForbidden` once brokers have refused the credentials or TLS for longer than a restart of
    brokers explains, and `KafkaException` once the client has forgotten all brokers.
    """
    settings = consumer_config(options, plan)

    def committed(error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        if error is None:
            contact.answered()
        on_commit(error, offsets)

    said: list[SourceForbidden] = []

    def heard(error: KafkaError) -> None:
        contact.on_error(error)
        on_error(error)
        refusal = contact.believed_refusal()
        if refusal is not None and not said:  # once, as this is also called while the consumer is closed
            said.append(refusal)
            raise refusal

    def none_left() -> None:
        raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN, NO_BROKERS))

    callbacks: dict[str, object] = {"on_commit": committed, "error_cb": heard, **watch_brokers(none_left)}
    try:
        consumer = Consumer({**settings, **callbacks})
    except KafkaException as error:
        raise client_refusal("consumer.override.", options.consumer, error.args[0].str()) from error
    return cast("GroupConsumer", consumer)  # its stubs declare the same calls as overloads
