"""A small log, its replica, and a runner between them; every call of the runner is counted, by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random

from keyfold.log.edits_replica import same_content
from keyfold.log.manifest import Manifest
from keyfold.log.names import FIRST_COPY_NAME, MANIFEST_NAME, Place
from keyfold.log.partition_log import PartitionLog
from keyfold.log.record import Record
from keyfold.replicas.documents import CompactionEntry, Enablement
from keyfold.runtime.clock import Clock, ManualClock
from keyfold.store.api import ObjectStore
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import FaultyStore
from keyfold_replicator.registry.replica_pair import DesiredReplication, LogDirectory, ReplicaPair, ReplicaSettings
from keyfold_replicator.rounds.runner import RUNNER_TIMINGS, Runner, RunnerTimings
from keyfold_replicator.state.retry import RoundBackoff
from keyfold_replicator.state.states import PartitionState
from tests.support.cleaning import read_all
from tests.support.logs import MadeLog

ENABLED = Enablement({"*": CompactionEntry(enabled=True, format=1)})
HOLD = "far@1"
SETTINGS = ReplicaSettings(
    threads=2,
    poll_ms=1_000,
    discover_ms=5_000,
    pin_min_bytes=1 << 60,
    retry=RoundBackoff(100, 60_000),
    file_delete_delay_ms=60_000,
    collect_ms=3_600_000,
    retry_timeout_s=1.0,
)


@dataclass
class FixedDocuments:
    """Documents with the values that a test sets."""

    desired: DesiredReplication | None = field(default_factory=DesiredReplication)
    allowed: Enablement = ENABLED

    def load_desired(self) -> DesiredReplication | None:
        return self.desired

    def load_enablement(self) -> Enablement:
        return self.allowed


@dataclass
class Worlds:
    """Two stores with clocks years apart, and the logs in the first."""

    source: MemoryStore
    replica: MemoryStore
    clock: ManualClock
    far_clock: ManualClock
    documents: FixedDocuments = field(default_factory=FixedDocuments)
    published: list[tuple[PartitionState, ...]] = field(default_factory=list)
    seed: int = 0
    timings: RunnerTimings = RUNNER_TIMINGS

    @staticmethod
    def new(timings: RunnerTimings = RUNNER_TIMINGS) -> Worlds:
        clock, far_clock = ManualClock(), ManualClock(1_500_000_000_000)
        source, replica = MemoryStore("source", clock=clock), MemoryStore("replica", clock=far_clock)
        return Worlds(source, replica, clock, far_clock, timings=timings)

    def log(self, topic: str = "users", partition: int = 0) -> MadeLog:
        self.seed += 1
        return MadeLog(self.source, Place("topics", topic, partition), clock=self.clock, random=Random(self.seed))

    @contextmanager
    def running(
        self, settings: ReplicaSettings = SETTINGS, *, clock: Clock | None = None, **changes: object
    ) -> Iterator[Running]:
        self.seed += 1
        source, replica = FaultyStore(self.source), FaultyStore(self.replica)
        made = replace(settings, **changes)  # type: ignore[arg-type]  # fields by name, of any type
        with Runner(
            pair(source, replica),
            self.documents,
            made,
            clock=clock or self.clock,
            random=Random(self.seed),
            publish=lambda states: self.published.append(tuple(states)),
            timings=self.timings,
        ) as runner:
            yield Running(runner, source, replica)

    def manifests(self, topic: str = "users", partition: int = 0) -> tuple[Manifest, Manifest]:
        return (
            loaded(self.source, Place("topics", topic, partition)),
            loaded(self.replica, Place("far/logs", topic, partition)),
        )

    def manifests_of_source(self, topic: str = "users", partition: int = 0) -> Manifest:
        return loaded(self.source, Place("topics", topic, partition))

    def is_equal(self, topic: str = "users", partition: int = 0) -> bool:
        return same_content(*self.manifests(topic, partition))

    def read(self, topic: str = "users", partition: int = 0) -> list[Record]:
        """What a reader of the replica finds."""
        place = Place("far/logs", topic, partition)
        return read_all(self.replica, loaded(self.replica, place), place)

    def folder(self, topic: str = "users", partition: int = 0) -> set[str]:
        """Segments and indexes, also parts of interrupted rounds, in the replica's folder."""
        place = Place("far/logs", topic, partition)
        names = {info.key.removeprefix(place.folder) for info in self.replica.list(place.folder)}
        return names - {MANIFEST_NAME, FIRST_COPY_NAME}

    def later(self, by_ms: int) -> None:
        self.clock.advance(by_ms)
        self.far_clock.advance(by_ms)


@dataclass
class Running:
    """A runner, and what it asked of both stores."""

    runner: Runner
    source: FaultyStore
    replica: FaultyStore

    def once(self, **options: object) -> Sequence[PartitionState]:
        summary = self.runner.once(**options)  # type: ignore[arg-type]  # fields by name, of any type
        assert not summary.error, summary.error
        return summary.states

    def state(self) -> PartitionState:
        (state,) = self.once()
        return state

    @contextmanager
    def asked(self) -> Iterator[tuple[list[str], list[str]]]:
        """The calls made in between: of the source without listings of topics, and of the replica."""
        at = len(self.source.calls), len(self.replica.calls)
        source: list[str] = []
        replica: list[str] = []
        yield source, replica
        source += [c.operation for c in self.source.calls[at[0] :] if c.operation != "list_folders"]
        replica += [c.operation for c in self.replica.calls[at[1] :]]


def pair(source: ObjectStore, replica: ObjectStore) -> ReplicaPair:
    return ReplicaPair(
        "far",
        HOLD,
        LogDirectory(source, "topics", "s3://near/topics", "near.test"),
        LogDirectory(replica, "far/logs", "s3://far/far/logs", "far.test"),
    )


def loaded(store: ObjectStore, place: Place) -> Manifest:
    return PartitionLog(store, place, clock=ManualClock(), random=Random(0)).load().manifest
