"""One memory budget for the segments of all partitions of a task.

The limit is the share of `buffer.memory` that `keyfold_sink.config.memory_plan` leaves for segments.

When open segments fill more than half of the limit, the largest are finished and uploaded. If the store is slow, and
open segments and those in flight reach the limit, reading pauses until they have shrunk to four fifths of it. A
partition with more bytes in flight than are still free is slow by itself. Only that partition is paused then, and its
bytes no longer count against the others.

Over many partitions blocks are smaller. A block is compressed once it is full, so a segment that is finished before its
first block is full takes the memory of its uncompressed records, and holds half as many.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from typing import Final, TypeVar

from keyfold.log.segment import DEFAULT_BLOCK_BYTES

K = TypeVar("K", bound=Hashable)

_SMALLEST_SHARE: Final = 16
_SMALLEST_BLOCK_BYTES: Final = 64 * 1024
_BLOCKS_OF_A_SHARE: Final = 4


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


def block_bytes(partitions: int, limit_bytes: int) -> int:
    """Return the size of blocks before compression, of which several fit into a segment's share of the memory."""
    share_bytes = limit_bytes // 2 // max(partitions, 1)
    return max(_SMALLEST_BLOCK_BYTES, min(share_bytes // _BLOCKS_OF_A_SHARE, DEFAULT_BLOCK_BYTES))


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


class PauseThreshold:
    """Whether reading must pause, with hysteresis."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.on = False

    def update(self, used_bytes: int) -> bool:
        """Return whether reading must pause, given the bytes in use now."""
        self.on = used_bytes >= self._limit_bytes if not self.on else used_bytes >= self._limit_bytes * 4 // 5
        return self.on
