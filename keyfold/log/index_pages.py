"""Memory that Arrow would need for an index, computed from the headers of its Parquet pages.

Arrow allocates the memory that a Parquet file requests. A page's header, not the footer, has the page's uncompressed
size. Pages with a dictionary, and pages of keys that repeat the start of the previous key, then grow again. So do pages
of keys with separate lengths: the page declares their number, and Arrow trusts it.

So only pages that cannot grow are accepted: data pages of format 1, PLAIN or one of the delta encodings that keyfold
writes, uncompressed or with zstd. The headers are in Thrift's compact protocol. Arrow itself cannot be used to read a
footer's columns: Arrow aborts the process if a damaged footer has an unknown column. This decoder also raises an error
where Thrift's decoder would ignore something odd (a repeated field, a number too large for its type).

    https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
    https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from keyfold.log.codec import open_codec
from keyfold.runtime.buffers import Bytes

# Kinds of fields in Thrift's compact protocol.
_TRUE, _FALSE, _I8, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_NESTED_MAX: Final = 8
_VARINT_BITS: Final = 70
_WIDE: Final = 15

_DATA_PAGE: Final = 0
_RLE: Final = 3
_DELTA_LENGTH_BYTE_ARRAY: Final = 6
# In these encodings a value occupies its own bytes in the page, or Arrow allocates only the size of its type.
_ENCODINGS: Final = {0: "PLAIN", 3: "RLE", 5: "DELTA_BINARY_PACKED", 6: "DELTA_LENGTH_BYTE_ARRAY"}
_NONE: Final = 0
_ZSTD: Final = 6

# Levels of a page of keys: a bit per row, rarely more. After them are four numbers of at most 5 bytes each.
_LEVELS_BYTES: Final = 20 * 1024
_NUMBERS_BYTES: Final = 20
_SIZE: Final = 4


@dataclass(frozen=True, slots=True)
class Chunk:
    """The pages of one column in one row group: their place, number of values, and Parquet's number of their codec."""

    start: int
    size_bytes: int
    value_count: int
    codec: int


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group: its number of rows, and a chunk for each column."""

    row_count: int
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a Parquet file: its metadata and row groups."""

    metadata: dict[bytes, bytes]
    groups: tuple[RowGroup, ...]


def read_footer(data: Bytes) -> Footer:
    """Read the footer of a Parquet file, or of its end. Raises `ValueError`."""
    if len(data) < 2 * _SIZE or bytes(data[-_SIZE:]) != b"PAR1":
        raise ValueError("it does not end with Parquet's magic bytes")
    end = len(data) - 2 * _SIZE
    size = int.from_bytes(data[end : end + _SIZE], "little")
    if size > end:
        raise ValueError(f"it is shorter than its footer of {size} bytes")
    footer = _Compact(bytes(data[end - size : end]))
    metadata: dict[bytes, bytes] = {}
    groups: tuple[RowGroup, ...] = ()
    try:
        for field in footer.fields():
            if field == 4 << 4 | _LIST:
                groups = tuple(_row_group(footer) for _ in range(footer.items(_STRUCT)))
            elif field == 5 << 4 | _LIST:
                metadata = dict(_pair(footer) for _ in range(footer.items(_STRUCT)))
            else:
                footer.skip(field & 15)
    except IndexError:
        raise ValueError("its footer is cut off") from None
    return Footer(metadata, groups)


def unpacked_bytes(data: Bytes, group: RowGroup, column: int, *, is_key: bool) -> int:
    """Return the declared uncompressed bytes of a column's pages.

    Raises `ValueError` if Arrow could need more memory, or if the number of values differs from the number of rows. A
    column of keys has one definition level.
    """
    chunk = group.chunks[column]
    if chunk.codec not in {_NONE, _ZSTD}:
        raise ValueError(f"column {column} has the Parquet codec {chunk.codec}, which keyfold does not write")
    if chunk.start < 0 or chunk.size_bytes < 0 or chunk.start + chunk.size_bytes > len(data):
        raise ValueError(f"column {column} lies beyond the end of the file")
    pages = memoryview(data)[chunk.start : chunk.start + chunk.size_bytes]
    at = values = total = 0
    try:
        while values < group.row_count:
            page = _page(pages, at)
            if page.value_count > group.row_count - values:
                raise ValueError(
                    f"column {column} has more values in its pages than there are rows ({group.row_count})"
                )
            if page.encoding not in _ENCODINGS:
                expected = ", ".join(_ENCODINGS.values())
                message = f"column {column} has a page of Parquet encoding {page.encoding}; keyfold writes {expected}"
                raise ValueError(message)
            if is_key and page.encoding == _DELTA_LENGTH_BYTE_ARRAY:
                _check_lengths(pages[page.start : page.end], page, chunk.codec, column)
            at = page.end
            total += page.unpacked_bytes
            values += page.value_count
    except IndexError:
        raise ValueError(f"a page of column {column} is cut off") from None
    if chunk.value_count != group.row_count:
        raise ValueError(f"column {column} has {chunk.value_count} values for {group.row_count} rows")
    return total


