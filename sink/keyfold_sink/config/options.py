"""The sink's configuration: Kafka Connect's names for what Connect has, Kafka's for what the log does.

One table, in parts (`option_groups`, `option_kafka`), is parsed, documented (`make docs`), checked (`keyfold sink
validate`) and served to Connect's user interfaces (`connect_definitions`). Keys of Confluent's and Aiven's S3 sinks are
accepted if they mean the same, and otherwise refused with the reason (`aliases`). Keys of the Kafka clients pass
through as `consumer.override.*` and the like, except those whose values the sink decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import partial
from typing import Final

from keyfold.config.options import Codec, Count, Overrides, Rewritten, StoreOptions, option
from keyfold.config.topic_pattern import topic_pattern
from keyfold.errors import ConfigError
from keyfold.log.names import is_topic_name
from keyfold.store.api import StoreLocation
from keyfold.store.location import configured_location
from keyfold_sink.config.aliases import rewrite
from keyfold_sink.config.memory_plan import MIN_BUFFER_MEMORY
from keyfold_sink.config.option_groups import (
    ConnectOptions,
    ConverterOptions,
    ErrorOptions,
    MetricsOptions,
    RestOptions,
    TaskOptions,
)
from keyfold_sink.config.option_kafka import KafkaOptions
from keyfold_sink.config.rolling import RollPolicy

# A request that hangs delays a shutdown by this time.
_STORE_TIMEOUT_S: Final = 30

_log = partial(option, group="Log")


class GapPolicy(Enum):
    """What to do if the source no longer has records that the log lacks."""

    FAIL = "fail"
    RECORD = "record"


class LogOptions(StoreOptions):
    """How the log is written."""

    segment_bytes: int = _log(
        "segment.bytes",
        128 * 1024 * 1024,
        doc="Finish a segment at about this many stored bytes. Larger: fewer objects. Smaller: fewer records to read "
        "again after a failure.",
        per_topic=True,
        ge=1024,
    )
    segment_ms: int = _log(
        "segment.ms",
        300_000,
        doc="Finish a segment this long after its first record, even if no more records arrive. This limits how far "
        "the log is behind the topic.",
        importance="high",
        per_topic=True,
        ge=100,
    )
    flush_size: Count = _log(
        "flush.size", 0, doc="Finish a segment after this many records. 0: no limit.", per_topic=True
    )
    buffer_memory: int = _log(
        "buffer.memory",
        256 * 1024 * 1024,
        doc="Memory of one task for records in flight, over all its partitions and including the Kafka client's queue.",
        ge=MIN_BUFFER_MEMORY,
    )
    avro_codec: Codec = _log("avro.codec", "zstandard", doc="Compression of segments.")
    source_gap_policy: GapPolicy = _log(
        "source.gap.policy",
        GapPolicy.FAIL,
        doc="What to do if the topic has lost records that the log does not have. fail: the partition fails. record: "
        "the log records the gap, and the sink continues behind it.",
    )


class SinkOptions(
    MetricsOptions, RestOptions, TaskOptions, ErrorOptions, ConverterOptions, LogOptions, ConnectOptions, KafkaOptions
):
    """One sink: a connector in Connect's words."""

    @classmethod
    def rewrite(cls, values: Mapping[str, str]) -> Rewritten:
        """See `Options.rewrite`. Keys of other sinks are translated or refused."""
        return rewrite(values)

    def contradictions(self) -> Iterator[ConfigError]:
        """See `Options.contradictions`."""
        yield from super().contradictions()
        topic = self.dead_letter_topic
        if topic and not is_topic_name(topic):
            yield ConfigError(_DEAD_LETTERS, f"{topic!r} is not a valid topic name")
        elif topic in self.topics:
            yield ConfigError(
                _DEAD_LETTERS, f"{topic!r} is one of `topics`: the sink would read its dead letters again"
            )
        elif topic and self.topics_regex:
            yield from _reads_own_dead_letters(self.topics_regex, topic)

    @property
    def location(self) -> StoreLocation:
        """Where the bucket is."""
        return configured_location(self, read_timeout_s=_STORE_TIMEOUT_S)

    def for_task(self, number: int) -> SinkOptions:
        """Return the options of one task. With several tasks each static member of the group has its own id."""
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
        """Return the topics to read: those listed, or those of `existing` that match, in name order.

        Raise `ConfigError` if matching takes too long.
        """
        return list(self.topics) if self.topics_regex is None else topic_pattern(self.topics_regex).choose(existing)


_DEAD_LETTERS: Final = "errors.deadletterqueue.topic.name"


def _reads_own_dead_letters(regex: str, topic: str) -> Iterator[ConfigError]:
    try:
        pattern = topic_pattern(regex)
    except ConfigError:
        return  # reported for `topics.regex`
    try:
        if pattern.matches(topic):
            yield ConfigError(
                _DEAD_LETTERS, f"{topic!r} matches `topics.regex`: the sink would read its dead letters again"
            )
    except ConfigError as mistake:
        yield mistake
