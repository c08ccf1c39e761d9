"""Assembly of a segment and its index from blocks and rows, shared by the sink's writer and the rewriter.

Callers add blocks in order, as raw bytes to compress or as stored bytes to keep. They also add index rows in order,
each with its block number. `drain` returns stored bytes as soon as they exist, and rows go into Parquet row groups.
`memory_bytes` counts the bytes held in between.

Invariant: the block table has the sum of the blocks' record counts, and `finish` requires as many rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from isal.isal_zlib import crc32

from keyfold.log.avro import header_bytes, stored_block
from keyfold.log.codec import open_codec
from keyfold.log.index import ROW_GROUP_ROWS, ROWS, BlockTable, IndexWriter
from keyfold.log.manifest import UNSTAMPED, SegmentEntry
from keyfold.log.record_encoder import SLICE_BYTES, SMALL_BINARY_BYTES
from keyfold.runtime.arrow_types import ArrowArray, ArrowChunks, values_of
from keyfold.runtime.buffers import Bytes

NO_TIMESTAMP_MS: Final = -1

# Fixed-width bytes of a row that waits for its row group, and of a row of the block table.
_ROW_BYTES: Final = 38
_BLOCK_ROW_BYTES: Final = 200


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """Limits of the memory of an unfinished segment. The segment's bytes do not depend on them."""

    row_group_rows: int = ROW_GROUP_ROWS
    """Rows per row group of the index. Readers refuse more than `ROW_GROUP_ROWS`."""
    row_group_key_bytes: int = 64 * 1024 * 1024
    """Bytes of keys at which a row group ends early, so that large keys do not need more memory."""
    slice_bytes: int = SLICE_BYTES
    """Bytes of a large batch that are encoded at a time."""
    small_binary_bytes: int = SMALL_BINARY_BYTES
    """Bytes of a slice up to which Arrow's 32-bit offsets are used."""


SEGMENT_LIMITS: Final = SegmentLimits()


@dataclass(frozen=True, slots=True)
class FinishedSegment:
    """A complete segment and its index.

    `data` has the bytes that were not drained yet. Sizes and SHA-256 checksums are those of the whole objects.
    `min_timestamp` and `max_timestamp` (ms) ignore -1, Kafka's "no timestamp", and are -1 if there is no other.
    """

    data: list[bytes]
    index_data: bytes
    first_offset: int
    last_offset: int
    record_count: int
    tombstone_count: int
    unmarked_tombstone_count: int
    keyless_count: int
    size_bytes: int
    index_size_bytes: int
    min_timestamp: int
    max_timestamp: int
    checksum: bytes
    index_checksum: bytes
    cleaned_epochs: tuple[int, ...] = ()

    def entry(
        self, name: str, index_name: str, *, base_offset: int, next_offset: int, appended_at_ms: int = UNSTAMPED
    ) -> SegmentEntry:
        """Return the manifest's entry for this segment with these names and the range `[base_offset, next_offset)`."""
        if not base_offset <= self.first_offset <= self.last_offset < next_offset:
            records = f"[{self.first_offset}, {self.last_offset}]"
            raise ValueError(f"records {records} are outside the range [{base_offset}, {next_offset})")
        return SegmentEntry(
            name=name,
            index_name=index_name,
            base_offset=base_offset,
            last_offset=self.last_offset,
            next_offset=next_offset,
            record_count=self.record_count,
            tombstone_count=self.tombstone_count,
            unmarked_tombstone_count=self.unmarked_tombstone_count,
            keyless_count=self.keyless_count,
            size_bytes=self.size_bytes,
            index_size_bytes=self.index_size_bytes,
            min_timestamp=self.min_timestamp,
            max_timestamp=self.max_timestamp,
            appended_at_ms=appended_at_ms,
            checksum=self.checksum,
            index_checksum=self.index_checksum,
            cleaned_epochs=self.cleaned_epochs,
        )


@dataclass(frozen=True, slots=True)
class IndexRows:
    """Index rows of consecutive records, one column each. `cleaned_epoch` None: none is marked."""

    offsets: npt.NDArray[np.int64]
    timestamps: npt.NDArray[np.int64]
    keys: ArrowArray
    is_tombstone: npt.NDArray[np.bool_]
    cleaned_epoch: ArrowArray | None
    block: npt.NDArray[np.int32]
    position: npt.NDArray[np.int32]
    length: npt.NDArray[np.int32]


