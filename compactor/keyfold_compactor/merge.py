"""Merging of small segments in logs that are only `delete`: fewer objects, the same records.

A compacted log has its small segments merged by the passes that clean it. One that is never cleaned would keep every
small segment that the sink has rolled. Here neighbours are put together, by the manifest alone: no index is read to
decide it, no record is removed, no tombstone marked, and `first_dirty_offset` stays.

Retention takes whole segments, so what is merged lives as long as its youngest part. Therefore only segments whose ages
are counted from the same *span* of time are merged (`segment.merge.span.ms`; spans are laid out from the epoch on, so
that merging again and again never leaves one), and nothing lives longer than that beyond its time. A result has a dozen
segments in it, or is near `segment.bytes`, and is twice its largest part: every byte is moved a few times, ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from keyfold.log.manifest import UNSTAMPED, SegmentEntry
from keyfold_compactor.plan import Group, group, shifted, untouched
from keyfold_compactor.retention import born_ms
from keyfold_compactor.settings import TopicSettings

SEGMENTS_MIN: Final = 12
"""So many segments are worth a merge, however small the result is."""


def merges(segments: Sequence[SegmentEntry], first_dirty: int, settings: TopicSettings) -> list[Group]:
    """What of a log's segments is worth merging: the same answer makes a log due and says what its pass does."""
    if settings.merge_span_ms <= 0:
        return []
    found: list[Group] = []
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
    """Neighbours that may become one segment, any of them, and the position of the first."""
    first = 0
    age = _Age(UNSTAMPED, UNSTAMPED)
    sort: tuple[bool, bool, int] | None = None
    for at, entry in enumerate(segments):
        # On one side of first dirty; and with a timestamp or without, lest one without expires by another's.
        own = (entry.next_offset <= first_dirty, entry.max_timestamp < 0, born_ms(entry) // span_ms)
        joined = age.with_(entry)
        if at and (own != sort or joined.born_ms // span_ms != own[2] or entry.appended_at_ms == UNSTAMPED):
            yield first, segments[first:at]
            first, joined = at, _Age(entry.appended_at_ms, entry.max_timestamp)
        age, sort = joined, own
    if segments:
        yield first, segments[first:]


class _Age(NamedTuple):
    """What a merged segment's age would be counted from. It is never before that of a part (`retention.born_ms`)."""

    appended_at_ms: int
    max_timestamp: int

    def with_(self, entry: SegmentEntry) -> _Age:
        return _Age(max(self.appended_at_ms, entry.appended_at_ms), max(self.max_timestamp, entry.max_timestamp))

    @property
    def born_ms(self) -> int:
        return self.appended_at_ms if self.max_timestamp < 0 else min(self)
