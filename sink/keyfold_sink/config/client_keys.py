"""Keys that go to the Kafka clients: which the sink sets by itself, Java's that mean something here, and the rest.

The clients are librdkafka's. Most of their keys are named like the Java client's, which users of Connect know; where
the same thing has another name it is translated, and where it has no counterpart the refusal says what to do instead.
Whether librdkafka knows a key and takes its value is asked of itself (`keyfold_sink.config.client_checks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from keyfold.errors import ConfigError
from keyfold.kafka.client_keys import JAAS, SAME_AS, translated, user_of_jaas

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
"""Keys that say how to connect: what the consumer is told holds for the other clients too."""

OWNED_BY_ALL: Final = {
    "bootstrap.servers": "all clients speak to the same cluster, that of bootstrap.servers at the top",
    "metadata.broker.list": "all clients speak to the same cluster, that of bootstrap.servers at the top",
}
OWNED_BY_CONSUMER: Final = {
    **OWNED_BY_ALL,
    "group.id": "it is connect-<name>",
    "group.protocol": "the sink joins as a classic group",
    "enable.auto.commit": "group offsets follow the manifest",
    "enable.auto.offset.store": "group offsets follow the manifest",
    "auto.offset.reset": "the manifest says where to begin; a new log begins at the earliest offset",
    "isolation.level": "the log holds committed records only",
    "enable.partition.eof": "the sink needs it",
    "partition.assignment.strategy": "the sink rebalances cooperatively",
    "queued.max.messages.kbytes": "it is a share of buffer.memory",
    "queued.min.messages": "it is a share of buffer.memory",
    "fetch.max.bytes": "it is a share of buffer.memory",
}
OWNED_BY_PRODUCER: Final = {
    **OWNED_BY_ALL,
    "acks": "offsets pass a record only when all replicas have its dead letter",
    "request.required.acks": "offsets pass a record only when all replicas have its dead letter",
    "enable.idempotence": "dead letters are written once and in order",
    "transactional.id": "dead letters need no transaction",
    "message.timeout.ms": "a dead letter is tried for as long as it takes",
    "delivery.timeout.ms": "a dead letter is tried for as long as it takes",
}
# What Connect would set by itself, too, and what is harmless to repeat.
_SAID_ANYWAY: Final = {
    ("enable.auto.commit", "false"),
    ("isolation.level", "read_committed"),
    ("auto.offset.reset", "earliest"),
    ("acks", "all"),
    ("acks", "-1"),
    ("enable.idempotence", "true"),
}

_PEM_HINT: Final = (
    "write its certificates to a PEM file (keytool -exportcert -rfc -alias <alias> -keystore <store>) and name it in "
    "ssl.ca.location"
)
NO_COUNTERPART: Final = {
    "max.poll.records": ("there are no polls: batches follow buffer.memory", "take it out"),
    "default.api.timeout.ms": (
        "calls have their own time-outs here",
        "take it out, or set socket.timeout.ms",
    ),
    "key.deserializer": ("records are kept as bytes", "take it out"),
    "value.deserializer": ("records are kept as bytes", "take it out"),
    "interceptor.classes": ("Java's interceptors cannot run here", "take it out"),
    "metric.reporters": ("Java's reporters cannot run here", "take it out; the sink serves metrics for Prometheus"),
    "ssl.truststore.location": ("Java's trust stores cannot be read", _PEM_HINT),
    "ssl.truststore.password": ("Java's trust stores cannot be read", "name a PEM file in ssl.ca.location"),
    "ssl.truststore.type": ("Java's trust stores cannot be read", "name a PEM file in ssl.ca.location"),
    "ssl.keystore.type": ("ssl.keystore.location is always PKCS#12 here", "take it out"),
    "ssl.protocol": ("the TLS version is agreed upon", "take it out"),
    "ssl.enabled.protocols": ("the TLS version is agreed upon", "take it out"),
    "sasl.login.callback.handler.class": ("Java's classes cannot run here", "use sasl.oauthbearer.method=oidc"),
    "sasl.client.callback.handler.class": ("Java's classes cannot run here", "use sasl.oauthbearer.method=oidc"),
    "max.block.ms": ("nothing blocks in the producer here", "take it out"),
    "buffer.memory": ("the producer's queue has its own limits here", "use queue.buffering.max.kbytes"),
}


def is_told_apart(key: str) -> bool:
    """Whether `mistakes_in` has its say about a key, so that the client need not be asked."""
    return key in NO_COUNTERPART or key == JAAS


def mistakes_in(prefix: str, settings: Mapping[str, str], owned: Mapping[str, str]) -> Iterator[ConfigError]:
    """What can be told without asking the client: keys that the sink decides about, and Java's without counterpart."""
    for key, value in settings.items():
        if key in owned and (key, value.strip().lower()) not in _SAID_ANYWAY:
            yield ConfigError(f"{prefix}{key}", f"cannot be set: {owned[key]}", hint="take it out")
        elif key in NO_COUNTERPART:
            why, what = NO_COUNTERPART[key]
            yield ConfigError(f"{prefix}{key}", f"means nothing to this client: {why}", hint=what)
        elif key in SAME_AS and SAME_AS[key] in settings:
            yield ConfigError(
                f"{prefix}{key}", f"is `{SAME_AS[key]}` here, and both are given", hint="give one of them"
            )
        elif key == JAAS and user_of_jaas(value) is None:
            yield ConfigError(
                f"{prefix}{key}",
                "cannot be read: only PlainLoginModule and ScramLoginModule with username and password are understood",
                hint="set sasl.username and sasl.password instead",
            )
