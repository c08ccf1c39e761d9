"""Prove that raw blocks hold exactly the records that their index rows say, without decoding record by record.

An index row says where a record begins and ends, and its offset, timestamp, key and whether it is a tombstone. So
many blocks at once can be held against their rows with numpy: each number, branch and length is read at its place,
compared with the row or with its bounds, and the last byte of a record must be the one before the next record.

    prove       True: the bytes are these rows and nothing else, as `keyfold.log.record_decoder` would find them too.
                False: they may not be; the caller decodes record by record, which finds out and names the fault
    block_rows, index_rows
                both sides of the slow comparison, as tuples

`prove` trusts nothing: positions come from stored bytes too. What it does not know how to read quickly (numbers of more
than eight bytes) is False. Only records that have headers cost Python time, for the headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyfold.log.avro import SegmentDamaged, StoredBlock
from keyfold.log.codec import Codec
from keyfold.log.index import Index, Ints
from keyfold.log.record_decoder import decode_record, decompress_block, skip_headers
from keyfold.runtime.arrow_types import ArrowArray, ArrowChunks, numbers_in
from keyfold.runtime.buffers import Bytes

Octets = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

ROW_COLUMNS: Final = ("offset", "timestamp", "key", "is_tombstone", "position", "length")
Row = tuple[int, int, bytes | None, bool, int, int]
"""One record as its index has it: the columns of `ROW_COLUMNS`."""

PlacedRow = tuple[int, int, Row]
"""Block, number of the record in it, and its row."""

PAD: Final = bytes(64)
"""Behind the bytes under proof, so that a number may be read at their very end."""
_NULL: Final = 0
_BYTES: Final = 2
_TYPES_END: Final = 6
_WORD_BYTES: Final = 8


def prove(raws: Sequence[Bytes], rows: pa.Table, record_counts: Ints) -> bool:
    """Whether the raw blocks `raws` are exactly `rows`, of which block i has `record_counts[i]`."""
    data = b"".join((*raws, PAD))
    sizes = np.fromiter(map(len, raws), np.int64, len(raws))
    begins = _begins(rows, record_counts, sizes)
    return begins is not None and _Proof(data, rows, *begins).holds()


def _begins(rows: pa.Table, record_counts: Ints, sizes: Ints) -> tuple[Ints, Ints] | None:
    """Where each record begins and ends in the joined blocks; None where rows do not fill their blocks exactly."""
    position = _ints(rows, "position").astype(np.int64)
    length = _ints(rows, "length").astype(np.int64)
    if len(position) != record_counts.sum() or (record_counts < 1).any():
        return None
    starts = np.cumsum(sizes) - sizes
    begins = np.repeat(starts, record_counts) + position
    ends = begins + length
    firsts = np.cumsum(record_counts) - record_counts
    fits = (length > 0).all() and (position[firsts] == 0).all() and (begins[1:] == ends[:-1]).all()
    return (begins, ends) if fits and ends[-1] == sizes.sum() else None


class _Proof:
    """One walk over all records of some blocks, field by field."""

    def __init__(self, data: bytes, rows: pa.Table, begins: Ints, ends: Ints) -> None:
        self._data = data
        self._bytes: Octets = np.frombuffer(data, np.uint8)
        self._words: Words = np.ndarray((len(data) - _WORD_BYTES + 1,), "<u8", buffer=data, strides=(1,))
        self._rows = rows
        self._at = begins.copy()
        self._ends = ends

    def holds(self) -> bool:
        """Whether every field is what its row says, or what a writer may have written there."""
        return (
            self._number_is("offset")
            and self._number_is("timestamp")
            and self._type_is_legal()
            and self._key_is()
            and self._value_fits()
            and self._headers_and_epoch_fit()
        )

    def _number_is(self, column: str) -> bool:
        read = self._varints(self._at)
        if read is None or not np.array_equal(read[0], _ints(self._rows, column)):
            return False
        self._at += read[1]
        return True

    def _type_is_legal(self) -> bool:
        kind = self._bytes[self._at]
        self._at += 1
        return bool(((kind & 1 == 0) & (kind < _TYPES_END)).all())

    def _key_is(self) -> bool:
        keys = _one_chunk(self._rows.column("key"))
        has_key = keys.is_valid().to_numpy(zero_copy_only=False)
        where = np.flatnonzero(has_key)
        lengths, flat = flat_bytes(keys)
        spans = self._spans(has_key, where)
        if spans is None or not np.array_equal(spans[1], lengths):
            return False
        starts, _ = spans
        places = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(len(flat))
        return bool(np.array_equal(self._bytes[places], flat))

    def _value_fits(self) -> bool:
        has_value = self._bytes[self._at] == _BYTES
        tombstone = _one_chunk(self._rows.column("is_tombstone")).to_numpy(zero_copy_only=False)
        keyed = _one_chunk(self._rows.column("key")).is_valid().to_numpy(zero_copy_only=False)
        if not np.array_equal(tombstone, keyed & ~has_value):
            return False
        return self._spans(has_value, np.flatnonzero(has_value)) is not None

    def _spans(self, is_there: npt.NDArray[np.bool_], where: Ints) -> tuple[Ints, Ints] | None:
        """Start and length of the bytes at `where`, behind a branch that agrees with `is_there`; moves behind them."""
        if not np.array_equal(self._bytes[self._at], np.where(is_there, _BYTES, _NULL)):
            return None
        self._at += 1
        read = self._varints(self._at[where])
        if read is None:
            return None
        lengths, sizes = read
        starts = self._at[where] + sizes
        self._at[where] = starts + lengths
        # Something always follows, so a field that reaches a record's end is as wrong as one that passes it.
        if (lengths < 0).any() or (self._at >= self._ends).any():
            return None
        return starts, lengths

    def _headers_and_epoch_fit(self) -> bool:
        with_headers = np.flatnonzero(self._bytes[self._at])
        after = self._at + 1
        try:
            for row in with_headers.tolist():
                after[row] = skip_headers(self._data, int(self._at[row]))
        except (ValueError, IndexError):
            return False
        if (after >= self._ends).any():
            return False
        read = self._varints(after)
        if read is None or (read[0] != read[0].astype(np.int32)).any():
            return False
        return bool(np.array_equal(after + read[1], self._ends))

    def _varints(self, at: Ints) -> tuple[Ints, Ints] | None:
        """The numbers at these positions and their lengths in bytes; None if one is invalid or longer than eight."""
        word = self._words[at]
        value = word & np.uint64(0x7F)
        more = word & np.uint64(0x80) != 0
        size = np.ones(len(at), np.int64)
        shift = 7
        while more.any():
            word = word >> np.uint64(8)
            if shift > 7 * (_WORD_BYTES - 1) or (more & (word & np.uint64(0xFF) == 0)).any():
                return None  # too long, or a last byte that says nothing, which no writer writes
            value |= np.where(more, (word & np.uint64(0x7F)) << np.uint64(shift), np.uint64(0))
            size += more
            more &= word & np.uint64(0x80) != 0
            shift += 7
        signed = (value >> np.uint64(1)).astype(np.int64)
        return signed ^ -(value & np.uint64(1)).astype(np.int64), size


def flat_bytes(keys: ArrowArray) -> tuple[Ints, Octets]:
    """Lengths of the keys that are not null, and their bytes one after another."""
    present = keys.drop_null() if keys.null_count else keys
    _, offsets_buffer, data_buffer = present.buffers()
    if not len(present):
        return np.empty(0, np.int64), np.empty(0, np.uint8)
    wide = pa.types.is_large_binary(present.type)
    kind: type[np.int64 | np.int32] = np.int64 if wide else np.int32
    offsets = numbers_in(offsets_buffer, kind)[present.offset : present.offset + len(present) + 1].astype(np.int64)
    flat = numbers_in(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    return np.diff(offsets), flat[offsets[0] : offsets[-1]]


def _one_chunk(column: ArrowChunks) -> ArrowArray:
    return column.chunks[0] if column.num_chunks == 1 else column.combine_chunks()


def _ints(rows: pa.Table, column: str) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = _one_chunk(rows.column(column)).to_numpy()
    return array


def block_rows(block: StoredBlock, codec: Codec) -> Iterator[Row]:
    """The rows that an index must have for a block. Raises `SegmentDamaged`."""
    yield from raw_rows(bytes(decompress_block(block, codec)), block)


def raw_rows(raw: bytes, block: StoredBlock) -> Iterator[Row]:
    """`block_rows` of a block that is decompressed already. Raises `SegmentDamaged`."""
    position = 0
    for number in range(block.record_count):
        try:
            record, end = decode_record(raw, position)
        except (ValueError, IndexError) as error:
            message = str(error) if isinstance(error, ValueError) else "reaches beyond the end of its block"
            raise SegmentDamaged("", message, block=block.number, record=number) from error
        yield record.offset, record.timestamp, record.key, record.is_tombstone, position, end - position
        position = end
    if position != len(raw):
        raise SegmentDamaged("", f"has {len(raw) - position} bytes after its records", block=block.number)


def index_rows(index: Index, block: int) -> list[Row]:
    """The rows of an index, or of a part of one, about one block; none where it does not have the block."""
    first, end = index.part or (0, len(index.blocks))
    if not first <= block < end:
        return []
    begin = int(index.blocks.record_count[first:block].sum())
    part = index.rows.slice(begin, int(index.blocks.record_count[block]))
    return list(zip(*(part.column(name).to_pylist() for name in ROW_COLUMNS), strict=True))


def placed(rows: Iterable[Row], block: int) -> Iterator[PlacedRow]:
    """The rows of a block, with their places."""
    return ((block, number, row) for number, row in enumerate(rows))
