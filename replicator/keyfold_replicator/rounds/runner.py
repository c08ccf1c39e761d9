"""All partitions of a replica, each in rounds of its own, once or in a loop.

A failed partition waits for its own backoff and delays no other. New topics and partitions are added. The registration
(paused, topics) is read again every few seconds; while it cannot be read, the last one applies.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Self

import structlog

from keyfold.errors import CompactionNotEnabled, KeyfoldError, LogNotFound, ReplicaFormatTooOld
from keyfold.log import catalog
from keyfold.log.names import Place
from keyfold.replicas.documents import Enablement
from keyfold.runtime.clock import Clock
from keyfold.runtime.retry import RetryPolicy
from keyfold_replicator.copy.schemas import SchemaCopier
from keyfold_replicator.copy.transfer import Transfer
from keyfold_replicator.registry.replica_pair import DesiredReplication, ReplicaDocuments, ReplicaPair, ReplicaSettings
from keyfold_replicator.rounds.partition_rounds import PartitionWorker
from keyfold_replicator.rounds.round import PartitionRounds, RoundResources
from keyfold_replicator.rounds.slots import RoundSlots
from keyfold_replicator.rounds.state_table import StateTable
from keyfold_replicator.state.states import PartitionState, SyncState
from keyfold_replicator.state.totals import Tally

Publish = Callable[[Sequence[PartitionState]], None]

ROUNDS_PER_THREAD: Final = 8

RULE_CODES: Final = frozenset({CompactionNotEnabled.code, ReplicaFormatTooOld.code})

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RunnerTimings:
    """How often a runner does its other work beside the rounds."""

    check_s: float = 2.0
    """Between two reads of the registration: whether the replica is paused, and which topics it covers."""
    publish_s: float = 2.0
    """Minimum time between two publications of changed states."""
    publish_anyway_s: float = 60.0
    """Between two publications of unchanged states, which show that a replicator is running."""
    enablement_kept_s: float = 1.0
    """How long the replica's permissions are cached."""
    tick_s: float = 0.1
    """Between two checks of the rounds in progress."""


RUNNER_TIMINGS: Final = RunnerTimings()


