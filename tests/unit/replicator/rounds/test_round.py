"""Rounds of one partition: what they ask, what they send, and what stays as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keyfold.errors import StoreUnavailable
from keyfold.log.manifest import NO_VERSION
from keyfold.log.names import Place
from keyfold.replicas.documents import CompactionEntry, Enablement
from keyfold.store.api import Create
from keyfold.store.wrappers.faults import Call, Fault, FaultKind
from keyfold_replicator.registry.replica_pair import DesiredReplication
from keyfold_replicator.state.states import SyncState
from tests.support.logs import records
from tests.support.replica_rounds import HOLD, Worlds

FAR = Place("far/logs", "users", 0)


def written(text: str = "a=1 b=2 a= c=3") -> Worlds:
    worlds = Worlds.new()
    log = worlds.log()
    log.append(records(text))
    return worlds


def test_a_round_makes_the_replica_equal_to_the_source() -> None:
    worlds = written()
    with worlds.running() as running:
        state = running.state()
    assert worlds.is_equal()
    assert [r.offset for r in worlds.read()] == [0, 1, 2, 3]
    assert (state.state, state.pending.bytes, state.lag.records) == (SyncState.IN_SYNC, 0, 0)
    source, replica = worlds.manifests()
    assert (state.source_next_offset, state.replica_next_offset) == (4, 4)
    assert replica.replica is not None
    assert (replica.replica.name, replica.replica.source) == ("far", "s3://near/topics")
    hold = source.hold(HOLD)
    assert hold is not None
    assert (hold.received_to, hold.version) == (4, NO_VERSION)


def test_nothing_new_costs_one_head_and_commits_nothing_on_either_side() -> None:
    worlds = written()
    with worlds.running() as running:
        running.once()
        before = worlds.manifests()
        running.once()
        with running.asked() as (source, replica):
            running.once()
        assert (source, replica) == (["head"], [])
        assert worlds.manifests() == before


def test_a_new_process_with_nothing_to_do_reads_two_manifests_and_commits_nothing() -> None:
    worlds = written()
    with worlds.running() as running:
        running.once()
        running.once()
    before = worlds.manifests()
    with worlds.running() as running, running.asked() as (source, replica):
        assert running.state().state is SyncState.IN_SYNC
    assert (source, replica) == (["get"], ["get"])
    assert worlds.manifests() == before


def test_a_new_segment_costs_one_get_and_one_put_for_each_of_its_two_objects() -> None:
    worlds = Worlds.new()
    log = worlds.log()
    log.append(records("a=1"))
    with worlds.running() as running:
        running.once()
        running.once()
        log.append(records("b=1", 1))
        with running.asked() as (source, replica):
            running.once()
        assert source == ["head", "get", "list", "get", "get", "put"]  # manifest twice, schemas, objects, cursor
        assert replica == ["get", "put", "put", "put"]


def test_each_object_is_sent_once() -> None:
    worlds = Worlds.new()
    log = worlds.log()
    with worlds.running() as running:
        for number in range(5):
            log.append(records("a=1 b=2", 2 * number))
            running.once()
        log.compact(merge=True)
        running.once()
        totals = running.runner.tally.totals
    assert totals.objects_sent == 12
    assert totals.sent_bytes == sum(
        info.size_bytes for info in worlds.replica.list(FAR.folder) if "_manifest" not in info.key
    )


def test_a_crash_between_commit_and_cursor_is_repaired_by_the_next_round_with_one_put() -> None:
    worlds = written()
    with worlds.running() as running:
        running.source.add(Fault(lambda c: c.operation == "put", FaultKind.UNAVAILABLE, times=1000))
        state = running.state()
        assert (state.state, state.code, state.host) == (SyncState.WAITING, "CommitUnknown", "near.test")
    assert worlds.is_equal()
    assert worlds.manifests()[0].hold(HOLD) is None
    with worlds.running() as running, running.asked() as (source, _):
        running.once()
    assert source[:2] == ["get", "put"]
    hold = worlds.manifests()[0].hold(HOLD)
    assert hold is not None
    assert hold.received_to == 4
    assert worlds.is_equal()


def test_objects_sent_by_an_interrupted_round_are_not_sent_again() -> None:
    worlds = Worlds.new()
    log = worlds.log()
    for number in range(4):
        log.append(records("a=1", number))
    with worlds.running(threads=1) as running:
        sent = 0

        def few(call: Call) -> bool:
            nonlocal sent
            sent += call.operation == "put"
            return call.operation == "put" and sent > 1 + 3  # the marker of a first copy, and objects

        running.replica.add(Fault(few, FaultKind.UNAVAILABLE, times=1 << 40))
        running.once()
    there = worlds.folder()
    assert len(there) == 3
    with worlds.running(threads=1) as running:
        running.once()
        totals = running.runner.tally.totals
        assert totals.objects_found == len(there)
        assert totals.objects_sent == 8 - len(there)
    assert worlds.is_equal()


def test_a_large_round_holds_its_version_and_releases_the_hold() -> None:
    worlds = written()
    seen = []
    with worlds.running(pin_min_bytes=1) as running:

        def look(call: Call) -> None:
            if call.operation == "put" and call.key.endswith(".avro") and "_manifest" not in call.key:
                seen.append(worlds.manifests_of_source().hold(HOLD))

        running.replica.on_call = look
        running.once()
        assert running.runner.tally.totals.pins == 1
    assert [h.version for h in seen if h is not None] == [3]
    hold = worlds.manifests()[0].hold(HOLD)
    assert hold is not None
    assert (hold.version, hold.received_to) == (NO_VERSION, 4)


def test_a_hold_left_by_a_crash_is_released_by_the_next_round() -> None:
    worlds = written()
    log = worlds.log()
    with worlds.running() as running:
        running.once()
    log.log.hold(HOLD, 2, 600_000)
    with worlds.running() as running:
        running.once()
    hold = worlds.manifests()[0].hold(HOLD)
    assert hold is not None
    assert hold.version == NO_VERSION


def test_an_object_deleted_during_the_copy_leads_to_a_new_plan_with_a_hold() -> None:
    worlds = Worlds.new()
    log = worlds.log()
    log.append(records("a=1 b=1"))
    log.append(records("a=2 b=2", 2))
    with worlds.running(threads=1) as running:

        def overtake(call: Call) -> None:
            if call.operation == "get" and call.key.endswith(".parquet"):
                running.source.on_call = None
                log.compact(merge=True)
                log.delete_replaced()

        running.source.on_call = overtake
        state = running.state()
        totals = running.runner.tally.totals
        assert (state.state, totals.plans_repeated, totals.pins) == (SyncState.IN_SYNC, 1, 1)
    assert worlds.is_equal()
    assert [r.value for r in worlds.read()] == [b"2", b"2"]


def test_a_missing_object_that_the_source_lists_is_damage_and_not_a_race() -> None:
    worlds = written()
    (entry,) = worlds.manifests_of_source().segments
    worlds.source.delete(Place("topics", "users", 0).key(entry.name))
    with worlds.running() as running:
        state = running.state()
    assert (state.state, state.code) == (SyncState.BROKEN, "Corrupt")
    assert entry.name in state.message
    assert "log verify" in state.hint


def test_a_damaged_object_is_not_retried_until_the_source_changes() -> None:
    worlds = written()
    (entry,) = worlds.manifests_of_source().segments
    key = Place("topics", "users", 0).key(entry.name)
    whole = worlds.source.get(key).data
    worlds.source.delete(key)
    worlds.source.put(key, bytes(len(whole)), Create())
    with worlds.running() as running:
        assert running.state().code == "Corrupt"
        with running.asked() as (source, _):
            for _ in range(5):
                state = running.state()
                assert (state.state, state.code) == (SyncState.BROKEN, "Corrupt")
        assert set(source) == {"get"}
        assert len(source) == 5
        worlds.source.delete(key)
        worlds.source.put(key, whole, Create())
        worlds.later(1_900_000)
        assert running.state().state is SyncState.IN_SYNC
    assert worlds.is_equal()


def test_a_long_copy_stops_when_another_replicator_claims() -> None:
    worlds = Worlds.new()
    log = worlds.log()
    log.append(records("z=1"))
    with worlds.running() as running:
        running.once()
    for number in range(1, 30):
        log.append(records("a=1", number))
    with worlds.running(threads=1) as one, worlds.running() as two:

        def slow(call: Call) -> None:
            worlds.clock.advance(10_000)
            if call.key.endswith(".parquet") and call.operation == "put":
                one.replica.on_call = lambda _call: worlds.clock.advance(10_000)
                two.once()

        one.replica.on_call = slow
        state = one.state()
        assert (state.state, state.code) == (SyncState.WAITING, "Fenced")
        assert state.backoff_ms >= 30_000
        assert sum(c.operation == "put" for c in one.replica.calls) < 20
        assert one.state().state is SyncState.IN_SYNC
    assert worlds.is_equal()


def test_waiting_for_compaction_to_be_enabled_backs_off_and_ends_by_itself() -> None:
    worlds = written()
    worlds.documents.allowed = Enablement()
    log = worlds.log()
    with worlds.running() as running:
        assert running.state().state is SyncState.IN_SYNC
        log.compact()
        before = worlds.manifests()
        waits = [running.state() for _ in range(6)]
        assert {s.code for s in waits} == {"CompactionNotEnabled"}
        assert {s.state for s in waits} == {SyncState.WAITING}
        assert {s.host for s in waits} == {"far.test"}
        assert "keyfold replica enable-compaction" in waits[0].hint
        assert [s.attempts for s in waits] == [1, 2, 3, 4, 5, 6]
        for number, state in enumerate(waits):
            assert 50 * 2**number <= state.backoff_ms <= 100 * 2**number
            assert state.next_attempt_ms == state.last_attempt_ms + state.backoff_ms
        assert waits[0].pending.bytes > 0
        assert worlds.manifests() == before
        worlds.documents.allowed = Enablement({"users": CompactionEntry(enabled=True, format=1)})
        worlds.later(2_000)
        state = running.state()
        assert (state.state, state.attempts, state.code) == (SyncState.IN_SYNC, 0, "")
    assert worlds.is_equal()


def test_a_log_compacted_before_the_first_round_is_refused_before_anything_is_copied() -> None:
    worlds = written()
    worlds.log().compact()
    worlds.documents.allowed = Enablement()
    with worlds.running() as running:
        assert running.state().code == "CompactionNotEnabled"
    assert list(worlds.replica.list("")) == []


def test_an_overtaken_replica_copies_nothing_until_its_resync() -> None:
    worlds = Worlds.new()
    log = worlds.log()
    log.append(records("a=1 b=1"))
    with worlds.running() as running:
        running.once()
        log.append(records("a= b=2 c=1", 2))
        log.compact()
        log.compact(purge=True)
        assert worlds.manifests_of_source().purged_to == 2
        before = worlds.folder()
        state = running.state()
        assert (state.state, state.code) == (SyncState.RESYNC_REQUIRED, "ResyncRequired")
        assert state.backoff_ms >= 30_000
        assert worlds.folder() == before
        (state,) = running.once(resync=True)
        assert state.state is SyncState.IN_SYNC
        assert running.state().state is SyncState.IN_SYNC
    assert worlds.is_equal()


def test_a_replica_advanced_by_another_process_during_a_check_has_not_diverged() -> None:
    worlds = written()
    log = worlds.log()
    with worlds.running() as one, worlds.running() as two:
        one.once()
        two.once()
        log.append(records("d=1", 4))

        def another_goes_ahead(call: Call) -> None:
            if call.operation == "get":
                one.replica.on_call = one.source.on_call = None
                log.append(records("e=1", 5))
                two.once()

        one.replica.on_call = one.source.on_call = None
        at = len(one.source.calls) + len(one.replica.calls)
        for side in (one.source, one.replica):
            side.on_call = lambda call: (
                another_goes_ahead(call) if len(one.source.calls) + len(one.replica.calls) >= at + 5 else None
            )
        state = one.state()
        assert state.code in {"", "Fenced"}
        assert one.state().state is SyncState.IN_SYNC
    assert worlds.is_equal()


def test_two_replicators_end_in_sync_and_the_slower_one_is_fenced() -> None:
    worlds = written()
    with worlds.running() as one, worlds.running(threads=1) as two:
        one.once()
        worlds.log().append(records("d=1", 4))

        def slower(call: Call) -> None:
            if call.operation == "put" and call.key == FAR.manifest_key:
                one.replica.on_call = None
                two.once()

        one.replica.on_call = slower
        state = one.state()
        assert two.state().state is SyncState.IN_SYNC
        assert state.code in {"", "Fenced"}
        assert one.state().state is SyncState.IN_SYNC
    assert worlds.is_equal()


def test_archived_schemas_are_copied_before_the_records() -> None:
    worlds = written()
    worlds.source.put("topics/_schemas/7.avsc", b'"long"', Create())
    worlds.source.put("topics/_schemas/aa-bb.avsc", b'"int"', Create())
    order = []
    with worlds.running() as running:
        running.replica.on_call = lambda c: order.append(c.key) if c.operation == "put" else None
        running.once()
        assert running.runner.tally.totals.schemas_sent == 2
    assert order.index("far/logs/_schemas/7.avsc") < order.index(FAR.manifest_key)
    assert worlds.replica.get("far/logs/_schemas/aa-bb.avsc").data == b'"int"'


def test_a_different_schema_under_an_id_breaks_the_replica_and_is_named() -> None:
    worlds = written()
    worlds.source.put("topics/_schemas/7.avsc", b'"long"', Create())
    worlds.replica.put("far/logs/_schemas/7.avsc", b'"int"', Create())
    with worlds.running() as running:
        state = running.state()
    assert state.state is SyncState.BROKEN
    assert "far/logs/_schemas/7.avsc" in state.message
    assert worlds.folder() == set()


def test_a_log_with_other_writers_is_never_overwritten() -> None:
    worlds = written()
    other = worlds.log()
    other.store, other.place = worlds.replica, FAR
    other.append(records("x=1"))
    with worlds.running() as running:
        state = running.state()
    assert (state.state, state.code) == (SyncState.BROKEN, "ReplicaDiverged")
    assert [r.key for r in worlds.read()] == [b"x"]


def test_a_source_with_a_lost_manifest_is_broken_and_the_replica_stays() -> None:
    worlds = written()
    with worlds.running() as running:
        running.once()
        worlds.source.delete("topics/users/partition=0/_manifest.avro")
        state = running.state()
    assert (state.state, state.code, state.host) == (SyncState.BROKEN, "ManifestLost", "near.test")
    assert len(worlds.read()) == 4


def test_a_replicas_lost_manifest_is_reported_and_rewritten_by_the_next_round() -> None:
    worlds = written()
    with worlds.running() as running:
        running.once()
        running.once()
        worlds.replica.delete(FAR.manifest_key)
        worlds.later(120_000)
        state = running.state()
        assert (state.state, state.code, state.host) == (SyncState.BROKEN, "ManifestLost", "far.test")
        assert "log repair" not in state.hint, "which refuses: replication creates it again"
        sent = running.runner.tally.totals.objects_sent
        assert running.state().state is SyncState.IN_SYNC
        assert running.runner.tally.totals.objects_sent == sent
    assert worlds.is_equal()


@pytest.mark.parametrize("side", ["source", "replica"])
def test_an_unavailable_side_is_waited_for(side: str) -> None:
    worlds = written()
    with worlds.running() as running:
        store = getattr(running, side)
        away = Fault(lambda c: c.operation != "list_folders", FaultKind.UNAVAILABLE, times=1 << 40)
        store.add(away)
        states = [running.state() for _ in range(3)]
        assert {s.state for s in states} == {SyncState.WAITING}
        assert {s.host for s in states} == {"near.test" if side == "source" else "far.test"}
        assert [s.attempts for s in states] == [1, 2, 3]
    with worlds.running() as running:
        assert running.state().state is SyncState.IN_SYNC


def test_a_paused_replica_is_unchanged_and_shown_as_paused() -> None:
    worlds = written()
    worlds.documents.desired = DesiredReplication(paused=True)
    with worlds.running() as running:
        assert running.runner.once().is_paused
    assert list(worlds.replica.list("")) == []


def test_an_unregistered_replica_is_unchanged() -> None:
    worlds = written()
    worlds.documents.desired = None
    with worlds.running() as running:
        assert "registration of replica far has changed or was removed" in running.runner.once().error


def test_uncovered_topics_are_not_copied() -> None:
    worlds = written()
    worlds.log("orders").append(records("a=1"))
    worlds.documents.desired = replace(DesiredReplication(), covers=lambda topic: topic == "orders")
    with worlds.running() as running:
        assert [s.place.topic for s in running.once()] == ["orders"]


def test_one_failed_partition_delays_no_other() -> None:
    worlds = written()
    for partition in range(1, 4):
        worlds.log(partition=partition).append(records("a=1"))
    worlds.source.delete("topics/users/partition=2/_manifest.avro")
    with worlds.running() as running:
        states = running.once()
        assert [s.state for s in states] == [
            SyncState.IN_SYNC,
            SyncState.IN_SYNC,
            SyncState.BROKEN,
            SyncState.IN_SYNC,
        ]
        assert not running.runner.once().is_in_sync


def test_a_failed_listing_fails_the_run() -> None:
    worlds = written()
    with worlds.running() as running:
        running.source.add(Fault(lambda c: c.operation == "list_folders", FaultKind.UNAVAILABLE, times=1 << 40))
        assert "topics/" in running.runner.once().error


def test_an_unreadable_registration_fails_the_run() -> None:
    worlds = written()

    def away() -> DesiredReplication:
        raise StoreUnavailable("k", "time-out")

    with worlds.running() as running:
        worlds.documents.load_desired = away  # type: ignore[method-assign]  # replaced for this test
        assert "time-out" in running.runner.once().error
