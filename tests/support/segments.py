"""Segments in memory: records to columns and back, and a bucket of bytes that records its fetches."""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import pairwise
from typing import Any, BinaryIO
from unittest.mock import patch

import fastavro
import numpy as np
import pyarrow as pa
from fastavro import _read as fastavro_read
from hypothesis import strategies as st

from keyfold.log.assembly import SEGMENT_LIMITS, FinishedSegment, SegmentLimits
from keyfold.log.index import GAP_BYTES, Index
from keyfold.log.record import TIMESTAMP_TYPES, Record, RecordColumns
from keyfold.log.record_decoder import read_records
from keyfold.log.rewrite import SegmentRewriter
from keyfold.log.segment import SegmentWriter, segment_bytes

SYNC = bytes(range(16))


def columns_of(records: Sequence[Record]) -> RecordColumns:
    """Records as the sink would give them; records without headers in both ways that are allowed."""
    return RecordColumns(
        [r.offset for r in records],
        [r.timestamp for r in records],
        [TIMESTAMP_TYPES.index(r.timestamp_type) for r in records],
        [r.key for r in records],
        [r.value for r in records],
        [list(r.headers) or (None if r.offset % 2 else ()) for r in records],
        [r.leader_epoch for r in records],
    )


@dataclass
class Made:
    """A finished segment in one piece, with its index, and every range that a rewriter fetched from it."""

    data: bytes
    finished: FinishedSegment
    index: Index
    fetched: list[tuple[int, int]] = field(default_factory=list)

    def fetch(self, start: int, length: int) -> bytes:
        self.fetched.append((start, length))
        return self.data[start : start + length]

    def records(self) -> list[Record]:
        return list(read_records(self.data, blocks=self.index.blocks))


def made(finished: FinishedSegment, *drained: bytes) -> Made:
    return Made(segment_bytes(finished, *drained), finished, Index.parse(finished.index_data))


def make(
    records: Sequence[Record],
    *,
    codec: str = "zstandard",
    block_bytes: int = 65536,
    cuts: Iterable[int] = (),
    limits: SegmentLimits = SEGMENT_LIMITS,
) -> Made:
    """A segment of these records, appended in pieces that end at `cuts`, drained now and then."""
    writer = SegmentWriter(sync_marker=SYNC, codec=codec, block_bytes=block_bytes, limits=limits)
    bounds = [0, *sorted(cuts), len(records)]
    drained: list[bytes] = []
    for number, (start, end) in enumerate(pairwise(bounds)):
        writer.append(columns_of(records[start:end]))
        if number % 3 == 1:
            drained += writer.drain()
    return made(writer.finish(), *drained)


def rewrite(
    sources: Sequence[Made],
    keeps: Sequence[Sequence[bool]],
    *,
    codec: str = "zstandard",
    block_bytes: int = 65536,
    gap_bytes: int = GAP_BYTES,
    marks: Sequence[Any] | None = None,
) -> Made:
    """One segment of what survives of others."""
    rewriter = SegmentRewriter(sync_marker=SYNC, codec=codec, block_bytes=block_bytes, gap_bytes=gap_bytes)
    for i, (source, keep) in enumerate(zip(sources, keeps, strict=True)):
        mark = None if marks is None else pa.array(marks[i], pa.int32())
        rewriter.add(source.index, source.index.codec, np.array(keep, np.bool_), mark, source.fetch)
    return made(rewriter.finish())


def read_with_fastavro(data: bytes) -> list[Record]:
    """The records as another reader has them, with timestamps as numbers: not each of Kafka's is a date of Python."""
    with patch.dict(fastavro.read.LOGICAL_READERS, {"long-timestamp-millis": lambda value, *_: value}):
        rows: list[Any] = list(fastavro.reader(BytesIO(data)))
    return [
        Record(
            row["offset"],
            row["timestamp"],
            row["timestamp_type"],
            row["key"],
            row["value"],
            tuple((h["name"], h["value"]) for h in row["headers"]),
            row["leader_epoch"],
        )
        for row in rows
    ]


def _read_snappy_block(source: BinaryIO) -> BytesIO:
    """fastavro reads snappy with a package that is not among ours; this is the same with pyarrow."""
    size = shift = 0
    while (byte := source.read(1)[0]) & 0x80:
        size |= (byte & 0x7F) << shift
        shift += 7
    size = (size | byte << shift) >> 1
    packed, checksum = source.read(size - 4), source.read(4)
    raw_size = shift = 0
    for byte in packed[:5]:
        raw_size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    raw = pa.Codec("snappy").decompress(packed, raw_size, asbytes=True)
    assert zlib.crc32(raw).to_bytes(4, "big") == checksum
    return BytesIO(raw)


fastavro_read.BLOCK_READERS["snappy"] = _read_snappy_block


def timestamps() -> st.SearchStrategy[int]:
    edges = [-1, 0, -(2**63), 2**63 - 1, -62, 63, -64, 64, 1_700_000_000_000]
    return st.sampled_from(edges) | st.integers(-(2**63), 2**63 - 1)


def contents(size_max: int = 1000) -> st.SearchStrategy[bytes | None]:
    sizes = st.sampled_from([0, 1, 62, 63, 64, 65, size_max])
    return st.none() | st.binary(max_size=40) | st.builds(lambda n, b: bytes([b]) * n, sizes, st.integers(0, 255))


def headers() -> st.SearchStrategy[tuple[tuple[str, bytes | None], ...]]:
    names = st.sampled_from(["", "a", "trace-id", "ключ"]) | st.text(st.characters(codec="utf-8"), max_size=5)
    some = st.lists(st.tuples(names, contents(100)), max_size=4).map(tuple)
    return st.just(()) | some


@st.composite
def record_lists(draw: st.DrawFn, max_size: int = 80) -> list[Record]:
    """Records in offset order, of every kind; some lists have no headers or one leader epoch, as most topics do."""
    has_headers = draw(st.booleans())
    epochs = st.just(draw(st.integers(-1, 2**31 - 1))) if draw(st.booleans()) else st.integers(-(2**31), 2**31 - 1)
    gaps = st.integers(1, 3) | st.integers(1, 2**56)
    offset = draw(st.integers(-1, 2**60))
    records = []
    for gap in draw(st.lists(gaps, min_size=1, max_size=max_size)):
        offset += gap
        records.append(
            Record(
                offset,
                draw(timestamps()),
                draw(st.sampled_from(TIMESTAMP_TYPES)),
                draw(contents(100)),
                draw(contents()),
                draw(headers()) if has_headers else (),
                draw(epochs),
            )
        )
    return records


def plain_records(count: int, *, value_bytes: int = 100, first: int = 0, step: int = 1) -> Iterator[Record]:
    """Ordinary records that do not compress to nothing."""
    chance = np.random.default_rng(first)
    for i in range(count):
        value = chance.integers(97, 123, value_bytes, np.uint8).tobytes()
        yield Record(first + i * step, 1_700_000_000_000 + i, TIMESTAMP_TYPES[1], b"key-%d" % (i % 50), value)
