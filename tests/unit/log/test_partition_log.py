"""The partition log on the in-memory store: create, claim, append, replace, fence, lease, forget."""

from dataclasses import replace
from random import Random

import pytest

from keyfold.errors import (
    AlreadyExists,
    Fenced,
    LeaseHeld,
    LogNotFound,
    ManifestLost,
    OffsetMoved,
    SegmentsMoved,
)
from keyfold.log.manifest import Gap, Pass, SegmentEntry
from keyfold.log.names import Place
from keyfold.log.partition_log import CompactorSession, PartitionLog, Replacement, SinkSession, Swap
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from tests.support.manifests import entry, sink_name

PLACE = Place("topics", "users", 0)


def make_log(store: MemoryStore, clock: ManualClock, seed: int = 0) -> PartitionLog:
    return PartitionLog(store, PLACE, clock=clock, random=Random(seed))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def log(store: MemoryStore, clock: ManualClock) -> PartitionLog:
    return make_log(store, clock)


def appended(session: SinkSession, count: int, **changes: object) -> SegmentEntry:
    base = session.manifest.next_offset
    made = entry(session.new_name(base), base, base + count, **changes)  # type: ignore[arg-type]  # fields by name, of any type
    session.append(made)
    return made


def merged(session: CompactorSession, old: tuple[SegmentEntry, ...], **changes: object) -> SegmentEntry:
    base, end = old[0].base_offset, old[-1].next_offset
    return entry(session.new_name(base), base, end, **changes)  # type: ignore[arg-type]  # fields by name, of any type


def test_a_missing_log_is_not_a_lost_manifest(log: PartitionLog, store: MemoryStore) -> None:
    with pytest.raises(LogNotFound):
        log.load()
    store.put(PLACE.key(str(sink_name(0))), b"x", Create())
    with pytest.raises(ManifestLost, match="keyfold log repair"):
        log.load()
    with pytest.raises(ManifestLost, match="keyfold log repair"):
        log.create()


def test_creating_twice_gives_the_same_log(log: PartitionLog, store: MemoryStore, clock: ManualClock) -> None:
    first = log.create(topic_id="id", cluster_id="c", start_offset=7)
    second = make_log(store, clock, seed=1).create(start_offset=9)
    assert second.manifest.log_id == first.manifest.log_id
    assert (first.manifest.log_start_offset, first.manifest.next_offset) == (7, 7)


def test_appends_make_contiguous_ranges_and_are_stamped_by_the_next_commit(
    log: PartitionLog, clock: ManualClock
) -> None:
    log.create()
    sink = log.claim_sink()
    appended(sink, 3)
    assert [s.appended_at_ms for s in sink.manifest.segments] == [-1]
    first_ms = clock.now_ms()
    clock.advance(1000)
    appended(sink, 2)
    assert [s.appended_at_ms for s in sink.manifest.segments] == [first_ms, -1]
    assert [(s.base_offset, s.next_offset) for s in sink.manifest.segments] == [(0, 3), (3, 5)]


def test_an_append_anywhere_but_at_the_end_is_refused(log: PartitionLog) -> None:
    log.create()
    sink = log.claim_sink()
    with pytest.raises(OffsetMoved, match="an append starts at offset 4, but the log ends at offset 0"):
        sink.append(entry(sink.new_name(4), 4, 5))


def test_a_newer_claim_fences_the_older_session(log: PartitionLog) -> None:
    log.create()
    old = log.claim_sink()
    new = log.claim_sink()
    assert new.epoch == old.epoch + 1
    with pytest.raises(Fenced):
        appended(old, 1)
    appended(new, 1)


def test_a_claim_that_lost_a_race_does_not_fence_the_winner(log: PartitionLog) -> None:
    pinned = log.create()
    winner = log.claim_sink(pinned)
    with pytest.raises(Fenced):
        log.claim_sink(pinned)
    appended(winner, 1)


def test_roles_do_not_fence_each_other_and_their_commits_commute(log: PartitionLog) -> None:
    log.create()
    sink = log.claim_sink()
    old = (appended(sink, 2), appended(sink, 2))
    compactor = log.claim_compactor(lease_ms=1000, holder="a")
    appended(sink, 1)
    new = merged(compactor, old)
    compactor.replace(Replacement((Swap(old, (new,)),), first_dirty_offset=4))
    appended(sink, 1)
    assert [s.base_offset for s in sink.manifest.segments] == [0, 4, 5]
    assert sink.manifest.first_dirty_offset == 4
    assert {r.name for r in sink.manifest.replaced} == {n for e in old for n in (e.name, e.index_name)}


def test_a_replacement_of_moved_segments_is_refused(log: PartitionLog) -> None:
    log.create()
    sink = log.claim_sink()
    old = (appended(sink, 2),)
    compactor = log.claim_compactor(lease_ms=0, holder="a")
    compactor.replace(Replacement((Swap(old, (merged(compactor, old),)),), first_dirty_offset=0))
    with pytest.raises(SegmentsMoved):
        compactor.replace(Replacement((Swap(old, (merged(compactor, old),)),), first_dirty_offset=0))


