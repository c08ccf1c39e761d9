"""Decide when a segment is finished; pure.

A segment may end at any offset, because the manifest decides what is in the log. So it may roll for any reason. The
limits are not those of the topic: Kafka's 1 GiB and 7 days would delay durability.

    bytes      the segment has reached `segment.bytes` of stored bytes
    records    it holds `flush.size` records
    time       its first record arrived `segment.ms` ago, even if no more records arrive
    memory     memory is short, and this partition holds most of it
    revoke, shutdown, request, caught-up      a caller waits for the commit
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

# The limits are checked again after this fraction of `segment.bytes`, so that a segment ends near its size.
_LOOKS_PER_SEGMENT: Final = 8
_SMALLEST_STEP_BYTES: Final = 64 * 1024


class RollReason(Enum):
    """Why a segment was finished."""

    BYTES = "bytes"
    RECORDS = "records"
    TIME = "time"
    MEMORY = "memory"
    REVOKE = "revoke"
    SHUTDOWN = "shutdown"
    REQUEST = "request"
    CAUGHT_UP = "caught-up"


@dataclass(frozen=True, slots=True)
class SegmentFill:
    """The state of a segment: records, stored bytes, and the monotonic second at which its first record arrived."""

    record_count: int
    size_bytes: int
    opened_s: float


@dataclass(frozen=True, slots=True)
class RollPolicy:
    """The three limits of a segment. A `flush_size` of 0 is no limit."""

    segment_bytes: int
    segment_ms: int
    flush_size: int = 0

    def due(self, fill: SegmentFill, now_s: float) -> RollReason | None:
        """Return why this segment must be finished now, or None."""
        if fill.record_count == 0:
            return None
        if fill.size_bytes >= self.segment_bytes:
            return RollReason.BYTES
        if self.flush_size and fill.record_count >= self.flush_size:
            return RollReason.RECORDS
        return RollReason.TIME if self.is_late(fill.opened_s, now_s) else None

    def is_late(self, since_s: float, now_s: float) -> bool:
        """Whether `segment.ms` has passed since `since_s`."""
        return (now_s - since_s) * 1000 >= self.segment_ms

    def records_until_check(self, record_count: int, mean_record_bytes: float) -> int:
        """Return how many records may be appended before the next call of `due`; at least one.

        `mean_record_bytes` is the size before compression, so the result errs on the small side.
        """
        step_bytes = max(_SMALLEST_STEP_BYTES, self.segment_bytes // _LOOKS_PER_SEGMENT)
        step_bytes = min(step_bytes, self.segment_bytes)
        records = max(1, int(step_bytes / max(mean_record_bytes, 1.0)))
        return min(records, self.flush_size - record_count) if self.flush_size else records
