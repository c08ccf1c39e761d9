"""One unit in one task: build a segment from what survives in its neighbours, and put it into the bucket.

The segment goes up while it is made (`keyfold.log.objects.ObjectStream`), so a task's memory does not follow the
segment's size, only the indexes of one source and of the output.

By bytes (`keyfold.log.rewrite`): blocks that lose nothing move as they are stored, blocks that lose everything are not
even fetched. Every attempt takes a fresh name, so an attempt that Spark gave up, or runs twice, leaves an orphan and
never other bytes under a name that was committed. The segment goes up before its index; the driver names both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Final

import numpy as np
import pyarrow.compute as pc

from keyfold.errors import Corrupt, UploadLost
from keyfold.log.assembly import FinishedSegment
from keyfold.log.avro import SegmentDamaged
from keyfold.log.commit import Patience
from keyfold.log.index import Index, read_index, remark
from keyfold.log.manifest import SegmentEntry
from keyfold.log.names import Role, new_name
from keyfold.log.objects import ObjectStream, create_object
from keyfold.log.rewrite import SegmentRewriter
from keyfold.store.api import ObjectStore
from keyfold_compactor.mapping import unpacked
from keyfold_compactor.retain import Bools, new_marks, old_marks
from keyfold_compactor.work import MaskKey, UnitJob, UnitSource

# The store may lose an upload once by chance. Who has been overtaken loses every one, and the commit tells him.
_ATTEMPTS: Final = 2


def rewrite_unit(unit: UnitJob, masks: Mapping[MaskKey, bytes], store: ObjectStore, patience: Patience) -> SegmentEntry:
    """Make and upload what the unit asks for; the new segment as the manifest will name it.

    Raises `Corrupt` where an index or a segment is not what it must be, and `StoreError`.
    """
    if unit.is_remark:
        return _remarked(unit, store, patience)
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            return _rewritten(unit, masks, store, patience)
        except UploadLost:
            if not attempts_left:
                raise
    raise AssertionError


def _rewritten(unit: UnitJob, masks: Mapping[MaskKey, bytes], store: ObjectStore, patience: Patience) -> SegmentEntry:
    name = new_name(unit.base_offset, unit.epoch, Role.COMPACTOR, patience.random)
    stream = ObjectStream(store, unit.place.key(str(name)), patience, part_bytes=unit.encoding.part_bytes)
    try:
        finished = _streamed(unit, masks, store, patience, stream)
        stream.finish()
    except Exception:
        stream.abandon()
        raise
    create_object(store, unit.place.key(str(name.index)), finished.index_data, patience)
    made = finished.entry(
        str(name),
        str(name.index),
        base_offset=unit.base_offset,
        next_offset=unit.next_offset,
        appended_at_ms=max(s.entry.appended_at_ms for s in unit.sources),
    )
    return replace(made, schema_ids=tuple(sorted({i for s in unit.sources for i in s.entry.schema_ids})))


def _streamed(
    unit: UnitJob, masks: Mapping[MaskKey, bytes], store: ObjectStore, patience: Patience, stream: ObjectStream
) -> FinishedSegment:
    """Put what survives into the stream, all of it."""
    encoding = unit.encoding
    rewriter = SegmentRewriter(
        sync_marker=unit.sync_marker,
        codec=encoding.codec,
        level=encoding.level,
        block_bytes=encoding.block_bytes,
        take=stream.write,
    )
    for source in unit.sources:
        index = _index(unit, source.entry, store, patience)
        keep = _keep(unit, source, masks)
        key = unit.place.key(source.entry.name)
        marks = new_marks(index.rows, keep, unit.epoch) if unit.is_marking else old_marks(index.rows, keep)
        try:
            rewriter.add(index, None, keep, marks, _fetch(store, key, patience), origin=key)
        except SegmentDamaged as error:
            hint = "run `keyfold log verify`; nothing was changed"
            raise Corrupt(unit.place.topic, unit.place.partition, str(error), hint=hint) from error
    finished = rewriter.finish()
    stream.write(finished.data)
    return finished


def _remarked(unit: UnitJob, store: ObjectStore, patience: Patience) -> SegmentEntry:
    """The same segment with a new index, in which its tombstones are marked."""
    entry = unit.sources[0].entry
    index = _index(unit, entry, store, patience)
    marks = new_marks(index.rows, np.ones(len(index.rows), np.bool_), unit.epoch)
    data = remark(index, marks).encode()
    name = new_name(entry.base_offset, unit.epoch, Role.COMPACTOR, patience.random, is_index=True)
    create_object(store, unit.place.key(str(name)), data, patience)
    return replace(
        entry,
        index_name=str(name),
        index_size_bytes=len(data),
        index_checksum=sha256(data).digest(),
        unmarked_tombstone_count=0,
        cleaned_epochs=tuple(sorted(pc.unique(marks.drop_null()).to_pylist())),
    )


def _index(unit: UnitJob, entry: SegmentEntry, store: ObjectStore, patience: Patience) -> Index:
    return patience.repeat(lambda: read_index(store, unit.place, entry))


def _keep(unit: UnitJob, source: UnitSource, masks: Mapping[MaskKey, bytes]) -> Bools:
    """The mask of one segment. It was made from the same index, so a count that differs is a fault of ours."""
    count = source.entry.record_count
    if source.kept_count == count:
        return np.ones(count, np.bool_)
    keep = unpacked(masks[unit.log, source.position], count)
    found = int(np.count_nonzero(keep))
    assert found == source.kept_count, f"{unit.place}: the mask of `{source.entry.name}` is another pass's"
    return keep


def _fetch(store: ObjectStore, key: str, patience: Patience) -> Callable[[int, int], bytes]:
    return lambda start, length: patience.repeat(lambda: store.get_range(key, start, length))
