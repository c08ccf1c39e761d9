"""When a segment is finished: pure.

Any cut is legal, because the manifest and not the cut decides what is in the log. So a segment may roll for whatever
reason there is. None of these is followed from the topic: Kafka's 1 GiB and 7 days would hold back durability.

    bytes      the segment has reached `segment.bytes` of stored bytes
    records    it holds `flush.size` records
    time       its first record came `segment.ms` ago, also when the topic has gone silent
    memory     the budget is short and this partition holds most of it
    revoke, shutdown, request, caught-up      somebody waits for it
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

# A batch is looked at again after this part of `segment.bytes`, so that a segment ends near its size.
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
class Fill:
    """How full a segment is: records, stored bytes, and the monotonic second at which its first record came."""

    record_count: int
    size_bytes: int
    opened_s: float


@dataclass(frozen=True, slots=True)
class RollPolicy:
    """The three limits. `flush_size` 0 is no limit."""

    segment_bytes: int
    segment_ms: int
    flush_size: int = 0

    def due(self, fill: Fill, now_s: float) -> RollReason | None:
        """Why this segment must be finished now, or None."""
        if fill.record_count == 0:
            return None
        if fill.size_bytes >= self.segment_bytes:
            return RollReason.BYTES
        if self.flush_size and fill.record_count >= self.flush_size:
            return RollReason.RECORDS
        return RollReason.TIME if self.is_late(fill.opened_s, now_s) else None

    def is_late(self, since_s: float, now_s: float) -> bool:
        """Whether what began at `since_s` has waited for `segment.ms`."""
        return (now_s - since_s) * 1000 >= self.segment_ms

    def room(self, record_count: int, mean_record_bytes: float) -> int:
        """How many records may be appended before `due` is asked again; at least one.

        `mean_record_bytes` is before compression, so the step is on the safe side.
        """
        step_bytes = max(_SMALLEST_STEP_BYTES, self.segment_bytes // _LOOKS_PER_SEGMENT)
        step_bytes = min(step_bytes, self.segment_bytes)
        records = max(1, int(step_bytes / max(mean_record_bytes, 1.0)))
        return min(records, self.flush_size - record_count) if self.flush_size else records
