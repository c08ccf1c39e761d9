"""One partition's log: the only code that writes manifests.

    PartitionLog          load, create, restore, and claim; hold objects for replicas; become a replica
    SinkSession           commits of the sink that holds the epoch: append
    CompactorSession      commits of the compactor that holds the epoch: replace, expire, renew its lease, forget

A session caches the newest manifest that it has seen, so a commit without a concurrent one costs one request. Two
threads must not use sessions of one role and partition at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from keyfold.errors import AccessDenied, AlreadyExists, Fenced, LogNotFound, ObjectNotFound, PreconditionFailed
from keyfold.log import edits, edits_replica
from keyfold.log.commit import Pinned, manifest_lost, require_same_log
from keyfold.log.edits import Edit, Replacement, Swap
from keyfold.log.folder import PartitionFolder
from keyfold.log.manifest import Gap, Manifest, SegmentEntry, new_log_id
from keyfold.log.manifest_codec import encode_manifest
from keyfold.log.names import FIRST_COPY_NAME, ObjectName, Place, Role, new_name, parse_name
from keyfold.log.replica_first_copy import unfinished
from keyfold.store.api import Create, PutMode, Update
from keyfold.store.documents import DOCUMENT_BYTES_MAX

__all__ = ["CompactorSession", "PartitionLog", "Pinned", "Replacement", "SinkSession", "Swap"]

SYNC_MARKER_BYTES = 16


class PartitionLog(PartitionFolder):
    """The log of one topic partition in a bucket."""

    def load(self) -> Pinned:
        """Read the newest manifest.

        Raises `LogNotFound` for an empty folder, `FirstCopyUnfinished` if a replica has no manifest yet, `ManifestLost`
        for segments without a manifest, `Corrupt`, `FormatTooNew`.
        """
        try:
            return self.committer.read()
        except ObjectNotFound:
            listed = self.listed()
        if FIRST_COPY_NAME not in listed and not any(parse_name(name) for name in listed):
            raise LogNotFound(
                self.place.topic, self.place.partition, f"no log found at `{self.place.folder}`"
            ) from None
        marker = self._marker(listed)  # before the manifest, because the marker is deleted after the first commit
        try:
            return self.committer.read()  # it may have been created between the two reads
        except ObjectNotFound:
            if marker is None:
                raise manifest_lost(self.place, "is missing, but its segments exist") from None
            raise unfinished(self.place, marker, listed) from None

    def _marker(self, listed: Mapping[str, int]) -> bytes | None:
        """Return the marker of a first copy; None if there is none, empty if it may not be read."""
        if FIRST_COPY_NAME not in listed:
            return None
        try:
            key = self.place.key(FIRST_COPY_NAME)
            return self.retry.repeat(lambda: self.store.get(key, DOCUMENT_BYTES_MAX)).data
        except ObjectNotFound:
            return None
        except AccessDenied:
            return b""

    def create(
        self,
        *,
        topic_id: str = "",
        cluster_id: str = "",
        start_offset: int = 0,
        settings: Mapping[str, str] | None = None,
    ) -> Pinned:
        """Create a log at `start_offset`, or load the existing one. Raises `ManifestLost` like `load`."""
        try:
            return self.load()
        except LogNotFound:
            pass
        random = self.retry.random
        manifest = Manifest(
            topic=self.place.topic,
            partition=self.place.partition,
            log_id=new_log_id(random),
            sync_marker=random.randbytes(SYNC_MARKER_BYTES),
            topic_id=topic_id,
            cluster_id=cluster_id,
            log_start_offset=start_offset,
            next_offset=start_offset,
            first_dirty_offset=start_offset,
            settings=dict(settings or {}),
        )
        return self._put_first(manifest, Create())

    def restore(self, manifest: Manifest, *, over: str | None = None) -> Pinned:
        """Write a manifest where none exists, or `over` the damaged one with this ETag.

        Raises `AlreadyExists` if another one exists, and does not change it. For `keyfold log repair` only. The
        manifest's epochs must be above every epoch in the partition's folder, so that no writer of the lost one can
        commit.
        """
        pinned = self._put_first(manifest, Create() if over is None else Update(over))
        if pinned.manifest.log_id != manifest.log_id:
            raise AlreadyExists(self.place.manifest_key, "a manifest already exists")
        return pinned

    def claim_sink(self, pinned: Pinned | None = None) -> SinkSession:
        """Claim the next epoch for the sink. Raises `Fenced` if another sink claimed at the same time."""
        base = pinned or self.load()
        edit = edits.claim(Role.SINK, base.manifest.sink.epoch)
        return SinkSession(self, self.committer.commit(base, edit, Role.SINK))

    def claim_compactor(self, *, lease_ms: int, holder: str, base: Pinned | None = None) -> CompactorSession:
        """Claim the next epoch and a lease for the compactor. Raises `LeaseHeld`, or `Fenced` after a lost race.

        A caller that has just loaded the log passes its version as `base`.
        """
        base = base or self.load()  # a fresh read, because leases are compared with the store's time of this answer
        edit = edits.claim(Role.COMPACTOR, base.manifest.compactor.epoch, lease_ms=lease_ms, holder=holder)
        return CompactorSession(self, self.committer.commit(base, edit, Role.COMPACTOR))

    def hold(
        self,
        name: str,
        version: int | None,
        expires_in_ms: int = 0,
        received_to: int | None = None,
        *,
        pinned: Pinned | None = None,
    ) -> Pinned:
        """Record the hold of the replica `name` (see `Hold`). Not for sinks and compactors.

        A `version` of None means that no round is running. The returned manifest may be newer than `pinned` or
        `version`: a round plans with the returned one, whose objects are held. The call does not change the log, and
        only commits a change. Raises `LogNotFound`, `ManifestLost`, `FormatTooNew`, `CommitUnknown` (retry the call).
        """
        return self._hold(edits_replica.hold(name, version, expires_in_ms, received_to), pinned)

    def drop_hold(self, name: str) -> Pinned:
        """Remove the hold of the replica `name`. Raises the errors of `hold`."""
        return self._hold(edits_replica.drop_hold(name), None)

    def demote(self, source: Manifest, *, name: str, source_url: str, discard: bool = False) -> Pinned:
        """Make this log the replica `name` of `source`: afterwards neither sink nor compactor can commit.

        Raises `ReplicaDiverged` if that would lose data (`edits_replica.demote`; `discard` gives up records),
        `IsReplica` if it is already a replica, and `CommitUnknown`: load the log and check it before a retry.
        """
        edit = edits_replica.demote(source, edits_replica.Following(name, source_url), discard=discard)
        return self.committer.commit(self.load(), edit, "replicator")

    def _hold(self, edit: Edit, pinned: Pinned | None) -> Pinned:
        base = pinned or self.load()
        if edit(base.manifest, base.seen_ms) is base.manifest:
            return base
        return self.committer.commit(base, edit, None)

    def _put_first(self, manifest: Manifest, mode: PutMode) -> Pinned:
        data = encode_manifest(manifest)
        try:
            result = self.retry.repeat(lambda: self.store.put(self.place.manifest_key, data, mode))
        except (AlreadyExists, PreconditionFailed):
            return self.committer.read()  # this process's manifest if only the answer was lost, otherwise the winner's
        return Pinned(manifest, result.etag, result.date_ms)


class _Session:
    """A claimed epoch, and the newest manifest that its holder has seen."""

    role: Role

    def __init__(self, log: PartitionLog, pinned: Pinned) -> None:
        self._log = log
        self.pinned = pinned
        self.epoch = pinned.manifest.role(self.role).epoch

    @property
    def place(self) -> Place:
        """The partition's place."""
        return self._log.place

    @property
    def manifest(self) -> Manifest:
        """The newest manifest that this session has seen."""
        return self.pinned.manifest

    def new_name(self, base_offset: int) -> ObjectName:
        """Return a fresh name for a segment; its `.index` is the name of the index."""
        return new_name(base_offset, self.epoch, self.role, self._log.retry.random)

    def refresh(self) -> Manifest:
        """Read the newest manifest. Raises `ManifestLost`, `Fenced` if another writer claimed, and `IsReplica`.

        A replica keeps its old epochs until it receives data. They are unrelated to copied objects, which have epochs
        of the other log after the point where the two logs diverged.
        """
        try:
            pinned = self._log.committer.read()
        except ObjectNotFound:
            raise manifest_lost(self.place, "was deleted while this process used it") from None
        require_same_log(self.manifest, pinned.manifest)
        edits.require_writers(pinned.manifest)
        self.pinned = pinned
        claimed = self.manifest.role(self.role).epoch
        if claimed != self.epoch:
            raise Fenced(
                self.place.topic,
                self.place.partition,
                f"another {self.role.name.lower()} has claimed epoch {claimed}; this one had epoch {self.epoch}",
            )
        return self.manifest

    def _commit(self, edit: Edit, objects: frozenset[str] = frozenset(), tried: set[str] | None = None) -> Manifest:
        self.pinned = self._log.committer.commit(self.pinned, edit, self.role, objects, tried)
        return self.manifest


