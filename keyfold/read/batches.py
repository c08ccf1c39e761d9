"""Records as Arrow batches, without a loop over records.

    for batch in read_batches(store, place, load, manifest, start, None): ...

The reader skips segments by their manifest entry, blocks by their index rows, and columns by name.
`keyfold.read.segment_reader` reads one segment.

Memory holds `batch_bytes` of raw blocks (or one larger block) and their batch, one range of stored bytes, the index's
bytes, and the rows of one row group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from keyfold.errors import ObjectNotFound
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.names import Place
from keyfold.read.blocks import READ_LIMITS, ReadLimits
from keyfold.read.index_parts import checked_parts
from keyfold.read.ordered import Load, newer
from keyfold.read.position import anchor_of, check_resumed, end_offset, segments_between
from keyfold.read.segment_reader import BATCH_BYTES, ReadBatch, SegmentRead, take_entry, take_rows
from keyfold.read.selection import Selection
from keyfold.store.api import ObjectStore

__all__ = [
    "BATCH_BYTES",
    "ReadBatch",
    "SegmentRead",
    "Selection",
    "checked_parts",
    "read_batches",
    "read_entry_batches",
    "take_entry",
    "take_rows",
]


def read_batches(
    store: ObjectStore,
    place: Place,
    load: Load,
    manifest: Manifest,
    start: int,
    end: int | None,
    *,
    columns: Sequence[str] | None = None,
    where: Selection | None = None,
    batch_bytes: int = BATCH_BYTES,
    limits: ReadLimits = READ_LIMITS,
) -> Iterator[pa.RecordBatch]:
    """Return the records from offset `start` to `end` (or the end of the last version read), in order.

    Batches have the columns `columns` (default: all of `RECORDS`) and at least one record each. The read continues in a
    newer version by the rules of `keyfold.read.position`. Raises `ValueError` immediately, and the errors of
    `read_ordered` during the iteration.
    """
    wish = SegmentRead.of(start, end_offset(manifest, end), columns, where, batch_bytes, limits)
    return _ordered(store, place, load, manifest, end, wish)


def _ordered(
    store: ObjectStore, place: Place, load: Load, manifest: Manifest, to_offset: int | None, wish: SegmentRead
) -> Iterator[pa.RecordBatch]:
    anchor, position = anchor_of(manifest), wish.start
    while True:
        end = end_offset(manifest, to_offset)
        try:
            for entry in segments_between(manifest, position, end):
                part = replace(wish, start=position, end=end)
                for taken in take_entry(store, place, entry, part):
                    yield taken.batch
                    position = taken.position
                position = max(position, min(entry.next_offset, end))
        except ObjectNotFound as error:
            manifest = newer(place, load, error)
            anchor = check_resumed(anchor, position, manifest)
        else:
            return


def read_entry_batches(
    store: ObjectStore,
    place: Place,
    entry: SegmentEntry,
    start: int,
    end: int,
    *,
    columns: Sequence[str] | None = None,
    where: Selection | None = None,
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield records of one segment with `start <= offset < end`. Raises `Corrupt`; callers handle `ObjectNotFound`."""
    for taken in take_entry(store, place, entry, SegmentRead.of(start, end, columns, where, batch_bytes)):
        yield taken.batch