def test_a_lease_is_respected_until_it_expires_in_store_time(log: PartitionLog, clock: ManualClock) -> None:
    log.create()
    log.claim_compactor(lease_ms=1000, holder="a")
    with pytest.raises(LeaseHeld):
        log.claim_compactor(lease_ms=1000, holder="b")
    clock.advance(1000)
    second = log.claim_compactor(lease_ms=1000, holder="b")
    second.renew(5000)
    clock.advance(4000)
    with pytest.raises(LeaseHeld):
        log.claim_compactor(lease_ms=1000, holder="a")
    second.release()
    log.claim_compactor(lease_ms=1000, holder="a")


@pytest.mark.parametrize("emptied", [0, 1, 2])
def test_an_emptied_segments_range_goes_to_a_neighbour(log: PartitionLog, emptied: int) -> None:
    log.create()
    sink = log.claim_sink()
    old = [appended(sink, 2) for _ in range(3)]
    compactor = log.claim_compactor(lease_ms=0, holder="a")
    manifest = compactor.replace(Replacement((Swap((old[emptied],), ()),), first_dirty_offset=6))
    ranges = [(s.base_offset, s.next_offset) for s in manifest.segments]
    assert ranges == {0: [(0, 4), (4, 6)], 1: [(0, 4), (4, 6)], 2: [(0, 2), (2, 6)]}[emptied]


def test_an_emptied_log_takes_the_next_append_from_its_start(log: PartitionLog) -> None:
    log.create()
    sink = log.claim_sink()
    old = appended(sink, 2)
    compactor = log.claim_compactor(lease_ms=0, holder="a")
    compactor.replace(Replacement((Swap((old,), ()),), first_dirty_offset=2))
    appended(sink, 3)
    assert [(s.base_offset, s.next_offset) for s in sink.manifest.segments] == [(0, 5)]
    assert sink.manifest.next_offset == 5


def test_marks_create_a_pass_that_is_stamped_later_and_forgotten_with_its_last_mark(
    log: PartitionLog, clock: ManualClock
) -> None:
    log.create()
    sink = log.claim_sink()
    old = appended(sink, 2, tombstones=1)
    first = log.claim_compactor(lease_ms=0, holder="a")
    index = first.new_name(0).index
    marked = replace(old, index_name=str(index), unmarked_tombstone_count=0, cleaned_epochs=(first.epoch,))
    manifest = first.replace(Replacement((Swap((old,), (marked,)),), first_dirty_offset=2))
    assert manifest.passes == (Pass(first.epoch, -1),)
    assert {r.name for r in manifest.replaced} == {old.index_name}
    committed_ms = clock.now_ms()
    clock.advance(5000)
    second = log.claim_compactor(lease_ms=0, holder="a")
    assert second.manifest.passes == (Pass(first.epoch, committed_ms + 5000),)
    clean = merged(second, (marked,), record_count=1, last_offset=1)
    manifest = second.replace(
        Replacement((Swap((marked,), (clean,)),), first_dirty_offset=2, purged_to=1, purged_epoch=first.epoch)
    )
    assert manifest.passes == ()
    assert (manifest.purged_to, manifest.purged_epoch, manifest.last_pass_epoch) == (1, first.epoch, second.epoch)


def test_purges_are_recorded_permanently_by_highest_offset_and_latest_mark(log: PartitionLog) -> None:
    """A later pass may remove older tombstones, or none: readers ask for what was ever removed."""
    log.create()
    sink = log.claim_sink()
    segments = [appended(sink, 2) for _ in range(3)]
    session = log.claim_compactor(lease_ms=0, holder="a")
    swap = Swap((segments[0],), (merged(session, (segments[0],)),))
    session.replace(Replacement((swap,), first_dirty_offset=2, purged_to=5, purged_epoch=7))
    for purged_to, purged_epoch in ((-1, 0), (3, 4)):
        session = log.claim_compactor(lease_ms=0, holder="a")
        old = session.manifest.segments[1]
        swap = Swap((old,), (merged(session, (old,)),))
        again = Replacement((swap,), first_dirty_offset=2, purged_to=purged_to, purged_epoch=purged_epoch)
        manifest = session.replace(again)
        assert (manifest.purged_to, manifest.purged_epoch) == (5, 7)


def test_objects_unlinked_by_a_commit_are_recorded_under_the_new_version(log: PartitionLog) -> None:
    """A hold on a version needs all that later versions unlink, and nothing that this one unlinked itself."""
    log.create()
    sink = log.claim_sink()
    old = appended(sink, 2)
    session = log.claim_compactor(lease_ms=0, holder="a")
    cleaned = session.replace(Replacement((Swap((old,), (merged(session, (old,)),)),), first_dirty_offset=2))
    assert {r.version for r in cleaned.replaced} == {cleaned.version}
    expired = session.expire(session.manifest.segments)
    assert {r.version for r in expired.replaced[len(cleaned.replaced) :]} == {expired.version}


