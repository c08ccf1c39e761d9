"""A source and its replica in memory, and processes that replicate between them, each with its own connections.

pair = Pair.new()
pair.append([record(0, "a", "1")])          one segment at the source
pair.compact(settings)                      one run of the compactor there
pair.process().once()                       one round
pair.process(source_faults=[...]).once()    one that something happens to
pair.settle()                               rounds until nothing is left to do: what must come to be in the end
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Self

from keyfold.log.manifest import Manifest
from keyfold.log.record import Record
from keyfold.replicas.documents import CompactionEntry, Enablement
from keyfold.runtime.clock import Clock, ManualClock
from keyfold.store.api import ObjectStore
from keyfold.store.wrappers.faults import Call, Fault, FaultyStore, SimulatedCrash
from keyfold.verify.partition import verify_partition
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_replicator.registry.replica_pair import (
    DesiredReplication,
    LogDirectory,
    ReplicaDocuments,
    ReplicaPair,
    ReplicaSettings,
)
from keyfold_replicator.rounds.runner import Runner, RunSummary
from tests.support.cleaning import PLACE, Sink, clean, load, object_names, read_all
from tests.support.replica_oracle import NAME, REPLICA_PLACE, ReplicaStore, SourceStore, differences, twin_of

FORMAT = 1
ENABLED = Enablement({"*": CompactionEntry(enabled=True, format=FORMAT)})
NOT_ENABLED = Enablement()
ROUNDS_MAX = 8


@dataclass(slots=True)
class Ordered:
    """A `ReplicaDocuments` that says what a test wants."""

    paused: bool = False
    allowed: Enablement = ENABLED

    def load_desired(self) -> DesiredReplication | None:
        """See `ReplicaDocuments.load_desired`."""
        return DesiredReplication(self.paused)

    def load_enablement(self) -> Enablement:
        """See `ReplicaDocuments.load_enablement`."""
        return self.allowed


@dataclass(slots=True)
class Process:
    """One that replicates: what it does to each store can be watched, and go wrong."""

    source: FaultyStore
    replica: FaultyStore
    runner: Runner
    error: BaseException | None = None

    @property
    def crashed(self) -> bool:
        """Whether it is dead."""
        return self.source.crashed or self.replica.crashed

    def store(self, side: str) -> FaultyStore:
        """Its connection to the `source` or the `replica`."""
        return self.source if side == "source" else self.replica

    def before(self, side: str, number: int, act: Callable[[], object]) -> None:
        """Let something happen before a call, once. What it raises, the round raises, whatever it made of it."""
        store = self.store(side)

        def on_call(call: Call) -> None:
            if call.number == number:
                store.on_call = None
                try:
                    act()
                except BaseException as error:
                    self.error = error
                    raise

        store.on_call = on_call

    def once(self, *, resync: bool = False) -> RunSummary:
        """One round of the partition. Raises `SimulatedCrash` where it died."""
        summary = self.runner.once(resync=resync)
        if self.error is not None:
            raise self.error
        if self.crashed:  # the whole process is dead, not one of its connections
            self.source.crashed = self.replica.crashed = True
            raise SimulatedCrash
        return summary

    def land(self) -> None:
        """Let its late requests land."""
        self.source.land()
        self.replica.land()


@dataclass
class Pair:
    """Both sides."""

    source: SourceStore
    replica: ReplicaStore
    clock: Clock
    documents: Ordered = field(default_factory=Ordered)
    seed: int = 0
    delay_ms: int = 0
    sink: Sink | None = None
    processes: list[Process] = field(default_factory=list)

    @staticmethod
    def new(clock: Clock | None = None) -> Pair:
        source = SourceStore(clock=ManualClock())
        return Pair(source, ReplicaStore(source, is_registered=True), clock or source.clock)

    def twin(self) -> Pair:
        """Another one in the same state, for a test that is one of many that begin there."""
        pair = Pair.new()
        pair.source.clock.time_ms, pair.replica.clock.time_ms = self.source.clock.time_ms, self.replica.clock.time_ms
        twin_of(self.source, pair.source)
        twin_of(self.replica, pair.replica)
        pair.seed, pair.delay_ms = self.seed, self.delay_ms
        return pair

    def append(self, batch: Sequence[Record]) -> None:
        """One segment at the source."""
        if self.sink is None:
            self.sink = Sink.open(self.source, clock=self.source.clock)
        self.source.appended += batch
        self.source.appended_at |= {r.offset: self.source.clock.now_ms() for r in batch}
        self.sink.append(batch)

    def compact(self, settings: TopicSettings) -> None:
        """A run of the compactor at the source, some time after the last one."""
        self.source.clock.advance(120_000)
        self.seed += 1
        settings = replace(settings, replicas=(NAME,))
        report = clean(self.source, settings, clock=self.source.clock, seed=1000 + self.seed)
        assert report.exit_code == 0, report.document()

    def process(
        self,
        source_faults: Iterable[Fault] = (),
        replica_faults: Iterable[Fault] = (),
        *,
        pin_min_bytes: int = 1 << 60,
        collect_ms: int = 0,
    ) -> Process:
        """Another process that replicates."""
        self.seed += 1
        source, replica = FaultyStore(self.source, source_faults), FaultyStore(self.replica, replica_faults)
        settings = ReplicaSettings(
            threads=1,
            poll_ms=0,
            discover_ms=0,
            pin_min_bytes=pin_min_bytes,
            file_delete_delay_ms=self.delay_ms,
            collect_ms=collect_ms,
            retry_timeout_s=2.0,
        )
        documents: ReplicaDocuments = self.documents
        runner = Runner(pair(source, replica), documents, settings, clock=self.clock, random=Random(self.seed))
        self.processes.append(Process(source, replica, runner))
        return self.processes[-1]

    def close(self) -> None:
        """End the threads of all processes."""
        for process in self.processes:
            process.runner.close()
        self.processes.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def advance(self, by_ms: int) -> None:
        """Time passes for both stores, and for the machines beside them."""
        self.source.clock.advance(by_ms)
        self.replica.clock.advance(by_ms)
        if self.clock is not self.source.clock:
            self.clock.sleep(by_ms / 1000)

    def settle(self) -> None:
        """Rounds by a process that nothing happens to; then the replica is the source, and holds nothing else."""
        process = self.process()
        summary = process.once()
        for _ in range(ROUNDS_MAX):
            self.advance(self.delay_ms + 120_000)
            summary = process.once()
            if summary.is_in_sync and self.is_tidy:
                break
        assert summary.is_in_sync, summary
        self.check()
        assert self.is_tidy, (object_names(self.replica, REPLICA_PLACE), load(self.replica, REPLICA_PLACE).replaced)

    @property
    def is_tidy(self) -> bool:
        """Whether the replica's folder has what its manifest names, and nothing else."""
        manifest = load(self.replica, REPLICA_PLACE)
        return object_names(self.replica, REPLICA_PLACE) == manifest.object_names() and not manifest.replaced

    def check(self) -> None:
        """The replica is what the source is now, and no promise was broken on the way there."""
        self.unbroken()
        source, replica = load(self.source), load(self.replica, REPLICA_PLACE)
        assert not differences(source, replica), differences(source, replica)
        assert read_all(self.replica, replica, REPLICA_PLACE) == read_all(self.source, source)
        assert [(h.replica, h.received_to, h.version) for h in source.holds] == [(NAME, source.next_offset, -1)]
        self.verify()

    def verify(self) -> None:
        """`keyfold log verify` of the replica, if there is one yet."""
        if not self.replica.history:
            return
        report = verify_partition(self.replica, REPLICA_PLACE, clock=ManualClock(), random=Random(0))
        assert report.is_sound, [str(f) for f in report.damage]

    def unbroken(self) -> None:
        """Raise the first promise that was broken on either side."""
        for store in (self.source, self.replica):
            if store.broken is not None:
                raise store.broken

    @property
    def manifest(self) -> Manifest:
        """The replica's newest."""
        return load(self.replica, REPLICA_PLACE)


def pair(source: ObjectStore, replica: ObjectStore) -> ReplicaPair:
    """The two sides, as a registration has them."""
    return ReplicaPair(
        "second",
        NAME,
        LogDirectory(source, PLACE.topics_dir, f"s3://source/{PLACE.topics_dir}", "source.test"),
        LogDirectory(replica, REPLICA_PLACE.topics_dir, f"s3://replica/{REPLICA_PLACE.topics_dir}", "replica.test"),
    )
