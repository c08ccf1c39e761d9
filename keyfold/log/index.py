"""The index of a segment: one row per record, and a table of its blocks, in one Parquet object.

A row has the place of a record (block; position and length in the block's raw bytes) and the fields that a compactor
needs: offset, timestamp, key, whether it is a tombstone, and the pass that marked it (`cleaned_epoch`, null: none). The
block table has the place of each stored block in the segment and its CRC-32, so that a reader can fetch one range and
verify it.

    Parquet schema     ROWS below; row groups of ROW_GROUP_ROWS; page checksums on
    footer metadata    keyfold.format  "1"
                       keyfold.codec   the segment's codec, by Avro's name
                       keyfold.sync    the segment's sync marker, hexadecimal
                       keyfold.blocks  base64 of zstd of little-endian int64: the columns of BlockTable one after
                                       another, position and first_offset as differences to the block before
                       keyfold.check   CRC-32 of the four values above, one after another, eight hexadecimal digits

The Parquet settings were measured (400,000 rows; write and read in µs of CPU, size in bytes per row). Numbers are delta
encoded and not compressed: zstd on top takes 10 % longer for 0.4 bytes. Keys have separate lengths and zstd level 1:
random hexadecimal keys take 0.067, 0.038, 19.4, against 0.109, 0.046, 20.4 without separate lengths and 0.118, 0.050,
20.9 with a dictionary; keys like `user-0000042` take 0.066, 0.032, 6.9, against 19.4 bytes uncompressed.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from io import BytesIO
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from isal.isal_zlib import crc32

from keyfold.errors import Corrupt, ObjectTooLarge
from keyfold.log.avro import FORMAT, SYNC_BYTES, SegmentDamaged, StoredBlock
from keyfold.log.codec import DecompressionFailed, open_codec
from keyfold.log.index_pages import Footer, RowGroup, read_footer, unpacked_bytes
from keyfold.log.manifest import SegmentEntry
from keyfold.log.names import Place
from keyfold.runtime.arrow_types import ArrowArray, ArrowChunks, arrow_schema
from keyfold.runtime.buffers import Bytes
from keyfold.store.api import ObjectStore

Ints = npt.NDArray[np.int64]

ROWS: Final = arrow_schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("is_tombstone", pa.bool_(), nullable=False),
        pa.field("cleaned_epoch", pa.int32()),
        pa.field("block", pa.int32(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("length", pa.int32(), nullable=False),
    ]
)
ROW_GROUP_ROWS: Final = 128 * 1024

# Bytes between two wanted parts of an object that are fetched with them: they cost less than one more request
# (docs/decisions/0034).
GAP_BYTES: Final = 256 * 1024

# A block's row has 40 bytes, of which at least 4 are random: its CRC-32.
_TABLE_BYTES: Final = 64 * 1024
_TABLE_RATIO: Final = 16

# A row group as keyfold writes it, without large keys: its rows, and at least one page per column.
_GROUP_BYTES: Final = 64 * 1024 * 1024
_GROUP_BYTES_MIN: Final = 1024 * 1024
_ROW_BYTES: Final = 512

_NO_ROWS: Final = pa.Table.from_batches([], ROWS)  # `empty_table` imports pandas, if that is installed
_KEY: Final = ROWS.get_field_index("key")
_LENGTH: Final = ROWS.get_field_index("length")

_ENCODINGS: Final = {
    "offset": "DELTA_BINARY_PACKED",
    "timestamp": "DELTA_BINARY_PACKED",
    "key": "DELTA_LENGTH_BYTE_ARRAY",
    "cleaned_epoch": "DELTA_BINARY_PACKED",
    "block": "DELTA_BINARY_PACKED",
    "position": "DELTA_BINARY_PACKED",
    "length": "DELTA_BINARY_PACKED",
}


@dataclass(frozen=True, slots=True)
class BlockRange:
    """Bytes of a segment that one request fetches, and the numbers of the wanted blocks among them."""

    start: int
    length: int
    numbers: list[int]


@dataclass(frozen=True, slots=True)
class BlockTable:
    """One row per stored block, in order.

    `position` and `length` are those of the whole stored block in the segment's bytes; `crc32` is over the same bytes.
    """

    position: Ints
    length: Ints
    record_count: Ints
    first_offset: Ints
    crc32: Ints

    def __len__(self) -> int:
        return len(self.position)

    def check(self, block: StoredBlock, *, origin: str = "") -> None:
        """Raise `SegmentDamaged` if a block does not match the table's row of its number."""
        i = block.number
        if i >= len(self):
            raise SegmentDamaged(origin, f"the index has only {len(self)} blocks", block=i)
        if block.position != self.position[i] or len(block.stored) != self.length[i]:
            raise SegmentDamaged(origin, "has another position or length than in its index", block=i)
        if block.record_count != self.record_count[i]:
            message = f"has {block.record_count} records, but its index says {self.record_count[i]}"
            raise SegmentDamaged(origin, message, block=i)
        if crc32(block.stored) != self.crc32[i]:
            raise SegmentDamaged(origin, "has another CRC-32 than in its index", block=i)

    def ranges(self, numbers: Ints, most_bytes: int, gap_bytes: int = GAP_BYTES) -> Iterator[BlockRange]:
        """Yield the ranges that contain the blocks `numbers` (ascending), each of `most_bytes` or with a single block.

        Up to `gap_bytes` between two wanted blocks are fetched with them.
        """
        positions, lengths = self.position[numbers].tolist(), self.length[numbers].tolist()
        wanted: list[int] = []
        start = end = 0
        for number, position, length in zip(numbers.tolist(), positions, lengths, strict=True):
            if wanted and (position - end > gap_bytes or position + length - start > most_bytes):
                yield BlockRange(start, end - start, wanted)
                wanted = []
            if not wanted:
                start = position
            wanted.append(number)
            end = position + length
        if wanted:
            yield BlockRange(start, end - start, wanted)

    def encode(self) -> bytes:
        """Return the table's value for an index's metadata."""
        columns = [np.diff(self.position, prepend=0), self.length, self.record_count]
        columns += [np.diff(self.first_offset, prepend=0), self.crc32]
        raw = np.concatenate(columns).astype("<i8").tobytes()
        return base64.b64encode(open_codec("zstandard").compress(raw))

    @staticmethod
    def parse(text: bytes) -> BlockTable:
        """Read `encode`'s bytes. Raises `ValueError`."""
        stored = base64.b64decode(text, validate=True)
        raw = open_codec("zstandard").decompress(stored, _TABLE_BYTES + _TABLE_RATIO * len(stored))
        numbers = np.frombuffer(raw, "<i8").astype(np.int64, copy=False)
        position, length, record_count, first_offset, crc = numbers.reshape(len(fields(BlockTable)), -1)
        return BlockTable(np.cumsum(position), length, record_count, np.cumsum(first_offset), crc)


