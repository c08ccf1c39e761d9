"""One memory budget for all partitions of a task, the Kafka client's own queue included.

`buffer.memory` is divided once:

    an eighth     fetched records that wait in the client (the payload; as much again for its bookkeeping)
    an eighth     the batch of Python objects that the client has returned
    the rest      segments that are being filled, and finished ones in flight to the store

When open segments fill more than half of the rest, the largest are finished and uploaded. If the store is slow, and
open segments and those in flight reach the whole rest, reading pauses until they have shrunk to four fifths of it. A
partition with more bytes in flight than are still free is slow by itself. Only that partition is paused then, and its
bytes no longer count against the others.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

K = TypeVar("K", bound=Hashable)

MIN_BUFFER_MEMORY: Final = 16 * 1024 * 1024
LARGEST_BATCH: Final = 10_000

# The overhead of one record in the client and in Python (an op, a Message with its objects).
_RECORD_OVERHEAD_BYTES: Final = 600
_LARGEST_QUEUE_BYTES: Final = 64 * 1024 * 1024
_SMALLEST_FETCH_BYTES: Final = 1024 * 1024
_SMALLEST_SHARE: Final = 16


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


def plan(buffer_memory: int) -> MemoryPlan:
    """Divide `buffer_memory` bytes."""
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
    """Return the bytes to reserve for large records, which exist three times for a moment while they are encoded."""
    return min(int(large_record_bytes * 2), limit_bytes // 2)


def to_roll(held: Mapping[K, int], in_flight_bytes: int, limit_bytes: int) -> list[K]:
    """Return the segments to finish now: the largest first, until the others are below half of the limit.

    Return none while half of the limit is already in flight: that would only make smaller segments.
    """
    half = limit_bytes // 2
    excess = sum(held.values()) - half
    if excess <= 0 or in_flight_bytes >= half:
        return []  # the usual case: avoid sorting thousands of partitions after each batch
    chosen: list[K] = []
    for key, size_bytes in sorted(held.items(), key=lambda item: -item[1]):
        if excess <= 0 or in_flight_bytes >= half:
            break
        chosen.append(key)
        excess -= size_bytes
        in_flight_bytes += size_bytes
    return chosen


def takes_too_much(sent_bytes: int, free_bytes: int, limit_bytes: int) -> bool:
    """Whether to pause one partition of several, because its uploads are slow.

    A partition may have as many bytes in flight as are free. So the first slow partition gets at most half of the
    limit, the next a third of it, and some memory always remains for the others.
    """
    return sent_bytes > max(free_bytes, limit_bytes // _SMALLEST_SHARE)


def takes_little_again(sent_bytes: int, free_bytes: int, limit_bytes: int) -> bool:
    """Whether to resume such a partition. The limit is well below, because a pause discards fetched records."""
    return sent_bytes <= max(free_bytes, limit_bytes // _SMALLEST_SHARE) // 2


class InFlight:
    """Bytes in flight to the store, of one partition or of all. Thread-safe."""

    def __init__(self, of_all: InFlight | None = None) -> None:
        self._of_all = of_all
        self._lock = threading.Lock()
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        """The current number of bytes."""
        return self._bytes

    def add(self, size_bytes: int) -> None:
        """Add bytes; a negative number removes them."""
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
        """Return whether reading must pause, given the bytes in use now."""
        self.on = used_bytes >= self._limit_bytes if not self.on else used_bytes >= self._limit_bytes * 4 // 5
        return self.on
