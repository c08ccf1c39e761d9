"""Reads of any stored blocks of a segment, with few requests and verified bytes.

The index's block table has the place of each block. Blocks that are near each other are fetched together, up to
READ_AHEAD_BYTES. Each is compared with the table (position, length, count, CRC-32) before use, and the manifest's
checksum verifies the table.

Damage is `SegmentDamaged` internally and `Corrupt` for callers (`damage_named`). `ObjectNotFound` is passed to the
caller, which knows whether a newer version exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from keyfold.errors import Corrupt, StoreError
from keyfold.log.avro import SegmentDamaged, StoredBlock, parse_block
from keyfold.log.codec import Codec, open_codec
from keyfold.log.index import BlockTable, Index, Ints, read_index
from keyfold.log.manifest import SegmentEntry
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.log.record_decoder import decode_block, decompress_block
from keyfold.runtime.buffers import Bytes
from keyfold.store.api import ObjectStore

READ_AHEAD_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits of a reader's requests and of its memory."""

    read_ahead_bytes: int = READ_AHEAD_BYTES
    """Bytes that one request fetches; a larger block has a request of its own."""
    whole_bytes: int = 1024 * 1024
    """Segments up to this size are fetched whole: faster decoding would save less than one request costs."""
    memory_bytes_min: int = 1024 * 1024
    """Minimum memory for the keys of a latest state."""


READ_LIMITS: Final = ReadLimits()


@dataclass(frozen=True, slots=True)
class BlockSource:
    """A segment and its block table, to fetch any block without the index's rows."""

    entry: SegmentEntry
    blocks: BlockTable
    codec: str
    sync_marker: bytes

    @staticmethod
    def of(entry: SegmentEntry, index: Index) -> BlockSource:
        """Return the blocks of a parsed index."""
        return BlockSource(entry, index.blocks, index.codec, index.sync_marker)

    @staticmethod
    def read(store: ObjectStore, place: Place, entry: SegmentEntry) -> BlockSource:
        """Read the block table from the segment's index."""
        return BlockSource.of(entry, read_index(store, place, entry, columns=("offset",)))


@contextmanager
def damage_named(place: Place) -> Iterator[None]:
    """Turn a decoder's error into an error about this partition."""
    try:
        yield
    except SegmentDamaged as error:
        raise Corrupt(place.topic, place.partition, str(error), hint=verify_hint(place)) from error


def verify_hint(place: Place) -> str:
    """Return the hint for damage found by a reader."""
    return f"nothing was changed; run `{place.command('verify')}` to list what is damaged"


def read_blocks_at(store: ObjectStore, place: Place, source: BlockSource, numbers: Ints) -> Iterator[Record]:
    """Yield the records of the blocks `numbers` (ascending)."""
    key = place.key(source.entry.name)
    codec = open_codec(source.codec)
    for block in stored_blocks_at(store, place, source, numbers):
        yield from decode_block(block.stored, codec, sync_marker=None, origin=key, number=block.number)


def raw_blocks_at(
    store: ObjectStore,
    place: Place,
    source: BlockSource,
    codec: Codec,
    numbers: Ints,
    read_ahead_bytes: int = READ_AHEAD_BYTES,
) -> Iterator[tuple[int, Bytes]]:
    """Yield number and decompressed bytes of the blocks `numbers` (ascending). Raises `SegmentDamaged`."""
    key = place.key(source.entry.name)
    for block in stored_blocks_at(store, place, source, numbers, read_ahead_bytes):
        yield block.number, decompress_block(block, codec, origin=key)


def stored_blocks_at(
    store: ObjectStore, place: Place, source: BlockSource, numbers: Ints, read_ahead_bytes: int = READ_AHEAD_BYTES
) -> Iterator[StoredBlock]:
    """Yield the blocks `numbers` (ascending), each compared with the table. Raises `SegmentDamaged`."""
    key = place.key(source.entry.name)
    table = source.blocks
    for found in table.ranges(numbers, read_ahead_bytes):
        data = memoryview(_range(store, key, found.start, found.length))
        for number in found.numbers:
            at = int(table.position[number])
            stored = data[at - found.start : at - found.start + int(table.length[number])]
            block = parse_block(stored, source.sync_marker, origin=key, number=number, position=at)
            table.check(block, origin=key)
            yield block


def _range(store: ObjectStore, key: str, start: int, length: int) -> bytes:
    """Read a range of a segment. Raises `SegmentDamaged` if the segment is too short."""
    try:
        return store.get_range(key, start, length)
    except StoreError as error:
        if type(error) is StoreError and (size_bytes := store.head(key).size_bytes) < start + length:
            message = f"is cut off: it has {size_bytes} bytes, but its index lists at least {start + length}"
            raise SegmentDamaged(key, message) from error
        raise