@dataclass(frozen=True)
class Index:
    """A parsed index. `rows` has all or some columns of `ROWS`, each as one chunk.

    A part of an index only has the rows of the blocks `part` (first, end), and the whole block table.
    """

    rows: pa.Table
    blocks: BlockTable
    codec: str
    sync_marker: bytes
    part: tuple[int, int] | None = None

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def ints(self, column: str) -> npt.NDArray[Any]:
        """Return a number column without nulls as a numpy array, without a copy."""
        array: npt.NDArray[Any] = _one_chunk(self.rows.column(column)).to_numpy()
        return array

    @cached_property
    def is_tombstone(self) -> npt.NDArray[np.bool_]:
        """Mask of the rows that are tombstones."""
        flags: npt.NDArray[np.bool_] = _one_chunk(self.rows.column("is_tombstone")).to_numpy(zero_copy_only=False)
        return flags

    @staticmethod
    def parse(data: Bytes, *, columns: Sequence[str] | None = None, origin: str = "") -> Index:
        """Read an index, or only some columns of its rows. Raises `SegmentDamaged`."""
        names = None if columns is None else list(columns)
        with _opened(data, names or ROWS.names, origin) as (file, whole):
            rows = file.read(columns=names, use_threads=False).replace_schema_metadata(None).combine_chunks()
        return Index(rows, whole.blocks, whole.codec, whole.sync_marker)

    @staticmethod
    def parts(data: Bytes, *, columns: Sequence[str] | None = None, origin: str = "") -> Iterator[Index]:
        """Read an index by row groups: yield parts of whole blocks, in order. Raises `SegmentDamaged`.

        Memory holds the object's bytes and two row groups (or some of their columns), for any number of rows.
        """
        names = list(ROWS.names if columns is None else columns)
        with _opened(data, names, origin) as (file, whole):
            yield from _whole_blocks(whole, names, _row_groups(file, names))

    @staticmethod
    def groups_backwards(data: Bytes, *, columns: Sequence[str], origin: str = "") -> Iterator[tuple[int, pa.Table]]:
        """Yield some columns by row groups, the last group first: the number of the group's first row, and its rows.

        Memory holds the object's bytes and one row group. Raises `SegmentDamaged`.
        """
        with _opened(data, columns, origin) as (file, _):
            row = file.metadata.num_rows
            for number in reversed(range(file.metadata.num_row_groups)):
                rows = file.read_row_group(number, columns=list(columns), use_threads=False)
                row -= rows.num_rows
                yield row, rows.select(list(columns)).replace_schema_metadata(None).combine_chunks()

    @staticmethod
    def block_table(tail: Bytes, *, origin: str = "") -> BlockTable:
        """Read the block table from an index's end, which contains the whole footer. Raises `SegmentDamaged`."""
        with _damage_named(origin):
            return _checked_footer(tail, origin)[1].blocks

    def encode(self, row_group_rows: int = ROW_GROUP_ROWS) -> bytes:
        """Return the Parquet object. Equal indexes give equal bytes with the same Arrow release."""
        writer = IndexWriter(codec=self.codec, sync_marker=self.sync_marker, row_group_rows=row_group_rows)
        writer.write(self.rows)
        return writer.finish(self.blocks)


