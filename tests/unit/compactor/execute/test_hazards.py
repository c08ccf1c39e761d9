"""The mistakes that the model checker found in the first draft (W1 to W9), where the compactor could make them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from keyfold.log.gc import due_names, orphan_names
from keyfold.log.manifest import UNSTAMPED, Replaced, RoleState
from keyfold.log.names import Role, new_name
from keyfold.log.partition_log import PartitionLog
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import STORE_TIME_RESOLUTION_MS, Create
from keyfold.store.wrappers.faults import Call, Fault, FaultKind, FaultyStore
from keyfold_compactor.decide import parts, plan
from keyfold_compactor.decide.min_garbage import apply_min_garbage
from keyfold_compactor.decide.policy import decide_cleaning
from keyfold_compactor.decide.work import log_job
from keyfold_compactor.execute.local import run_map
from keyfold_compactor.report.report import PartitionOutcome
from tests.support.cleaning import (
    EAGER,
    FAST,
    PLACE,
    clean,
    load,
    memory_log,
    new_run,
    object_names,
    read_all,
    record,
    retry_policy,
)
from tests.support.manifests import compactor_name, empty_manifest, entry, sink_name

KEEP = replace(EAGER, delete_retention_ms=10_000, file_delete_delay_ms=10_000)


def test_w1_a_sinks_upload_outlives_a_younger_compactors_claim() -> None:
    """The sink of epoch 1 has uploaded and not committed; the compactor claims 2 and collects; the sink commits."""
    store, sink = memory_log([record(0, "a", "1")])
    name = sink.session.new_name(1)
    store.put(PLACE.key(str(name)), b"a segment on its way", Create())
    clean(store, collect_orphans=True)
    assert load(store).compactor.epoch > name.epoch
    assert str(name) in object_names(store)


def test_w1_orphans_are_judged_by_the_epoch_of_their_own_role() -> None:
    manifest = empty_manifest(last_epoch=5)
    manifest = replace(manifest, sink=replace(manifest.sink, epoch=3), compactor=replace(manifest.compactor, epoch=5))
    names = [str(n) for n in (sink_name(0, 2), sink_name(0, 3), compactor_name(0, 3), compactor_name(0, 5))]
    assert orphan_names([*names, "foreign.txt"], manifest) == [names[0], names[2]]


def test_replaced_objects_are_no_orphans_however_old_their_epoch() -> None:
    """It waits for its time: readers of older versions, and replicas, still need it."""
    segment = entry(sink_name(0, 1), 0, 5)
    manifest = replace(
        empty_manifest(last_epoch=9, segments=(segment,), next_offset=5),
        sink=RoleState(epoch=8),
        compactor=RoleState(epoch=9),
        replaced=(Replaced(str(compactor_name(0, 2)), 3, UNSTAMPED), Replaced(str(compactor_name(0, 2).index), 3, 5)),
    )
    names = [segment.name, segment.index_name, *(r.name for r in manifest.replaced), str(compactor_name(1, 2))]
    assert orphan_names(names, manifest) == [str(compactor_name(1, 2))]


def test_w2_the_wait_before_deletion_begins_after_the_commit_has_landed() -> None:
    """The commit's request lands an hour late: the objects it unlinks are not due because planning was long ago."""
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)
    late = FaultyStore(store, on_call=lambda call: clock.advance(3_600_000) if call.operation == "get_range" else None)
    clean(late, KEEP, clock=clock)
    assert {r.unlinked_at_ms for r in load(store).replaced} == {UNSTAMPED}
    old = {r.name for r in load(store).replaced}
    clock.advance(1)
    clean(store, KEEP, clock=clock, seed=2)
    assert old <= object_names(store), "stamped now, due in ten seconds"
    clock.advance(9_999 + STORE_TIME_RESOLUTION_MS)
    clean(store, KEEP, clock=clock, seed=3)
    assert old <= object_names(store)
    clock.advance(2)
    clean(store, KEEP, clock=clock, seed=4)
    assert not old & object_names(store)


def test_w3_the_delete_horizon_begins_after_the_commit_has_landed() -> None:
    """A pass that takes longer than the retention must not commit a horizon that is already over."""
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1"), record(1, "b", "2"), record(2, "a", None)], clock=clock)
    slow = FaultyStore(store, on_call=lambda call: clock.advance(60_000) if call.operation == "get_range" else None)
    clean(slow, KEEP, clock=clock)
    clean(store, KEEP, clock=clock, seed=2)
    assert [r.offset for r in read_all(store)] == [1, 2]
    clock.advance(10_001 + STORE_TIME_RESOLUTION_MS)
    clean(store, KEEP, clock=clock, seed=3)
    assert [r.offset for r in read_all(store)] == [1]


