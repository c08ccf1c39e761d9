"""Detect changes without reading a manifest, by the ETags of the last round.

An ETag of a manifest never comes back, because each commit has its own id. So a HEAD of the source's manifest proves
that a partition is still in sync. The replica's is requested less often, because only its replicator writes there.
"""

from __future__ import annotations

from typing import Final

from keyfold.errors import ObjectNotFound
from keyfold.runtime.clock import Clock
from keyfold.runtime.retry import RetryPolicy
from keyfold_replicator.registry.replica_pair import LogDirectory

REPLICA_CHECK_S: Final = 60.0


class ChangeDetector:
    """The ETags of one partition's manifests when both sides were equal."""

    def __init__(
        self, source: LogDirectory, replica: LogDirectory, topic: str, partition: int, retry: RetryPolicy
    ) -> None:
        self._source = source
        self._replica = replica
        self._source_key = source.place(topic, partition).manifest_key
        self._replica_key = replica.place(topic, partition).manifest_key
        self._retry = retry
        self._clock: Clock = retry.clock
        self._etags: tuple[str, str] | None = None
        self._replica_at_s = 0.0
        self.side = source

    def note_equal(self, source_etag: str, replica_etag: str) -> None:
        """Remember the ETags under which both sides were read and are equal."""
        self._etags = (source_etag, replica_etag)
        self._replica_at_s = self._clock.monotonic_s() + REPLICA_CHECK_S

    def note_replica_etag(self, replica_etag: str) -> None:
        """Remember another ETag of the replica, with the same content."""
        if self._etags is not None:
            self._etags = (self._etags[0], replica_etag)

    def forget(self) -> None:
        """Forget both ETags."""
        self._etags = None

    def is_unchanged(self) -> bool:
        """Whether both sides are unchanged. Raise what the stores raise when retries run out."""
        if self._etags is None:
            return False
        self.side = self._source
        if self._etag(self._source, self._source_key) != self._etags[0]:
            return False
        if self._clock.monotonic_s() < self._replica_at_s:
            return True
        self.side = self._replica
        if self._etag(self._replica, self._replica_key) != self._etags[1]:
            return False
        self._replica_at_s = self._clock.monotonic_s() + REPLICA_CHECK_S
        return True

    def _etag(self, side: LogDirectory, key: str) -> str | None:
        try:
            return self._retry.repeat(lambda: side.store.head(key)).etag
        except ObjectNotFound:
            return None  # reading it says what that means
