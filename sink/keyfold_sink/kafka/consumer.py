"""How the sink sets up its Kafka clients: pure but for making the consumer itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from confluent_kafka import Consumer, KafkaError, KafkaException

from keyfold.errors import ConfigError
from keyfold_sink.config.client_checks import client_refusal
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.kafka.client import GroupConsumer
from keyfold_sink.kafka.contact import QUIET, Contact
from keyfold_sink.kafka.source import SourceForbidden
from keyfold_sink.writing.budget import MemoryPlan

# librdkafka's default of a second leaves the sink idle whenever its queue was full for a moment.
_FETCH_BACKOFF_MS: Final = 5
# Younger than this to the client, a topic that the brokers do not know is not reported: it may still be on its way to
# them. librdkafka's default of 30 s would hide one that is deleted soon after the sink has started.
_TOPIC_PROPAGATION_MS: Final = 5000
_PARTITION_FETCH_BYTES: Final = 1024 * 1024
_RECEIVE: Final = "receive.message.max.bytes"
_LEAST_RECEIVE_BYTES: Final = 100_000_000


def consumer_config(options: SinkOptions, plan: MemoryPlan) -> dict[str, Any]:
    """Configuration of the consumer; what the user overrides comes first, what the sink stands on wins."""
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
        # A record that is larger than one fetch still arrives; the client only wants this bound to be the larger one.
        _RECEIVE: max(_LEAST_RECEIVE_BYTES, plan.fetch_bytes + 1024 * 1024, _receive_bytes(options)),
    }


def _receive_bytes(options: SinkOptions) -> int:
    text = options.consumer_settings.get(_RECEIVE, "0")
    if not text.isdecimal():
        raise ConfigError(f"consumer.override.{_RECEIVE}", f"must be a number of bytes, not {text!r}")
    return int(text)


def admin_config(options: SinkOptions) -> dict[str, str]:
    """Configuration of the admin client; what connects the consumer connects it too."""
    return options.admin_settings


def open_consumer(
    options: SinkOptions,
    plan: MemoryPlan,
    on_commit: Callable[[Any, Any], None],
    on_error: Callable[[Any], None],
    contact: Contact,
) -> GroupConsumer:
    """A consumer that has not subscribed yet. Raises `ConfigError` for keys or values that the client refuses.

    Its `consume` raises `SourceForbidden` when brokers have refused credentials or TLS for so long that waiting does
    not help.
    """
    settings = consumer_config(options, plan)

    def committed(error: KafkaError | None, offsets: Any) -> None:
        if error is None:
            contact.answered()
        on_commit(error, offsets)

    said: list[SourceForbidden] = []

    def heard(error: KafkaError) -> None:
        contact.heard(error)
        on_error(error)
        refusal = contact.believed_refusal()
        if refusal is not None and not said:  # once: it is called while the consumer is closed, too
            said.append(refusal)
            raise refusal

    try:
        consumer = Consumer({**settings, "on_commit": committed, "error_cb": heard})
    except KafkaException as error:
        raise client_refusal("consumer.override.", options.consumer, error.args[0].str()) from error
    return cast("GroupConsumer", consumer)  # its stubs spell the same calls out as overloads
