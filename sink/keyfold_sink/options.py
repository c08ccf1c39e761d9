"""The sink's configuration: Kafka Connect's names for what Connect has, Kafka's for what the log does.

Keys of the Kafka clients pass through as `consumer.override.*` and `admin.override.*`, but for those that the sink
stands on (where to begin, what is committed when): they are errors here and not silent surprises later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, Literal

from keyfold.errors import ConfigError
from keyfold.log.names import is_topic_name
from keyfold.options import Count, Flag, Millis, Names, Overrides, SecretStr, StoreOptions, option
from keyfold.store.s3 import S3Location
from keyfold_sink.budget import MIN_BUFFER_MEMORY
from keyfold_sink.rest.addresses import DEFAULT_LISTENER, parse_listeners, require_token
from keyfold_sink.rolling import RollPolicy
from keyfold_sink.source import GapPolicy

Codec = Literal["zstandard", "snappy", "deflate", "null"]

BYTES_CONVERTERS: Final = frozenset(
    {
        "bytes",
        "ByteArrayConverter",
        "org.apache.kafka.connect.converters.ByteArrayConverter",
    }
)
# A request that hangs holds up a shutdown for as long.
_STORE_TIMEOUT_S: Final = 30
_OTHER_CONVERTERS: Final = ("string", "json", "avro", "String", "Json", "Avro")

# What the sink decides by itself, and why.
_OWNED_CONSUMER_KEYS: Final = {
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


class SinkOptions(StoreOptions):
    """One sink: a connector in Connect's words."""

    name: str = option("name", doc="Name of the sink; its consumer group is connect-<name>.", importance="high")
    bootstrap_servers: str = option(
        "bootstrap.servers", doc="Kafka brokers, host:port separated by commas.", importance="high", min_length=1
    )
    topics: Names = option("topics", (), doc="Topics, separated by commas.", importance="high")
    topics_regex: str | None = option(
        "topics.regex", None, doc="Topics by a regular expression that matches the whole name.", importance="high"
    )
    tasks_max: int = option(
        "tasks.max", 1, doc="Processes; each takes its share of the partitions.", importance="high", ge=1, le=256
    )
    connector_class: str | None = option(
        "connector.class", None, doc="Accepted for Connect's sake and ignored.", importance="low"
    )
    key_converter: str = option(
        "key.converter", "bytes", doc="What a key must be. Now: bytes (Connect's ByteArrayConverter), no check."
    )
    value_converter: str = option(
        "value.converter", "bytes", doc="What a value must be. Now: bytes (Connect's ByteArrayConverter), no check."
    )
    errors_tolerance: str = option(
        "errors.tolerance", "none", doc="Now: none. A record that cannot be written ends the task."
    )
    segment_bytes: int = option(
        "segment.bytes",
        128 * 1024 * 1024,
        doc="Finish a segment at about this many stored bytes. Larger: fewer objects. Smaller: less to read again.",
        per_topic=True,
        ge=1024,
    )
    segment_ms: int = option(
        "segment.ms",
        300_000,
        doc="Finish a segment this long after its first record, also when the topic is silent: how far the log may be "
        "behind.",
        importance="high",
        per_topic=True,
        ge=100,
    )
    flush_size: Count = option(
        "flush.size", 0, doc="Finish a segment after this many records; 0: never.", per_topic=True
    )
    buffer_memory: int = option(
        "buffer.memory",
        256 * 1024 * 1024,
        doc="Memory of one task for records on their way, over all its partitions, the Kafka client's queue included.",
        ge=MIN_BUFFER_MEMORY,
    )
    avro_codec: Codec = option("avro.codec", "zstandard", doc="Compression of segments.")
    source_gap_policy: GapPolicy = option(
        "source.gap.policy",
        GapPolicy.FAIL,
        doc="When the topic has lost records that the log does not have: fail, or record the gap in the log and go on.",
    )
    offset_flush_interval_ms: int = option(
        "offset.flush.interval.ms", 1000, doc="How often group offsets are committed, for lag monitoring.", ge=10
    )
    offset_flush_timeout_ms: Millis = option(
        "offset.flush.timeout.ms",
        30_000,
        doc="How long a partition that is taken away may flush; what is not committed then is read again by its new "
        "owner.",
    )
    shutdown_timeout_ms: Millis = option(
        "task.shutdown.graceful.timeout.ms", 25_000, doc="How long a task may flush when it is told to stop."
    )
    task_hang_timeout_ms: int = option(
        "task.hang.timeout.ms",
        300_000,
        doc="A task that has not reported for this long is killed and replaced. Must exceed offset.flush.timeout.ms.",
        ge=1000,
    )
    worker_id: str | None = option(
        "worker.id",
        None,
        doc="What this worker is known by; each needs its own. Default: host:port of its REST API.",
        importance="low",
        min_length=1,
        max_length=200,
    )
    header_converter: str = option("header.converter", "bytes", doc="Headers are kept as they are.", importance="low")
    tasks_max_enforce: Flag = option(
        "tasks.max.enforce", True, doc="Accepted for Connect's sake and ignored.", importance="low"
    )
    listeners: Names = option(
        "listeners",
        (DEFAULT_LISTENER,),
        doc="Where the REST API listens, http://host:port separated by commas; port 0: any free one; empty: no API. If "
        "the default's port is taken, another free one is used. Any address but loopback needs rest.token.",
    )
    rest_token: SecretStr | None = option(
        "rest.token",
        None,
        doc="Who calls the REST API sends it (Authorization: Bearer, or as the password of Basic); health, readiness "
        "and metrics need none. Write it as ${env:...} or ${file:...}, not in the file.",
    )
    rest_advertised_host_name: str | None = option(
        "rest.advertised.host.name",
        None,
        doc="The host that workers are known by (worker_id). Default: the machine's name.",
        importance="low",
        min_length=1,
    )
    rest_advertised_port: int | None = option(
        "rest.advertised.port",
        None,
        doc="The port that workers are known by. Default: the first listener's.",
        importance="low",
        ge=1,
        le=65535,
    )
    consumer: Overrides = option("consumer.override.*", Overrides(), doc="Passed to the consumer.", importance="low")
    admin: Overrides = option("admin.override.*", Overrides(), doc="Passed to the admin client.", importance="low")

    def model_post_init(self, context: Any, /) -> None:
        """Check what hangs together. Raises `ConfigError`."""
        super().model_post_init(context)
        _check_name(self.name)
        _check_topics(self.topics, self.topics_regex)
        for key in ("key.converter", "value.converter", "header.converter"):
            _check_converter(key, getattr(self, key.replace(".", "_")))
        if self.errors_tolerance != "none":
            raise ConfigError(
                "errors.tolerance",
                f"must be none, not {self.errors_tolerance!r}: bytes are not checked, so there is nothing to tolerate",
            )
        if self.task_hang_timeout_ms <= self.offset_flush_timeout_ms:
            raise ConfigError(
                "task.hang.timeout.ms",
                f"must exceed offset.flush.timeout.ms ({self.offset_flush_timeout_ms}): a task is silent that long",
            )
        token = self.rest_token
        require_token(parse_listeners(self.listeners), None if token is None else token.get_secret_value())
        for key in self.consumer:
            if key in _OWNED_CONSUMER_KEYS:
                raise ConfigError(f"consumer.override.{key}", f"cannot be set: {_OWNED_CONSUMER_KEYS[key]}")

    @property
    def group_id(self) -> str:
        """The consumer group, named as Connect names it."""
        return f"connect-{self.name}"

    @property
    def location(self) -> S3Location:
        """Where the bucket is."""
        secret = self.secret_access_key
        return S3Location(
            bucket=self.bucket,
            region=self.region,
            endpoint_url=self.store_url,
            access_key_id=self.access_key_id,
            secret_access_key=None if secret is None else secret.get_secret_value(),
            read_timeout_s=_STORE_TIMEOUT_S,
        )

    def for_task(self, number: int) -> SinkOptions:
        """The options of one of several tasks: a static member of the group must have an id of its own."""
        own_id = self.consumer.get("group.instance.id")
        if own_id is None or self.tasks_max == 1:
            return self
        consumer = Overrides({**self.consumer, "group.instance.id": f"{own_id}-{number}"})
        return self.model_copy(update={"consumer": consumer})

    def roll_policy(self, topic: str) -> RollPolicy:
        """When segments of this topic are finished."""
        own = self.for_topic(topic)
        return RollPolicy(own.segment_bytes, own.segment_ms, own.flush_size)

    def choose_topics(self, existing: Iterable[str]) -> list[str]:
        """The topics to read: as listed, or those of `existing` that match, in name order."""
        if self.topics_regex is None:
            return list(self.topics)
        pattern = re.compile(self.topics_regex)
        return sorted(topic for topic in existing if pattern.fullmatch(topic))