class UncompressedBlock:
    """A block before its compression, to which records are still added."""

    __slots__ = ("_pieces", "first_offset", "record_count", "size_bytes")

    def __init__(self) -> None:
        self._pieces: list[Bytes] = []
        self.size_bytes = 0
        self.record_count = 0
        self.first_offset = -1

    def add(self, pieces: Iterable[Bytes], size_bytes: int, record_count: int, first_offset: int) -> None:
        """Append records: their bytes in any number of pieces, which have `size_bytes` together."""
        if not self.record_count:
            self.first_offset = first_offset
        self._pieces.extend(pieces)
        self.size_bytes += size_bytes
        self.record_count += record_count

    def raw(self) -> Bytes:
        """Return the records in one piece."""
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)


@dataclass(slots=True)
class RowCounts:
    """Sums over rows for the manifest."""

    record_count: int = 0
    tombstone_count: int = 0
    marked_count: int = 0
    keyless_count: int = 0
    first_offset: int = -1
    last_offset: int = -1
    min_timestamp: int = NO_TIMESTAMP_MS
    max_timestamp: int = NO_TIMESTAMP_MS
    cleaned_epochs: set[int] = field(default_factory=set)

    def add(self, rows: IndexRows) -> None:
        """Add the next rows to the sums."""
        if not self.record_count:
            self.first_offset = int(rows.offsets[0])
        self.last_offset = int(rows.offsets[-1])
        self.record_count += len(rows.offsets)
        self.tombstone_count += int(np.count_nonzero(rows.is_tombstone))
        self.keyless_count += rows.keys.null_count
        self._add_timestamps(rows.timestamps)
        marks = rows.cleaned_epoch
        if marks is not None and marks.null_count < len(marks):
            self.marked_count += len(marks) - marks.null_count
            self.cleaned_epochs.update(values_of(marks.drop_null().unique()))

    def _add_timestamps(self, timestamps: npt.NDArray[np.int64]) -> None:
        least, most = int(timestamps.min()), int(timestamps.max())
        if least <= NO_TIMESTAMP_MS <= most:
            timestamps = timestamps[timestamps != NO_TIMESTAMP_MS]
            if not len(timestamps):
                return
            least, most = int(timestamps.min()), int(timestamps.max())
        has_any = (self.min_timestamp, self.max_timestamp) != (NO_TIMESTAMP_MS, NO_TIMESTAMP_MS)
        self.min_timestamp = min(self.min_timestamp, least) if has_any else least
        self.max_timestamp = max(self.max_timestamp, most) if has_any else most


