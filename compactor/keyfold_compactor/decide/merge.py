"""Merge small segments in logs whose policy is only `delete`: fewer objects, the same records.

In a compacted log, passes merge small segments. A log that is never cleaned would keep every small segment that the
sink rolls. This module merges neighbours by the manifest alone: it reads no index, removes no record, marks no
tombstone, and `first_dirty_offset` stays.

Retention removes whole segments, so a merged segment lives as long as its youngest part. Therefore only segments whose
ages count from the same *span* of time are merged (`segment.merge.span.ms`), and nothing lives longer than that beyond
its time. Spans are aligned to the Unix epoch, so repeated merges never leave a span.

A merge takes a dozen segments, or enough to come near `segment.bytes`, and the result is twice its largest part. So
every byte is moved only a few times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from keyfold.log.manifest import UNSTAMPED, SegmentEntry
from keyfold_compactor.decide.plan import SegmentGroup, group, shifted, untouched
from keyfold_compactor.decide.retention import born_ms
from keyfold_compactor.decide.settings import TopicSettings

SEGMENTS_MIN: Final = 12
"""This many segments are worth a merge, however small the result is."""


def merges(segments: Sequence[SegmentEntry], first_dirty: int, settings: TopicSettings) -> list[SegmentGroup]:
    """Return the segments that are worth merging. The same result makes a log due and defines its pass."""
    if settings.merge_span_ms <= 0:
        return []
    found: list[SegmentGroup] = []
    for first, entries in _runs(segments, first_dirty, settings.merge_span_ms):
        stats = [untouched(e) for e in entries]
        limit = settings.segment_bytes
        for made in group(entries, stats, segment_bytes=limit, unit_bytes=limit):
            size_bytes = sum(entries[at].size_bytes for at in made.kept)
            if len(made.kept) >= SEGMENTS_MIN or 2 * size_bytes >= limit:
                found.append(shifted(made, first))
    return found


def _runs(
    segments: Sequence[SegmentEntry], first_dirty: int, span_ms: int
) -> Iterator[tuple[int, Sequence[SegmentEntry]]]:
    """Yield neighbours of which any may be merged, with the position of the first."""
    first = 0
    age = _Age(UNSTAMPED, UNSTAMPED)
    sort: tuple[bool, bool, int] | None = None
    for at, entry in enumerate(segments):
        # Merge only on one side of first dirty. Do not mix segments with and without timestamps, because one without
        # would expire by another's.
        own = (entry.next_offset <= first_dirty, entry.max_timestamp < 0, born_ms(entry) // span_ms)
        joined = age.with_(entry)
        if at and (own != sort or joined.born_ms // span_ms != own[2] or entry.appended_at_ms == UNSTAMPED):
            yield first, segments[first:at]
            first, joined = at, _Age(entry.appended_at_ms, entry.max_timestamp)
        age, sort = joined, own
    if segments:
        yield first, segments[first:]


class _Age(NamedTuple):
    """What a merged segment's age would count from. It is never before that of a part (`retention.born_ms`)."""

    appended_at_ms: int
    max_timestamp: int

    def with_(self, entry: SegmentEntry) -> _Age:
        return _Age(max(self.appended_at_ms, entry.appended_at_ms), max(self.max_timestamp, entry.max_timestamp))

    @property
    def born_ms(self) -> int:
        return self.appended_at_ms if self.max_timestamp < 0 else min(self)
