"""The compactor's configuration: one table, Kafka's names for what Kafka has.

Per-topic values (`topic.<name>.<key>`) win over general ones, which win over what the sink followed from Kafka into
the manifest, which wins over the default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal, Self
from urllib.parse import urlsplit

from keyfold.errors import ConfigError
from keyfold.options import Codec, Count, Flag, Millis, Names, Overrides, option
from keyfold.store.location import configured_location
from keyfold.store.s3 import S3Location
from keyfold.topic_pattern import topic_pattern
from keyfold_compactor.option_parts import ProcessOptions, topic_mistakes
from keyfold_compactor.settings import LONG_MAX, Encoding, TopicSettings

MIB = 1024 * 1024


class CompactOptions(ProcessOptions):
    """What `keyfold compact` reads from its configuration file."""

    name: str = option("name", "keyfold-compactor", doc="Name of this compactor; stands in the leases it takes.")
    topics: Names = option("topics", (), doc="Topics to clean. Neither this nor topics.regex: all.", importance="high")
    topics_regex: str = option("topics.regex", "", doc="Regular expression over whole topic names.")

    cleanup_policy: str = option(
        "cleanup.policy",
        "delete",
        doc="`compact`, `delete` or both, by comma. Only logs with `compact` are cleaned. The sink follows it. "
        "`delete` counts only where it is set here: by the topic's own settings nothing is ever deleted.",
        importance="high",
        followed=True,
    )
    min_cleanable_dirty_ratio: float = option(
        "min.cleanable.dirty.ratio",
        0.5,
        doc="Clean a log when more than this share of its bytes is dirty. Low: less space, more bytes moved.",
        importance="high",
        followed=True,
        ge=0,
        le=1,
    )
    min_compaction_lag_ms: Millis = option(
        "min.compaction.lag.ms",
        0,
        doc="Records appended less than this ago are not cleaned: who reads within it sees every record.",
        followed=True,
    )
    max_compaction_lag_ms: int = option(
        "max.compaction.lag.ms",
        LONG_MAX,
        doc="A record appended longer ago than this is cleaned whatever the ratio, before all other logs.",
        followed=True,
        ge=1,
    )
    delete_retention_ms: Millis = option(
        "delete.retention.ms",
        86_400_000,
        doc="A tombstone stays readable this long after the pass that removed what it deletes.",
        followed=True,
    )
    retention_ms: int = option(
        "retention.ms",
        -1,
        doc="Segments appended, or with their newest record, longer ago than this go, whole and oldest first, where "
        "`cleanup.policy` is set here and holds `delete`. -1: never. Not taken from the topic.",
        per_topic=True,
        ge=-1,
    )
    retention_bytes: int = option(
        "retention.bytes",
        -1,
        doc="The oldest segments of a partition go while the rest has this many stored bytes, under the same "
        "condition. -1: no limit. Not taken from the topic.",
        per_topic=True,
        ge=-1,
    )
    segment_bytes: int = option(
        "segment.bytes", 128 * MIB, doc="Neighbouring segments are merged up to this size.", per_topic=True, ge=1
    )
    segment_merge_span_ms: Millis = option(
        "segment.merge.span.ms",
        86_400_000,
        doc="In logs that are only `delete`, small neighbours whose ages are counted from the same span of this length "
        "are merged. Retention takes whole segments, so a record may stay this much longer. 0: nothing is merged.",
        per_topic=True,
    )
    segment_min_garbage_ratio: float = option(
        "segment.min.garbage.ratio",
        0.0,
        doc="A segment of which cleaning would free a smaller share of bytes is left as it is: fewer bytes moved, more "
        "kept, deleted keys included, until more of it is garbage, `max.compaction.lag.ms` or `--force`. 0: as Kafka.",
        per_topic=True,
        ge=0,
        le=1,
    )
    file_delete_delay_ms: Millis = option(
        "file.delete.delay.ms",
        3_600_000,
        doc="Replaced objects stay this long for readers that still use them.",
        per_topic=True,
    )
    replica_hold_max_ms: Millis = option(
        "replica.hold.max.ms",
        604_800_000,
        doc="A tombstone past its delete horizon stays this much longer at most for a registered replica that has not "
        "received it; a replica that is later than that needs a resync. 0: nothing waits for replicas.",
        per_topic=True,
    )
    keyless_records: Literal["keep", "remove"] = option(
        "keyless.records", "keep", doc="Records without a key in a compacted log; Kafka removes them.", per_topic=True
    )
    avro_codec: Codec = option("avro.codec", "zstandard", doc="Compression of what is rewritten.", per_topic=True)

    io_max_bytes_per_second: float | None = option(
        "log.cleaner.io.max.bytes.per.second",
        None,
        doc="Bytes read and written a second, over all tasks together, indexes included. No second has more than 1.3 "
        "times the rate, for rates of 200000 and more. Default: no limit.",
        importance="high",
        gt=0,
    )
    backoff_ms: Millis = option("log.cleaner.backoff.ms", 15_000, doc="Pause between two runs (not with --once).")
    lease_ms: int = option(
        "log.cleaner.lease.ms",
        60_000,
        doc="How long other compactors leave a claimed partition alone; long passes renew it.",
        importance="low",
        ge=1000,
    )
    batch_bytes: int = option(
        "log.cleaner.batch.bytes",
        4 * 1024 * MIB,
        doc="Stored bytes of the logs that are claimed and cleaned together, at most. A batch is what the compactor "
        "cleans in about a minute, so that several compactors share a backlog.",
        importance="low",
        ge=1,
    )
    pass_max_bytes: int = option(
        "log.cleaner.pass.max.bytes",
        16 * 1024 * MIB,
        doc="Stored bytes that one commit of a pass may move; what moves more is cut into parts, oldest first.",
        importance="low",
        ge=1,
    )
    map_bytes: int = option(
        "log.cleaner.map.bytes",
        64 * MIB,
        doc="Index bytes that one task maps; a larger log is mapped by many. Memory is about 25 times this; with long "
        "keys that are mostly alike it is more (300 bytes: 100 times), since an index stores what they share once.",
        importance="low",
        ge=1,
    )
    collect_runs: Count = option(
        "log.cleaner.collect.runs",
        0,
        doc="Look for orphans in every partition each so many runs of the loop; 0: only where a run cleans.",
        importance="low",
    )
    threads: int = option(
        "log.cleaner.driver.threads", 16, doc="Manifests read and committed at once.", importance="low", ge=1
    )
    replicas_run: Flag = option(
        "replicas.run",
        False,
        doc="After each run carry what is new to all registered replicas, within the same rate. Not beside "
        "`keyfold replica run`, which does it all the time.",
    )
    metrics_push_url: str = option(
        "metrics.push.url",
        "",
        doc="Pushgateway, such as http://host:9091, that is sent the metrics at the end of a run with --once, as job "
        "<name>. A push that fails is a warning.",
    )
    spark: Overrides = option("spark.*", Overrides(), doc="Passed to Spark as it is, `spark.master` for one.")

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Self:
        """See `Options.parse`; a retention that nothing in this configuration turns on is a mistake, too."""
        parsed = super().parse(values)
        own = {topic: parsed.for_topic(topic) for topic in parsed.topics_with_own_values}
        deleting = {topic for topic, options in own.items() if options.deletes}
        for key, field in (("retention.ms", "retention_ms"), ("retention.bytes", "retention_bytes")):
            if getattr(parsed, field) >= 0 and not parsed.deletes and not deleting:
                raise _idle_retention(key, "cleanup.policy")
            for topic, options in own.items():
                if getattr(options, field) != getattr(parsed, field) and topic not in deleting:
                    raise _idle_retention(f"topic.{topic}.{key}", f"topic.{topic}.cleanup.policy")
        return parsed

    @property
    def deletes(self) -> bool:
        """Whether `cleanup.policy` was given, and holds `delete`. The default, Kafka's, deletes nothing here."""
        return self.is_set("cleanup_policy") and self.holds("delete")

    def has_retention(self, topic: str) -> bool:
        """Whether segments of a topic may expire; nothing that is followed from Kafka can change that."""
        own = self.for_topic(topic)
        return own.deletes and (own.retention_ms >= 0 or own.retention_bytes >= 0)

    def contradictions(self) -> Iterator[ConfigError]:
        """See `Options.contradictions`."""
        yield from super().contradictions()
        yield from topic_mistakes(self.topics, self.topics_regex)
        # Kafka knows the empty policy: nothing is cleaned.
        if not {word.strip() for word in self.cleanup_policy.split(",")} <= {"compact", "delete", ""}:
            yield ConfigError("cleanup.policy", f"must be compact, delete or both, not {self.cleanup_policy!r}")
        if self.metrics_push_url and not _is_gateway(self.metrics_push_url):
            # Not shown: where somebody put a password into it, it would be in the log.
            yield ConfigError("metrics.push.url", "must be http://host:port or https://host:port, and hold no password")
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            yield ConfigError("min.compaction.lag.ms", "must not exceed max.compaction.lag.ms")

    def settings_of(self, topic: str, followed: Mapping[str, str]) -> TopicSettings:
        """One topic's settings, given what its manifest followed from Kafka. Raises `ConfigError`."""
        own = self.for_topic(topic, followed)
        return TopicSettings(
            delete=self.for_topic(topic).deletes,  # without what is followed: that never deletes
            retention_ms=own.retention_ms,
            retention_bytes=own.retention_bytes,
            compact=own.holds("compact"),
            min_cleanable_dirty_ratio=own.min_cleanable_dirty_ratio,
            min_compaction_lag_ms=own.min_compaction_lag_ms,
            max_compaction_lag_ms=own.max_compaction_lag_ms,
            delete_retention_ms=own.delete_retention_ms,
            segment_bytes=own.segment_bytes,
            merge_span_ms=own.segment_merge_span_ms if own.holds("delete") else 0,
            segment_min_garbage_ratio=own.segment_min_garbage_ratio,
            file_delete_delay_ms=own.file_delete_delay_ms,
            replica_hold_max_ms=own.replica_hold_max_ms,
            remove_keyless=own.keyless_records == "remove",
            encoding=Encoding(own.avro_codec),
        )

    def holds(self, policy: str) -> bool:
        """Whether `cleanup.policy` holds `compact` or `delete`."""
        return policy in {word.strip() for word in self.cleanup_policy.split(",")}

    def wants(self, topic: str) -> bool:
        """Whether this configuration covers a topic. Raises `ConfigError` where that cannot be told in time."""
        if self.topics:
            return topic in self.topics
        return not self.topics_regex or topic_pattern(self.topics_regex).matches(topic)

    def location(self) -> S3Location:
        """Where the bucket is, as tasks open it."""
        return replace(configured_location(self), max_connections=max(16, self.threads))


def _is_gateway(url: str) -> bool:
    try:
        parts = urlsplit(url)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        return False
    is_plain = not (parts.username or parts.password or parts.query or parts.fragment)
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and has_port and is_plain


def _idle_retention(key: str, policy: str) -> ConfigError:
    return ConfigError(
        key,
        "deletes nothing: `cleanup.policy` is not set to hold delete here, and the topic's own is not asked for that",
        hint=f"set `{policy}` to delete or compact,delete, or leave out `{key}`",
    )