@contextmanager
def _damage_named(origin: str) -> Iterator[None]:
    """Raise `SegmentDamaged` for any error from malformed bytes."""
    try:
        yield
    except SegmentDamaged:
        raise
    except (OSError, ValueError, KeyError, DecompressionFailed, pa.ArrowException) as e:
        raise SegmentDamaged(origin, f"the index cannot be read: {e}") from e


@contextmanager
def _opened(data: Bytes, columns: Sequence[str], origin: str) -> Iterator[tuple[pq.ParquetFile, Index]]:
    """Open an index as a Parquet file whose `columns` may be read, and as an `Index` without its rows.

    Raises `SegmentDamaged`, also for errors while it is open. Every reader of rows uses this function, so Arrow only
    reads checked bytes.
    """
    with _damage_named(origin):
        footer, whole = _checked_footer(data, origin)
        with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
            _check_columns(file.schema_arrow, origin)
            for number, group in enumerate(footer.groups):
                _check_group(file, data, group, number, columns, origin)
            yield file, whole


def _checked_footer(tail: Bytes, origin: str) -> tuple[Footer, Index]:
    """Return the row groups of the footer, and an `Index` without rows. Raises `SegmentDamaged`, `ValueError`."""
    footer = read_footer(tail)
    meta = _checked_meta(footer.metadata, origin)
    blocks = BlockTable.parse(meta["keyfold.blocks"].encode())
    sync_marker = bytes.fromhex(meta["keyfold.sync"])
    for group in footer.groups:
        if group.row_count > ROW_GROUP_ROWS or len(group.chunks) != len(ROWS):
            message = f"the index has a row group of {group.row_count} rows and {len(group.chunks)} columns"
            raise SegmentDamaged(origin, message)
    row_count = sum(group.row_count for group in footer.groups)
    if row_count != int(blocks.record_count.sum()) or len(sync_marker) != SYNC_BYTES:
        raise SegmentDamaged(origin, "the index's rows do not match its block table")
    return footer, Index(_NO_ROWS, blocks, meta["keyfold.codec"], sync_marker)


