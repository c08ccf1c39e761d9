"""Decide when a replica's garbage is collected, and with which claim (`collect` decides what is garbage).

Replaced objects are collected when the first of them is due. Orphans are searched for after each claim, because the
previous owner of the claim may have left some, and every `collect_ms`. A process without a claim takes one for chores
only if there seems to be garbage: a claim is a commit, and ends that of another replicator.
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
from keyfold_replicator.registry.link import ReplicaSettings
from keyfold_replicator.rounds.claim import ReplicaClaim
from keyfold_replicator.rounds.gc import delete_orphans, delete_replaced, due_in_ms, may_have_orphans
from keyfold_replicator.state.totals import RoundTotals, Tally

AGAIN_S: Final = 60.0
"""Failed chores are retried after this time, whatever the partition's own backoff is."""


class GcSchedule:
    """The chores of one partition. For one thread at a time, and never while a round copies."""

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

    def expect(self, replica: Pinned) -> None:
        """Note a version of the replica: collect when the objects that it has replaced are due."""
        wait_ms = due_in_ms(replica, self._settings.file_delete_delay_ms)
        self._replaced_at_s = None if wait_ms is None else self._clock.monotonic_s() + wait_ms / 1000

    def claimed(self) -> None:
        """Note that the partition was claimed: search for what other replicators have left."""
        self._orphans_at_s = self._clock.monotonic_s()

    def do(self, moved: Callable[[], None]) -> KeyfoldError | None:
        """Do what is due. Retry failures later, and return their error.

        `moved` is called when the replica's ETag has changed, or may have.
        """
        now_s = self._clock.monotonic_s()
        is_replaced_due = self._replaced_at_s is not None and now_s >= self._replaced_at_s
        are_orphans_due = now_s >= self._orphans_at_s
        if not is_replaced_due and not are_orphans_due:
            return None
        try:
            self._claim.unpark()
            if is_replaced_due:
                self._collect_replaced()
            if are_orphans_due:
                self._collect_orphans()
        except KeyfoldError as error:
            self._claim.drop()
            self._replaced_at_s = now_s + AGAIN_S if is_replaced_due else self._replaced_at_s
            self._orphans_at_s = now_s + AGAIN_S if are_orphans_due else self._orphans_at_s
            # Another replicator is there: these are its chores now.
            return None if isinstance(error, CommitRefused) else error
        finally:
            moved()
        return None

    def _collect_replaced(self) -> None:
        session = self._session()
        self._count(delete_replaced(self._claim.log.store, session, self._settings.file_delete_delay_ms))
        assert session.pinned is not None
        self.expect(session.pinned)

    def _collect_orphans(self) -> None:
        if self._claim.session is not None or may_have_orphans(self._claim.log.store, self._claim.log):
            self._count(delete_orphans(self._claim.log.store, self._session(), self._source))
        self._orphans_at_s = self._clock.monotonic_s() + self._settings.collect_ms / 1000

    def _session(self) -> ReplicaSession:
        if self._claim.session is not None:
            return self._claim.session
        session = self._claim.take(self._source.load().manifest)
        self.claimed()
        return session

    def _count(self, swept: CollectedGarbage) -> None:
        orphans = len(swept.orphans) + len(swept.uploads)
        self._tally.add(RoundTotals(objects_deleted=len(swept.replaced), orphans_deleted=orphans))
