"""One unit in one task: build a segment from the surviving records of its neighbours, and upload it.

The segment is uploaded while it is made (`keyfold.log.objects.ObjectStream`), so a task's memory does not depend on the
segment's size. Of indexes the task holds the stored bytes of one source's and of the output's, and the rows of one row
group. A unit above a certain size fetches and sends in the background (`keyfold.runtime.overlap`).

The rewriter works on bytes (`keyfold.log.rewrite`): blocks that lose nothing are copied as stored, and blocks that lose
everything are not fetched. Every attempt uses a new name. So an attempt that Spark gave up or repeats leaves an orphan,
and never different bytes under a committed name. The segment is uploaded before its index; the driver commits both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Final

import numpy as np
import pyarrow.compute as pc

from keyfold.errors import Corrupt, UploadLost
from keyfold.log.assembly import SEGMENT_LIMITS, FinishedSegment, SegmentLimits
from keyfold.log.avro import SegmentDamaged
from keyfold.log.index import GAP_BYTES, Index, read_index, read_index_data, remark
from keyfold.log.manifest import SegmentEntry
from keyfold.log.names import Role, new_name
from keyfold.log.objects import PART_BYTES, ObjectStream, create_object
from keyfold.log.rewrite import SegmentRewriter
from keyfold.log.segment import DEFAULT_BLOCK_BYTES
from keyfold.runtime.arrow_types import values_of
from keyfold.runtime.buffers import Fetch
from keyfold.runtime.overlap import FETCH_BYTES, FetchAhead, SendBehind
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import ObjectStore
from keyfold_compactor.decide.retain import Bools, new_marks, old_marks
from keyfold_compactor.decide.work import MaskKey, UnitJob, UnitSource
from keyfold_compactor.execute.mapping import unpacked

# Below this two more threads cost more than they save.
OVERLAP_BYTES_MIN: Final = 16 * 1024 * 1024
# The store may lose an upload once by chance. A compactor that lost its claim loses every upload, and its commit fails.
_ATTEMPTS: Final = 2


def rewrite_unit(
    unit: UnitJob,
    masks: Mapping[MaskKey, bytes],
    store: ObjectStore,
    retry: RetryPolicy,
    *,
    overlap_bytes_min: int = OVERLAP_BYTES_MIN,
    limits: SegmentLimits = SEGMENT_LIMITS,
) -> SegmentEntry:
    """Make and upload a unit's output; return the new segment as the manifest will list it.

    A unit whose segments have fewer stored bytes than `overlap_bytes_min` fetches, works and sends in sequence. Raise
    `Corrupt` if an index or a segment is damaged, and `StoreError`.
    """
    if unit.is_remark:
        return _remarked(unit, store, retry)
    is_overlapped = sum(s.entry.size_bytes for s in unit.sources) >= overlap_bytes_min
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            return _rewritten(unit, masks, store, retry, limits, is_overlapped=is_overlapped)
        except UploadLost:
            if not attempts_left:
                raise
    raise AssertionError


def _rewritten(
    unit: UnitJob,
    masks: Mapping[MaskKey, bytes],
    store: ObjectStore,
    retry: RetryPolicy,
    limits: SegmentLimits,
    *,
    is_overlapped: bool,
) -> SegmentEntry:
    name = new_name(unit.base_offset, unit.epoch, Role.COMPACTOR, retry.random)
    stream = ObjectStream(store, unit.place.key(str(name)), retry, part_bytes=unit.encoding.part_bytes or PART_BYTES)
    try:
        if is_overlapped:
            with SendBehind(stream.write) as sending:
                finished = _survivors(unit, masks, store, retry, sending.write, limits, is_ahead=True)
                sending.flush()
        else:
            finished = _survivors(unit, masks, store, retry, stream.write, limits, is_ahead=False)
        stream.finish()
    except Exception:
        stream.abandon()
        raise
    create_object(store, unit.place.key(str(name.index)), finished.index_data, retry)
    made = finished.entry(
        str(name),
        str(name.index),
        base_offset=unit.base_offset,
        next_offset=unit.next_offset,
        appended_at_ms=max(s.entry.appended_at_ms for s in unit.sources),
    )
    return replace(made, schema_ids=tuple(sorted({i for s in unit.sources for i in s.entry.schema_ids})))


def _survivors(
    unit: UnitJob,
    masks: Mapping[MaskKey, bytes],
    store: ObjectStore,
    retry: RetryPolicy,
    write: Callable[[list[bytes]], None],
    limits: SegmentLimits,
    *,
    is_ahead: bool,
) -> FinishedSegment:
    """Write the blocks of all surviving records."""
    encoding = unit.encoding
    gap_bytes = GAP_BYTES if encoding.gap_bytes is None else encoding.gap_bytes
    rewriter = SegmentRewriter(
        sync_marker=unit.sync_marker,
        codec=encoding.codec,
        level=encoding.level,
        block_bytes=encoding.block_bytes or DEFAULT_BLOCK_BYTES,
        gap_bytes=gap_bytes,
        take=write,
        limits=limits,
    )
    for source in unit.sources:
        key = unit.place.key(source.entry.name)
        try:
            for part, keep in _parts(unit, source, masks, store, retry):
                marks = new_marks(part.rows, keep, unit.epoch) if unit.is_marking else old_marks(part.rows, keep)
                with _fetch(store, key, retry, _ranges(part, keep, gap_bytes) if is_ahead else None) as fetch:
                    rewriter.add(part, None, keep, marks, fetch, origin=key)
        except SegmentDamaged as error:
            hint = f"run `{unit.place.command('verify')}`; the log was not changed"
            raise Corrupt(unit.place.topic, unit.place.partition, str(error), hint=hint) from error
    finished = rewriter.finish()
    write(finished.data)
    return finished


def _remarked(unit: UnitJob, store: ObjectStore, retry: RetryPolicy) -> SegmentEntry:
    """Return the same segment with a new index, in which its tombstones are marked."""
    entry = unit.sources[0].entry
    index = _index(unit, entry, store, retry)
    marks = new_marks(index.rows, np.ones(len(index.rows), np.bool_), unit.epoch)
    data = remark(index, marks).encode()
    name = new_name(entry.base_offset, unit.epoch, Role.COMPACTOR, retry.random, is_index=True)
    create_object(store, unit.place.key(str(name)), data, retry)
    return replace(
        entry,
        index_name=str(name),
        index_size_bytes=len(data),
        index_checksum=sha256(data).digest(),
        unmarked_tombstone_count=0,
        cleaned_epochs=tuple(sorted(values_of(pc.unique(marks.drop_null())))),
    )


def _index(unit: UnitJob, entry: SegmentEntry, store: ObjectStore, retry: RetryPolicy) -> Index:
    return retry.repeat(lambda: read_index(store, unit.place, entry))


def _parts(
    unit: UnitJob, source: UnitSource, masks: Mapping[MaskKey, bytes], store: ObjectStore, retry: RetryPolicy
) -> Iterator[tuple[Index, Bools]]:
    """Yield a segment's index one row group at a time, each with its part of the mask."""
    data = retry.repeat(lambda: read_index_data(store, unit.place, source.entry))
    keep = _keep(unit, source, masks)
    origin = unit.place.key(source.entry.index_name)
    row = 0
    for part in Index.parts(data, origin=origin):
        row += len(part)
        if row <= len(keep):
            yield part, keep[row - len(part) : row]
    if row != len(keep):
        raise SegmentDamaged(origin, f"has {row} rows, but its segment has {len(keep)} records")


