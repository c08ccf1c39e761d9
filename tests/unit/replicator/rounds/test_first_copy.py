"""Before its first commit a replica's marker says what it follows and how much has been copied."""

from __future__ import annotations

from random import Random

import pytest

from keyfold.errors import AccessDenied, FirstCopyUnfinished, LogError, LogNotFound, ManifestLost
from keyfold.log.names import FIRST_COPY_NAME, Place, Role, new_name
from keyfold.log.partition_log import PartitionLog
from keyfold.log.replica_first_copy import FirstCopy
from keyfold.read.log import Log
from keyfold.store.api import Create
from keyfold.store.wrappers.faults import Call, Fault, FaultKind, FaultyStore
from keyfold.verify.findings import FindingKind as Found
from keyfold.verify.partition import verify_partition
from keyfold.verify.repair import apply_repair, plan_repair
from keyfold_replicator.state.states import SyncState
from tests.support.logs import records
from tests.support.replica_rounds import Running, Worlds

FAR = Place("far/logs", "users", 0)
MARKER = FAR.key(FIRST_COPY_NAME)


def four() -> Worlds:
    """A source of four segments with one record each."""
    worlds = Worlds.new()
    log = worlds.log()
    for number in range(4):
        log.append(records("a=1", number))
    return worlds


def stopping_after(running: Running, objects: int) -> None:
    """The replica's store takes this many segments and indexes, and refuses all others."""
    taken = 0

    def is_beyond(call: Call) -> bool:
        nonlocal taken
        is_object = call.operation == "put" and not call.key.endswith(FIRST_COPY_NAME)
        taken += is_object
        return is_object and taken > objects

    running.replica.add(Fault(is_beyond, FaultKind.UNAVAILABLE, times=1 << 40))


def begun(objects: int = 4) -> Worlds:
    """A first copy that was stopped after this many objects."""
    worlds = four()
    with worlds.running(threads=1) as running:
        stopping_after(running, objects)
        running.once()
    return worlds


def log_at(worlds: Worlds) -> PartitionLog:
    return PartitionLog(worlds.replica, FAR, clock=worlds.far_clock, random=Random(1))


def is_marked(worlds: Worlds) -> bool:
    return any(worlds.replica.list(MARKER))


def unfinished(worlds: Worlds) -> FirstCopyUnfinished:
    with pytest.raises(FirstCopyUnfinished) as raised:
        log_at(worlds).load()
    return raised.value


def test_the_marker_exists_before_the_first_object_and_until_the_first_round_ends() -> None:
    worlds = four()
    with worlds.running(threads=1) as running:
        running.once()
        keys = [call.key for call in running.replica.calls if call.operation in {"put", "delete"}]
    assert keys[0] == MARKER
    assert keys[-2:] == [FAR.manifest_key, MARKER]
    assert worlds.is_equal()
    assert not is_marked(worlds)


def test_a_readers_error_reports_an_unfinished_first_copy_and_its_progress() -> None:
    worlds = begun(4)
    error = unfinished(worlds)
    source = worlds.manifests_of_source()
    sizes = [(e.index_size_bytes, e.size_bytes) for e in source.segments]
    assert (error.replica, error.source) == ("far", "s3://near/topics")
    assert (error.segments_there, error.segments) == (2, 4)
    assert (error.bytes_there, error.size_bytes) == (sum(map(sum, sizes[:2])), sum(map(sum, sizes)))
    assert "the first copy of replica `far` of s3://near/topics is not complete: 2 of 4 segments" in str(error)
    assert "log repair" not in str(error)
    with pytest.raises(FirstCopyUnfinished):
        list(Log(worlds.replica, "far/logs", "users").read())


def test_before_its_first_object_the_folder_is_not_mistaken_for_an_empty_one() -> None:
    worlds = begun(0)
    assert is_marked(worlds)
    assert worlds.folder() == set()
    assert unfinished(worlds).bytes_there == 0
    with pytest.raises(FirstCopyUnfinished):
        log_at(worlds).create()  # what a sink would do there
    with pytest.raises(FirstCopyUnfinished):
        plan_repair(worlds.replica, FAR, clock=worlds.far_clock, random=Random(1))


def test_verify_reports_a_first_copy_and_no_lost_manifest() -> None:
    worlds = begun(4)
    report = verify_partition(worlds.replica, FAR, clock=worlds.far_clock, random=Random(1))
    (finding,) = report.findings
    assert finding.kind is Found.FIRST_COPY
    assert not report.is_sound
    assert "2 of 4 segments" in finding.what
    assert "log repair" not in str(finding)


def test_a_repair_refuses_and_the_replica_goes_on() -> None:
    worlds = begun(4)
    with pytest.raises(LogError, match="2 of 4 segments") as raised:
        plan_repair(worlds.replica, FAR, clock=worlds.far_clock, random=Random(1))
    assert "keyfold replica run s3://near/topics far" in str(raised.value.hint)
    assert "--from segments" in str(raised.value.hint)
    with worlds.running() as running:
        assert running.state().state is SyncState.IN_SYNC
    assert worlds.is_equal()
    assert not is_marked(worlds)


def test_a_partial_copy_can_become_a_log_if_the_source_is_lost() -> None:
    worlds = begun(4)
    plan = plan_repair(worlds.replica, FAR, clock=worlds.far_clock, random=Random(1), base="segments")
    assert any("2 of 4 segments" in note for note in plan.notes)
    apply_repair(worlds.replica, plan, clock=worlds.far_clock, random=Random(2))
    assert [r.offset for r in worlds.read()] == [0, 1]
    report = verify_partition(worlds.replica, FAR, clock=worlds.far_clock, random=Random(1))
    assert report.is_sound
    assert [f.kind for f in report.findings] == [Found.ORPHAN]


