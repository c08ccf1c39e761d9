"""The rounds of one partition: copy the source's newest version to the replica, objects first, then one commit.

    compare     read the source's manifest, then the replica's; if they are equal, write nothing on either side
    rule        check that this version may go there (`keyfold_replicator.registry.compaction_rule`)
    claim       claim the replica's epoch, once for all rounds of this process, then read the source's manifest AGAIN
    hold        hold the version at the source, if the copy is large or objects disappeared during the round before
    mark        before the first commit: mark the folder as a replica with an unfinished first copy
    copy        copy archived schemas, then the missing objects, several at a time
    commit      write the replica's manifest: this version of the source, if the epoch is still ours
    cursor      record at the source up to which offset the replica has everything, and remove the hold
    gc          collect garbage at the replica (`keyfold_replicator.rounds.gc_schedule`)

A round may end anywhere. The next round lists the replica's folder and finds the objects that were copied. A commit
without its cursor is in sync, and the next round repairs the cursor. Garbage collection relies on the order of the
claim and the second read: every object that a round relies on at the replica is named by a version of the source that
was read after the claim.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from keyfold.errors import Corrupt, KeyfoldError, ObjectNotFound, ReplicaError
from keyfold.log.commit import Pinned
from keyfold.log.edits_replica import require_follows, same_content
from keyfold.log.manifest import NO_VERSION, Manifest, was_compacted
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.replicas.documents import Enablement
from keyfold.runtime.clock import Clock
from keyfold_replicator.copy.jobs import CopyMethod, TransferStopped
from keyfold_replicator.copy.schemas import SchemaCopier
from keyfold_replicator.copy.transfer import Transfer
from keyfold_replicator.registry.compaction_rule import refusal
from keyfold_replicator.registry.replica_pair import LogDirectory, ReplicaPair, ReplicaSettings
from keyfold_replicator.rounds.change_detector import ChangeDetector
from keyfold_replicator.rounds.claim import CurrentSide, ReplicaClaim
from keyfold_replicator.rounds.gc_schedule import GcSchedule
from keyfold_replicator.rounds.holds import SourceHold
from keyfold_replicator.rounds.plan import CopyPlan, copy_plan
from keyfold_replicator.rounds.slots import RoundSlots
from keyfold_replicator.state.totals import RoundTotals, Tally

LOST_PLANS_MAX: Final = 3
"""A round gives up after this many plans whose objects disappeared; with a hold it should not happen once."""

CLAIM_CHECK_S: Final = 30.0
"""How often a copy checks whether another replicator has taken over."""

DAMAGE_RETRY_S: Final = 1800.0
"""A version with damaged objects is copied again after this time, or when the source has another version."""


@dataclass(frozen=True, slots=True)
class RoundResources:
    """What the rounds of all partitions share. `is_wanted` is called between objects; False interrupts a copy."""

    slots: RoundSlots
    transfer: Transfer
    schema_copier: SchemaCopier
    tally: Tally
    enablement: Callable[[], Enablement]
    is_wanted: Callable[[], bool]
    clock: Clock


@dataclass(frozen=True, slots=True)
class RoundProgress:
    """Both sides as a round knows them; `left_bytes` remain to be copied, -1 before that is known."""

    source: Pinned
    replica: Manifest | None
    left_bytes: int = -1


ReportProgress = Callable[[RoundProgress], None]


@dataclass(frozen=True, slots=True)
class RoundResult:
    """How a round ended. `progress` is None if nothing was new; `is_settled`: the source had nothing newer at the end.

    `gc_error`: the replica has everything, but garbage could not be deleted there.
    """

    progress: RoundProgress | None = None
    is_settled: bool = True
    gc_error: KeyfoldError | None = None


class PartitionRounds:
    """One partition. For one thread at a time; the claim is kept from round to round."""

    def __init__(
        self,
        pair: ReplicaPair,
        topic: str,
        partition: int,
        settings: ReplicaSettings,
        resources: RoundResources,
        random: Random,
    ) -> None:
        self._pair = pair
        self._settings = settings
        self._resources = resources
        self._random = random
        self._current_side = CurrentSide(pair.source)
        self._place = pair.source.place(topic, partition)
        self._source = self._source_log()
        self._claim = ReplicaClaim(
            pair,
            topic,
            partition,
            self._current_side,
            clock=resources.clock,
            random=random,
            retry_timeout_s=settings.retry_timeout_s,
        )
        self._gc_schedule = GcSchedule(
            self._claim, self._source, settings, clock=resources.clock, tally=resources.tally
        )
        self._change_detector = ChangeDetector(pair.source, pair.replica, topic, partition, self._source.retry)
        self._has_leftovers = True
        self._damage: tuple[str, float, Corrupt | None] = ("", 0.0, None)

    @property
    def side(self) -> LogDirectory:
        """The side that the last request went to."""
        return self._current_side.side

    @property
    def place(self) -> Place:
        """The partition, at the source."""
        return self._place

    def run_round(self, report: ReportProgress = lambda _progress: None, *, resync: bool = False) -> RoundResult:
        """Do one round. Call `report` with both manifests, and as the copy proceeds.

        Raise `CompactionNotEnabled`, `ReplicaFormatTooOld`, `ResyncRequired`, `Fenced`, and what logs and stores raise;
        `side` is the side that the error is about. Call it again after any of them.
        """
        with self._resources.slots.held_slot():
            return self._run_in_slot(report, resync=resync)

    def _run_in_slot(self, report: ReportProgress, *, resync: bool) -> RoundResult:
        self._require_wanted()
        self._resources.tally.add(RoundTotals(rounds=1))
        try:
            ended = self._replicate(report, resync=resync)
        except BaseException as error:
            self._change_detector.forget()
            self._has_leftovers = True
            if isinstance(error, ReplicaError):
                self._collect_garbage()  # a blocked replica may wait for exactly this
            raise
        ended = replace(ended, gc_error=self._collect_garbage())
        self._claim.park()
        return ended

    def _replicate(self, report: ReportProgress, *, resync: bool) -> RoundResult:
        if not resync and self._is_unchanged():
            return RoundResult()
        # The source is read last: its version then is not older than the one that the replica has.
        replica = self._load_replica()
        source = self._load_source()
        if not _is_same(source.manifest, replica):
            report(RoundProgress(source, replica))
            source = self._bring_up_to_date(source, replica, report, resync=resync)
            replica = self._claim.held.manifest
        assert replica is not None
        source = self._move_cursor(source, replica)
        is_settled = _is_same(source.manifest, replica)
        if is_settled:
            self._change_detector.note_equal(source.etag, self._claim.etag)
        return RoundResult(RoundProgress(source, replica), is_settled)

    # Reading both sides

    def _is_unchanged(self) -> bool:
        try:
            return self._change_detector.is_unchanged()
        finally:
            self._current_side.side = self._change_detector.side

    def _load_source(self) -> Pinned:
        self._current_side.side = self._pair.source
        return self._source.load()

    def _load_replica(self) -> Manifest | None:
        pinned = self._claim.load_replica()
        if pinned is None:
            return None
        self._gc_schedule.expect_replaced(pinned)
        return pinned.manifest

    # Bringing the replica up to date

    def _bring_up_to_date(
        self, source: Pinned, replica: Manifest | None, report: ReportProgress, *, resync: bool
    ) -> Pinned:
        """Bring the replica up to date; return the source's version that it then has."""
        plans_lost = 0
        hold: SourceHold | None = None
        while True:
            self._require_allowed(source.manifest, replica, resync=resync)
            if self._claim.session is None:
                replica = self._acquire_claim(source.manifest)
                source = self._load_source()  # from here on the round uses a manifest that was read after the claim
                continue
            if _is_same(source.manifest, self._claim.session.manifest):
                return source  # another replicator had done it before the claim
            self._require_sound(source)
            found = self._plan(source.manifest)
            if hold is None and found.jobs and (plans_lost or found.size_bytes >= self._settings.pin_min_bytes):
                hold = self._hold(source)
                source = hold.pinned
                continue
            try:
                self._copy(found, source, hold, report)
            except ObjectNotFound as error:
                plans_lost += 1
                source, hold = self._plan_again(error, plans_lost), None
                continue
            except Corrupt as error:
                self._damage = (source.etag, self._now_s() + DAMAGE_RETRY_S, error)
                raise
            return self._commit(source, resync=resync)

    def _require_sound(self, source: Pinned) -> None:
        """Raise the recent error of this very version again: finding it again would cost all its bytes."""
        etag, until_s, error = self._damage
        if error is not None and etag == source.etag and self._now_s() < until_s:
            raise error

    def _require_allowed(self, source: Manifest, replica: Manifest | None, *, resync: bool) -> None:
        """Raise an error if this version may not go to the replica."""
        self._current_side.side = self._pair.replica
        if replica is not None and replica.replica is not None:
            require_follows(replica, source, resync=resync)  # what the commit would refuse, before anything is sent
        if was_compacted(source):
            named = f"{self._pair.source.url} {self._pair.name}"
            refused = refusal(source, self._resources.enablement(), self._pair.replica.url, named)
            if refused is not None:
                raise refused

    def _acquire_claim(self, source: Manifest) -> Manifest | None:
        session = self._claim.acquire(source)
        self._has_leftovers = True
        self._gc_schedule.note_claimed()
        return session.manifest

    def _plan(self, source: Manifest) -> CopyPlan:
        there = self._claim.held.manifest
        found = copy_plan(self._place, source, there)
        if not found.jobs or not self._has_leftovers:
            return found
        self._current_side.side = self._pair.replica
        found = copy_plan(self._place, source, there, self._claim.log.listed())
        self._resources.tally.add(RoundTotals(objects_found=found.left_out))
        return found

    def _hold(self, source: Pinned) -> SourceHold:
        self._current_side.side = self._pair.source
        self._resources.tally.add(RoundTotals(pins=1))
        return SourceHold(self._source_log(), self._pair.hold_name, source, self._settings.pin_ms)

    def _copy(self, found: CopyPlan, source: Pinned, hold: SourceHold | None, report: ReportProgress) -> None:
        left_bytes = found.size_bytes
        report(RoundProgress(source, self._claim.held.manifest, left_bytes))
        if not found.jobs:
            return
        self._current_side.side = self._pair.replica
        self._claim.held.mark_first_copy(source.manifest, found.listed)
        self._resources.schema_copier.copy_missing()
        if hold is None:
            self._send(found, source, report)
            return
        with hold:
            self._send(found, source, report)

    def _send(self, found: CopyPlan, source: Pinned, report: ReportProgress) -> None:
        left_bytes, checked_at_s = found.size_bytes, self._now_s()
        with self._resources.slots.released_slot(), closing(self._resources.transfer.copy(found.jobs)) as results:
            for result in results:
                self._resources.tally.add(_counted(result.way, result.sent_bytes, result.job.size_bytes))
                left_bytes -= result.job.size_bytes
                report(RoundProgress(source, self._claim.held.manifest, left_bytes))
                self._require_wanted()
                if self._now_s() >= checked_at_s + CLAIM_CHECK_S:
                    checked_at_s = self._now_s()
                    self._claim.require_held()

    def _require_wanted(self) -> None:
        if not self._resources.is_wanted():
            raise TransferStopped(f"{self._place}: the replica was paused, or the process is stopping")

    def _plan_again(self, error: ObjectNotFound, plans_lost: int) -> Pinned:
        """Return the source as it is now, after an object disappeared before its copy, if that explains it."""
        self._resources.tally.add(RoundTotals(plans_repeated=1))
        self._has_leftovers = True
        source = self._load_source()
        name = error.key.removeprefix(self._place.folder)
        if name in source.manifest.object_names():
            raise Corrupt(
                self._place.topic,
                self._place.partition,
                f"the source's manifest names {name}, which does not exist",
                hint=f"run `keyfold log verify {self._pair.source.url} {self._place.topic}`",
            ) from error
        if plans_lost >= LOST_PLANS_MAX:
            raise error
        return source

    def _commit(self, source: Pinned, *, resync: bool) -> Pinned:
        self._current_side.side = self._pair.replica
        session = self._claim.held
        # After any failure the session's knowledge may be wrong, because the commit may have landed anyway.
        self._claim.drop()
        session.mirror(source.manifest, resync=resync)
        self._claim.session = session
        self._resources.tally.add(RoundTotals(commits=1))
        self._has_leftovers = False
        assert session.pinned is not None
        self._gc_schedule.expect_replaced(session.pinned)
        return source

    # After the commit

    def _move_cursor(self, source: Pinned, replica: Manifest) -> Pinned:
        """Record at the source what the replica has, unless it is recorded; return the source's version after that."""
        held = source.manifest.hold(self._pair.hold_name)
        if held is not None and held.version == NO_VERSION and held.received_to >= replica.next_offset:
            return source
        self._current_side.side = self._pair.source
        return self._source.hold(self._pair.hold_name, None, received_to=replica.next_offset, pinned=source)

    def _collect_garbage(self) -> KeyfoldError | None:
        self._current_side.side = self._pair.replica
        return self._gc_schedule.run_due(lambda: self._change_detector.note_replica_etag(self._claim.etag))

    def _source_log(self) -> PartitionLog:
        return PartitionLog(
            self._pair.source.store,
            self._place,
            clock=self._resources.clock,
            random=self._random,
            retry_timeout_s=self._settings.retry_timeout_s,
        )

    def _now_s(self) -> float:
        return self._resources.clock.monotonic_s()


def _is_same(source: Manifest, replica: Manifest | None) -> bool:
    return replica is not None and same_content(source, replica)


def _counted(way: CopyMethod, sent_bytes: int, size_bytes: int) -> RoundTotals:
    if way is CopyMethod.SENT:
        return RoundTotals(objects_sent=1, sent_bytes=sent_bytes)
    if way is CopyMethod.COPIED_BY_STORE:
        return RoundTotals(objects_copied=1, copied_bytes=size_bytes)
    return RoundTotals(objects_found=1)
