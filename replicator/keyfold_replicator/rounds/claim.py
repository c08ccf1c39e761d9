"""A replicator's claim on one partition of a replica, and the replica's manifest.

A claim is kept from round to round, because making one is a commit. Between rounds it keeps the epoch, but drops the
manifest, which may be large. After a failed commit the claim is dropped, because its manifest may be out of date.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from keyfold.errors import CommitRefused, ManifestLost, ObjectNotFound
from keyfold.log.commit import Pinned
from keyfold.log.manifest import Manifest
from keyfold.log.replica_log import ReplicaLog, ReplicaSession
from keyfold.runtime.clock import Clock
from keyfold_replicator.registry.replica_pair import LogDirectory, ReplicaPair


@dataclass(slots=True)
class CurrentSide:
    """The side of a round's current request, for errors that do not name it."""

    side: LogDirectory


class ReplicaClaim:
    """The claim on one partition. For one thread at a time."""

    def __init__(
        self,
        pair: ReplicaPair,
        topic: str,
        partition: int,
        current_side: CurrentSide,
        *,
        clock: Clock,
        random: Random,
        retry_timeout_s: float,
    ) -> None:
        self._pair = pair
        self._current_side = current_side
        place = pair.replica.place(topic, partition)
        self.log = ReplicaLog(pair.replica.store, place, clock=clock, random=random, retry_timeout_s=retry_timeout_s)
        self.session: ReplicaSession | None = None
        self._last_etag = ""

    @property
    def held(self) -> ReplicaSession:
        """The session of a claimed partition."""
        assert self.session is not None
        return self.session

    @property
    def etag(self) -> str:
        """The ETag of the newest manifest that was read; empty if there was none."""
        if self.session is not None and self.session.pinned is not None:
            self._last_etag = self.session.pinned.etag
        return self._last_etag

    def load_replica(self) -> Pinned | None:
        """Return what the replica has now, claimed or not; None before the first commit."""
        self._current_side.side = self._pair.replica
        if self.session is not None:
            try:
                self._refresh(self.session)
            except CommitRefused:
                self.session = None  # another replicator was there, or it was promoted: read it without a claim
            else:
                return self.session.pinned
        pinned = self.log.load()
        self._last_etag = "" if pinned is None else pinned.etag
        return pinned

    def acquire(self, source: Manifest) -> ReplicaSession:
        """Claim the partition. The source's manifest must be read again afterwards."""
        self._current_side.side = self._pair.replica
        # The session keeps this manifest, so leave out the segments: a log may be in sync for weeks.
        claimed = replace(source, segments=(), replaced=())
        self.session = self.log.claim(claimed, name=self._pair.name, source_url=self._pair.source.url)
        return self.session

    def drop(self) -> None:
        """Drop the claim; the next round that needs one makes a new one."""
        self.session = None

    def require_held(self) -> None:
        """Raise `Fenced` if another replicator has claimed the partition. One HEAD."""
        self._current_side.side = self._pair.replica
        key = self.log.place.manifest_key
        try:
            etag = self.log.retry.repeat(lambda: self._pair.replica.store.head(key)).etag
        except ObjectNotFound:
            etag = ""
        if etag != self.etag:
            self.held.refresh()

    def park(self) -> None:
        """Drop the manifest until the next round."""
        if self.session is not None and self.session.pinned is not None:
            self._last_etag = self.session.pinned.etag
            self.session.park()

    def unpark(self) -> None:
        """Read the manifest again. Raise `Fenced` if the claim has been lost."""
        if self.session is not None and self.session.manifest is None:
            self._current_side.side = self._pair.replica
            self._refresh(self.session)

    def _refresh(self, session: ReplicaSession) -> None:
        """Read the manifest again. If it is gone, end the claim: the next round starts like the first one."""
        try:
            session.refresh()
        except ManifestLost as error:
            error.hint = "the next round writes a new manifest from the objects that are there"
            self.session = None
            raise
