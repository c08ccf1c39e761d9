"""Latest state: the last record of each key of one version, without deleted keys.

The indexes are enough to choose the records: their rows have key and tombstone flag, and a later row wins. So a dirty
log gives the same result as a clean one. Then only the blocks with a chosen record are fetched. Records without a key
have no latest state and are omitted.

Memory holds `memory_bytes` for keys of the dirty part; if they do not fit, `keyfold.read.latest_keys` goes through the
indexes several times. A cache of indexes may have a sixteenth of `memory_bytes`. In addition there are a bit for each
record of the log, one index, and one batch.

A `Follower` can continue at the end of the state: `Latest.position` has the offset and the anchor of the version.

The result is a snapshot. If an object was deleted, the choice starts again in the newest version. After the first
returned record that would mix two states, so then a missing object raises `SnapshotLost`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Self, TypeVar

import numpy as np
import pyarrow as pa

from keyfold.errors import ObjectNotFound, SnapshotLost
from keyfold.log.avro import SegmentDamaged
from keyfold.log.index import Index, read_index_data
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.read.blocks import READ_LIMITS, ReadLimits, damage_named
from keyfold.read.follow import Position
from keyfold.read.index_parts import checked_parts
from keyfold.read.key_hash import HASHES
from keyfold.read.latest_keys import KEYS_AT_ONCE, KeyRange, RowBits
from keyfold.read.ordered import Load, newer
from keyfold.read.position import anchor_of
from keyfold.read.records import records_of
from keyfold.read.segment_reader import BATCH_BYTES, SegmentRead, index_columns, take_rows
from keyfold.store.api import ObjectStore

MEMORY_BYTES: Final = 512 * 1024 * 1024

_INDEXES_SHARE: Final = 16
_COLUMNS: Final = ("key", "is_tombstone")

T = TypeVar("T")


@dataclass(slots=True)
class IndexCache:
    """A cache of index objects. An index with more bytes than the remaining `room_bytes` is not cached."""

    room_bytes: int = 0
    _kept: dict[str, bytes] = field(default_factory=dict)

    def read(self, store: ObjectStore, place: Place, entry: SegmentEntry) -> bytes:
        """Return a segment's index. Raises the errors of `read_index_data`."""
        data = self._kept.get(entry.index_name)
        if data is None:
            data = read_index_data(store, place, entry)
            if len(data) <= self.room_bytes:
                self.room_bytes -= len(data)
                self._kept[entry.index_name] = data
        return data


@dataclass(frozen=True, slots=True)
class Chosen:
    """The records of the latest state of one version: a bit for each record of each segment."""

    manifest: Manifest
    rows: tuple[RowBits, ...]
    walk_count: int = 1
    indexes: IndexCache = field(default_factory=IndexCache)


class Latest(Generic[T]):
    """A latest state: an iterator for one use, and the position where it ends."""

    def __init__(self, items: Iterator[T], manifest: Callable[[], Manifest]) -> None:
        self._items = items
        self._manifest = manifest

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return next(self._items)

    @property
    def position(self) -> Position:
        """The position to follow the log from, without gaps and repetitions: `log.follow(start={partition: position})`.

        Read it after the first item: until then, the state may move to a newer version.
        """
        manifest = self._manifest()
        return Position(manifest.next_offset, anchor_of(manifest))


def read_latest(
    store: ObjectStore,
    place: Place,
    load: Load,
    *,
    memory_bytes: int = MEMORY_BYTES,
    limits: ReadLimits = READ_LIMITS,
) -> Latest[Record]:
    """Return the last record of each key of the newest version, in offset order. Chooses the records immediately."""
    fetched = _fetched(store, place, load, None, memory_bytes, limits=limits)
    return Latest((record for batch in fetched for record in records_of(batch)), lambda: fetched.chosen.manifest)


def read_latest_batches(
    store: ObjectStore,
    place: Place,
    load: Load,
    *,
    columns: Sequence[str] | None = None,
    memory_bytes: int = MEMORY_BYTES,
    batch_bytes: int = BATCH_BYTES,
    limits: ReadLimits = READ_LIMITS,
) -> Latest[pa.RecordBatch]:
    """Return the same as Arrow batches. Raises `ValueError` for an unknown column, or for too little memory."""
    fetched = _fetched(store, place, load, columns, memory_bytes, batch_bytes, limits)
    return Latest(iter(fetched), lambda: fetched.chosen.manifest)


def _fetched(
    store: ObjectStore,
    place: Place,
    load: Load,
    columns: Sequence[str] | None,
    memory_bytes: int,
    batch_bytes: int = BATCH_BYTES,
    limits: ReadLimits = READ_LIMITS,
) -> _Fetched:
    if memory_bytes < limits.memory_bytes_min:
        raise ValueError(f"memory_bytes is {memory_bytes}, but must be at least {limits.memory_bytes_min}")
    wish = SegmentRead.of(0, 2**63 - 1, columns, None, batch_bytes, limits)
    return _Fetched(store, place, load, choose_newest(store, place, load, memory_bytes), wish, memory_bytes)


