"""The settings for cleaning one topic, combined from all sources of configuration.

A value comes from the first of these: `topic.<name>.<key>` in the configuration, the general key in the configuration,
the value that the sink copied from Kafka into the manifest, Kafka's default. Only settings that Kafka has per topic are
copied; codec and delays of objects are keyfold's own. The deletion of a log's oldest segments is keyfold's own, too:
`delete` in `cleanup.policy` and `retention.*` apply only if the configuration itself sets them. An archive must not
disappear because the settings of a topic empty it (docs/decisions/0007).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from keyfold.runtime.clock import NEVER_MS


@dataclass(frozen=True, slots=True)
class Encoding:
    """How segments are rewritten: Avro codec and level, block size before compression.

    `block_bytes` None is the size of `keyfold.log.segment`. `part_bytes` is the part size of uploads; None is that of
    `keyfold.log.objects`. `gap_bytes` is how many bytes that nobody needs are read between two blocks, to save a
    request; None is that of `keyfold.log.index`.
    """

    codec: str = "zstandard"
    level: int = 1
    block_bytes: int | None = None
    part_bytes: int | None = None
    gap_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Kafka's topic settings for cleaning, and keyfold's own. Times are in ms, sizes in stored bytes.

    `compact` is whether `cleanup.policy` includes `compact`. `remove_keyless` is Kafka's rule for records without a key
    in a compacted log; by default they are kept and counted. `delete` is whether this configuration's own
    `cleanup.policy` includes `delete`. `retention_ms` and `retention_bytes` are -1 without limit, as in Kafka.
    `replicas` are the registered replicas of this topic; they hold tombstones that they have not received, for a
    limited time.
    """

    compact: bool = True
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = NEVER_MS
    delete_retention_ms: int = 86_400_000
    segment_bytes: int = 128 * 1024 * 1024
    file_delete_delay_ms: int = 3_600_000
    remove_keyless: bool = False
    delete: bool = False
    retention_ms: int = -1
    retention_bytes: int = -1
    segment_min_garbage_ratio: float = 0.0
    merge_span_ms: int = 86_400_000
    replicas: tuple[str, ...] = ()
    replica_hold_max_ms: int = 604_800_000
    encoding: Encoding = field(default_factory=Encoding)

    @property
    def has_retention(self) -> bool:
        """Whether the log may lose its oldest segments."""
        return self.delete and (self.retention_ms >= 0 or self.retention_bytes >= 0)

    @property
    def has_max_lag(self) -> bool:
        """Whether records must be cleaned at a certain age, whatever the dirty ratio."""
        return self.max_compaction_lag_ms < NEVER_MS

    @property
    def needs_append_times(self) -> bool:
        """Whether a decision depends on when segments were appended."""
        has_lag = self.min_compaction_lag_ms > 0 or self.has_max_lag
        return (self.compact and has_lag) or (self.delete and self.retention_ms >= 0)
