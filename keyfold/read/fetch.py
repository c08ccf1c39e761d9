"""Records of one segment, one after the other, by as few bytes as the wanted offsets allow.

    all of a small segment     one GET; the manifest's SHA-256 is checked before the first record is given out
    everything else            the index, and ranges of the blocks that hold the records (`segment_reader`):
                               decoded as Arrow batches, which takes half the time, and turned into records

Memory is one small segment, or one range and one small batch.

Damage is `Corrupt`; `ObjectNotFound` goes on to the caller, who knows whether the log has moved on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

from keyfold.errors import ObjectTooLarge
from keyfold.log.avro import SegmentDamaged
from keyfold.log.manifest import SegmentEntry
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.log.record_decoder import read_records
from keyfold.read.blocks import (
    READ_AHEAD_BYTES,
    READ_LIMITS,
    BlockSource,
    ReadLimits,
    damage_named,
    read_blocks_at,
    verify_hint,
)
from keyfold.read.records import records_of
from keyfold.read.segment_reader import SegmentRead, take_entry
from keyfold.store.api import ObjectStore

__all__ = ["READ_AHEAD_BYTES", "BlockSource", "damage_named", "read_blocks_at", "read_segment", "verify_hint"]

_BATCH_BYTES: Final = 1024 * 1024


def read_segment(
    store: ObjectStore, place: Place, entry: SegmentEntry, start: int, end: int, limits: ReadLimits = READ_LIMITS
) -> Iterator[Record]:
    """Records of `entry` with `start <= offset < end`, in order."""
    if start <= entry.base_offset and end > entry.last_offset and entry.size_bytes <= limits.whole_bytes:
        with damage_named(place):
            yield from read_records(_whole(store, place, entry), origin=place.key(entry.name))
        return
    for taken in take_entry(store, place, entry, SegmentRead.of(start, end, None, None, _BATCH_BYTES, limits)):
        yield from records_of(taken.batch)


def _whole(store: ObjectStore, place: Place, entry: SegmentEntry) -> bytes:
    key = place.key(entry.name)
    try:
        data = store.get(key, entry.size_bytes).data
    except ObjectTooLarge as error:
        raise SegmentDamaged(key, f"is larger than the {entry.size_bytes} bytes in the manifest") from error
    if len(data) != entry.size_bytes:
        raise SegmentDamaged(key, f"has {len(data)} bytes, but the manifest says {entry.size_bytes}")
    if hashlib.sha256(data).digest() != entry.checksum:
        _blame_block(store, place, entry, data)
        raise SegmentDamaged(key, "does not have the SHA-256 of the manifest")
    return data


def _blame_block(store: ObjectStore, place: Place, entry: SegmentEntry, data: bytes) -> None:
    """Read damaged bytes through the block table, so that the error names the block where that is possible."""
    blocks = BlockSource.read(store, place, entry).blocks
    for _ in read_records(data, origin=place.key(entry.name), blocks=blocks):
        pass
