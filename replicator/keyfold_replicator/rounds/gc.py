"""Garbage collection at a replica. Only its replicator does this: no compactor may claim there.

    replaced    objects that a commit of the replica unlinked, `file.delete.delay.ms` ago in the replica's store time
    orphans     objects of rounds that were interrupted or planned again
    marker      that of the first copy, once there is a manifest

Orphans are found in this order: LIST the replica's folder, THEN read the source's manifest, THEN the replica's, which
must still have our epoch. A listed object had been copied, so an earlier version of the source named it. If the version
that is read now does not, no later one ever will, because names are never linked again. A later replicator claims after
our read of the replica, and reads the source after its claim. So no one can commit an object that is deleted here; only
a replicator that we have fenced could have. By the same rule, unfinished uploads of unwanted objects are aborted.
"""

from __future__ import annotations

from keyfold.log.commit import Pinned
from keyfold.log.gc import CollectedGarbage, delete_names, due_names
from keyfold.log.manifest import UNSTAMPED
from keyfold.log.names import FIRST_COPY_NAME, Place, parse_name
from keyfold.log.partition_log import PartitionLog
from keyfold.log.replica_log import ReplicaLog, ReplicaSession
from keyfold.store.api import STORE_TIME_RESOLUTION_MS, ObjectStore


def delete_replaced(store: ObjectStore, session: ReplicaSession, delay_ms: int) -> CollectedGarbage:
    """Delete what was replaced long enough ago. Raise `Fenced` if the claim was lost, and `StoreError`."""
    # A commit that only writes times, also that of the last commit; or the store's time is asked for.
    manifest = session.stamp() if _has_unstamped(session) else session.refresh()
    assert manifest is not None  # nothing is replaced where nothing was ever committed
    assert session.pinned is not None
    due = due_names(manifest, session.pinned.seen_ms, delay_ms)
    if due:
        delete_names(store, session.place, due)
        session.forget(due)
    return CollectedGarbage(replaced=due)


def delete_orphans(store: ObjectStore, session: ReplicaSession, source: PartitionLog) -> CollectedGarbage:
    """Delete what no version of the source will name again. Raise `Fenced` if the claim was lost, and `StoreError`.

    No round of this session may be in progress.
    """
    place = session.place
    listed, uploads = _listed(store, place), list(store.list_uploads(place.folder))  # LIST first,
    wanted = source.load().manifest  # the source after it,
    manifest = session.refresh()  # and last the proof that nobody claimed before it was read
    if manifest is not None and FIRST_COPY_NAME in listed:
        store.delete(place.key(FIRST_COPY_NAME))
    if manifest is None or wanted.log_id != manifest.log_id:
        return CollectedGarbage()  # another log is at the source now: the next round says what to do about it
    kept = wanted.object_names() | manifest.object_names() | {r.name for r in manifest.replaced}
    names = [name for name in listed if parse_name(name) is not None]
    orphans = tuple(name for name in names if name not in kept)
    delete_names(store, place, orphans)
    # An upload of a wanted object may be continued later. One of an existing object can create nothing.
    stale = [u for u in uploads if _name(u.key, place) not in kept.difference(names)]
    for upload in stale:
        store.abort_upload(upload.key, upload.upload_id)
    return CollectedGarbage(orphans=orphans, uploads=tuple(_name(u.key, place) for u in stale))


def may_have_orphans(store: ObjectStore, replica: ReplicaLog) -> bool:
    """Whether the folder seems to have objects that the replica's manifest does not name. Only a hint."""
    names = _listed(store, replica.place)
    is_uploading = next(iter(store.list_uploads(replica.place.folder)), None) is not None
    pinned = replica.load()
    if pinned is None:
        return False  # nothing is known to be an orphan before the first commit
    known = pinned.manifest.object_names() | {r.name for r in pinned.manifest.replaced}
    return is_uploading or any(
        name == FIRST_COPY_NAME or (parse_name(name) is not None and name not in known) for name in names
    )


def _has_unstamped(session: ReplicaSession) -> bool:
    return session.manifest is not None and any(r.unlinked_at_ms == UNSTAMPED for r in session.manifest.replaced)


def due_in_ms(replica: Pinned, delay_ms: int) -> int | None:
    """Return how long until the objects that this version has replaced are due; None without any.

    Objects without a time were unlinked by this very version: they are due `delay_ms` after its commit.
    """
    landed_ms = replica.seen_ms if replica.modified_ms == UNSTAMPED else replica.modified_ms
    stamps = [landed_ms if r.unlinked_at_ms == UNSTAMPED else r.unlinked_at_ms for r in replica.manifest.replaced]
    if not stamps:
        return None
    wait_ms = min(stamps) + delay_ms - replica.seen_ms
    return max(0, wait_ms + STORE_TIME_RESOLUTION_MS) if delay_ms > 0 else 0


def _listed(store: ObjectStore, place: Place) -> list[str]:
    return [_name(info.key, place) for info in store.list(place.folder)]


def _name(key: str, place: Place) -> str:
    return key.removeprefix(place.folder)
