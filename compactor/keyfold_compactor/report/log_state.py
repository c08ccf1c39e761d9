"""The cleaning state of one log: the values that the metrics need.

A run records the state of every log when it reads the log, and again after its pass. So after a run the metrics say
what is left to do. Kafka's do, too: its cleaner looks at all logs again after each log that it has cleaned.
"""

from __future__ import annotations

from dataclasses import dataclass

from keyfold.log.commit import Pinned
from keyfold.log.manifest import UNSTAMPED, SegmentEntry
from keyfold.log.names import Place
from keyfold_compactor.decide.policy import CleaningDecision
from keyfold_compactor.decide.settings import TopicSettings


@dataclass(frozen=True, slots=True)
class LogState:
    """The state of one log. Bytes are stored bytes of segments; times are ms of store time, never negative.

    `overdue_ms` is by how much the oldest dirty segment exceeds `max.compaction.lag.ms`. `uncleaned_age_ms` is how long
    ago the oldest record above the first dirty offset was appended. Both are 0 if there is none, or if the log is not
    compacted (a replica, for example). `is_in_progress`: another compactor holds the lease. `is_held`: a replica holds
    tombstones of the log beyond their delete horizon. `is_due`: a pass was due.
    """

    place: Place
    is_compacted: bool = True
    is_in_progress: bool = False
    clean_bytes: int = 0
    cleanable_bytes: int = 0
    overdue_ms: int = 0
    uncleaned_age_ms: int = 0
    is_held: bool = False
    is_due: bool = False

    @property
    def dirty_percent(self) -> float:
        """Kafka's dirty ratio, times 100; 0.0 for a log without bytes."""
        total_bytes = self.clean_bytes + self.cleanable_bytes
        return 100 * self.cleanable_bytes / total_bytes if total_bytes else 0.0


def log_state(place: Place, pinned: Pinned, decision: CleaningDecision, settings: TopicSettings) -> LogState:
    """Return the state of a log whose version `pinned` was judged as `decision`, at the time it was read."""
    lease_until_ms = pinned.manifest.compactor.lease_until_ms
    is_in_progress = lease_until_ms > pinned.seen_ms
    if decision.replica_of or not settings.compact:
        return LogState(place, is_compacted=False, is_in_progress=is_in_progress, is_due=decision.is_due)
    # Segments that retention may remove count as removed.
    left = [s for s in pinned.manifest.segments if s.base_offset >= decision.range.log_start]
    dirty = [s for s in left if s.next_offset > decision.range.first_dirty]
    born_ms = min((_appended_ms(s, pinned) for s in dirty), default=pinned.seen_ms)
    return LogState(
        place,
        is_in_progress=is_in_progress,
        clean_bytes=decision.range.clean_bytes,
        cleanable_bytes=decision.range.cleanable_bytes,
        overdue_ms=decision.overdue_ms,
        uncleaned_age_ms=max(0, pinned.seen_ms - born_ms),
        is_held=decision.held is not None,
        is_due=decision.is_due,
    )


def _appended_ms(entry: SegmentEntry, pinned: Pinned) -> int:
    """Return when a segment was appended. Until the next commit records it, that is the manifest's own age."""
    if entry.appended_at_ms != UNSTAMPED:
        return entry.appended_at_ms
    return pinned.seen_ms if pinned.modified_ms == UNSTAMPED else pinned.modified_ms
