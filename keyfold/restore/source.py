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
import pyarrow.compute as pc

from keyfold.errors import Corrupt, ObjectNotFound
from keyfold.log.index import Index, Ints, read_index
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.read.fetch import BlockSource, damage_named, read_blocks_at, verify_hint
from keyfold.read.ordered import newer
from keyfold.read.position import check_resumed, end_offset, segments_between
from keyfold.restore.journal import PartitionPlan
from keyfold.restore.selection import Selection
from keyfold.store.api import ObjectStore

WINDOW_RECORDS: Final = 250_000
_COLUMNS: Final = ("offset", "timestamp", "length")


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """The wanted records of one segment: `rows` are their numbers in the index, `offsets` their offsets."""

    entry: SegmentEntry
    index: Index
    rows: Ints
    offsets: Ints


class Source:
    """One partition, one version at a time. For one thread."""

    def __init__(
        self, store: ObjectStore, place: Place, load: Callable[[], Manifest], selection: Selection, plan: PartitionPlan
    ) -> None:
        self.place = place
        self._store = store
        self._load = load
        self._selection = selection
        self._plan = plan
        self.manifest = load()
        self._latest: dict[str, Ints] | None = None

    def check(self, position: int) -> None:
        """Raise `OffsetOutOfRange` where going on at `position` could hide a record, as `check_resumed` says."""
        anchor = self._plan.anchor
        if self._selection.latest:
            # Of a deleted key only what came after the first version can be needed: before it, it was left out.
            check_resumed(replace(anchor, last_pass_epoch=self.manifest.purged_epoch), position, self.manifest)
            position = min(max(position, self._plan.planned_end), self.end)
        check_resumed(anchor, position, self.manifest)

    @property
    def end(self) -> int:
        """Where reading ends in this version, exclusive."""
        return end_offset(self.manifest, self._plan.to_offset)

    def renew(self, missing: ObjectNotFound | None, position: int) -> None:
        """Go on in the newest version. Raises `Corrupt` where it still lists what is `missing`."""
        self.manifest = self._load() if missing is None else newer(self.place, self._load, missing)
        self._latest = None
        self.check(position)

    def parts(self, position: int) -> Iterator[Part]:
        """Segments with wanted records at or behind `position`, in order. Raises `ObjectNotFound`, `Corrupt`."""
        end = self.end
        columns = (*_COLUMNS, "key") if self._selection.skip_keyless and not self._selection.latest else _COLUMNS
        if self._selection.latest and self._latest is None:
            self._latest = self._choose()
        for entry in segments_between(self.manifest, position, end):
            if self._latest is not None and not len(self._latest.get(entry.name, ())):
                continue
            index = read_index(self._store, self.place, entry, columns=columns)
            offsets = index.ints("offset")
            wanted = (offsets >= position) & (offsets < end)
            if self._latest is not None:
                wanted &= np.isin(offsets, self._latest[entry.name], assume_unique=True)
            elif self._selection.skip_keyless:
                wanted &= pc.is_valid(index.rows.column("key")).to_numpy()
            rows = np.flatnonzero(wanted)
            if len(rows):
                yield Part(entry, index, rows, offsets[rows])

    def windows(self, position: int, most: int = WINDOW_RECORDS) -> Iterator[Part]:
        """The same, in pieces of at most `most` records."""
        for part in self.parts(position):
            for at in range(0, len(part.rows), most):
                yield Part(part.entry, part.index, part.rows[at : at + most], part.offsets[at : at + most])

    def records(self, part: Part) -> Iterator[Record]:
        """The records of a part, all of them and no other. Raises `ObjectNotFound`, `Corrupt`."""
        source = BlockSource.of(part.entry, part.index)
        numbers = np.unique(np.searchsorted(source.blocks.first_offset, part.offsets, side="right") - 1)
        wanted = iter(part.offsets.tolist())
        awaited = next(wanted)
        with damage_named(self.place):
            for record in read_blocks_at(self._store, self.place, source, numbers):
                if record.offset == awaited:
                    yield record
                    awaited = next(wanted, -1)
                    if awaited < 0:
                        return
        raise Corrupt(
            self.place.topic,
            self.place.partition,
            f"segment `{part.entry.name}` has no record at offset {awaited}, and its index says it has",
            hint=verify_hint(self.place),
        )

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
            index = read_index(self._store, self.place, entry, columns=_COLUMNS)
            rows = np.flatnonzero(np.isin(index.ints("offset"), offsets, assume_unique=True))
            if len(rows):
                part = Part(entry, index, rows, index.ints("offset")[rows])
                yield from ((record.offset, record) for record in self.records(part))

    def _choose(self) -> dict[str, Ints]:
        """By segment, the offsets of the latest state, and of the tombstones that an earlier run may need."""
        last: dict[bytes, tuple[int, int]] = {}
        for number, entry in enumerate(self.manifest.segments):
            index = read_index(self._store, self.place, entry, columns=("offset", "key", "is_tombstone"))
            columns = (index.rows.column(name).to_pylist() for name in ("offset", "key", "is_tombstone"))
            for offset, key, is_tombstone in zip(*columns, strict=True):
                if key is None:
                    continue
                if is_tombstone and offset < self._plan.planned_end:
                    last.pop(key, None)
                else:
                    last[key] = (number, offset)
        chosen: dict[str, list[int]] = {entry.name: [] for entry in self.manifest.segments}
        for number, offset in last.values():
            chosen[self.manifest.segments[number].name].append(offset)
        return {name: np.sort(np.array(offsets, np.int64)) for name, offsets in chosen.items()}