def _keep(unit: UnitJob, source: UnitSource, masks: Mapping[MaskKey, bytes]) -> Bools:
    """Return the mask of one segment. It was made from the same index, so a different count is a bug."""
    count = source.entry.record_count
    if source.kept_count == count:
        return np.ones(count, np.bool_)
    keep = unpacked(masks[unit.log, source.position], count)
    found = int(np.count_nonzero(keep))
    assert found == source.kept_count, f"{unit.place}: the mask of `{source.entry.name}` belongs to another pass"
    return keep


def _ranges(index: Index, keep: Bools, gap_bytes: int) -> Iterator[tuple[int, int]]:
    """Return the ranges that the rewriter will fetch. They are computed only after the whole index was found valid."""
    needed = np.flatnonzero(np.bincount(index.ints("block")[keep], minlength=len(index.blocks)))
    for found in index.blocks.ranges(needed, FETCH_BYTES, gap_bytes):
        yield found.start, found.length


def _fetch(
    store: ObjectStore, key: str, retry: RetryPolicy, ranges: Iterable[tuple[int, int]] | None
) -> contextlib.AbstractContextManager[Fetch]:
    def fetch(start: int, length: int) -> bytes:
        return retry.repeat(lambda: store.get_range(key, start, length))

    return contextlib.nullcontext(fetch) if ranges is None else FetchAhead(fetch, ranges)
