"""How one log stands with its cleaning: what the metrics need to know of it, as values.

A run notes the standing of every log when it looks at it, and again when its pass is over. So after a run the figures
say what is left to do, as Kafka's do, whose cleaner looks at all logs again after each one that it has cleaned.
"""

from __future__ import annotations

from dataclasses import dataclass

from keyfold.log.commit import Pinned
from keyfold.log.manifest import UNSTAMPED, SegmentEntry
from keyfold.log.names import Place
from keyfold_compactor.policy import Verdict
from keyfold_compactor.settings import TopicSettings


@dataclass(frozen=True, slots=True)
class Standing:
    """Bytes are stored bytes of segments; times are ms of store time, never negative.

    `overdue_ms` is by how much the oldest dirty segment exceeds `max.compaction.lag.ms`; `uncleaned_age_ms` is how
    long ago the oldest record above the first dirty offset was appended. Both are 0 where there is none, or where the
    log is not compacted, a replica for one. `is_in_progress`: another compactor holds the lease. `is_held`: a replica
    holds some of its tombstones beyond their delete horizon.
    """

    place: Place
    is_compacted: bool = True
    is_in_progress: bool = False
    clean_bytes: int = 0
    cleanable_bytes: int = 0
    overdue_ms: int = 0
    uncleaned_age_ms: int = 0
    is_held: bool = False

    @property
    def dirty_percent(self) -> float:
        """Kafka's cleanable ratio, times 100; 0.0 for a log without bytes."""
        total_bytes = self.clean_bytes + self.cleanable_bytes
        return 100 * self.cleanable_bytes / total_bytes if total_bytes else 0.0


def standing(place: Place, pinned: Pinned, verdict: Verdict, settings: TopicSettings) -> Standing:
    """The standing of a log whose version `pinned` was judged as `verdict` says, at the time it was seen."""
    lease_until_ms = pinned.manifest.compactor.lease_until_ms
    is_in_progress = lease_until_ms > pinned.seen_ms
    if verdict.follows or not settings.compact:
        return Standing(place, is_compacted=False, is_in_progress=is_in_progress)
    # What the verdict lets retention take is as good as gone.
    left = [s for s in pinned.manifest.segments if s.base_offset >= verdict.range.log_start]
    dirty = [s for s in left if s.next_offset > verdict.range.first_dirty]
    born_ms = min((_appended_ms(s, pinned) for s in dirty), default=pinned.seen_ms)
    return Standing(
        place,
        is_in_progress=is_in_progress,
        clean_bytes=verdict.range.clean_bytes,
        cleanable_bytes=verdict.range.cleanable_bytes,
        overdue_ms=verdict.overdue_ms,
        uncleaned_age_ms=max(0, pinned.seen_ms - born_ms),
        is_held=verdict.held is not None,
    )


def _appended_ms(entry: SegmentEntry, pinned: Pinned) -> int:
    """When a segment was appended. Whoever commits next writes it down; until then it is the manifest's own age."""
    if entry.appended_at_ms != UNSTAMPED:
        return entry.appended_at_ms
    return pinned.seen_ms if pinned.modified_ms == UNSTAMPED else pinned.modified_ms