def choose_newest(store: ObjectStore, place: Place, load: Load, memory_bytes: int = MEMORY_BYTES) -> Chosen:
    """Choose in the newest version, and again if it is replaced and deleted meanwhile."""
    manifest = load()
    while True:
        try:
            return choose(store, place, manifest, memory_bytes, indexes=IndexCache(memory_bytes // _INDEXES_SHARE))
        except ObjectNotFound as error:
            manifest = newer(place, load, error)


def count_superseded(
    store: ObjectStore, place: Place, load: Load, memory_bytes: int = MEMORY_BYTES
) -> tuple[Manifest, tuple[int, ...]]:
    """Count, per segment of the newest version, the records whose key has a later record. Reads all indexes."""
    manifest = load()
    while True:
        try:
            last = choose(store, place, manifest, memory_bytes, with_tombstones=True)
        except ObjectNotFound as error:
            manifest = newer(place, load, error)
            continue
        kept = zip(manifest.segments, last.rows, strict=True)
        return manifest, tuple(entry.record_count - entry.keyless_count - bits.count() for entry, bits in kept)


def choose(
    store: ObjectStore,
    place: Place,
    manifest: Manifest,
    memory_bytes: int = MEMORY_BYTES,
    keys_at_once: int = KEYS_AT_ONCE,
    *,
    with_tombstones: bool = False,
    indexes: IndexCache | None = None,
) -> Chosen:
    """Choose the latest state of `manifest` from its indexes. Raises `Corrupt`, `ObjectNotFound`.

    `with_tombstones`: choose the last record of each key also if it is a tombstone. `indexes`: the cache that indexes
    are read through.
    """
    indexes = indexes or IndexCache()
    rows = tuple(RowBits(entry.record_count) for entry in manifest.segments)
    walk = KeyRange(0, HASHES, memory_bytes, keys_at_once)
    count = 1
    while not _walk(store, place, manifest, walk, rows, indexes, with_tombstones=with_tombstones) or walk.high < HASHES:
        walk = walk.narrower() if walk.is_too_wide else walk.next_one()
        count += 1
    return Chosen(manifest, rows, count, indexes)


def _walk(
    store: ObjectStore,
    place: Place,
    manifest: Manifest,
    walk: KeyRange,
    rows: Sequence[RowBits],
    indexes: IndexCache,
    *,
    with_tombstones: bool,
) -> bool:
    """Judge the rows of a walk's keys, from newest to oldest. Return False if the walk was given up."""
    for entry, bits in zip(reversed(manifest.segments), reversed(rows), strict=True):
        is_clean = entry.next_offset <= manifest.first_dirty_offset
        data = indexes.read(store, place, entry)
        with damage_named(place):
            for first, table in _groups(data, entry, place.key(entry.index_name)):
                keys, tombstones = (table.column(name).combine_chunks() for name in _COLUMNS)
                omitted = tombstones.to_numpy(zero_copy_only=False)
                omitted = np.zeros_like(omitted) if with_tombstones else omitted
                for chosen in walk.take(keys, omitted, is_clean=is_clean):
                    bits.add(chosen + first)
                if walk.is_too_wide:
                    return False
    return True


def _groups(data: bytes, entry: SegmentEntry, key: str) -> Iterator[tuple[int, pa.Table]]:
    expected = entry.record_count
    for first, table in Index.groups_backwards(data, columns=_COLUMNS, origin=key):
        if first + table.num_rows != expected:
            raise SegmentDamaged(key, f"the index does not have one row for each of the {entry.record_count} records")
        yield first, table
        expected = first


def chosen_batches(store: ObjectStore, place: Place, chosen: Chosen, wish: SegmentRead) -> Iterator[pa.RecordBatch]:
    """Yield the chosen records as `wish` specifies. Raises `Corrupt`; callers handle `ObjectNotFound`."""
    for entry, bits in zip(chosen.manifest.segments, chosen.rows, strict=True):
        if not bits:
            continue
        data = chosen.indexes.read(store, place, entry)
        row = 0
        with damage_named(place):
            for part in checked_parts(data, index_columns(wish), entry, place.key(entry.index_name)):
                for taken in take_rows(store, place, entry, part, bits.flags(row, len(part)), wish):
                    yield taken.batch
                row += len(part)


@dataclass(slots=True)
class _Fetched:
    """A reader of the chosen records, which chooses again as long as it has returned none."""

    store: ObjectStore
    place: Place
    load: Load
    chosen: Chosen
    wish: SegmentRead
    memory_bytes: int

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        given_out = False
        while True:
            try:
                for batch in chosen_batches(self.store, self.place, self.chosen, self.wish):
                    given_out = True
                    yield batch
            except ObjectNotFound as error:
                newest = newer(self.place, self.load, error)
                if given_out:
                    raise self._lost(error, newest) from error
                self.chosen = choose_newest(self.store, self.place, self.load, self.memory_bytes)
            else:
                return

    def _lost(self, error: ObjectNotFound, newest: Manifest) -> SnapshotLost:
        return SnapshotLost(
            self.place.topic,
            self.place.partition,
            f"version {self.chosen.manifest.version} was replaced and deleted while its latest state was read "
            f"(`{error.key}` is missing; the newest version is {newest.version})",
            hint="read it again from the beginning; file.delete.delay.ms must be longer than such a read",
        )
