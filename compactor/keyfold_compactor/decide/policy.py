"""Decide which logs are cleaned, how far, and why; and which logs need only a small commit, or nothing.

The terms and the formula are Kafka's (LogCleanerManager.cleanableOffsets, LogToClean), applied to whole segments:

    log start           first dirty               first uncleanable        next offset
        |---- clean ---------|------- cleanable -------|---- too young ---------|

    dirty ratio = bytes of cleanable / bytes of (clean + cleanable), and a log is due when it is *strictly* above
    min.cleanable.dirty.ratio.

Three rules differ from Kafka:

* A segment's age counts from its append, so a record with a future timestamp blocks nothing.
* Logs that are overdue by max.compaction.lag.ms come before logs that are merely dirty.
* Tombstones past their delete horizon make a log due by themselves, unless a replica holds them
  (`decide.horizon`). A log that is due only for its tombstones is cleaned up to its first dirty offset.
  Cleaning its dirty part would not be worth the bytes yet.

The functions here are pure: they take a manifest, settings and a store time, and return a `CleaningDecision`. Before
the claim it is a forecast. After the claim it is made again, from the manifest that the claim read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from keyfold.errors import KeyfoldError
from keyfold.log.commit import Pinned
from keyfold.log.edits import without_first
from keyfold.log.gc import due_names
from keyfold.log.manifest import UNSTAMPED, Manifest, SegmentEntry, is_over
from keyfold.log.names import Place
from keyfold_compactor.decide.horizon import HeldTombstones, Purge, held_by, purge_of
from keyfold_compactor.decide.merge import merges
from keyfold_compactor.decide.retention import Expiry, expiry
from keyfold_compactor.decide.settings import TopicSettings


class Reason(Enum):
    """Why a log is cleaned."""

    FORCED = "forced"
    OVERDUE = "a record is older than max.compaction.lag.ms"
    DIRTY = "dirty ratio above min.cleanable.dirty.ratio"
    HORIZON = "tombstones are past their delete horizon"
    UNMARKED = "clean tombstones without a mark"
    MERGE = "small segments are worth a merge"


class MaintenanceTask(Enum):
    """What a log needs besides cleaning. It takes a commit without any data."""

    EXPIRE = "segments are past retention"
    STAMP = "times of an earlier commit are to be written down"
    DELETE = "replaced objects are due for deletion"


@dataclass(frozen=True, slots=True)
class CleanRange:
    """The ranges of a log, by offset and by stored bytes. `end` is the first uncleanable offset."""

    log_start: int
    first_dirty: int
    end: int
    clean_bytes: int
    cleanable_bytes: int

    @property
    def dirty_ratio(self) -> float:
        """Kafka's dirty ratio; 0.0 for a log without bytes."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0


@dataclass(frozen=True, slots=True)
class CleaningDecision:
    """The decision about one log. `why_not` says why no cleaning is due, if `reasons` is empty.

    A pass would clean up to `end`: the first uncleanable offset, or the first dirty one if only tombstones are due.
    `overdue_ms` is by how much the oldest dirty segment exceeds max.compaction.lag.ms. `expiry` is what retention
    removes, whether the log is cleaned or not. `maintenance` is what the log needs besides cleaning. `held` are the
    tombstones that replicas hold. `replica_of` is the source of a log that is itself a replica; nothing is done with
    such a log here.
    """

    range: CleanRange
    end: int
    reasons: tuple[Reason, ...]
    maintenance: tuple[MaintenanceTask, ...]
    overdue_ms: int
    why_not: str
    expiry: Expiry
    held: HeldTombstones | None = None
    replica_of: str = ""

    @property
    def is_due(self) -> bool:
        """Whether the log must be cleaned."""
        return bool(self.reasons)

    @property
    def is_merge(self) -> bool:
        """Whether segments are only merged (`keyfold_compactor.decide.merge`), without removing records."""
        return self.reasons == (Reason.MERGE,)

    @property
    def rank(self) -> tuple[int, int, float]:
        """Sort key: forced logs first, then the most overdue, then the dirtiest, and merges last."""
        first = 0 if Reason.FORCED in self.reasons else 2 if self.is_merge else 1
        return (first, -self.overdue_ms, -self.range.dirty_ratio)


