"""What one topic's cleaning goes by, after all sources of configuration have been heard.

A value comes from the first of: `topic.<name>.<key>` in the configuration, the general key in the configuration, what
the sink followed from Kafka into the manifest, Kafka's default (design section 5). Only the settings that Kafka keeps
per topic are followed; deletion of a log's head, codec and delays of objects are keyfold's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

LONG_MAX: Final = 2**63 - 1
"""Kafka's "never" for a lag."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """How outputs are written: Avro's codec name, its level, and a block's size before compression."""

    codec: str = "zstandard"
    level: int = 1
    block_bytes: int = 65_536


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Kafka's topic settings that cleaning goes by, and keyfold's own beside them. Times in ms, sizes in stored bytes.

    `compact` is whether `cleanup.policy` holds `compact`. `remove_keyless` is Kafka's way with records without a key
    in a compacted log; by default they are kept and counted.
    """

    compact: bool = True
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    delete_retention_ms: int = 86_400_000
    segment_bytes: int = 128 * 1024 * 1024
    file_delete_delay_ms: int = 3_600_000
    remove_keyless: bool = False
    encoding: Encoding = field(default_factory=Encoding)

    @property
    def needs_append_times(self) -> bool:
        """Whether the decision depends on when segments were appended."""
        return self.min_compaction_lag_ms > 0 or self.max_compaction_lag_ms < LONG_MAX
