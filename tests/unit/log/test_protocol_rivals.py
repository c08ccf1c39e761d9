"""Fencing, commuting edits and deletion between rivals, on the real partition log over the in-memory store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from keyfold.errors import (
    Fenced,
    LeaseHeld,
    OffsetMoved,
    SegmentsMoved,
    StoreError,
)
from keyfold.log.gc import collect_garbage, orphan_names
from keyfold.log.names import MANIFEST_NAME
from keyfold.log.partition_log import Replacement, Swap
from keyfold.store.wrappers.faults import Fault, FaultKind, SimulatedCrash
from tests.support.bucket import HOUR_MS, PLACE, Bucket, appended, merge, uploaded


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


# Fencing


def test_a_paused_sink_that_wakes_after_a_takeover_is_fenced(bucket: Bucket) -> None:
    paused = bucket.sink()
    appended(paused, 2)
    waiting = uploaded(paused, 2, 4)
    owner = bucket.sink()
    attempts: list[Callable[[], object]] = [lambda: paused.append(waiting), lambda: paused.advance(9), paused.refresh]
    for attempt in attempts:
        with pytest.raises(Fenced):
            attempt()
    appended(owner, 1)
    assert bucket.ranges() == [(0, 2), (2, 3)]


def test_a_takeover_right_before_the_commit_fences_it(bucket: Bucket) -> None:
    process = bucket.process()
    sink = process.log.claim_sink()
    made = uploaded(sink, 0, 2)
    process.before("put", lambda: appended(bucket.sink(), 2))
    with pytest.raises(Fenced):
        sink.append(made)
    assert made.name not in bucket.manifest.object_names()


def test_an_expired_lease_fences_nobody_but_a_claim_does(bucket: Bucket) -> None:
    old = appended(bucket.sink(), 2)
    first = bucket.process().log.claim_compactor(lease_ms=1000, holder="a")
    replacement = merge(first, old)
    with pytest.raises(LeaseHeld):
        bucket.process().log.claim_compactor(lease_ms=1000, holder="b")
    bucket.clock.advance(1000)
    first.renew(1000)  # nobody came
    bucket.clock.advance(1000)
    bucket.process().log.claim_compactor(lease_ms=1000, holder="b")
    attempts: list[Callable[[], object]] = [
        lambda: first.replace(replacement),
        lambda: first.renew(1000),
        first.release,
    ]
    for attempt in attempts:
        with pytest.raises(Fenced):
            attempt()


def test_a_local_clock_jump_moves_neither_stamps_nor_leases(bucket: Bucket) -> None:
    sink_process, compactor_process = bucket.process(), bucket.process()
    sink_process.clock.advance(1000 * HOUR_MS)
    compactor_process.clock.advance(-1000 * HOUR_MS)
    sink = sink_process.log.claim_sink()
    appended(sink, 1)
    compactor = compactor_process.log.claim_compactor(lease_ms=1000, holder="a")
    assert [s.appended_at_ms for s in compactor.manifest.segments] == [bucket.clock.now_ms()]
    assert compactor.manifest.compactor.lease_until_ms == bucket.clock.now_ms() + 1000


# Appends and replacements


def test_an_append_and_a_replacement_commute(bucket: Bucket) -> None:
    outcomes = []
    for sink_is_first in (True, False):
        there = Bucket()
        sink = there.sink()
        old = (appended(sink, 2), appended(sink, 2))
        compactor = there.compactor()
        new, replacement = uploaded(sink, 4, 5), merge(compactor, *old)
        if sink_is_first:
            sink.append(new)
            compactor.replace(replacement)
        else:
            compactor.replace(replacement)
            sink.append(new)
        manifest = there.manifest
        outcomes.append(
            ([(s.name, s.base_offset, s.next_offset) for s in manifest.segments], {r.name for r in manifest.replaced})
        )
        assert there.named_are_there()
    assert outcomes[0] == outcomes[1]


def test_two_appends_at_one_offset_do_not_commute(bucket: Bucket) -> None:
    sink = bucket.sink()
    rival = uploaded(sink, 0, 3)
    appended(sink, 2)
    with pytest.raises(OffsetMoved):
        sink.append(rival)


def test_a_replacement_of_what_another_pass_replaced_is_refused(bucket: Bucket) -> None:
    sink = bucket.sink()
    old = (appended(sink, 2), appended(sink, 2))
    compactor = bucket.compactor()
    overlapping = merge(compactor, *old)
    compactor.replace(merge(compactor, old[0]))
    with pytest.raises(SegmentsMoved):
        compactor.replace(overlapping)
    assert bucket.ranges() == [(0, 2), (2, 4)]


@pytest.mark.parametrize(
    ("emptied", "ranges"),
    [
        ((0,), [(0, 4), (4, 9)]),
        ((1,), [(0, 4), (4, 9)]),
        ((2,), [(0, 2), (2, 9)]),
        ((0, 1), [(0, 9)]),
        ((0, 2), [(0, 9)]),
        ((1, 2), [(0, 9)]),
        ((0, 1, 2), []),
    ],
)
def test_emptied_ranges_go_to_neighbours_while_the_sink_moves_the_end(
    bucket: Bucket, emptied: tuple[int, ...], ranges: list[tuple[int, int]]
) -> None:
    sink = bucket.sink()
    old = [appended(sink, 2) for _ in range(3)]
    compactor = bucket.compactor()
    sink.advance(9)  # after the pass was planned: the last range ends at 9 now
    compactor.replace(Replacement(tuple(Swap((old[n],), ()) for n in emptied), first_dirty_offset=6))
    assert bucket.ranges() == ranges
    appended(sink, 1)
    expected = [*ranges, (9, 10)] if ranges else [(0, 10)]
    assert bucket.ranges() == expected


def test_an_emptied_log_keeps_its_end_and_takes_holes_and_appends(bucket: Bucket) -> None:
    sink = bucket.sink()
    old = appended(sink, 2)
    compactor = bucket.compactor()
    compactor.replace(Replacement((Swap((old,), ()),), first_dirty_offset=2))
    assert (bucket.ranges(), bucket.manifest.next_offset) == ([], 2)
    sink.advance(5)
    appended(sink, 1)
    assert (bucket.ranges(), bucket.manifest.next_offset) == ([(0, 6)], 6)


# Deletion


def test_a_crashed_deletion_is_finished_by_the_next_gc(bucket: Bucket) -> None:
    old = appended(bucket.sink(), 2)
    compactor = bucket.compactor()
    compactor.replace(merge(compactor, old))
    process = bucket.process(Fault(lambda call: call.operation == "delete", FaultKind.CRASH_AFTER))
    session = process.log.claim_compactor(lease_ms=0, holder="c")
    with pytest.raises(SimulatedCrash):
        collect_garbage(process.store, session, 0)
    assert {r.name for r in bucket.manifest.replaced} == {old.name, old.index_name}
    collect_garbage(bucket.store, bucket.compactor(), 0)
    assert not bucket.manifest.replaced
    assert bucket.names() == bucket.manifest.object_names()


def test_a_duplicate_delete_that_lands_much_later_deletes_nothing(bucket: Bucket) -> None:
    sink = bucket.sink()
    old = appended(sink, 2)
    compactor = bucket.compactor()
    compactor.replace(merge(compactor, old))
    process = bucket.process(Fault(lambda call: call.operation == "delete", FaultKind.LATE))
    session = process.log.claim_compactor(lease_ms=0, holder="c")
    with pytest.raises(StoreError):
        collect_garbage(process.store, session, 0)
    collect_garbage(bucket.store, bucket.compactor(), 0)
    appended(sink, 3)
    process.store.land()
    assert bucket.named_are_there()


def test_objects_committed_between_listing_and_manifest_read_stay(bucket: Bucket) -> None:
    sink = bucket.sink()
    waiting = uploaded(sink, 0, 2)
    process = bucket.process()
    session = process.log.claim_compactor(lease_ms=0, holder="c")

    def commits_and_loses_the_partition() -> None:
        sink.append(waiting)
        bucket.sink()  # now its epoch is old, and only the manifest says that the upload is not

    process.before("get", commits_and_loses_the_partition)
    swept = collect_garbage(process.store, session, 0)
    assert swept.object_count == 0
    assert bucket.named_are_there()


def test_unfinished_uploads_are_judged_by_the_role_in_their_name(bucket: Bucket) -> None:
    sink = bucket.sink()
    upload = bucket.store.start_upload(PLACE.key(str(sink.new_name(0))))
    upload.write(b"part")
    assert collect_garbage(bucket.store, bucket.compactor(), 0).uploads == ()
    bucket.sink()
    assert len(collect_garbage(bucket.store, bucket.compactor(), 0).uploads) == 1


def test_a_foreign_object_is_never_an_orphan(bucket: Bucket) -> None:
    names = ["00000000000000000000.avro", "notes.txt", "_index/x.parquet", MANIFEST_NAME]
    bucket.sink()
    bucket.sink()
    assert orphan_names(names, bucket.manifest) == []


def test_an_append_after_a_hole_during_a_pass_leaves_the_cleaned_segment_clean() -> None:
    """The pass ends at 2, the log's end when it was planned; meanwhile the last range grew to 9 and a segment came."""
    bucket = Bucket()
    sink = bucket.sink()
    old = appended(sink, 2)
    compactor = bucket.compactor()
    sink.advance(9)
    appended(sink, 1)
    compactor.replace(replace(merge(compactor, old), first_dirty_offset=2))
    assert bucket.ranges() == [(0, 9), (9, 10)]
    assert bucket.manifest.first_dirty_offset == 9
