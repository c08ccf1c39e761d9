"""What goes at a replica, and when: what was replaced, what rounds have left, uploads that nobody ends."""

from __future__ import annotations

import threading

from keyfold.log.names import Place
from keyfold.store.api import Create
from keyfold.store.faulty import Fault, Kind
from keyfold_compactor.replica.states import State
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


def test_what_a_round_relies_on_was_named_after_its_claim() -> None:  # noqa: C901 - two processes, step by step
    """A collector that has found an object unnamed deletes it late. Meanwhile somebody who had seen an older version of
    the source, which names that object, claims and finds it there: he must not build on it."""
    worlds = Worlds.new()
    log = worlds.log()
    log.append(records("a=1 b=1"))
    steps = {name: threading.Event() for name in ("listing", "list", "judging", "judge", "deleting", "delete")}

    def wait_at(reached: str, until: str) -> None:
        steps[reached].set()
        assert steps[until].wait(30)

    missing: set[str] = set()
    with worlds.running() as collector, worlds.running() as late:
        collector.once()
        had = worlds.manifests()[1].log_version
        worlds.clock.advance(3_600_000)

        def hold_up(call: Call) -> None:
            if call.operation == "list" and not steps["listing"].is_set():
                wait_at("listing", "list")
            if call.operation == "delete" and not steps["deleting"].is_set():
                wait_at("deleting", "delete")

        def hold_up_source(call: Call) -> None:
            if call.operation == "get" and steps["listing"].is_set() and not steps["judging"].is_set():
                wait_at("judging", "judge")

        collector.replica.on_call, collector.source.on_call = hold_up, hold_up_source
        collecting = threading.Thread(target=collector.once)
        collecting.start()
        assert steps["listing"].wait(30)

        # The source goes on, and the last requests of a process that is gone bring what it names there.
        entry = log.append(records("a=2", 2))
        for name in (entry.name, entry.index_name):
            data = worlds.source.get(Place("topics", "users", 0).key(name)).data
            worlds.replica.put(FAR.key(name), data, Create())
        steps["list"].set()
        assert steps["judging"].wait(30)

        def sees_that_version_and_sleeps(call: Call) -> None:
            if call.operation == "get" and late.source.calls[-1].operation == "get":
                late.replica.on_call = is_awake
                log.compact(merge=True)
                steps["judge"].set()
                assert steps["deleting"].wait(30)

        def is_awake(_call: Call) -> None:
            if worlds.manifests()[1].log_version > had:
                late.replica.on_call = None
                steps["delete"].set()
                collecting.join(30)
                missing.update(worlds.manifests()[1].object_names() - worlds.folder())

        late.replica.on_call = sees_that_version_and_sleeps
        late.once()
        steps["delete"].set()
        collecting.join(30)
        assert late.state().state is State.IN_SYNC
    assert not missing
    assert not {entry.name, entry.index_name} & worlds.folder()
    assert worlds.is_equal()
