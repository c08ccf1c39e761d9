"""Decoder of raw blocks into Arrow, column by column, without Python code per record.

The index has the start and the length of each record (`position`, `length`). All records then take the same steps at
once, with numpy: read a number at each record's position, move all positions behind it, check, continue. Arrow then
cuts out keys, values, header names and header values. The raw bytes, with the bounds of wanted and unwanted parts as
offsets, already are an Arrow array; a filter on every second element copies the wanted parts.

    record = offset, timestamp, type, [key], [value], headers, leader epoch         (docs/format.md)

Stored bytes are not trusted: numbers, branches and lengths are checked as in `keyfold.log.record_decoder`, and a record
must have the end and the offset of its index row. Columns that are not wanted are skipped, or not reached at all if
they come after the last wanted one.

Invariant: with all columns the result is that of `record_decoder.decode_block`, or both raise `SegmentDamaged`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyfold.log.arrow_headers import FEW_RECORDS, HEADERS, Spans, cut, header_list, read_headers
from keyfold.log.arrow_numbers import PADDING, Flags, Ints, Misplaced, Octets, read_numbers, refuse
from keyfold.log.avro import SegmentDamaged
from keyfold.log.record import TIMESTAMP_TYPES
from keyfold.log.record_decoder import decode_raw
from keyfold.runtime.arrow_types import ArrowArray, column_of
from keyfold.runtime.buffers import Bytes

RECORDS: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
        pa.field("timestamp_type", pa.dictionary(pa.int8(), pa.string())),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("leader_epoch", pa.int32()),
    ]
)
"""Records as columns. Timestamps are Kafka's numbers, with -1 for none; headers are never null."""

COLUMNS: Final = tuple(RECORDS.names)

_TYPES: Final = pa.array(TIMESTAMP_TYPES, pa.string())
_INT_MIN: Final = -(2**31)
_INT_MAX: Final = 2**31 - 1
_MAX_RAW_BYTES: Final = 2**31 - 1 - PADDING
# The parts of a record that must be read to reach a column.
_DEPTH: Final = {
    "offset": 0,
    "timestamp": 0,
    "timestamp_type": 0,
    "key": 1,
    "value": 2,
    "headers": 3,
    "leader_epoch": 3,
}


@dataclass(frozen=True, slots=True)
class RawBlock:
    """A block's bytes after decompression; `number` is its place in the segment."""

    number: int
    raw: Bytes
    record_count: int


@dataclass(frozen=True, slots=True)
class BlockRows:
    """Index rows of some blocks, in order: one row per record."""

    offset: npt.NDArray[np.generic]
    position: npt.NDArray[np.generic]
    length: npt.NDArray[np.generic]

    def __len__(self) -> int:
        return len(self.offset)


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """Return `RECORDS`, or a schema of these columns in this order. Raises `ValueError` for none or an unknown one."""
    if columns is None:
        return RECORDS
    if not columns:
        raise ValueError(f"no column was given; the columns are {', '.join(COLUMNS)}")
    for name in columns:
        if name not in COLUMNS:
            raise ValueError(f"unknown column {name!r}; the columns are {', '.join(COLUMNS)}")
    if len(set(columns)) != len(columns):
        raise ValueError(f"a column was given twice: {', '.join(columns)}")
    return pa.schema([RECORDS.field(name) for name in columns])


def decode_blocks(
    blocks: Sequence[RawBlock],
    rows: BlockRows,
    columns: Sequence[str] | None = None,
    *,
    keep: Flags | None = None,
    origin: str = "",
    few_records: int = FEW_RECORDS,
) -> pa.RecordBatch:
    """Return the records of some blocks of one segment: those selected by `keep` (one flag per row), or all.

    `rows` are the index's rows for exactly these blocks; together they hold less than 2 GiB. Raises `SegmentDamaged`,
    which names block and record. The headers of fewer than `few_records` records are read one by one.
    """
    schema = schema_of(columns)
    raw, starts, ends = _lay_out(blocks, rows, origin)
    offsets = rows.offset
    if keep is not None:
        starts, ends, offsets = starts[keep], ends[keep], offsets[keep]
    if not len(starts):
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    try:
        arrays = _Walk(raw, starts, ends, few_records).arrays(offsets, schema.names)
    except Misplaced as fault:
        row = fault.row if keep is None else int(np.flatnonzero(keep)[fault.row])
        raise _damaged(blocks, row, fault, origin) from fault
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _lay_out(blocks: Sequence[RawBlock], rows: BlockRows, origin: str) -> tuple[bytes, Ints, Ints]:
    """Return all bytes in one padded piece, and the start and end of each record in it."""
    counts = np.array([block.record_count for block in blocks], np.int64)
    sizes = np.array([len(block.raw) for block in blocks], np.int64)
    if int(counts.sum()) != len(rows):
        raise SegmentDamaged(origin, f"has {int(counts.sum())} records, but its index has {len(rows)} rows")
    if int(sizes.sum()) > _MAX_RAW_BYTES:
        raise SegmentDamaged(origin, f"blocks of {int(sizes.sum())} bytes are larger than the format allows")
    bases = np.cumsum(sizes) - sizes
    starts = np.repeat(bases, counts) + rows.position
    ends = starts + rows.length
    # Records fill the block without holes; otherwise the index belongs to another block.
    firsts = np.cumsum(counts) - counts
    expected = np.empty_like(starts)
    expected[1:] = ends[:-1]
    expected[firsts] = bases
    lasts = firsts + counts - 1
    wrong = (starts != expected) | (ends <= starts)
    wrong[lasts] |= ends[lasts] != bases + sizes
    if wrong.any():
        row = int(wrong.argmax())
        at = int(np.searchsorted(firsts, row, side="right")) - 1
        number = blocks[at].number
        raise SegmentDamaged(origin, "is not where its index says", block=number, record=row - int(firsts[at]))
    return b"".join([*(block.raw for block in blocks), bytes(PADDING)]), starts, ends