@dataclass(frozen=True, slots=True)
class PartitionReview:
    """A partition as a run read it: its version and the decision about it, or the error."""

    place: Place
    pinned: Pinned | None = None
    decision: CleaningDecision | None = None
    error: KeyfoldError | None = None

    @property
    def size_bytes(self) -> int:
        """Stored bytes of the log's clean and cleanable part."""
        return self.decision.range.clean_bytes + self.decision.range.cleanable_bytes if self.decision else 0


def clean_range(manifest: Manifest, settings: TopicSettings, now_ms: int) -> CleanRange:
    """Return where a log's clean part ends and where its uncleanable part begins; `now_ms` is store time."""
    start = manifest.log_start_offset
    first_dirty = manifest.first_dirty_offset
    if not start <= first_dirty <= manifest.next_offset:
        first_dirty = start
    end = max(first_dirty, _first_uncleanable(manifest, first_dirty, settings.min_compaction_lag_ms, now_ms))
    clean_bytes = sum(s.size_bytes for s in manifest.segments if s.next_offset <= first_dirty)
    cleanable_bytes = sum(s.size_bytes for s in dirty_segments(manifest, first_dirty, end))
    return CleanRange(start, first_dirty, end, clean_bytes, cleanable_bytes)


def dirty_segments(manifest: Manifest, first_dirty: int, end: int) -> list[SegmentEntry]:
    """Return the segments with offsets in `[first_dirty, end)`. `end` never falls inside a segment that is cleaned.

    If `first_dirty` is inside a segment that is too young, nothing is cleanable.
    """
    return [s for s in manifest.segments if first_dirty < s.next_offset <= end]


def forecast(manifest: Manifest, settings: TopicSettings, now_ms: int, *, force: bool = False) -> CleaningDecision:
    """Decide about one log in the order of a run: retention first, then cleaning of the rest. See `decide_cleaning`."""
    if manifest.replica is not None:
        return decide_cleaning(manifest, settings, now_ms)
    found = expiry(manifest, settings, now_ms)
    decision = decide_cleaning(without_first(manifest, len(found.segments)), settings, now_ms, force=force)
    return replace(decision, maintenance=_maintenance(manifest, settings, now_ms), expiry=found)


def decide_cleaning(
    manifest: Manifest, settings: TopicSettings, now_ms: int, *, force: bool = False
) -> CleaningDecision:
    """Decide about the cleaning of a log as it is. `now_ms` is a store time after `manifest` was written.

    Times that are not stamped yet count as `now_ms`, because that is what the claim would write.
    """
    parts = clean_range(manifest, settings, now_ms)
    if manifest.replica is not None:
        return _replica_decision(manifest, parts, manifest.replica.source or manifest.replica.name)
    overdue_ms = _overdue_ms(manifest, parts, settings, now_ms)
    maintenance = _maintenance(manifest, settings, now_ms)
    expires = expiry(manifest, settings, now_ms)
    if not settings.compact:
        merging = (Reason.MERGE,) if merges(manifest.segments, parts.first_dirty, settings) else ()
        why_not = "" if merging else "cleanup.policy does not include `compact`"
        return CleaningDecision(parts, manifest.next_offset, merging, maintenance, 0, why_not, expires)
    reasons: list[Reason] = []
    if force:
        reasons.append(Reason.FORCED)
    if overdue_ms > 0:
        reasons.append(Reason.OVERDUE)
    if parts.dirty_ratio > settings.min_cleanable_dirty_ratio:
        reasons.append(Reason.DIRTY)
    end = parts.end if reasons else parts.first_dirty
    claimed = _as_claimed(manifest, now_ms)
    purge = purge_of(claimed, settings, now_ms)
    reasons.extend(_tombstone_reasons(manifest, parts, purge))
    why_not = "" if reasons else _why_not(manifest, parts, settings)
    held = held_by(claimed, settings, purge)
    return CleaningDecision(parts, end, tuple(reasons), maintenance, overdue_ms, why_not, expires, held)