def test_w4_w5_a_pass_with_a_failed_segment_neither_marks_nor_moves_first_dirty() -> None:
    """A segment whose bytes are damaged cannot be rewritten: an older value stays, so its tombstone gets no horizon."""
    store, sink = memory_log(
        [record(0, "a", "1"), record(1, "b", "2")], [record(2, "b", "3"), record(3, "a", None)], [record(4, "c", None)]
    )
    damaged = load(store).segments[0].name
    good = store.get(PLACE.key(damaged)).data
    store.delete(PLACE.key(damaged))
    store.put(PLACE.key(damaged), good[:-20] + bytes(20), Create())
    sink.append([record(5, "b", "4")])
    before = load(store)
    report = clean(store)
    # Nothing survives in the first segment, so it is not even read; the second one cannot hide behind that.
    assert report.partitions[0].outcome is PartitionOutcome.CLEANED
    assert load(store).first_dirty_offset == before.next_offset

    store, _ = memory_log([record(0, "a", "1"), record(1, "keep", "2")], [record(2, "b", "3"), record(3, "a", None)])
    damaged = load(store).segments[0].name
    good = store.get(PLACE.key(damaged)).data
    store.delete(PLACE.key(damaged))
    store.put(PLACE.key(damaged), good[:-20] + bytes(20), Create())
    report = clean(store)
    after = load(store)
    assert report.partitions[0].outcome is PartitionOutcome.FAILED
    assert damaged in report.partitions[0].why
    assert after.first_dirty_offset == 0
    assert after.passes == ()
    assert all(not s.cleaned_epochs for s in after.segments)
    assert after.compactor.lease_until_ms == 0

    store.delete(PLACE.key(damaged))
    store.put(PLACE.key(damaged), good, Create())
    for seed in (2, 3):
        clean(store, seed=seed)
    assert [r.offset for r in read_all(store)] == [1, 2]


def test_w6_without_a_manifest_nothing_is_deleted_or_recreated() -> None:
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")])
    store.delete(PLACE.manifest_key)
    names = object_names(store)
    report = clean(store, collect_orphans=True)
    assert report.exit_code == 1
    assert "keyfold log repair" in report.partitions[0].why
    assert object_names(store) == names
    assert [info.key for info in store.list(PLACE.manifest_key)] == []


def test_w6_a_manifest_that_vanishes_during_the_pass_stops_it() -> None:
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")])

    def vanish(call: object) -> None:
        if getattr(call, "operation", "") == "get_range":
            store.delete(PLACE.manifest_key)

    names = object_names(store)
    report = clean(FaultyStore(store, on_call=vanish))
    assert report.exit_code == 1
    assert names <= object_names(store)


def test_w8_objects_of_an_older_claim_are_never_committed_under_a_newer_one() -> None:
    """Every name that a pass commits carries the epoch of the claim that commits it."""
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2"), record(2, "b", "3")])
    orphan = new_name(0, load(store).last_epoch + 1, Role.COMPACTOR, Random(5))
    store.put(PLACE.key(str(orphan)), b"of a pass that died", Create())
    crashed = PartitionLog(store, PLACE, clock=ManualClock(), random=Random(1), backoff=FAST)
    crashed.claim_compactor(lease_ms=0, holder="dead")
    clean(store, seed=3)
    manifest = load(store)
    assert str(orphan) not in object_names(store)
    assert all(f"-{manifest.compactor.epoch:08d}-c" in s.name for s in manifest.segments)


def test_w9_a_commit_whose_answer_is_lost_is_not_cleaned_up_after() -> None:
    """The commit landed and its answer did not: what it names stays, and the pass counts as done."""
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2"), record(2, "b", "3")])
    puts = [0]

    def is_commit(call: object) -> bool:
        if getattr(call, "operation", "") == "put" and getattr(call, "key", "") == PLACE.manifest_key:
            puts[0] += 1
            return puts[0] == 2
        return False

    report = clean(FaultyStore(store, [Fault(is_commit, FaultKind.LOST_ANSWER)]))
    assert report.partitions[0].outcome is PartitionOutcome.CLEANED
    assert load(store).object_names() <= object_names(store)
    assert [r.offset for r in read_all(store)] == [1, 2]


