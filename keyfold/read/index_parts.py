"""An index in parts, proved to be that of its segment."""

from __future__ import annotations

from collections.abc import Iterator

from keyfold.log.avro import SegmentDamaged
from keyfold.log.index import Index
from keyfold.log.manifest import SegmentEntry


def checked_parts(data: bytes, columns: tuple[str, ...], entry: SegmentEntry, key: str) -> Iterator[Index]:
    """An index in parts with `offset` among the columns; its table and offsets must be those of `entry`.

    Raises `SegmentDamaged`.
    """
    last = entry.base_offset - 1
    count = 0
    for part in Index.parts(data, columns=columns, origin=key):
        blocks, offsets = part.blocks, part.ints("offset")
        if int(blocks.record_count.sum()) != entry.record_count:
            message = f"has {int(blocks.record_count.sum())} rows, but its segment has {entry.record_count} records"
            raise SegmentDamaged(key, message)
        if int(blocks.position[-1] + blocks.length[-1]) != entry.size_bytes:
            raise SegmentDamaged(
                key, f"has blocks that do not end at the segment's end, after {entry.size_bytes} bytes"
            )
        if offsets[0] <= last or (offsets[1:] <= offsets[:-1]).any() or offsets[-1] > entry.last_offset:
            raise SegmentDamaged(key, "has offsets that do not ascend, or are outside of the segment")
        last = int(offsets[-1])
        count += len(part)
        yield part
    if count != entry.record_count:
        raise SegmentDamaged(key, f"has {count} rows, but its segment has {entry.record_count} records")