class Assembly:
    """An unfinished segment and its index."""

    def __init__(self, *, sync_marker: bytes, codec: str, level: int, limits: SegmentLimits = SEGMENT_LIMITS) -> None:
        self._limits = limits
        self.codec = open_codec(codec, level)
        self.sync_marker = sync_marker
        self.counts = RowCounts()
        self._checksum = hashlib.sha256()
        self._stored: list[bytes] = []
        self._held_bytes = 0
        self._blocks: list[tuple[int, int, int, int, int]] = []
        self._rows: list[IndexRows] = []
        self._row_count = 0
        self._key_bytes = 0
        self._index: IndexWriter | None = None
        self._is_finished = False
        self.size_bytes = 0
        self._write(header_bytes(codec, sync_marker))

    @property
    def block_count(self) -> int:
        """Number of blocks so far, which is the number of the next block."""
        return len(self._blocks)

    @property
    def memory_bytes(self) -> int:
        """Undrained stored bytes, rows, finished row groups and the block table."""
        index = self._index.size_bytes if self._index is not None else 0
        rows = self._row_count * _ROW_BYTES + self._key_bytes
        return self._held_bytes + rows + index + len(self._blocks) * _BLOCK_ROW_BYTES

    def add_raw(self, blocks: Sequence[UncompressedBlock]) -> None:
        """Compress blocks and append them.

        Several blocks at once cost less than one after another: each compression displaces the processor's caches, so
        Python code between two of them waits for memory.
        """
        compress = self.codec.compress
        payloads = [compress(block.raw()) for block in blocks]
        for block, payload in zip(blocks, payloads, strict=True):
            stored = stored_block(block.record_count, payload, self.sync_marker)
            self.add_stored(stored, block.record_count, block.first_offset)

    def add_stored(self, stored: bytes, record_count: int, first_offset: int) -> None:
        """Append a stored block unchanged."""
        self._blocks.append((self.size_bytes, len(stored), record_count, first_offset, crc32(stored)))
        self._write(stored)

    def add_rows(self, rows: IndexRows) -> None:
        """Append index rows. Their blocks may be added before or after them."""
        self.counts.add(rows)
        self._rows.append(rows)
        self._row_count += len(rows.offsets)
        self._key_bytes += rows.keys.nbytes
        if self._row_count >= self._limits.row_group_rows:
            self._flush_rows(keep_rest=True)
        if self._key_bytes >= self._limits.row_group_key_bytes:
            self._flush_rows(keep_rest=False)

    def drain(self) -> list[bytes]:
        """Return and release the stored bytes that were not returned yet."""
        stored, self._stored, self._held_bytes = self._stored, [], 0
        return stored

    def finish(self) -> FinishedSegment:
        """Complete both objects. Raises `ValueError` without any record, or on a second call."""
        counts = self.counts
        table = np.array(self._blocks, np.int64).reshape(-1, 5).T
        blocks = BlockTable(*(np.ascontiguousarray(column) for column in table))
        if self._is_finished or not counts.record_count:
            raise ValueError(
                "the segment is finished already" if self._is_finished else "a segment needs at least one record"
            )
        if int(blocks.record_count.sum()) != counts.record_count:
            raise AssertionError(f"{blocks.record_count.sum()} records in blocks, {counts.record_count} rows")
        self._is_finished = True
        self._flush_rows(keep_rest=False)
        assert self._index is not None
        index_data = self._index.finish(blocks)
        return FinishedSegment(
            data=self.drain(),
            index_data=index_data,
            first_offset=counts.first_offset,
            last_offset=counts.last_offset,
            record_count=counts.record_count,
            tombstone_count=counts.tombstone_count,
            unmarked_tombstone_count=counts.tombstone_count - counts.marked_count,
            keyless_count=counts.keyless_count,
            size_bytes=self.size_bytes,
            index_size_bytes=len(index_data),
            min_timestamp=counts.min_timestamp,
            max_timestamp=counts.max_timestamp,
            checksum=self._checksum.digest(),
            index_checksum=hashlib.sha256(index_data).digest(),
            cleaned_epochs=tuple(sorted(counts.cleaned_epochs)),
        )

    def _write(self, stored: bytes) -> None:
        self._checksum.update(stored)
        self._stored.append(stored)
        self._held_bytes += len(stored)
        self.size_bytes += len(stored)

    def _flush_rows(self, *, keep_rest: bool) -> None:
        """Write rows to the index: all of them, or only full row groups."""
        if not self._rows:
            return
        table = rows_table(self._rows)
        row_group_rows = self._limits.row_group_rows
        count = len(table) - len(table) % row_group_rows if keep_rest else len(table)
        if self._index is None:
            self._index = IndexWriter(
                codec=self.codec.name, sync_marker=self.sync_marker, row_group_rows=row_group_rows
            )
        self._index.write(table[:count])
        self._rows = [_rows_of(table[count:])] if count < len(table) else []
        self._row_count = len(table) - count
        self._key_bytes = sum(rows.keys.nbytes for rows in self._rows)


def rows_table(rows: Sequence[IndexRows]) -> pa.Table:
    """Return rows as a table of the index."""

    def together(name: str) -> npt.NDArray[np.generic]:
        return np.concatenate([getattr(r, name) for r in rows])

    marks: ArrowArray | ArrowChunks = pa.nulls(sum(len(r.offsets) for r in rows), pa.int32())
    if any(r.cleaned_epoch is not None for r in rows):
        marks = pa.chunked_array(
            [pa.nulls(len(r.offsets), pa.int32()) if r.cleaned_epoch is None else r.cleaned_epoch for r in rows]
        )
    columns = [
        pa.array(together("offsets")),
        pa.array(together("timestamps")),
        pa.chunked_array([r.keys for r in rows], pa.binary()),
        pa.array(together("is_tombstone")),
        marks,
        pa.array(together("block")),
        pa.array(together("position")),
        pa.array(together("length")),
    ]
    return pa.Table.from_arrays(columns, schema=ROWS)


def _rows_of(table: pa.Table) -> IndexRows:
    def numbers(name: str) -> npt.NDArray[Any]:
        return table.column(name).to_numpy()

    keys = table.column("key").combine_chunks()
    marks = table.column("cleaned_epoch").combine_chunks()
    return IndexRows(
        numbers("offset").copy(),
        numbers("timestamp").copy(),
        pa.concat_arrays([keys]) if isinstance(keys, pa.Array) else pa.concat_arrays(keys.chunks),
        numbers("is_tombstone"),
        marks if isinstance(marks, pa.Array) else pa.concat_arrays(marks.chunks),
        numbers("block").copy(),
        numbers("position").copy(),
        numbers("length").copy(),
    )
