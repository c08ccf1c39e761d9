"""What one topic's cleaning goes by, after all sources of configuration have been heard.

A value comes from the first of: `topic.<name>.<key>` in the configuration, the general key in the configuration, what
the sink followed from Kafka into the manifest, Kafka's default (design section 5). Only the settings that Kafka keeps
per topic are followed; codec and delays of objects are keyfold's own. So is the deletion of a log's oldest segments:
both `delete` in `cleanup.policy` and `retention.*` count only where the configuration itself sets them, because an
archive must not vanish when a topic is emptied by its settings (docs/decisions/0007).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from keyfold.log.objects import PART_BYTES

LONG_MAX: Final = 2**63 - 1
"""Kafka's "never" for a lag."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """How outputs are written: Avro's codec name, its level, a block's size before compression, an upload's parts."""

    codec: str = "zstandard"
    level: int = 1
    block_bytes: int = 65_536
    part_bytes: int = PART_BYTES


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Kafka's topic settings that cleaning goes by, and keyfold's own beside them. Times in ms, sizes in stored bytes.

    `compact` is whether `cleanup.policy` holds `compact`. `remove_keyless` is Kafka's way with records without a key
    in a compacted log; by default they are kept and counted. `delete` is whether this configuration's own
    `cleanup.policy` holds `delete`; `retention_ms` and `retention_bytes` are -1 without limit, as in Kafka. `replicas`
    are the registered ones that take this topic: they hold tombstones that they have not received, so long at most.
    """

    compact: bool = True
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
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
        """Whether the log may lose its oldest segments at all."""
        return self.delete and (self.retention_ms >= 0 or self.retention_bytes >= 0)

    @property
    def has_max_lag(self) -> bool:
        """Whether records are to be cleaned at a certain age, whatever the ratio."""
        return self.max_compaction_lag_ms < LONG_MAX

    @property
    def needs_append_times(self) -> bool:
        """Whether a decision depends on when segments were appended."""
        has_lag = self.min_compaction_lag_ms > 0 or self.has_max_lag
        return (self.compact and has_lag) or (self.delete and self.retention_ms >= 0)
