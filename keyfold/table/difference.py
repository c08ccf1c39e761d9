"""What one version of a partition differs by from what a table shows: records to add, and rows to hide.

Two ways give the same difference:

    by new keys     Read the indexes after the shown end. The last record of each key there is added, unless it is a
                    tombstone. Rows of the table with one of these keys are hidden.
    by offsets      Choose the latest state of the whole log. Its offsets that the table does not have are added. Rows
                    of the table with other offsets are hidden.

The first reads as much of the log as is new, and the column of keys of the table. It is right if no tombstone was
removed that the table still needed. `keyfold.read.position` decides that, as for any reader that continues.

An offset names the same record for as long as the log continues. A log that was created again has other records under
the same offsets, so then all rows of the partition are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyfold.errors import OffsetOutOfRange
from keyfold.log.arrow_numbers import Ints
from keyfold.log.index import read_index_data
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.read.blocks import damage_named
from keyfold.read.index_parts import checked_parts
from keyfold.read.latest import Chosen, choose
from keyfold.read.latest_keys import RowBits
from keyfold.read.position import check_resumed
from keyfold.runtime.arrow_types import ArrowArray, column_of
from keyfold.store.api import ObjectStore
from keyfold.table.table import OFFSET_ID, PARTITION_ID, Flags, ShownVersion, TableFile, TableVersion, united

NEW_RECORDS_MAX: Final = 2_000_000
"""With more new records than this, all keys of them are not held in memory; the difference is by offsets then."""


class Way(StrEnum):
    """How a difference was found."""

    NEW_KEYS = "new keys"
    OFFSETS = "offsets"
    ALL_ROWS = "all rows"


@dataclass(frozen=True, slots=True)
class Difference:
    """What changes in one partition: the records to add, and the positions of rows to hide by data file."""

    way: Way
    added: Chosen
    hidden: Mapping[str, Ints]
    reason: str = ""

    @property
    def added_count(self) -> int:
        """How many records are added."""
        return sum(bits.count() for bits in self.added.rows)


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """The rows of one partition in a table: its data files, and the field whose values are the keys' bytes."""

    version: TableVersion
    partition: int
    files: Sequence[TableFile]
    key_id: int

    def visible(self, field_id: int) -> Iterator[tuple[TableFile, ArrowArray, Ints]]:
        """Yield values of a column of the visible rows, with their positions in the data file."""
        for file in self.files:
            ids = [field_id] if len(file.partitions) == 1 else [field_id, PARTITION_ID]
            for first, table in self.version.rows(file, ids):
                keep = self.version.is_visible(file, first, table.num_rows)
                columns = [table.column(number).combine_chunks() for number in range(table.num_columns)]
                values = columns[0] if columns else pa.nulls(table.num_rows)
                if len(ids) > 1:
                    keep &= columns[1].to_numpy() == self.partition
                positions = np.flatnonzero(keep)
                yield file, values.take(column_of(positions)), positions + first


def difference(
    store: ObjectStore, place: Place, manifest: Manifest, shown: ShownVersion | None, rows: PartitionRows
) -> Difference:
    """Return the difference of `manifest` from what a table shows of the partition.

    Raises `Corrupt`, and `ObjectNotFound` if the version was replaced and deleted.
    """
    if shown is None:
        return _rebuilt(store, place, manifest, rows, "")
    try:
        check_resumed(shown.anchor, shown.next_offset, manifest)
    except OffsetOutOfRange as error:
        if manifest.log_id == shown.anchor.log_id and manifest.next_offset >= shown.next_offset:
            return _by_offsets(store, place, manifest, rows)  # only a tombstone is missing, or the log start moved
        return _rebuilt(store, place, manifest, rows, error.message.removeprefix(f"{place}: "))
    new = sum(entry.record_count for entry in manifest.segments if entry.last_offset >= shown.next_offset)
    if new > NEW_RECORDS_MAX:
        return _by_offsets(store, place, manifest, rows)
    return _by_new_keys(store, place, manifest, rows, shown.next_offset)


def _rebuilt(store: ObjectStore, place: Place, manifest: Manifest, rows: PartitionRows, reason: str) -> Difference:
    hidden = _hidden(rows, OFFSET_ID, lambda offsets: np.ones(len(offsets), np.bool_))
    return Difference(Way.ALL_ROWS, choose(store, place, manifest), hidden, reason)


def _by_new_keys(store: ObjectStore, place: Place, manifest: Manifest, rows: PartitionRows, start: int) -> Difference:
    added, keys = _last_of_new_keys(store, place, manifest, start)
    hidden = _hidden(rows, rows.key_id, lambda found: _are_in(found, keys)) if len(keys) else {}
    start = manifest.log_start_offset
    old = replace(rows, files=[file for file in rows.files if file.first_offset < start])
    for path, positions in _hidden(old, OFFSET_ID, lambda offsets: offsets.to_numpy() < start).items():
        hidden[path] = united(hidden.get(path, _NO_INTS), positions)
    return Difference(Way.NEW_KEYS, added, hidden)


