"""What a task does: read its slices in order, as Arrow batches.

A task reads the segments that were pinned when it was planned. Where one of them has been replaced and collected since,
the task goes on from its position in the newest version, if the rules allow it (`keyfold.spark.source.resume`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from keyfold.errors import ObjectNotFound
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.read.ordered import newer
from keyfold.read.position import segments_between
from keyfold.read.segment_reader import SegmentRead, take_entry
from keyfold.read.selection import Selection
from keyfold.spark.source.columns import shaped, wanted
from keyfold.spark.source.plan import SpanSlice
from keyfold.spark.source.resume import check_snapshot, resume
from keyfold.store.api import ObjectStore

Load = Callable[[int], Manifest]
"""The newest manifest of a partition."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How slices are read: which columns in which shape, what may be left out, and what to do about lost records."""

    topics_dir: str
    topic: str
    schema: pa.Schema
    where: Selection = field(default_factory=Selection)
    fail_on_data_loss: bool = True


def read_slices(
    store: ObjectStore, load: Load, reading: ReadSettings, slices: tuple[SpanSlice, ...]
) -> Iterator[pa.RecordBatch]:
    """The records of slices, in Spark's shape."""
    for one in slices:
        for batch in read_slice(store, load, reading, one):
            yield shaped(batch, one.partition, reading.schema)


def read_slice(store: ObjectStore, load: Load, reading: ReadSettings, one: SpanSlice) -> Iterator[pa.RecordBatch]:
    """The records of one slice, with the columns that `reading.schema` needs.

    Raises `OffsetOutOfRange`, `SnapshotLost`, `Corrupt`, `StoreError`.
    """
    place = Place(reading.topics_dir, reading.topic, one.partition)
    columns = wanted(reading.schema)
    position, anchor, entries = one.start, one.anchor, one.entries
    while True:
        try:
            for entry in entries:
                for taken in take_entry(store, place, entry, SegmentRead(position, one.end, columns, reading.where)):
                    yield taken.batch
                    position = taken.position
                position = max(position, min(entry.next_offset, one.end))
        except ObjectNotFound as error:
            manifest = newer(place, lambda: load(one.partition), error)
            position, anchor = resume(anchor, position, manifest, fail=reading.fail_on_data_loss)
            if one.log_end is not None:
                check_snapshot(one.log_end, manifest, error)
            entries = segments_between(manifest, position, one.end)
        else:
            return
