"""One partition between rounds: its published state, when it is due again, and what its errors mean.

A round that ends unsettled (the source has changed meanwhile) is followed by the next at once, a few times; then other
partitions get the thread. Every error becomes a state and none leaves this module, so a partition delays no other.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

import structlog

from keyfold.log.manifest import UNSTAMPED
from keyfold.runtime.clock import Clock
from keyfold_replicator.copy.jobs import TransferStopped
from keyfold_replicator.registry.replica_pair import ReplicaSettings
from keyfold_replicator.rounds.round import PartitionRounds, RoundProgress, RoundResult
from keyfold_replicator.rounds.state_table import StateTable
from keyfold_replicator.state.figures import figures
from keyfold_replicator.state.states import PartitionState, RoundFailure, SyncState, failure_of
from keyfold_replicator.state.totals import RoundTotals, Tally

ROUNDS_IN_A_ROW: Final = 4

log = structlog.get_logger(__name__)


class PartitionWorker:
    """One partition of a `Runner`. For one thread at a time."""

    def __init__(
        self,
        rounds: PartitionRounds,
        state_table: StateTable,
        settings: ReplicaSettings,
        *,
        hold_name: str,
        tally: Tally,
        clock: Clock,
        random: Random,
    ) -> None:
        self._rounds = rounds
        self._state_table = state_table
        self._settings = settings
        self._hold_name = hold_name
        self._tally = tally
        self._clock = clock
        self._random = random
        self._figures_of = ""
        self.due_at_s = clock.monotonic_s()

    @property
    def state(self) -> PartitionState:
        """The partition's state."""
        return self._state_table.state(self._rounds.place)

    def run_rounds(self, *, resync: bool = False) -> None:
        """Do rounds until nothing is new, or one fails."""
        for _ in range(ROUNDS_IN_A_ROW):
            try:
                result = self._rounds.run_round(self._report_progress, resync=resync)
            except TransferStopped:
                self._stopped()
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this partition's state and nobody else's
                self._failed(error)
                return
            self._succeeded(result)
            if result.is_settled:
                return

    def _report_progress(self, progress: RoundProgress) -> None:
        """Publish a round in progress: its figures, and how much of it is left."""
        is_copying = progress.left_bytes >= 0
        self._publish_figures(progress)

        def change(state: PartitionState) -> PartitionState:
            if not is_copying:
                return state if state.has_failed else replace(state, state=SyncState.PENDING)
            pending = replace(state.pending, bytes=progress.left_bytes)
            return replace(state, state=SyncState.COPYING, pending=pending)

        self._state_table.change(self._rounds.place, change)

    def _publish_figures(self, progress: RoundProgress) -> None:
        source, replica = progress.source.manifest, progress.replica
        key = f"{progress.source.etag} {0 if replica is None else replica.version}"
        if key == self._figures_of:
            return  # to go through all segments again after each object would be slow
        self._figures_of = key
        hold = source.hold(self._hold_name)
        found = figures(progress.source, replica, received_at_ms=UNSTAMPED if hold is None else hold.received_at_ms)
        has = None if replica is None else replica.replica

        def change(state: PartitionState) -> PartitionState:
            return replace(
                state,
                pending=found.pending,
                lag=found.lag,
                source_version=source.version,
                source_next_offset=source.next_offset,
                replica_version=0 if has is None else has.source_version,
                replica_next_offset=state.replica_next_offset if replica is None else replica.next_offset,
            )

        self._state_table.change(self._rounds.place, change)

    def _succeeded(self, result: RoundResult) -> None:
        if result.progress is not None:
            self._publish_figures(result.progress)
        wait_ms = self._settings.poll_ms if result.is_settled else 0
        now_ms = self._clock.now_ms()
        self.due_at_s = self._clock.monotonic_s() + wait_ms / 1000
        before = self.state
        after = self._state_table.change(
            self._rounds.place, lambda state: state.succeeded(now_ms=now_ms, next_attempt_ms=now_ms + wait_ms)
        )
        if not result.is_settled:
            self._state_table.change(self._rounds.place, lambda state: replace(state, state=SyncState.PENDING))
        if before.has_failed:
            log.info("replication resumed", place=str(after.place), after=before.code, attempts=before.attempts)
        if result.gc_error is not None:
            self._in_sync_but(failure_of(result.gc_error, self._rounds.side.host))

    def _in_sync_but(self, found: RoundFailure) -> None:
        """Publish an error although the replica has everything: garbage there could not be deleted."""
        self._tally.add(RoundTotals(failures={found.code: 1}))
        log.warning("deletion at replica failed", place=str(self._rounds.place), code=found.code, error=found.message)
        self._state_table.change(
            self._rounds.place,
            lambda s: replace(s, code=found.code, host=found.host, message=found.message, hint=found.hint),
        )

    def _stopped(self) -> None:
        """Publish that the process is stopping. Nothing is wrong; the next process finds what was copied."""
        self._state_table.change(self._rounds.place, lambda state: replace(state, state=SyncState.PENDING))

    def _failed(self, error: Exception) -> None:
        found = failure_of(error, self._rounds.side.host)
        self._tally.add(RoundTotals(failures={found.code: 1}))
        before = self.state
        backoff_ms = self._settings.retry.backoff_ms(before.attempts + 1, found, self._random)
        self.due_at_s = self._clock.monotonic_s() + backoff_ms / 1000
        now_ms = self._clock.now_ms()
        self._state_table.change(
            self._rounds.place, lambda state: state.failed(found, now_ms=now_ms, backoff_ms=backoff_ms)
        )
        if found.code != before.code:  # once, not with each try of a long outage
            is_defect = found.code == "Internal"
            log.warning(
                "replication failed",
                place=str(self._rounds.place),
                state=found.state.value,
                code=found.code,
                host=found.host,
                error=found.message,
                exc_info=error if is_defect else None,
            )
