"""The map of a log that is too large for one task, in three steps that do not depend on Spark.

    split     each segment's index, in its own task: find the rows that are superseded inside the segment. The keys of
              the rest go to *buckets* by their CRC-32, so a key that fills half of the log leaves one row per segment
    match     each bucket has all candidates of its keys: the offset map of `execute.offset_map` over them
              says which rows of which segments are superseded
    decide    each segment again, with the superseded rows of all buckets: the rules of `decide.retain`

The result is that of `execute.mapping`; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from keyfold.runtime.arrow_types import ArrowArray, arrow_schema, column_of, values_of
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import ObjectStore
from keyfold_compactor.decide.plan import untouched
from keyfold_compactor.decide.work import LogJob
from keyfold_compactor.execute import offset_map
from keyfold_compactor.execute.mapping import Mapped, decided, read_rows

Rows = npt.NDArray[np.int32]
_CANDIDATES: Final = arrow_schema(
    [pa.field("key", pa.large_binary()), pa.field("offset", pa.int64()), pa.field("row", pa.int32())]
)


class Candidates(NamedTuple):
    """Rows of one segment whose keys belong to one bucket, as an Arrow stream of `_CANDIDATES`."""

    position: int
    data: bytes


class Superseded(NamedTuple):
    """Row numbers (int32, native bytes) of one segment that a later offset supersedes."""

    position: int
    rows: bytes


def split(
    job: LogJob, position: int, store: ObjectStore, retry: RetryPolicy, bucket_count: int
) -> Iterator[tuple[int, Candidates] | Superseded]:
    """Return one segment's candidates by bucket, and the rows that are superseded inside the segment.

    If nothing is dirty, the map is empty and nothing is read.
    """
    if job.end <= job.first_dirty:
        return
    entry = job.entries[position]
    rows = read_rows(job, entry, store, retry)
    keys = rows["key"].combine_chunks()
    offsets = rows["offset"].to_numpy()
    is_open = pc.is_valid(keys).to_numpy(zero_copy_only=False)
    if job.is_dirty(entry):
        _, (last,) = offset_map.build([rows["key"]], [offsets], job.first_dirty)
        inside = offsets < last
        yield Superseded(position, np.flatnonzero(inside).astype(np.int32).tobytes())
        is_open &= ~inside
    numbers = np.flatnonzero(is_open).astype(np.int32)
    taken = keys.take(column_of(numbers))
    buckets = _buckets(taken, bucket_count)
    order = np.argsort(buckets, kind="stable")
    ends = np.searchsorted(buckets[order], np.arange(bucket_count), side="right")
    start = 0
    for bucket, end in enumerate(ends.tolist()):
        if end > start:
            part = order[start:end]
            candidates = [taken.take(column_of(part)).cast(pa.large_binary()), offsets[numbers[part]], numbers[part]]
            yield bucket, Candidates(position, _encoded(candidates))
        start = end


def match(job: LogJob, candidates: Iterable[Candidates]) -> Iterator[Superseded]:
    """Yield the superseded rows of a bucket. The dirty candidates make the map, and all candidates are judged by it."""
    tables = [(c.position, pa.ipc.open_stream(c.data).read_all()) for c in candidates]
    tables.sort(key=lambda pair: pair[0])  # offsets ascend over the segments, as the map wants them
    dirty = [(at, t) for at, t in tables if job.is_dirty(job.entries[at])]
    known, last_offsets = offset_map.build(
        [t["key"] for _, t in dirty], [t["offset"].to_numpy() for _, t in dirty], job.first_dirty
    )
    for (position, table), last in zip(dirty, last_offsets, strict=True):
        yield from _superseded(position, table, last)
    clean = [(at, t) for at, t in tables if not job.is_dirty(job.entries[at])]
    if clean and len(known):
        probed = known.probe(pa.chunked_array([c for _, t in clean for c in t["key"].chunks], pa.large_binary()))
        parts = np.split(probed, np.cumsum([len(t) for _, t in clean])[:-1])
        for (position, table), last in zip(clean, parts, strict=True):
            yield from _superseded(position, table, last)


def decide(job: LogJob, position: int, superseded: Sequence[bytes], store: ObjectStore, retry: RetryPolicy) -> Mapped:
    """Decide about one segment, given the superseded rows that all buckets found in it."""
    entry = job.entries[position]
    if not superseded and not job.is_dirty(entry) and not job.needs_index(entry):
        return position, untouched(entry), None
    rows = read_rows(job, entry, store, retry)
    mask = np.zeros(len(rows), np.bool_)
    for part in superseded:
        mask[np.frombuffer(part, np.int32)] = True
    return decided(job, position, rows, mask)


def _superseded(position: int, table: pa.Table, last: offset_map.Offsets) -> Iterator[Superseded]:
    rows: Rows = table["row"].to_numpy()[table["offset"].to_numpy() < last]
    if len(rows):
        yield Superseded(position, rows.astype(np.int32).tobytes())


def _buckets(keys: ArrowArray, bucket_count: int) -> npt.NDArray[np.int64]:
    sums = np.fromiter((crc32(key) for key in values_of(keys)), np.int64, len(keys))
    return sums % bucket_count


def _encoded(columns: Sequence[object]) -> bytes:
    batch = pa.record_batch(columns, schema=_CANDIDATES)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _CANDIDATES) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data
