"""The compactor's configuration: one table, with Kafka's names for Kafka's settings.

Precedence: the per-topic value (`topic.<name>.<key>`), the general value, the topic's setting that the sink followed
from Kafka into the manifest, the default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, Self
from urllib.parse import urlsplit

from keyfold.config.options import Codec, Count, Flag, Millis, Names, Overrides, option
from keyfold.config.process_options import ProcessOptions
from keyfold.config.topic_pattern import topic_mistakes, topic_pattern
from keyfold.errors import ConfigError
from keyfold.runtime.clock import NEVER_MS
from keyfold.store.api import StoreLocation
from keyfold.store.location import configured_location
from keyfold_compactor.decide.settings import Encoding, TopicSettings

MIB = 1024 * 1024


class CompactOptions(ProcessOptions):
    """The configuration file of `keyfold compact`."""

    engine: Literal["auto", "spark", "local"] = option(
        "compactor.engine",
        "auto",
        doc="Where the work of a run is done: `spark`, or `local`, which is this process and needs neither Java nor "
        "pyspark, or `auto`: this process does runs of at most 256 MiB, and Spark is started for a larger one, if "
        "pyspark is installed. The option `--engine` takes precedence.",
        importance="high",
    )
    name: str = option("name", "keyfold-compactor", doc="Name of this compactor, which is written into its leases.")
    topics: Names = option(
        "topics",
        (),
        doc="Topics to clean, separated by commas. Without this and `topics.regex`: all.",
        importance="high",
    )
    topics_regex: str = option(
        "topics.regex", "", doc="Topics to clean: a regular expression that must match the whole name."
    )

    cleanup_policy: str = option(
        "cleanup.policy",
        "delete",
        doc="`compact`, `delete` or both, separated by a comma. Only logs with `compact` are cleaned. `delete` applies "
        "only if it is set here: the topic's own settings never delete anything.",
        importance="high",
        followed=True,
    )
    min_cleanable_dirty_ratio: float = option(
        "min.cleanable.dirty.ratio",
        0.5,
        doc="Clean a log when more than this share of its bytes is dirty. Lower: less storage, more bytes moved.",
        importance="high",
        followed=True,
        ge=0,
        le=1,
    )
    min_compaction_lag_ms: Millis = option(
        "min.compaction.lag.ms",
        0,
        doc="Records that were appended more recently than this are not cleaned. A reader that keeps up within this "
        "time sees every record.",
        followed=True,
    )
    max_compaction_lag_ms: int = option(
        "max.compaction.lag.ms",
        NEVER_MS,
        doc="Clean a log with a dirty record that was appended longer ago than this, whatever its dirty ratio, and "
        "before all other logs.",
        followed=True,
        ge=1,
    )
    delete_retention_ms: Millis = option(
        "delete.retention.ms",
        86_400_000,
        doc="A tombstone stays readable for this long after the pass that removed the records that it deletes.",
        followed=True,
    )
    retention_ms: int = option(
        "retention.ms",
        -1,
        doc="Delete segments that were appended longer ago than this, or whose newest record is older. Whole segments "
        "are deleted, the oldest first, and only if `cleanup.policy` is set here with `delete`. -1: never. Not taken "
        "from the topic.",
        per_topic=True,
        ge=-1,
    )
    retention_bytes: int = option(
        "retention.bytes",
        -1,
        doc="Delete the oldest segments of a partition while the others still have this many stored bytes, only if "
        "`cleanup.policy` is set here with `delete`. -1: no limit. Not taken from the topic.",
        per_topic=True,
        ge=-1,
    )
    segment_bytes: int = option(
        "segment.bytes", 128 * MIB, doc="Merge neighbouring segments up to this size.", per_topic=True, ge=1
    )
    segment_merge_span_ms: Millis = option(
        "segment.merge.span.ms",
        86_400_000,
        doc="Length of a time span. In logs with only `delete`, small neighbouring segments whose ages count from the "
        "same span are merged. Retention deletes whole segments, so a record may stay longer by less than this. 0: "
        "segments are not merged.",
        per_topic=True,
    )
    segment_min_garbage_ratio: float = option(
        "segment.min.garbage.ratio",
        0.0,
        doc="Do not rewrite a segment if cleaning would free a smaller share of its bytes. Higher: fewer bytes moved, "
        "but more garbage is kept, deleted keys included. It stays until the share grows, `max.compaction.lag.ms` has "
        "passed, or a run has `--force`. 0: as in Kafka.",
        per_topic=True,
        ge=0,
        le=1,
    )
    file_delete_delay_ms: Millis = option(
        "file.delete.delay.ms",
        3_600_000,
        doc="Replaced objects are kept for this long, for readers that still use them.",
        per_topic=True,
    )
    replica_hold_max_ms: Millis = option(
        "replica.hold.max.ms",
        604_800_000,
        doc="Longest time that a tombstone stays past its delete horizon for a registered replica that has not "
        "received it. A replica that is further behind needs a resync. 0: tombstones do not wait for replicas.",
        per_topic=True,
    )
    keyless_records: Literal["keep", "remove"] = option(
        "keyless.records",
        "keep",
        doc="Keep or remove records without a key in a compacted log. Kafka removes them.",
        per_topic=True,
    )
    avro_codec: Codec = option("avro.codec", "zstandard", doc="Compression of rewritten segments.", per_topic=True)

    io_max_bytes_per_second: float | None = option(
        "log.cleaner.io.max.bytes.per.second",
        None,
        doc="Maximum bytes read and written per second, over all tasks and including indexes. For rates of 200000 and "
        "more, no second exceeds 1.3 times the rate. Default: no limit.",
        importance="high",
        gt=0,
    )
    backoff_ms: Millis = option("log.cleaner.backoff.ms", 15_000, doc="Pause between two runs (not with `--once`).")
    lease_ms: int = option(
        "log.cleaner.lease.ms",
        60_000,
        doc="How long other compactors leave a claimed partition alone. Long passes renew the lease.",
        importance="low",
        ge=1000,
    )
    batch_bytes: int = option(
        "log.cleaner.batch.bytes",
        4 * 1024 * MIB,
        doc="Maximum stored bytes of the logs that are claimed and cleaned together. A batch is what the compactor "
        "cleans in about a minute, so that several compactors can share a backlog.",
        importance="low",
        ge=1,
    )
    pass_max_bytes: int = option(
        "log.cleaner.pass.max.bytes",
        16 * 1024 * MIB,
        doc="Maximum stored bytes that one commit of a pass moves. A pass that moves more is split into parts, the "
        "oldest segments first.",
        importance="low",
        ge=1,
    )
    map_bytes: int = option(
        "log.cleaner.map.bytes",
        64 * MIB,
        doc="Maximum index bytes that one task maps. Several tasks map a larger log. A task needs about 25 times this "
        "memory, and more if keys are long and similar (300 bytes: 100 times), because an index stores shared parts of "
        "keys once.",
        importance="low",
        ge=1,
    )
    collect_runs: Count = option(
        "log.cleaner.collect.runs",
        0,
        doc="Search every partition for orphans once in this many runs of the loop. 0: search only partitions that a "
        "run cleans.",
        importance="low",
    )
    threads: int = option(
        "log.cleaner.driver.threads",
        16,
        doc="Number of manifests that are read and committed at the same time.",
        importance="low",
        ge=1,
    )
    replicas_run: Flag = option(
        "replicas.run",
        False,
        doc="Replicate to all registered replicas after each run, within the same byte rate. Do not set it if "
        "`keyfold replica run` runs, which replicates continuously.",
    )
    tables_sync: Names = option(
        "tables.sync",
        (),
        doc="Iceberg tables to bring up to date after each run, within the same byte rate, separated by commas: "
        "`s3://BUCKET/FOLDER` or `CATALOG.NAMESPACE.TABLE`. `keyfold table sync` makes each of them first, and fixes "
        "its options. Needs the extra `table`.",
    )
    keys_directory: Flag = option(
        "keys.directory",
        False,
        doc="Keep a directory of keys beside each log, so that a new process finds a key with a few small reads. It "
        "takes 14 bytes a record, and is written after a run in which a tenth of the log's records changed places.",
        per_topic=True,
    )
    metrics_push_url: str = option(
        "metrics.push.url",
        "",
        doc="Pushgateway, such as http://host:9091, that receives the metrics at the end of a run with `--once`, as "
        "job <name>. A push that fails is logged as a warning.",
    )
    spark: Overrides = option("spark.*", Overrides(), doc="Passed to Spark unchanged, for example `spark.master`.")

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Self:
        """See `Options.parse`. A retention without `delete` in this configuration is a mistake, too."""
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
        """Whether `cleanup.policy` was given and has `delete`. The default, which is Kafka's, deletes nothing here."""
        return self.is_set("cleanup_policy") and self.holds("delete")

    def has_retention(self, topic: str) -> bool:
        """Return whether segments of a topic may expire. Settings that are followed from Kafka cannot change that."""
        own = self.for_topic(topic)
        return own.deletes and (own.retention_ms >= 0 or own.retention_bytes >= 0)

    @property
    def keeps_directories(self) -> bool:
        """Whether any topic has a directory of keys."""
        own = (self.for_topic(topic).keys_directory for topic in self.topics_with_own_values)
        return self.keys_directory or any(own)

    def contradictions(self) -> Iterator[ConfigError]:
        """See `Options.contradictions`."""
        yield from super().contradictions()
        yield from topic_mistakes(self.topics, self.topics_regex)
        # Kafka knows the empty policy: nothing is cleaned.
        if not {word.strip() for word in self.cleanup_policy.split(",")} <= {"compact", "delete", ""}:
            yield ConfigError("cleanup.policy", f"must be compact, delete or both, not {self.cleanup_policy!r}")
        if self.metrics_push_url and not _is_gateway(self.metrics_push_url):
            # The value is not shown: if it contains a password, that would be in the log.
            yield ConfigError("metrics.push.url", "must be http://host:port or https://host:port, without a password")
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            yield ConfigError("min.compaction.lag.ms", "must not exceed `max.compaction.lag.ms`")

    def settings_of(self, topic: str, followed: Mapping[str, str]) -> TopicSettings:
        """Return a topic's settings; `followed` are those in its manifest. Raise `ConfigError` if they are invalid."""
        own = self.for_topic(topic, followed)
        return TopicSettings(
            delete=self.for_topic(topic).deletes,  # without followed settings, which never delete
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
            encoding=Encoding(own.avro_codec, gap_bytes=None if self.io_max_bytes_per_second is None else 0),
        )

    def holds(self, policy: str) -> bool:
        """Return whether `cleanup.policy` contains `policy`: `compact` or `delete`."""
        return policy in {word.strip() for word in self.cleanup_policy.split(",")}

    def wants(self, topic: str) -> bool:
        """Return whether this configuration covers a topic. Raise `ConfigError` if matching takes too long."""
        if self.topics:
            return topic in self.topics
        return not self.topics_regex or topic_pattern(self.topics_regex).matches(topic)

    def location(self) -> StoreLocation:
        """Where the bucket is, as tasks open it."""
        return configured_location(self, max_connections=max(16, self.threads))


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
        "has no effect: `cleanup.policy` is not set here with delete, and the topic's own policy does not apply to "
        "retention",
        hint=f"set `{policy}` to delete or compact,delete, or omit `{key}`",
    )
