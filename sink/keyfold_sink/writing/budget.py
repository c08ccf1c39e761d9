"""One memory budget for all partitions of a task, the Kafka client's own queue included.

`buffer.memory` is shared out once:

    an eighth     fetched records that wait in the client (its payload; as much again for its bookkeeping)
    an eighth     the batch that was handed over as Python objects
    the rest      segments that are being filled, and finished ones on their way to the store

While segments are being filled with more than half of that rest, the largest are finished and sent. When the store is
slow and filled plus sent reach the whole rest, nothing is read until it has shrunk to four fifths. A partition that has
more on its way than is still free is held up by something of its own: it alone is not read then, and its bytes are no
longer counted against the others.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

K = TypeVar("K", bound=Hashable)

MIN_BUFFER_MEMORY: Final = 16 * 1024 * 1024
LARGEST_BATCH: Final = 10_000

# What one record costs the client and Python beside its own bytes (an op, a Message with its objects).
_RECORD_OVERHEAD_BYTES: Final = 600
_LARGEST_QUEUE_BYTES: Final = 64 * 1024 * 1024
_SMALLEST_FETCH_BYTES: Final = 1024 * 1024
_SMALLEST_SHARE: Final = 16


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How `buffer.memory` is shared out; all in bytes but for the counts of records."""

    queue_bytes: int
    queue_records: int
    fetch_bytes: int
    batch_bytes: int
    segments_bytes: int

    def batch_records(self, mean_record_bytes: float) -> int:
        """How many records to ask the client for at once when one has about this many bytes."""
        wanted = int(self.batch_bytes / (max(mean_record_bytes, 0.0) + _RECORD_OVERHEAD_BYTES))
        return max(1, min(LARGEST_BATCH, wanted))


def plan(buffer_memory: int) -> MemoryPlan:
    """Share out `buffer_memory` bytes."""
    eighth = buffer_memory // 8
    queue_bytes = min(eighth, _LARGEST_QUEUE_BYTES)
    fetch_bytes = max(_SMALLEST_FETCH_BYTES, queue_bytes // 4)
    taken = queue_bytes * 2 + fetch_bytes + eighth
    return MemoryPlan(
        queue_bytes=queue_bytes,
        queue_records=max(1000, min(100_000, queue_bytes // _RECORD_OVERHEAD_BYTES)),
        fetch_bytes=fetch_bytes,
        batch_bytes=eighth,
        segments_bytes=max(buffer_memory - taken, buffer_memory // 4),
    )


def reserve(large_record_bytes: float, limit_bytes: int) -> int:
    """What of the limit is to be left free for large records: one that is encoded is there three times for a moment."""
    return min(int(large_record_bytes * 2), limit_bytes // 2)


def to_roll(held: Mapping[K, int], in_flight_bytes: int, limit_bytes: int) -> list[K]:
    """Which segments to finish now: the largest first, until the rest is below half of the limit.

    Nothing while half of the limit is already on its way: it would only make smaller segments.
    """
    half = limit_bytes // 2
    excess = sum(held.values()) - half
    if excess <= 0 or in_flight_bytes >= half:
        return []  # nearly always: no need to sort thousands of partitions after each batch
    chosen: list[K] = []
    for key, size_bytes in sorted(held.items(), key=lambda item: -item[1]):
        if excess <= 0 or in_flight_bytes >= half:
            break
        chosen.append(key)
        excess -= size_bytes
        in_flight_bytes += size_bytes
    return chosen


def takes_too_much(sent_bytes: int, free_bytes: int, limit_bytes: int) -> bool:
    """Whether one partition of several is to be read no more, because its way to the store holds it up.

    It may have on its way as much as is free. So the first that is stuck gets half of all at most, the next a third of
    it, and something is always left for those that go on.
    """
    return sent_bytes > max(free_bytes, limit_bytes // _SMALLEST_SHARE)


def takes_little_again(sent_bytes: int, free_bytes: int, limit_bytes: int) -> bool:
    """Whether such a partition may be read again: well below, for a pause throws away what was fetched."""
    return sent_bytes <= max(free_bytes, limit_bytes // _SMALLEST_SHARE) // 2


class InFlight:
    """Bytes that are on their way to the store, of one partition or of all. For the main thread and the senders."""

    def __init__(self, of_all: InFlight | None = None) -> None:
        self._of_all = of_all
        self._lock = threading.Lock()
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        """How many now."""
        return self._bytes

    def add(self, size_bytes: int) -> None:
        """Count bytes in; a negative number counts them out."""
        with self._lock:
            self._bytes += size_bytes
        if self._of_all is not None:
            self._of_all.add(size_bytes)


class Brake:
    """Whether reading must pause, with hysteresis."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.on = False

    def update(self, used_bytes: int) -> bool:
        """Judge by what is used now, and say whether reading must pause."""
        self.on = used_bytes >= self._limit_bytes if not self.on else used_bytes >= self._limit_bytes * 4 // 5
        return self.on
