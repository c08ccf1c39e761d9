"""One partition's log at a replica: a replicator claims it and applies version after version of the source.

    ReplicaLog        load, and claim
    ReplicaSession    commits of the replicator that holds the epoch: mark_first_copy, mirror, stamp, forget, promote

The safe order is: claim; THEN load the source's manifest; list the folder; copy the missing objects; mirror. Before the
first mirror there is no manifest; the marker of `first_copy` is written before any object. A replicator that loads the
source before its claim may rely on objects that an older replicator has found unlisted and is about to delete. A
session, its mirrors and its garbage collection belong to one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from keyfold.errors import (
    AlreadyExists,
    CommitUnknown,
    ConditionUndecided,
    Fenced,
    ObjectNotFound,
    ReplicaDiverged,
    StoreError,
    StoreUnavailable,
)
from keyfold.log import edits_replica as edits
from keyfold.log.commit import Pinned, manifest_lost, new_commit_id
from keyfold.log.edits import Edit
from keyfold.log.edits_replica import Following
from keyfold.log.folder import PartitionFolder
from keyfold.log.manifest import UNSTAMPED, Manifest, Token, new_log_id
from keyfold.log.manifest_codec import encode_manifest, require_writable
from keyfold.log.names import FIRST_COPY_NAME, Place, parse_name
from keyfold.log.replica_first_copy import FirstCopy, put_marker
from keyfold.store.api import Create

__all__ = ["Following", "ReplicaLog", "ReplicaSession"]

_REPLICATOR: Final = "replicator"


class ReplicaLog(PartitionFolder):
    """The log of one topic partition in a replica's bucket."""

    def load(self) -> Pinned | None:
        """Read the newest manifest; None before the first mirror. Raises `Corrupt`, `FormatTooNew`, `StoreError`."""
        try:
            return self.committer.read()
        except ObjectNotFound:
            return None

    def claim(self, source: Manifest, *, name: str, source_url: str) -> ReplicaSession:
        """Claim the replicator's epoch. Without a manifest, this writes nothing.

        `source` is the log to follow; it must be loaded AGAIN before it is mirrored. Raises `Fenced` after a lost race,
        `ReplicaDiverged` if the folder has another log or another replica, and `CommitUnknown`.
        """
        following = Following(name, source_url)
        base = self.load()
        if base is None:
            # Before the source is loaded, so that every copied object has an epoch that the source knows.
            return ReplicaSession(self, following, None, source, newest_epoch(self.listed()))
        state = base.manifest.replica
        if state is None:
            raise edits.own_log(base.manifest, source)
        edit = edits.claim_replica(state.token, following, new_commit_id(self.retry.random))
        return ReplicaSession(self, following, self.committer.commit(base, edit, _REPLICATOR), source)


def newest_epoch(names: Iterable[str]) -> int:
    """Return the newest epoch in the names of a folder; 0 if there is none."""
    return max((parsed.epoch for name in names if (parsed := parse_name(name)) is not None), default=0)


