"""Writer of a new segment and its index from records.

Small appends wait (`waiting_records`) until they fill a block; large ones are encoded immediately. Encoded records are
cut into blocks of `block_bytes` raw bytes; a larger record is a block by itself. The rest stays raw until the next
append. So an append of a few records extends a few arrays, and an append of thousands costs one pass.

`drain` returns stored bytes early, for an upload in parts; checksum and sizes cover all of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

import numpy as np

from keyfold.log.assembly import SEGMENT_LIMITS, Assembly, FinishedSegment, IndexRows, SegmentLimits, UncompressedBlock
from keyfold.log.codec import DEFAULT_CODEC, DEFAULT_LEVEL
from keyfold.log.record import RecordColumns
from keyfold.log.record_encoder import (
    FEW_RECORDS,
    EncodedRecords,
    Prepared,
    check_sizes,
    encode_few,
    prepare,
)
from keyfold.log.waiting_records import WaitingRecords

DEFAULT_BLOCK_BYTES: Final = 256 * 1024
"""One block of this size takes 6 to 24 % fewer stored bytes than four of 64 KiB. Larger blocks gain nothing more
(docs/decisions/0036)."""
# Readers accept up to `record_decoder.SEVERAL_BYTES_MAX`.
BLOCK_BYTES_MAX: Final = 5 * 1024 * 1024

# From this size on an append is encoded immediately: numpy's set-up (about 0.1 ms) is then small.
MANY_RECORDS: Final = 512
ENOUGH_RECORDS: Final = 128

# Bytes of a record in a block besides keys, values and headers.
_TYPICAL_OVERHEAD_BYTES: Final = 16


class SegmentWriter:
    """An unfinished segment. Not thread-safe."""

    def __init__(
        self,
        *,
        sync_marker: bytes,
        codec: str = DEFAULT_CODEC,
        level: int = DEFAULT_LEVEL,
        block_bytes: int = DEFAULT_BLOCK_BYTES,
        limits: SegmentLimits = SEGMENT_LIMITS,
    ) -> None:
        if not 0 < block_bytes <= BLOCK_BYTES_MAX:
            raise ValueError(f"blocks of {block_bytes} bytes")
        self._assembly = Assembly(sync_marker=sync_marker, codec=codec, level=level, limits=limits)
        self._limits = limits
        self._block_bytes = block_bytes
        self._last_offset = -1
        self._record_count = 0
        self._pending = WaitingRecords()
        self._open = UncompressedBlock()
        self._raw_bytes = 0

    def append(self, columns: RecordColumns) -> None:
        """Append records with ascending offsets, after all earlier ones.

        Raises `ValueError` if they do not ascend or a number does not fit; then no record of the batch is added.
        """
        count = len(columns)
        if not count:
            return
        if count >= MANY_RECORDS:
            prepared = prepare(columns, self._last_offset)
            self._encode_pending()
            self._cut_all(self._slices(prepared))
        else:
            self._pending.add(columns, self._last_offset)
        self._last_offset = int(columns.offsets[-1])
        self._record_count += count
        if self._is_worth_encoding():
            self._encode_pending()

    @property
    def record_count(self) -> int:
        """Number of records so far."""
        return self._record_count

    @property
    def last_offset(self) -> int:
        """Offset of the last record; -1 without records."""
        return self._last_offset

    @property
    def size_bytes(self) -> int:
        """Stored bytes if the segment ended now: exact for finished blocks, estimated for the rest."""
        stored = self._assembly.size_bytes
        waiting = self._pending_bytes() + self._open.size_bytes
        ratio = stored / self._raw_bytes if self._raw_bytes else 1.0
        return stored + int(waiting * min(ratio, 1.0))

    @property
    def memory_bytes(self) -> int:
        """Bytes that this writer holds, except for a constant."""
        pending_bytes = self._pending.content_bytes + self._pending.overhead_bytes
        return self._assembly.memory_bytes + pending_bytes + self._open.size_bytes

    def drain(self) -> list[bytes]:
        """Return finished stored bytes that were not returned yet."""
        return self._assembly.drain()

    def finish(self) -> FinishedSegment:
        """Complete the segment. Raises `ValueError` without any record, or on a second call."""
        self._encode_pending()
        if self._open.record_count:
            self._add_blocks((self._open,))
            self._open = UncompressedBlock()
        return self._assembly.finish()

    def _is_worth_encoding(self) -> bool:
        """Return whether a full block waits, in enough records for numpy's set-up to pay off, or in very large ones."""
        pending_bytes = self._pending_bytes()
        if pending_bytes < self._block_bytes:
            return False
        return len(self._pending) >= ENOUGH_RECORDS or pending_bytes >= 3 * self._block_bytes

    def _pending_bytes(self) -> int:
        """Return about the bytes that waiting records take in a block."""
        return self._pending.content_bytes + len(self._pending) * _TYPICAL_OVERHEAD_BYTES

    def _encode_pending(self) -> None:
        if not len(self._pending):
            return
        columns = self._pending.columns()
        few = len(columns) < FEW_RECORDS
        self._cut_all((encode_few(columns),) if few else self._slices(prepare(columns, -1)))
        self._pending = WaitingRecords()

    def _slices(self, prepared: Prepared) -> Iterator[EncodedRecords]:
        return prepared.slices(self._limits.slice_bytes, self._limits.small_binary_bytes)

    def _cut_all(self, slices: Iterable[EncodedRecords]) -> None:
        for encoded in slices:
            check_sizes(encoded)
            self._cut(encoded)

    def _cut(self, encoded: EncodedRecords) -> None:
        """Fill the open block and new blocks; the last block stays open."""
        ends, count = encoded.ends.data, len(encoded)
        full: list[UncompressedBlock] = []
        # Of each block that gets records: its number, how many it gets, and how far they move from the payload to it.
        number = self._assembly.block_count
        numbers: list[int] = []
        counts: list[int] = []
        moves: list[int] = []
        row, start = 0, 0
        while row < count:
            block = self._open
            end_row = bisect_right(ends, start + self._block_bytes - block.size_bytes, row)
            if end_row == row and block.record_count:
                full.append(block)
                self._open = UncompressedBlock()
                continue
            end_row = max(end_row, row + 1)
            end = ends[end_row - 1]
            numbers.append(number + len(full))
            counts.append(end_row - row)
            moves.append(block.size_bytes - start)
            # The records of an unfinished block may stay for long: copied, they do not hold the batch in memory.
            stays = end_row == count and block.size_bytes + end - start < self._block_bytes
            pieces = encoded.part(row, end_row, stays=stays)
            block.add(pieces, end - start, end_row - row, int(encoded.offsets[row]))
            row, start = end_row, end
        if self._open.size_bytes >= self._block_bytes:
            full.append(self._open)
            self._open = UncompressedBlock()
        self._add_blocks(full)
        self._assembly.add_rows(_index_rows(encoded, numbers, counts, moves))

    def _add_blocks(self, blocks: Sequence[UncompressedBlock]) -> None:
        self._assembly.add_raw(blocks)
        self._raw_bytes += sum(block.size_bytes for block in blocks)


def _index_rows(
    encoded: EncodedRecords, numbers: Sequence[int], counts: Sequence[int], moves: Sequence[int]
) -> IndexRows:
    """Return the index rows of records that were cut into the blocks `numbers`.

    Each block got the next of `counts` records, whose positions in it are those in the payload plus one of `moves`.
    """
    lengths = np.diff(encoded.ends, prepend=0)
    return IndexRows(
        encoded.offsets,
        encoded.timestamps,
        encoded.keys,
        encoded.is_tombstone,
        None,
        np.repeat(np.array(numbers, np.int32), counts),
        (encoded.ends - lengths + np.repeat(moves, counts)).astype(np.int32),
        lengths.astype(np.int32),
    )


def segment_bytes(finished: FinishedSegment, *drained: bytes) -> bytes:
    """Return a segment's bytes in one piece, from the drained and the remaining bytes."""
    return b"".join(chain(drained, finished.data))
