"""Who is the source: switch-over without loss, fail-over without the source, and the way back."""

from __future__ import annotations

import contextlib
from random import Random

import pytest

from keyfold.errors import IsReplica
from keyfold.log.gc import collect_garbage, list_names
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.store.wrappers.faults import Call, Fault, FaultKind, SimulatedCrash
from tests.support.logs import MadeLog, records
from tests.support.replica_command import REPLICA, SOURCE, Buckets, Keyfold, made_log, objects, read


@pytest.fixture
def buckets() -> Buckets:
    return Buckets()


@pytest.fixture
def keyfold(buckets: Buckets, capsys: pytest.CaptureFixture[str]) -> Keyfold:
    return Keyfold(buckets, capsys)


@pytest.fixture
def made(keyfold: Keyfold) -> MadeLog:
    """A log that is replicated, with a segment that the replica has not."""
    return followed(keyfold)


def followed(keyfold: Keyfold) -> MadeLog:
    made = made_log(keyfold.buckets)
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    keyfold("enable-compaction", REPLICA)
    keyfold("run", SOURCE, "--once")
    made.append(records("c=1 d=1", 3))
    return made


def at(buckets: Buckets, bucket: str) -> MadeLog:
    """The log in a bucket, for a new writer."""
    return MadeLog(buckets[bucket], Place("topics", "users", 0), buckets.clock, Random(f"new writer at {bucket}"))


def manifest(buckets: Buckets, bucket: str) -> Manifest:
    return at(buckets, bucket).manifest


# Switch-over


def test_a_switch_over_loses_nothing_and_fences_the_old_writers(keyfold: Keyfold, made: MadeLog) -> None:
    before = read(keyfold.buckets, "log")
    old = made.manifest
    lines = keyfold("promote", SOURCE, "dr")
    assert lines[0] == "users-0: promoted, ends at offset 5"
    assert read(keyfold.buckets, "dr") == before
    new = manifest(keyfold.buckets, "dr")
    assert new.replica is None
    assert new.log_id != old.log_id
    assert [(a.log_id, a.next_offset) for a in new.lineage] == [(old.log_id, 5)]
    with pytest.raises(IsReplica):
        made.append(records("e=1", 5))
    with pytest.raises(IsReplica):
        made.compact()
    at(keyfold.buckets, "dr").append(records("e=1", 5))
    assert len(read(keyfold.buckets, "dr")) == 6


def test_partitions_with_one_outcome_share_a_line(keyfold: Keyfold, made: MadeLog) -> None:
    for partition in (1, 2, 3):
        made_log(keyfold.buckets, partition=partition)
    lines = keyfold("promote", SOURCE, "dr", "--dry-run")
    assert lines[0].startswith("users-0: ready, ends at offset ")
    nothing = "received nothing yet; the first round will replicate what the source has"
    assert lines[1:] == [f"3 partitions of topic users (1-3): {nothing}"]
    found = keyfold.json("promote", SOURCE, "dr", "--dry-run")
    assert [row["partition"] for row in found] == [0, 1, 2, 3], "the document has each"
    del made


def test_the_printed_commands_make_the_old_source_a_replica(keyfold: Keyfold, made: MadeLog) -> None:
    del made
    lines = keyfold("promote", SOURCE, "dr")
    assert keyfold.json("list", SOURCE) == []
    assert f"      keyfold replica add {REPLICA} log --to {SOURCE} --enable-compaction" in lines
    new = at(keyfold.buckets, "dr")
    new.append(records("e=1 a=", 5))
    new.compact()
    keyfold("add", REPLICA, "log", "--to", SOURCE, "--enable-compaction")
    keyfold("run", REPLICA, "--once")
    assert read(keyfold.buckets, "log") == read(keyfold.buckets, "dr")
    assert manifest(keyfold.buckets, "log").log_id == manifest(keyfold.buckets, "dr").log_id


def test_the_source_can_be_switched_back(keyfold: Keyfold, made: MadeLog) -> None:
    del made
    keyfold("promote", SOURCE, "dr")
    at(keyfold.buckets, "dr").append(records("e=1", 5))
    keyfold("add", REPLICA, "log", "--to", SOURCE)
    keyfold("promote", REPLICA, "log")
    assert len(read(keyfold.buckets, "log")) == 6
    at(keyfold.buckets, "log").append(records("f=1", 6))
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    keyfold("run", SOURCE, "--once")
    assert read(keyfold.buckets, "dr") == read(keyfold.buckets, "log")
    assert len(manifest(keyfold.buckets, "dr").lineage) == 2


