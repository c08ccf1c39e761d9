"""Pins read by keyfold's own tasks: Python workers with keyfold's store and decoder, no file system of Hadoop's.

The pinned segments are dealt to tasks in the driver: small ones together, a large one cut by offsets. A task gets its
number from `spark.range`, opens the store by its location, and gives Arrow batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from keyfold.errors import ObjectNotFound
from keyfold.log.index import read_index
from keyfold.log.manifest import SegmentEntry
from keyfold.log.names import Place
from keyfold.read.batches import read_entry_batches
from keyfold.runtime.arrow_types import values_of
from keyfold.spark.dataframe.scan import INDEX, RECORDS
from keyfold.spark.dataframe.snapshot_lost import gone
from keyfold.spark.dataframe.snapshot_pins import PartitionSnapshot
from keyfold.spark.source.columns import ARROW, shaped
from keyfold.spark.tasks import opened
from keyfold.store.api import ObjectStore, StoreLocation

TASK_BYTES: Final = 128 * 1024 * 1024
INDEX_TASK_BYTES: Final = 32 * 1024 * 1024

ReadRange = Callable[[ObjectStore, "SegmentRange"], Iterator[pa.RecordBatch]]
"""Reads one piece of a segment."""


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """Offsets `[start, end)` of one segment."""

    place: Place
    entry: SegmentEntry
    start: int
    end: int


Task = tuple[SegmentRange, ...]


@dataclass(frozen=True, slots=True)
class TaskEngine:
    """See `keyfold.spark.dataframe.scan.Engine`."""

    spark: SparkSession
    location: StoreLocation

    def records(self, pins: Sequence[PartitionSnapshot]) -> DataFrame:
        """See `Engine.records`."""
        pieces = [piece for pin in pins for entry in pin.entries for piece in cut_segment(pin, entry, TASK_BYTES)]
        tasks = deal(pieces, _stored_bytes, TASK_BYTES)
        return self._run(tasks, record_batches, RECORDS)

    def index(self, pins: Sequence[PartitionSnapshot]) -> DataFrame:
        """See `Engine.index`."""
        pieces = [SegmentRange(pin.place, entry, pin.start, pin.end) for pin in pins for entry in pin.entries]
        tasks = deal(pieces, lambda piece: piece.entry.index_size_bytes, INDEX_TASK_BYTES)
        return self._run(tasks, _index_batches, INDEX)

    def _run(self, tasks: Sequence[Task], read: ReadRange, schema: StructType) -> DataFrame:
        location = self.location

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in values_of(batch.column(0)):
                    yield from _run_task(location, tasks[number], read)

        return self.spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(run, schema)


def cut_segment(pin: PartitionSnapshot, entry: SegmentEntry, most_bytes: int) -> Iterator[SegmentRange]:
    """The wanted part of a segment in pieces of about `most_bytes`, as if its offsets were spread evenly."""
    start, end = max(pin.start, entry.base_offset), min(pin.end, entry.last_offset + 1)
    whole = entry.last_offset + 1 - entry.base_offset
    count = max(1, -(-entry.size_bytes * (end - start) // (whole * most_bytes)))
    step = -(-(end - start) // count)
    for first in range(start, end, step):
        yield SegmentRange(pin.place, entry, first, min(end, first + step))


def _stored_bytes(piece: SegmentRange) -> int:
    """About what reading a piece moves."""
    whole = piece.entry.last_offset + 1 - piece.entry.base_offset
    return piece.entry.size_bytes * (piece.end - piece.start) // whole


def deal(pieces: Iterable[SegmentRange], cost: Callable[[SegmentRange], int], most_bytes: int) -> list[Task]:
    """Neighbours together, up to `most_bytes` a task."""
    tasks: list[Task] = []
    hand: list[SegmentRange] = []
    held = 0
    for piece in pieces:
        if hand and held + cost(piece) > most_bytes:
            tasks.append(tuple(hand))
            hand, held = [], 0
        hand.append(piece)
        held += cost(piece)
    if hand:
        tasks.append(tuple(hand))
    return tasks


def _run_task(location: StoreLocation, task: Task, read: ReadRange) -> Iterator[pa.RecordBatch]:
    with opened(location) as store:
        yield from read_pieces(store, task, read)


def read_pieces(store: ObjectStore, task: Task, read: ReadRange) -> Iterator[pa.RecordBatch]:
    """The batches of a task's pieces. Raises `SnapshotLost` where an object of the pinned version has gone."""
    for piece in task:
        try:
            yield from read(store, piece)
        except ObjectNotFound as error:
            raise gone(piece.place.topic, piece.place.partition, error.key) from error


def record_batches(store: ObjectStore, piece: SegmentRange) -> Iterator[pa.RecordBatch]:
    """The records of a piece, in the shape of `RECORDS`."""
    for batch in read_entry_batches(store, piece.place, piece.entry, piece.start, piece.end):
        yield shaped(batch, piece.place.partition, ARROW)


def _index_batches(store: ObjectStore, piece: SegmentRange) -> Iterator[pa.RecordBatch]:
    rows = read_index(store, piece.place, piece.entry, columns=tuple(INDEX.names[1:])).rows
    for batch in rows.to_batches(max_chunksize=64 * 1024):
        partition = pa.repeat(pa.scalar(piece.place.partition, pa.int32()), batch.num_rows)
        yield pa.RecordBatch.from_arrays([partition, *batch.columns], names=INDEX.names)
