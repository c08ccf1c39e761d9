"""A restore over a store in memory and a fake topic: what lands, in which order, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from keyfold.errors import ConfigError, KeyfoldError, OffsetOutOfRange
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.read.blocks import READ_LIMITS, ReadLimits
from keyfold.read.log import Log
from keyfold.restore.errors import RestoreBusy, RestoreRefused, TargetMoved
from keyfold.restore.group_offsets import GroupOffset
from keyfold.restore.lease import Lease
from keyfold.restore.partition import RestoreSettings
from keyfold.restore.run import Restore, RestoreOutcome, RestoreRequest
from keyfold.restore.selection import EVERY, RestoreSelection, parse_to_offsets
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import ObjectStore
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import SimulatedCrash
from tests.support.fake_topic import FakeTopic
from tests.support.logs import MadeLog, latest_of, record, records


def made(clock: ManualClock, text: str = "a=1 b=2 a= c=3 b=4 d=5", segments: int = 2, partition: int = 0,
         store: MemoryStore | None = None) -> MadeLog:  # fmt: skip
    log = MadeLog(store=store or MemoryStore(clock=clock), place=Place("topics", "users", partition), clock=clock)
    found = records(text)
    size = -(-len(found) // segments)
    for at in range(0, len(found), size):
        log.append(found[at : at + size])
    return log


def restore(log: MadeLog, topic: FakeTopic, clock: ManualClock, request: RestoreRequest | None = None,
            store: ObjectStore | None = None, seed: int = 1, limits: ReadLimits = READ_LIMITS) -> Restore:  # fmt: skip
    opened = Log(store or log.store, "topics", "users", clock=clock, random=Random(seed), limits=limits)
    return Restore(
        opened, topic, request or RestoreRequest("users"), clock=clock, random=Random(seed), holder=f"run {seed}"
    )


def run(log: MadeLog, topic: FakeTopic, clock: ManualClock, request: RestoreRequest | None = None,
        store: ObjectStore | None = None, seed: int = 1,
        limits: ReadLimits = READ_LIMITS) -> RestoreOutcome:  # fmt: skip
    one = restore(log, topic, clock, request, store, seed, limits)
    outcome = one.run(one.preview())
    for error in outcome.failures.values():
        raise error
    return outcome


def bare(found: list[Record | None]) -> list[Record]:
    return [replace(r, offset=0, leader_epoch=0) for r in found if r is not None]


def of_log(log: MadeLog) -> list[Record | None]:
    return list(Log(log.store, "topics", "users", clock=log.clock).read(log.place.partition))


SMALL = RestoreSettings(window_records=2)


def test_every_record_is_restored_once_and_a_rerun_writes_nothing() -> None:
    clock, topic = ManualClock(), FakeTopic()
    log = made(clock)
    outcome = run(log, topic, clock, RestoreRequest("users", settings=SMALL))
    assert bare(topic.log(0)) == bare(of_log(log))
    assert (outcome.results[0].records, outcome.results[0].wrote) == (6, 6)
    again = run(log, topic, clock, RestoreRequest("users", settings=SMALL))
    assert again.results[0].was_finished
    assert (again.results[0].records, again.results[0].wrote) == (6, 0)
    assert len(topic.log(0)) == 6


@pytest.mark.sharded
@pytest.mark.parametrize("at", range(1, 7))
@pytest.mark.parametrize("seed", range(4))
def test_a_crashed_run_is_continued_without_repeating_or_losing_records(at: int, seed: int) -> None:
    clock = ManualClock()
    topic = FakeTopic(random=Random(seed), lag=3, dies_at=at)
    log = made(clock)
    with pytest.raises(SimulatedCrash):
        run(log, topic, clock, RestoreRequest("users", settings=SMALL))
    topic.die()
    topic.dies_at = None
    landed = len(topic.log(0))
    outcome = run(log, topic, clock, RestoreRequest("users", settings=SMALL), seed=2)
    assert bare(topic.log(0)) == bare(of_log(log))
    assert outcome.results[0].wrote == 6 - landed
    assert outcome.results[0].records == 6


def test_the_next_run_waits_for_a_dead_runs_lease_and_refuses_beside_a_live_one() -> None:
    clock = ManualClock()
    topic = FakeTopic(dies_at=3)
    log = made(clock)
    with pytest.raises(SimulatedCrash):
        run(log, topic, clock)
    topic.die()
    topic.dies_at = None
    before = clock.now_ms()
    run(log, topic, clock, seed=2)
    assert clock.now_ms() - before >= 30_000

    store = MemoryStore(clock=clock)
    holder = Lease(store, "lease.json", holder="first", clock=clock, random=Random(1))
    holder.acquire()
    second = Lease(store, "lease.json", holder="second", clock=Renewing(holder), random=Random(2))
    with pytest.raises(RestoreBusy, match="first renewed"):
        second.acquire()


class Renewing(ManualClock):
    """A clock whose sleeps let another holder renew its lease."""

    def __init__(self, holder: Lease) -> None:
        super().__init__()
        self._holder = holder

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._holder._renew()


def test_records_compacted_between_two_runs_do_not_change_the_final_state() -> None:
    for at in range(1, 9):
        clock = ManualClock()
        topic = FakeTopic(random=Random(at), lag=2, dies_at=at)
        log = made(clock, "a=1 b=2 c=3 a=4 d=5 b=6 e=7 c=8 f=9", segments=3)
        with pytest.raises(SimulatedCrash):
            run(log, topic, clock, RestoreRequest("users", settings=SMALL))
        topic.die()
        topic.dies_at = None
        log.append(records("a=10 g=11 d=", 9))
        log.compact(merge=True)
        log.delete_replaced()
        run(log, topic, clock, RestoreRequest("users", settings=SMALL), seed=2)
        state = {k: r.value for k, r in latest_of(r for r in topic.log(0) if r is not None).items()}
        assert state == {k: r.value for k, r in latest_of(r for r in of_log(log) if r is not None).items()}


def test_a_tombstone_that_was_purged_before_it_was_restored_is_an_error() -> None:
    clock, topic = ManualClock(), FakeTopic(lag=0, dies_at=3)
    log = made(clock, "a=1 b=2 c=3 d=4", segments=2)
    with pytest.raises(SimulatedCrash):
        run(log, topic, clock)
    topic.die()
    topic.dies_at = None
    log.append(records("a= z=1", 4))
    log.compact()
    log.compact(purge=True)
    log.delete_replaced()
    with pytest.raises(OffsetOutOfRange, match="tombstones"):
        run(log, topic, clock, seed=2)


def test_foreign_records_are_detected_before_and_after_a_crash() -> None:
    clock, topic = ManualClock(), FakeTopic()
    log = made(clock)
    topic.foreign(0)
    with pytest.raises(RestoreRefused, match="already has records: offsets 0 to 0"):
        run(log, topic, clock)
    run(log, topic, clock, RestoreRequest("users", settings=replace(SMALL, append=True)))
    assert bare(topic.log(0)[1:]) == bare(of_log(log))

    topic = FakeTopic(topic_id="id-2", lag=2, dies_at=4)
    with pytest.raises(SimulatedCrash):
        run(log, topic, clock)
    topic.die()
    topic.foreign(0)
    topic.dies_at = None
    with pytest.raises(TargetMoved, match="another key than source offset"):
        run(log, topic, clock, seed=2)

    topic = FakeTopic(topic_id="id-3", lag=0)
    topic.on_send = lambda sends: topic.foreign(0) if sends == 3 else None
    with pytest.raises(TargetMoved, match="landed at"):
        run(log, topic, clock, seed=3)

    topic = FakeTopic(topic_id="id-4", dies_at=6, lag=0)
    with pytest.raises(SimulatedCrash):
        run(log, topic, clock, seed=4)
    topic.die()
    for _ in range(9):
        topic.foreign(0)
    with pytest.raises(TargetMoved, match="wrote no record after offset 5"):
        run(log, topic, clock, seed=5)


def test_a_target_that_lost_records_is_refused() -> None:
    clock, topic = ManualClock(), FakeTopic(lag=0, dies_at=5)
    log = made(clock)
    topic.foreign(0)
    request = RestoreRequest("users", settings=replace(SMALL, append=True))
    with pytest.raises(SimulatedCrash):
        run(log, topic, clock, request)
    topic.die()
    topic.dies_at = None
    topic.log(0).clear()
    with pytest.raises(TargetMoved, match="before offset 1, where this restore started"):
        run(log, topic, clock, request, seed=2)


def test_a_restore_ends_by_offset_by_time_or_by_count() -> None:
    clock = ManualClock()
    log = made(clock, "a=1 b=2 _ c=3 b=4 d=5")
    for number, (selection, expected) in enumerate((
        (RestoreSelection(to_offsets={EVERY: 4}), 3),
        (RestoreSelection(to_offsets={0: 1}), 1),
        (RestoreSelection(to_timestamp=4000), 3),
        (RestoreSelection(to_timestamp=99_000), 5),
        (RestoreSelection(max_records=3), 3),
        (RestoreSelection(max_records=0), 0),
        (RestoreSelection(max_records=50), 5),
    )):  # fmt: skip
        topic = FakeTopic(topic_id=f"id-{number}")
        run(log, topic, clock, RestoreRequest("users", selection))
        assert bare(topic.log(0)) == bare(of_log(log))[:expected]


def test_a_requested_end_stays_fixed_when_the_log_grows() -> None:
    clock, topic = ManualClock(), FakeTopic(lag=0, dies_at=2)
    log = made(clock, "a=1 b=2 c=3")
    request = RestoreRequest("users", RestoreSelection(to_timestamp=99_000))
    with pytest.raises(SimulatedCrash):
        run(log, topic, clock, request)
    topic.die()
    topic.dies_at = None
    log.append(records("d=4", 3))
    run(log, topic, clock, request, seed=2)
    assert [r.key for r in topic.log(0) if r] == [b"a", b"b", b"c"]


def test_only_the_latest_state_is_restored() -> None:
    clock, topic = ManualClock(), FakeTopic()
    log = made(clock, "a=1 b=2 a= c=3 b=4 d=5 =6")
    run(log, topic, clock, RestoreRequest("users", RestoreSelection(latest=True)))
    assert [(r.key, r.value) for r in topic.log(0) if r] == [(b"c", b"3"), (b"b", b"4"), (b"d", b"5")]


def test_continuing_a_latest_state_restore_deletes_keys_deleted_since() -> None:
    for at in range(1, 5):
        clock, topic = ManualClock(), FakeTopic(lag=1, dies_at=at, random=Random(at))
        log = made(clock, "a=1 b=2 c=3 d=4")
        request = RestoreRequest("users", RestoreSelection(latest=True), SMALL)
        with pytest.raises(SimulatedCrash):
            run(log, topic, clock, request)
        topic.die()
        topic.dies_at = None
        log.append(records("a= b=9 e=1", 4))
        log.compact()
        log.delete_replaced()
        run(log, topic, clock, request, seed=2)
        state = {k: r.value for k, r in latest_of(r for r in topic.log(0) if r).items()}
        assert state == {b"b": b"9", b"c": b"3", b"d": b"4", b"e": b"1"}


def test_a_finished_restore_continues_on_request() -> None:
    clock, topic = ManualClock(), FakeTopic()
    log = made(clock)
    run(log, topic, clock)
    log.append(records("x=1 y=2", 6))
    assert run(log, topic, clock).results[0].wrote == 0
    result = run(log, topic, clock, RestoreRequest("users", goes_on=True)).results[0]
    assert (result.wrote, result.records, result.source_end) == (2, 8, 8)
    assert bare(topic.log(0)) == bare(of_log(log))
    topic.foreign(0)
    with pytest.raises(TargetMoved, match="this restore ended at offset 8"):
        run(log, topic, clock, RestoreRequest("users", goes_on=True))


def test_continuing_a_restore_with_other_options_is_refused() -> None:
    clock, topic = ManualClock(), FakeTopic()
    log = made(clock)
    run(log, topic, clock)
    with pytest.raises(RestoreRefused, match="was started with latest=False"):
        run(log, topic, clock, RestoreRequest("users", RestoreSelection(latest=True)))


def test_a_recreated_topic_is_another_restore() -> None:
    clock = ManualClock()
    log = made(clock)
    run(log, FakeTopic(), clock)
    topic = FakeTopic(topic_id="id-2")
    run(log, topic, clock)
    assert len(topic.log(0)) == 6


def test_each_partition_is_restored_independently() -> None:
    clock, topic = ManualClock(), FakeTopic(count=3)
    store = MemoryStore(clock=clock)
    logs = [made(clock, text, 1, number, store) for number, text in enumerate(("a=1 b=2", "c=3", "d=4 e=5 f=6"))]
    topic.foreign(1)
    with pytest.raises(RestoreRefused, match="partition 1 of the target already has records"):
        run(logs[0], topic, clock)
    assert not topic.log(0)
    topic = FakeTopic(count=3)
    outcome = run(logs[0], topic, clock, RestoreRequest("users", partitions=(2,)))
    assert [result.partition for result in outcome.results] == [2]
    outcome = run(logs[0], topic, clock)
    assert [(result.partition, result.wrote) for result in outcome.results] == [(0, 2), (1, 1), (2, 0)]
    for log in logs:
        assert bare(topic.log(log.place.partition)) == bare(of_log(log))


def test_a_new_topic_gets_what_the_log_followed() -> None:
    clock, topic = ManualClock(), FakeTopic(exists=False)
    log = MadeLog(store=MemoryStore(clock=clock), clock=clock)
    log.log.create(settings={"cleanup.policy": "compact", "delete.retention.ms": "1000"})
    log.append(records("a=1"))
    run(log, topic, clock, RestoreRequest("users", topic_config={"retention.ms": "-1"}, partition_count=4))
    assert topic.created == [
        (
            "users",
            4,
            {
                "message.timestamp.type": "CreateTime",
                "cleanup.policy": "compact",
                "delete.retention.ms": "1000",
                "retention.ms": "-1",
            },
        )
    ]
    assert len(topic.log(0)) == 1


def hazards(
    log: MadeLog, settings: dict[str, str], clock: ManualClock, selection: RestoreSelection | None = None
) -> dict[str, str]:
    topic = FakeTopic(settings={"cleanup.policy": "delete", **settings})
    one = restore(log, topic, clock, RestoreRequest("users", selection or RestoreSelection()))
    outlook = one.preview()
    found = {h.kind: f"{'error' if h.is_error else 'warning'}: {h}" for h in outlook.hazards}
    if outlook.errors:
        with pytest.raises(RestoreRefused):
            one.run(outlook)
        assert not topic.log(0)
        assert not list(log.store.list("topics/_restores/"))
    return found


def test_hazards_are_reported_before_anything_is_written() -> None:
    clock = ManualClock()
    now = clock.now_ms()
    log = MadeLog(store=MemoryStore(clock=clock), clock=clock)
    log.log.create(settings={"cleanup.policy": "compact"})
    log.append([record(0, "a", "1", timestamp=now - 10_000), record(1, "b", "2", timestamp=0)])
    log.append([record(2, None, "x" * 900, timestamp=now + 10_000), record(3, "a", "1", timestamp=now)])

    said = hazards(log, {"cleanup.policy": "compact"}, clock)
    assert "error: partition 0 has 1 record without a key, the first at offset 2" in said["keyless"]
    assert "timestamp-zero" in said
    assert "keyless" not in hazards(log, {"cleanup.policy": "compact"}, clock, RestoreSelection(skip_keyless=True))
    said = hazards(log, {"max.message.bytes": "900"}, clock)
    assert "error: partition 0 has records larger than max.message.bytes=900" in said["too-large"]
    assert "offset 2 has 97" in said["too-large"]
    assert "topic users has cleanup.policy=delete, but the log followed cleanup.policy=compact" in said["settings"]
    assert "too-large" not in hazards(log, {"max.message.bytes": "1000"}, clock)
    said = hazards(log, {"retention.ms": "5000"}, clock)
    assert "warning: partition 0 has 2 records older than retention.ms=5000" in said["retention-time"]
    assert "first at offset 0" in said["retention-time"]
    assert "retention-time" not in hazards(log, {"retention.ms": "5000", "cleanup.policy": "compact"}, clock)
    assert "warning" in hazards(log, {"retention.bytes": "100"}, clock)["retention-bytes"]
    said = hazards(log, {"message.timestamp.before.max.ms": "5000"}, clock)
    assert "error: partition 0 has 2 records before" in said["timestamp-refused"]
    said = hazards(log, {"message.timestamp.after.max.ms": "5000"}, clock)
    assert "error: partition 0 has 1 record after" in said["timestamp-refused"]
    assert "first at offset 2" in said["timestamp-refused"]
    said = hazards(log, {"message.timestamp.type": "LogAppendTime", "message.timestamp.after.max.ms": "5000"}, clock)
    assert "warning" in said["restamped"]
    assert "timestamp-refused" not in said
    assert "error" in hazards(log, {"min.insync.replicas": "2"}, clock)["replicas"]


def test_another_number_of_partitions_is_refused() -> None:
    clock, topic = ManualClock(), FakeTopic(count=2)
    with pytest.raises(RestoreRefused, match="has 2 partitions, but the log has 1"):
        run(made(clock), topic, clock)
    run(made(clock), topic, clock, RestoreRequest("users", partition_count=2))


def test_restoring_a_compacted_past_state_is_warned_about() -> None:
    clock = ManualClock()
    log = made(clock, "a=1 b=2 a=3 c=4")
    log.compact()
    assert "compacted-beyond" in hazards(log, {}, clock, RestoreSelection(to_offsets={EVERY: 2}))
    assert "compacted-beyond" not in hazards(log, {}, clock)


def test_the_source_offset_is_added_as_a_header() -> None:
    clock, topic = ManualClock(), FakeTopic(dies_at=4, lag=1)
    log = made(clock)
    request = RestoreRequest("users", settings=replace(SMALL, offset_header="source-offset"))
    with pytest.raises(SimulatedCrash):
        run(log, topic, clock, request)
    topic.die()
    topic.dies_at = None
    run(log, topic, clock, request, seed=2)
    assert [r.headers for r in topic.log(0) if r] == [(("source-offset", b"%d" % n),) for n in range(6)]


def test_a_temporary_failure_is_retried_in_the_same_run() -> None:
    clock, topic = ManualClock(), FakeTopic(lag=2)
    log = made(clock)

    class Away(KeyfoldError):
        retriable = True

    def fail(sends: int) -> None:
        if sends in {3, 5}:
            raise Away("the broker is away")

    topic.on_send = fail
    run(log, topic, clock, RestoreRequest("users", settings=SMALL))
    assert bare(topic.log(0)) == bare(of_log(log))


def test_to_offsets_are_parsed() -> None:
    assert parse_to_offsets(("15", "2:7")) == {EVERY: 15, 2: 7}
    for wrong in (("x",), ("1:",), ("a:1",), ("1", "2")):
        with pytest.raises(ConfigError):
            parse_to_offsets(wrong)
    with pytest.raises(ConfigError, match="cannot be combined with --to-offset"):
        RestoreSelection(to_offsets={0: 1}, latest=True)


def test_a_partition_added_later_is_named_and_restored_by_continue() -> None:
    clock, topic = ManualClock(), FakeTopic(lag=0, count=2)
    store = MemoryStore(clock=clock)
    log = made(clock, "a=1 b=2", store=store)
    request = RestoreRequest("users", settings=SMALL, partition_count=2)
    run(log, topic, clock, request)
    second = made(clock, "c=3 d=4", 1, partition=1, store=store)
    one = restore(log, topic, clock, request, seed=2)
    (hazard,) = one.preview().hazards
    assert (hazard.kind, hazard.partition, hazard.is_error) == ("added", 1, False)
    assert one.run(one.preview()).results[0].was_finished
    assert topic.log(1) == []
    assert restore(log, topic, clock, replace(request, partitions=(0,)), seed=2).preview().hazards == ()

    goes_on = replace(request, goes_on=True)
    topic.dies_at = topic.sends + 2
    with pytest.raises(SimulatedCrash):
        run(log, topic, clock, goes_on, seed=3)
    topic.die()
    topic.dies_at = None
    second.append(records("e=5", 2))
    run(log, topic, clock, request, seed=4)  # it is known now, so that it is gone on with by the same command
    assert bare(topic.log(1)) == bare(of_log(second))
    again = restore(log, topic, clock, request, seed=5)
    assert again.preview().hazards == ()
    assert [r.was_finished for r in again.run(again.preview()).results] == [True, True]
    ours, others = again.translate([GroupOffset(None, "users", 1, 2)])
    assert (ours, others) == ([GroupOffset(None, "users", 1, 2)], [])


@pytest.mark.parametrize("selection", [RestoreSelection(), RestoreSelection(latest=True)])
def test_a_partition_without_restored_records_misses_no_tombstone(selection: RestoreSelection) -> None:
    """The first run was about another partition: what was purged since its plan deletes nothing that is there."""
    clock, topic = ManualClock(), FakeTopic(lag=0, count=2)
    store = MemoryStore(clock=clock)
    log = made(clock, "a=1 b=2", store=store)
    second = made(clock, "c=3 d=4", 1, partition=1, store=store)
    request = RestoreRequest("users", selection, settings=SMALL, partitions=(0,))
    run(log, topic, clock, request)
    second.append(records("c= z=1", 2))
    second.compact()
    second.compact(purge=True)
    second.delete_replaced()
    topic.dies_at = topic.sends + 2
    with pytest.raises(SimulatedCrash):
        run(log, topic, clock, replace(request, partitions=(1,)), seed=2)
    topic.die()
    topic.dies_at = None
    run(log, topic, clock, replace(request, partitions=(1,)), seed=3)
    assert bare(topic.log(1)) == bare(of_log(second))
    assert [r.key for r in topic.log(1) if r] == [b"d", b"z"]

    second.append(records("d= y=1", 4))  # from its first window on it has something to lose
    second.compact()
    second.compact(purge=True)
    second.delete_replaced()
    with pytest.raises(OffsetOutOfRange, match="tombstones"):
        run(log, topic, clock, replace(request, partitions=(1,), goes_on=True), seed=4)
