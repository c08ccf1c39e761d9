"""Two buckets, a log in one and its replica in the other, small enough to be shuffled thousands of times.

Objects hold their own names, so that a mix-up shows. `Twin` is a bucket that judges every manifest that lands in it and
every deletion; the writers and replicators here do what the real ones do, request by request, and as soon as it is
allowed: what is unlinked goes at once where `delay_ms` is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from random import Random

from keyfold.errors import (
    AlreadyExists,
    CommitRefused,
    CommitUnknown,
    ConditionUndecided,
    ManifestLost,
    ObjectNotFound,
    ReplicaDiverged,
    StoreUnavailable,
)
from keyfold.log.edits import Replacement, Swap
from keyfold.log.gc import due_names, list_names, orphan_names
from keyfold.log.manifest import Manifest, SegmentEntry, content, is_over
from keyfold.log.manifest_codec import decode_manifest
from keyfold.log.names import MANIFEST_NAME, Place, parse_name
from keyfold.log.partition_log import PartitionLog
from keyfold.log.replica_log import ReplicaLog, ReplicaSession
from keyfold.runtime.buffers import Bytes
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.retry import Backoff
from keyfold.store.api import Create, ObjectStore, PutMode, PutResult
from keyfold.store.memory import MemoryStore
from tests.support.manifests import entry

PLACE = Place("topics", "users", 0)
HOLD_MS = 1_000_000


class Twin(MemoryStore):
    """A bucket that checks what lands in it. The first violation is stored in `broken`."""

    def __init__(self, name: str, clock: ManualClock, delay_ms: int) -> None:
        super().__init__(name, clock)
        self.clock = clock
        self.delay_ms = delay_ms
        self.other: Twin | None = None
        self.history: list[Manifest] = []
        self.deleted: set[str] = set()
        self.replaced_when: dict[str, int] = {}
        self.broken: str = ""

    @property
    def manifest(self) -> Manifest | None:
        """The version that is there."""
        return self.history[-1] if self.history else None

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        result = super().put(key, data, mode)
        if key == PLACE.manifest_key:
            self._look(decode_manifest(bytes(data), PLACE))
        else:
            assert bytes(data) == key.removeprefix(PLACE.folder).encode()
        return result

    def delete(self, key: str) -> None:
        name = key.removeprefix(PLACE.folder)
        manifest = self.manifest
        if manifest is not None:
            self._require(name not in manifest.object_names(), f"{name} is deleted, and the manifest names it")
        if name in self.replaced_when and name in self.names():
            age_ms = self.clock.now_ms() - self.replaced_when[name]
            self._require(age_ms >= self.delay_ms, f"{name} is deleted {age_ms} ms after it was unlinked")
        super().delete(key)

    def names(self) -> set[str]:
        """Everything in the folder but the manifest."""
        return {info.key.removeprefix(PLACE.folder) for info in self.list(PLACE.folder)} - {MANIFEST_NAME}

    def _look(self, manifest: Manifest) -> None:
        before = self.manifest
        self.history.append(manifest)
        missing = manifest.object_names() - self.names()
        self._require(not missing, f"version {manifest.version} names {sorted(missing)}, which are not there")
        if before is not None:
            for name in before.object_names() - manifest.object_names():
                self.replaced_when[name] = self.clock.now_ms()
            self._require(manifest.version == before.version + 1, "a version is left out or written twice")
            self._look_at_progress(before, manifest)
        if manifest.replica is not None and manifest.replica.source_version:
            self._look_at_replica(manifest)
        for hold in manifest.holds:
            received = -1 if self.other is None or self.other.manifest is None else self.other.manifest.next_offset
            self._require(
                hold.received_to <= received, f"received_to {hold.received_to}, the replica ends at {received}"
            )

    def _look_at_progress(self, before: Manifest, now: Manifest) -> None:
        if before.replica is not None and now.replica is not None:
            self._require(now.replica.epoch >= before.replica.epoch, "an older replicator has committed")
            if before.replica.source_log_id == now.replica.source_log_id:
                self._require(now.log_version >= before.log_version, "the replica goes back")
        if before.log_id == now.log_id:
            self._require(now.next_offset >= before.next_offset, "the log goes back")
        elif now.replica is None:
            self._require(now.ancestor(before.log_id) is not None, "another log, and nothing says why")

    def _look_at_replica(self, manifest: Manifest) -> None:
        """A state of the source, as it was when it had this version."""
        assert self.other is not None
        assert manifest.replica is not None
        was_source = len(self.history) > 1 and not self.history[-2].is_replica
        if manifest.log_id != manifest.replica.source_log_id or was_source:
            return  # demoted just now: its own last version, or nothing received yet
        of_log = [m for m in (*self.other.history, *self.history[:-1]) if m.log_id == manifest.log_id]
        had = [m for m in of_log if manifest.log_version in {m.log_version, m.version}]
        self._require(
            any(content(m) == content(manifest) for m in had),
            f"the replica's version {manifest.version} is no state that the source had",
        )

    def _require(self, holds: bool, what: str) -> None:
        if not holds and not self.broken:
            self.broken = f"{self.name}: {what}"


@dataclass
class Twins:
    """Both buckets and what the actors share."""

    random: Random
    delay_ms: int = 0
    clock: ManualClock = field(default_factory=ManualClock)
    pins: bool = False
    thrown_back: int = 0

    def __post_init__(self) -> None:
        self.a, self.b = Twin("a", self.clock, self.delay_ms), Twin("b", self.clock, self.delay_ms)
        self.a.other, self.b.other = self.b, self.a

    def log(self, store: ObjectStore) -> PartitionLog:
        return PartitionLog(
            store, PLACE, clock=self.clock, random=self._seed(), backoff=Backoff(1, 4), retry_timeout_s=0.02
        )

    def replica_log(self, store: ObjectStore) -> ReplicaLog:
        return ReplicaLog(
            store, PLACE, clock=self.clock, random=self._seed(), backoff=Backoff(1, 4), retry_timeout_s=0.02
        )

    def _seed(self) -> Random:
        return Random(self.random.getrandbits(64))

    def check(self) -> None:
        """Raise what was broken first."""
        assert not self.a.broken, self.a.broken
        assert not self.b.broken, self.b.broken


@contextmanager
def giving_up() -> Iterator[None]:
    """What ends an actor's work without being anybody's fault: lost races, stores that do not answer."""
    with suppress(CommitRefused, CommitUnknown, ConditionUndecided, StoreUnavailable):
        yield


def appends(twins: Twins, store: ObjectStore, count: int) -> Callable[[], None]:
    """A sink that appends, and claims again when it has lost its claim."""

    def act() -> None:
        log = twins.log(store)
        left = count
        while left:
            left -= 1
            with giving_up():
                session = log.claim_sink()
                base = session.manifest.next_offset
                name = session.new_name(base)
                _upload(store, (str(name), str(name.index)))
                session.append(entry(name, base, base + twins.random.randint(1, 3)))

    return act


def cleans(twins: Twins, store: ObjectStore, count: int) -> Callable[[], None]:
    """A compactor that merges, expires, and deletes what may go at once."""

    def act() -> None:
        log = twins.log(store)
        for _ in range(count):
            with giving_up():
                session = log.claim_compactor(lease_ms=0, holder="c")
                manifest = session.manifest
                if len(manifest.segments) > 2 and twins.random.random() < 0.2:
                    session.expire(manifest.segments[:1])
                elif manifest.segments:
                    old = manifest.segments[: twins.random.randint(1, len(manifest.segments))]
                    name = session.new_name(old[0].base_offset)
                    _upload(store, (str(name), str(name.index)))
                    session.replace(Replacement((Swap(old, (_merged(old, name),)),), old[-1].next_offset))
                session.renew(0)
                listed = list_names(store, PLACE)
                manifest = session.refresh()
                due = due_names(manifest, session.pinned.seen_ms, twins.delay_ms)
                for gone in (*due, *orphan_names(listed, manifest)):
                    store.delete(PLACE.key(gone))
                session.forget(due)

    return act


def _merged(old: tuple[SegmentEntry, ...], name: object) -> SegmentEntry:
    return entry(name, old[0].base_offset, old[-1].next_offset, last_offset=old[-1].last_offset, record_count=1)  # type: ignore[arg-type]  # names are enough for the twins


def _upload(store: ObjectStore, names: tuple[str, ...]) -> None:
    for name in names:
        store.put(PLACE.key(name), name.encode(), Create())


@dataclass
class Replicator:
    """A process that replicates from `source` into `target`: rounds, and what it may delete there."""

    twins: Twins
    source: ObjectStore
    target: ObjectStore
    # Mistakes to plant.
    loads_after_claim: bool = True
    lists_first: bool = True
    session: ReplicaSession | None = None

    @property
    def name(self) -> str:
        """What the replica is registered as."""
        return name_of(self.target)

    def rounds(self, count: int) -> Callable[[], None]:
        def act() -> None:
            for _ in range(count):
                with giving_up():
                    self.round()

        return act

    def round(self) -> bool:
        """One round. True where the replica has what the source had when it ended."""
        log = self.twins.log(self.source)
        source = log.load()
        if self.session is None:
            self.session = self.twins.replica_log(self.target).claim(
                source.manifest, name=self.name, source_url=self.source.url
            )
            source = log.load() if self.loads_after_claim else source
        try:
            if self.twins.pins:
                source = log.hold(self.name, source.manifest.version, HOLD_MS)
            self._copy(source.manifest)
            self._mirror(source.manifest)
            log.hold(self.name, None, received_to=source.manifest.next_offset)
            self._collect(log)
        except ObjectNotFound:
            self._still_mine()
            self.twins.thrown_back += 1
            return False
        except (CommitRefused, ManifestLost, ReplicaDiverged):
            self.session = None
            raise
        return True

    def _still_mine(self) -> None:
        """Raise `Fenced` where another has the epoch: both have one pin, which went when the other's round ended."""
        assert self.session is not None
        try:
            self.session.refresh()
        except CommitRefused:
            self.session = None
            raise

    def _copy(self, source: Manifest) -> None:
        there = {info.key for info in self.target.list(PLACE.folder)}
        for name in sorted(source.object_names()):
            if PLACE.key(name) not in there:
                data = self.source.get(PLACE.key(name)).data
                with suppress(AlreadyExists):
                    self.target.put(PLACE.key(name), data, Create())

    def _mirror(self, source: Manifest) -> None:
        assert self.session is not None
        if not self.loads_after_claim:
            source = decode_copy(source)
        for _ in range(20):
            try:
                self.session.mirror(source)
            except CommitUnknown:
                continue
            return

    def _collect(self, log: PartitionLog) -> None:
        """What was unlinked long enough ago, and what neither side names: list, then the source, then the replica."""
        assert self.session is not None
        self.session.stamp()
        listed = list_names(self.target, PLACE) if self.lists_first else []
        source = log.load().manifest
        listed = listed or list_names(self.target, PLACE)
        manifest = self.session.refresh()
        assert manifest is not None
        assert self.session.pinned is not None
        now_ms, delay_ms = self.session.pinned.seen_ms, self.twins.delay_ms
        due = [r.name for r in manifest.replaced if is_over(r.unlinked_at_ms, delay_ms, now_ms)]
        kept = manifest.object_names() | source.object_names() | {r.name for r in manifest.replaced}
        for name in (*due, *(n for n in listed if n not in kept and parse_name(n) is not None)):
            self.target.delete(PLACE.key(name))
        if due:
            self.session.forget(due)


def name_of(store: ObjectStore) -> str:
    """A bucket's name."""
    return store.url.removeprefix("memory://")


def decode_copy(manifest: Manifest) -> Manifest:
    """The same, as another value."""
    return replace(manifest)
