"""All records of a log by key, in bounded memory: a 64-bit hash, an offset and flags for each, grouped by hash.

What is to be found out about keys (does one occur twice, is the newest of one missing) needs all records of a key side
by side. So every record becomes a row of 17 bytes; rows are cut into buckets by their hash, buckets that do not fit
memory go to a temporary file, and one bucket after the other is sorted. An index is read once for it, whatever the
number of records.

Two keys may have one hash: once in 2^64 / n pairs for keys that nobody chose for it. So what is concluded *against* a
log from equal hashes is a candidate, to be proved by the keys themselves.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import IO, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyfold.log.index import Index, Ints
from keyfold.runtime.arrow_types import ArrowArray, ArrowChunks
from keyfold.verify.row_checks import Words, flat_bytes

ROWS_AT_ONCE: Final = 4_000_000
"""Rows of one bucket, which are sorted in memory: 17 bytes each, and as much again while they are sorted."""
_ROWS_AT_A_WRITE: Final = 500_000
BUCKETS_MAX: Final = 65_536
"""Enough for 260 billion rows. How many rows to expect is a claim of a manifest, and must cost nothing by itself."""

Flags = npt.NDArray[np.uint8]
ROW: Final = np.dtype([("hash", "<u8"), ("offset", "<i8"), ("flags", "u1")])

IN_LOG: Final = 1
TOMBSTONE: Final = 2
MARKED: Final = 4
REPLACED: Final = 8
"""It is in an object that the log had once, and that is not collected yet."""
IN_TOPIC: Final = 16
COMPARED: Final = 32
"""Both sides were read at its offset."""

_FACTOR: Final = 0x9E3779B97F4A7C15
_MIX: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_POWERS: Final = 1024


def _powers(count: int) -> Words:
    powers = np.empty(count, np.uint64)
    power = 1
    for i in range(count):
        power = power * _FACTOR & 0xFFFF_FFFF_FFFF_FFFF
        powers[i] = power
    return powers


_FIRST_POWERS: Final = _powers(_POWERS)


def hashes_of(keys: ArrowArray) -> Words:
    """A hash of each key of an Arrow binary array without nulls."""
    lengths, flat = flat_bytes(keys)
    if not len(lengths):
        return np.empty(0, np.uint64)
    ends = np.cumsum(lengths)
    inside = np.arange(len(flat)) - np.repeat(ends - lengths, lengths)
    longest = int(lengths.max())
    powers = _FIRST_POWERS if longest <= _POWERS else _powers(longest)
    # One more than the byte, so that a zero byte counts; the length goes in too.
    sums = np.cumsum((flat.astype(np.uint64) + np.uint64(1)) * powers[inside], dtype=np.uint64)
    sums = np.concatenate([np.zeros(1, np.uint64), sums])
    found = sums[ends] - sums[ends - lengths] + lengths.astype(np.uint64) * np.uint64(_FACTOR)
    found = (found ^ (found >> np.uint64(30))) * _MIX[0]
    found = (found ^ (found >> np.uint64(27))) * _MIX[1]
    mixed: Words = found ^ (found >> np.uint64(31))
    return mixed


def row_flags(index: Index, base: int, *, with_marks: bool) -> Flags:
    """`base`, with what an index knows of each record of its."""
    flags: Flags = np.full(len(index), base, np.uint8)
    flags[index.is_tombstone] |= TOMBSTONE
    if with_marks:
        flags[index.rows.column("cleaned_epoch").is_valid().to_numpy()] |= MARKED
    return flags


@dataclass(frozen=True, slots=True)
class Grouped:
    """Rows of one bucket, by hash and then by offset; rows of one hash and offset are one, with all their flags."""

    hash: Words
    offset: Ints
    flags: Flags

    def followed(self) -> npt.NDArray[np.bool_]:
        """Which rows are not the last of their hash."""
        same = np.zeros(len(self.hash), np.bool_)
        same[:-1] = self.hash[1:] == self.hash[:-1]
        return same

    def value_before(self) -> Ints:
        """For each row the one of the newest value of its hash, at it or before it, that is in the log; else -1."""
        is_value = self.flags & (IN_LOG | TOMBSTONE) == IN_LOG
        found: Ints = np.maximum.accumulate(np.where(is_value, np.arange(len(self.hash)), -1))
        found[self.hash[found] != self.hash] = -1
        return found


@dataclass
class HashedRows:
    """Collects rows; several threads may add. A context manager, because of its temporary file."""

    expected: int
    rows_at_once: int = ROWS_AT_ONCE
    _held: list[npt.NDArray[np.void]] = field(default_factory=list)
    _held_count: int = 0
    _extents: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    _file: IO[bytes] | None = None
    _lock: Lock = field(default_factory=Lock)

    @property
    def bucket_count(self) -> int:
        """How many buckets the rows are cut into."""
        return min(BUCKETS_MAX, max(1, -(-self.expected // self.rows_at_once)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, keys: ArrowArray | ArrowChunks, offsets: Ints, flags: Flags) -> None:
        """Add records; those whose key is null are left out."""
        if isinstance(keys, pa.ChunkedArray):
            keys = keys.combine_chunks()
        if keys.null_count:
            has_key = keys.is_valid().to_numpy(zero_copy_only=False)
            offsets, flags = offsets[has_key], flags[has_key]
        rows = np.empty(len(offsets), ROW)
        rows["hash"], rows["offset"], rows["flags"] = hashes_of(keys), offsets, flags
        self.add_rows(rows)

    def add_rows(self, rows: npt.NDArray[np.void]) -> None:
        """Add rows that are hashed already."""
        with self._lock:
            self._held.append(rows)
            self._held_count += len(rows)
            if self.bucket_count > 1 and self._held_count >= min(_ROWS_AT_A_WRITE, self.rows_at_once):
                self._write()

    def _write(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="keyfold-keys-")  # noqa: SIM115 - closed on exit
        rows = np.concatenate(self._held)
        self._held, self._held_count = [], 0
        buckets = rows["hash"] % np.uint64(self.bucket_count)
        order = np.argsort(buckets, kind="stable")
        rows, buckets = rows[order], buckets[order]
        edges = np.searchsorted(buckets, np.arange(self.bucket_count + 1, dtype=np.uint64))
        at = self._file.seek(0, 2)
        for bucket in np.flatnonzero(np.diff(edges)).tolist():
            begin, end = int(edges[bucket]), int(edges[bucket + 1])
            place = at + begin * ROW.itemsize
            self._extents.setdefault(bucket, []).append((place, (end - begin) * ROW.itemsize))
        self._file.write(rows.tobytes())

    def drain(self) -> Iterator[npt.NDArray[np.void]]:
        """Rows that are held in memory, in the pieces in which they came; they are let go."""
        held, self._held, self._held_count = self._held, [], 0
        yield from held

    def groups(self) -> Iterator[Grouped]:
        """Bucket after bucket, without empty ones. Nothing may be added meanwhile."""
        if self.bucket_count > 1 and self._held:
            self._write()
        for bucket in sorted(self._extents) or [0]:
            rows = self._rows_of(bucket)
            if len(rows):
                yield _grouped(rows)

    def _rows_of(self, bucket: int) -> npt.NDArray[np.void]:
        parts = [np.empty(0, ROW)]
        if self._file is not None:
            for place, size in self._extents.get(bucket, ()):
                self._file.seek(place)
                parts.append(np.frombuffer(self._file.read(size), ROW))
        return np.concatenate([*parts, *self._held])


def _grouped(rows: npt.NDArray[np.void]) -> Grouped:
    order = np.lexsort((rows["offset"], rows["hash"]))
    hashes, offsets, flags = rows["hash"][order], rows["offset"][order], rows["flags"][order]
    is_new = np.ones(len(rows), np.bool_)
    is_new[1:] = (hashes[1:] != hashes[:-1]) | (offsets[1:] != offsets[:-1])
    firsts = np.flatnonzero(is_new)
    return Grouped(hashes[firsts], offsets[firsts], np.bitwise_or.reduceat(flags, firsts))
