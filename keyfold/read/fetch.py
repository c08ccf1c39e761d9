"""Records of one segment, by as few bytes as the wanted offsets allow.

    all of a small segment     one GET; the manifest's SHA-256 is checked before the first record is given out
    all of a large segment     ranges of READ_AHEAD_BYTES, one after another; every block is checked as it comes, the
                               SHA-256 at the end
    a part of a segment        its index's block table says which blocks; neighbouring ones are fetched together

Memory is one range and one block. Every block that is read through a block table is compared with it (position,
length, count, first offset, CRC-32). A codec without a checksum of its own is always read through the table.

Damage is `Corrupt`; `ObjectNotFound` goes on to the caller, who knows whether the log has moved on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np

from keyfold.errors import Corrupt, StoreError
from keyfold.log.avro import SegmentDamaged, StoredBlock, parse_block, parse_header
from keyfold.log.codec import Bytes, Codec, open_codec
from keyfold.log.decode import decode_block, decompress_block, read_records
from keyfold.log.index import BlockTable, Index, Ints, read_index
from keyfold.log.manifest import SegmentEntry
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.store.api import ObjectStore

READ_AHEAD_BYTES: Final = 4 * 1024 * 1024
WHOLE_BYTES: Final = 8 * 1024 * 1024

_HEADER_BYTES: Final = 4096  # more than any header of format 1
_SELF_CHECKING: Final = frozenset({"zstandard", "snappy"})


@dataclass(frozen=True, slots=True)
class BlockSource:
    """A segment and what its index says of its blocks: enough to fetch any of them, without the index's rows."""

    entry: SegmentEntry
    blocks: BlockTable
    codec: str
    sync_marker: bytes

    @staticmethod
    def of(entry: SegmentEntry, index: Index) -> BlockSource:
        """The blocks of an index that was read."""
        return BlockSource(entry, index.blocks, index.codec, index.sync_marker)

    @staticmethod
    def read(store: ObjectStore, place: Place, entry: SegmentEntry) -> BlockSource:
        """Read the block table off the segment's index."""
        return BlockSource.of(entry, read_index(store, place, entry, columns=("offset",)))


@contextmanager
def damage_named(place: Place) -> Iterator[None]:
    """Turn what a decoder says about bytes into an error about this partition."""
    try:
        yield
    except SegmentDamaged as error:
        raise Corrupt(place.topic, place.partition, str(error), hint=verify_hint(place)) from error


def verify_hint(place: Place) -> str:
    """What to do about damage that a reader meets."""
    command = f"keyfold log verify <url> {place.topic} --partition {place.partition}"
    return f"nothing was changed; `{command}` says what is lost"


def read_segment(store: ObjectStore, place: Place, entry: SegmentEntry, start: int, end: int) -> Iterator[Record]:
    """Records of `entry` with `start <= offset < end`, in order."""
    with damage_named(place):
        if start > entry.base_offset or end <= entry.last_offset:
            yield from _part(store, place, entry, start, end)
        elif entry.size_bytes <= WHOLE_BYTES:
            yield from read_records(_whole(store, place, entry), origin=place.key(entry.name))
        else:
            yield from _streamed(store, place, entry)


def _whole(store: ObjectStore, place: Place, entry: SegmentEntry) -> bytes:
    key = place.key(entry.name)
    data = store.get(key).data
    if len(data) != entry.size_bytes:
        raise SegmentDamaged(key, f"has {len(data)} bytes, the manifest says {entry.size_bytes}")
    if hashlib.sha256(data).digest() != entry.checksum:
        _blame_block(store, place, entry, data)
        raise SegmentDamaged(key, "its SHA-256 is not the one in the manifest")
    return data


def _blame_block(store: ObjectStore, place: Place, entry: SegmentEntry, data: bytes) -> None:
    """Read damaged bytes through the block table, so that the error names the block where that is possible."""
    blocks = BlockSource.read(store, place, entry).blocks
    for _ in read_records(data, origin=place.key(entry.name), blocks=blocks):
        pass


