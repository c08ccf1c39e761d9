"""Where the records of a key may be: for each record of a segment 32 bits of its key's hash, and its place.

A hash only says where to look. `matches` compares the whole key with that of the record, so two keys of one hash cost
a request and are never taken for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyfold.errors import KeyfoldError
from keyfold.log.arrow_numbers import Ints
from keyfold.log.avro import SegmentDamaged
from keyfold.log.codec import open_codec
from keyfold.log.index import Index, read_index_data
from keyfold.log.manifest import SegmentEntry
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.log.record_decoder import decode_record, decompress_block
from keyfold.read.blocks import BlockSource, damage_named, stored_blocks_at
from keyfold.read.index_parts import checked_parts
from keyfold.read.key_hash import key_hashes
from keyfold.runtime.arrow_types import column_of
from keyfold.store.api import ObjectStore

_COLUMNS: Final = ("offset", "key", "length")


@dataclass(frozen=True, slots=True)
class SegmentKeys:
    """The keys of one segment: `hashes` ascend, and `positions` has the place of the record of each.

    A place is a position in the segment's bytes without compression. The places of equal hashes ascend. `starts` has
    the place of each block, and of the end. `origin` is the object that says so.
    """

    source: BlockSource
    hashes: npt.NDArray[np.uint32]
    positions: npt.NDArray[np.unsignedinteger]
    starts: Ints
    origin: str

    @staticmethod
    def read(store: ObjectStore, place: Place, entry: SegmentEntry) -> SegmentKeys:
        """Make the directory of a segment from its index. Raises `Corrupt`, and `ObjectNotFound` if it was deleted."""
        data = read_index_data(store, place, entry)
        hashes, positions, start = [np.zeros(0, np.uint32)], [np.zeros(0, np.int64)], 0
        starts, source = [np.zeros(1, np.int64)], None
        with damage_named(place):
            for part in checked_parts(data, _COLUMNS, entry, place.key(entry.index_name)):
                at, ends = _places(part, start, place.key(entry.index_name))
                keys = part.rows.column("key").combine_chunks()
                with_key = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))
                hashes.append(key_hashes(keys.take(column_of(with_key))).astype(np.uint32))
                positions.append(at[with_key])
                starts.append(ends)
                start, source = int(ends[-1]), BlockSource.of(entry, part)
        assert source is not None, "a segment has records"
        joined = np.concatenate(hashes)
        order = np.argsort(joined, kind="stable")
        kind = np.uint32 if start < 2**32 else np.uint64
        places: npt.NDArray[np.unsignedinteger] = np.concatenate(positions)[order].astype(kind)
        return SegmentKeys(source, joined[order], places, np.concatenate(starts), place.key(entry.index_name))

    @property
    def size_bytes(self) -> int:
        """About the memory that it takes."""
        blocks = self.source.blocks
        table = (blocks.position, blocks.length, blocks.record_count, blocks.first_offset, blocks.crc32)
        return sum(column.nbytes for column in (self.hashes, self.positions, self.starts, *table))

    def candidates(self, hashes: npt.NDArray[np.int64]) -> dict[int, list[int]]:
        """Return the places of the records with these hashes, the newest first, by the number of the hash."""
        wanted = hashes.astype(np.uint32)
        low, high = np.searchsorted(self.hashes, wanted, "left"), np.searchsorted(self.hashes, wanted, "right")
        return {
            number: self.positions[low[number] : high[number]][::-1].tolist()
            for number in np.flatnonzero(high > low).tolist()
        }

    def records(
        self, store: ObjectStore, place: Place, wanted: Mapping[int, Sequence[int]]
    ) -> Iterator[tuple[int, Record]]:
        """Yield the records at these places with their number; each block is fetched once. Raises as `matches`."""
        by_block: dict[int, list[tuple[int, int]]] = {}
        for number, positions in wanted.items():
            for position in positions:
                block = int(np.searchsorted(self.starts, position, "right")) - 1
                by_block.setdefault(block, []).append((number, position - int(self.starts[block])))
        source, origin = self.source, place.key(self.source.entry.name)
        codec = open_codec(source.codec)
        with damage_named(place):
            for stored in stored_blocks_at(store, place, source, np.asarray(sorted(by_block), np.int64)):
                size = int(self.starts[stored.number + 1] - self.starts[stored.number])
                raw = bytes(decompress_block(stored, codec, origin=origin, raw_bytes=size))
                if len(raw) != size:
                    message = f"has {len(raw)} bytes without compression, but its index says {size}"
                    raise SegmentDamaged(origin, message, block=stored.number)
                for number, position in by_block[stored.number]:
                    yield number, self._record(raw, position, stored.number, origin)

    def _record(self, raw: bytes, position: int, block: int, origin: str) -> Record:
        try:
            record, _ = decode_record(raw, position)
        except (IndexError, ValueError) as error:
            raise SegmentDamaged(
                origin, f"has no record at {position}, where its index has one", block=block
            ) from error
        if not self.source.blocks.first_offset[block] <= record.offset <= self.source.entry.last_offset:
            raise SegmentDamaged(origin, f"has offset {record.offset} at {position}, outside of the block", block=block)
        return record


def _places(part: Index, start: int, origin: str) -> tuple[Ints, Ints]:
    """Return the place of each row of an index's part, which begins at `start`, and the place after each block.

    A block has its records one after the other, and nothing else.
    """
    lengths = part.ints("length").astype(np.int64)
    if (lengths <= 0).any():
        raise SegmentDamaged(origin, "has a record without bytes")
    first, end = part.part or (0, len(part.blocks))
    ends = start + np.cumsum(lengths)
    return ends - lengths, ends[np.cumsum(part.blocks.record_count[first:end]) - 1]


def _require_hash(place: Place, keys: SegmentKeys, record: Record, wanted: int) -> None:
    """Raise `Corrupt` if a record of another key has not even its hash: then the index says a wrong place."""
    if record.key is None or int(key_hashes(pa.array([record.key], pa.binary()))[0]) != wanted:
        with damage_named(place):
            raise SegmentDamaged(
                keys.origin, f"has a key at offset {record.offset} that its segment does not have there"
            )


class RecordsTooLarge(KeyfoldError):
    """The records that were asked for have more bytes than the caller allows."""


@dataclass(slots=True)
class ByteLimit:
    """How many more bytes of records a caller takes; None: any number. One record is always taken."""

    left_bytes: int | None = None
    taken: int = 0

    def take(self, record: Record) -> None:
        """Count a record. Raises `RecordsTooLarge`."""
        self.taken += 1
        if self.left_bytes is None:
            return
        self.left_bytes -= len(record.key or b"") + len(record.value or b"")
        if self.left_bytes < 0 and self.taken > 1:
            raise RecordsTooLarge(
                "the records that were asked for have more bytes than an answer may", hint="ask for fewer at once"
            )


def matches(
    store: ObjectStore,
    place: Place,
    keys: SegmentKeys,
    wanted: Sequence[bytes],
    hashes: npt.NDArray[np.int64],
    count: int = 1,
    limit: ByteLimit | None = None,
) -> dict[int, list[Record]]:
    """Return the last `count` records of each key in a segment, from the newest on, by the number of the key.

    Raises `Corrupt`, `RecordsTooLarge`, and `ObjectNotFound` if the segment was deleted.
    """
    found: dict[int, list[Record]] = {}
    places = keys.candidates(hashes)
    while places:
        # Nearly every record with a key's hash has the key, so more of them are rarely needed.
        due = {number: at[: count - len(found.get(number, ()))] for number, at in places.items()}
        for number, record in keys.records(store, place, due):
            if record.key == wanted[number]:
                if limit is not None:
                    limit.take(record)
                found.setdefault(number, []).append(record)
            else:
                _require_hash(place, keys, record, int(hashes[number]))
        rest = {number: at[len(due[number]) :] for number, at in places.items() if len(found.get(number, ())) < count}
        places = {number: at for number, at in rest.items() if at}
    return {number: sorted(each, key=lambda record: -record.offset) for number, each in found.items()}