def test_a_second_compactor_respects_and_reports_the_lease() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)
    log = PartitionLog(store, PLACE, clock=clock, random=Random(9), backoff=FAST)
    log.claim_compactor(lease_ms=60_000, holder="the first")
    report = clean(store, clock=clock)
    assert report.partitions[0].outcome is PartitionOutcome.SKIPPED
    assert "the first" in report.partitions[0].why
    assert report.exit_code == 0
    clock.advance(60_001)
    assert clean(store, clock=clock, seed=2).partitions[0].outcome is PartitionOutcome.CLEANED


def test_a_hold_keeps_what_its_version_names_until_it_expires() -> None:
    from keyfold.log.manifest import Hold

    manifest = empty_manifest(
        version=9,
        replaced=(Replaced("old", 4, 0), Replaced("older", 2, 0)),
        holds=(Hold("eu", 3, 1_000),),
    )
    assert due_names(manifest, 500, 0) == ("older",)
    assert due_names(manifest, 1_000, 0) == ("old", "older")
    # A round may take many versions: it needs what any of them has unlinked, not the next one alone.
    later = replace(manifest, replaced=(Replaced("old", 4, 0), Replaced("later", 7, 0)))
    assert due_names(later, 500, 0) == ()
    # What version 4 itself has unlinked it does not name: a hold on it needs only what goes later.
    held = replace(manifest, holds=(Hold("eu", 4, 1_000),), replaced=(Replaced("old", 4, 0), Replaced("new", 5, 0)))
    assert due_names(held, 500, 0) == ("old",)


def test_an_endlessly_renewed_hold_keeps_an_object_only_for_the_maximum_hold() -> None:
    from keyfold.log.manifest import Hold

    manifest = empty_manifest(version=9, replaced=(Replaced("old", 4, 0),), holds=(Hold("eu", 3, 1 << 60),))
    over_ms = 100 + 5_000 + STORE_TIME_RESOLUTION_MS
    assert due_names(manifest, over_ms - 1, 100, hold_max_ms=5_000) == ()
    assert due_names(manifest, over_ms, 100, hold_max_ms=5_000) == ("old",)


def test_decisions_made_before_the_claim_are_repeated_after_it() -> None:
    """Another run cleans the log between look and claim: nothing is done twice."""
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")])
    run = new_run(store, KEEP)
    look = run.review([PLACE])[0]
    clean(store, KEEP, seed=2)
    segments = load(store).segments
    assert run._claim(0, look) is None
    assert load(store).segments == segments
    assert load(store).compactor.lease_until_ms == 0
    assert run._report.partitions[0].outcome is PartitionOutcome.UNCHANGED


def test_a_fenced_pass_is_reported_as_lost() -> None:
    """While the first run fetches a block, its lease runs out and a second run cleans the log."""
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)

    def overtake(call: Call) -> None:
        if call.operation == "get_range":
            clock.advance(90_000)
            clean(store, clock=clock, seed=7)

    report = clean(FaultyStore(store, on_call=overtake), clock=clock)
    assert report.partitions[0].outcome is PartitionOutcome.LOST
    assert [r.offset for r in read_all(store)] == [1]


def test_a_pass_reads_the_version_it_claimed_and_nothing_later() -> None:
    clock = ManualClock()
    store, sink = memory_log([record(0, "a", "1")], clock=clock)
    log = PartitionLog(store, PLACE, clock=clock, random=Random(9), backoff=FAST)
    session = log.claim_compactor(lease_ms=0, holder="x")
    pinned = session.pinned
    decision = decide_cleaning(pinned.manifest, EAGER, pinned.seen_ms)
    job = log_job(0, PLACE, pinned, decision, EAGER, session.epoch)
    sink.append([record(1, "a", "2")])
    answer, masks = run_map(job, store, retry_policy(clock, Random(0)))
    assert not masks
    groups = plan.group(job.entries, answer.stats, segment_bytes=10**9, unit_bytes=10**9)
    pass_plan = apply_min_garbage(job, groups, answer.stats, 0.0)
    (part,) = parts.cut(job, pass_plan, 1 << 40)
    session.replace(parts.replacement(job, pass_plan, part, {}, {}))
    manifest = load(store)
    assert (manifest.first_dirty_offset, manifest.next_offset) == (1, 2)
    clean(store, clock=clock, seed=4)
    assert [r.offset for r in read_all(store)] == [1]
