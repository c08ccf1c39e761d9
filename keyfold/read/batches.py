"""Records as Arrow batches, without a loop over records.

    for batch in read_batches(store, place, load, manifest, start, None): ...

A segment is read through its index: rows say which blocks hold wanted records and where records are in them, the block
table proves the bytes (`keyfold.read.fetch`), and `keyfold.log.arrow` makes columns of them. What can be left out is:
segments by their manifest entry, blocks by their index rows, columns by name; where only offsets, timestamps and keys
are wanted, the index has them and the segment is not fetched.

Memory is `batch_bytes` of raw blocks (one block where it is larger) and the batch made of them, one range of stored
bytes, the index's bytes, and the rows of one of its row groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyfold.errors import ObjectNotFound
from keyfold.log.arrow import RECORDS, RawBlock, Rows, decode_blocks, schema_of
from keyfold.log.codec import open_codec
from keyfold.log.index import Index, Ints, read_index_data
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.names import Place
from keyfold.read.fetch import BlockSource, damage_named, raw_blocks_at
from keyfold.read.index_parts import checked_parts
from keyfold.read.ordered import Load, newer
from keyfold.read.position import anchor_of, check_resumed, end_offset, segments_between
from keyfold.read.selection import Selection
from keyfold.store.api import ObjectStore

__all__ = ["BATCH_BYTES", "Selection", "checked_parts", "read_batches", "read_entry_batches"]

BATCH_BYTES: Final = 8 * 1024 * 1024

_MAX_BATCH_BYTES: Final = 1 << 30  # Arrow's binary has 32-bit offsets, and a batch may end a block late
_IN_INDEX: Final = ("offset", "timestamp", "key")

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wanted of every segment: offsets `[start, end)`, columns, a selection, and how much at a time."""

    start: int
    end: int
    columns: tuple[str, ...]
    where: Selection = field(default_factory=Selection)
    batch_bytes: int = BATCH_BYTES

    @staticmethod
    def of(
        start: int, end: int, columns: Sequence[str] | None, where: Selection | None, batch_bytes: int = BATCH_BYTES
    ) -> Wish:
        """A wish with defaults filled in. Raises `ValueError` for an unknown column."""
        names = tuple(schema_of(columns).names)
        return Wish(start, end, names, where or Selection(), min(max(1, batch_bytes), _MAX_BATCH_BYTES))


@dataclass(frozen=True, slots=True)
class Taken:
    """A batch, never empty, and the position behind all that was looked at for it."""

    batch: pa.RecordBatch
    position: int


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
) -> Iterator[pa.RecordBatch]:
    """Records from offset `start` to `end` (or the end of the version that is read last), in order.

    Batches have the columns `columns` (default: all of `RECORDS`) and at least one record each. Goes on in a newer
    version by the rules of `keyfold.read.position`. Raises `ValueError` now, and while iterating what `read_ordered`
    raises.
    """
    wish = Wish.of(start, end_offset(manifest, end), columns, where, batch_bytes)
    return _ordered(store, place, load, manifest, end, wish)


def _ordered(
    store: ObjectStore, place: Place, load: Load, manifest: Manifest, to_offset: int | None, wish: Wish
) -> Iterator[pa.RecordBatch]:
    anchor, position = anchor_of(manifest), wish.start
    while True:
        end = end_offset(manifest, to_offset)
        try:
            for entry in segments_between(manifest, position, end):
                part = Wish(position, end, wish.columns, wish.where, wish.batch_bytes)
                for taken in take_entry(store, place, entry, part):
                    yield taken.batch
                    position = taken.position
                position = max(position, min(entry.next_offset, end))
        except ObjectNotFound as error:
            manifest = newer(place, load, error)
            check_resumed(anchor, position, manifest)
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
    """Records of one segment with `start <= offset < end`. Raises `Corrupt`; `ObjectNotFound` is the caller's."""
    for taken in take_entry(store, place, entry, Wish.of(start, end, columns, where, batch_bytes)):
        yield taken.batch


def take_entry(store: ObjectStore, place: Place, entry: SegmentEntry, wish: Wish) -> Iterator[Taken]:
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


def index_columns(wish: Wish) -> tuple[str, ...]:
    """The columns of an index that a wish needs, `offset` among them."""
    names = dict.fromkeys(("offset", *wish.where.columns()))
    names |= dict.fromkeys(wish.columns if _is_in_index(wish.columns) else ("position", "length"))
    return tuple(names)


def _is_in_index(columns: Sequence[str]) -> bool:
    return all(name in _IN_INDEX for name in columns)


def take_rows(
    store: ObjectStore, place: Place, entry: SegmentEntry, part: Index, keep: Flags, wish: Wish
) -> Iterator[Taken]:
    """The records of those rows of a part of an index that `keep` names (one flag a row)."""
    offsets = part.ints("offset")
    if not keep.any():
        return
    if _is_in_index(wish.columns):
        yield Taken(_from_index(part, keep, wish.columns), min(int(offsets[-1]) + 1, wish.end))
        return
    first, last = part.part or (0, len(part.blocks))
    ends = np.cumsum(part.blocks.record_count[first:last])
    starts = ends - part.blocks.record_count[first:last]
    wanted = np.flatnonzero(np.add.reduceat(keep, starts))
    held: list[RawBlock] = []
    held_bytes = 0
    source = BlockSource.of(entry, part)
    codec = open_codec(source.codec)
    for number, raw in raw_blocks_at(store, place, source, codec, wanted + first):
        if held and held_bytes + len(raw) > wish.batch_bytes:
            yield _taken(held, place.key(entry.name), part, starts, ends, keep, wish)
            held, held_bytes = [], 0
        held.append(RawBlock(number, raw, int(part.blocks.record_count[number])))
        held_bytes += len(raw)
    yield _taken(held, place.key(entry.name), part, starts, ends, keep, wish)


def _from_index(part: Index, keep: Flags, columns: Sequence[str]) -> pa.RecordBatch:
    rows = part.rows.select(list(columns)).filter(pa.array(keep)).combine_chunks()
    arrays = [rows.column(name).chunk(0).cast(RECORDS.field(name).type) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))


def _taken(
    held: Sequence[RawBlock], origin: str, part: Index, starts: Ints, ends: Ints, keep: Flags, wish: Wish
) -> Taken:
    """What is kept of some blocks: their rows are slices of the part's."""
    first = 0 if part.part is None else part.part[0]
    spans = _joined([(int(starts[b.number - first]), int(ends[b.number - first])) for b in held])
    names = ("offset", "position", "length")
    picked = [np.concatenate([part.ints(name)[low:high] for low, high in spans]) for name in names]
    wanted = np.concatenate([keep[low:high] for low, high in spans])
    rows = Rows(*picked)
    batch = decode_blocks(held, rows, wish.columns, keep=None if wanted.all() else wanted, origin=origin)
    return Taken(batch, min(int(rows.offset[-1]) + 1, wish.end))


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbouring spans as one."""
    found: list[tuple[int, int]] = []
    for low, high in spans:
        if found and found[-1][1] == low:
            found[-1] = (found[-1][0], high)
        else:
            found.append((low, high))
    return found
