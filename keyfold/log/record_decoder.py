"""Decoder of stored blocks into records, which does not trust the bytes.

A block's raw bytes must be exactly its records, one after another: every number, branch and length is checked, and the
last record must end with the block. Uncompressed sizes are limited: a block of several records has at most
`SEVERAL_BYTES_MAX`, and a block of one record has the bytes given by its own lengths. With the block table of the
segment's index, position, length, count, first offset and CRC-32 of every block are checked too. This detects a segment
that is cut off between two blocks, and a flipped bit in a codec without a checksum. All errors are `SegmentDamaged`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from keyfold.log.avro import (
    MAX_BLOCK_BYTES,
    SegmentDamaged,
    SegmentHeader,
    StoredBlock,
    parse_block,
    read_blocks,
    read_varint,
)
from keyfold.log.codec import Codec, DecompressionFailed, TooLarge, open_codec
from keyfold.log.index import BlockTable
from keyfold.log.record import TIMESTAMP_TYPES, Header, Record
from keyfold.runtime.buffers import Bytes

SEVERAL_BYTES_MAX: Final = 8 * 1024 * 1024
"""Limit of a block of several records: far more than writers of this format use (`segment`)."""

_BYTES_BRANCH: Final = 2
_TAIL_BYTES: Final = 16
_HEADERS_REACHED: Final = 1 << 20
_INT_MIN: Final = -(2**31)
_INT_MAX: Final = 2**31 - 1
_TYPE_OF_BYTE: Final = {2 * i: name for i, name in enumerate(TIMESTAMP_TYPES)}


def read_records(
    data: Bytes | Iterable[Bytes], *, origin: str = "", blocks: BlockTable | None = None
) -> Iterator[Record]:
    """Yield all records of a segment, from its bytes or from chunks of them.

    `blocks`, the block table of its index, makes the check complete. Raises `SegmentDamaged` at the damage, after the
    records of the blocks before it.
    """
    parts = read_blocks(data, origin=origin)
    header = next(parts)
    assert isinstance(header, SegmentHeader)
    codec = open_codec(header.codec)
    last_offset = -1
    count = 0
    for block in parts:
        assert isinstance(block, StoredBlock)
        if blocks is not None:
            blocks.check(block, origin=origin)
        for number, record in enumerate(_decode(block, codec, origin)):
            if record.offset <= last_offset:
                message = f"has offset {record.offset} after offset {last_offset}"
                raise SegmentDamaged(origin, message, block=block.number, record=number)
            last_offset = record.offset
            if number == 0 and blocks is not None and last_offset != blocks.first_offset[block.number]:
                message = f"starts at offset {last_offset}, but its index says {blocks.first_offset[block.number]}"
                raise SegmentDamaged(origin, message, block=block.number)
            yield record
        count += 1
    if blocks is not None and count != len(blocks):
        raise SegmentDamaged(origin, f"ends after {count} of {len(blocks)} blocks")


def decode_block(
    stored: Bytes, codec: str | Codec, *, sync_marker: bytes | None = None, origin: str = "", number: int = 0
) -> list[Record]:
    """Return the records of one stored block. Raises `SegmentDamaged`."""
    opened = open_codec(codec) if isinstance(codec, str) else codec
    return _decode(parse_block(memoryview(stored), sync_marker, origin=origin, number=number), opened, origin)


def decompress_block(block: StoredBlock, codec: Codec, *, origin: str = "", raw_bytes: int | None = None) -> Bytes:
    """Return a block's raw bytes; `raw_bytes` is their number according to an index. Raises `SegmentDamaged`.

    Memory is bounded: by the size of a writer's block, or of one record according to its own lengths, and always by the
    index, which may be forged as well.
    """
    most = MAX_BLOCK_BYTES if raw_bytes is None else raw_bytes
    try:
        try:
            return codec.decompress(block.payload, min(most, SEVERAL_BYTES_MAX))
        except TooLarge:
            if most <= SEVERAL_BYTES_MAX or block.record_count > 1:
                raise
            return codec.decompress(block.payload, min(most, _bytes_of_one(block, codec)))
    except (DecompressionFailed, MemoryError) as e:
        what = e if isinstance(e, DecompressionFailed) else "not enough memory"
        raise SegmentDamaged(origin, f"cannot be decompressed ({codec.name}): {what}", block=block.number) from e


def _bytes_of_one(block: StoredBlock, codec: Codec) -> int:
    """Return the limit of a block of one large record, from the lengths in it. Raises `DecompressionFailed`.

    Decompresses at most `SEVERAL_BYTES_MAX` more than the lengths that were read so far.
    """
    max_bytes = SEVERAL_BYTES_MAX
    while True:
        head = bytes(codec.head(block.payload, max_bytes))
        if len(head) < max_bytes:
            return max_bytes  # the block ends here
        end = _reach(head)
        if end is None or end > MAX_BLOCK_BYTES:
            raise TooLarge(len(block.payload), max_bytes)
        # With many small headers the end is unknown again and again: double the size each time.
        max_bytes = min(max(end + SEVERAL_BYTES_MAX, 2 * max_bytes), MAX_BLOCK_BYTES)


def _reach(head: bytes) -> int | None:
    """Return the end of the first field that `head`, the start of a record, cuts off; None if the record ends in it."""
    position = 0
    try:
        _, position = _number(head, position)
        _, position = _number(head, position)
        position += 1
        for _ in range(2):
            position = _end_of_optional(head, position)
            if position > len(head):
                return position
        count = 0
        if head[position]:
            count, position = read_varint(head, position)
        for _ in range(min(count, _HEADERS_REACHED)):
            name_end = _end_of_bytes(head, position)
            position = name_end if name_end > len(head) else _end_of_optional(head, name_end)
            if position > len(head):
                return position
    except (IndexError, ValueError):
        pass
    # After the last byte string, a record only has the end of its headers and a leader epoch.
    return len(head) + _TAIL_BYTES if position > len(head) - _TAIL_BYTES else None


def _end_of_optional(raw: bytes, position: int) -> int:
    if raw[position] == 0:
        return position + 1
    if raw[position] != _BYTES_BRANCH:
        raise ValueError("has a key or value that is neither null nor bytes")
    return _end_of_bytes(raw, position + 1)


def _end_of_bytes(raw: bytes, position: int) -> int:
    size, start = read_varint(raw, position)
    if size < 0:
        raise ValueError("has a negative length")
    return start + size


def _decode(block: StoredBlock, codec: Codec, origin: str) -> list[Record]:
    raw = bytes(decompress_block(block, codec, origin=origin))
    return decode_raw(raw, block.record_count, origin=origin, number=block.number)


def decode_raw(raw: bytes, record_count: int, *, origin: str = "", number: int = 0) -> list[Record]:
    """Return the records of a block's raw bytes. Raises `SegmentDamaged`."""
    records: list[Record] = []
    position = 0
    try:
        for _ in range(record_count):
            record, position = decode_record(raw, position)
            records.append(record)
    except (ValueError, IndexError) as e:
        message = str(e) if isinstance(e, ValueError) else "reaches beyond the end of its block"
        raise SegmentDamaged(origin, message, block=number, record=len(records)) from e
    if position != len(raw):
        message = f"has {len(raw) - position} bytes after its {record_count} records"
        raise SegmentDamaged(origin, message, block=number)
    return records


