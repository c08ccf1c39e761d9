"""A replication loop: which topics it covers, which changes it follows, and that it ends when it should."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random

import pytest

from keyfold.errors import ConfigError, StoreUnavailable
from keyfold.log.manifest import NO_VERSION
from keyfold.replicas.documents import Enablement
from keyfold.runtime.clock import SystemClock
from keyfold.store.wrappers.faults import Call, Fault, FaultKind
from keyfold_replicator.copy.schemas import SchemaCopier
from keyfold_replicator.registry.replica_pair import DesiredReplication
from keyfold_replicator.rounds.holds import SourceHold
from keyfold_replicator.rounds.partition_rounds import PartitionWorker
from keyfold_replicator.rounds.runner import Runner, RunnerTimings
from keyfold_replicator.state.retry import RoundBackoff
from keyfold_replicator.state.states import SyncState
from keyfold_replicator.state.totals import Tally
from tests.support.logs import records
from tests.support.replica_rounds import ENABLED, HOLD, SETTINGS, Running, Worlds, pair

QUICK = replace(SETTINGS, poll_ms=20, discover_ms=20, retry_timeout_s=0.05)


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@contextmanager
def looping(running: Running) -> Iterator[threading.Event]:
    stop = threading.Event()
    thread = threading.Thread(target=running.runner.loop, args=(stop,))
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture
def worlds() -> Worlds:
    found = Worlds.new(RunnerTimings(check_s=0.02, publish_s=0.02, enablement_kept_s=0.02, tick_s=0.01))
    found.log().append(records("a=1"))
    return found


def states(running: Running) -> set[SyncState]:
    return {s.state for s in running.runner.states()}


def test_a_loop_follows_the_source_and_adds_new_topics(worlds: Worlds) -> None:
    with worlds.running(QUICK, clock=SystemClock()) as running, looping(running):
        until(lambda: states(running) == {SyncState.IN_SYNC})
        worlds.log().append(records("b=1", 1))
        until(lambda: [s.replica_next_offset for s in running.runner.states()] == [2])
        worlds.log("orders").append(records("x=1"))
        until(lambda: len(running.runner.states()) == 2 and states(running) == {SyncState.IN_SYNC})
    assert worlds.is_equal()
    assert worlds.is_equal("orders")
    assert worlds.published[-1] == running.runner.states()


def test_a_loop_pauses_resumes_and_drops_topics_as_registered(worlds: Worlds) -> None:
    worlds.log("orders").append(records("x=1"))
    with worlds.running(QUICK, clock=SystemClock()) as running, looping(running):
        until(lambda: states(running) == {SyncState.IN_SYNC} and len(running.runner.states()) == 2)
        worlds.documents.desired = DesiredReplication(paused=True)
        until(lambda: states(running) == {SyncState.PAUSED})
        worlds.log().append(records("b=1", 1))
        time.sleep(0.2)
        assert worlds.manifests()[1].next_offset == 1
        worlds.documents.desired = DesiredReplication(covers=lambda topic: topic == "users")
        until(lambda: [s.replica_next_offset for s in running.runner.states()] == [2])
        assert {s.place.topic for s in running.runner.states()} == {"users"}


def test_a_loop_keeps_its_topics_while_a_new_pattern_cannot_be_matched(worlds: Worlds) -> None:
    told: list[str] = []

    def endless(topic: str) -> bool:
        told.append(topic)
        raise ConfigError("topics.regex", "has not been matched")

    with worlds.running(QUICK, clock=SystemClock()) as running, looping(running):
        until(lambda: states(running) == {SyncState.IN_SYNC})
        worlds.documents.desired = DesiredReplication(covers=endless)
        until(lambda: bool(told))
        worlds.log().append(records("b=1", 1))
        until(lambda: [s.replica_next_offset for s in running.runner.states()] == [2])


def test_a_loop_ends_when_the_registration_is_removed(worlds: Worlds) -> None:
    with worlds.running(QUICK, clock=SystemClock()) as running:
        thread = threading.Thread(target=running.runner.loop, args=(threading.Event(),))
        thread.start()
        until(lambda: states(running) == {SyncState.IN_SYNC})
        worlds.documents.desired = None
        thread.join(60)
        assert not thread.is_alive()


def test_an_unreadable_registration_keeps_the_last_known_one(worlds: Worlds) -> None:
    with worlds.running(QUICK, clock=SystemClock()) as running, looping(running):
        until(lambda: states(running) == {SyncState.IN_SYNC})

        def away() -> DesiredReplication:
            raise StoreUnavailable("k", "time-out")

        worlds.documents.load_desired = away  # type: ignore[method-assign]  # replaced for this test
        worlds.log().append(records("b=1", 1))
        until(lambda: [s.replica_next_offset for s in running.runner.states()] == [2])


def test_a_pause_stops_a_copy_between_objects_and_a_resume_continues_it(worlds: Worlds) -> None:
    log = worlds.log()
    for number in range(1, 30):
        log.append(records("a=1", number))
    with worlds.running(QUICK, clock=SystemClock()) as running:
        running.source.on_call = lambda c: time.sleep(0.03) if c.key.endswith((".parquet", ".avro")) else None
        with looping(running):
            until(lambda: states(running) == {SyncState.COPYING})
            worlds.documents.desired = DesiredReplication(paused=True)
            until(lambda: states(running) == {SyncState.PAUSED})
            time.sleep(0.3)
            there = worlds.folder()
            assert len(there) < 60
            time.sleep(0.2)
            assert worlds.folder() == there
            worlds.documents.desired = DesiredReplication()
            until(lambda: states(running) == {SyncState.IN_SYNC})
        sent = [c.key for c in running.replica.calls if c.operation == "put" and c.key.endswith((".parquet", ".avro"))]
        assert len(sent) == 60 + 1  # and the manifest
        assert running.runner.tally.totals.failures == {}


def test_a_waiting_log_continues_soon_after_compaction_is_enabled(worlds: Worlds) -> None:
    worlds.documents.allowed = Enablement()
    worlds.log().compact()
    slow = replace(QUICK, retry=RoundBackoff(3_600_000, 3_600_000))
    with worlds.running(slow, clock=SystemClock()) as running, looping(running):
        until(lambda: states(running) == {SyncState.WAITING})
        time.sleep(0.1)
        worlds.documents.allowed = ENABLED
        until(lambda: states(running) == {SyncState.IN_SYNC})


def test_a_topic_removed_at_the_source_is_dropped_and_its_replica_stays(worlds: Worlds) -> None:
    worlds.log("orders").append(records("x=1"))
    with worlds.running(QUICK, clock=SystemClock()) as running, looping(running):
        until(lambda: states(running) == {SyncState.IN_SYNC} and len(running.runner.states()) == 2)
        for info in list(worlds.source.list("topics/orders/")):
            worlds.source.delete(info.key)
        until(lambda: [s.place.topic for s in running.runner.states()] == ["users"])
    assert len(worlds.read("orders")) == 1


def test_an_unavailable_side_is_waited_for_and_recovers_by_itself(worlds: Worlds) -> None:
    settings = replace(QUICK, retry=replace(QUICK.retry, first_ms=5, cap_ms=50))
    with worlds.running(settings, clock=SystemClock()) as running, looping(running):
        until(lambda: states(running) == {SyncState.IN_SYNC})
        is_away = threading.Event()
        is_away.set()
        running.replica.add(Fault(lambda _c: is_away.is_set(), FaultKind.UNAVAILABLE, times=1 << 40))
        worlds.log().append(records("b=1", 1))
        until(lambda: any(s.attempts > 3 for s in running.runner.states()))
        (state,) = running.runner.states()
        assert (state.state, state.code, state.host) == (SyncState.WAITING, "StoreUnavailable", "far.test")
        is_away.clear()
        until(lambda: states(running) == {SyncState.IN_SYNC})
        (state,) = running.runner.states()
        assert (state.attempts, state.code) == (0, "")
    assert worlds.is_equal()


def test_stopping_does_not_wait_for_a_long_copy(worlds: Worlds) -> None:
    """Objects are copied slowly; a stopped run ends after those in flight."""
    log = worlds.log()
    for number in range(1, 40):
        log.append(records("a=1", number))
    with worlds.running(QUICK, clock=SystemClock()) as running:
        running.source.on_call = lambda c: time.sleep(0.05) if c.operation == "get" else None
        running.runner.once(lambda: bool(worlds.folder()))
        (state,) = running.runner.states()
        assert (state.state, state.code) == (SyncState.PENDING, "")
    assert 0 < len(worlds.folder()) < 80
    with worlds.running(QUICK) as running:
        running.once()
    assert worlds.is_equal()


def test_a_removed_replica_does_not_wait_for_a_long_copy(worlds: Worlds) -> None:
    log = worlds.log()
    for number in range(1, 40):
        log.append(records("a=1", number))
    with worlds.running(QUICK, clock=SystemClock()) as running:
        running.source.on_call = lambda c: time.sleep(0.1) if c.key.endswith(".parquet") else None
        thread = threading.Thread(target=running.runner.loop, args=(threading.Event(),))
        thread.start()
        until(worlds.folder)
        worlds.documents.desired = None
        thread.join(60)
        assert not thread.is_alive()
    assert len(worlds.folder()) < 80


def test_long_copies_do_not_delay_other_partitions(worlds: Worlds) -> None:
    for partition in range(1, 4):
        log = worlds.log("big", partition)
        for number in range(15):
            log.append(records("a=1", number))
    slow = replace(QUICK, threads=1)
    with worlds.running(slow, clock=SystemClock()) as running:
        running.source.on_call = lambda c: time.sleep(0.1) if c.key.endswith(".parquet") else None
        with looping(running):
            until(lambda: sum(s.state is SyncState.COPYING for s in running.runner.states()) == 3)
            worlds.log().append(records("b=1", 1))
            until(lambda: running.runner.states()[-1].replica_next_offset == 2)
            assert sum(s.state is SyncState.COPYING for s in running.runner.states()) == 3


def test_states_are_published_while_copying(worlds: Worlds) -> None:
    log = worlds.log()
    for number in range(1, 10):
        log.append(records("a=1", number))
    with worlds.running(QUICK, clock=SystemClock()) as running:
        running.source.on_call = lambda c: time.sleep(0.03) if c.operation == "get" else None
        running.once()
    copying = [s for states in worlds.published for s in states if s.state is SyncState.COPYING]
    assert len({s.pending.bytes for s in copying}) > 1


def test_a_process_exit_during_a_round_is_not_swallowed(worlds: Worlds) -> None:
    class Ended(BaseException):
        pass

    def end(_call: Call) -> None:
        raise Ended

    with worlds.running(QUICK) as running:
        running.replica.on_call = end
        with pytest.raises(Ended):
            running.runner.once()


class Defect(Exception):
    """What no code expects."""


def breaking(monkeypatch: pytest.MonkeyPatch, when: Callable[[], object]) -> None:
    """Workers that have a defect, which shows when `when` says so."""

    def run(_self: PartitionWorker, *, resync: bool = False) -> None:
        until(when)
        raise Defect

    monkeypatch.setattr(PartitionWorker, "run_rounds", run)


@pytest.mark.parametrize("is_told_to_stop", [False, True])
def test_a_defect_of_a_worker_is_not_lost(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, is_told_to_stop: bool
) -> None:
    with worlds.running(QUICK, clock=SystemClock()) as running:
        told = threading.Event()

        def should_stop() -> bool:
            if is_told_to_stop:
                told.set()
            return is_told_to_stop

        breaking(monkeypatch, told.is_set if is_told_to_stop else lambda: True)
        with pytest.raises(Defect):
            running.runner.once(should_stop)


def test_a_defect_while_a_loop_ends_is_not_lost(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, begun = threading.Event(), threading.Event()
    with worlds.running(QUICK, clock=SystemClock()) as running:

        def is_stopping() -> bool:
            begun.set()
            return stop.is_set()

        def end() -> None:
            assert begun.wait(60)
            stop.set()

        breaking(monkeypatch, is_stopping)
        stopping = threading.Thread(target=end)
        stopping.start()
        with pytest.raises(Defect):
            running.runner.loop(stop)
        stopping.join(60)


# Pins


def test_a_hold_is_renewed_only_during_its_round(worlds: Worlds) -> None:
    log = worlds.log()
    with SourceHold(log.log, HOLD, log.log.load(), 60_000) as pin:
        first = worlds.manifests_of_source().hold(HOLD)
        worlds.later(30_000)
        pin.renew()
        second = worlds.manifests_of_source().hold(HOLD)
        assert first is not None
        assert second is not None
        assert second.expires_at_ms == first.expires_at_ms + 30_000
    log.log.hold(HOLD, None, received_to=1)
    pin.renew()
    third = worlds.manifests_of_source().hold(HOLD)
    assert third is not None
    assert third.version == NO_VERSION


def test_a_hold_keeps_its_versions_objects_although_the_source_is_cleaned(worlds: Worlds) -> None:
    log = worlds.log()
    log.append(records("a=2", 1))
    pin = SourceHold(log.log, HOLD, log.log.load(), 60_000)
    log.compact(merge=True)
    manifest = worlds.manifests_of_source()
    hold = manifest.hold(HOLD)
    assert hold is not None
    assert {r.name for r in manifest.replaced} == pin.pinned.manifest.object_names()
    assert all(hold.version < r.version for r in manifest.replaced)


# Schemas


def test_concurrent_rounds_share_listings_that_started_after_they_asked(worlds: Worlds) -> None:
    asked, listed = 40, []
    with worlds.running(QUICK, clock=SystemClock()) as running:

        def slow(call: Call) -> None:
            if call.operation == "list" and "_schemas" in call.key:
                listed.append(call)
                time.sleep(0.02)

        running.source.on_call = slow
        schema_copier = SchemaCopier(
            pair(running.source, running.replica), running.runner._transfer, Tally(), running.runner._retry
        )
        threads = [threading.Thread(target=schema_copier.copy_missing) for _ in range(asked)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert 1 <= len(listed) < asked / 2


def test_a_runner_is_deterministic_given_its_random(worlds: Worlds) -> None:
    clock = worlds.clock
    waits = []
    for _ in range(2):
        source = Runner(pair(worlds.source, worlds.replica), worlds.documents, QUICK, clock=clock, random=Random(5))
        with source:
            waits.append(source._make_worker("users", 0)._random.random())
    assert waits[0] == waits[1]
