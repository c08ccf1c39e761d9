"""Each hazard of committing, fencing and collecting by its name, on the real partition log over the in-memory store.

W1 to W9 are mistakes of the first draft of the protocol; `tests/model` explores what surrounds them. Every "process"
has its own `FaultyStore` over one bucket, so it can be paused, crash, or have its requests land late.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from keyfold.errors import (
    CommitUnknown,
    Fenced,
    ManifestLost,
    PreconditionFailed,
    StoreError,
)
from keyfold.log.gc import collect_garbage, due_names
from keyfold.log.manifest import UNSTAMPED, Pass
from keyfold.log.names import MANIFEST_NAME
from keyfold.log.objects import create_object
from keyfold.log.partition_log import Replacement, SinkSession, Swap
from keyfold.store.api import STORE_TIME_RESOLUTION_MS, Create
from keyfold.store.wrappers.faults import Fault, FaultKind, SimulatedCrash
from tests.support.bucket import HOUR_MS, PLACE, Bucket, appended, merge, uploaded


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


# The mistakes of the first draft


def test_w1_a_sinks_upload_is_no_orphan_to_a_newer_compactor(bucket: Bucket) -> None:
    sink = bucket.sink()
    waiting = uploaded(sink, 0, 2)
    compactor = bucket.compactor()
    assert compactor.epoch > sink.epoch
    assert collect_garbage(bucket.store, compactor, 0).object_count == 0
    sink.append(waiting)
    assert bucket.named_are_there()


def test_w1_the_upload_is_deleted_once_its_own_role_claims_again(bucket: Bucket) -> None:
    left = uploaded(bucket.sink(), 0, 2)
    bucket.sink()
    assert set(collect_garbage(bucket.store, bucket.compactor(), 0).orphans) == {left.name, left.index_name}


@pytest.mark.parametrize("crashes", [False, True])
def test_w2_the_deletion_delay_begins_after_a_late_landing(bucket: Bucket, *, crashes: bool) -> None:
    old = appended(bucket.sink(), 2)
    process = bucket.process(retry_timeout_s=0.0)
    compactor = process.log.claim_compactor(lease_ms=0, holder="c")
    replacement = merge(compactor, old)
    process.at_manifest_put(FaultKind.CRASH_LATE if crashes else FaultKind.LATE)
    with pytest.raises(SimulatedCrash if crashes else CommitUnknown):
        compactor.replace(replacement)
    bucket.clock.advance(5 * HOUR_MS)
    process.store.land()
    landed_ms = bucket.clock.now_ms()
    assert {r.unlinked_at_ms for r in bucket.manifest.replaced} == {UNSTAMPED}
    assert due_names(bucket.manifest, landed_ms + 9 * HOUR_MS, HOUR_MS) == ()
    bucket.clock.advance(1000)
    later = bucket.compactor().manifest
    assert {r.unlinked_at_ms for r in later.replaced} == {landed_ms + 1000}
    assert due_names(later, landed_ms + 1000 + HOUR_MS + STORE_TIME_RESOLUTION_MS - 1, HOUR_MS) == ()
    over_ms = landed_ms + 1000 + HOUR_MS + STORE_TIME_RESOLUTION_MS
    assert set(due_names(later, over_ms, HOUR_MS)) == {old.name, old.index_name}


def test_w3_the_delete_horizon_begins_after_the_commit_of_the_pass(bucket: Bucket) -> None:
    old = appended(bucket.sink(), 2, tombstones=1)
    compactor = bucket.compactor()
    index = str(compactor.new_name(0).index)
    marked = replace(old, index_name=index, unmarked_tombstone_count=0, cleaned_epochs=(compactor.epoch,))
    bucket.clock.advance(48 * HOUR_MS)  # the pass takes longer than delete.retention.ms
    compactor.replace(Replacement((Swap((old,), (marked,)),), first_dirty_offset=2))
    assert bucket.manifest.passes == (Pass(compactor.epoch, UNSTAMPED),)
    bucket.clock.advance(7)
    assert bucket.compactor().manifest.passes == (Pass(compactor.epoch, bucket.clock.now_ms()),)


def test_w4_a_pass_that_marks_nothing_starts_no_horizon(bucket: Bucket) -> None:
    old = appended(bucket.sink(), 2, tombstones=1)
    compactor = bucket.compactor()
    new = uploaded(compactor, 0, 2, tombstones=1)
    compactor.replace(Replacement((Swap((old,), (new,)),), first_dirty_offset=0, whole=False))
    assert bucket.compactor().manifest.passes == ()


def test_w5_the_pass_sets_the_first_dirty_offset_which_never_goes_back(bucket: Bucket) -> None:
    sink = bucket.sink()
    old = [appended(sink, 2) for _ in range(3)]
    first = bucket.compactor()
    new = uploaded(first, 2, 4)
    first.replace(Replacement((Swap((old[1],), (new,)),), first_dirty_offset=2))
    assert bucket.manifest.first_dirty_offset == 2
    second = bucket.compactor()
    second.replace(Replacement((Swap((old[2],), (uploaded(second, 4, 6),)),), first_dirty_offset=0))
    assert bucket.manifest.first_dirty_offset == 2


def test_w6_a_lost_manifest_is_never_replaced_by_an_empty_one(bucket: Bucket) -> None:
    sink = bucket.sink()
    old = appended(sink, 2)
    compactor = bucket.compactor()
    waiting, replacement = uploaded(sink, 2, 3), merge(compactor, old)
    there = bucket.names()
    bucket.store.delete(PLACE.manifest_key)
    process = bucket.process()
    for attempt in (
        process.log.create,
        process.log.load,
        process.log.claim_sink,
        lambda: process.log.claim_compactor(lease_ms=0, holder="c"),
        lambda: sink.append(waiting),
        lambda: sink.advance(9),
        lambda: compactor.replace(replacement),
        lambda: compactor.renew(1000),
        lambda: collect_garbage(bucket.store, compactor, 0),
    ):
        with pytest.raises(ManifestLost, match="keyfold log repair"):
            attempt()
    assert bucket.names() == there
    assert MANIFEST_NAME not in {info.key.removeprefix(PLACE.folder) for info in bucket.store.list(PLACE.folder)}


def test_w7_a_zombie_that_lost_the_claim_does_not_fence_the_owner(bucket: Bucket) -> None:
    zombie, owner = bucket.process(), bucket.process()
    claimed: list[SinkSession] = []
    zombie.before("put", lambda: claimed.append(owner.log.claim_sink()))
    with pytest.raises(Fenced):
        zombie.log.claim_sink()
    appended(claimed[0], 2)
    assert bucket.manifest.sink.epoch == claimed[0].epoch


def test_w8_an_upload_of_an_older_epoch_is_never_committed(bucket: Bucket) -> None:
    left = uploaded(bucket.sink(), 0, 2)
    again = bucket.sink()
    with pytest.raises(AssertionError, match="does not belong to role SINK"):
        again.append(left)
    assert bucket.ranges() == []


def test_w9_a_writers_own_commit_is_found_after_a_takeover(bucket: Bucket) -> None:
    process = bucket.process(retry_timeout_s=0.0)
    sink = process.log.claim_sink()
    made = uploaded(sink, 0, 2)
    process.at_manifest_put(FaultKind.LOST_ANSWER)
    with pytest.raises(CommitUnknown):
        sink.append(made)
    appended(bucket.sink(), 1)  # its commit id is the last one now
    sink.append(made)
    assert bucket.ranges() == [(0, 2), (2, 3)]
    assert process.deletes == []


def test_w9_a_writers_own_commit_is_found_after_its_segment_was_replaced(bucket: Bucket) -> None:
    process = bucket.process(retry_timeout_s=0.0)
    sink = process.log.claim_sink()
    made = uploaded(sink, 0, 2)
    process.at_manifest_put(FaultKind.LOST_ANSWER)
    with pytest.raises(CommitUnknown):
        sink.append(made)
    bucket.sink()
    compactor = bucket.compactor()
    compactor.replace(merge(compactor, made))
    sink.append(made)
    assert bucket.ranges() == [(0, 2)]


def test_w9_a_writer_that_lost_deletes_nothing(bucket: Bucket) -> None:
    old = appended(bucket.sink(), 2)
    process = bucket.process()
    compactor = process.log.claim_compactor(lease_ms=0, holder="c")
    replacement = merge(compactor, old)
    bucket.compactor()
    with pytest.raises(Fenced):
        compactor.replace(replacement)
    assert process.deletes == []
    assert replacement.objects() <= bucket.names()


# Unknown results


def test_a_412_is_a_success_if_the_stored_bytes_are_the_uploads(bucket: Bucket) -> None:
    process = bucket.process()
    key = PLACE.key(str(process.log.claim_sink().new_name(0)))
    process.store.add(Fault(lambda call: call.key == key, FaultKind.LOST_ANSWER))
    create_object(process.store, key, b"bytes", process.log.retry)
    assert bucket.store.get(key).data == b"bytes"


def test_a_412_is_an_error_if_other_bytes_are_stored(bucket: Bucket) -> None:
    process = bucket.process()
    key = PLACE.key(str(process.log.claim_sink().new_name(0)))
    bucket.store.put(key, b"somebody else's", Create())
    with pytest.raises(StoreError, match="keyfold never reuses object names"):
        create_object(process.store, key, b"bytes", process.log.retry)


@pytest.mark.parametrize("kind", [FaultKind.LOST_ANSWER, FaultKind.LATE, FaultKind.UNAVAILABLE, FaultKind.CONFLICT])
def test_a_commit_lands_exactly_once_for_any_answer(bucket: Bucket, kind: FaultKind) -> None:
    process = bucket.process()
    sink = process.log.claim_sink()
    process.at_manifest_put(kind)
    appended(sink, 2)
    process.store.land()
    appended(sink, 1)
    assert bucket.ranges() == [(0, 2), (2, 3)]


def test_a_late_commit_after_a_rivals_is_rejected(bucket: Bucket) -> None:
    process = bucket.process(retry_timeout_s=0.0)
    sink = process.log.claim_sink()
    made = uploaded(sink, 0, 2)
    process.at_manifest_put(FaultKind.LATE)
    with pytest.raises(CommitUnknown):
        sink.append(made)
    rival = bucket.sink()
    appended(rival, 3)
    landed = process.store.land()
    assert {type(landing.error) for landing in landed} == {PreconditionFailed}
    with pytest.raises(Fenced):
        sink.append(made)
    assert bucket.ranges() == [(0, 3)]


def test_a_read_that_shows_the_old_manifest_proves_nothing(bucket: Bucket) -> None:
    process = bucket.process(retry_timeout_s=0.0)
    sink = process.log.claim_sink()
    made = uploaded(sink, 0, 2)
    process.at_manifest_put(FaultKind.LATE)
    with pytest.raises(CommitUnknown, match="may have landed"):
        sink.append(made)
    assert bucket.ranges() == []  # as if it had not landed
    process.store.land()
    sink.append(made)
    assert bucket.ranges() == [(0, 2)]


def test_an_append_repeated_after_an_unknown_result_lands_once(bucket: Bucket) -> None:
    process = bucket.process(retry_timeout_s=0.0)
    sink = process.log.claim_sink()
    made = uploaded(sink, 0, 2)
    process.at_manifest_put(FaultKind.LATE)
    with pytest.raises(CommitUnknown):
        sink.append(made)
    sink.append(made)
    process.store.land()
    assert bucket.ranges() == [(0, 2)]


def test_a_claim_with_a_lost_answer_is_recognised(bucket: Bucket) -> None:
    process = bucket.process()
    process.at_manifest_put(FaultKind.LOST_ANSWER)
    sink = process.log.claim_sink()
    assert (sink.epoch, bucket.manifest.last_epoch) == (1, 1)
    appended(sink, 1)


def test_an_unlinking_replacement_repeated_after_an_unknown_result_is_recognised(bucket: Bucket) -> None:
    old = appended(bucket.sink(), 2)
    process = bucket.process(retry_timeout_s=0.0)
    compactor = process.log.claim_compactor(lease_ms=0, holder="c")
    process.at_manifest_put(FaultKind.LOST_ANSWER)
    replacement = Replacement((Swap((old,), ()),), first_dirty_offset=2)
    with pytest.raises(CommitUnknown):
        compactor.replace(replacement)
    assert compactor.replace(replacement).segments == ()
    assert len(bucket.manifest.replaced) == 2