def _check_columns(schema: pa.Schema, origin: str) -> None:
    """Raise `SegmentDamaged` for unexpected columns, including those that may have unexpected nulls."""
    if not schema.equals(ROWS):
        said = str(schema.remove_metadata()).replace("\n", ", ")
        raise SegmentDamaged(origin, f"the index has unexpected columns: {said}")


def _check_group(
    file: pq.ParquetFile, data: Bytes, group: RowGroup, number: int, columns: Sequence[str], origin: str
) -> None:
    """Raise `SegmentDamaged` if a row group declares more than keyfold writes, before Arrow allocates memory for it.

    Large keys must fit into the declared lengths of their records.
    """
    wanted = {ROWS.get_field_index(name) for name in columns}
    claimed = sum(unpacked_bytes(data, group, column, is_key=column == _KEY) for column in wanted)
    most = min(_GROUP_BYTES, _GROUP_BYTES_MIN + _ROW_BYTES * group.row_count)
    if claimed > most and unpacked_bytes(data, group, _LENGTH, is_key=False) <= most:
        lengths = file.read_row_group(number, columns=["length"], use_threads=False).column("length")
        most += max(0, int(lengths.to_numpy().sum(dtype=np.int64)))
    if claimed > most:
        raise SegmentDamaged(origin, f"the index has a row group that declares {claimed} bytes")


def _row_groups(file: pq.ParquetFile, columns: list[str]) -> Iterator[pa.Table]:
    for number in range(file.metadata.num_row_groups):
        group = file.read_row_group(number, columns=columns, use_threads=False)
        yield group.select(columns).replace_schema_metadata(None)


def _whole_blocks(index: Index, columns: list[str], groups: Iterator[pa.Table]) -> Iterator[Index]:
    """Yield the rows of `groups` as parts that end at block ends."""
    ends = np.cumsum(index.blocks.record_count)
    first = row = 0
    pending = index.rows.select(columns)
    for group in groups:
        pending = pa.concat_tables([pending, group])
        last = int(np.searchsorted(ends, row + len(pending), side="right"))
        count = int(ends[last - 1]) - row if last > first else 0
        if count:
            rows = pending[:count].combine_chunks()
            yield Index(rows, index.blocks, index.codec, index.sync_marker, (first, last))
            pending = pending[count:]
            first, row = last, row + count


_META: Final = ("keyfold.format", "keyfold.codec", "keyfold.sync", "keyfold.blocks")


def _checked_meta(meta: dict[bytes, bytes], origin: str) -> dict[str, str]:
    """Return keyfold's values of the footer. Raises `SegmentDamaged`, `KeyError` for a missing one, `ValueError`."""
    version = meta.get(b"keyfold.format", b"").decode()
    if version != FORMAT:
        raise SegmentDamaged(origin, f"the index has format {version!r}; this version reads format {FORMAT!r}")
    values = {name: meta[name.encode()].decode() for name in _META}
    if meta[b"keyfold.check"].decode() != _check(values):
        raise SegmentDamaged(origin, "the index's footer is damaged: its CRC-32 differs")
    return values


def _check(values: dict[str, str]) -> str:
    return f"{crc32(''.join(values[name] for name in _META).encode()):08x}"


def _one_chunk(column: ArrowChunks) -> ArrowArray:
    chunks = column.chunks
    if len(chunks) == 1:
        return chunks[0]
    return pa.concat_arrays(chunks) if chunks else pa.array([], column.type)


