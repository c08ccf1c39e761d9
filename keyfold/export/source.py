"""One partition at one moment: a manifest that is read once and used throughout.

An ordered read of a log may go on in a newer version when objects have been collected. An export must not: its files
are of one version. So a missing object raises `ExportedVersionGone`, and the partition is exported again from a new
version.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa

from keyfold.errors import ObjectNotFound, SnapshotLost
from keyfold.export.request import ExportRequest
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.read.batches import SegmentRead, read_entry_batches
from keyfold.read.latest import choose, chosen_batches
from keyfold.read.log import Log
from keyfold.read.ordered import newer, offset_for_time
from keyfold.read.position import end_offset, segments_between, start_offset

KEYS_BYTES: Final = 256 * 1024 * 1024
"""Memory for the keys of one partition whose latest state is chosen."""


class ExportedVersionGone(Exception):
    """Objects of the pinned version have been collected."""


@dataclass(frozen=True, slots=True)
class ExportRange:
    """A version of a partition, and the offsets `[start, end)` of it that are exported."""

    place: Place
    manifest: Manifest
    start: int
    end: int


def pin(log: Log, partition: int, request: ExportRequest) -> ExportRange:
    """Read the newest manifest. Raises `OffsetOutOfRange`, and what `Log.manifest` does."""
    place = log.place(partition)
    manifest = log.manifest(partition)
    while True:
        start = start_offset(manifest, request.from_offset)
        if request.from_timestamp is not None:
            try:
                found = offset_for_time(log.store, place, manifest, request.from_timestamp)
            except ObjectNotFound as error:
                manifest = newer(place, partial(log.manifest, partition), error)
                continue
            start = manifest.next_offset if found is None else found
        return ExportRange(place, manifest, start, max(start, end_offset(manifest, request.to_offset)))


def batches(log: Log, pinned: ExportRange, request: ExportRequest) -> Iterator[pa.RecordBatch]:
    """Yield the records of a pinned version, in offset order. Raise `ExportedVersionGone` if an object is missing."""
    try:
        yield from _latest(log, pinned) if request.latest else _ordered(log, pinned)
    except ObjectNotFound as error:
        newer(pinned.place, partial(log.manifest, pinned.place.partition), error)
        raise ExportedVersionGone from error


def lost(pinned: ExportRange, tries: int) -> SnapshotLost:
    """The error when a partition could not be read to its end before it was collected, again and again."""
    return SnapshotLost(
        pinned.place.topic,
        pinned.place.partition,
        f"version {pinned.manifest.version} was replaced and deleted before it was exported, {tries} times in a row",
        hint="file.delete.delay.ms must be longer than an export of the partition takes",
    )


def _ordered(log: Log, pinned: ExportRange) -> Iterator[pa.RecordBatch]:
    for entry in segments_between(pinned.manifest, pinned.start, pinned.end):
        yield from read_entry_batches(log.store, pinned.place, entry, pinned.start, pinned.end)


def _latest(log: Log, pinned: ExportRange) -> Iterator[pa.RecordBatch]:
    chosen = choose(log.store, pinned.place, pinned.manifest)
    yield from chosen_batches(log.store, pinned.place, chosen, SegmentRead.of(pinned.start, pinned.end, None, None))
