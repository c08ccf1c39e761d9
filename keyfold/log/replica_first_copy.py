"""The marker of a replica's first copy in a partition's folder that has no manifest yet.

    _first_copy.json    the replica's name and source, and the size of the source's log to copy

A replicator writes it into the folder before the first object, and deletes it after the first commit. Without it,
objects without a manifest would look like a log that lost its manifest, and an empty folder like no log at all. The
marker is only informative: a manifest takes precedence over it, and a replicator can continue without it.

The progress is the part of the marker's objects that a listing of the folder shows. Objects from an interrupted round
that the version to copy does not list were counted when the marker was written, and do not count as progress.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from keyfold.errors import AlreadyExists, FirstCopyUnfinished, ObjectNotFound, PreconditionFailed
from keyfold.log.manifest import Manifest
from keyfold.log.names import FIRST_COPY_NAME, Place, parse_name
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import Create, ObjectStore, Update
from keyfold.store.documents import DOCUMENT_BYTES_MAX, load_json


@dataclass(frozen=True, slots=True)
class FirstCopy:
    """The contents of the marker. Sizes are stored bytes of segments and indexes.

    `segments` and `size_bytes` are those of version `source_version` of the source's log. `other_segments` and
    `other_bytes` were in the folder when the copy of that version started, and do not belong to it.
    """

    name: str
    source: str
    source_log_id: str
    source_version: int
    segments: int
    size_bytes: int
    other_segments: int = 0
    other_bytes: int = 0

    @staticmethod
    def of_manifest(source: Manifest, name: str, source_url: str, listed: Mapping[str, int]) -> FirstCopy:
        """Return the marker of a copy of `source`; `listed` has the objects in the replica's folder and their sizes."""
        wanted = source.object_names()
        other_segments, other_bytes = _counted((n, size) for n, size in listed.items() if n not in wanted)
        size_bytes = sum(e.size_bytes + e.index_size_bytes for e in source.segments)
        return FirstCopy(
            name,
            source_url,
            source.log_id,
            source.log_version,
            len(source.segments),
            size_bytes,
            other_segments,
            other_bytes,
        )

    @staticmethod
    def of_bytes(data: bytes) -> FirstCopy:
        """Read a marker, also one of a newer version. Raises `ValueError` if it is malformed."""
        try:
            found = load_json(data)
            return FirstCopy(
                name=str(found["name"]),
                source=str(found["source"]),
                source_log_id=str(found["source_log_id"]),
                source_version=int(found["source_version"]),
                segments=int(found["segments"]),
                size_bytes=int(found["size_bytes"]),
                other_segments=int(found["other_segments"]),
                other_bytes=int(found["other_bytes"]),
            )
        except (TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"no marker of a first copy: {error!r}") from error

    def as_bytes(self) -> bytes:
        """Return the stored bytes of the marker."""
        return json.dumps({"version": 1, **asdict(self)}, indent=2, ensure_ascii=False).encode()


def put_marker(store: ObjectStore, place: Place, marker: FirstCopy, retry: RetryPolicy) -> None:
    """Write the marker, over an existing one or none. Raises the store's errors.

    If several replicators start at once, any marker may be the last; each describes the copy that its replicator
    started. If another replicator has just committed, its garbage collection deletes the marker.
    """
    key = place.key(FIRST_COPY_NAME)
    data = marker.as_bytes()
    try:
        there = retry.repeat(lambda: store.get(key, DOCUMENT_BYTES_MAX))
    except ObjectNotFound:
        there = None
    if there is not None and there.data == data:
        return
    mode = Create() if there is None else Update(there.etag)
    try:
        retry.repeat(lambda: store.put(key, data, mode))
    except (AlreadyExists, PreconditionFailed, ObjectNotFound):
        return


def unfinished(place: Place, data: bytes, listed: Mapping[str, int]) -> FirstCopyUnfinished:
    """Return the error for a partition whose first copy is not complete.

    `data` is its marker, empty if it cannot be read; `listed` has the sizes of objects in the folder, by name.
    """
    try:
        marker = FirstCopy.of_bytes(data)
    except ValueError:
        marker = None
    found_segments, found_bytes = _counted(listed.items())
    if marker is None:
        return FirstCopyUnfinished(
            place.topic,
            place.partition,
            f"the first copy of a replica is not complete: {found_segments} segments, {found_bytes:,} bytes are in "
            f"`{place.folder}`",
            hint="read the source until then; `keyfold replica status` at the source shows which process copies",
            segments_there=found_segments,
            bytes_there=found_bytes,
        )
    segments_there = min(max(0, found_segments - marker.other_segments), marker.segments)
    bytes_there = min(max(0, found_bytes - marker.other_bytes), marker.size_bytes)
    percent = 100 * bytes_there // marker.size_bytes if marker.size_bytes else 100
    return FirstCopyUnfinished(
        place.topic,
        place.partition,
        f"the first copy of replica `{marker.name}` of {marker.source} is not complete: {segments_there} of "
        f"{marker.segments} segments, {bytes_there:,} of {marker.size_bytes:,} bytes ({percent}%) are in "
        f"`{place.folder}`",
        hint="read the source until then; if no process copies (`keyfold replica status`), start one: "
        f"`keyfold replica run {marker.source} {marker.name}`",
        replica=marker.name,
        source=marker.source,
        source_log_id=marker.source_log_id,
        segments=marker.segments,
        segments_there=segments_there,
        size_bytes=marker.size_bytes,
        bytes_there=bytes_there,
    )


def _counted(sizes: Iterable[tuple[str, int]]) -> tuple[int, int]:
    """Return the number of segments, and the bytes of segments and indexes."""
    segments = size_bytes = 0
    for name, size in sizes:
        parsed = parse_name(name)
        if parsed is not None:
            segments += not parsed.is_index
            size_bytes += size
    return segments, size_bytes