class IndexWriter:
    """A writer of an index by row groups, so that memory does not hold all rows of a segment."""

    def __init__(self, *, codec: str, sync_marker: bytes, row_group_rows: int = ROW_GROUP_ROWS) -> None:
        self._row_group_rows = row_group_rows
        self._sink = BytesIO()
        self._codec = codec
        self._sync_marker = sync_marker
        self._writer = pq.ParquetWriter(
            self._sink,
            ROWS,
            use_dictionary=False,
            column_encoding=_ENCODINGS,
            compression={name: "zstd" if name == "key" else "none" for name in ROWS.names},
            compression_level={"key": 1},
            write_statistics=["offset", "timestamp"],
            store_schema=False,
            write_page_checksum=True,
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of the row groups written so far."""
        return self._sink.tell()

    def write(self, rows: pa.Table) -> None:
        """Append rows, in row groups of `row_group_rows` (the last of them may be smaller)."""
        self._writer.write_table(rows, row_group_size=self._row_group_rows)

    def finish(self, blocks: BlockTable) -> bytes:
        """Close the object and return its bytes."""
        values = {
            "keyfold.format": FORMAT,
            "keyfold.codec": self._codec,
            "keyfold.sync": self._sync_marker.hex(),
            "keyfold.blocks": blocks.encode().decode(),
        }
        self._writer.add_key_value_metadata({**values, "keyfold.check": _check(values)})
        self._writer.close()
        return self._sink.getvalue()


def remark(index: Index, cleaned_epoch: ArrowArray) -> Index:
    """Return the same rows with other marks (int32, null: unmarked). Raises `ValueError` for another number of rows."""
    if len(cleaned_epoch) != len(index):
        raise ValueError(f"{len(cleaned_epoch)} marks for {len(index)} rows")
    at = index.rows.schema.get_field_index("cleaned_epoch")
    rows = index.rows.set_column(at, ROWS.field("cleaned_epoch"), cleaned_epoch.cast(pa.int32()))
    return Index(rows, index.blocks, index.codec, index.sync_marker)


def read_index(store: ObjectStore, place: Place, entry: SegmentEntry, *, columns: Sequence[str] | None = None) -> Index:
    """Read a segment's index by its manifest entry, and verify its checksum and counts.

    Raises `Corrupt`, which names the object, and the errors of `ObjectStore.get`.
    """
    key = place.key(entry.index_name)
    data = read_index_data(store, place, entry)
    try:
        index = Index.parse(data, columns=columns, origin=key)
    except SegmentDamaged as e:
        raise Corrupt(place.topic, place.partition, str(e), hint=_hint(place)) from e
    if len(index) != entry.record_count:
        message = f"index `{key}` has {len(index)} rows, but its segment has {entry.record_count} records"
        raise Corrupt(place.topic, place.partition, message, hint=_hint(place))
    return index


def read_index_data(store: ObjectStore, place: Place, entry: SegmentEntry) -> bytes:
    """Read the bytes of a segment's index, and verify their checksum. Raises the errors of `read_index`."""
    key = place.key(entry.index_name)
    try:
        data = store.get(key, entry.index_size_bytes).data
    except ObjectTooLarge as e:
        message = f"index `{key}` is larger than the {entry.index_size_bytes} bytes in the manifest"
        raise Corrupt(place.topic, place.partition, message, hint=_hint(place)) from e
    if hashlib.sha256(data).digest() != entry.index_checksum:
        raise Corrupt(
            place.topic,
            place.partition,
            f"index `{key}` ({len(data)} bytes) does not have the SHA-256 of the manifest",
            hint="no record is lost, the segment has them all; put the index back from a version of the object or "
            f"from a replica, then run `{place.command('verify')}`",
        )
    return data


def _hint(place: Place) -> str:
    return f"run `{place.command('verify')}` to list what is damaged"