@dataclass(frozen=True, slots=True)
class _Page:
    start: int
    end: int
    unpacked_bytes: int
    value_count: int
    encoding: int
    level_encoding: int


def _page(pages: memoryview, at: int) -> _Page:
    """Return the data page at this position. Raises `ValueError` for another kind of page, `IndexError` at the end."""
    header = _Compact(pages, at)
    kind = unpacked = packed = -1
    values = (-1, -1, -1)
    for field in header.fields():
        if field == 1 << 4 | _I32:
            kind = header.i32()
        elif field == 2 << 4 | _I32:
            unpacked = header.i32()
        elif field == 3 << 4 | _I32:
            packed = header.i32()
        elif field == 5 << 4 | _STRUCT:
            values = _page_values(header)
        else:
            header.skip(field & 15)
    if kind != _DATA_PAGE:
        raise ValueError(f"it has a page of Parquet type {kind}; keyfold writes data pages only, no dictionary")
    if min(unpacked, packed, values[0]) < 0:
        raise ValueError("a page has no size or no count")
    end = header.at + packed
    if end > len(pages):
        raise IndexError
    return _Page(header.at, end, unpacked, *values)


def _page_values(header: _Compact) -> tuple[int, int, int]:
    """Return a data page's number of values, their encoding, and that of their definition levels; -1 if missing."""
    count = encoding = levels = -1
    for field in header.fields():
        if field == 1 << 4 | _I32:
            count = header.i32()
        elif field == 2 << 4 | _I32:
            encoding = header.i32()
        elif field == 3 << 4 | _I32:
            levels = header.i32()
        else:
            header.skip(field & 15)
    return count, encoding, levels


def _check_lengths(stored: memoryview, page: _Page, codec: int, column: int) -> None:
    """Raise `ValueError` if a page of keys declares more lengths than values: Arrow allocates memory for each."""
    if page.level_encoding != _RLE:
        raise ValueError(f"column {column} has levels of Parquet encoding {page.level_encoding}, not RLE")
    head = _head(stored, _LEVELS_BYTES, codec)
    numbers_at = _SIZE + int.from_bytes(head[:_SIZE], "little")
    if numbers_at > _LEVELS_BYTES + 2 * page.value_count:
        raise ValueError(f"column {column} has a page with levels of {numbers_at} bytes")
    if numbers_at + _NUMBERS_BYTES > len(head):
        head = _head(stored, numbers_at + _NUMBERS_BYTES, codec)
    numbers = _Compact(head, numbers_at)
    _block_values, _block_parts, count = numbers.unsigned(), numbers.unsigned(), numbers.unsigned()
    if count > page.value_count:
        raise ValueError(f"column {column} has a page of {page.value_count} values that declares {count} lengths")


def _head(stored: memoryview, size_bytes: int, codec: int) -> Bytes:
    return open_codec("null" if codec == _NONE else "zstandard").head(stored, size_bytes)


def _pair(footer: _Compact) -> tuple[bytes, bytes]:
    key = value = b""
    for field in footer.fields():
        if field == 1 << 4 | _BINARY:
            key = footer.binary()
        elif field == 2 << 4 | _BINARY:
            value = footer.binary()
        else:
            footer.skip(field & 15)
    return key, value


def _row_group(footer: _Compact) -> RowGroup:
    row_count = -1
    chunks: tuple[Chunk, ...] = ()
    for field in footer.fields():
        if field == 1 << 4 | _LIST:
            chunks = tuple(_chunk(footer) for _ in range(footer.items(_STRUCT)))
        elif field == 3 << 4 | _I64:
            row_count = footer.number()
        else:
            footer.skip(field & 15)
    if row_count < 0 or not chunks:
        raise ValueError("it has a row group without rows or columns")
    return RowGroup(row_count, chunks)