def _replica_decision(manifest: Manifest, parts: CleanRange, source: str) -> CleaningDecision:
    why_not = f"this log is a replica of {source}, which is cleaned and expired in its place"
    nothing = Expiry((), 0, 0, manifest.log_start_offset, why_not, is_asked=False)
    return CleaningDecision(parts, manifest.next_offset, (), (), 0, why_not, nothing, replica_of=source)


def _first_uncleanable(manifest: Manifest, first_dirty: int, lag_ms: int, now_ms: int) -> int:
    if lag_ms <= 0:
        return manifest.next_offset
    for entry in manifest.segments:
        is_young = not is_over(entry.appended_at_ms, lag_ms, now_ms)
        if entry.next_offset > first_dirty and is_young:
            return entry.base_offset
    return manifest.next_offset


def _overdue_ms(manifest: Manifest, parts: CleanRange, settings: TopicSettings, now_ms: int) -> int:
    times = [
        s.appended_at_ms
        for s in dirty_segments(manifest, parts.first_dirty, parts.end)
        if s.appended_at_ms != UNSTAMPED
    ]
    return max(0, now_ms - min(times) - settings.max_compaction_lag_ms) if times else 0


def _tombstone_reasons(manifest: Manifest, parts: CleanRange, purge: Purge) -> list[Reason]:
    clean = [s for s in manifest.segments if s.next_offset <= parts.first_dirty]
    reasons: list[Reason] = []
    if any(map(purge.of_all, clean)):
        reasons.append(Reason.HORIZON)
    if any(s.unmarked_tombstone_count for s in clean):
        reasons.append(Reason.UNMARKED)
    return reasons


def _as_claimed(manifest: Manifest, now_ms: int) -> Manifest:
    """Return the manifest with the times that a claim would stamp; with a `delete.retention.ms` of 0 they are due."""
    passes = tuple(replace(p, committed_at_ms=now_ms) if p.committed_at_ms == UNSTAMPED else p for p in manifest.passes)
    return replace(manifest, passes=passes)


def _maintenance(manifest: Manifest, settings: TopicSettings, now_ms: int) -> tuple[MaintenanceTask, ...]:
    maintenance: list[MaintenanceTask] = [MaintenanceTask.EXPIRE] if expiry(manifest, settings, now_ms).segments else []
    unstamped = any(p.committed_at_ms == UNSTAMPED for p in manifest.passes) or any(
        r.unlinked_at_ms == UNSTAMPED for r in manifest.replaced
    )
    if settings.needs_append_times:
        unstamped |= any(s.appended_at_ms == UNSTAMPED for s in manifest.segments)
    if unstamped:
        maintenance.append(MaintenanceTask.STAMP)
    if due_names(manifest, now_ms, settings.file_delete_delay_ms, settings.replica_hold_max_ms):
        maintenance.append(MaintenanceTask.DELETE)
    return tuple(maintenance)


def _why_not(manifest: Manifest, parts: CleanRange, settings: TopicSettings) -> str:
    if not manifest.segments:
        return "the log is empty"
    if parts.first_dirty >= manifest.next_offset:
        return "no dirty records"
    if parts.cleanable_bytes == 0:
        return f"all dirty segments are younger than min.compaction.lag.ms ({settings.min_compaction_lag_ms})"
    ratio = f"min.cleanable.dirty.ratio ({settings.min_cleanable_dirty_ratio:g})"
    return f"dirty ratio {parts.dirty_ratio:.3f} is not above {ratio}"


def by_urgency(reviews: Iterable[PartitionReview], batch_bytes: int) -> list[PartitionReview]:
    """Sort logs that are due into the order in which they are claimed.

    A log that fills a batch by itself comes after all others of the same urgency (forced, overdue, dirty, only merged).
    Its pass may take hours, and the others need not wait for it. It waits for them no longer than one run takes.
    """
    return sorted(reviews, key=lambda review: _rank(review, batch_bytes))


def _rank(review: PartitionReview, batch_bytes: int) -> tuple[int, bool, bool, int, float]:
    assert review.decision is not None
    first, overdue, dirtiest = review.decision.rank
    return (first, overdue == 0, review.size_bytes > batch_bytes, overdue, dirtiest)
