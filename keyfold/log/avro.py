r"""Avro object container files of segments: header and stored blocks.

    header  "Obj\x01", a map with avro.schema, avro.codec and keyfold.format, the sync marker (16 bytes)
    block   record count, size of the payload (both zigzag varints), payload, the sync marker

A *stored block* is a whole block, with its counts and its sync marker; position and length of a block refer to it. All
segments of one partition have the same sync marker, so a stored block can move to another segment unchanged.

Readers do not trust stored bytes: anything that a writer of this format would not write raises `SegmentDamaged`, with
origin, block and record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from keyfold.log.codec import CODECS
from keyfold.runtime.buffers import Bytes
from keyfold_schemas import schema_text

MAGIC: Final = b"Obj\x01"
SYNC_BYTES: Final = 16
FORMAT: Final = "1"
RECORD_SCHEMA: Final = schema_text("record", 1)

# Avro readers (Java's, fastavro's) hold sizes in 32 bits.
MAX_BLOCK_BYTES: Final = 2**31 - 1
_MAX_VARINT_BYTES: Final = 10
_MAX_HEADER_BYTES: Final = 1 << 20
_MAX_FRAME_BYTES: Final = 2 * _MAX_VARINT_BYTES


class SegmentDamaged(ValueError):
    """Stored bytes of a segment or index are damaged.

    `origin` names the object; `block` and `record` (both from 0, the record within its block) are -1 if unknown.
    Callers that know topic and partition raise `keyfold.errors.Corrupt` instead.
    """

    def __init__(self, origin: str, message: str, *, block: int = -1, record: int = -1) -> None:
        where = origin or "segment"
        where += f", block {block}" if block >= 0 else ""
        where += f", record {record}" if record >= 0 else ""
        super().__init__(f"{where}: {message}")
        self.origin = origin
        self.message = message
        self.block = block
        self.record = record

    def __reduce__(self) -> tuple[partial[SegmentDamaged], tuple[str, str]]:
        # Spark tasks send pickled errors to the driver.
        return partial(SegmentDamaged, block=self.block, record=self.record), (self.origin, self.message)


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The header of a segment. `size_bytes` is the position of the first block."""

    codec: str
    sync_marker: bytes
    schema: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block as stored in its segment, with a compressed `payload`; `position` counts from the segment's start."""

    number: int
    position: int
    record_count: int
    payload: memoryview
    stored: memoryview


def varint(value: int) -> bytes:
    """Encode an Avro long or int: zigzag, then seven bits per byte, low bits first."""
    rest = (value << 1) ^ (value >> 63)
    if rest < 0x80:
        return bytes((rest,))
    if rest < 0x4000:
        return bytes((rest & 0x7F | 0x80, rest >> 7))
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def read_varint(data: Bytes, position: int) -> tuple[int, int]:
    """Return the number at `position` and the position after it. Raises `ValueError` for a malformed varint."""
    rest = shift = 0
    for i in range(position, min(position + _MAX_VARINT_BYTES, len(data))):
        byte = data[i]
        rest |= (byte & 0x7F) << shift
        if byte < 0x80:
            if rest >= 1 << 64 or (byte == 0 and shift):
                break
            return (rest >> 1) ^ -(rest & 1), i + 1
        shift += 7
    raise ValueError("has a malformed varint")


def header_bytes(codec: str, sync_marker: bytes) -> bytes:
    """Return a segment's header. Equal arguments give equal bytes."""
    if len(sync_marker) != SYNC_BYTES:
        raise ValueError(f"a sync marker must have {SYNC_BYTES} bytes, not {len(sync_marker)}")
    if codec not in CODECS:
        raise ValueError(f"unknown codec {codec!r}; the codecs are {', '.join(CODECS)}")
    meta = {"avro.codec": codec, "avro.schema": RECORD_SCHEMA, "keyfold.format": FORMAT}
    texts = [part.encode() for item in meta.items() for part in item]
    pairs = b"".join(varint(len(text)) + text for text in texts)
    return b"".join((MAGIC, varint(len(meta)), pairs, varint(0), sync_marker))


def parse_header(data: Bytes, *, origin: str = "") -> SegmentHeader:
    """Read the header at the start of a segment; `data` may be longer.

    Raises `SegmentDamaged` if the header is damaged, cut off, or of an unknown format.
    """
    header = _try_header(data, origin)
    if header is None:
        raise SegmentDamaged(origin, f"the header is cut off after {len(data)} bytes")
    return header


def _try_header(data: Bytes, origin: str) -> SegmentHeader | None:
    """Return the header, or None if `data` ends within a header that is valid so far."""
    if bytes(data[: len(MAGIC)]) != MAGIC[: len(data)]:
        raise SegmentDamaged(origin, "does not start with Avro's magic bytes")
    try:
        meta, position = read_meta(data, len(MAGIC))
    except EOFError:
        if len(data) > _MAX_HEADER_BYTES:
            raise SegmentDamaged(origin, "the header has no end") from None
        return None
    except (ValueError, UnicodeDecodeError) as e:
        raise SegmentDamaged(origin, f"the header is damaged: {e}") from e
    if len(data) < position + SYNC_BYTES:
        return None
    codec, schema = meta.get("avro.codec", ""), meta.get("avro.schema", "")
    if meta.get("keyfold.format") != FORMAT:
        raise SegmentDamaged(origin, f"has format {meta.get('keyfold.format')!r}; this version reads format {FORMAT!r}")
    if schema != RECORD_SCHEMA:
        raise SegmentDamaged(origin, "the header's schema is not that of format 1")
    if codec not in CODECS:
        raise SegmentDamaged(origin, f"unknown codec {codec!r}; the codecs are {', '.join(CODECS)}")
    header = SegmentHeader(codec, bytes(data[position : position + SYNC_BYTES]), schema, position + SYNC_BYTES)
    if data[: header.size_bytes] != header_bytes(codec, header.sync_marker):
        raise SegmentDamaged(origin, "the header differs from the one that format 1 writes")
    return header


