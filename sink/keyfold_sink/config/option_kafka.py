"""The sink's options about Kafka: brokers, topics, and settings of the Kafka clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from keyfold.config.options import Names, Options, Overrides, option
from keyfold.config.topic_pattern import topic_pattern
from keyfold.errors import ConfigError
from keyfold.log.names import is_topic_name
from keyfold_sink.config.client_settings import (
    OWNED_BY_ALL,
    OWNED_BY_CONSUMER,
    OWNED_BY_PRODUCER,
    SECURITY_PREFIXES,
    mistakes_in,
    translated,
)

_common = partial(option, group="Common", importance="high")
_kafka = partial(option, group="Kafka")


class KafkaOptions(Options):
    """Brokers, topics, clients."""

    name: str = _common("name", doc="Name of the sink. Its consumer group is connect-<name>.")
    topics: Names = _common("topics", (), doc="Topics to read, separated by commas. Set this or topics.regex.")
    topics_regex: str | None = _common(
        "topics.regex", None, doc="Topics to read: a regular expression that must match the whole name."
    )
    bootstrap_servers: str = _kafka(
        "bootstrap.servers",
        doc="Kafka brokers, host:port separated by commas. Connect has this key in the worker's file.",
        missing="Connect has this key in the worker's file; add it to this file",
        importance="high",
        min_length=1,
        kind="LIST",
    )
    security_protocol: str | None = _kafka(
        "security.protocol",
        None,
        doc="Protocol of the connections to the brokers. Default: PLAINTEXT. This key, sasl.* and ssl.* apply to all "
        "Kafka clients; overrides take precedence.",
        recommended=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        dependents=("sasl.*", "ssl.*"),
    )
    sasl: Overrides = _kafka(
        "sasl.*",
        Overrides(),
        doc="Credentials for Kafka, in librdkafka's names: sasl.mechanism, sasl.username, sasl.password. Java's "
        "sasl.jaas.config is accepted for PLAIN and SCRAM.",
    )
    ssl: Overrides = _kafka(
        "ssl.*",
        Overrides(),
        doc="TLS to Kafka, in librdkafka's names: ssl.ca.location (PEM), ssl.certificate.location with "
        "ssl.key.location, or ssl.keystore.location (PKCS#12).",
    )
    consumer: Overrides = _kafka("consumer.override.*", Overrides(), doc="Settings of the consumer.", importance="low")
    producer: Overrides = _kafka(
        "producer.override.*", Overrides(), doc="Settings of the producer of dead letters.", importance="low"
    )
    admin: Overrides = _kafka("admin.override.*", Overrides(), doc="Settings of the admin client.", importance="low")

    @property
    def group_id(self) -> str:
        """The consumer group, named as Connect names it."""
        return f"connect-{self.name}"

    @property
    def consumer_settings(self) -> dict[str, str]:
        """The user's settings of the consumer, in librdkafka's names."""
        return self._connecting() | translated(self.consumer)

    @property
    def producer_settings(self) -> dict[str, str]:
        """The user's settings of the producer, and the consumer's settings about connections."""
        return self._connecting() | self._shared() | translated(self.producer)

    @property
    def admin_settings(self) -> dict[str, str]:
        """The user's settings of the admin client, and the consumer's settings about connections."""
        return self._connecting() | self._shared() | translated(self.admin)

    def contradictions(self) -> Iterator[ConfigError]:
        """See `Options.contradictions`."""
        yield from super().contradictions()
        if not self.name.strip() or any(ord(sign) < 32 for sign in self.name):
            yield ConfigError("name", "must not be empty or contain control characters")
        yield from _topic_mistakes(self.topics, self.topics_regex)
        yield from mistakes_in("consumer.override.", self.consumer, OWNED_BY_CONSUMER)
        yield from mistakes_in("producer.override.", self.producer, OWNED_BY_PRODUCER)
        yield from mistakes_in("admin.override.", self.admin, OWNED_BY_ALL)
        yield from mistakes_in("", self._security(), {})

    def _security(self) -> dict[str, str]:
        protocol = {} if self.security_protocol is None else {"security.protocol": self.security_protocol}
        return protocol | _prefixed("sasl.", self.sasl) | _prefixed("ssl.", self.ssl)

    def _connecting(self) -> dict[str, str]:
        return {"bootstrap.servers": self.bootstrap_servers} | translated(self._security())

    def _shared(self) -> dict[str, str]:
        return {
            key: value
            for key, value in translated(self.consumer).items()
            if key.startswith((*SECURITY_PREFIXES, "broker.address.", "socket.", "client.dns"))
        }


def _prefixed(prefix: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix}{key}": value for key, value in settings.items()}


def _topic_mistakes(topics: tuple[str, ...], regex: str | None) -> Iterator[ConfigError]:
    if bool(topics) == bool(regex):
        found = "neither is set" if not topics else "both are set"
        yield ConfigError("topics", f"exactly one of `topics` and `topics.regex` is required; {found}")
    for topic in topics:
        if not is_topic_name(topic):
            yield ConfigError("topics", f"{topic!r} is not a valid topic name")
    if len(set(topics)) != len(topics):
        yield ConfigError("topics", "contains a topic twice")
    if regex:
        try:
            topic_pattern(regex)
        except ConfigError as mistake:
            yield mistake
