"""Every store call of a pass and of a deletion, failing in every way that it can fail.

For each fault: the log as every reader could see it stays the same log (each manifest version that ever existed folds
to the reference state), no version that is current names a missing object, the next run finishes the work, and what
was left behind goes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache

import pytest

from keyfold.log.manifest import Manifest
from keyfold.log.manifest_codec import decode_manifest
from keyfold.log.record import Record
from keyfold.runtime.buffers import Bytes
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import PutMode, PutResult, Update
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Call, Fault, FaultyStore, SimulatedCrash, every_fault
from keyfold_compactor.decide.settings import TopicSettings
from tests.support.cleaning import (
    EAGER,
    PLACE,
    Sink,
    clean,
    last_per_key,
    latest,
    load,
    object_names,
    read_all,
    record,
)
from tests.support.replica_oracle import twin_of

DELAYED = TopicSettings(min_cleanable_dirty_ratio=0.0, delete_retention_ms=1_000, file_delete_delay_ms=500)
PARTED = replace(EAGER, segment_bytes=1)
"""No two segments are merged, and each that is rewritten is a part of its own."""
BATCHES = [
    [record(0, "a", "1"), record(1, "b", "2"), record(2, None, "x")],
    [record(3, "a", None), record(4, "c", "3"), record(5, "d", "4")],
    [record(6, "b", "5"), record(7, "c", None), record(8, "e", "6")],
    [record(9, "gone", None)],
]
APPENDED = [r for batch in BATCHES for r in batch]


@dataclass
class Watched(MemoryStore):
    """Checks the log after every manifest that lands, as a reader that pins it sees it."""

    clock: ManualClock = field(default_factory=ManualClock)
    expected: Callable[[], dict[bytes, Record]] = field(default=lambda: latest(APPENDED))
    versions: int = 0
    is_watching: bool = False

    def __post_init__(self) -> None:
        MemoryStore.__init__(self, "watched", self.clock)

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        result = super().put(key, data, mode)
        if self.is_watching and key == PLACE.manifest_key:
            self.look(decode_manifest(bytes(data), PLACE))
        return result

    def look(self, manifest: Manifest) -> None:
        self.versions += 1
        names = object_names(self)
        assert manifest.object_names() <= names, "the manifest names an object that is not there"
        found = read_all(self, manifest)
        assert latest(found) == self.expected()
        keyed = [r.key for r in found if r.offset < manifest.first_dirty_offset and r.key is not None]
        assert len(set(keyed)) == len(keyed)

    def delete(self, key: str) -> None:
        super().delete(key)
        if self.is_watching:
            assert load(self).object_names() <= object_names(self), f"deleted {key}, which the manifest names"


def prepared(passes: int = 0, settings: TopicSettings = EAGER) -> Watched:
    """A log of four segments, cleaned `passes` times: one of many that begin there."""
    first = _prepared(passes, settings)
    store = Watched(clock=ManualClock(first.clock.time_ms))
    twin_of(first, store)
    return store


@cache
def _prepared(passes: int, settings: TopicSettings) -> Watched:
    store = Watched()
    sink = Sink.open(store, clock=store.clock)
    for batch in BATCHES:
        sink.append(batch)
    for number in range(passes):
        clean(store, settings, clock=store.clock, seed=100 + number)
        store.clock.advance(10_000)
    store.is_watching = True
    return store


def pass_bytes(settings: TopicSettings) -> int:
    return 1 if settings is PARTED else 1 << 40


def calls_of(store: Watched, settings: TopicSettings) -> list[Call]:
    faulty = FaultyStore(store)
    report = clean(faulty, settings, clock=store.clock, pass_bytes=pass_bytes(settings))
    assert report.exit_code == 0, report.document()
    return faulty.calls


def faults_of(passes: int, settings: TopicSettings) -> Iterable[Fault]:
    return every_fault(calls_of(prepared(passes, settings), settings))


CASES = [
    pytest.param(passes, settings, fault, id=f"{name}-{fault.at}-{fault.kind.value}")
    for name, passes, settings in (
        ("pass", 0, EAGER),
        ("purge", 1, EAGER),
        ("pass-with-delays", 0, DELAYED),
        ("stamp", 1, DELAYED),
        ("delete-and-purge", 2, DELAYED),
        ("parts", 0, PARTED),
    )
    for fault in faults_of(passes, settings)
]


@pytest.mark.sharded
@pytest.mark.parametrize(("passes", "settings", "fault"), CASES)
def test_a_fault_at_any_call_leaves_the_log_sound_and_the_next_run_finishes(
    passes: int, settings: TopicSettings, fault: Fault
) -> None:
    store = prepared(passes, settings)
    faulty = FaultyStore(store, [fault])
    with contextlib.suppress(SimulatedCrash):
        clean(faulty, settings, clock=store.clock, seed=1, pass_bytes=pass_bytes(settings))
    store.look(load(store))
    finish(store, faulty, settings)


@pytest.mark.sharded
@pytest.mark.parametrize("land_when", ["at once", "after the next run"])
@pytest.mark.parametrize(("passes", "settings", "fault"), [c for c in CASES if "late" in str(c.id)])
def test_a_late_request_changes_nothing(passes: int, settings: TopicSettings, fault: Fault, land_when: str) -> None:
    store = prepared(passes, settings)
    faulty = FaultyStore(store, [fault])
    with contextlib.suppress(SimulatedCrash):
        clean(faulty, settings, clock=store.clock, seed=1, pass_bytes=pass_bytes(settings))
    if land_when == "after the next run":
        store.clock.advance(120_000)
        clean(store, settings, clock=store.clock, seed=2)
    faulty.land()
    finish(store, faulty, settings)


def finish(store: Watched, faulty: FaultyStore, settings: TopicSettings) -> None:
    """Runs by another process, after the lease: they end with exactly the live records and nothing else.

    Another run changes nothing about that.
    """
    faulty.land()
    seeds = iter(range(2, 8))
    while not is_finished(store):
        clean_after_a_lease(store, settings, next(seeds))
    clean_after_a_lease(store, settings, next(seeds))
    assert is_finished(store)


def clean_after_a_lease(store: Watched, settings: TopicSettings, seed: int) -> None:
    store.clock.advance(120_000)
    report = clean(store, settings, clock=store.clock, seed=seed, collect_orphans=True)
    assert report.exit_code == 0, report.document()


def is_finished(store: Watched) -> bool:
    manifest = load(store)
    return (
        read_all(store, manifest) == [r for r in last_per_key(APPENDED) if not r.is_tombstone]
        and object_names(store) == manifest.object_names()
        and manifest.replaced == ()
        and list(store.list_uploads("")) == []
    )


@pytest.mark.sharded
@pytest.mark.parametrize("at", range(1, 40))
def test_an_append_between_any_two_calls_of_a_pass_is_neither_lost_nor_cleaned_early(at: int) -> None:
    store = Watched()
    sink = Sink.open(store, clock=store.clock)
    for batch in BATCHES:
        sink.append(batch)
    appended = list(APPENDED)
    store.expected = lambda: latest(appended)
    store.is_watching = True

    def append(call: Call) -> None:
        if call.number == at:
            more = [record(10, "a", "again"), record(11, "b", None)]
            appended.extend(more)
            sink.append(more)

    report = clean(FaultyStore(store, on_call=append), clock=store.clock)
    assert report.exit_code == 0
    assert latest(read_all(store)) == latest(appended)
    for seed in (2, 3):
        clean(store, clock=store.clock, seed=seed)
    assert read_all(store) == [r for r in last_per_key(appended) if not r.is_tombstone]


@pytest.mark.sharded
@pytest.mark.parametrize("at", range(1, 40))
def test_a_compactor_fenced_at_any_call_neither_loses_nor_harms_anything(at: int) -> None:
    """The first one pauses at a call, its lease runs out, a second one does the whole work, then the first wakes."""
    store = prepared()

    def overtake(call: Call) -> None:
        if call.number == at:
            store.clock.advance(120_000)
            for seed in (2, 3):
                clean(store, clock=store.clock, seed=seed)

    clean(FaultyStore(store, on_call=overtake), clock=store.clock, seed=1)
    store.look(load(store))
    for seed in (4, 5, 6):
        store.clock.advance(120_000)
        clean(store, clock=store.clock, seed=seed, collect_orphans=True)
    assert read_all(store) == [r for r in last_per_key(APPENDED) if not r.is_tombstone]
    assert object_names(store) == load(store).object_names()


def test_the_cases_include_every_kind_of_write_of_a_pass() -> None:
    calls = [call for passes in (0, 1) for call in calls_of(prepared(passes), EAGER)]
    assert {c.operation for c in calls} >= {"get", "get_range", "put", "list", "list_uploads", "delete"}
    assert sum(c.operation == "put" and isinstance(c.mode, Update) for c in calls) >= 4


def test_the_cases_really_purge_and_delete() -> None:
    """Without a fault each prepared log has the work to do that its name says."""
    done = {}
    for name, passes, settings in (("purge", 1, EAGER), ("delete", 2, DELAYED)):
        store = prepared(passes, settings)
        (done[name],) = clean(store, settings, clock=store.clock).partitions
    assert all(report.purged_tombstones == 3 for report in done.values())
    assert len(done["delete"].garbage.replaced) > 0
