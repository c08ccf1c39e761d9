"""Where the records of a key may be: for each record of a segment 32 bits of its key's hash, and its row.

A hash only says where to look. Whoever looks compares the whole key with that of the record, so two keys of one hash
cost a request and are never taken for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from keyfold.log.codec import open_codec
from keyfold.log.index import read_index_data
from keyfold.log.manifest import SegmentEntry
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.log.record_decoder import decode_block
from keyfold.read.blocks import BlockSource, damage_named, stored_blocks_at
from keyfold.read.index_parts import checked_parts
from keyfold.read.key_hash import key_hashes
from keyfold.runtime.arrow_types import column_of
from keyfold.store.api import ObjectStore

Numbers = npt.NDArray[np.uint32]
Hashes = npt.NDArray[np.int64]

ROW_BYTES: Final = 8
"""What the directory takes in memory for each record that has a key."""


@dataclass(frozen=True, slots=True)
class SegmentKeys:
    """The keys of one segment: `hashes` ascend, and `rows` has the row of each; equal hashes are in order of rows.

    `ends` has the row after each block.
    """

    source: BlockSource
    hashes: Numbers
    rows: Numbers
    ends: npt.NDArray[np.int64]

    @staticmethod
    def read(store: ObjectStore, place: Place, entry: SegmentEntry) -> SegmentKeys:
        """Make the directory of a segment from its index. Raises `Corrupt`, and `ObjectNotFound` if it was deleted."""
        data = read_index_data(store, place, entry)
        hashes: list[Numbers] = [np.zeros(0, np.uint32)]
        rows: list[Numbers] = [np.zeros(0, np.uint32)]
        first, source = 0, None
        with damage_named(place):
            for part in checked_parts(data, ("offset", "key"), entry, place.key(entry.index_name)):
                keys = part.rows.column("key").combine_chunks()
                at = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))
                hashes.append(key_hashes(keys.take(column_of(at))).astype(np.uint32))
                rows.append((at + first).astype(np.uint32))
                first += len(part)
                source = BlockSource.of(entry, part)
        assert source is not None, "a segment has records"
        joined = np.concatenate(hashes)
        order = np.argsort(joined, kind="stable")
        return SegmentKeys(source, joined[order], np.concatenate(rows)[order], np.cumsum(source.blocks.record_count))

    @property
    def size_bytes(self) -> int:
        """About the memory that it takes."""
        return ROW_BYTES * len(self.rows) + sum(column.nbytes for column in (self.ends, *self._table()))

    def _table(self) -> Iterator[npt.NDArray[np.int64]]:
        blocks = self.source.blocks
        yield from (blocks.position, blocks.length, blocks.record_count, blocks.first_offset, blocks.crc32)

    def candidates(self, hashes: Hashes) -> dict[int, list[tuple[int, int]]]:
        """Return where records with these hashes are: by block, pairs of the hash's number and the row in the block."""
        wanted = hashes.astype(np.uint32)
        low, high = np.searchsorted(self.hashes, wanted, "left"), np.searchsorted(self.hashes, wanted, "right")
        found: dict[int, list[tuple[int, int]]] = {}
        for number in np.flatnonzero(high > low).tolist():
            for row in self.rows[low[number] : high[number]].tolist():
                block = int(np.searchsorted(self.ends, row, "right"))
                start = int(self.ends[block] - self.source.blocks.record_count[block])
                found.setdefault(block, []).append((number, row - start))
        return found


def matches(
    store: ObjectStore, place: Place, keys: SegmentKeys, wanted: Sequence[bytes], hashes: Hashes
) -> Mapping[int, list[Record]]:
    """Return the records of a segment that have these keys, in order of offsets, by the number of the key.

    Only blocks that may have one are fetched. Raises `Corrupt`, and `ObjectNotFound` if the segment was deleted.
    """
    candidates = keys.candidates(hashes)
    found: dict[int, list[Record]] = {}
    if not candidates:
        return found
    source, origin = keys.source, place.key(keys.source.entry.name)
    codec = open_codec(source.codec)
    with damage_named(place):
        for block in stored_blocks_at(store, place, source, np.asarray(sorted(candidates), np.int64)):
            records = list(decode_block(block.stored, codec, sync_marker=None, origin=origin, number=block.number))
            for number, row in candidates[block.number]:
                record = records[row]
                if record.key == wanted[number]:
                    found.setdefault(number, []).append(record)
    return found
