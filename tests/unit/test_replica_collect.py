"""What goes at a replica, and when: what was replaced, what rounds have left, uploads that nobody ends."""

from __future__ import annotations

from keyfold.log.names import Place
from keyfold.store.faulty import Fault, Kind
from keyfold_compactor.replica.standing.states import State
from tests.support.logs import records
from tests.support.replica_rounds import SETTINGS, Worlds

FAR = Place("far/logs", "users", 0)


def written(text: str = "a=1 b=2 a= c=3") -> Worlds:
    worlds = Worlds.new()
    log = worlds.log()
    log.append(records(text))
    return worlds


def test_what_is_replaced_at_the_replica_goes_after_its_own_delay_by_its_own_stores_time() -> None:
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


def test_what_an_interrupted_round_copied_and_nobody_wants_any_more_is_collected() -> None:
    worlds = Worlds.new()
    log = worlds.log()
    log.append(records("a=1 b=1"))
    log.append(records("a=2 b=2", 2))
    with worlds.running() as running:
        running.replica.add(
            Fault(lambda c: c.key == FAR.manifest_key and c.operation == "put", Kind.UNAVAILABLE, times=99)
        )
        assert running.state().state is State.WAITING
    assert len(worlds.folder()) == 4
    log.compact(merge=True)
    with worlds.running() as running:
        running.once()
        assert running.runner.tally.totals.orphans_deleted == 4
    assert worlds.folder() == worlds.manifests()[1].object_names()


def test_an_upload_of_what_is_there_already_is_collected() -> None:
    worlds = written()
    with worlds.running() as running:
        running.once()
        there = min(worlds.manifests()[1].object_names())
        worlds.replica.start_upload(FAR.key(there)).write(b"a part that a rival left")
        worlds.clock.advance(2 * SETTINGS.collect_ms)
        running.once()
        assert running.runner.tally.totals.orphans_deleted == 1
    assert list(worlds.replica.list_uploads("")) == []


def test_a_right_to_delete_that_is_missing_is_shown_and_holds_up_nothing() -> None:
    worlds = Worlds.new()
    log = worlds.log()
    log.append(records("a=1 b=1"))
    log.append(records("a=2 b=2", 2))
    with worlds.running(file_delete_delay_ms=0) as running:
        running.once()
        log.compact(merge=True)
        running.replica.add(Fault(lambda c: c.operation == "delete", Kind.UNAVAILABLE, times=1 << 40))
        state = running.state()
        assert (state.state, state.code, state.host) == (State.IN_SYNC, "StoreUnavailable", "far.test")
        log.append(records("d=1", 4))
        assert running.state().state is State.IN_SYNC
    assert worlds.is_equal()
