"""One partition of the log as a restore reads it: in windows whose offsets are known before a record is read.

Indexes say which offsets there are, so a window can be announced before its records are fetched; then only the blocks
that hold them are, in ranges. A window lies in one segment.

    whole log, or up to an offset    all records of the newest version, in order
    latest                           the last record of each key. Tombstones behind the end of the first version are
                                     kept: they delete what an earlier run may have restored

Going on in a newer version, in another run or after a 404, follows `keyfold.read.position`: without an end that was
asked for, the end moves to the newer version's, so a record that was compacted away is followed by the one that
superseded it; and a tombstone that was purged before it was passed is an error, never a key that lives on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyfold.errors import ObjectNotFound
from keyfold.log.avro import SegmentDamaged
from keyfold.log.index import Index, Ints, read_index_data
from keyfold.log.manifest import NO_OFFSET, Manifest, SegmentEntry
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.read.batches import SegmentRead, take_rows
from keyfold.read.blocks import READ_LIMITS, ReadLimits
from keyfold.read.fetch import damage_named
from keyfold.read.index_parts import checked_parts
from keyfold.read.key_hash import HASHES
from keyfold.read.latest_keys import KeyRange, RowBits
from keyfold.read.ordered import newer
from keyfold.read.position import Anchor, check_resumed, end_offset, segments_between
from keyfold.read.records import records_of
from keyfold.restore.journal import PartitionPlan
from keyfold.restore.rows import COLUMNS, Row, rows_of
from keyfold.restore.selection import RestoreSelection
from keyfold.store.api import ObjectStore

WINDOW_RECORDS: Final = 250_000
BATCH_BYTES: Final = 4 * 1024 * 1024
KEYS_BYTES: Final = 128 * 1024 * 1024
"""Memory for the keys of one partition; several partitions may be restored at once."""

_KEY_COLUMNS: Final = ("offset", "key", "is_tombstone")
_COLUMNS: Final = ("offset", "timestamp", "position", "length")


@dataclass(frozen=True, eq=False, slots=True)
class SegmentRecords:
    """Wanted records of a part of one segment's index: `rows` are their places in it, `offsets` their offsets."""

    entry: SegmentEntry
    index: Index
    rows: Ints
    offsets: Ints

    def keyless(self) -> npt.NDArray[np.bool_]:
        """Which of them have no key."""
        if not self.entry.keyless_count:
            return np.zeros(len(self.rows), np.bool_)
        flags: npt.NDArray[np.bool_] = _is_null(self.index)[self.rows]
        return flags


