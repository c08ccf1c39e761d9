"""Garbage collection at a replica: replaced objects, leftovers of rounds, unfinished uploads."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from keyfold.errors import ReplicaDiverged
from keyfold.log.edits_replica import require_follows
from keyfold.log.gc import CollectedGarbage
from keyfold.log.names import Place
from keyfold.log.replica_log import ReplicaLog, ReplicaSession
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Fault, FaultKind
from keyfold_replicator.rounds.gc import delete_orphans
from keyfold_replicator.state.states import SyncState
from tests.support.logs import MadeLog, records
from tests.support.manifests import sink_name
from tests.support.replica_rounds import SETTINGS, Worlds

FAR = Place("far/logs", "users", 0)


def written(text: str = "a=1 b=2 a= c=3") -> Worlds:
    worlds = Worlds.new()
    log = worlds.log()
    log.append(records(text))
    return worlds


def test_objects_replaced_at_the_replica_are_deleted_after_its_own_delay_by_its_stores_clock() -> None:
    worlds = Worlds.new()
    log = worlds.log()
    log.append(records("a=1 b=1"))
    log.append(records("a=2 b=2", 2))
    with worlds.running() as running:
        running.once()
        old = worlds.folder()
        log.compact(merge=True)
        running.once()
        assert worlds.folder() > old
        worlds.clock.advance(10_000_000)  # of the machine and the source
        running.once()
        assert worlds.folder() > old
        worlds.far_clock.advance(61_000)
        worlds.clock.advance(61_000)
        running.once()
        worlds.far_clock.advance(61_000)
        worlds.clock.advance(61_000)
        running.once()
        assert not worlds.folder() & old
        assert worlds.manifests()[1].replaced == ()


def test_a_later_process_deletes_what_an_earlier_one_replaced() -> None:
    worlds = Worlds.new()
    log = worlds.log()
    log.append(records("a=1 b=1"))
    log.append(records("a=2 b=2", 2))
    with worlds.running() as running:
        running.once()
        log.compact(merge=True)
        running.once()
    for _ in range(3):
        worlds.later(100_000)
        with worlds.running() as running:
            running.once()
    assert worlds.folder() == worlds.manifests()[1].object_names()
    assert worlds.manifests()[1].replaced == ()


def test_unneeded_copies_of_an_interrupted_round_are_deleted() -> None:
    worlds = Worlds.new()
    log = worlds.log()
    log.append(records("a=1 b=1"))
    log.append(records("a=2 b=2", 2))
    with worlds.running() as running:
        running.replica.add(
            Fault(lambda c: c.key == FAR.manifest_key and c.operation == "put", FaultKind.UNAVAILABLE, times=99)
        )
        assert running.state().state is SyncState.WAITING
    assert len(worlds.folder()) == 4
    log.compact(merge=True)
    with worlds.running() as running:
        running.once()
        assert running.runner.tally.totals.orphans_deleted == 4
    assert worlds.folder() == worlds.manifests()[1].object_names()


def mirrored() -> tuple[MadeLog, MemoryStore, ReplicaSession]:
    """A log, and a replica of it by hand."""
    source, far = MadeLog(), MemoryStore("far")
    source.append(records("a=1 b=1"))
    source.append(records("a=2 b=2", 2))
    clock = ManualClock()
    session = ReplicaLog(far, source.place, clock=clock, random=Random(2)).claim(
        source.manifest, name="eu", source_url="memory://near"
    )
    for name in source.manifest.object_names():
        key = source.place.key(name)
        far.put(key, source.store.get(key).data, Create())
    session.mirror(source.manifest)
    return source, far, session


def test_objects_listed_only_by_the_replica_are_no_orphans() -> None:
    source, far, session = mirrored()
    assert session.manifest is not None
    names = session.manifest.object_names()
    source.compact(merge=True)
    assert not names & source.manifest.object_names()
    assert delete_orphans(far, session, source.log) == CollectedGarbage()
    assert {info.key.removeprefix(source.place.folder) for info in far.list(source.place.folder)} > names


def test_another_logs_manifest_makes_nothing_an_orphan() -> None:
    source, far, session = mirrored()
    copied = source.place.key(str(sink_name(4, 1)))
    far.put(copied, b"of a version that the next round commits", Create())
    other = MadeLog(random=Random(9))
    other.append(records("z=1"))
    assert delete_orphans(far, session, other.log) == CollectedGarbage()
    assert far.head(copied)
    assert delete_orphans(far, session, source.log).object_count == 1


@pytest.mark.parametrize("name", ["next_offset", "log_start_offset", "purged_to", "last_epoch"])
def test_a_rolled_back_source_is_not_followed_however_it_shows(name: str) -> None:
    source, _, session = mirrored()
    assert session.manifest is not None
    here = replace(session.manifest, **{name: getattr(session.manifest, name) + 1})
    newer = replace(source.manifest, version=source.manifest.version + 1)
    with pytest.raises(ReplicaDiverged, match=name):
        require_follows(here, newer)


def test_an_unfinished_upload_of_an_existing_object_is_deleted() -> None:
    worlds = written()
    with worlds.running() as running:
        running.once()
        there = min(worlds.manifests()[1].object_names())
        worlds.replica.start_upload(FAR.key(there)).write(b"a part that a rival left")
        worlds.clock.advance(2 * SETTINGS.collect_ms)
        running.once()
        assert running.runner.tally.totals.orphans_deleted == 1
    assert list(worlds.replica.list_uploads("")) == []


def test_a_missing_delete_permission_is_shown_and_blocks_nothing() -> None:
    worlds = Worlds.new()
    log = worlds.log()
    log.append(records("a=1 b=1"))
    log.append(records("a=2 b=2", 2))
    with worlds.running(file_delete_delay_ms=0) as running:
        running.once()
        log.compact(merge=True)
        running.replica.add(Fault(lambda c: c.operation == "delete", FaultKind.UNAVAILABLE, times=1 << 40))
        state = running.state()
        assert (state.state, state.code, state.host) == (SyncState.IN_SYNC, "StoreUnavailable", "far.test")
        log.append(records("d=1", 4))
        assert running.state().state is SyncState.IN_SYNC
    assert worlds.is_equal()
