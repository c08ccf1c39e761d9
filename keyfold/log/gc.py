"""Garbage collection: pure decisions about which objects may be deleted, and `collect_garbage`, which deletes them.

Two kinds of objects are deleted:

    replaced    unlinked by a commit whose time is stamped, `file.delete.delay.ms` ago in store time, and needed by no
                round of a replica, which may hold them for another `replica.hold.max.ms`. They are deleted first and
                removed from the manifest by a later commit; after a crash in between the deletion is repeated.
    orphans     segments, indexes and unfinished uploads that no manifest names. The folder is listed FIRST and the
                manifest read AFTER, so the manifest names everything that was committed in between. An unnamed object
                is deleted only if its epoch is older than the epoch that the role in its name has claimed: then its
                writer can never commit it. Age alone proves nothing, because a paused writer may be hours late. In a
                log that has become a replica epochs prove nothing either (`refresh` refuses): objects copied there have
                epochs of their source.

No other module deletes: a writer that does not know whether its commit landed leaves its objects to this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from keyfold.log.manifest import UNSTAMPED, Manifest, Replaced, is_over
from keyfold.log.names import INDEX_FOLDER, ObjectName, Place, parse_name
from keyfold.log.partition_log import CompactorSession
from keyfold.runtime.clock import NEVER_MS
from keyfold.store.api import ObjectStore, UploadInfo


@dataclass(frozen=True, slots=True)
class CollectedGarbage:
    """What `collect_garbage` deleted: names relative to the partition's folder."""

    replaced: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    uploads: tuple[str, ...] = ()

    @property
    def object_count(self) -> int:
        """Number of deleted objects and uploads."""
        return len(self.replaced) + len(self.orphans) + len(self.uploads)


def due_names(manifest: Manifest, now_ms: int, delay_ms: int, hold_max_ms: int = NEVER_MS) -> tuple[str, ...]:
    """Return replaced objects that no reader and no replica can still need at the store time `now_ms`."""
    return tuple(
        r.name
        for r in manifest.replaced
        if is_over(r.unlinked_at_ms, delay_ms, now_ms)
        and not (_is_held(manifest, r, now_ms) and not is_over(r.unlinked_at_ms, delay_ms + hold_max_ms, now_ms))
    )


def _is_held(manifest: Manifest, replaced: Replaced, now_ms: int) -> bool:
    # A round on version v needs the objects that v names, so everything that a later version unlinked. A hold without
    # a version has NO_VERSION.
    return any(0 <= h.version < replaced.version and h.expires_at_ms > now_ms for h in manifest.holds)


def orphan_names(listed: Iterable[str], manifest: Manifest) -> list[str]:
    """Return the names that can never be committed, of those listed BEFORE `manifest` was read."""
    kept = manifest.object_names() | {r.name for r in manifest.replaced}
    return [name for name in listed if name not in kept and _is_beyond_commit(parse_name(name), manifest)]


def orphan_uploads(listed: Iterable[UploadInfo], place: Place, manifest: Manifest) -> list[UploadInfo]:
    """Return the unfinished uploads that can never be committed, of those listed BEFORE `manifest` was read."""
    return [u for u in listed if _is_beyond_commit(parse_name(u.key.removeprefix(place.folder)), manifest)]


def _is_beyond_commit(name: ObjectName | None, manifest: Manifest) -> bool:
    """Whether a later claim of the same role has fenced the writer of this name. False for foreign names."""
    return name is not None and name.epoch < manifest.role(name.role).epoch


def list_names(store: ObjectStore, place: Place) -> list[str]:
    """Return the names of all segments and indexes in a partition's folder, relative to it, without foreign objects."""
    names = [info.key.removeprefix(place.folder) for info in store.list(place.folder)]
    return [name for name in names if parse_name(name) is not None]


def delete_names(store: ObjectStore, place: Place, names: Iterable[str]) -> int:
    """Delete objects, indexes after their segments, so that the names left by an incomplete deletion explain it.

    Raise `Corrupt`, and delete nothing, if a name is not that of a segment or an index.
    """
    ordered = sorted(names, key=lambda name: (name.startswith(INDEX_FOLDER), name))
    for key in [place.own_key(name) for name in ordered]:
        store.delete(key)
    return len(ordered)


def collect_garbage(
    store: ObjectStore, session: CompactorSession, delay_ms: int, hold_max_ms: int = NEVER_MS
) -> CollectedGarbage:
    """Delete garbage in a claimed partition. Raise `Fenced` if the claim was lost, `IsReplica`, `StoreError`.

    With a `file.delete.delay.ms` of 0 the objects that this run replaced are deleted too, after one more commit that
    stamps their time.
    """
    place = session.place
    if delay_ms <= 0 and any(r.unlinked_at_ms == UNSTAMPED for r in session.manifest.replaced):
        session.release()
    names, uploads = list_names(store, place), list(store.list_uploads(place.folder))  # LIST first,
    manifest = session.refresh()  # the manifest AFTER: it names what was committed in between
    due = due_names(manifest, session.pinned.seen_ms, delay_ms, hold_max_ms)
    orphans = orphan_names(names, manifest)
    stale = orphan_uploads(uploads, place, manifest)
    delete_names(store, place, (*due, *orphans))
    for upload in stale:
        store.abort_upload(upload.key, upload.upload_id)
    if due:
        session.forget(due)
    return CollectedGarbage(due, tuple(orphans), tuple(u.key.removeprefix(place.folder) for u in stale))
