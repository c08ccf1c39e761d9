"""What a replica is held to: the history of its source, and nothing that the code under test says about itself.

Two stores in memory, each of which judges every manifest that lands in it and every deletion, whoever sent it and
whenever. So no state of the replica that ever existed escapes.

    SourceStore     the source, judged as `tests.support.log_machine` does; it remembers every version and every byte,
                    and that no tombstone goes that a replica still needs
    ReplicaStore    each version is one that the source had, in the source's order, of objects that are there and are
                    the source's byte for byte; nothing goes that its readers may still need
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, fields

from keyfold.log.manifest import Manifest
from keyfold.log.manifest_codec import decode_manifest
from keyfold.log.names import FIRST_COPY_NAME, Place, parse_name
from keyfold.log.record import Record
from keyfold.runtime.buffers import Bytes
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import PutMode, PutResult
from keyfold.store.memory import MemoryStore
from tests.support.cleaning import PLACE, latest, object_names, read_all
from tests.support.clocks import SkewedClock
from tests.support.log_machine import SpecStore

NAME = "second@1"
"""What the replica's hold is called."""
REPLICA_PLACE = Place("mirror/of", PLACE.topic, PLACE.partition)
OWN = frozenset({"version", "holds", "replaced", "replica", "unknown", "writer_schema"})
"""What each side has of its own. All other fields are the source's, also those that a later format brings."""


def copied(manifest: Manifest) -> dict[str, object]:
    """What a replica must have as its source has it, by field. Of the roles only the claimed epochs."""
    values = {f.name: getattr(manifest, f.name) for f in fields(manifest) if f.name not in OWN}
    return values | {"sink": manifest.sink.epoch, "compactor": manifest.compactor.epoch}


def differences(source: Manifest, replica: Manifest) -> list[str]:
    """The fields in which a replica's version is not what its source had."""
    had, has = copied(source), copied(replica)
    return [f"{name}: {had[name]} at the source, {has[name]} at the replica" for name in had if had[name] != has[name]]


def twin_of(store: MemoryStore, made: MemoryStore) -> None:
    """Make `made` what `store` is now: objects, ETags to come, and what its judge remembers."""
    made._objects, made._numbers = dict(store._objects), copy(store._numbers)
    for f in fields(store):  # type: ignore[arg-type]  # both stores are dataclasses
        if f.name not in {"clock", "shown", "source", "replica"}:
            setattr(made, f.name, copy(getattr(store, f.name)))


@dataclass
class SourceStore(SpecStore):
    """A source whose replica is `replica`, if it has one."""

    versions: dict[tuple[str, int], Manifest] = field(default_factory=dict)
    ever: dict[str, bytes] = field(default_factory=dict)
    """The bytes of every object that was ever here, by its name in the partition."""
    replica: ReplicaStore | None = None
    hold_max_ms: int = 1 << 60

    def _write(self, key: str, data: bytes) -> PutResult:
        if key.startswith(PLACE.folder):
            self.ever[key.removeprefix(PLACE.folder)] = data
        return super()._write(key, data)

    def look(self, manifest: Manifest) -> None:
        """Judge a version that has just landed."""
        self.versions[manifest.log_id, manifest.version] = manifest
        super().look(manifest)
        self._check_cursors(manifest)

    def _check_cursors(self, manifest: Manifest) -> None:
        """A cursor says no more than what the replica really has."""
        received_to = -1 if self.replica is None else self.replica.received_to
        for hold in manifest.holds:
            assert hold.received_to <= received_to, f"{hold} is ahead of the replica, which has come to {received_to}"

    def _check_purged(self, manifest: Manifest, r: Record, now_ms: int) -> None:
        super()._check_purged(manifest, r, now_ms)
        if self.replica is None or not self.replica.is_registered:
            return
        alone_ms = now_ms - self.alone_since[r.offset]
        longest_ms = min(s.delete_retention_ms for s in self.in_force) + self.hold_max_ms
        assert r.offset < self.replica.received_to or alone_ms >= longest_ms, (
            f"{r} goes, and the replica has only come to {self.replica.received_to}"
        )


