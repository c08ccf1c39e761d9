"""An append under every fault at every store call, with rivals acting in between.

A sink here is the protocol's part of one: create, claim, upload, commit, go on. Records are their own offsets, so the
log's truth is easy to say: it holds 0, 1, 2, ... once each, in order, whatever happened.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from keyfold.errors import CommitRefused, Fenced, KeyfoldError, OffsetMoved, StoreUnavailable, UploadLost
from keyfold.log.manifest import Manifest, faults
from keyfold.log.names import ObjectName, Place, Role, parse_name
from keyfold.log.objects import create_object
from keyfold.log.partition_log import PartitionLog, SinkSession
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import ObjectStore
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Chaos, Fault, FaultKind, FaultyStore, SimulatedCrash, every_fault
from tests.support.manifests import entry

PLACE = Place("topics", "users", 0)
RECORDS = 6
CUT = 2

Rival = Callable[[MemoryStore, ManualClock], None]


def open_log(store: ObjectStore, clock: ManualClock, seed: int) -> PartitionLog:
    return PartitionLog(store, PLACE, clock=clock, random=Random(seed), retry_timeout_s=1.0)


def upload(log: PartitionLog, name: ObjectName, base: int, end: int) -> None:
    data = json.dumps(list(range(base, end))).encode()
    for key in (PLACE.key(str(name)), PLACE.key(str(name.index))):
        create_object(log.store, key, data, log.retry)


def run_sink(store: ObjectStore, clock: ManualClock, seed: int, until: int = RECORDS) -> None:
    """One life of a sink: ends when everything is in the log, when it is fenced, or by a crash."""
    log = open_log(store, clock, seed)
    session: SinkSession | None = None
    pending: tuple[ObjectName, int, int] | None = None
    for _ in range(100):
        try:
            if session is None:
                session = log.claim_sink(log.create())
            base = session.manifest.next_offset
            if base >= until:
                return
            if pending is None:
                pending = (session.new_name(base), base, min(base + CUT, until))
            upload(log, *pending)
            session.append(entry(*pending))
            pending = None
        except (OffsetMoved, UploadLost):
            pending = None
            if is_fenced(session):
                return
        except CommitRefused:
            return
        except KeyfoldError as error:
            if not error.retriable:
                raise
    raise AssertionError("the sink never ended")


def is_fenced(session: SinkSession | None) -> bool:
    try:
        assert session is not None
        session.refresh()
    except Fenced:
        return True
    except StoreUnavailable:
        pass  # the next commit says it
    return False


def check(store: MemoryStore) -> Manifest:
    """The log is sound, and holds each offset below its end once and in order."""
    manifest = open_log(store, ManualClock(), 0).load().manifest
    assert faults(manifest) == []
    offsets = [offset for s in manifest.segments for offset in json.loads(store.get(PLACE.key(s.name)).data)]
    assert offsets == list(range(manifest.next_offset))
    for segment in manifest.segments:
        store.get(PLACE.key(segment.index_name))
    return manifest


def collect_orphans(store: MemoryStore, clock: ManualClock) -> None:
    """List first, read the manifest after, judge an unnamed object by the claimed epoch of the role in its name."""
    listed = [parse_name(info.key.removeprefix(PLACE.folder)) for info in store.list(PLACE.folder)]
    manifest = open_log(store, clock, 0).load().manifest
    for name in listed:
        if name is None or str(name) in manifest.object_names():
            continue
        if name.epoch < manifest.role(name.role).epoch:
            store.delete(PLACE.key(str(name)))


def rival_compactor(store: MemoryStore, clock: ManualClock) -> None:
    """Commits of the other role: they move the manifest but must not hurt an append."""
    try:
        session = open_log(store, clock, 77).claim_compactor(lease_ms=0, holder="rival")
    except KeyfoldError:
        return  # there is no log yet
    session.renew(0)
    collect_orphans(store, clock)


def rival_sink(store: MemoryStore, clock: ManualClock) -> None:
    """Another sink takes the partition over, appends, and garbage collection runs."""
    manifest = open_log(store, clock, 88).create().manifest
    run_sink(store, clock, 99, until=min(manifest.next_offset + 1, RECORDS))
    collect_orphans(store, clock)


def calls_of_a_clean_run() -> FaultyStore:
    clock = ManualClock()
    clean = FaultyStore(MemoryStore(clock=clock))
    run_sink(clean, clock, 1)
    return clean


FAULTS = list(every_fault(calls_of_a_clean_run().calls))


@pytest.mark.sharded
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f.at}-{f.kind.value.replace(' ', '-')}")
def test_an_append_survives_every_fault_at_every_call(fault: Fault) -> None:
    clock = ManualClock()
    inner = MemoryStore(clock=clock)
    store = FaultyStore(inner, [fault])
    try:
        run_sink(store, clock, 1)
    except SimulatedCrash:
        run_sink(inner, clock, 2)
    store.land()
    assert check(inner).next_offset == RECORDS
    collect_orphans(inner, clock)
    assert check(inner).next_offset == RECORDS


@pytest.mark.parametrize("rival", [rival_compactor, rival_sink], ids=["compactor", "sink"])
@pytest.mark.sharded
@pytest.mark.parametrize("rival_at", range(1, len(calls_of_a_clean_run().calls) + 1))
def test_an_append_survives_every_fault_with_a_rival_between_retries(rival: Rival, rival_at: int) -> None:
    def run(*faults: Fault) -> tuple[FaultyStore, MemoryStore, ManualClock]:
        clock = ManualClock()
        inner = MemoryStore(clock=clock)
        store = FaultyStore(
            inner, faults, on_call=lambda call: rival(inner, clock) if call.number == rival_at else None
        )
        with suppress(SimulatedCrash):
            run_sink(store, clock, 1)
        return store, inner, clock

    for fault in every_fault(run()[0].calls):
        store, inner, clock = run(fault)
        run_sink(inner, clock, 2)
        check(inner)
        store.land()
        assert check(inner).next_offset == RECORDS
        collect_orphans(inner, clock)
        assert check(inner).next_offset == RECORDS


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(60))
def test_alternating_sinks_survive_a_randomly_failing_store(seed: int) -> None:
    random = Random(seed)
    clock = ManualClock()
    inner = MemoryStore(clock=clock)
    stores = []
    for life in range(12):
        store = FaultyStore(inner, chaos=Chaos(random, 0.25, tuple(FaultKind), lands_after_max=8))
        stores.append(store)
        with suppress(SimulatedCrash):
            run_sink(store, clock, seed * 100 + life, until=4 * life)
        if random.random() < 0.3:
            random.choice(stores).land()
        if random.random() < 0.5 and inner_has_log(inner, clock):
            collect_orphans(inner, clock)
            check(inner)
    for store in stores:
        store.land()
    run_sink(inner, clock, 12345, until=60)
    assert check(inner).next_offset == 60


def inner_has_log(store: MemoryStore, clock: ManualClock) -> bool:
    try:
        open_log(store, clock, 0).load()
    except KeyfoldError:
        return False
    return True


def test_names_tell_role_and_epoch() -> None:
    name = ObjectName(5, 7, Role.SINK, "0" * 16)
    assert parse_name(str(name)) == name
    assert parse_name(str(name.index)) == name.index