class RestoreSource:
    """One partition, one version at a time. For one thread."""

    def __init__(
        self,
        store: ObjectStore,
        place: Place,
        load: Callable[[], Manifest],
        selection: RestoreSelection,
        plan: PartitionPlan,
        *,
        batch_bytes: int = BATCH_BYTES,
        limits: ReadLimits = READ_LIMITS,
    ) -> None:
        self.place = place
        self._store = store
        self._load = load
        self._selection = selection
        self._plan = plan
        self._rows_wish = SegmentRead.of(0, 2**63 - 1, COLUMNS, None, batch_bytes, limits)
        self._all_wish = SegmentRead.of(0, 2**63 - 1, None, None, batch_bytes, limits)
        self._anchor = plan.anchor
        self._is_new = False
        self.manifest = load()
        self._latest: dict[str, RowBits] | None = None

    @property
    def anchor(self) -> Anchor:
        """What a reader that continues here knows of the log."""
        return self._anchor

    def go_on_from(self, anchor: Anchor | None) -> None:
        """Another run has read before this one, and knew this of the log (None: no more than the plan)."""
        self._anchor = anchor or self._plan.anchor

    def begin(self) -> None:
        """No run has announced anything yet: the version that is checked next is the first one that is read.

        Nothing is in the target that a tombstone deletes which was purged since the plan was made.
        """
        self._is_new = True

    def check(self, position: int) -> None:
        """Raise `OffsetOutOfRange` where going on at `position` could hide a record, as `check_resumed` says."""
        anchor, unpurged = self._anchor, replace(self.manifest, purged_to=NO_OFFSET)
        if self._is_new:
            anchor = check_resumed(anchor, position, unpurged)
            self._anchor = replace(anchor, version=self.manifest.version, last_pass_epoch=self.manifest.last_pass_epoch)
            self._is_new = False
            return
        if self._selection.latest:
            # Of a deleted key only what came after the first version can be needed: before it, it was left out.
            check_resumed(anchor, position, unpurged)
            position = min(max(position, self._plan.planned_end), self.end)
        self._anchor = check_resumed(anchor, position, self.manifest)

    @property
    def end(self) -> int:
        """Where reading ends in this version, exclusive."""
        return end_offset(self.manifest, self._plan.to_offset)

    def renew(self, missing: ObjectNotFound | None, position: int) -> None:
        """Continue in the newest version. Raises `Corrupt` if it still lists what is `missing`."""
        known = self.manifest.version
        self.manifest = self._load() if missing is None else newer(self.place, self._load, missing)
        if self.manifest.version != known:
            self._latest = None
        self.check(position)

    def parts(self, position: int) -> Iterator[SegmentRecords]:
        """Wanted records at or behind `position`, in order, some at a time. Raises `ObjectNotFound`, `Corrupt`."""
        end = self.end
        if self._selection.latest and self._latest is None:
            self._latest = choose_rows(self._store, self.place, self.manifest, self._plan.planned_end)
        for entry in segments_between(self.manifest, position, end):
            bits = None if self._latest is None else self._latest[entry.name]
            if bits is not None and not bits:
                continue
            first = 0
            for index in self._index(entry):
                offsets = index.ints("offset")
                wanted = (offsets >= position) & (offsets < end)
                if bits is not None:
                    wanted &= bits.flags(first, len(index))
                elif self._selection.skip_keyless and entry.keyless_count:
                    wanted &= ~_is_null(index)
                first += len(index)
                rows = np.flatnonzero(wanted)
                if len(rows):
                    yield SegmentRecords(entry, index, rows, offsets[rows])

    def _index(self, entry: SegmentEntry) -> Iterator[Index]:
        columns = (*_COLUMNS, "key") if entry.keyless_count else _COLUMNS
        data = read_index_data(self._store, self.place, entry)
        with damage_named(self.place):
            yield from checked_parts(data, columns, entry, self.place.key(entry.index_name))

    def windows(self, position: int, most: int = WINDOW_RECORDS) -> Iterator[SegmentRecords]:
        """The same, at most `most` records at a time."""
        for part in self.parts(position):
            for at in range(0, len(part.rows), most):
                yield SegmentRecords(part.entry, part.index, part.rows[at : at + most], part.offsets[at : at + most])

    def records(self, part: SegmentRecords) -> Iterator[Record]:
        """The records of a part, all of them and no other. Raises `ObjectNotFound`, `Corrupt`."""
        for batch in self._batches(part, self._all_wish):
            yield from records_of(batch)

    def rows(self, part: SegmentRecords) -> Iterator[Row]:
        """The same as rows for a producer."""
        for batch in self._batches(part, self._rows_wish):
            yield from rows_of(batch)

    def _batches(self, part: SegmentRecords, wish: SegmentRead) -> Iterator[pa.RecordBatch]:
        keep = np.zeros(len(part.index), np.bool_)
        keep[part.rows] = True
        with damage_named(self.place):
            for taken in take_rows(self._store, self.place, part.entry, part.index, keep, wish):
                yield taken.batch

    def at(self, offsets: Ints) -> dict[int, Record]:
        """Those of these offsets (ascending) that the newest version still has. Raises `Corrupt`."""
        while True:
            try:
                return dict(self._at(offsets))
            except ObjectNotFound as error:
                self.manifest = newer(self.place, self._load, error)
                self._latest = None

    def _at(self, offsets: Ints) -> Iterator[tuple[int, Record]]:
        if not len(offsets):
            return
        for entry in segments_between(self.manifest, int(offsets[0]), int(offsets[-1]) + 1):
            for index in self._index(entry):
                rows = np.flatnonzero(np.isin(index.ints("offset"), offsets, assume_unique=True))
                if len(rows):
                    part = SegmentRecords(entry, index, rows, index.ints("offset")[rows])
                    yield from ((record.offset, record) for record in self.records(part))


def _is_null(index: Index) -> npt.NDArray[np.bool_]:
    flags: npt.NDArray[np.bool_] = index.rows.column("key").combine_chunks().is_null().to_numpy(zero_copy_only=False)
    return flags


def choose_rows(
    store: ObjectStore, place: Place, manifest: Manifest, kept_from: int, memory_bytes: int = KEYS_BYTES
) -> dict[str, RowBits]:
    """Return the records of the latest state: a bit for each record of a segment, by the segment's name.

    They are those of `keyfold.read.latest`, and tombstones that delete what an earlier run of the same restore may have
    written: those at or behind `kept_from`, the end of the version in which the first run chose. Raises `Corrupt`,
    `ObjectNotFound`.
    """
    rows = {entry.name: RowBits(entry.record_count) for entry in manifest.segments}
    walk = KeyRange(0, HASHES, memory_bytes)
    while not _walk(store, place, manifest, walk, rows, kept_from) or walk.high < HASHES:
        walk = walk.narrower() if walk.is_too_wide else walk.next_one()
    return rows


def _walk(
    store: ObjectStore, place: Place, manifest: Manifest, walk: KeyRange, rows: dict[str, RowBits], kept_from: int
) -> bool:
    """Judge the rows of a walk's keys, from the newest to the oldest. False where it had to be given up."""
    for entry in reversed(manifest.segments):
        is_clean = entry.next_offset <= manifest.first_dirty_offset
        data = read_index_data(store, place, entry)
        key, expected = place.key(entry.index_name), entry.record_count
        with damage_named(place):
            for first, table in Index.groups_backwards(data, columns=_KEY_COLUMNS, origin=key):
                if first + table.num_rows != expected:
                    raise SegmentDamaged(key, f"does not have one row for each of the {entry.record_count} records")
                expected = first
                offsets, keys, tombstones = (table.column(name).combine_chunks() for name in _KEY_COLUMNS)
                deletes = np.asarray(tombstones.to_numpy(zero_copy_only=False)) & (offsets.to_numpy() < kept_from)
                for chosen in walk.take(keys, deletes, is_clean=is_clean):
                    rows[entry.name].add(chosen + first)
                if walk.is_too_wide:
                    return False
    return True