def test_a_replica_can_be_promoted_by_its_own_url(keyfold: Keyfold, made: MadeLog) -> None:
    del made
    before = read(keyfold.buckets, "log")
    keyfold("promote", REPLICA)
    assert read(keyfold.buckets, "dr") == before
    assert manifest(keyfold.buckets, "log").is_replica
    assert keyfold.json("list", SOURCE) == []
    assert keyfold("promote", REPLICA, "--force")[0].startswith("users-0: promoted")


def test_a_dry_run_changes_nothing(keyfold: Keyfold, made: MadeLog) -> None:
    del made
    before = objects(keyfold.buckets, "log", "dr")
    (found,) = keyfold.json("promote", SOURCE, "dr", "--dry-run")
    assert found["step"] == "ready"
    assert objects(keyfold.buckets, "log", "dr") == before


def test_no_role_changes_if_one_partition_cannot_be_promoted(keyfold: Keyfold, made: MadeLog) -> None:
    made_log(keyfold.buckets, topic="orders")
    made_log(keyfold.buckets, "dr", topic="orders")
    before = objects(keyfold.buckets, "log", "dr")
    found = {row["topic"]: row for row in keyfold.json("promote", SOURCE, "dr", code=1)}
    assert (found["orders"]["step"], found["users"]["step"]) == ("failed", "ready")
    assert "is not a replica and never was" in found["orders"]["error"]
    assert objects(keyfold.buckets, "log", "dr") == before
    made.append(records("e=1", 5))


def test_partitions_that_were_never_copied_are_copied_first(keyfold: Keyfold, made: MadeLog) -> None:
    del made
    made_log(keyfold.buckets, topic="orders")
    steps = {row["topic"]: row["step"] for row in keyfold.json("promote", SOURCE, "dr", "--dry-run")}
    assert steps == {"orders": "missing", "users": "ready"}
    keyfold("promote", SOURCE, "dr")
    assert read(keyfold.buckets, "dr", "orders") == read(keyfold.buckets, "log", "orders")


def test_a_replica_that_cannot_be_brought_up_to_date_is_not_promoted(keyfold: Keyfold, made: MadeLog) -> None:
    keyfold("disable-compaction", REPLICA)
    made.compact()
    (found,) = keyfold.json("promote", SOURCE, "dr", code=1)
    assert "CompactionNotEnabled" in found["error"]
    made.append(records("e=1", 5))
    assert keyfold.json("list", SOURCE)[0]["paused"] is False


def test_one_topic_is_promoted_and_the_others_continue(keyfold: Keyfold, made: MadeLog) -> None:
    del made
    orders = made_log(keyfold.buckets, topic="orders")
    keyfold("run", SOURCE, "--once")
    keyfold("promote", SOURCE, "dr", "--topic", "users")
    assert manifest(keyfold.buckets, "dr").replica is None
    orders.append(records("z=1", 3))
    (ran,) = keyfold.json("run", SOURCE, "--once", code=1)  # users has gone its own way
    states = {row["topic"]: row["state"] for row in ran["partitions"]}
    assert states["orders"] == "in-sync"
    keyfold("edit", SOURCE, "dr", "--topics", "orders")
    keyfold("run", SOURCE, "--once")


def test_an_unregistered_replica_is_not_promoted(keyfold: Keyfold) -> None:
    made_log(keyfold.buckets, "dr")
    keyfold("promote", REPLICA, "--force", code=1)
    keyfold("promote", REPLICA, "--force", "--topic", "users", code=1)
    keyfold("promote", "s3://empty/topics", "--force", code=1)
    keyfold("promote", SOURCE, "nobody", code=1)


@pytest.mark.parametrize("bucket", ["log", "dr"])
@pytest.mark.parametrize(
    "kind", [FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER, FaultKind.CRASH_LATE, FaultKind.LOST_ANSWER]
)
def test_an_interrupted_switch_over_can_be_continued(
    capsys: pytest.CaptureFixture[str], bucket: str, kind: FaultKind
) -> None:
    """Killed at each write of either store in turn: the same command, run again, ends it, and nothing is lost."""
    for number in range(1, 100):
        buckets = Buckets()
        keyfold = Keyfold(buckets, capsys)
        followed(keyfold)
        before = read(buckets, "log")
        store = buckets[bucket]
        store.add(_nth_write(number, kind))
        seen = len(store.calls)
        try:
            keyfold("promote", SOURCE, "dr")
        except (SimulatedCrash, AssertionError):
            _promote_again(keyfold)
        assert read(buckets, "dr") == before, f"{kind} at write {number} of {bucket}"
        new, old = manifest(buckets, "dr"), manifest(buckets, "log")
        assert new.replica is None
        assert old.is_replica
        assert len(new.lineage) == 1
        if sum(call.operation == "put" for call in store.calls[seen:]) < number:
            assert number > 3
            return
    raise AssertionError("a switch-over has no hundred writes")