class ReplicaSession:
    """A replicator's claim on a partition, and the newest manifest there that it has seen."""

    def __init__(
        self, log: ReplicaLog, following: Following, pinned: Pinned | None, claimed: Manifest, found_epoch: int = 0
    ) -> None:
        self._log = log
        self._following = following
        self._claimed = claimed
        self._found_epoch = found_epoch
        self.pinned = pinned
        if pinned is None:
            self._token = Token(edits.FIRST_EPOCH, new_commit_id(log.retry.random))
        else:
            self._token = edits.require_replica(pinned.manifest).token
        self._mirroring: tuple[tuple[object, ...], set[str]] = ((), set())
        self._log_id = ""
        self._is_parked = False

    @property
    def place(self) -> Place:
        """The partition's place."""
        return self._log.place

    @property
    def epoch(self) -> int:
        """The claimed epoch."""
        return self._token.epoch

    @property
    def manifest(self) -> Manifest | None:
        """The newest manifest that this session has seen; None before the first mirror."""
        return None if self.pinned is None else self.pinned.manifest

    def refresh(self) -> Manifest | None:
        """Read the newest manifest. Raises `Fenced` if the claim was lost, `ManifestLost` if the manifest is gone."""
        pinned = self._log.load()
        if pinned is None:
            if self.pinned is not None or self._is_parked:
                raise manifest_lost(self.place, "was deleted while this process used it")
            return None
        if self.pinned is None and not self._is_parked:
            raise Fenced(self.place.topic, self.place.partition, "another replicator has written the first manifest")
        edits.require_epoch(pinned.manifest, self._token)
        self.pinned = pinned
        self._is_parked = False
        return pinned.manifest

    def park(self) -> None:
        """Release the manifest, which may be large, and keep the claim. Call `refresh` before any other method."""
        self._is_parked = self._is_parked or self.pinned is not None
        self.pinned = None

    def mark_first_copy(self, source: Manifest, listed: Mapping[str, int]) -> None:
        """Mark a folder without a manifest as a replica's, before any object is copied.

        `source` is the version to copy; `listed` has the objects already in the folder and their sizes.
        """
        if self.pinned is None and not self._is_parked:
            marker = FirstCopy.of_manifest(source, self._following.name, self._following.source, listed)
            put_marker(self._log.store, self.place, marker, self._log.retry)

    def mirror(self, source: Manifest, *, resync: bool = False) -> Manifest:
        """Commit `source` to the replica; it was loaded after the claim, and all its objects are in the folder.

        Commits nothing if the replica already has it. Raises `Fenced`, `ReplicaDiverged`, `ResyncRequired` (see
        `edits_replica.require_follows`; `resync` accepts them), `FormatTooNew`, `ManifestLost`, and `CommitUnknown`:
        retry with the same source.
        """
        assert source is not self._claimed, "load the source's manifest again after the claim"
        require_writable(source)
        assert not self._is_parked
        if self.pinned is None:
            self.pinned = self._create(source)
            return self.pinned.manifest
        manifest = self.pinned.manifest
        if edits.same_content(manifest, source):
            return manifest
        key = (source.log_id, source.log_version, source.version, resync)
        if self._mirroring[0] != key:
            self._mirroring = (key, set())
        return self._commit(edits.mirror(self._token, source, resync=resync), self._mirroring[1])

    def stamp(self) -> Manifest:
        """Fill in missing times of replaced objects; their delay begins then."""
        manifest = self._manifest()
        if all(r.unlinked_at_ms != UNSTAMPED for r in manifest.replaced):
            return manifest
        return self._commit(edits.stamp(self._token))

    def forget(self, names: Iterable[str]) -> Manifest:
        """Remove deleted objects from the manifest's `replaced`."""
        return self._commit(edits.forget(self._token, names))

    def promote(self, source: Manifest | None = None) -> Manifest:
        """Make the replica an independent log, which continues the source's log with a new log id; the session ends.

        `source`, the source's manifest after its writers were fenced, proves that no record is left behind: raises
        `ReplicaDiverged` if the source has more. Raises `Fenced`, `ManifestLost`, and `CommitUnknown`: retry the call.
        """
        self._manifest()
        self._log_id = self._log_id or new_log_id(self._log.retry.random)
        listed = self._log.listed()
        self._drop_marker(listed)
        edit = edits.promote(self._token, self._log_id, epochs_above=newest_epoch(listed), source=source)
        assert self.pinned is not None
        try:
            self.pinned = self._log.committer.commit(self.pinned, edit, None)
        except Fenced:
            pinned = self._log.load()
            if pinned is None or pinned.manifest.log_id != self._log_id:
                raise
            self.pinned = pinned  # this session's promotion landed, and only the answer was lost
        return self.pinned.manifest

    def _drop_marker(self, listed: Mapping[str, int]) -> None:
        """Delete a first copy's marker that a killed process has left: after a promotion no replicator will do it.

        Next to a manifest the marker has no meaning, so a store's refusal does not fail the promotion.
        """
        if FIRST_COPY_NAME in listed:
            with suppress(StoreError):
                self._log.store.delete(self.place.key(FIRST_COPY_NAME))

    def _manifest(self) -> Manifest:
        if self.pinned is None:
            raise ReplicaDiverged(
                self.place.topic,
                self.place.partition,
                "the replica has not received any data yet",
                hint="replicate once first",
            )
        return self.pinned.manifest

    def _commit(self, edit: Edit, tried: set[str] | None = None) -> Manifest:
        self._manifest()
        assert self.pinned is not None
        self.pinned = self._log.committer.commit(self.pinned, edit, _REPLICATOR, tried=tried)
        return self.pinned.manifest

    def _create(self, source: Manifest) -> Pinned:
        """Create the first manifest, with a commit id like any other, so that a lost answer can be resolved."""
        _, tried = self._mirroring
        if self._found_epoch > source.last_epoch:
            raise ReplicaDiverged(
                self.place.topic,
                self.place.partition,
                f"`{self.place.folder}` contains objects of epoch {self._found_epoch}, but the source's last epoch is "
                f"{source.last_epoch}: the objects belong to another log",
                hint="give the replica an empty folder",
            )
        commit_id = new_commit_id(self._log.retry.random)
        tried.add(commit_id)
        manifest = edits.first_mirror(source, self._following, commit_id, self._token.claim_id)
        data = encode_manifest(manifest)
        log, key = self._log, self.place.manifest_key
        try:
            result = log.retry.repeat(lambda: log.store.put(key, data, Create()))
        except AlreadyExists:
            return self._created(tried)
        except (StoreUnavailable, ConditionUndecided) as error:
            raise CommitUnknown(
                self.place.topic,
                self.place.partition,
                f"the store did not confirm the first commit of `{key}`: {error.message}",
                hint="the commit may have landed; it can be retried",
            ) from error
        return Pinned(manifest, result.etag, result.date_ms)

    def _created(self, tried: set[str]) -> Pinned:
        pinned = self._log.load()
        state = None if pinned is None else pinned.manifest.replica
        if pinned is None or state is None or state.commit_id not in tried:
            raise Fenced(self.place.topic, self.place.partition, "another replicator has written the first manifest")
        return pinned
