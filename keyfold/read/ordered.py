"""Ordered reads: one manifest version, and a newer one from the same position when its objects are deleted.

`keyfold.read.position` has the rules. A 404 for an object that the newest version still lists is damage, not a race:
garbage collection only deletes objects that an earlier commit replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from keyfold.errors import Corrupt, ObjectNotFound
from keyfold.log.index import read_index
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.read.blocks import READ_LIMITS, ReadLimits
from keyfold.read.fetch import read_segment, verify_hint
from keyfold.read.position import anchor_of, check_resumed, end_offset, segments_between, segments_from_time
from keyfold.store.api import ObjectStore

Load = Callable[[], Manifest]
"""A function that reads the newest manifest."""


def read_ordered(
    store: ObjectStore,
    place: Place,
    load: Load,
    manifest: Manifest,
    position: int,
    to_offset: int | None,
    limits: ReadLimits = READ_LIMITS,
) -> Iterator[Record]:
    """Yield records from `position` on, up to `to_offset` or the end of the last version read."""
    anchor = anchor_of(manifest)
    while True:
        end = end_offset(manifest, to_offset)
        try:
            for entry in segments_between(manifest, position, end):
                for record in read_segment(store, place, entry, position, end, limits):
                    position = record.offset + 1
                    yield record
                position = max(position, min(entry.next_offset, end))
        except ObjectNotFound as error:
            manifest = newer(place, load, error)
            anchor = check_resumed(anchor, position, manifest)
        else:
            return


def newer(place: Place, load: Load, missing: ObjectNotFound) -> Manifest:
    """Return the manifest to continue with after a 404. Raises `Corrupt` if it still lists the missing object."""
    manifest = load()
    if missing.key.removeprefix(place.folder) in manifest.object_names():
        raise Corrupt(
            place.topic,
            place.partition,
            f"`{missing.key}` is missing, but version {manifest.version} of the manifest lists it",
            hint=verify_hint(place),
        ) from missing
    return manifest


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """A record's offset and timestamp in ms, like Kafka's class of this name."""

    offset: int
    timestamp: int


def find_time(store: ObjectStore, place: Place, manifest: Manifest, timestamp_ms: int) -> OffsetAndTimestamp | None:
    """Return the first record with a timestamp at or after `timestamp_ms`, in offset order (Kafka's `offsetsForTimes`).

    None if there is no such record. Reads one index.
    """
    for entry in segments_from_time(manifest, timestamp_ms):
        index = read_index(store, place, entry, columns=("offset", "timestamp"))
        timestamps = index.ints("timestamp")
        matches = np.flatnonzero(timestamps >= timestamp_ms)
        if len(matches):
            return OffsetAndTimestamp(int(index.ints("offset")[matches[0]]), int(timestamps[matches[0]]))
    return None


def find_last(store: ObjectStore, place: Place, manifest: Manifest, count: int) -> int:
    """Return the offset from which the log has its last `count` records, or the log start. Reads one index."""
    if count <= 0:
        return manifest.next_offset
    for entry in reversed(manifest.segments):
        if entry.record_count >= count:
            offsets = read_index(store, place, entry, columns=("offset",)).ints("offset")
            return max(int(offsets[len(offsets) - count]), manifest.log_start_offset)
        count -= entry.record_count
    return manifest.log_start_offset


def offset_for_time(store: ObjectStore, place: Place, manifest: Manifest, timestamp_ms: int) -> int | None:
    """Return the offset of the record that `find_time` finds."""
    found = find_time(store, place, manifest, timestamp_ms)
    return None if found is None else found.offset
