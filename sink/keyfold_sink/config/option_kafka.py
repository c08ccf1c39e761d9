"""The sink's options about Kafka: where the brokers are, what is read, how its clients are set up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from keyfold.errors import ConfigError
from keyfold.log.names import is_topic_name
from keyfold.options import Names, Options, Overrides, option
from keyfold.topic_pattern import topic_pattern
from keyfold_sink.config.client_keys import (
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

    name: str = _common("name", doc="Name of the sink; its consumer group is connect-<name>.")
    topics: Names = _common("topics", (), doc="Topics, separated by commas.")
    topics_regex: str | None = _common(
        "topics.regex", None, doc="Topics by a regular expression that matches the whole name."
    )
    bootstrap_servers: str = _kafka(
        "bootstrap.servers",
        doc="Kafka brokers, host:port separated by commas. In Connect it stands in the worker's file.",
        missing="in Connect it stands in the worker's file: add it to this one",
        importance="high",
        min_length=1,
        kind="LIST",
    )
    security_protocol: str | None = _kafka(
        "security.protocol",
        None,
        doc="How the brokers are spoken to. Default: PLAINTEXT. This, sasl.* and ssl.* are for all clients; what an "
        "override says wins.",
        recommended=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        dependents=("sasl.*", "ssl.*"),
    )
    sasl: Overrides = _kafka(
        "sasl.*",
        Overrides(),
        doc="Credentials for Kafka, in librdkafka's names: sasl.mechanism, sasl.username, sasl.password. Java's "
        "sasl.jaas.config is understood for PLAIN and SCRAM.",
    )
    ssl: Overrides = _kafka(
        "ssl.*",
        Overrides(),
        doc="TLS to Kafka, in librdkafka's names: ssl.ca.location (PEM), ssl.certificate.location with "
        "ssl.key.location, or ssl.keystore.location (PKCS#12).",
    )
    consumer: Overrides = _kafka("consumer.override.*", Overrides(), doc="Passed to the consumer.", importance="low")
    producer: Overrides = _kafka(
        "producer.override.*", Overrides(), doc="Passed to the producer of dead letters.", importance="low"
    )
    admin: Overrides = _kafka("admin.override.*", Overrides(), doc="Passed to the admin client.", importance="low")

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
        """The user's settings of the producer; what connects the consumer connects it too."""
        return self._connecting() | self._shared() | translated(self.producer)

    @property
    def admin_settings(self) -> dict[str, str]:
        """The user's settings of the admin client; what connects the consumer connects it too."""
        return self._connecting() | self._shared() | translated(self.admin)

    def contradictions(self) -> Iterator[ConfigError]:
        """See `Options.contradictions`."""
        yield from super().contradictions()
        if not self.name.strip() or any(ord(sign) < 32 for sign in self.name):
            yield ConfigError("name", "must not be empty or hold control characters")
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
        found = "neither is there" if not topics else "both are there"
        yield ConfigError("topics", f"exactly one of `topics` and `topics.regex` is needed, {found}")
    for topic in topics:
        if not is_topic_name(topic):
            yield ConfigError("topics", f"{topic!r} is no name that Kafka accepts for a topic")
    if len(set(topics)) != len(topics):
        yield ConfigError("topics", "names a topic twice")
    if regex:
        try:
            topic_pattern(regex)
        except ConfigError as mistake:
            yield mistake