def _damaged(blocks: Sequence[RawBlock], row: int, fault: Misplaced, origin: str) -> SegmentDamaged:
    """Return the error of the decoder that reads one record after another."""
    first = 0
    for block in blocks:
        if row < first + block.record_count:
            try:
                decode_raw(bytes(block.raw), block.record_count, origin=origin, number=block.number)
            except SegmentDamaged as error:
                return error
            return SegmentDamaged(origin, str(fault), block=block.number, record=row - first)
        first += block.record_count
    return SegmentDamaged(origin, str(fault))


class _Walk:
    """All records of some raw bytes, read in parallel. `starts` ascend, and records do not overlap."""

    def __init__(self, raw: bytes, starts: Ints, ends: Ints, few_records: int) -> None:
        self._few_records = few_records
        self._raw = raw
        self._octets: Octets = np.frombuffer(raw, np.uint8)
        self._at = starts
        self._ends = ends

    def arrays(self, offsets: npt.NDArray[np.generic], names: Sequence[str]) -> list[ArrowArray]:
        """Return the columns `names`; the records must have these offsets. Raises `Misplaced`."""
        found: dict[str, ArrowArray] = {}
        depth = max((_DEPTH[name] for name in names), default=0)
        found["offset"], found["timestamp"], found["timestamp_type"] = self._prefix(offsets)
        for level, name in enumerate(("key", "value"), 1):
            if depth >= level:
                spans = self._optional_bytes()
                if name in names:
                    found[name] = cut(self._raw, spans)
        if depth >= _DEPTH["headers"]:
            self._suffix(found, names)
        else:
            refuse(self._at >= self._ends, "reaches beyond its end")
        return [found[name] for name in names]

    def _prefix(self, expected: npt.NDArray[np.generic]) -> tuple[ArrowArray, ArrowArray, ArrowArray]:
        offsets, at = read_numbers(self._octets, self._at)
        timestamps, at = read_numbers(self._octets, at)
        types = self._octets[at]
        refuse((types > 2 * (len(TIMESTAMP_TYPES) - 1)) | (types & 1 == 1), "has an unknown timestamp type")
        refuse((offsets != expected) | (offsets < 0), "has another offset than its index row")
        self._at = at + 1
        kinds = pa.DictionaryArray.from_arrays(column_of((types >> 1).view(np.int8)), _TYPES)
        return pa.array(offsets), pa.array(timestamps).view(RECORDS.field("timestamp").type), kinds

    def _optional_bytes(self) -> Spans:
        """Read null or bytes at each position, and move the positions behind them, within the record."""
        refuse(self._at >= self._ends, "reaches beyond its end")
        branch = self._octets[self._at]
        refuse((branch != 0) & (branch != 2), "has a key or value that is neither null nor bytes")
        at = self._at + 1
        is_null = None
        if branch.all():
            sizes, at = read_numbers(self._octets, at)
        elif branch.any():
            is_null = branch == 0
            # A null reads its length from the zeros of the padding, and its position stays.
            sizes, behind = read_numbers(self._octets, np.where(is_null, len(self._octets) - PADDING, at))
            at = np.where(is_null, at, behind)
        else:
            is_null = np.ones(len(at), np.bool_)
            sizes = np.zeros(len(at), np.int64)
        refuse((sizes < 0) | (sizes > self._ends - at), "has a length beyond its end")
        spans = Spans(at, sizes, is_null)
        self._at = at + sizes
        return spans

    def _suffix(self, found: dict[str, ArrowArray], names: Sequence[str]) -> None:
        """Read headers and leader epoch, and check the record's end."""
        refuse(self._at >= self._ends, "reaches beyond its end")
        has_headers = self._octets[self._at] != 0
        rows = np.flatnonzero(has_headers)
        spans = None
        if len(rows):
            spans = read_headers(self._raw, self._octets, self._at, self._ends, rows, self._few_records)
        at = self._at + 1 if spans is None else np.where(has_headers, 0, self._at + 1)
        if spans is not None:
            at[rows] = spans.ends
        if "headers" in names:
            found["headers"] = header_list(self._raw, len(at), spans)
        epochs, at = read_numbers(self._octets, at)
        refuse((epochs < _INT_MIN) | (epochs > _INT_MAX), "has a leader epoch outside of 32 bits")
        refuse(at != self._ends, "does not end where its index says")
        found["leader_epoch"] = pa.array(epochs.astype(np.int32))