@dataclass(frozen=True, slots=True)
class RegistrationCheck:
    """What was read beside the rounds; None for what was not read, or could not be."""

    desired: DesiredReplication | None = None
    is_gone: bool = False
    places: frozenset[Place] | None = None
    enablement: Enablement | None = None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The states of all partitions after a run. `error`: why the run failed as a whole, else empty."""

    states: tuple[PartitionState, ...] = ()
    error: str = ""
    is_paused: bool = False

    @property
    def is_in_sync(self) -> bool:
        """Whether nothing is left to copy."""
        return not self.error and all(s.state is SyncState.IN_SYNC for s in self.states)

    @property
    def failed(self) -> tuple[PartitionState, ...]:
        """Partitions whose last round ended with an error."""
        return tuple(s for s in self.states if s.has_failed)


class Runner:
    """Replicate what a registration covers. Close it; it cannot be used again after it was told to stop.

    `publish` gets all states, as often as `timings` says. `transfer` copies; without one the runner makes its own, with
    `settings.threads` threads.
    """

    def __init__(
        self,
        pair: ReplicaPair,
        documents: ReplicaDocuments,
        settings: ReplicaSettings,
        *,
        clock: Clock,
        random: Random,
        transfer: Transfer | None = None,
        tally: Tally | None = None,
        publish: Publish = lambda _states: None,
        timings: RunnerTimings = RUNNER_TIMINGS,
    ) -> None:
        self._timings = timings
        self._pair = pair
        self._documents = documents
        self._settings = settings
        self._transfer = transfer or _transfer(pair, settings, clock, random)
        self._clock = clock
        self._random = random
        self._publish_states = publish
        self.tally = Tally() if tally is None else tally
        self._retry = RetryPolicy(clock, Random(random.getrandbits(64)), timeout_s=settings.retry_timeout_s)
        self._state_table = StateTable()
        self._enablement = _CachedEnablement(documents.load_enablement, clock, timings.enablement_kept_s)
        schema_copier = SchemaCopier(pair, self._transfer, self.tally, self._retry)
        slots = RoundSlots(settings.threads)
        self._resources = RoundResources(
            slots, self._transfer, schema_copier, self.tally, self._enablement.read, self._is_wanted, clock
        )
        self._workers: dict[Place, PartitionWorker] = {}
        self._desired: DesiredReplication | None = None
        self._is_closed = False
        self._listed: frozenset[Place] = frozenset()
        self._known_enablement: Enablement | None = None
        self._checked_at_s = self._listed_at_s = self._published_at_s = float("-inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the rounds in progress soon."""
        self._is_closed = True
        self._transfer.close()

    def states(self) -> tuple[PartitionState, ...]:
        """Return the state of each partition, by topic and partition. Any thread may call it."""
        return self._state_table.states()

    # Once

    def once(
        self,
        should_stop: Callable[[], bool] = lambda: False,
        *,
        covers: Callable[[Place], bool] = lambda _place: True,
        resync: bool = False,
    ) -> RunSummary:
        """Do one round of each partition that `covers` selects, and a few more where the source continues to change.

        `resync` accepts that the source has removed tombstones which the replica never received, or is another log than
        the one that the replica follows. A paused replica is left alone. Errors of the stores are in the `RunSummary`.
        """
        try:
            desired = self._documents.load_desired()
            if desired is None:
                return RunSummary(error=f"the registration of replica {self._pair.name} has changed or was removed")
            if desired.paused:
                self._pause()
                return RunSummary(self.states(), is_paused=True)
            self._add_partitions(self._retry.repeat(lambda: self._list_partitions(desired)))
        except KeyfoldError as error:
            return RunSummary(self.states(), str(error))
        chosen = {place: worker for place, worker in self._workers.items() if covers(place)}
        self._run_all(list(chosen.values()), should_stop, resync=resync)
        self._publish()
        return RunSummary(tuple(s for s in self.states() if s.place in chosen))

    def _run_all(self, workers: Sequence[PartitionWorker], should_stop: Callable[[], bool], *, resync: bool) -> None:
        if not workers:
            return
        pool = self._pool(len(workers))
        rounds = left = {pool.submit(w.run_rounds, resync=resync) for w in workers}
        try:
            while left:
                done, left = wait(left, timeout=self._timings.tick_s)
                _require_no_defect(done)
                self._publish_if_changed()
                if left and should_stop():
                    break
        finally:
            self._shut_down_pool(pool, is_cut_short=bool(left))
        _require_no_defect(rounds)

    # In a loop

    def loop(self, stop: threading.Event) -> None:
        """Do rounds until `stop`, or until the registration is removed or names another replica."""
        under_way: dict[Place, Future[None]] = {}
        pool = self._pool()
        # A thread of its own: the registration is read however long rounds take.
        checker = ThreadPoolExecutor(1, "keyfold-replica-check")
        checking: Future[RegistrationCheck] | None = None
        try:
            while not stop.is_set():
                for place in [p for p, future in under_way.items() if future.done()]:
                    _require_no_defect([under_way.pop(place)])
                if checking is not None and checking.done():
                    if not self._apply_check(checking.result()):
                        break
                    checking = None
                if checking is None and self._clock.monotonic_s() >= self._checked_at_s + self._timings.check_s:
                    self._checked_at_s = self._clock.monotonic_s()
                    checking = checker.submit(self._check_registration)
                self._drop_uncovered(under_way)
                for place, worker in self._due_workers(under_way):
                    under_way[place] = pool.submit(worker.run_rounds)
                self._publish_if_changed()
                stop.wait(self._timings.tick_s)
        finally:
            # Also after an edit of the registration: a long copy must not delay the next runner.
            self._shut_down_pool(pool, is_cut_short=True)
            checker.shutdown(wait=True)
            self._publish()
        _require_no_defect(under_way.values())

    def _check_registration(self) -> RegistrationCheck:
        """Read the registration and list the partitions; None for what cannot be read, or need not be now."""
        try:
            desired = self._documents.load_desired()
            if desired is not None:
                for topic in {place.topic for place in tuple(self._workers)}:
                    desired.covers(topic)  # a slow expression times out here, and never in the loop
        except KeyfoldError as error:
            log.warning("reading the registration failed", replica=self._pair.name, error=str(error))
            return RegistrationCheck()
        if desired is None or desired.paused:
            return RegistrationCheck(desired, is_gone=desired is None)
        return RegistrationCheck(desired, places=self._listed_if_due(desired), enablement=self._enablement_if_missed())

    def _listed_if_due(self, desired: DesiredReplication) -> frozenset[Place] | None:
        now_s = self._clock.monotonic_s()
        if now_s < self._listed_at_s + self._settings.discover_ms / 1000:
            return None
        try:
            found = self._list_partitions(desired)
        except KeyfoldError as error:
            log.warning("listing topics failed", replica=self._pair.name, error=str(error))
            return None
        self._listed_at_s = now_s
        return found

    def _enablement_if_missed(self) -> Enablement | None:
        """Return the replica's current permissions if a partition waits for more of them."""
        if all(state.code not in RULE_CODES for state in self.states()):
            return None
        try:
            return self._enablement.read()
        except KeyfoldError:
            return None  # the rounds say so

    def _apply_check(self, check: RegistrationCheck) -> bool:
        """Apply what was found. Return False if the replica is no longer registered."""
        if check.is_gone:
            return False
        if check.desired is None:
            return True
        is_resumed = self._desired is not None and self._desired.paused and not check.desired.paused
        if self._desired is not None and self._desired.covers != check.desired.covers:
            self._listed_at_s = float("-inf")  # which topics it takes may have changed
        self._desired = check.desired
        if check.desired.paused:
            self._pause()
        if check.places is not None:
            self._add_partitions(check.places)
        is_allowed = check.enablement is not None and check.enablement != self._known_enablement
        self._known_enablement = check.enablement or self._known_enablement
        for worker in self._workers.values():
            if is_resumed or (is_allowed and worker.state.code in RULE_CODES):
                worker.due_at_s = self._clock.monotonic_s()
        return True

    def _due_workers(self, under_way: dict[Place, Future[None]]) -> list[tuple[Place, PartitionWorker]]:
        if self._desired is None or self._desired.paused:
            return []
        now_s = self._clock.monotonic_s()
        found = [(p, w) for p, w in self._workers.items() if p not in under_way and w.due_at_s <= now_s]
        return sorted(found, key=lambda pair: pair[1].due_at_s)

    def _drop_uncovered(self, under_way: dict[Place, Future[None]]) -> None:
        """Drop partitions that are no longer covered, and those whose log was removed with its folder."""
        for place in [p for p in self._workers if p not in under_way]:
            is_uncovered = self._desired is not None and not self._desired.covers(place.topic)
            # A round did not find the log, and the newest listing does not have it either.
            is_removed = place not in self._listed and self._state_table.state(place).code == LogNotFound.__name__
            if is_uncovered or is_removed:
                del self._workers[place]
                self._state_table.drop(place)

    # Both

    def _list_partitions(self, desired: DesiredReplication) -> frozenset[Place]:
        source = self._pair.source
        return frozenset(
            source.place(topic, partition)
            for topic in catalog.topics(source.store, source.topics_dir)
            if desired.covers(topic)
            for partition in catalog.partitions(source.store, source.topics_dir, topic)
        )

    def _add_partitions(self, places: frozenset[Place]) -> None:
        self._listed = places
        for place in sorted(places - self._workers.keys(), key=lambda p: (p.topic, p.partition)):
            self._workers[place] = self._make_worker(place.topic, place.partition)
            self._state_table.change(place, lambda state: state)

    def _make_worker(self, topic: str, partition: int) -> PartitionWorker:
        def new_random() -> Random:
            return Random(self._random.getrandbits(64))

        rounds = PartitionRounds(self._pair, topic, partition, self._settings, self._resources, new_random())
        return PartitionWorker(
            rounds,
            self._state_table,
            self._settings,
            hold_name=self._pair.hold_name,
            tally=self.tally,
            clock=self._clock,
            random=new_random(),
        )

    def _pool(self, at_most: int = 1 << 30) -> ThreadPoolExecutor:
        """Return threads for rounds; many of them may wait for their copies (`RoundSlots`)."""
        return ThreadPoolExecutor(min(ROUNDS_PER_THREAD * self._settings.threads, at_most), "keyfold-replica")

    def _shut_down_pool(self, pool: ThreadPoolExecutor, *, is_cut_short: bool) -> None:
        if is_cut_short:
            pool.shutdown(wait=False, cancel_futures=True)
            self.close()
        pool.shutdown(wait=True)

    def _is_wanted(self) -> bool:
        return not self._is_closed and (self._desired is None or not self._desired.paused)

    def _pause(self) -> None:
        for state in self.states():
            self._state_table.change(state.place, lambda s: replace(s, state=SyncState.PAUSED))

    def _publish_if_changed(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s < self._published_at_s + self._timings.publish_s:
            return
        if self._state_table.take_changes() or now_s >= self._published_at_s + self._timings.publish_anyway_s:
            self._publish()

    def _publish(self) -> None:
        self._published_at_s = self._clock.monotonic_s()
        self._publish_states(self.states())


def _require_no_defect(rounds: Iterable[Future[None]]) -> None:
    """Raise what escaped from a worker. Errors of rounds never do; others end the process, even while it stops."""
    for future in rounds:
        if future.done() and not future.cancelled():
            future.result()


def _transfer(pair: ReplicaPair, settings: ReplicaSettings, clock: Clock, random: Random) -> Transfer:
    return Transfer(
        pair.source.store,
        pair.replica.store,
        topics_dir=pair.replica.topics_dir,
        retry=RetryPolicy(clock, Random(random.getrandbits(64)), timeout_s=settings.retry_timeout_s),
        threads=settings.threads,
    )


class _CachedEnablement:
    """The replica's permissions, read once for all partitions that ask within `kept_s`."""

    def __init__(self, read: Callable[[], Enablement], clock: Clock, kept_s: float) -> None:
        self._kept_s = kept_s
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._found: Enablement | None = None
        self._read_at_s = float("-inf")

    def read(self) -> Enablement:
        """Return the permissions. Raise what reading them raises; then the next caller reads again."""
        with self._lock:
            if self._found is None or self._clock.monotonic_s() >= self._read_at_s + self._kept_s:
                self._found = None
                self._found = self._read()
                self._read_at_s = self._clock.monotonic_s()
            return self._found
