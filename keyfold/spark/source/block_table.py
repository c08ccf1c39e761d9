"""The block table of a segment by itself: planning wants to know where blocks begin, and none of the rows.

The table is in the footer of the segment's index, which has a check sum of its own, so the end of the object is enough.
"""

from __future__ import annotations

import struct
from typing import Final

from keyfold.log.avro import SegmentDamaged
from keyfold.log.index import BlockTable, Index
from keyfold.log.manifest import SegmentEntry
from keyfold.log.names import Place
from keyfold.read.fetch import damage_named
from keyfold.store.api import ObjectStore

TAIL_BYTES: Final = 64 * 1024
"""The footer of an index is rarely larger."""
_END: Final = struct.Struct("<I4s")


def read_block_table(
    store: ObjectStore, place: Place, entry: SegmentEntry, *, tail_bytes: int = TAIL_BYTES
) -> BlockTable:
    """Where the blocks of a segment are, by one request for `tail_bytes`, or two where the footer is larger.

    Raises `Corrupt`, and the errors of `ObjectStore.get_range`.
    """
    key = place.key(entry.index_name)
    with damage_named(place):
        tail = _tail(store, key, entry.index_size_bytes, tail_bytes)
        length, magic = _END.unpack(tail[-_END.size :]) if len(tail) >= _END.size else (0, b"")
        wanted = length + _END.size
        if magic != b"PAR1" or wanted > entry.index_size_bytes:
            raise SegmentDamaged(key, "the index does not end with Parquet's magic bytes")
        if wanted > len(tail):
            tail = _tail(store, key, entry.index_size_bytes, wanted)
        table = Index.block_table(tail, origin=key)
        if int(table.record_count.sum()) != entry.record_count:
            raise SegmentDamaged(
                key, f"has {int(table.record_count.sum())} records, but the manifest says {entry.record_count}"
            )
    return table


def _tail(store: ObjectStore, key: str, size_bytes: int, length: int) -> bytes:
    length = min(length, size_bytes)
    return store.get_range(key, size_bytes - length, length)
