"""Bring a manifest back from an older version of its object, in a bucket that keeps versions.

That is better than the segments alone: a version also has the settings, the marks and passes, the times and the gaps.
The newest version that can be read is the base of it. What was committed after it is found in the folder:

    a sink's segments behind its end      are taken in, as `keyfold.verify.surviving_segments` chooses them
    a later pass over its records         is let go: its sources are listed in the version and still there; its
                                          outputs are orphans
    objects of the version are gone, or
    a later pass took appends after it    the version is not the log any more: the segments must tell (`repair`), and
                                          only what they cannot know is taken from the version

Log id and epochs start again in any case, above every epoch in any name: no writer of a lost version can commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from keyfold.errors import FormatTooNew, LogError, StoreError
from keyfold.log.manifest import Manifest, RoleState, SegmentEntry
from keyfold.log.manifest_codec import decode_manifest
from keyfold.log.names import ObjectName, Place, Role, parse_name
from keyfold.store.api import Blob, ObjectStore, ObjectVersion, VersionedStore


@dataclass(frozen=True, slots=True)
class ReadableVersion:
    """A version of the manifest that can be read. `skipped` newer ones could not."""

    manifest: Manifest
    version: ObjectVersion
    skipped: int

    def __str__(self) -> str:
        return f"version {self.version.version_id} of the object (manifest version {self.manifest.version})"


@dataclass(frozen=True, slots=True)
class Versions:
    """What the bucket's versions say: the newest readable one, or why there is none."""

    found: ReadableVersion | None
    why_not: str = ""


def newest_version(store: ObjectStore, place: Place) -> Versions:
    """Look for the newest version of the manifest that can be read. Raises `FormatTooNew`."""
    if not isinstance(store, VersionedStore):
        return Versions(None, "this store keeps no object versions")
    skipped = 0
    try:
        for version in store.list_versions(place.manifest_key):
            manifest = None if version.is_deletion else _readable(store, place, version)
            if manifest is not None:
                return Versions(ReadableVersion(manifest, version, skipped))
            skipped += not version.is_deletion
    except StoreError as error:
        if error.retriable:
            raise
        return Versions(None, f"the manifest's object versions cannot be listed: {error.message}")
    return Versions(
        None,
        f"none of the manifest's {skipped} object versions can be read"
        if skipped
        else "the bucket has no older version of the manifest",
    )


def _readable(store: VersionedStore, place: Place, version: ObjectVersion) -> Manifest | None:
    blob: Blob = store.get_version(place.manifest_key, version.version_id)
    try:
        return decode_manifest(blob.data, place)
    except FormatTooNew:
        raise
    except LogError:
        return None


def missing_objects(manifest: Manifest, sizes: Mapping[str, int]) -> list[str]:
    """Objects of a version that are not in the folder, or have another size."""
    wanted = {
        name: size
        for entry in manifest.segments
        for name, size in ((entry.name, entry.size_bytes), (entry.index_name, entry.index_size_bytes))
    }
    return sorted(name for name, size in wanted.items() if sizes.get(name) != size)


def appended_since(manifest: Manifest, names: Iterator[str]) -> list[ObjectName]:
    """Segments of sinks that begin at the version's end or behind it: committed after it, or orphans."""
    known = manifest.object_names() | {r.name for r in manifest.replaced}
    parsed = [n for name in names if name not in known and (n := parse_name(name)) is not None and not n.is_index]
    return [n for n in parsed if n.role is Role.SINK and n.base_offset >= manifest.next_offset]


def cleaned_since(manifest: Manifest, names: Iterator[str]) -> list[ObjectName]:
    """Segments of passes that began after the version."""
    parsed = [n for name in names if (n := parse_name(name)) is not None and not n.is_index]
    known = manifest.object_names()
    return [n for n in parsed if n.role is Role.COMPACTOR and n.epoch > manifest.last_epoch and str(n) not in known]


def renewed(manifest: Manifest, tail: tuple[SegmentEntry, ...], *, log_id: str, epoch: int) -> Manifest:
    """The version and later appends as a new log: no earlier writer may continue with it."""
    segments = manifest.segments
    if tail and segments:
        segments = (*segments[:-1], replace(segments[-1], next_offset=tail[0].base_offset))
    elif tail:
        tail = (replace(tail[0], base_offset=manifest.log_start_offset), *tail[1:])
    end = tail[-1].next_offset if tail else manifest.next_offset
    return replace(
        manifest,
        log_id=log_id,
        version=manifest.version + 1,
        last_epoch=epoch,
        sink=RoleState(),
        compactor=RoleState(),
        segments=(*segments, *tail),
        next_offset=end,
        first_dirty_offset=_first_dirty(manifest, tail),
        holds=(),
        replica=None,
    )


def _first_dirty(manifest: Manifest, tail: tuple[SegmentEntry, ...]) -> int:
    """Where the clean part ends: the version's, which may have been its end, and the tail begins there or later."""
    first = manifest.first_dirty_offset
    return tail[0].base_offset if tail and first == manifest.next_offset else first


def enriched(manifest: Manifest, version: Manifest) -> Manifest:
    """A manifest made from segments, with what only a version of the lost one can know."""
    appended = {e.name: e.appended_at_ms for e in version.segments}
    return replace(
        manifest,
        topic_id=version.topic_id,
        cluster_id=version.cluster_id,
        settings=version.settings,
        gaps=version.gaps,
        last_leader_epoch=version.last_leader_epoch,
        purged_to=max(manifest.purged_to, min(version.purged_to, manifest.next_offset - 1)),
        segments=tuple(replace(e, appended_at_ms=appended.get(e.name, e.appended_at_ms)) for e in manifest.segments),
    )
