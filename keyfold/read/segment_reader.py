"""The wanted records of one segment as Arrow batches, through its index.

Rows of the index say which blocks hold wanted records and where records are in them, the block table proves the bytes
(`keyfold.read.blocks`), and `keyfold.log.arrow` makes columns of them. Where only offsets, timestamps and keys are
wanted, the index has them and the segment is not fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyfold.errors import StoreError
from keyfold.log.arrow import RECORDS, BlockRows, RawBlock, decode_blocks, schema_of
from keyfold.log.avro import SegmentDamaged
from keyfold.log.codec import open_codec
from keyfold.log.index import Index, Ints, read_index_data
from keyfold.log.manifest import SegmentEntry
from keyfold.log.names import Place
from keyfold.read.blocks import READ_LIMITS, BlockSource, ReadLimits, damage_named, raw_blocks_at
from keyfold.read.index_parts import checked_parts
from keyfold.read.selection import Selection
from keyfold.store.api import ObjectStore

BATCH_BYTES: Final = 8 * 1024 * 1024

_MAX_BATCH_BYTES: Final = 1 << 30  # Arrow's binary has 32-bit offsets, and a batch may end a block late
_IN_INDEX: Final = ("offset", "timestamp", "key")

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SegmentRead:
    """What to read of every segment: offsets `[start, end)`, columns, a selection, and the batch size."""

    start: int
    end: int
    columns: tuple[str, ...]
    where: Selection = field(default_factory=Selection)
    batch_bytes: int = BATCH_BYTES
    read_ahead_bytes: int = READ_LIMITS.read_ahead_bytes

    @staticmethod
    def of(
        start: int,
        end: int,
        columns: Sequence[str] | None,
        where: Selection | None,
        batch_bytes: int = BATCH_BYTES,
        limits: ReadLimits = READ_LIMITS,
    ) -> SegmentRead:
        """A wish with defaults filled in. Raises `ValueError` for an unknown column."""
        names = tuple(schema_of(columns).names)
        batch_bytes = min(max(1, batch_bytes), _MAX_BATCH_BYTES)
        return SegmentRead(start, end, names, where or Selection(), batch_bytes, limits.read_ahead_bytes)


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """A batch, never empty, and the position after everything that was read for it."""

    batch: pa.RecordBatch
    position: int


def take_entry(store: ObjectStore, place: Place, entry: SegmentEntry, wish: SegmentRead) -> Iterator[ReadBatch]:
    """The wanted records of one segment, with positions. Raises as `read_entry_batches`."""
    if entry.last_offset < wish.start or entry.base_offset >= wish.end or not wish.where.can_match(entry):
        return
    with damage_named(place):
        data = read_index_data(store, place, entry)
        for part in checked_parts(data, index_columns(wish), entry, place.key(entry.index_name)):
            offsets = part.ints("offset")
            if offsets[0] >= wish.end:
                return
            if offsets[-1] >= wish.start:
                keep = wish.where.matches(part)
                keep[: np.searchsorted(offsets, wish.start)] = False
                keep[np.searchsorted(offsets, wish.end) :] = False
                yield from take_rows(store, place, entry, part, keep, wish)


def index_columns(wish: SegmentRead) -> tuple[str, ...]:
    """The columns of an index that a wish needs, `offset` among them."""
    names = dict.fromkeys(("offset", *wish.where.columns()))
    names |= dict.fromkeys(wish.columns if _is_in_index(wish.columns) else ("position", "length"))
    return tuple(names)


def _is_in_index(columns: Sequence[str]) -> bool:
    return all(name in _IN_INDEX for name in columns)


def take_rows(
    store: ObjectStore, place: Place, entry: SegmentEntry, part: Index, keep: Flags, wish: SegmentRead
) -> Iterator[ReadBatch]:
    """The records of those rows of a part of an index that `keep` names (one flag a row)."""
    offsets = part.ints("offset")
    if not keep.any():
        return
    if _is_in_index(wish.columns):
        yield ReadBatch(_from_index(part, keep, wish.columns), min(int(offsets[-1]) + 1, wish.end))
        return
    first, last = part.part or (0, len(part.blocks))
    ends = np.cumsum(part.blocks.record_count[first:last])
    starts = ends - part.blocks.record_count[first:last]
    wanted = np.flatnonzero(np.add.reduceat(keep, starts))
    held: list[RawBlock] = []
    held_bytes = 0
    source = BlockSource.of(entry, part)
    codec = open_codec(source.codec)
    key = place.key(entry.name)
    try:
        for number, raw in raw_blocks_at(store, place, source, codec, wanted + first, wish.read_ahead_bytes):
            if held and held_bytes + len(raw) > wish.batch_bytes:
                yield _taken(held, key, part, starts, ends, keep, wish)
                held, held_bytes = [], 0
            held.append(RawBlock(number, raw, int(part.blocks.record_count[number])))
            held_bytes += len(raw)
    except (SegmentDamaged, StoreError):
        if held:  # what came before is good, and whoever reads again need not fetch it again
            yield _taken(held, key, part, starts, ends, keep, wish)
        raise
    yield _taken(held, key, part, starts, ends, keep, wish)


def _from_index(part: Index, keep: Flags, columns: Sequence[str]) -> pa.RecordBatch:
    rows = part.rows.select(list(columns)).filter(pa.array(keep)).combine_chunks()
    arrays = [rows.column(name).chunks[0].cast(RECORDS.field(name).type) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))


def _taken(
    held: Sequence[RawBlock], origin: str, part: Index, starts: Ints, ends: Ints, keep: Flags, wish: SegmentRead
) -> ReadBatch:
    """What is kept of some blocks: their rows are slices of the part's."""
    first = 0 if part.part is None else part.part[0]
    spans = _joined([(int(starts[b.number - first]), int(ends[b.number - first])) for b in held])
    names = ("offset", "position", "length")
    picked = [np.concatenate([part.ints(name)[low:high] for low, high in spans]) for name in names]
    wanted = np.concatenate([keep[low:high] for low, high in spans])
    rows = BlockRows(*picked)
    batch = decode_blocks(held, rows, wish.columns, keep=None if wanted.all() else wanted, origin=origin)
    return ReadBatch(batch, min(int(rows.offset[-1]) + 1, wish.end))


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbouring spans as one."""
    found: list[tuple[int, int]] = []
    for low, high in spans:
        if found and found[-1][1] == low:
            found[-1] = (found[-1][0], high)
        else:
            found.append((low, high))
    return found
