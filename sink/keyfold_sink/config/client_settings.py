"""Keys of the Kafka clients: those that the sink sets itself, and those of Java's clients.

The clients are librdkafka's. Most of their keys are named as in Java's clients, which users of Connect know. Keys with
another name are translated. For keys without a counterpart the error says what to do instead. librdkafka itself checks
whether it knows a key and accepts the value (`keyfold_sink.config.client_checks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from keyfold.errors import ConfigError
from keyfold.kafka.java_client_keys import JAAS, SAME_AS, translated, user_of_jaas

__all__ = [
    "NO_COUNTERPART",
    "OWNED_BY_ALL",
    "OWNED_BY_CONSUMER",
    "OWNED_BY_PRODUCER",
    "SAME_AS",
    "SECURITY_PREFIXES",
    "is_told_apart",
    "mistakes_in",
    "translated",
]

SECURITY_PREFIXES: Final = ("sasl.", "ssl.", "security.")
"""Keys about connections. The consumer's values apply to the other clients, too."""

OWNED_BY_ALL: Final = {
    "bootstrap.servers": "all clients use the same cluster, which is set by bootstrap.servers at the top level",
    "metadata.broker.list": "all clients use the same cluster, which is set by bootstrap.servers at the top level",
}
OWNED_BY_CONSUMER: Final = {
    **OWNED_BY_ALL,
    "group.id": "the consumer group is connect-<name>",
    "group.protocol": "the sink joins as a classic group",
    "enable.auto.commit": "group offsets follow the manifest",
    "enable.auto.offset.store": "group offsets follow the manifest",
    "auto.offset.reset": "the sink starts at the manifest's offset, and a new log at the earliest offset",
    "isolation.level": "the log contains committed records only",
    "enable.partition.eof": "the sink always sets it",
    "partition.assignment.strategy": "the sink rebalances cooperatively",
    "queued.max.messages.kbytes": "the value is a share of buffer.memory",
    "queued.min.messages": "the value is a share of buffer.memory",
    "fetch.max.bytes": "the value is a share of buffer.memory",
}
OWNED_BY_PRODUCER: Final = {
    **OWNED_BY_ALL,
    "acks": "offsets pass a record only after all replicas have its dead letter",
    "request.required.acks": "offsets pass a record only after all replicas have its dead letter",
    "enable.idempotence": "dead letters are written once and in order",
    "transactional.id": "dead letters need no transaction",
    "message.timeout.ms": "sending a dead letter is retried without limit",
    "delivery.timeout.ms": "sending a dead letter is retried without limit",
}
# Values that the sink sets anyway, so a configuration may repeat them.
_SAID_ANYWAY: Final = {
    ("enable.auto.commit", "false"),
    ("isolation.level", "read_committed"),
    ("auto.offset.reset", "earliest"),
    ("acks", "all"),
    ("acks", "-1"),
    ("enable.idempotence", "true"),
}

_PEM_HINT: Final = (
    "export its certificates to a PEM file (keytool -exportcert -rfc -alias <alias> -keystore <store>) and set "
    "ssl.ca.location to it"
)
NO_COUNTERPART: Final = {
    "max.poll.records": ("the client has no polls of a set size; buffer.memory limits batches", "remove it"),
    "default.api.timeout.ms": (
        "each call has its own timeout",
        "remove it, or set socket.timeout.ms",
    ),
    "key.deserializer": ("records are stored as bytes", "remove it"),
    "value.deserializer": ("records are stored as bytes", "remove it"),
    "interceptor.classes": ("librdkafka cannot run Java's interceptors", "remove it"),
    "metric.reporters": ("librdkafka cannot run Java's reporters", "remove it; the sink serves metrics for Prometheus"),
    "ssl.truststore.location": ("librdkafka cannot read Java's trust stores", _PEM_HINT),
    "ssl.truststore.password": ("librdkafka cannot read Java's trust stores", "set ssl.ca.location to a PEM file"),
    "ssl.truststore.type": ("librdkafka cannot read Java's trust stores", "set ssl.ca.location to a PEM file"),
    "ssl.keystore.type": ("ssl.keystore.location is always PKCS#12", "remove it"),
    "ssl.protocol": ("client and broker negotiate the TLS version", "remove it"),
    "ssl.enabled.protocols": ("client and broker negotiate the TLS version", "remove it"),
    "sasl.login.callback.handler.class": ("librdkafka cannot run Java's classes", "set sasl.oauthbearer.method=oidc"),
    "sasl.client.callback.handler.class": ("librdkafka cannot run Java's classes", "set sasl.oauthbearer.method=oidc"),
    "max.block.ms": ("the producer never blocks", "remove it"),
    "buffer.memory": ("the producer's queue has a limit of its own", "set queue.buffering.max.kbytes"),
}


def is_told_apart(key: str) -> bool:
    """Return whether `mistakes_in` reports a key, so that the client does not need to check it."""
    return key in NO_COUNTERPART or key == JAAS


def mistakes_in(prefix: str, settings: Mapping[str, str], owned: Mapping[str, str]) -> Iterator[ConfigError]:
    """Yield the mistakes that need no client: keys that the sink sets itself, and Java's keys without a counterpart."""
    for key, value in settings.items():
        if key in owned and (key, value.strip().lower()) not in _SAID_ANYWAY:
            yield ConfigError(f"{prefix}{key}", f"cannot be set: {owned[key]}", hint="remove it")
        elif key in NO_COUNTERPART:
            why, what = NO_COUNTERPART[key]
            yield ConfigError(f"{prefix}{key}", f"is not supported: {why}", hint=what)
        elif key in SAME_AS and SAME_AS[key] in settings:
            yield ConfigError(
                f"{prefix}{key}", f"means the same as `{SAME_AS[key]}`, and both are set", hint="set one of them"
            )
        elif key == JAAS and user_of_jaas(value) is None:
            yield ConfigError(
                f"{prefix}{key}",
                "is not supported: only PlainLoginModule and ScramLoginModule with username and password are",
                hint="set sasl.username and sasl.password instead",
            )