class SinkSession(_Session):
    """The sink's claim on a partition."""

    role = Role.SINK

    def append(
        self,
        entry: SegmentEntry,
        *,
        leader_epoch: int = -1,
        gaps: Sequence[Gap] = (),
        settings: Mapping[str, str] | None = None,
    ) -> Manifest:
        """Commit one uploaded segment and its index; its range starts at the log's `next_offset`.

        Raises `OffsetMoved` or `Fenced` (the upload is then an orphan), `ManifestLost`, `CommitUnknown` (retry with the
        same entry). Also returns normally if the commit landed and another sink claimed later: the next append raises
        `Fenced`.
        """
        edit = edits.append(
            self.epoch,
            entry,
            base_offset=entry.base_offset,
            next_offset=entry.next_offset,
            leader_epoch=leader_epoch,
            gaps=gaps,
            settings=settings,
        )
        return self._commit(edit, frozenset((entry.name, entry.index_name)))

    def advance(
        self, next_offset: int, *, gaps: Sequence[Gap] = (), settings: Mapping[str, str] | None = None
    ) -> Manifest:
        """Move `next_offset` over a hole in the source (control records, aborted or compacted records, a gap).

        Raises the errors of `append`. After `CommitUnknown`, `refresh` and compare `next_offset` before a retry.
        """
        edit = edits.append(
            self.epoch,
            None,
            base_offset=self.manifest.next_offset,
            next_offset=next_offset,
            gaps=gaps,
            settings=settings,
        )
        return self._commit(edit)

    def follow(self, settings: Mapping[str, str], *, topic_id: str = "", cluster_id: str = "") -> Manifest:
        """Commit the topic's settings and ids if they differ from the manifest's."""
        manifest = self.manifest
        known = bool(manifest.topic_id or not topic_id) and bool(manifest.cluster_id or not cluster_id)
        if known and dict(settings) == dict(manifest.settings):
            return manifest
        return self._commit(edits.follow(self.epoch, settings=settings, topic_id=topic_id, cluster_id=cluster_id))