def test_a_resumed_first_copy_reports_the_sources_current_size() -> None:
    worlds = four()
    with worlds.running(threads=1) as running:
        stopping_after(running, 1)
        running.once()
    source = PartitionLog(worlds.source, Place("topics", "users", 0), clock=worlds.clock, random=Random(5))
    before = FirstCopy.of_bytes(worlds.replica.get(MARKER).data)
    made = worlds.log()
    made._sink = source.claim_sink()
    made.append(records("b=1 c=2", 4))
    worlds.later(120_000)
    with worlds.running(threads=1) as running:
        stopping_after(running, 1)
        running.once()
    after = FirstCopy.of_bytes(worlds.replica.get(MARKER).data)
    assert (before.segments, after.segments) == (4, 5)
    assert after.size_bytes > before.size_bytes


def test_objects_that_no_version_lists_are_not_counted_as_progress() -> None:
    worlds = four()
    stray = new_name(0, 0, Role.SINK, Random(7))
    worlds.replica.put(FAR.key(str(stray)), b"x" * 10_000, Create())
    with worlds.running(threads=1) as running:
        stopping_after(running, 2)
        running.once()
    error = unfinished(worlds)
    assert (error.segments_there, error.segments) == (1, 4)
    assert error.bytes_there < error.size_bytes


def test_two_processes_starting_one_replica_leave_one_log() -> None:
    worlds = four()
    with worlds.running(threads=1) as one, worlds.running(threads=1) as other:
        fired = False

        def begin(call: Call) -> None:
            nonlocal fired
            if call.operation == "put" and call.key == MARKER and not fired:
                fired = True
                other.once()  # it begins, finishes, and takes its marker away, before the first one's marker lands

        one.replica.on_call = begin
        one.once()
        assert worlds.is_equal()
        worlds.later(3_700_000)
        one.once()
        one.once()
    assert worlds.is_equal()
    assert not is_marked(worlds)


def test_a_marker_left_beside_a_manifest_is_harmless_and_removed() -> None:
    worlds = four()
    with worlds.running() as running:
        running.replica.add(Fault(lambda c: c.operation == "delete", FaultKind.UNAVAILABLE, times=1 << 40))
        running.once()
    assert is_marked(worlds)
    assert [r.offset for r in worlds.read()] == [0, 1, 2, 3]
    report = verify_partition(worlds.replica, FAR, clock=worlds.far_clock, random=Random(1))
    assert [f.kind for f in report.findings] == [Found.ORPHAN]
    with worlds.running() as running:
        running.once()
        worlds.later(3_700_000)
        running.once()
    assert not is_marked(worlds)


def test_a_first_copy_started_without_a_marker_is_finished() -> None:
    worlds = begun(4)
    worlds.replica.delete(MARKER)  # as version 0.1 left it
    with pytest.raises(ManifestLost):
        log_at(worlds).load()
    with worlds.running() as running:
        assert running.state().state is SyncState.IN_SYNC
    assert worlds.is_equal()
    assert not is_marked(worlds)


def test_an_empty_log_needs_no_marker() -> None:
    worlds = Worlds.new()
    PartitionLog(worlds.source, Place("topics", "users", 0), clock=worlds.clock, random=Random(1)).create()
    with worlds.running() as running:
        running.once()
        assert MARKER not in [call.key for call in running.replica.calls if call.operation == "put"]
    assert worlds.is_equal()


@pytest.mark.parametrize("data", [b"", b"not JSON", b"[]", b'{"name": "far"}', b'{"segments": "many"}'])
def test_an_unreadable_marker_still_counts(data: bytes) -> None:
    worlds = begun(2)
    worlds.replica.delete(MARKER)
    worlds.replica.put(MARKER, data, Create())
    error = unfinished(worlds)
    assert "the first copy of a replica is not complete" in str(error)
    with worlds.running() as running:
        assert running.state().state is SyncState.IN_SYNC


def test_a_reader_without_permission_to_the_marker_still_gets_the_error() -> None:
    worlds = begun(2)

    def deny(call: Call) -> None:
        if call.key == MARKER:
            raise AccessDenied(call.key, "no")

    store = FaultyStore(worlds.replica, on_call=deny)
    log = PartitionLog(store, FAR, clock=worlds.far_clock, random=Random(1))
    with pytest.raises(FirstCopyUnfinished, match="the first copy of a replica is not complete"):
        log.load()


def test_a_reader_during_the_first_commit_finds_the_log() -> None:
    worlds = begun(4)
    store = FaultyStore(worlds.replica)

    def finish(call: Call) -> None:
        if call.operation == "get" and call.key == MARKER:
            store.on_call = None
            with worlds.running() as running:
                running.once()

    store.on_call = finish
    log = PartitionLog(store, FAR, clock=worlds.far_clock, random=Random(1))
    assert log.load().manifest.next_offset == 4


def test_each_partition_of_each_topic_has_a_marker_of_its_own() -> None:
    worlds = four()
    worlds.log("orders").append(records("a=1"))
    worlds.log("users", 1).append(records("a=1"))
    with worlds.running(threads=1) as running:
        running.replica.add(
            Fault(
                lambda c: c.operation == "put" and "/users/partition=0/0" in c.key, FaultKind.UNAVAILABLE, times=1 << 40
            )
        )
        running.once()
    assert worlds.is_equal("orders")
    assert worlds.is_equal("users", 1)
    assert unfinished(worlds).segments == 4


def test_an_empty_folder_is_still_no_log() -> None:
    with pytest.raises(LogNotFound):
        log_at(Worlds.new()).load()
