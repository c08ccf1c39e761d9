"""Read a segment without any manifest, and make the index that it must have."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from isal.isal_zlib import crc32

from keyfold.errors import Corrupt, ObjectNotFound
from keyfold.log.avro import SegmentDamaged, SegmentHeader, StoredBlock, read_blocks
from keyfold.log.codec import open_codec
from keyfold.log.index import ROWS, BlockTable, Index
from keyfold.log.names import ObjectName, Place
from keyfold.read.fetch import READ_AHEAD_BYTES
from keyfold.store.api import ObjectStore
from keyfold.verify.row_checks import Row, block_rows
from keyfold.verify.segment_totals import SegmentTotals
from keyfold.verify.surviving_segments import Candidate


@dataclass(frozen=True, slots=True)
class Surveyed:
    """A segment as it is: its rows as an index without marks, what they add up to, and its SHA-256."""

    candidate: Candidate
    index: Index
    seen: SegmentTotals
    size_bytes: int
    last_modified_ms: int
    checksum: bytes


def survey_segment(
    store: ObjectStore, place: Place, name: ObjectName, size_bytes: int, last_modified_ms: int
) -> Surveyed:
    """Read all of a segment. Raises `Corrupt` where it cannot be read to its end."""
    key = place.key(str(name))
    digest = hashlib.sha256()

    def chunks() -> Iterator[bytes]:
        for start in range(0, size_bytes, READ_AHEAD_BYTES):
            chunk = store.get_range(key, start, min(READ_AHEAD_BYTES, size_bytes - start))
            digest.update(chunk)
            yield chunk

    try:
        index, seen = _index_of(chunks(), key)
    except SegmentDamaged as error:
        raise Corrupt(
            place.topic,
            place.partition,
            str(error),
            hint="restore this object from an older version of the bucket or a replica, or move it out of the folder "
            "and lose its records",
        ) from error
    candidate = Candidate(
        name,
        index.ints("offset"),
        index.rows.column("key").to_pylist(),
        index.is_tombstone.tolist(),
    )
    return Surveyed(candidate, index, seen, size_bytes, last_modified_ms, digest.digest())


def _index_of(chunks: Iterator[bytes], origin: str) -> tuple[Index, SegmentTotals]:
    parts = read_blocks(chunks, origin=origin)
    header = next(parts)
    assert isinstance(header, SegmentHeader)
    codec = open_codec(header.codec)
    seen = SegmentTotals()
    tables: list[pa.Table] = []
    blocks: list[tuple[int, int, int, int, int]] = []
    for block in parts:
        assert isinstance(block, StoredBlock)
        rows = list(block_rows(block, codec))
        offsets = [seen.last_offset, *(row[0] for row in rows)]
        if any(after <= before for before, after in pairwise(offsets)):
            raise SegmentDamaged(origin, "has offsets that do not ascend", block=block.number)
        seen.add(rows)
        tables.append(_table(rows, block.number))
        blocks.append((block.position, len(block.stored), len(rows), rows[0][0], crc32(block.stored)))
    if not tables:
        raise SegmentDamaged(origin, "has no blocks")
    columns = np.array(blocks, np.int64).T
    table = BlockTable(*(np.ascontiguousarray(c) for c in columns))
    return Index(pa.concat_tables(tables).combine_chunks(), table, header.codec, header.sync_marker), seen


def _table(rows: list[Row], block: int) -> pa.Table:
    offset, timestamp, key, is_tombstone, position, length = zip(*rows, strict=True)
    mark, in_block = [None] * len(rows), [block] * len(rows)
    columns: Sequence[Sequence[object]] = (offset, timestamp, key, is_tombstone, mark, in_block, position, length)
    return pa.Table.from_arrays([pa.array(c, field.type) for c, field in zip(columns, ROWS, strict=True)], schema=ROWS)


def read_matching_index(store: ObjectStore, place: Place, name: str, index: Index) -> bool:
    """Whether the index object `name` is there and says exactly what `index` says."""
    try:
        found = Index.parse(store.get(place.key(name)).data)
    except (ObjectNotFound, SegmentDamaged):
        return False
    same_blocks = found.blocks.encode() == index.blocks.encode()
    same_file = (found.codec, found.sync_marker) == (index.codec, index.sync_marker)
    return bool(same_blocks and same_file and found.rows.equals(index.rows))