def decode_record(raw: bytes, position: int) -> tuple[Record, int]:
    """Read the record at `position`; return it and the next position. Raises `ValueError`, `IndexError`."""
    offset, position = _number(raw, position)
    timestamp, position = _number(raw, position)
    timestamp_type = _TYPE_OF_BYTE.get(raw[position])
    if timestamp_type is None or offset < 0:
        raise ValueError(f"has offset {offset} and timestamp type {raw[position]}")
    key, position = _optional_bytes(raw, position + 1)
    value, position = _optional_bytes(raw, position)
    headers: tuple[Header, ...] = ()
    if raw[position]:
        headers, position = _headers(raw, position)
    else:
        position += 1
    leader_epoch = raw[position]
    if leader_epoch < 0x80:
        leader_epoch = (leader_epoch >> 1) ^ -(leader_epoch & 1)
        position += 1
    else:
        leader_epoch, position = read_varint(raw, position)
        if not _INT_MIN <= leader_epoch <= _INT_MAX:
            raise ValueError(f"has leader epoch {leader_epoch}, outside of 32 bits")
    return Record(offset, timestamp, timestamp_type, key, value, headers, leader_epoch), position


def _number(raw: bytes, position: int) -> tuple[int, int]:
    """Read a varint like `read_varint`, but faster."""
    byte = raw[position]
    rest = byte & 0x7F
    shift = 7
    while byte > 0x7F:
        if shift > 63:
            raise ValueError("has a malformed varint")
        position += 1
        byte = raw[position]
        rest |= (byte & 0x7F) << shift
        shift += 7
    if rest >> 64 or (byte == 0 and shift > 7):
        raise ValueError("has a malformed varint")
    return (rest >> 1) ^ -(rest & 1), position + 1


def _optional_bytes(raw: bytes, position: int) -> tuple[bytes | None, int]:
    branch = raw[position]
    if branch == 0:
        return None, position + 1
    if branch != 2:
        raise ValueError(f"has branch {branch} where null or bytes belong")
    return _bytes(raw, position + 1)


def _bytes(raw: bytes, position: int) -> tuple[bytes, int]:
    first = raw[position]
    if first < 0x80:
        size, start = first >> 1, position + 1
        if first & 1:
            raise ValueError("has a negative length")
    else:
        size, start = read_varint(raw, position)
    end = start + size
    if size < 0 or end > len(raw):
        raise ValueError(f"has a length of {size} with {len(raw) - start} bytes left")
    return raw[start:end], end


def skip_headers(raw: bytes, position: int) -> int:
    """Return the end of the headers at `position`; there is at least one. Raises `ValueError`, `IndexError`."""
    return _headers(raw, position)[1]


def _headers(raw: bytes, position: int) -> tuple[tuple[Header, ...], int]:
    """Read header names and values: an Avro array of one block, as writers of this format write it."""
    count, position = read_varint(raw, position)
    if not 0 < count <= len(raw) - position:
        raise ValueError(f"has an impossible number of headers: {count}")
    headers: list[Header] = []
    for _ in range(count):
        name, position = _bytes(raw, position)
        value, position = _optional_bytes(raw, position)
        headers.append((name.decode(), value))
    if raw[position]:
        raise ValueError("has headers without an end marker")
    return tuple(headers), position + 1
