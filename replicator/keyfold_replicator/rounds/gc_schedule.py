"""Decide when a replica's garbage is collected, and with which claim (`rounds.gc` decides what is garbage).

Replaced objects are collected when the first of them is due. Orphans are searched for after each claim, because the
previous owner of the claim may have left some, and every `collect_ms`. A process without a claim makes one for garbage
only if there seems to be some: a claim is a commit, and ends that of another replicator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from keyfold.errors import CommitRefused, KeyfoldError
from keyfold.log.commit import Pinned
from keyfold.log.gc import CollectedGarbage
from keyfold.log.partition_log import PartitionLog
from keyfold.log.replica_log import ReplicaSession
from keyfold.runtime.clock import Clock
from keyfold_replicator.registry.replica_pair import ReplicaSettings
from keyfold_replicator.rounds.claim import ReplicaClaim
from keyfold_replicator.rounds.gc import delete_orphans, delete_replaced, due_in_ms, may_have_orphans
from keyfold_replicator.state.totals import RoundTotals, Tally

RETRY_S: Final = 60.0
"""A failed collection is retried after this time, whatever the partition's own backoff is."""


class GcSchedule:
    """The garbage collection of one partition. For one thread at a time, and never while a round copies."""

    def __init__(
        self, claim: ReplicaClaim, source: PartitionLog, settings: ReplicaSettings, *, clock: Clock, tally: Tally
    ) -> None:
        self._claim = claim
        self._source = source
        self._settings = settings
        self._clock = clock
        self._tally = tally
        self._replaced_at_s: float | None = None
        self._orphans_at_s = clock.monotonic_s() + settings.collect_ms / 1000

    def expect_replaced(self, replica: Pinned) -> None:
        """Schedule the deletion of the objects that this version of the replica has replaced."""
        wait_ms = due_in_ms(replica, self._settings.file_delete_delay_ms)
        self._replaced_at_s = None if wait_ms is None else self._clock.monotonic_s() + wait_ms / 1000

    def note_claimed(self) -> None:
        """Schedule a search for the orphans of other replicators, because the partition was claimed."""
        self._orphans_at_s = self._clock.monotonic_s()

    def run_due(self, replica_changed: Callable[[], None]) -> KeyfoldError | None:
        """Collect what is due. Retry failures later, and return their error.

        `replica_changed` is called when the replica's ETag has changed, or may have.
        """
        now_s = self._clock.monotonic_s()
        is_replaced_due = self._replaced_at_s is not None and now_s >= self._replaced_at_s
        are_orphans_due = now_s >= self._orphans_at_s
        if not is_replaced_due and not are_orphans_due:
            return None
        try:
            self._claim.unpark()
            if is_replaced_due:
                self._delete_replaced()
            if are_orphans_due:
                self._delete_orphans()
        except KeyfoldError as error:
            self._claim.drop()
            self._replaced_at_s = now_s + RETRY_S if is_replaced_due else self._replaced_at_s
            self._orphans_at_s = now_s + RETRY_S if are_orphans_due else self._orphans_at_s
            # Another replicator is there, and collects from now on.
            return None if isinstance(error, CommitRefused) else error
        finally:
            replica_changed()
        return None

    def _delete_replaced(self) -> None:
        session = self._session()
        self._count(delete_replaced(self._claim.log.store, session, self._settings.file_delete_delay_ms))
        assert session.pinned is not None
        self.expect_replaced(session.pinned)

    def _delete_orphans(self) -> None:
        if self._claim.session is not None or may_have_orphans(self._claim.log.store, self._claim.log):
            self._count(delete_orphans(self._claim.log.store, self._session(), self._source))
        self._orphans_at_s = self._clock.monotonic_s() + self._settings.collect_ms / 1000

    def _session(self) -> ReplicaSession:
        if self._claim.session is not None:
            return self._claim.session
        session = self._claim.acquire(self._source.load().manifest)
        self.note_claimed()
        return session

    def _count(self, swept: CollectedGarbage) -> None:
        orphans = len(swept.orphans) + len(swept.uploads)
        self._tally.add(RoundTotals(objects_deleted=len(swept.replaced), orphans_deleted=orphans))
