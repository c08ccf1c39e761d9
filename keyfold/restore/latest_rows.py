"""Which records a restore of the latest state takes, in bounded memory: those of `keyfold.read.latest`, and tombstones
that delete what an earlier run of the same restore may have written.

Those are the tombstones at or behind `kept_from`, the end of the version that the first run chose in: what it had left
out as deleted was deleted below that offset.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from keyfold.log.avro import SegmentDamaged
from keyfold.log.index import Index, read_index_data
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.read.fetch import damage_named
from keyfold.read.key_hash import HASHES
from keyfold.read.latest_keys import KeyRange, RowBits
from keyfold.store.api import ObjectStore

MEMORY_BYTES: Final = 128 * 1024 * 1024
"""For the keys of one partition; several may be restored at once."""

_COLUMNS: Final = ("offset", "key", "is_tombstone")


def choose_rows(
    store: ObjectStore, place: Place, manifest: Manifest, kept_from: int, memory_bytes: int = MEMORY_BYTES
) -> dict[str, RowBits]:
    """Segment name -> a bit for each of its records. Raises `Corrupt`, `ObjectNotFound`."""
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
        data = read_index_data(store, place, entry)
        key, expected = place.key(entry.index_name), entry.record_count
        with damage_named(place):
            for first, table in Index.groups_backwards(data, columns=_COLUMNS, origin=key):
                if first + table.num_rows != expected:
                    raise SegmentDamaged(key, f"does not have one row for each of the {entry.record_count} records")
                expected = first
                offsets, keys, tombstones = (table.column(name).combine_chunks() for name in _COLUMNS)
                deletes = np.asarray(tombstones.to_numpy(zero_copy_only=False)) & (offsets.to_numpy() < kept_from)
                for chosen in walk.take(keys, deletes):
                    rows[entry.name].add(chosen + first)
                if walk.is_too_wide:
                    return False
    return True