@dataclass
class ReplicaStore(MemoryStore):
    """A replica of the log in `source`, judged by what the source had."""

    source: SourceStore
    clock: ManualClock = field(default_factory=lambda: ManualClock(1_600_000_000_000))
    """Years away from the source's: times of the two are never to be compared."""
    shown: SkewedClock = field(init=False)
    """What the store shows of it."""
    delay_ms: int = 0
    is_registered: bool = False
    history: list[Manifest] = field(default_factory=list)
    unlinked: dict[str, int] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)
    """How often each object was sent here in one piece, whatever the answer was."""
    landed: Counter[str] = field(default_factory=Counter)
    broken: AssertionError | None = None
    """The first broken promise. Kept, not raised: whoever made the call might take it for a fault of the store."""

    def __post_init__(self) -> None:
        self.shown = SkewedClock(self.clock)
        MemoryStore.__init__(self, "replica", self.shown)
        self.source.replica = self

    @property
    def received_to(self) -> int:
        """How far the replica has come."""
        return self.history[-1].next_offset if self.history else -1

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Log start and log end of each version, in the order of the versions."""
        return [(m.log_start_offset, m.next_offset) for m in self.history]

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        name = key.removeprefix(REPLICA_PLACE.folder)
        if parse_name(name) is not None:
            self.sent[name] += 1
        result = super().put(key, data, mode)
        if key == REPLICA_PLACE.manifest_key:
            self._judge(lambda: self.look(decode_manifest(bytes(data), REPLICA_PLACE)))
        return result

    def _write(self, key: str, data: bytes) -> PutResult:
        name = key.removeprefix(REPLICA_PLACE.folder)
        if parse_name(name) is not None:
            self.landed[name] += 1
            self._judge(lambda: self._check_object(name, data))
        return super()._write(key, data)

    def delete(self, key: str) -> None:
        self._judge(lambda: self._check_deletion(key.removeprefix(REPLICA_PLACE.folder)))
        super().delete(key)

    def _judge(self, check: Callable[[], None]) -> None:
        if self.broken is None:
            try:
                check()
            except AssertionError as error:
                self.broken = error

    def _check_object(self, name: str, data: bytes) -> None:
        assert self.source.ever.get(name) == data, f"{name} appears with {len(data)} bytes that the source never had"
        is_marked = REPLICA_PLACE.key(FIRST_COPY_NAME) in self._objects
        assert self.history or is_marked, f"{name} appears in a folder that has neither a manifest nor a marker"

    def _check_deletion(self, name: str) -> None:
        if parse_name(name) is None:
            assert not name.startswith("_manifest"), "the manifest is deleted"
            assert self.history or name != FIRST_COPY_NAME, "the marker is deleted before the first commit"
            return
        named = self.history[-1].object_names() if self.history else frozenset()
        assert name not in named, f"{name} is deleted, and the replica's manifest names it"
        if name in self.unlinked:
            age_ms = self.clock.now_ms() - self.unlinked[name]
            assert age_ms + self.shown.cut_ms >= self.delay_ms, (
                f"{name} is deleted {age_ms} ms after the replica unlinked it"
            )

    def look(self, manifest: Manifest) -> None:
        """Judge a version that has just landed."""
        assert manifest.replica is not None, "a commit at the replica that does not say that it is one"
        had = self.source.versions.get((manifest.replica.source_log_id, manifest.replica.source_version))
        assert had is not None, f"the source never had what {manifest.replica} says"
        assert not differences(had, manifest), differences(had, manifest)
        self._check_progress(manifest)
        missing = manifest.object_names() - object_names(self, REPLICA_PLACE)
        assert not missing, f"version {manifest.version} names {sorted(missing)}, which are not there"
        found = read_all(self, manifest, REPLICA_PLACE)
        prefix = [r for r in self.source.appended if manifest.log_start_offset <= r.offset < manifest.next_offset]
        assert latest(found) == latest(prefix), "the replica shows a state that the source never had"
        self._check_replaced(manifest)
        self.history.append(manifest)

    def _check_progress(self, manifest: Manifest) -> None:
        assert manifest.replica is not None
        if not self.history:
            return
        was = self.history[-1]
        assert was.replica is not None
        assert manifest.version == was.version + 1
        assert manifest.replica.source_version >= was.replica.source_version, "the replica goes back"
        assert manifest.replica.epoch >= was.replica.epoch, "an older replicator commits"
        assert manifest.next_offset >= was.next_offset
        assert manifest.log_start_offset >= was.log_start_offset
        assert manifest.purged_to >= was.purged_to

    def _check_replaced(self, manifest: Manifest) -> None:
        """What a commit here unlinks waits for its deletion under the replica's own time, until it was deleted."""
        was = self.history[-1].object_names() if self.history else frozenset()
        unlinked = was - manifest.object_names()
        waiting = {r.name for r in manifest.replaced}
        assert unlinked <= waiting, f"{sorted(unlinked - waiting)} are unlinked, and nothing will delete them"
        assert not waiting & manifest.object_names(), "an object is named, and waits for its deletion"
        now_ms = self.clock.now_ms()
        self.unlinked |= dict.fromkeys(unlinked, now_ms)
        for name in manifest.object_names():
            self.unlinked.pop(name, None)
        late_ms = 2_000  # `keyfold.store.api.STORE_TIME_RESOLUTION_MS`
        for r in manifest.replaced:
            assert r.unlinked_at_ms <= now_ms + self.shown.highest_ms + late_ms, (
                f"{r} has a time that is not of this store ({now_ms})"
            )
