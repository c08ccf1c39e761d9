"""Selection of records by fields of manifests and indexes, without reading values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from keyfold.log.assembly import NO_TIMESTAMP_MS
from keyfold.log.index import Index
from keyfold.log.manifest import SegmentEntry
from keyfold.runtime.arrow_types import ArrowChunks

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Selection:
    """Records with `min_timestamp <= timestamp <= max_timestamp` (ms) and one of `keys`; None selects all.

    A record without a timestamp has -1, as in Kafka, and manifests do not show which segments have such records. So
    with `max_timestamp` alone all segments are read; `min_timestamp=0` excludes these records and segments. `keys`
    never select a record without a key.
    """

    min_timestamp: int | None = None
    max_timestamp: int | None = None
    keys: frozenset[bytes] | None = None

    @property
    def has_times(self) -> bool:
        """Whether timestamps are selected."""
        return self.min_timestamp is not None or self.max_timestamp is not None

    def can_match(self, entry: SegmentEntry) -> bool:
        """Return whether a segment can have a selected record, according to the manifest."""
        if self.keys is not None and (not self.keys or entry.keyless_count == entry.record_count):
            return False
        # The manifest's bounds ignore records without a timestamp, so a range with -1 may match any segment.
        if self._has(NO_TIMESTAMP_MS, NO_TIMESTAMP_MS):
            return True
        return self._has(entry.min_timestamp, entry.max_timestamp)

    def _has(self, least: int, most: int) -> bool:
        after = self.min_timestamp is None or most >= self.min_timestamp
        return after and (self.max_timestamp is None or least <= self.max_timestamp)

    def columns(self) -> tuple[str, ...]:
        """The columns of an index that `matches` needs."""
        return (("timestamp",) if self.has_times else ()) + (("key",) if self.keys is not None else ())

    def matches(self, index: Index) -> Flags:
        """Return a mask of the selected rows of an index."""
        found = np.ones(len(index), np.bool_)
        if self.has_times:
            timestamps = index.ints("timestamp")
            if self.min_timestamp is not None:
                found &= timestamps >= self.min_timestamp
            if self.max_timestamp is not None:
                found &= timestamps <= self.max_timestamp
        if self.keys is not None:
            wanted = pa.array(sorted(self.keys), pa.binary())
            is_in = cast("ArrowChunks", pc.is_in(index.rows.column("key"), value_set=wanted))
            found &= is_in.combine_chunks().to_numpy(zero_copy_only=False)
        return found