def _check_name(name: str) -> None:
    if not name.strip() or any(ord(sign) < 32 for sign in name):
        raise ConfigError("name", "must not be empty or hold control characters")


def _check_topics(topics: tuple[str, ...], regex: str | None) -> None:
    if bool(topics) == bool(regex):
        found = "neither is there" if not topics else "both are there"
        raise ConfigError("topics", f"exactly one of `topics` and `topics.regex` is needed, {found}")
    for topic in topics:
        if not is_topic_name(topic):
            raise ConfigError("topics", f"{topic!r} is no name that Kafka accepts for a topic")
    if len(set(topics)) != len(topics):
        raise ConfigError("topics", "names a topic twice")
    if regex:
        try:
            re.compile(regex)
        except re.error as error:
            raise ConfigError("topics.regex", f"is no regular expression: {error}") from error


def _check_converter(key: str, value: str) -> None:
    if value in BYTES_CONVERTERS or (key == "header.converter" and "." in value):
        return
    known = any(other in value for other in _OTHER_CONVERTERS)
    what = "is not supported yet" if known else "is no converter that the sink knows"
    raise ConfigError(
        key,
        f"{value!r} {what}",
        hint="use bytes (org.apache.kafka.connect.converters.ByteArrayConverter): the log holds the original bytes "
        "in any case, readers give them their types",
    )