def read_meta(data: Bytes, position: int) -> tuple[dict[str, str], int]:
    """Read a header's metadata map at `position`. Raises `EOFError` if it is cut off, `ValueError` if it is malformed.

    A text has at most 1 MiB, and the map at most 64 entries per block.
    """

    def number(at: int) -> tuple[int, int]:
        if len(data) - at < _MAX_VARINT_BYTES and all(byte > 0x7F for byte in data[at:]):
            raise EOFError
        return read_varint(data, at)

    def text(at: int) -> tuple[str, int]:
        size, at = number(at)
        if not 0 <= size <= _MAX_HEADER_BYTES:
            raise ValueError(f"has a text of {size} bytes")
        if at + size > len(data):
            raise EOFError
        return bytes(data[at : at + size]).decode(), at + size

    meta: dict[str, str] = {}
    while True:
        count, position = number(position)
        if count == 0:
            return meta, position
        if not 0 < count <= 64:
            raise ValueError(f"has a map of {count} entries")
        for _ in range(count):
            key, position = text(position)
            meta[key], position = text(position)


def stored_block(record_count: int, payload: bytes, sync_marker: bytes) -> bytes:
    """Return the stored block of a compressed payload."""
    return b"".join((varint(record_count), varint(len(payload)), payload, sync_marker))


def parse_block(
    stored: memoryview, sync_marker: bytes | None, *, origin: str = "", number: int = 0, position: int = 0
) -> StoredBlock:
    """Parse exactly one stored block; a sync marker of None accepts any. Raises `SegmentDamaged`."""
    record_count, size, start = _frame(stored, origin, number)
    end = start + size
    if end + SYNC_BYTES != len(stored):
        expected = end + SYNC_BYTES
        raise SegmentDamaged(origin, f"declares {expected} bytes, but has {len(stored)}", block=number)
    if sync_marker is not None and stored[end:] != sync_marker:
        raise SegmentDamaged(origin, "does not end with the sync marker", block=number)
    return StoredBlock(number, position, record_count, stored[start:end], stored)


def _frame(data: memoryview, origin: str, number: int) -> tuple[int, int, int]:
    """Return record count, payload size, and the position of the payload."""
    try:
        record_count, position = read_varint(data, 0)
        size, position = read_varint(data, position)
    except ValueError as e:
        raise SegmentDamaged(origin, "the record count or size at its start cannot be read", block=number) from e
    if record_count < 1 or not 0 <= size <= MAX_BLOCK_BYTES:
        raise SegmentDamaged(origin, f"declares {record_count} records in {size} bytes", block=number)
    return record_count, size, position


class _Chunks:
    """A stream of chunks with a read position."""

    def __init__(self, chunks: Iterable[Bytes]) -> None:
        self._chunks = iter(chunks)
        self._held = b""
        self._start = 0
        self.position = 0

    def peek(self, length: int) -> memoryview:
        """Return up to `length` bytes from the position; fewer only at the end."""
        have = len(self._held) - self._start
        if have < length:
            parts: list[Bytes] = [memoryview(self._held)[self._start :]]
            while have < length and (chunk := next(self._chunks, None)) is not None:
                parts.append(chunk)
                have += len(chunk)
            self._held = b"".join(parts)
            self._start = 0
        return memoryview(self._held)[self._start : self._start + length]

    def skip(self, length: int) -> None:
        self._start += length
        self.position += length


def read_blocks(data: Bytes | Iterable[Bytes], *, origin: str = "") -> Iterator[StoredBlock | SegmentHeader]:
    """Yield a segment's header, then its stored blocks, from its bytes or from a stream of chunks.

    Raises `SegmentDamaged` at a block that is damaged or cut off. This function cannot detect a segment that is cut off
    exactly between two blocks: compare the size or the block table (`keyfold.log.record_decoder.read_records`).
    """
    chunks = _Chunks((data,) if isinstance(data, bytes | bytearray | memoryview) else data)
    wanted = 4096
    while (header := _try_header(held := chunks.peek(wanted), origin)) is None:
        if len(held) < wanted:
            raise SegmentDamaged(origin, f"the header is cut off after {len(held)} bytes")
        wanted *= 2
    chunks.skip(header.size_bytes)
    yield header
    number = 0
    while frame := chunks.peek(_MAX_FRAME_BYTES):
        _, size, start = _frame(frame, origin, number)
        length = start + size + SYNC_BYTES
        stored = chunks.peek(length)
        if len(stored) < length:
            message = f"is cut off after {len(stored)} of {length} bytes"
            raise SegmentDamaged(origin, message, block=number)
        yield parse_block(stored, header.sync_marker, origin=origin, number=number, position=chunks.position)
        chunks.skip(length)
        number += 1