class CompactorSession(_Session):
    """The compactor's claim on a partition, with its lease."""

    role = Role.COMPACTOR

    def __init__(self, log: PartitionLog, pinned: Pinned) -> None:
        super().__init__(log, pinned)
        self._replacing: tuple[Replacement, set[str]] | None = None
        self._expiring: tuple[frozenset[str], set[str]] | None = None

    def replace(self, replacement: Replacement) -> Manifest:
        """Commit a pass, or a part of one.

        Raises `SegmentsMoved` or `Fenced` (uploads are then orphans), `ManifestLost`, `CommitUnknown` (retry with the
        same replacement).
        """
        # A replacement that only removes segments has no new object as proof, so its commit ids are needed.
        if self._replacing is None or self._replacing[0] is not replacement:
            self._replacing = (replacement, set())
        return self._commit(edits.replace_segments(self.epoch, replacement), replacement.objects(), self._replacing[1])

    def expire(self, expired: Sequence[SegmentEntry]) -> Manifest:
        """Remove the log's first segments (`edits.expire`). Raises the errors of `replace`.

        After `CommitUnknown` the call may be retried. The objects are deleted like replaced ones.
        """
        names = frozenset(e.name for e in expired)
        if self._expiring is None or self._expiring[0] != names:
            self._expiring = (names, set())
        return self._commit(edits.expire(self.epoch, expired), tried=self._expiring[1])

    def renew(self, lease_ms: int) -> Manifest:
        """Extend the lease to `lease_ms` from the store's current time. Raises `Fenced` if it was lost."""
        self.refresh()
        return self._commit(edits.renew(self.epoch, lease_ms))

    def release(self) -> Manifest:
        """Release the lease."""
        return self._commit(edits.renew(self.epoch, 0))

    def forget(self, names: Iterable[str]) -> Manifest:
        """Remove deleted objects from the manifest's `replaced`."""
        return self._commit(edits.forget(self.epoch, names))
