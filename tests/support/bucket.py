"""A bucket with processes around it, each of which can be paused, crash, or have its requests land late."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from keyfold.log.gc import list_names
from keyfold.log.manifest import Manifest, SegmentEntry, faults
from keyfold.log.names import Place
from keyfold.log.objects import create_object
from keyfold.log.partition_log import CompactorSession, PartitionLog, Replacement, SinkSession, Swap
from keyfold.runtime.clock import ManualClock
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Call, Fault, FaultKind, FaultyStore
from tests.support.manifests import entry

PLACE = Place("topics", "users", 0)
HOUR_MS = 3_600_000


class Process:
    """A writer with its own connection to the bucket, its own clock and its own dice."""

    def __init__(self, bucket: Bucket, seed: int, *planned: Fault, retry_timeout_s: float = 60.0) -> None:
        self.store = FaultyStore(bucket.store, planned)
        self.clock = ManualClock()
        self.log = PartitionLog(
            self.store, PLACE, clock=self.clock, random=Random(seed), retry_timeout_s=retry_timeout_s
        )

    def at_manifest_put(self, kind: FaultKind, *, number: int = 1, times: int = 1) -> None:
        """Let the `number`-th manifest PUT from here fail, and as many of the following ones as `times` says."""
        seen = 0

        def hits(call: Call) -> bool:
            nonlocal seen
            seen += call.operation == "put" and call.key == PLACE.manifest_key
            return call.operation == "put" and call.key == PLACE.manifest_key and seen >= number

        self.store.add(Fault(hits, kind, times=times))

    def before(self, operation: str, act: Callable[[], object]) -> None:
        """Let another writer act right before this process's next call of this kind on the manifest."""

        def on_call(call: Call) -> None:
            if call.operation == operation and call.key == PLACE.manifest_key:
                self.store.on_call = None
                act()

        self.store.on_call = on_call

    @property
    def deletes(self) -> list[str]:
        """Keys that this process has deleted."""
        return [call.key for call in self.store.calls if call.operation == "delete"]


class Bucket:
    """The store, its clock, and who is there."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self._seed = 0
        self.process().log.create()

    def process(self, *planned: Fault, retry_timeout_s: float = 60.0) -> Process:
        self._seed += 1
        return Process(self, self._seed, *planned, retry_timeout_s=retry_timeout_s)

    def sink(self) -> SinkSession:
        return self.process().log.claim_sink()

    def compactor(self) -> CompactorSession:
        return self.process().log.claim_compactor(lease_ms=0, holder="c")

    @property
    def manifest(self) -> Manifest:
        return self.process().log.load().manifest

    def names(self) -> set[str]:
        return set(list_names(self.store, PLACE))

    def ranges(self) -> list[tuple[int, int]]:
        manifest = self.manifest
        assert faults(manifest) == []
        return [(s.base_offset, s.next_offset) for s in manifest.segments]

    def named_are_there(self) -> bool:
        return self.manifest.object_names() <= self.names()


def uploaded(session: SinkSession | CompactorSession, base: int, end: int, **changes: object) -> SegmentEntry:
    """A segment and its index in the bucket, not yet committed."""
    made = entry(session.new_name(base), base, end, **changes)  # type: ignore[arg-type]  # fields by name, of any type
    for name in (made.name, made.index_name):
        create_object(session._log.store, PLACE.key(name), name.encode(), session._log.retry)
    return made


def appended(session: SinkSession, count: int, **changes: object) -> SegmentEntry:
    base = session.manifest.next_offset
    made = uploaded(session, base, base + count, **changes)
    session.append(made)
    return made


def merge(session: CompactorSession, *old: SegmentEntry) -> Replacement:
    new = uploaded(session, old[0].base_offset, old[-1].next_offset)
    return Replacement((Swap(old, (new,)),), first_dirty_offset=0)