def _chunk(footer: _Compact) -> Chunk:
    found = None
    for field in footer.fields():
        if field == 3 << 4 | _STRUCT:
            found = _chunk_metadata(footer)
        elif field in {8 << 4 | _STRUCT, 9 << 4 | _BINARY}:
            raise ValueError("it has a column that is encrypted")
        else:
            footer.skip(field & 15)
    if found is None:
        raise ValueError("it has a column without metadata")
    return found


def _chunk_metadata(footer: _Compact) -> Chunk:
    codec = value_count = size_bytes = start = -1
    for field in footer.fields():
        if field == 4 << 4 | _I32:
            codec = footer.i32()
        elif field == 5 << 4 | _I64:
            value_count = footer.number()
        elif field == 7 << 4 | _I64:
            size_bytes = footer.number()
        elif field == 9 << 4 | _I64:
            start = footer.number()
        elif field == 11 << 4 | _I64:
            raise ValueError("it has a column with a dictionary, which keyfold does not write")
        else:
            footer.skip(field & 15)
    return Chunk(start, size_bytes, value_count, codec)


class _Compact:
    """A reader of Thrift's compact protocol. Raises `ValueError`, and `IndexError` if the data ends early."""

    __slots__ = ("at", "data")

    def __init__(self, data: Bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def fields(self) -> Iterator[int]:
        """Yield the fields of a struct: number and kind, as `number << 4 | kind`. The caller reads or skips each."""
        number = 0
        while byte := self.data[self.at]:
            self.at += 1
            step = byte >> 4
            if not step:
                step = self.number() - number
                if step <= 0 or number + step > 0x7FFF:
                    raise ValueError("the field numbers of a struct do not ascend")
            number += step
            yield number << 4 | byte & 15
        self.at += 1

    def unsigned(self) -> int:
        """Read an unsigned varint."""
        data, at = self.data, self.at
        byte = data[at]
        found, shift = byte & 0x7F, 7
        while byte >= 0x80:
            at += 1
            byte = data[at]
            found |= (byte & 0x7F) << shift
            shift += 7
            if shift > _VARINT_BITS:
                raise ValueError("a number in the Parquet footer has more than 64 bits")
        self.at = at + 1
        return found

    def number(self) -> int:
        """Read a number of up to 64 bits."""
        found = self.unsigned()
        if found >> 64:
            raise ValueError("a number in the Parquet footer has more than 64 bits")
        return (found >> 1) ^ -(found & 1)

    def i32(self) -> int:
        """Read a number of 32 bits."""
        found = self.unsigned()
        if found >> 32:
            raise ValueError("a number in the Parquet footer has more than 64 bits")
        return (found >> 1) ^ -(found & 1)

    def binary(self) -> bytes:
        """Read a byte string."""
        size = self.unsigned()
        start = self.at
        self._pass(size)
        return bytes(self.data[start : self.at])

    def items(self, kind: int) -> int:
        """Read the number of items of a list of this kind; each item has at least one byte."""
        byte = self.data[self.at]
        self.at += 1
        count = byte >> 4
        if count == _WIDE:
            count = self.unsigned()
        if byte & 15 != kind and count:
            raise ValueError("a list has items of an unexpected type")
        if count > len(self.data) - self.at:
            raise IndexError
        return count

    def skip(self, kind: int, depth: int = 0) -> None:
        """Skip a value."""
        if kind in {_I16, _I32, _I64}:
            self.unsigned()
        elif kind == _BINARY:
            self._pass(self.unsigned())
        elif kind in {_TRUE, _FALSE}:
            pass
        elif depth > _NESTED_MAX:
            raise ValueError("it is nested too deeply")
        elif kind in {_LIST, _SET}:
            inner = self.data[self.at] & 15
            for _ in range(self.items(inner)):
                self.skip(_I8 if inner in {_TRUE, _FALSE} else inner, depth + 1)
        elif kind == _STRUCT:
            for field in self.fields():
                self.skip(field & 15, depth + 1)
        elif kind in {_I8, _DOUBLE}:
            self._pass(1 if kind == _I8 else 8)
        else:
            raise ValueError(f"it has a value of Thrift type {kind}")

    def _pass(self, size: int) -> None:
        if size > len(self.data) - self.at:
            raise IndexError
        self.at += size