def _nth_write(number: int, kind: FaultKind) -> Fault:
    left = [number]

    def is_it(call: Call) -> bool:
        left[0] -= call.operation == "put"
        return call.operation == "put" and left[0] == 0

    return Fault(is_it, kind)


def _promote_again(keyfold: Keyfold) -> None:
    """The same command, by a new process; by the replica's URL where the registration has gone already."""
    keyfold.buckets.restart()
    is_registered = bool(keyfold.json("list", SOURCE))
    keyfold(*(("promote", SOURCE, "dr") if is_registered else ("promote", REPLICA)))


# Fail-over


def test_a_replica_without_its_source_is_promoted_only_by_force(keyfold: Keyfold, made: MadeLog) -> None:
    del made
    keyfold.buckets.away.add("log")
    keyfold("promote", SOURCE, "dr", code=1)
    keyfold("promote", REPLICA, code=1)
    assert "--force" in "".join(keyfold.errors)
    assert manifest(keyfold.buckets, "dr").is_replica
    lines = keyfold("promote", REPLICA, "--force")
    assert lines[0].startswith("users-0: promoted, ends at offset 3")
    assert any("the source was not contacted" in line for line in lines)
    at(keyfold.buckets, "dr").append(records("x=1", 3))
    assert [record.offset for record in read(keyfold.buckets, "dr")] == [0, 1, 2, 3]


def test_a_forced_promotion_does_not_need_a_damaged_source(keyfold: Keyfold, made: MadeLog) -> None:
    (key, *_) = [key for key in made.object_keys() if "000003-" in key and "_index" not in key]
    keyfold.buckets["log"].delete(key)
    keyfold("promote", REPLICA, "--force", code=1)
    keyfold("promote", SOURCE, "dr", "--without-source", code=2)
    assert not made.manifest.is_replica
    keyfold("promote", REPLICA, "--without-source")
    assert [record.offset for record in read(keyfold.buckets, "dr")] == [0, 1, 2]
    assert not made.manifest.is_replica


def test_demoting_reports_what_would_be_lost(keyfold: Keyfold, made: MadeLog) -> None:
    """The old source has two records that its replica never got; they are shown, kept, and only then discarded."""
    keyfold.buckets.away.add("log")
    keyfold("promote", REPLICA, "--force")
    at(keyfold.buckets, "dr").append(records("x=1 y=1", 3))
    keyfold.buckets.away.clear()
    before = objects(keyfold.buckets, "log", "dr")
    (found,) = keyfold.json("demote", SOURCE, "--to-replica-of", REPLICA, code=1)
    assert (found["lost_from"], found["lost_to"]) == (3, 5)
    assert "3 to 4" in found["error"]
    assert objects(keyfold.buckets, "log", "dr") == before
    keyfold("demote", SOURCE, "--to-replica-of", REPLICA, "--discard", "--dry-run")
    assert objects(keyfold.buckets, "log", "dr") == before
    lines = keyfold("demote", SOURCE, "--to-replica-of", REPLICA, "--discard")
    assert lines[0].startswith("users-0: demoted")
    assert any("keyfold replica remove s3://log/topics dr" in line for line in lines)
    with pytest.raises(IsReplica):
        made.append(records("e=1", 5))
    keyfold("remove", SOURCE, "dr")
    keyfold("add", REPLICA, "log", "--to", SOURCE)
    keyfold("run", REPLICA, "--once")
    assert read(keyfold.buckets, "log") == read(keyfold.buckets, "dr")
    assert keyfold("demote", SOURCE, "--to-replica-of", REPLICA)[0].startswith("users-0: demoted")