def test_an_epoch_marks_in_one_commit(log: PartitionLog) -> None:
    log.create()
    sink = log.claim_sink()
    first, second = (appended(sink, 2, tombstones=1) for _ in range(2))
    compactor = log.claim_compactor(lease_ms=0, holder="a")

    def marking(entry: SegmentEntry, *, whole: bool) -> Replacement:
        index = compactor.new_name(entry.base_offset).index
        marked = replace(entry, index_name=str(index), unmarked_tombstone_count=0, cleaned_epochs=(compactor.epoch,))
        return Replacement((Swap((entry,), (marked,)),), first_dirty_offset=0, whole=whole)

    with pytest.raises(AssertionError, match="must claim an epoch of its own"):
        compactor.replace(marking(first, whole=False))
    compactor.replace(marking(first, whole=True))
    with pytest.raises(AssertionError, match="has ended and marks tombstones again"):
        compactor.replace(marking(second, whole=True))


def test_replaced_objects_are_stamped_after_the_commit_and_forgotten(log: PartitionLog, clock: ManualClock) -> None:
    log.create()
    sink = log.claim_sink()
    old = appended(sink, 2)
    compactor = log.claim_compactor(lease_ms=0, holder="a")
    manifest = compactor.replace(Replacement((Swap((old,), (merged(compactor, (old,)),)),), first_dirty_offset=2))
    assert {r.unlinked_at_ms for r in manifest.replaced} == {-1}
    clock.advance(10)
    again = log.claim_compactor(lease_ms=0, holder="a")
    assert {r.unlinked_at_ms for r in again.manifest.replaced} == {clock.now_ms()}
    assert again.forget(r.name for r in again.manifest.replaced).replaced == ()


def test_a_hole_moves_the_end_without_a_segment_and_records_a_gap(log: PartitionLog) -> None:
    log.create()
    sink = log.claim_sink()
    sink.advance(4)
    appended(sink, 2)
    sink.advance(10, gaps=(Gap(7, 9, "not at the source"),))
    assert [(s.base_offset, s.next_offset) for s in sink.manifest.segments] == [(0, 10)]
    assert sink.manifest.gaps == (Gap(7, 9, "not at the source"),)


def test_a_replacement_planned_before_the_end_moved_keeps_the_new_end(log: PartitionLog) -> None:
    log.create()
    sink = log.claim_sink()
    old = appended(sink, 2)
    compactor = log.claim_compactor(lease_ms=0, holder="a")
    sink.advance(5)
    manifest = compactor.replace(Replacement((Swap((old,), (merged(compactor, (old,)),)),), first_dirty_offset=2))
    assert manifest.segments[-1].next_offset == 5


def test_restore_never_replaces_a_manifest(log: PartitionLog) -> None:
    there = log.create().manifest
    with pytest.raises(AlreadyExists):
        log.restore(replace(there, log_id="another"))
    assert log.load().manifest.log_id == there.log_id


def test_followed_settings_are_committed_once(log: PartitionLog) -> None:
    log.create()
    sink = log.claim_sink()
    version = sink.follow({"cleanup.policy": "compact"}, topic_id="t").version
    assert sink.follow({"cleanup.policy": "compact"}, topic_id="t").version == version
    assert sink.manifest.topic_id == "t"


def test_a_hole_at_the_end_of_a_clean_log_is_clean(log: PartitionLog) -> None:
    log.create()
    sink = log.claim_sink()
    old = appended(sink, 2)
    compactor = log.claim_compactor(lease_ms=0, holder="a")
    sink.advance(4)
    manifest = compactor.replace(Replacement((Swap((old,), (merged(compactor, (old,)),)),), first_dirty_offset=2))
    assert manifest.first_dirty_offset == 4
    assert sink.advance(6).first_dirty_offset == 6
    appended(sink, 1)
    assert sink.manifest.first_dirty_offset == 6


def test_a_recreated_log_accepts_nothing_from_the_old_logs_writers(
    log: PartitionLog, store: MemoryStore, clock: ManualClock
) -> None:
    """A claim that uploaded nothing leaves no name behind, so a repaired log may come to the same epoch once more."""
    log.create()
    session = log.claim_sink()
    recreated = replace(session.manifest, log_id="another", sink=replace(session.manifest.sink, commit_id="x"))
    store.delete(PLACE.manifest_key)
    make_log(store, clock, seed=9).restore(recreated)
    with pytest.raises(Fenced, match="created again"):
        appended(session, 3)
    with pytest.raises(Fenced, match="created again"):
        session.refresh()
    assert log.load().manifest == recreated
