"""All replicas of a source in one process: each registration has a runner, stores and a thread of its own.

once    one round of every partition of every replica
loop    until stopped. A new replica starts within seconds, a removed one is stopped, and an edited one is opened again.
        A replica that cannot be opened (a missing credential) delays no other

Signs of life are each iteration of the loop, and the reports of each replica. A replica reports at least once a minute
while its loop runs, however long its copies take.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

import structlog

from keyfold.config.allowed_credentials import AllowedCredentials
from keyfold.errors import ConditionsIgnored, KeyfoldError
from keyfold.log.names import Place
from keyfold.replicas.documents import Registration
from keyfold.replicas.registry import NotRegistered, ReplicaRegistry
from keyfold.runtime.clock import Clock
from keyfold.runtime.health import Liveness
from keyfold.runtime.retry import Backoff
from keyfold.store.location import OpenLocation, open_location
from keyfold.store.pacing import Pacer
from keyfold.store.probe import LOOP_RETRY_TIMEOUT_S, probe
from keyfold_replicator.registry.holds import drop_holds_if_removed
from keyfold_replicator.registry.open_replica import (
    RegisteredDocuments,
    close,
    pair,
    replica_side,
    settings,
)
from keyfold_replicator.registry.replica_pair import LogDirectory, ReplicaDocuments, ReplicaPair, ReplicaSettings
from keyfold_replicator.rounds.runner import RUNNER_TIMINGS, Publish, Runner, RunnerTimings, RunSummary
from keyfold_replicator.state.states import PartitionState
from keyfold_replicator.state.totals import Tally
from keyfold_replicator.status.status_report import StatusWriter

LIST_INTERVAL_S: Final = 5.0
REOPEN_BACKOFF: Final = Backoff(first_ms=1_000, cap_ms=60_000)
FAILING_REQUESTS_MAX: Final = 8
"""Maximum number of failing requests in a row, each retried for `retry_timeout_s`, between two signs of life."""

log = structlog.get_logger(__name__)


class ReplicationObserver(Protocol):
    """An observer of the replicas of a process, such as the metrics."""

    def start_replica(self, name: str) -> Tally:
        """A replica is opened; return where to count its work."""

    def publish_states(self, name: str, states: Sequence[PartitionState]) -> None:
        """Receive the states of its partitions."""

    def remove_replica(self, name: str) -> None:
        """The replica was removed."""


class NoObserver:
    """An observer that does nothing."""

    def start_replica(self, name: str) -> Tally:
        """See `ReplicationObserver.start_replica`."""
        del name
        return Tally()

    def publish_states(self, name: str, states: Sequence[PartitionState]) -> None:
        """See `ReplicationObserver.publish_states`."""

    def remove_replica(self, name: str) -> None:
        """See `ReplicationObserver.remove_replica`."""


@dataclass(frozen=True, slots=True)
class ReplicationContext:
    """What a process needs to replicate.

    `holder` names the process in the status of the replicas. `allowed` says which credentials registrations may name. A
    replica that was edited or could not be opened is opened again after `open_again`.
    """

    settings: ReplicaSettings
    clock: Clock
    random: Random
    holder: str
    opener: OpenLocation = open_location
    environ: Mapping[str, str] | None = None
    pacer: Pacer | None = None
    allowed: AllowedCredentials = field(default_factory=AllowedCredentials)
    timings: RunnerTimings = RUNNER_TIMINGS
    open_again: Backoff = REOPEN_BACKOFF

    def new_random(self) -> Random:
        """Return a source of randomness for one part of the process."""
        return Random(self.random.getrandbits(64))


@dataclass(frozen=True, slots=True)
class RoundSelection:
    """What a run is limited to, and whether it accepts that removed tombstones were never received (`resync`).

    Without topics or partitions the run is about all of them.
    """

    topics: frozenset[str] = frozenset()
    partitions: frozenset[int] = frozenset()
    resync: bool = False

    def covers(self, place: Place) -> bool:
        """Whether the run is about a partition."""
        is_topic = not self.topics or place.topic in self.topics
        return is_topic and (not self.partitions or place.partition in self.partitions)


EVERYTHING: Final = RoundSelection()


def quiet_max_s(settings: ReplicaSettings) -> float:
    """Return how long a working loop may give no sign of life."""
    return RUNNER_TIMINGS.publish_anyway_s + FAILING_REQUESTS_MAX * settings.retry_timeout_s


class Replication:
    """The replicas of one source, or those with certain names."""

    def __init__(
        self,
        source: LogDirectory,
        context: ReplicationContext,
        names: Sequence[str] = (),
        *,
        observer: ReplicationObserver | None = None,
        liveness: Liveness | None = None,
        list_interval_s: float = LIST_INTERVAL_S,
    ) -> None:
        self._liveness = liveness or Liveness(context.clock, quiet_max_s(context.settings))
        self._source = source
        self._context = context
        self._names = frozenset(names)
        self._observer: ReplicationObserver = observer or NoObserver()
        self._list_interval_s = list_interval_s
        self._proven: set[str] = set()
        self._registry = ReplicaRegistry(source.store, source.topics_dir, context.clock, context.new_random())

    def once(
        self, should_stop: Callable[[], bool] = lambda: False, selection: RoundSelection = EVERYTHING
    ) -> dict[str, RunSummary]:
        """Do one round of every partition of all replicas, in parallel. Raise what listing the registrations raises."""
        self._liveness.begun()
        names = self._wanted()
        for missing in sorted(self._names - {*names}):
            self._registry.load(missing)  # raises the error for it
        with ThreadPoolExecutor(max(1, len(names)), "keyfold-replica-once") as pool:
            return dict(zip(names, pool.map(lambda n: self._once(n, should_stop, selection), names), strict=True))

    def loop(self, stop: threading.Event) -> None:
        """Replicate until `stop`."""
        threads: dict[str, threading.Thread] = {}
        delays: dict[str, Iterator[float]] = {}
        due_s: dict[str, float] = {}
        self._liveness.begun()
        while not stop.is_set():
            self._liveness.moved()
            names = self._list_names(threads)
            if names is not None:
                threads = {name: thread for name, thread in threads.items() if thread.is_alive()}
            for name in names or ():
                if name in threads or due_s.get(name, 0.0) > self._context.clock.monotonic_s():
                    continue
                due_s[name] = self._context.clock.monotonic_s() + next(
                    delays.setdefault(name, self._context.open_again.delays_s(self._context.random))
                )
                threads[name] = threading.Thread(
                    target=self._serve, args=(name, stop, delays), name=f"keyfold-replica-{name}"
                )
                threads[name].start()
            stop.wait(self._list_interval_s)
        for thread in threads.values():
            thread.join()

    def _wanted(self) -> list[str]:
        return [name for name in self._registry.names() if not self._names or name in self._names]

    def _list_names(self, threads: Mapping[str, threading.Thread]) -> list[str] | None:
        """Return the registered names; None if the source does not answer."""
        try:
            names = self._wanted()
        except KeyfoldError as error:
            log.warning("listing replicas failed", source=self._source.url, error=str(error))
            return None
        for name, thread in threads.items():
            if not thread.is_alive() and name not in names:
                self._observer.remove_replica(name)
        return names

    def _serve(self, name: str, stop: threading.Event, delays: dict[str, Iterator[float]]) -> None:
        """Replicate to one replica until its registration changes or is removed."""
        self._liveness.moved(_liveness_part(name))
        try:
            registration = self._registry.load(name)
            with self._opened(registration) as (runner, writer):
                log.info("replicating", replica=name, source=self._source.url, to=registration.url)
                delays.pop(name, None)
                runner.loop(stop)
                writer.write_ended()
            if not stop.is_set():
                self._drop_holds_if_removed(registration)
        except NotRegistered:
            return
        except KeyfoldError as error:
            log.warning("replica cannot be opened", replica=name, error=str(error))
        finally:
            self._liveness.over(_liveness_part(name))

    def _once(self, name: str, should_stop: Callable[[], bool], selection: RoundSelection) -> RunSummary:
        try:
            registration = self._registry.load(name)
            with self._opened(registration) as (runner, writer):
                found = runner.once(should_stop, covers=selection.covers, resync=selection.resync)
                writer.write_ended(found.error)
        except KeyfoldError as error:
            return RunSummary(error=str(error))
        if not should_stop():
            self._drop_holds_if_removed(registration)
        return found

    def _drop_holds_if_removed(self, registration: Registration) -> None:
        """Remove the replica's holds again: a round may have written its cursor after `remove` had dropped them."""
        context = self._context
        try:
            left = drop_holds_if_removed(registration, self._source, context.clock, context.new_random())
        except KeyfoldError as error:
            left = [str(error)]
        for why in left:
            log.warning("a manifest keeps an entry of a removed replica", replica=registration.name, error=why)

    @contextmanager
    def _opened(self, registration: Registration) -> Iterator[tuple[Runner, StatusWriter]]:
        context, source, name = self._context, self._source, registration.name
        tally = self._observer.start_replica(name)
        writer = StatusWriter(
            source.store, source.topics_dir, name, holder=context.holder, clock=context.clock, tally=tally
        )

        def publish(states: Sequence[PartitionState]) -> None:
            writer.write_running(states)
            self._observer.publish_states(name, states)
            self._liveness.moved(_liveness_part(name))

        try:
            replica = open_replica(registration, context)
            replica_settings = settings(registration, context.settings)
        except KeyfoldError as error:
            writer.write_ended(str(error))
            raise
        try:
            self._require_conditional_writes(registration, replica)
            documents = RegisteredDocuments(registration, source, replica, context.clock, context.new_random())
            with runner_of(
                pair(registration, source, replica), documents, replica_settings, context, tally, publish
            ) as runner:
                yield runner, writer
        finally:
            close(replica.store)

    def _require_conditional_writes(self, registration: Registration, replica: LogDirectory) -> None:
        """Refuse a store that ignores conditional writes, once for each replica. The rounds report other problems."""
        if registration.cursor_id in self._proven:
            return
        try:
            probe(
                replica.store,
                replica.topics_dir,
                self._context.clock,
                self._context.new_random(),
                retry_timeout_s=LOOP_RETRY_TIMEOUT_S,
                rounds=1,
            )
        except ConditionsIgnored:
            raise
        except KeyfoldError:
            return
        self._proven.add(registration.cursor_id)


def _liveness_part(name: str) -> str:
    return f"replica {name}"


def open_replica(registration: Registration, context: ReplicationContext) -> LogDirectory:
    """Open the replica's side, with connections for all threads."""
    return replica_side(
        registration,
        context.allowed,
        pacer=context.pacer,
        environ=os.environ if context.environ is None else context.environ,
        opener=context.opener,
        max_connections=2 * context.settings.threads + 2,
    )


def runner_of(
    replica_pair: ReplicaPair,
    documents: ReplicaDocuments,
    replica_settings: ReplicaSettings,
    context: ReplicationContext,
    tally: Tally | None = None,
    publish: Publish = lambda _states: None,
) -> Runner:
    """Return a runner; the caller must close it."""
    return Runner(
        replica_pair,
        documents,
        replica_settings,
        clock=context.clock,
        random=context.new_random(),
        tally=tally,
        publish=publish,
        timings=context.timings,
    )