@pytest.mark.sharded
@pytest.mark.parametrize(
    "kind", [FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER, FaultKind.CRASH_LATE, FaultKind.LOST_ANSWER]
)
@pytest.mark.parametrize("step", ["fail-over", "demotion"])
def test_an_interrupted_fail_over_or_demotion_can_be_continued(
    capsys: pytest.CaptureFixture[str], step: str, kind: FaultKind
) -> None:
    """Killed at each write in turn: the same command, run again, ends it, and no side has a record that is not its."""
    fail_over = ("promote", REPLICA, "--force")
    demotion = ("demote", SOURCE, "--to-replica-of", REPLICA, "--discard")
    bucket, words = ("dr", fail_over) if step == "fail-over" else ("log", demotion)
    for number in range(1, 100):
        buckets = Buckets()
        keyfold = Keyfold(buckets, capsys)
        followed(keyfold)
        buckets.away.add("log")
        if step == "demotion":
            keyfold(*fail_over)
            buckets.away.clear()
        store = buckets[bucket]
        store.add(_nth_write(number, kind))
        seen = len(store.calls)
        try:
            keyfold(*words)
        except (SimulatedCrash, AssertionError):
            buckets.restart()
            keyfold(*words)
        new = manifest(buckets, "dr")
        assert (new.replica, len(new.lineage)) == (None, 1), f"{kind} at write {number}"
        assert [record.offset for record in read(buckets, "dr")] == [0, 1, 2]
        if step == "demotion":
            assert manifest(buckets, "log").is_replica
        if sum(call.operation == "put" for call in store.calls[seen:]) < number:
            assert number > 1
            return
    raise AssertionError("neither has a hundred writes")


def test_an_old_source_without_extra_records_is_demoted_immediately(keyfold: Keyfold) -> None:
    made_log(keyfold.buckets)
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    keyfold("run", SOURCE, "--once")
    keyfold.buckets.away.add("log")
    keyfold("promote", REPLICA, "--force")
    keyfold.buckets.away.clear()
    at(keyfold.buckets, "dr").append(records("x=1", 3))
    keyfold("demote", SOURCE, "--to-replica-of", REPLICA, "--name", "old")
    keyfold("add", REPLICA, "log", "--to", SOURCE, code=1)
    assert "`old`" in keyfold.errors[0]
    keyfold("add", REPLICA, "old", "--to", SOURCE)
    keyfold("run", REPLICA, "--once")
    assert read(keyfold.buckets, "log") == read(keyfold.buckets, "dr")


def test_an_old_compactors_pass_after_the_demotion_removes_nothing_of_the_new_source(
    keyfold: Keyfold, made: MadeLog
) -> None:
    """What is copied has epochs of the new log, which the old one has passed: they say nothing about its writers."""
    keyfold.buckets.away.add("log")
    keyfold("promote", REPLICA, "--force")
    new = at(keyfold.buckets, "dr")
    new.append(records("x=1 a=3", 3))
    keyfold.buckets.away.clear()
    old = [made.log.claim_compactor(lease_ms=0, holder="old") for _ in range(9)][-1]
    new.compact()
    keyfold("demote", SOURCE, "--to-replica-of", REPLICA, "--discard")
    keyfold("remove", SOURCE, "dr")
    keyfold("add", REPLICA, "log", "--to", SOURCE)
    keyfold("enable-compaction", SOURCE)
    store = keyfold.buckets["log"]
    ended: list[str] = []

    def end_the_pass(call: Call) -> None:
        """Everything was copied, and the replicator is about to commit."""
        if call.operation == "put" and call.key == made.place.manifest_key and new.manifest.object_names() <= there():
            store.on_call = None
            with contextlib.suppress(IsReplica):
                collect_garbage(store, old, 0)
            ended.append("swept")

    def there() -> set[str]:
        return {*list_names(store.inner, made.place)}

    store.on_call = end_the_pass
    keyfold("run", REPLICA, "--once")
    assert ended
    assert read(keyfold.buckets, "log") == read(keyfold.buckets, "dr")


def test_a_log_becomes_a_replica_only_of_its_continuation(keyfold: Keyfold, made: MadeLog) -> None:
    del made
    made_log(keyfold.buckets, "other")
    keyfold("demote", SOURCE, "--to-replica-of", "s3://other/topics", "--discard", code=1)
    keyfold("demote", SOURCE, "--to-replica-of", REPLICA, code=1)  # that one is a replica still
    keyfold("demote", SOURCE, "--to-replica-of", "s3://empty/topics", code=1)
    keyfold("demote", "s3://empty/topics", "--to-replica-of", REPLICA, code=1)
    keyfold("demote", SOURCE, "--to-replica-of", REPLICA, "--name", "a/b", code=2)
    assert not manifest(keyfold.buckets, "log").is_replica


def test_a_second_promotion_finds_a_source_that_came_back(keyfold: Keyfold, made: MadeLog) -> None:
    """After a fail-over the switch-over's command says what to do instead."""
    keyfold.buckets.away.add("log")
    keyfold("promote", REPLICA, "--force")
    keyfold.buckets.away.clear()
    before = manifest(keyfold.buckets, "dr")
    (found,) = keyfold.json("promote", SOURCE, "dr", code=1)
    assert f"keyfold replica demote {SOURCE} --to-replica-of {REPLICA}" in found["hint"]
    assert manifest(keyfold.buckets, "dr") == before
    assert not made.manifest.is_replica
