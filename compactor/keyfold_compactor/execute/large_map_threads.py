"""The three steps of `execute.large_map` in the threads of one process, with files between the steps.

The candidates of a bucket go to a file, because all of them together are the keys of the log. So memory holds a few
segments' indexes, a few buckets, and one bit per record of the log.
"""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import ObjectStore
from keyfold_compactor.decide.plan import SegmentStats
from keyfold_compactor.decide.work import LogJob, MaskKey
from keyfold_compactor.execute.large_map import Candidates, Superseded, decide, match, split
from keyfold_compactor.execute.mapping import Mapped, packed, unpacked

# With more buckets, opening files takes longer than matching.
BUCKETS_MAX: Final = 2_000
_HEAD: Final = struct.Struct("<qq")


def map_large(
    job: LogJob, store: ObjectStore, retry: RetryPolicy, *, threads: int, map_bytes: int
) -> tuple[tuple[SegmentStats, ...], dict[MaskKey, bytes]]:
    """Map a log whose indexes exceed `map_bytes`; return its stats by position, and the masks that units will need.

    Raise `Corrupt`, `StoreError`, and `OSError` if the temporary folder is full.
    """
    bucket_count = max(threads, min(BUCKETS_MAX, math.ceil(4 * job.index_bytes / map_bytes)))
    positions = range(len(job.entries))
    masks: dict[MaskKey, bytes] = {}
    stats: list[SegmentStats] = []
    with (
        TemporaryDirectory(prefix="keyfold-map-") as folder,
        ThreadPoolExecutor(threads, "keyfold-map") as pool,
    ):
        found = _SupersededRows(job)
        buckets = _BucketFiles(Path(folder), bucket_count)
        _drain(pool.map(partial(_split, job, store, retry, buckets, found), positions))
        _drain(pool.map(partial(_match, job, buckets, found), range(bucket_count)))
        for at, segment_stats, mask in pool.map(partial(_decide, job, store, retry, found), positions):
            stats.append(segment_stats)
            if mask is not None:
                masks[job.number, at] = mask
    return tuple(stats), masks


class _SupersededRows:
    """The superseded rows of every segment, one bit per record. Thread-safe."""

    def __init__(self, job: LogJob) -> None:
        self._counts = [entry.record_count for entry in job.entries]
        self._bits: dict[int, bytes] = {}
        self._lock = threading.Lock()

    def add(self, item: Superseded) -> None:
        rows = np.frombuffer(item.rows, np.int32)
        if not len(rows):
            return
        with self._lock:
            known = self._bits.get(item.position)
            count = self._counts[item.position]
            mask = np.zeros(count, np.bool_) if known is None else unpacked(known, count)
            mask[rows] = True
            self._bits[item.position] = packed(mask)

    def of(self, position: int) -> list[bytes]:
        """Return the rows as `large_map.decide` wants them."""
        known = self._bits.get(position)
        if known is None:
            return []
        return [np.flatnonzero(unpacked(known, self._counts[position])).astype(np.int32).tobytes()]


class _BucketFiles:
    """The candidates of each bucket, in a file of its own. Thread-safe while candidates are added."""

    def __init__(self, folder: Path, count: int) -> None:
        self.count = count
        self._folder = folder
        self._locks = [threading.Lock() for _ in range(count)]

    def add(self, bucket: int, item: Candidates) -> None:
        with self._locks[bucket], self._path(bucket).open("ab") as file:
            file.write(_HEAD.pack(item.position, len(item.data)))
            file.write(item.data)

    def read(self, bucket: int) -> Iterator[Candidates]:
        path = self._path(bucket)
        if not path.exists():
            return
        with path.open("rb") as file:
            while head := file.read(_HEAD.size):
                position, size_bytes = _HEAD.unpack(head)
                yield Candidates(position, file.read(size_bytes))
        path.unlink()

    def _path(self, bucket: int) -> Path:
        return self._folder / str(bucket)


def _split(
    job: LogJob, store: ObjectStore, retry: RetryPolicy, buckets: _BucketFiles, found: _SupersededRows, position: int
) -> None:
    for item in split(job, position, store, retry, buckets.count):
        if isinstance(item, Superseded):
            found.add(item)
        else:
            buckets.add(*item)


def _match(job: LogJob, buckets: _BucketFiles, found: _SupersededRows, bucket: int) -> None:
    for item in match(job, buckets.read(bucket)):
        found.add(item)


def _decide(job: LogJob, store: ObjectStore, retry: RetryPolicy, found: _SupersededRows, position: int) -> Mapped:
    return decide(job, position, found.of(position), store, retry)


def _drain(results: Iterator[None]) -> None:
    """Wait for all results; raise the first error."""
    for _ in results:
        pass
