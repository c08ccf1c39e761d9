"""A replica's manifest, commit by commit: which writers it accepts, what it copies, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from keyfold.errors import (
    CommitUnknown,
    Fenced,
    FormatTooNew,
    IsReplica,
    OffsetOutOfRange,
    ReplicaDiverged,
    ResyncRequired,
)
from keyfold.log.manifest import NO_OFFSET, UNSTAMPED, Hold, Manifest, content, was_compacted
from keyfold.log.manifest_codec import decode_manifest, encode_manifest
from keyfold.log.partition_log import PartitionLog, Replacement, Swap
from keyfold.log.replica_log import ReplicaLog
from keyfold.read.position import anchor_of, check_resumed
from keyfold.store.api import Create
from keyfold.store.wrappers.faults import Call, Fault, FaultKind, FaultyStore, SimulatedCrash
from tests.support.bucket import Bucket, appended, uploaded
from tests.support.manifests import entry
from tests.support.replica_both import PLACE, URL, Both


@pytest.fixture
def both() -> Both:
    return Both()


def on_manifest(kind: FaultKind, times: int = 1) -> Fault:
    def hits(call: Call) -> bool:
        return call.operation == "put" and call.key == PLACE.manifest_key

    return Fault(hits, kind, times=times)


# what is taken over


def test_a_replicas_manifest_equals_its_sources_except_for_its_own_fields(both: Both) -> None:
    session = both.claim()
    assert (session.manifest, session.epoch) == (None, 1)
    first = session.mirror(both.load())
    assert content(first) == content(both.load())
    assert first.replica is not None
    assert (first.version, first.log_version, first.replica.name, first.replica.source) == (1, 3, "dr", URL)
    both.clean()
    second = session.mirror(both.load())
    assert content(second) == content(both.load())
    assert [r.version for r in second.replaced] == [2, 2]
    assert {r.name for r in second.replaced} == first.object_names()
    assert decode_manifest(encode_manifest(second), PLACE) == second


def test_nothing_is_committed_if_the_replica_already_has_it(both: Both) -> None:
    session = both.claim()
    first = session.mirror(both.load())
    both.log.hold("dr", None, received_to=5)
    both.log.hold("other", both.load().version, 1000)
    assert both.load().version > first.log_version
    assert session.mirror(both.load()) is first


def test_the_sources_times_come_from_the_source_and_the_replicas_from_its_own_store(both: Both) -> None:
    session = both.claim()
    assert session.mirror(both.load()).segments[0].appended_at_ms == UNSTAMPED
    both.clock.advance(5000)
    both.clean()
    session.mirror(both.load())
    both.clock.advance(5000)
    session.refresh()
    stamped = session.stamp()
    assert {r.unlinked_at_ms for r in stamped.replaced} == {both.clock.now_ms()}
    assert session.stamp() is stamped
    assert stamped.segments == both.load().segments
    gone = session.forget(r.name for r in stamped.replaced)
    assert gone.replaced == ()


def test_a_log_knows_whether_it_was_compacted(both: Both) -> None:
    assert not was_compacted(both.load())
    both.clean()
    assert was_compacted(both.load())


@pytest.mark.parametrize("is_emptied", [False, True])
def test_a_leading_hole_does_not_mean_that_a_log_was_compacted(is_emptied: bool) -> None:
    """Skipped records, or transactions that were aborted, before there is a record; also where all have expired."""
    bucket = Bucket()
    sink = bucket.sink()
    if is_emptied:
        first = appended(sink, 5)
        bucket.compactor().expire([first])
    for _ in range(2):
        sink.advance(sink.refresh().next_offset + 3)
        assert not was_compacted(bucket.manifest)
    old = [appended(sink, 2), appended(sink, 2)]
    assert not was_compacted(bucket.manifest)
    compactor = bucket.compactor()
    merged = uploaded(compactor, bucket.manifest.log_start_offset, sink.manifest.next_offset)
    compactor.replace(Replacement((Swap(tuple(old), (merged,)),), NO_OFFSET, whole=False))
    assert not was_compacted(bucket.manifest)
    appended(sink, 2)
    assert not was_compacted(bucket.manifest)


def test_a_part_that_emptied_the_logs_start_counts_as_compaction() -> None:
    bucket = Bucket()
    sink = bucket.sink()
    old = appended(sink, 2)
    appended(sink, 2)
    bucket.compactor().replace(Replacement((Swap((old,), ()),), 2, whole=False, mapped_to=4))
    assert was_compacted(bucket.manifest)


# who may write


def test_neither_sink_nor_compactor_may_write_into_a_replica(both: Both) -> None:
    both.claim().mirror(both.load())
    log = both.log_of(both.replica)
    with pytest.raises(IsReplica, match="is the replica `dr` of s3://log/topics") as caught:
        log.claim_sink()
    assert (caught.value.source, "keyfold replica promote" in str(caught.value)) == (URL, True)
    with pytest.raises(IsReplica):
        log.claim_compactor(lease_ms=1, holder="c")


def test_a_later_claim_fences_an_earlier_one(both: Both) -> None:
    first = both.claim()
    first.mirror(both.load())
    second = both.claim(seed=3)
    both.append(1)
    with pytest.raises(Fenced, match=f"claimed epoch {second.epoch}; this one had epoch 1"):
        first.mirror(both.load())
    with pytest.raises(Fenced):
        first.refresh()
    second.mirror(both.load())


def test_one_of_two_concurrent_creators_of_a_replica_wins(both: Both) -> None:
    first, second = both.claim(), both.claim(seed=3)
    second.mirror(both.load())
    with pytest.raises(Fenced, match="another replicator has written the first manifest"):
        first.mirror(both.load())


def test_the_source_must_be_loaded_again_after_the_claim(both: Both) -> None:
    early = both.load()
    session = both.replica_log().claim(early, name="dr", source_url=URL)
    with pytest.raises(AssertionError, match="load the source's manifest again"):
        session.mirror(early)


@pytest.mark.parametrize("kind", [FaultKind.LOST_ANSWER, FaultKind.LATE, FaultKind.UNAVAILABLE, FaultKind.CONFLICT])
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_a_commit_with_a_lost_answer_lands_once(both: Both, kind: FaultKind, first: bool) -> None:
    store = FaultyStore(both.replica)
    session = both.claim(store)
    if not first:
        session.mirror(both.load())
        both.append(2)
    store.add(on_manifest(kind))
    manifest = session.mirror(both.load())
    store.land()
    assert both.there() == manifest
    both.append(1)
    assert session.mirror(both.load()).version == manifest.version + 1


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_a_commit_with_an_unknown_result_is_retried(both: Both, first: bool) -> None:
    store = FaultyStore(both.replica)
    session = both.claim(store)
    if not first:
        session.mirror(both.load())
        both.append(2)
    store.add(on_manifest(FaultKind.LATE, times=1), on_manifest(FaultKind.UNAVAILABLE, times=1000))
    source = both.load()
    with pytest.raises(CommitUnknown):
        session.mirror(source)
    store._plans.clear()
    store.land()
    assert session.mirror(source) == both.there()
    assert content(both.there()) == content(source)


def test_a_promotion_with_a_lost_answer_happens_once(both: Both) -> None:
    store = FaultyStore(both.replica)
    session = both.claim(store)
    session.mirror(both.load())
    store.add(on_manifest(FaultKind.LOST_ANSWER))
    promoted = session.promote(both.load())
    assert both.there() == promoted
    assert len(promoted.lineage) == 1


def test_a_demotion_whose_process_dies_happened_completely_or_not_at_all(both: Both) -> None:
    session = both.claim()
    manifest = session.mirror(both.load())
    store = FaultyStore(both.source, [on_manifest(FaultKind.CRASH_LATE)])
    with pytest.raises(SimulatedCrash):
        both.log_of(store).demote(manifest, name="old", source_url="s3://dr")
    both.append(1)  # still the source
    store.land()
    assert not both.load().is_replica


# what is refused


def test_a_folder_with_another_log_is_unchanged(both: Both) -> None:
    both.log_of(both.replica).create()
    with pytest.raises(ReplicaDiverged, match="has its own sink and compactor"):
        both.claim()
    other = Both()
    other.claim().mirror(other.load())
    with pytest.raises(ReplicaDiverged, match="is the replica `dr` of s3://log/topics, not `eu`"):
        other.claim(name="eu")
    third = Both()
    third.replica.put(PLACE.key(str(third.sink.new_name(0)).replace("00000001-s", "00000009-s")), b"x", Create())
    with pytest.raises(ReplicaDiverged, match="contains objects of epoch 9, but the source's last epoch is 1"):
        third.claim().mirror(third.load())


def test_versions_are_skipped_and_never_reversed(both: Both) -> None:
    session = both.claim()
    old = both.load()
    both.append(1)
    both.append(1)
    session.mirror(both.load())
    with pytest.raises(ReplicaDiverged, match="the source is at version 3, but the replica already has version 5"):
        session.mirror(old)
    # An older manifest was put back at the source, and it went on from there with the same numbers.
    back = replace(old, version=9, next_offset=6, segments=(replace(old.segments[0], next_offset=6),))
    with pytest.raises(ReplicaDiverged, match="next_offset is 6 at the source and was 7"):
        session.mirror(back)
    assert session.mirror(back, resync=True).next_offset == 6


def test_another_log_is_followed_only_on_request(both: Both) -> None:
    session = both.claim()
    session.mirror(both.load())
    recreated = replace(both.load(), log_id="recreated", version=1)
    with pytest.raises(ReplicaDiverged, match="the source was reset or repaired"):
        session.mirror(recreated)
    assert session.mirror(recreated, resync=True).log_id == "recreated"


def test_a_tombstone_purged_before_it_was_received_requires_a_resync(both: Both) -> None:
    session = both.claim()
    first = session.mirror(both.load())
    both.append(3)
    both.clean()
    both.clean(purged_to=6)
    with pytest.raises(
        ResyncRequired, match="a tombstone at offset 6, but the replica has only received offsets below 5"
    ) as e:
        session.mirror(both.load())
    assert e.value.code == "ResyncRequired"
    accepted = session.mirror(both.load(), resync=True)
    with pytest.raises(OffsetOutOfRange):  # who had begun there is told
        check_resumed(anchor_of(first), 3, accepted)
    both.append(1)
    session.mirror(both.load())


def test_a_new_replica_and_one_that_received_the_tombstone_need_no_resync(both: Both) -> None:
    both.clean()
    both.clean(purged_to=4)
    session = both.claim()
    session.mirror(both.load())
    both.append(3)
    session.mirror(both.load())
    both.clean(purged_to=7)
    session.mirror(both.load())


def test_objects_unlinked_at_the_replica_are_not_listed_again(both: Both) -> None:
    session = both.claim()
    old = both.load()
    session.mirror(old)
    both.clean()
    session.mirror(both.load())
    with pytest.raises(ReplicaDiverged, match="which the replica has replaced and may delete"):
        session.mirror(replace(old, version=99), resync=True)


def test_a_source_that_needs_a_newer_writer_is_not_mirrored(both: Both) -> None:
    session = both.claim()
    both.load()
    with pytest.raises(FormatTooNew):
        session.mirror(replace(both.load(), min_writer=2))


# holds


def test_a_hold_does_not_change_the_log_and_never_goes_back(both: Both) -> None:
    before = both.load()
    pinned = both.log.hold("dr", before.version, 60_000)
    now_ms = both.clock.now_ms()
    assert pinned.manifest.hold("dr") == Hold("dr", before.version, now_ms + 60_000)
    assert content(pinned.manifest) == content(before)
    told = both.log.hold("dr", None, received_to=5)
    assert told.manifest.holds == (Hold("dr", -1, 0, 5, now_ms),)
    same = both.log.hold("dr", None, received_to=4)
    assert same.manifest.version == told.manifest.version
    both.log.hold("eu", None)
    assert [h.replica for h in both.log.drop_hold("dr").manifest.holds] == ["eu"]
    assert both.log.drop_hold("dr").manifest.version == both.load().version


def test_a_hold_that_loses_a_race_is_retried_on_the_newest_version(both: Both) -> None:
    pinned = both.log.load()
    both.append(1)
    newest = both.log.hold("dr", pinned.manifest.version, 1000, pinned=pinned)
    assert newest.manifest.next_offset == 6


# promotion


def switched_over(both: Both) -> tuple[PartitionLog, Manifest]:
    session = both.claim()
    replica = session.mirror(both.load())
    both.log.demote(replica, name="old", source_url="s3://dr/topics")
    session.mirror(both.load())
    promoted = session.promote(both.load())
    return both.log_of(both.replica, 7), promoted


def test_a_switch_over_fences_first_and_loses_nothing(both: Both) -> None:
    old_id = both.load().log_id
    new, promoted = switched_over(both)
    with pytest.raises(IsReplica):
        both.sink.append(entry(both.sink.new_name(5), 5, 6))
    assert promoted.lineage[0].log_id == old_id
    assert (promoted.lineage[0].next_offset, promoted.lineage[0].version) == (5, both.load().log_version)
    sink = new.claim_sink()
    assert sink.epoch > promoted.lineage[0].last_epoch
    both.append(2, sink)
    back = ReplicaLog(both.source, PLACE, clock=both.clock, random=Random(9)).claim(
        new.load().manifest, name="old", source_url="s3://dr/topics"
    )
    assert content(back.mirror(new.load().manifest)) == content(new.load().manifest)


def test_a_promotion_that_would_lose_records_is_refused(both: Both) -> None:
    session = both.claim()
    session.mirror(both.load())
    both.append(2)
    with pytest.raises(ReplicaDiverged, match="ends at 7, the replica at 5") as caught:
        session.promote(both.load())
    assert (caught.value.lost_from, caught.value.lost_to) == (5, 7)
    session.promote()
    with pytest.raises(Fenced, match="was promoted as"):
        session.mirror(both.load())
    with pytest.raises(ReplicaDiverged, match="this log was promoted"):
        both.claim()


def test_a_forced_promotion_can_be_reversed(both: Both) -> None:
    session = both.claim()
    session.mirror(both.load())
    session.promote()
    new = both.log_of(both.replica, 7)
    sink = new.claim_sink()
    both.append(4, sink)
    both.append(2)  # nobody told the old sink
    with pytest.raises(ReplicaDiverged, match=r"offsets 5 to 6 \(up to 2 records\) were written here") as caught:
        both.log.demote(new.load().manifest, name="old", source_url="s3://dr")
    assert (caught.value.lost_from, caught.value.lost_to, caught.value.lost_records) == (5, 7, 2)
    diverged = both.log.demote(new.load().manifest, name="old", source_url="s3://dr", discard=True).manifest
    back = ReplicaLog(both.source, PLACE, clock=both.clock, random=Random(9)).claim(
        new.load().manifest, name="old", source_url="s3://dr"
    )
    taken = back.mirror(new.load().manifest)
    assert content(taken) == content(new.load().manifest)
    # What only the old log had is nobody's at once: as a replaced object it would look like a lost record.
    assert {r.name for r in taken.replaced} == set()
    assert diverged.segments[-1].name not in taken.object_names()
    with pytest.raises(OffsetOutOfRange, match="has seen the old log below offset 7"):
        check_resumed(anchor_of(diverged), 3, taken)


def test_discarded_records_do_not_count_as_received(both: Both) -> None:
    """Else tombstones that the new log has at those offsets would not wait for it."""
    session = both.claim()
    session.mirror(both.load())
    session.promote()
    new = both.log_of(both.replica, 7)
    both.append(4, new.claim_sink())
    both.append(9)
    both.log.hold("ahead@1", None, received_to=14)
    both.log.hold("behind@1", None, received_to=3)
    both.log.demote(new.load().manifest, name="old", source_url="s3://dr", discard=True)
    back = ReplicaLog(both.source, PLACE, clock=both.clock, random=Random(9)).claim(
        new.load().manifest, name="old", source_url="s3://dr"
    )
    taken = back.mirror(new.load().manifest)
    assert {h.replica: h.received_to for h in taken.holds} == {"ahead@1": 5, "behind@1": 3}
    both.append(1, new.claim_sink())
    assert back.mirror(new.load().manifest).holds == taken.holds


def test_a_log_cannot_follow_one_that_lists_objects_it_has_unlinked(both: Both) -> None:
    session = both.claim()
    session.mirror(both.load())
    session.promote()
    both.clean()
    new = both.log_of(both.replica, 7)
    with pytest.raises(ReplicaDiverged, match="which this log has replaced"):
        both.log.demote(new.load().manifest, name="old", source_url="s3://dr", discard=True)
    both.clean(new)  # now it lists what it has made itself
    both.log.demote(new.load().manifest, name="old", source_url="s3://dr")


def test_a_log_only_follows_its_own_continuation(both: Both) -> None:
    other = Both()
    other.log = other.log_of(other.source, 77)
    stranger = replace(other.load(), log_id="stranger")
    with pytest.raises(ReplicaDiverged, match="does not continue this log"):
        both.log.demote(stranger, name="old", source_url="s3://dr", discard=True)
    switched_over(both)
    with pytest.raises(IsReplica):
        both.log.demote(stranger, name="old", source_url="s3://dr")


def test_a_demotion_is_undone_by_promoting_the_same_log(both: Both) -> None:
    session = both.claim()
    replica = session.mirror(both.load())
    reader = anchor_of(both.load())
    both.log.demote(replica, name="old", source_url="s3://dr")
    undone = ReplicaLog(both.source, PLACE, clock=both.clock, random=Random(9)).claim(
        both.there(), name="old", source_url="s3://dr"
    )
    manifest = undone.promote()
    assert check_resumed(reader, 5, manifest).log_id == manifest.log_id
    both.log.claim_sink()
    session.mirror(both.load())


def test_an_old_replicator_stays_fenced_across_a_promotion_and_back(both: Both) -> None:
    sleeper = both.claim()
    sleeper.mirror(both.load())
    session = both.claim(seed=4)
    both.log.demote(session.mirror(both.load()), name="old", source_url="s3://dr")
    with pytest.raises(ReplicaDiverged, match="replicate once more, then promote"):
        session.promote(both.load())  # the demotion itself has written times
    session.mirror(both.load())
    promoted = session.promote(both.load())
    new = both.log_of(both.replica, 7)
    back = ReplicaLog(both.source, PLACE, clock=both.clock, random=Random(9)).claim(
        promoted, name="old", source_url="s3://dr"
    )
    back.mirror(new.load().manifest)
    new.demote(both.load(), name="dr", source_url=URL)
    assert new.load().manifest.is_replica
    both.clock.advance(1)
    with pytest.raises(Fenced):
        sleeper.mirror(replace(both.load(), version=99))
