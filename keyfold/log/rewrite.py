"""Rewriter of the surviving records of segments into one new segment, by bytes.

For each source the caller passes the index and a mask of the rows to keep. Then, block by block:

    no record survives     the block is not fetched, unless it lies between two others that are near each other
    all records survive    the stored bytes move unchanged (same codec, not small, no partial block pending before it)
    some records survive   the block is decompressed; runs of survivors are collected into new blocks and compressed

Finished bytes can be handed on early (`take`), so memory does not limit a segment's size. Memory holds one range of
stored blocks, the unfinished block, and index rows.

Records are never decoded: the index has their places, and the new index is computed from the old rows with numpy. The
survivors of one source block stay together, so an output block has at most `block_bytes`, or as many bytes as the
largest source block. Only a block that begins with a few left-over records may have 1.5 times `block_bytes`.

Fetched blocks are checked before use (`BlockTable.check`: place, length, counts, sync marker, CRC-32), and all added
offsets must ascend. So damage never gets a fresh checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyfold.log.assembly import SEGMENT_LIMITS, Assembly, FinishedSegment, IndexRows, SegmentLimits, UncompressedBlock
from keyfold.log.avro import SegmentDamaged, SegmentHeader, StoredBlock, parse_block
from keyfold.log.codec import DEFAULT_CODEC, DEFAULT_LEVEL, Codec, open_codec
from keyfold.log.index import GAP_BYTES, Index
from keyfold.log.record_decoder import decompress_block
from keyfold.log.segment import DEFAULT_BLOCK_BYTES
from keyfold.runtime.arrow_types import ArrowArray, ArrowChunks, column_of
from keyfold.runtime.buffers import Bytes, Fetch
from keyfold.runtime.overlap import FETCH_BYTES

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Take = Callable[[list[bytes]], None]
"""A function that receives finished stored bytes, in order."""


class SegmentRewriter:
    """An unfinished new segment. Not thread-safe.

    `take` receives stored bytes block by block during `add`; its exceptions end the segment. Without it the bytes wait
    for `drain` or `finish`. Up to `gap_bytes` between two blocks are fetched with them.
    """

    def __init__(
        self,
        *,
        sync_marker: bytes,
        codec: str = DEFAULT_CODEC,
        level: int = DEFAULT_LEVEL,
        block_bytes: int = DEFAULT_BLOCK_BYTES,
        gap_bytes: int = GAP_BYTES,
        take: Take | None = None,
        limits: SegmentLimits = SEGMENT_LIMITS,
    ) -> None:
        self._take = take
        self._assembly = Assembly(sync_marker=sync_marker, codec=codec, level=level, limits=limits)
        self._block_bytes = block_bytes
        self._gap_bytes = gap_bytes
        self._last_offset = -1
        self._open = UncompressedBlock()
        self._codecs: dict[str, Codec] = {}

    def add(
        self,
        index: Index,
        header: SegmentHeader | str | None,
        keep: Flags,
        cleaned_epoch: ArrowArray | None,
        fetch: Fetch,
        *,
        origin: str = "",
    ) -> None:
        """Append the rows of one source segment, or of one part of it, where `keep` is true.

        `header` is the source's header or codec; None uses the index's codec. `cleaned_epoch` has the marks of the
        *kept* rows (None keeps the index's marks). `fetch` is called for the ranges of `BlockTable.ranges`. Raises
        `SegmentDamaged` (a `ValueError`) with `origin` and block if index and segment do not match; the rewriter must
        not be used afterwards.
        """
        if len(keep) != len(index):
            raise ValueError(f"a mask of {len(keep)} for {len(index)} rows")
        source_codec = _codec_name(index, header)
        if index.sync_marker != self._assembly.sync_marker:
            raise SegmentDamaged(origin, "has another sync marker than the partition")
        plan = _Plan.of(index, keep, origin)
        if not len(plan.kept):
            return
        offsets = index.ints("offset")[plan.kept]
        if offsets[0] <= self._last_offset:
            raise SegmentDamaged(origin, f"has offset {offsets[0]} after offset {self._last_offset}")
        self._last_offset = int(offsets[-1])
        blocks, bases = self._move_blocks(index, plan, offsets, source_codec, fetch, origin)
        self._assembly.add_rows(_new_rows(index, plan, offsets, cleaned_epoch, blocks, bases))

    @property
    def record_count(self) -> int:
        """Number of records so far."""
        return self._assembly.counts.record_count

    @property
    def size_bytes(self) -> int:
        """Stored bytes so far; the unfinished block counts with its uncompressed bytes."""
        return self._assembly.size_bytes + self._open.size_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes that this rewriter holds, except for a constant."""
        return self._assembly.memory_bytes + self._open.size_bytes

    def drain(self) -> list[bytes]:
        """Return finished stored bytes that were not returned yet."""
        return self._assembly.drain()

    def finish(self) -> FinishedSegment:
        """Complete the segment. Raises `ValueError` if no record survived, or on a second call."""
        self._flush()
        return self._assembly.finish()

    def _move_blocks(
        self, index: Index, plan: _Plan, offsets: Ints, source_codec: str, fetch: Fetch, origin: str
    ) -> tuple[Ints, Ints]:
        """Move all survivors. Return for each source block its output block, and the start of its survivors there."""
        blocks = np.zeros(len(index.blocks), np.int64)
        bases = np.zeros(len(index.blocks), np.int64)
        codec = self._codec(source_codec)
        is_same_codec = source_codec == self._assembly.codec.name
        needed = np.flatnonzero(plan.kept_count)
        first_offsets = offsets[plan.kept_start[needed]].tolist()
        runs = plan.runs(index)
        for (number, stored), first_offset, spans in zip(
            _fetch_blocks(index, needed, self._gap_bytes, fetch, origin), first_offsets, runs, strict=True
        ):
            block = _checked(index, number, stored, origin)
            size = int(plan.kept_bytes[number])
            count = int(plan.kept_count[number])
            if self._take is not None:
                self._take(self._assembly.drain())
            if is_same_codec and count == block.record_count and self._may_move(size):
                self._flush()
                blocks[number] = self._assembly.block_count
                self._assembly.add_stored(bytes(block.stored), count, first_offset)
                continue
            raw_bytes = int(plan.raw_bytes[number])
            raw = memoryview(decompress_block(block, codec, origin=origin, raw_bytes=raw_bytes))
            if len(raw) != raw_bytes:
                message = f"has {len(raw)} uncompressed bytes, but its index rows have {raw_bytes}"
                raise SegmentDamaged(origin, message, block=number)
            if not self._has_room(size):
                self._flush()
            blocks[number] = self._assembly.block_count
            bases[number] = self._open.size_bytes
            self._collect(raw, spans, size, count, first_offset)
        return blocks, bases

    def _may_move(self, size_bytes: int) -> bool:
        """Return whether a complete block should move unchanged instead of being compressed again.

        False for a small block, and if it would end a small pending block: otherwise many passes and merges would leave
        a log of tiny blocks.
        """
        if size_bytes < self._block_bytes // 2:
            return False
        return not self._is_scrap() or not self._has_room(size_bytes)

    def _has_room(self, size_bytes: int) -> bool:
        """Return whether `size_bytes` more fit into the pending block. A scrap may grow to 1.5 times `block_bytes`."""
        most = 1.5 if self._is_scrap() else 1
        return self._open.size_bytes + size_bytes <= most * self._block_bytes

    def _is_scrap(self) -> bool:
        """Return whether the pending block is too small to be written alone."""
        return 0 < self._open.size_bytes < self._block_bytes // 8

    def _collect(self, raw: memoryview, spans: list[tuple[int, int]], size: int, count: int, first_offset: int) -> None:
        pieces: list[Bytes] = [raw[start:end] for start, end in spans]
        if size * 4 < len(raw):
            # Few survivors: copy them, so that memory does not hold the whole block.
            pieces = [b"".join(pieces)]
        self._open.add(pieces, size, count, first_offset)
        if self._open.size_bytes >= 0.75 * self._block_bytes:
            self._flush()

    def _flush(self) -> None:
        if self._open.record_count:
            self._assembly.add_raw((self._open,))
            self._open = UncompressedBlock()

    def _codec(self, codec: str) -> Codec:
        if codec not in self._codecs:
            self._codecs[codec] = open_codec(codec)
        return self._codecs[codec]


@dataclass(frozen=True, slots=True)
class _Plan:
    """The survivors of a source. Columns of blocks have one row per source block.

    `kept` has the numbers of the kept rows, `kept_start` the first of each block in it.
    """

    kept: Ints
    kept_block: Ints
    kept_length: Ints
    kept_count: Ints
    kept_bytes: Ints
    kept_start: Ints
    raw_bytes: Ints

    @staticmethod
    def of(index: Index, keep: Flags, origin: str) -> _Plan:
        """Plan a source. Raises `SegmentDamaged` if the index's rows and blocks are inconsistent."""
        n_blocks = len(index.blocks)
        offset, block, length = index.ints("offset"), index.ints("block"), index.ints("length").astype(np.int64)
        row_end = np.cumsum(length)
        count = np.bincount(block, minlength=n_blocks) if len(block) and block.min() >= 0 else np.zeros(n_blocks)
        expected = index.blocks.record_count
        if index.part is not None:
            number = np.arange(n_blocks)
            expected = np.where((number >= index.part[0]) & (number < index.part[1]), expected, 0)
        if not np.array_equal(count, expected):
            raise SegmentDamaged(origin, "the index's rows per block do not match its block table")
        first_row = np.cumsum(expected) - expected
        block_start = np.append(row_end - length, row_end[-1:])[first_row]
        if (np.diff(offset) <= 0).any() or (np.diff(block) < 0).any():
            raise SegmentDamaged(origin, "the index's offsets do not ascend")
        if not np.array_equal(index.ints("position"), row_end - length - block_start[block]):
            raise SegmentDamaged(origin, "the index's rows are not contiguous")
        kept = np.flatnonzero(keep)
        kept_block, kept_length = block[kept], length[kept]
        kept_count = np.bincount(kept_block, minlength=n_blocks)
        kept_end = np.concatenate([[0], np.cumsum(kept_length)])
        kept_start = np.cumsum(kept_count) - kept_count
        return _Plan(
            kept=kept,
            kept_block=kept_block,
            kept_length=kept_length,
            kept_count=kept_count,
            kept_bytes=kept_end[kept_start + kept_count] - kept_end[kept_start],
            kept_start=kept_start,
            raw_bytes=np.diff(block_start, append=row_end[-1]),
        )

    def runs(self, index: Index) -> Iterator[list[tuple[int, int]]]:
        """Yield, for each block with survivors, the byte ranges of neighbouring survivors in its raw bytes."""
        position = index.ints("position")[self.kept]
        is_new = np.ones(len(self.kept), np.bool_)
        is_new[1:] = (np.diff(self.kept) != 1) | (np.diff(self.kept_block) != 0)
        first = np.flatnonzero(is_new)
        last = np.append(first[1:], len(self.kept)) - 1
        starts = position[first].tolist()
        ends = (position[last] + self.kept_length[last]).tolist()
        spans = list(zip(starts, ends, strict=True))
        cut = np.flatnonzero(np.diff(self.kept_block[first], prepend=-1)).tolist()
        for begin, end in zip(cut, [*cut[1:], len(spans)], strict=True):
            yield spans[begin:end]


def _new_rows(
    index: Index, plan: _Plan, offsets: Ints, cleaned_epoch: ArrowArray | None, blocks: Ints, bases: Ints
) -> IndexRows:
    """Return the kept rows as rows of the new index."""
    taken = column_of(plan.kept)
    keys = _one(index.rows.column("key").take(taken))
    marks = cleaned_epoch
    if marks is None:
        marks = _one(index.rows.column("cleaned_epoch").take(taken))
    elif len(marks) != len(plan.kept):
        raise ValueError(f"{len(marks)} marks for {len(plan.kept)} kept rows")
    begin = np.cumsum(plan.kept_length) - plan.kept_length
    position = begin - begin[plan.kept_start[plan.kept_block]] + bases[plan.kept_block]
    return IndexRows(
        offsets,
        index.ints("timestamp")[plan.kept],
        keys,
        index.is_tombstone[plan.kept],
        marks.cast(pa.int32()),
        blocks[plan.kept_block].astype(np.int32),
        position.astype(np.int32),
        plan.kept_length.astype(np.int32),
    )


def _one(column: ArrowChunks) -> ArrowArray:
    """Return a chunked array as one array."""
    chunks = column.chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def _codec_name(index: Index, header: SegmentHeader | str | None) -> str:
    if header is None:
        return index.codec
    return header if isinstance(header, str) else header.codec


def _checked(index: Index, number: int, stored: memoryview, origin: str) -> StoredBlock:
    position = int(index.blocks.position[number])
    block = parse_block(stored, index.sync_marker, origin=origin, number=number, position=position)
    index.blocks.check(block, origin=origin)
    return block


def _fetch_blocks(
    index: Index, needed: Ints, gap_bytes: int, fetch: Fetch, origin: str
) -> Iterator[tuple[int, memoryview]]:
    """Yield the stored blocks `needed`, each with its number."""
    for found in index.blocks.ranges(needed, FETCH_BYTES, gap_bytes):
        data = memoryview(fetch(found.start, found.length))
        if len(data) != found.length:
            message = f"received {len(data)} of {found.length} bytes at position {found.start}"
            raise SegmentDamaged(origin, message, block=found.numbers[0])
        for number in found.numbers:
            at = int(index.blocks.position[number]) - found.start
            yield number, data[at : at + int(index.blocks.length[number])]
