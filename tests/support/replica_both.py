"""A source and a replica of it in memory, for tests of the replica's manifest."""

from __future__ import annotations

from random import Random

from keyfold.log.edits import Replacement, Swap
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.log.partition_log import CompactorSession, PartitionLog, SinkSession
from keyfold.log.replica_log import ReplicaLog, ReplicaSession
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.retry import Backoff
from keyfold.store.api import ObjectStore
from keyfold.store.memory import MemoryStore
from tests.support.manifests import entry

PLACE = Place("topics", "users", 0)
URL = "s3://log/topics"


class Both:
    """A source and its replica."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.source = MemoryStore("source", self.clock)
        self.replica = MemoryStore("replica", self.clock)
        self.log = self.log_of(self.source)
        self.log.create()
        self.sink = self.log.claim_sink()
        self.append(5)

    def log_of(self, store: ObjectStore, seed: int = 1) -> PartitionLog:
        return PartitionLog(
            store, PLACE, clock=self.clock, random=Random(seed), backoff=Backoff(1, 8), retry_timeout_s=0.1
        )

    def replica_log(self, store: ObjectStore | None = None, seed: int = 2) -> ReplicaLog:
        return ReplicaLog(
            store or self.replica,
            PLACE,
            clock=self.clock,
            random=Random(seed),
            backoff=Backoff(1, 8),
            retry_timeout_s=0.1,
        )

    def append(self, count: int, sink: SinkSession | None = None, **changes: object) -> Manifest:
        sink = sink or self.sink
        base = sink.refresh().next_offset
        return sink.append(entry(sink.new_name(base), base, base + count, **changes))  # type: ignore[arg-type]  # fields by name, of any type

    def clean(self, log: PartitionLog | None = None, *, purged_to: int = -1) -> Manifest:
        """One segment in the place of all."""
        session: CompactorSession = (log or self.log).claim_compactor(lease_ms=0, holder="c")
        old = session.manifest.segments
        base, end = old[0].base_offset, old[-1].next_offset
        new = entry(session.new_name(base), base, end, record_count=1)
        epoch = session.epoch if purged_to >= 0 else 0
        return session.replace(Replacement((Swap(old, (new,)),), end, purged_to=purged_to, purged_epoch=epoch))

    def load(self) -> Manifest:
        return self.log.load().manifest

    def claim(self, store: ObjectStore | None = None, seed: int = 2, name: str = "dr") -> ReplicaSession:
        return self.replica_log(store, seed).claim(self.load(), name=name, source_url=URL)

    def there(self) -> Manifest:
        pinned = self.replica_log().load()
        assert pinned is not None
        return pinned.manifest
