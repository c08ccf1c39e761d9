"""The least that work on a log's blocks can cost: the codec and one copy, in one process, without checks or requests.

    pass_floor_s    a pass: decompress the blocks that lose some of their records, copy the others, compress them
    read_floor_s    a read: decompress all blocks, and copy keys and values from known places into Arrow columns

Blocks, and the places of their records, are read before the clock starts. Figures are CPU seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyfold.log.arrow import BlockRows, RawBlock, decode_blocks
from keyfold.log.avro import StoredBlock, read_blocks
from keyfold.log.codec import Codec, open_codec
from keyfold.log.index import Index, read_index
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.names import Place
from keyfold.log.segment import DEFAULT_BLOCK_BYTES
from keyfold.runtime.arrow_types import ArrowArray, buffer_of
from keyfold.runtime.buffers import Bytes
from keyfold.store.api import ObjectStore

Ints = npt.NDArray[np.int64]
Span = tuple[int, int]
"""Start and end of neighbouring records in a block's raw bytes."""

_TIMES: Final = 3


def pass_floor_s(store: ObjectStore, place: Place, before: Manifest, after: Manifest) -> float:
    """Return the floor of the pass that made the log `after` of the log `before`; both logs' objects must exist."""
    stays = {entry.name for entry in after.segments}
    kept = np.concatenate([_offsets(store, place, entry) for entry in after.segments])
    replaced = [entry for entry in before.segments if entry.name not in stays]
    return sum(_rewrite_s(_partial_blocks(store, place, entry, kept)) for entry in replaced)


def read_floor_s(store: ObjectStore, place: Place, manifest: Manifest) -> float:
    """Return the floor of a read of all keys and values."""
    return sum(_read_s(store, place, entry) for entry in manifest.segments)


def _offsets(store: ObjectStore, place: Place, entry: SegmentEntry) -> Ints:
    return read_index(store, place, entry, columns=("offset",)).ints("offset")


def _blocks(store: ObjectStore, place: Place, entry: SegmentEntry) -> Iterator[StoredBlock]:
    for block in read_blocks(store.get(place.key(entry.name)).data):
        if isinstance(block, StoredBlock):
            yield block


def _codec(index: Index) -> Codec:
    return open_codec(index.codec)


def _partial_blocks(
    store: ObjectStore, place: Place, entry: SegmentEntry, kept: Ints
) -> tuple[Codec, list[tuple[Bytes, list[Span]]]]:
    """Return the payloads of the blocks of which some records survive, each with its survivors."""
    index = read_index(store, place, entry)
    keep = np.isin(index.ints("offset"), kept, assume_unique=True)
    block, count = index.ints("block")[keep], len(index.blocks)
    survivors = np.bincount(block, minlength=count)
    is_partial = (survivors > 0) & (survivors < index.blocks.record_count)
    starts = index.ints("position")[keep]
    ends = starts + index.ints("length")[keep]
    rows = np.searchsorted(block, np.arange(count + 1))
    found: list[tuple[Bytes, list[Span]]] = []
    for stored in _blocks(store, place, entry):
        if is_partial[stored.number]:
            part = slice(int(rows[stored.number]), int(rows[stored.number + 1]))
            found.append((stored.payload, _joined(starts[part].tolist(), ends[part].tolist())))
    return _codec(index), found


def _joined(starts: list[int], ends: list[int]) -> list[Span]:
    """Join records that are neighbours, so that they are copied at once."""
    spans: list[Span] = []
    for start, end in zip(starts, ends, strict=True):
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans


def _rewrite_s(work: tuple[Codec, list[tuple[Bytes, list[Span]]]]) -> float:
    codec, blocks = work
    return min(_rewritten_s(codec, blocks) for _ in range(_TIMES))


def _rewritten_s(codec: Codec, blocks: Sequence[tuple[Bytes, list[Span]]]) -> float:
    begun_s = time.process_time()
    pieces: list[Bytes] = []
    waiting_bytes = 0
    for payload, spans in blocks:
        raw = memoryview(codec.decompress(payload))
        piece = b"".join([raw[start:end] for start, end in spans])
        if waiting_bytes and waiting_bytes + len(piece) > DEFAULT_BLOCK_BYTES:
            codec.compress(b"".join(pieces))
            pieces, waiting_bytes = [], 0
        pieces.append(piece)
        waiting_bytes += len(piece)
    if pieces:
        codec.compress(b"".join(pieces))
    return time.process_time() - begun_s


def _read_s(store: ObjectStore, place: Place, entry: SegmentEntry) -> float:
    index = read_index(store, place, entry)
    work = [(block.payload, _fields(index, block)) for block in _blocks(store, place, entry)]
    return min(_copied_s(_codec(index), work) for _ in range(_TIMES))


def _fields(index: Index, block: StoredBlock) -> tuple[pa.Buffer, ArrowArray, ArrowArray]:
    """Return the bounds of the parts of a block (rest, key, rest, value, ...), and the numbers of keys and values."""
    row = index.ints("block") == block.number
    places = BlockRows(index.ints("offset")[row], index.ints("position")[row], index.ints("length")[row])
    raw = bytes(_codec(index).decompress(block.payload))
    whole = [RawBlock(block.number, raw, block.record_count)]
    batch = decode_blocks(whole, places, columns=("key", "value"))
    bounds, at = [0], 0
    for key, value in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
        for part in (key or b"", value or b""):
            at = raw.index(part, at)
            bounds += [at, at + len(part)]
            at += len(part)
    numbers = np.array(bounds, np.int32)
    return buffer_of(numbers), pa.array(np.arange(1, len(bounds) - 1, 4)), pa.array(np.arange(3, len(bounds) - 1, 4))


def _copied_s(codec: Codec, work: Sequence[tuple[Bytes, tuple[pa.Buffer, ArrowArray, ArrowArray]]]) -> float:
    begun_s = time.process_time()
    for payload, (bounds, keys, values) in work:
        raw = codec.decompress(payload)
        parts = pa.BinaryArray.from_buffers(pa.binary(), bounds.size // 4 - 1, [None, bounds, pa.py_buffer(raw)])
        parts.take(keys)
        parts.take(values)
    return time.process_time() - begun_s
