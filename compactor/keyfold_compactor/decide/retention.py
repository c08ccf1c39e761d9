"""Decide which segments are past retention and are removed from the log's start.

The walk is Kafka's (UnifiedLog.deleteOldSegments): whole segments from the log start, up to the first that must stay. A
segment is removed

    by size    if the log still has `retention.bytes` without it (stored bytes of segments, after compaction), or
    by time    if its *age* is over `retention.ms`.

The age counts from the earlier of two times: the append of the segment, and its largest record timestamp.

* A record from the future blocks nothing. Kafka counts from its timestamp, and keeps the record, its segment and
  everything behind it until that day. Here nothing stays longer than `retention.ms` after its append.
* Records that were old when they were appended (a backfill, a sink that was away) expire by their own time, as in
  Kafka. A promise that nothing older than 30 days is kept also holds for records that were archived late.
* One old record among new ones expires nothing, because the largest timestamp counts. A segment of old records behind
  a younger segment stays too, because the walk ends before it.
* Records without any timestamp count from their append.

An append whose time is not recorded yet (`UNSTAMPED`) has happened "now", so it does not expire, whatever its records
say. The next commit records the time. Unlike in Kafka the last segment may expire, because the sink's unflushed records
are the active segment. The log keeps its `next_offset`.

Retention needs no Spark and does not depend on cleaning. It applies only where keyfold's own configuration asks for it
(`settings.TopicSettings`).
"""

from __future__ import annotations

from dataclasses import dataclass

from keyfold.log.manifest import UNSTAMPED, Manifest, SegmentEntry, is_over
from keyfold_compactor.decide.settings import TopicSettings


@dataclass(frozen=True, slots=True)
class Expiry:
    """The segments to remove, and where the log will start then.

    `why_not` says why no more segments are removed. `is_asked` is whether the configuration asks for retention at all.
    """

    segments: tuple[SegmentEntry, ...]
    by_size: int
    by_time: int
    log_start_offset: int
    why_not: str
    is_asked: bool

    @property
    def record_count(self) -> int:
        """Records to remove, tombstones included."""
        return sum(s.record_count for s in self.segments)

    @property
    def size_bytes(self) -> int:
        """Stored bytes to remove, without indexes."""
        return sum(s.size_bytes for s in self.segments)


def expiry(manifest: Manifest, settings: TopicSettings, now_ms: int) -> Expiry:
    """Return what is past retention at the store time `now_ms`."""
    if not settings.has_retention:
        return Expiry((), 0, 0, manifest.log_start_offset, _no_retention(settings), is_asked=False)
    above_bytes = manifest.size_bytes - settings.retention_bytes if settings.retention_bytes >= 0 else -1
    by_size = by_time = 0
    why_not = "" if manifest.segments else "the log is empty"
    log_start = manifest.next_offset if manifest.segments else manifest.log_start_offset
    for entry in manifest.segments:
        if above_bytes >= entry.size_bytes:
            by_size += 1
        elif _is_old(entry, settings, now_ms):
            by_time += 1
        else:
            log_start = entry.base_offset
            why_not = _why_not(entry, settings, above_bytes, now_ms)
            break
        above_bytes -= entry.size_bytes
    return Expiry(manifest.segments[: by_size + by_time], by_size, by_time, log_start, why_not, is_asked=True)


def born_ms(entry: SegmentEntry) -> int:
    """Return the time in ms from which a segment's age counts; `UNSTAMPED` while the time of its append is unknown."""
    if entry.appended_at_ms == UNSTAMPED or entry.max_timestamp < 0:
        return entry.appended_at_ms
    return min(entry.appended_at_ms, entry.max_timestamp)


def _is_old(entry: SegmentEntry, settings: TopicSettings, now_ms: int) -> bool:
    return settings.retention_ms >= 0 and is_over(born_ms(entry), settings.retention_ms, now_ms)


def _no_retention(settings: TopicSettings) -> str:
    if not settings.delete:
        return "the configured cleanup.policy does not include `delete`"
    return "neither retention.ms nor retention.bytes is set"


def _why_not(entry: SegmentEntry, settings: TopicSettings, above_bytes: int, now_ms: int) -> str:
    reasons: list[str] = []
    if settings.retention_ms >= 0:
        born = born_ms(entry)
        if born == UNSTAMPED:
            reasons.append(f"the append time of the segment at offset {entry.base_offset} is not recorded yet")
        else:
            left_ms = max(0, born + settings.retention_ms - now_ms)
            reasons.append(f"the segment at offset {entry.base_offset} stays for another {left_ms} ms (retention.ms)")
    if settings.retention_bytes >= 0:
        over = f"{max(0, above_bytes)} bytes above retention.bytes" if above_bytes > 0 else "not above retention.bytes"
        reasons.append(f"the log is {over}, and that segment has {entry.size_bytes} bytes")
    return "; ".join(reasons)