def _are_in(found: ArrowArray, keys: ArrowArray) -> Flags:
    # A column of text holds keys that are UTF-8; no other key is equal to one of them.
    flags: Flags = pc.is_in(found.cast(pa.binary()), value_set=keys).to_numpy(zero_copy_only=False)
    return flags


def _last_of_new_keys(store: ObjectStore, place: Place, manifest: Manifest, start: int) -> tuple[Chosen, ArrowArray]:
    """Return the last record of each key at or after `start`, without tombstones, and all these keys."""
    bits = tuple(RowBits(entry.record_count) for entry in manifest.segments)
    keys: list[ArrowArray] = [pa.array([], pa.binary())]
    tombstones, segments, places = [_NO_FLAGS], [_NO_INTS], [_NO_INTS]
    for number, entry in enumerate(manifest.segments):
        if entry.last_offset < start:
            continue
        data = read_index_data(store, place, entry)
        row = 0
        with damage_named(place):
            for part in checked_parts(data, ("offset", "key", "is_tombstone"), entry, place.key(entry.index_name)):
                found = part.rows.column("key").combine_chunks()
                wanted = np.flatnonzero(
                    (part.ints("offset") >= start) & found.is_valid().to_numpy(zero_copy_only=False)
                )
                keys.append(found.take(column_of(wanted)))
                tombstones.append(part.is_tombstone[wanted])
                places.append(wanted + row)
                segments.append(np.full(len(wanted), number))
                row += len(part)
    coded = pa.concat_arrays(keys).dictionary_encode()
    last = np.zeros(len(coded.dictionary), np.int64)
    last[coded.indices.to_numpy()] = np.arange(len(coded))  # of several rows the last one stays
    live = last[~np.concatenate(tombstones)[last]]
    in_segment, at = np.concatenate(segments)[live], np.concatenate(places)[live]
    for number in np.flatnonzero(np.bincount(in_segment)).tolist():
        bits[number].add(at[in_segment == number])
    return Chosen(manifest, bits), coded.dictionary


def newer_keys(store: ObjectStore, place: Place, manifest: Manifest, start: int) -> ArrowArray:
    """Return the keys of all records at or after `start`, tombstones too. Raises as `difference`."""
    return _last_of_new_keys(store, place, manifest, start)[1]


_NO_FLAGS: Final[Flags] = np.zeros(0, np.bool_)
_NO_INTS: Final[Ints] = np.zeros(0, np.int64)


def _by_offsets(store: ObjectStore, place: Place, manifest: Manifest, rows: PartitionRows) -> Difference:
    live = list(live_rows(store, place, manifest))
    wanted = np.concatenate([_NO_INTS, *(offsets for _, _, offsets in live)])
    present: list[Ints] = [_NO_INTS]

    def is_gone(offsets: ArrowArray) -> Flags:
        found = offsets.to_numpy()
        is_live = _found(found, wanted)
        present.append(found[is_live])
        return ~is_live

    hidden = _hidden(rows, OFFSET_ID, is_gone)
    known = np.sort(np.concatenate(present))
    bits = tuple(RowBits(entry.record_count) for entry in manifest.segments)
    for number, at, offsets in live:
        bits[number].add(at[~_found(offsets, known)])
    return Difference(Way.OFFSETS, Chosen(manifest, bits), hidden)


def live_rows(store: ObjectStore, place: Place, manifest: Manifest) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield the latest state: a segment's number, rows of it, and their offsets. Raises as `difference`."""
    chosen = choose(store, place, manifest)
    for number, (entry, bits) in enumerate(zip(chosen.manifest.segments, chosen.rows, strict=True)):
        if not bits:
            continue
        data = read_index_data(store, place, entry)
        row = 0
        with damage_named(place):
            for part in checked_parts(data, ("offset",), entry, place.key(entry.index_name)):
                at = np.flatnonzero(bits.flags(row, len(part)))
                yield number, at + row, part.ints("offset")[at]
                row += len(part)


def _found(values: Ints, ascending: Ints) -> Flags:
    """Return which values are among others."""
    if not len(ascending):
        return np.zeros(len(values), np.bool_)
    at = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    flags: Flags = ascending[at] == values
    return flags


def _hidden(rows: PartitionRows, field_id: int, is_gone: Callable[[ArrowArray], Flags]) -> dict[str, Ints]:
    """Return the visible rows to hide, by data file."""
    found: dict[str, list[Ints]] = {}
    for file, values, positions in rows.visible(field_id):
        gone = positions[is_gone(values)]
        if len(gone):
            found.setdefault(file.file.file_path, []).append(gone)
    return {path: np.concatenate(pieces) for path, pieces in found.items()}
