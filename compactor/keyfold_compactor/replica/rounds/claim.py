"""A replicator's claim on one partition of a replica, and what is known of the replica by it.

A claim is kept from round to round: taking it is a commit. Between rounds it lets go of the manifest, which may be
large, and keeps the epoch. After an error of a commit it is dropped, because what it knows may be wrong then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from keyfold.clock import Clock
from keyfold.errors import CommitRefused, ManifestLost, ObjectNotFound
from keyfold.log.commit import Pinned
from keyfold.log.manifest import Manifest
from keyfold.log.replica_log import ReplicaLog, ReplicaSession
from keyfold_compactor.replica.desk.link import Link, Side


@dataclass(slots=True)
class Speaking:
    """With which side a round is speaking, for the errors that do not say it."""

    side: Side


class Claim:
    """One partition's. For one thread at a time."""

    def __init__(
        self,
        link: Link,
        topic: str,
        partition: int,
        speaking: Speaking,
        *,
        clock: Clock,
        random: Random,
        patience_s: float,
    ) -> None:
        self._link = link
        self._speaking = speaking
        place = link.replica.place(topic, partition)
        self.log = ReplicaLog(link.replica.store, place, clock=clock, random=random, patience_s=patience_s)
        self.session: ReplicaSession | None = None
        self._seen_etag = ""

    @property
    def held(self) -> ReplicaSession:
        """The session of a partition that is claimed."""
        assert self.session is not None
        return self.session

    @property
    def etag(self) -> str:
        """What the newest manifest that was seen is called; empty where none was."""
        if self.session is not None and self.session.pinned is not None:
            self._seen_etag = self.session.pinned.etag
        return self._seen_etag

    def look(self) -> Pinned | None:
        """What the replica has now, claimed or not; None before the first commit."""
        self._speaking.side = self._link.replica
        if self.session is not None:
            try:
                self._refresh(self.session)
            except CommitRefused:
                self.session = None  # another replicator was there, or it was promoted: look as anybody does
            else:
                return self.session.pinned
        pinned = self.log.load()
        self._seen_etag = "" if pinned is None else pinned.etag
        return pinned

    def take(self, source: Manifest) -> ReplicaSession:
        """Claim the partition, for one commit. The source's manifest must be read again after it."""
        self._speaking.side = self._link.replica
        # The session remembers what it was claimed for: not the segments of a log that is in sync for weeks.
        claimed = replace(source, segments=(), replaced=())
        self.session = self.log.claim(claimed, name=self._link.name, source_url=self._link.source.url)
        return self.session

    def drop(self) -> None:
        """Forget it; the next one who needs a claim takes a new one."""
        self.session = None

    def require(self) -> None:
        """Raise `Fenced` where another replicator has claimed. One HEAD."""
        self._speaking.side = self._link.replica
        key = self.log.place.manifest_key
        try:
            etag = self.log.patience.repeat(lambda: self._link.replica.store.head(key)).etag
        except ObjectNotFound:
            etag = ""
        if etag != self.etag:
            self.held.refresh()

    def park(self) -> None:
        """Let go of the manifest until the next round."""
        if self.session is not None and self.session.pinned is not None:
            self._seen_etag = self.session.pinned.etag
            self.session.park()

    def unpark(self) -> None:
        """Have the manifest again. Raises `Fenced` where the claim was lost meanwhile."""
        if self.session is not None and self.session.manifest is None:
            self._speaking.side = self._link.replica
            self._refresh(self.session)

    def _refresh(self, session: ReplicaSession) -> None:
        """Read it again. One that is gone ends the claim: the next round finds nothing and begins as the first did."""
        try:
            session.refresh()
        except ManifestLost as error:
            error.hint = "the next round writes a new manifest from the objects that are there"
            self.session = None
            raise
