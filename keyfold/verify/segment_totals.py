"""What the records of a segment, and the marks of its index, add up to: what the manifest's entry must say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from keyfold.log.assembly import NO_TIMESTAMP_MS
from keyfold.log.index import Index
from keyfold.runtime.arrow_types import values_of
from keyfold.verify.row_checks import Row


@dataclass(slots=True)
class SegmentTotals:
    """What the records of a segment add up to."""

    record_count: int = 0
    tombstone_count: int = 0
    keyless_count: int = 0
    first_offset: int = -1
    last_offset: int = -1
    min_timestamp: int = NO_TIMESTAMP_MS
    max_timestamp: int = NO_TIMESTAMP_MS
    has_times: bool = False

    def add(self, rows: Iterable[Row]) -> None:
        """Count rows, in order."""
        for offset, timestamp, key, is_tombstone, _, _ in rows:
            self.first_offset = offset if self.record_count == 0 else self.first_offset
            if timestamp != NO_TIMESTAMP_MS:
                self._add_times(timestamp, timestamp)
            self.last_offset = offset
            self.record_count += 1
            self.tombstone_count += is_tombstone
            self.keyless_count += key is None

    def add_index(self, index: Index) -> None:
        """Count the rows of a part of an index."""
        offsets, times = index.ints("offset"), index.ints("timestamp")
        times = times[times != NO_TIMESTAMP_MS]
        if len(times):
            self._add_times(int(times.min()), int(times.max()))
        self.first_offset = int(offsets[0]) if self.record_count == 0 else self.first_offset
        self.last_offset = int(offsets[-1])
        self.record_count += len(offsets)
        self.tombstone_count += int(index.is_tombstone.sum())
        self.keyless_count += index.rows.column("key").null_count

    def _add_times(self, earliest: int, latest: int) -> None:
        self.min_timestamp = min(self.min_timestamp, earliest) if self.has_times else earliest
        self.max_timestamp = max(self.max_timestamp, latest) if self.has_times else latest
        self.has_times = True


@dataclass(slots=True)
class Marks:
    """What the marks in an index add up to."""

    unmarked: int = 0
    marked: int = 0
    epochs: set[int] = field(default_factory=set)

    def add(self, index: Index) -> list[int]:
        """Count the marks of a part; offsets of marks on records that are no tombstones."""
        marks = index.rows.column("cleaned_epoch")
        is_marked = marks.is_valid().to_numpy()
        self.unmarked += int((index.is_tombstone & ~is_marked).sum())
        self.marked += int(is_marked.sum())
        self.epochs.update(values_of(marks.drop_null().unique()))
        wrong: list[int] = index.ints("offset")[is_marked & ~index.is_tombstone].tolist()
        return wrong