def _streamed(store: ObjectStore, place: Place, entry: SegmentEntry) -> Iterator[Record]:
    key = place.key(entry.name)
    chunks = checked_chunks(store, key, entry)
    head = b""
    while len(head) < min(_HEADER_BYTES, entry.size_bytes):
        head += next(chunks)
    blocks = None
    if parse_header(head, origin=key).codec not in _SELF_CHECKING:
        blocks = BlockSource.read(store, place, entry).blocks
    yield from read_records(_joined(head, chunks), origin=key, blocks=blocks)


def checked_chunks(store: ObjectStore, key: str, entry: SegmentEntry) -> Iterator[bytes]:
    """A whole segment in ranges. Raises `SegmentDamaged` after the last where the SHA-256 differs."""
    digest = hashlib.sha256()
    for start in range(0, entry.size_bytes, READ_AHEAD_BYTES):
        chunk = store.get_range(key, start, min(READ_AHEAD_BYTES, entry.size_bytes - start))
        digest.update(chunk)
        yield chunk
    if digest.digest() != entry.checksum:
        raise SegmentDamaged(key, "its SHA-256 is not the one in the manifest")


def _joined(first: bytes, rest: Iterable[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _part(store: ObjectStore, place: Place, entry: SegmentEntry, start: int, end: int) -> Iterator[Record]:
    source = BlockSource.read(store, place, entry)
    first_offset = source.blocks.first_offset
    begin = max(0, int(np.searchsorted(first_offset, start, side="right")) - 1)
    stop = int(np.searchsorted(first_offset, end, side="left"))
    for record in read_blocks_at(store, place, source, np.arange(begin, stop)):
        if record.offset >= end:
            return
        if record.offset >= start:
            yield record


def read_blocks_at(store: ObjectStore, place: Place, source: BlockSource, numbers: Ints) -> Iterator[Record]:
    """Records of the blocks `numbers` (ascending). Neighbours are fetched together, up to READ_AHEAD_BYTES."""
    key = place.key(source.entry.name)
    codec = open_codec(source.codec)
    for block in stored_blocks_at(store, place, source, numbers):
        yield from decode_block(block.stored, codec, sync_marker=None, origin=key, number=block.number)


def raw_blocks_at(
    store: ObjectStore, place: Place, source: BlockSource, codec: Codec, numbers: Ints
) -> Iterator[tuple[int, Bytes]]:
    """Number and decompressed bytes of the blocks `numbers` (ascending). Raises `SegmentDamaged`."""
    key = place.key(source.entry.name)
    for block in stored_blocks_at(store, place, source, numbers):
        yield block.number, decompress_block(block, codec, origin=key)


def stored_blocks_at(store: ObjectStore, place: Place, source: BlockSource, numbers: Ints) -> Iterator[StoredBlock]:
    """The blocks `numbers` (ascending), each compared with the table. Raises `SegmentDamaged`."""
    key = place.key(source.entry.name)
    table = source.blocks
    for run in _runs(table, numbers):
        start = int(table.position[run[0]])
        length = int(table.position[run[-1]] + table.length[run[-1]]) - start
        data = memoryview(_range(store, key, start, length))
        for number in run:
            at = int(table.position[number])
            stored = data[at - start : at - start + int(table.length[number])]
            block = parse_block(stored, source.sync_marker, origin=key, number=number, position=at)
            table.check(block, origin=key)
            yield block


def _range(store: ObjectStore, key: str, start: int, length: int) -> bytes:
    """A range of a segment. Raises `SegmentDamaged` where the segment is too short to have it."""
    try:
        return store.get_range(key, start, length)
    except StoreError as error:
        if type(error) is StoreError and (size_bytes := store.head(key).size_bytes) < start + length:
            message = f"cut off: it has {size_bytes} bytes, its index names {start + length} and perhaps more"
            raise SegmentDamaged(key, message) from error
        raise


def _runs(blocks: BlockTable, numbers: Ints) -> Iterator[list[int]]:
    """Neighbouring blocks whose bytes fit one request."""
    run: list[int] = []
    for number in numbers.tolist():
        end = int(blocks.position[number] + blocks.length[number])
        if run and (number != run[-1] + 1 or end - int(blocks.position[run[0]]) > READ_AHEAD_BYTES):
            yield run
            run = []
        run.append(number)
    if run:
        yield run
