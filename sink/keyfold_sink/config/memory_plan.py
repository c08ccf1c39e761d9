"""Divide a task's memory, the option `buffer.memory`; pure.

    an eighth     fetched records that wait in the client (the payload; as much again for its bookkeeping)
    an eighth     the batch of Python objects that the client has returned, and as much again while it is copied
    the rest      segments that are being filled, and finished ones in flight to the store

`keyfold_sink.write.memory_budget` says which segments to finish and when to pause, so that the rest is not exceeded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIN_BUFFER_MEMORY: Final = 16 * 1024 * 1024
LARGEST_BATCH: Final = 10_000

# The overhead of one record in the client and in Python (an op, a Message with its objects).
_RECORD_OVERHEAD_BYTES: Final = 600
_LARGEST_QUEUE_BYTES: Final = 64 * 1024 * 1024
_SMALLEST_FETCH_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The division of `buffer.memory`, in bytes except for the counts of records."""

    queue_bytes: int
    queue_records: int
    fetch_bytes: int
    batch_bytes: int
    segments_bytes: int

    def batch_records(self, mean_record_bytes: float) -> int:
        """Return how many records of about this size to request from the client at once."""
        wanted = int(self.batch_bytes / (max(mean_record_bytes, 0.0) + _RECORD_OVERHEAD_BYTES))
        return max(1, min(LARGEST_BATCH, wanted))


def plan_memory(buffer_memory: int) -> MemoryPlan:
    """Divide `buffer_memory` bytes."""
    eighth = buffer_memory // 8
    queue_bytes = min(eighth, _LARGEST_QUEUE_BYTES)
    fetch_bytes = max(_SMALLEST_FETCH_BYTES, queue_bytes // 4)
    taken = queue_bytes * 2 + fetch_bytes + eighth
    return MemoryPlan(
        queue_bytes=queue_bytes,
        queue_records=max(1000, min(100_000, queue_bytes // _RECORD_OVERHEAD_BYTES)),
        fetch_bytes=fetch_bytes,
        batch_bytes=eighth // 2,
        segments_bytes=max(buffer_memory - taken, buffer_memory // 4),
    )
