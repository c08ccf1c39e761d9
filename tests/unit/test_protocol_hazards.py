"""Each hazard of committing, fencing and collecting by its name, on the real partition log over the in-memory store.

W1 to W9 are mistakes of the first draft of the protocol; `tests/model` explores what surrounds them. Every "process"
has its own `FaultyStore` over one bucket, so it can be paused, crash, or have its requests land late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from keyfold.clock import ManualClock
from keyfold.errors import (
    CommitUnknown,
    Fenced,
    LeaseHeld,
    ManifestLost,
    OffsetMoved,
    PreconditionFailed,
    SegmentsMoved,
    StoreError,
)
from keyfold.log.manifest import UNSTAMPED, Manifest, Pass, SegmentEntry, faults
from keyfold.log.names import MANIFEST_NAME, Place
from keyfold.log.objects import create_object
from keyfold.log.partition_log import CompactorSession, PartitionLog, Replacement, SinkSession, Swap
from keyfold.store.api import STORE_TIME_RESOLUTION_MS, Create
from keyfold.store.faulty import Call, Fault, FaultyStore, Kind, SimulatedCrash
from keyfold.store.memory import MemoryStore
from keyfold_compactor.janitor import due_names, list_names, orphan_names, sweep
from tests.support.manifests import entry

PLACE = Place("topics", "users", 0)
HOUR_MS = 3_600_000


class Process:
    """A writer with its own connection to the bucket, its own clock and its own dice."""

    def __init__(self, bucket: Bucket, seed: int, *planned: Fault, patience_s: float = 60.0) -> None:
        self.store = FaultyStore(bucket.store, planned)
        self.clock = ManualClock()
        self.log = PartitionLog(self.store, PLACE, clock=self.clock, random=Random(seed), patience_s=patience_s)

    def at_manifest_put(self, kind: Kind, *, number: int = 1, times: int = 1) -> None:
        """Let the `number`-th manifest PUT from here fail, and as many of the following ones as `times` says."""
        seen = 0

        def hits(call: Call) -> bool:
            nonlocal seen
            seen += call.operation == "put" and call.key == PLACE.manifest_key
            return call.operation == "put" and call.key == PLACE.manifest_key and seen >= number

        self.store.add(Fault(hits, kind, times=times))

    def before(self, operation: str, act: Callable[[], object]) -> None:
        """Let somebody else act right before this process's next call of this kind on the manifest."""

        def on_call(call: Call) -> None:
            if call.operation == operation and call.key == PLACE.manifest_key:
                self.store.on_call = None
                act()

        self.store.on_call = on_call

    @property
    def deletes(self) -> list[str]:
        """Keys that this process has deleted."""
        return [call.key for call in self.store.calls if call.operation == "delete"]


class Bucket:
    """The store, its clock, and who is there."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self._seed = 0
        self.process().log.create()

    def process(self, *planned: Fault, patience_s: float = 60.0) -> Process:
        self._seed += 1
        return Process(self, self._seed, *planned, patience_s=patience_s)

    def sink(self) -> SinkSession:
        return self.process().log.claim_sink()

    def compactor(self) -> CompactorSession:
        return self.process().log.claim_compactor(lease_ms=0, holder="c")

    @property
    def manifest(self) -> Manifest:
        return self.process().log.load().manifest

    def names(self) -> set[str]:
        return set(list_names(self.store, PLACE))

    def ranges(self) -> list[tuple[int, int]]:
        manifest = self.manifest
        assert faults(manifest) == []
        return [(s.base_offset, s.next_offset) for s in manifest.segments]

    def named_are_there(self) -> bool:
        return self.manifest.object_names() <= self.names()


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


def uploaded(session: SinkSession | CompactorSession, base: int, end: int, **changes: object) -> SegmentEntry:
    """A segment and its index in the bucket, not yet committed."""
    made = entry(session.new_name(base), base, end, **changes)  # type: ignore[arg-type]
    for name in (made.name, made.index_name):
        create_object(session._log.store, PLACE.key(name), name.encode(), session._log.patience)
    return made


def appended(session: SinkSession, count: int, **changes: object) -> SegmentEntry:
    base = session.manifest.next_offset
    made = uploaded(session, base, base + count, **changes)
    session.append(made)
    return made


def merge(session: CompactorSession, *old: SegmentEntry) -> Replacement:
    new = uploaded(session, old[0].base_offset, old[-1].next_offset)
    return Replacement((Swap(old, (new,)),), first_dirty_offset=0)


# The mistakes of the first draft


def test_w1_a_sinks_upload_is_no_orphan_to_a_newer_compactor(bucket: Bucket) -> None:
    sink = bucket.sink()
    waiting = uploaded(sink, 0, 2)
    compactor = bucket.compactor()
    assert compactor.epoch > sink.epoch
    assert sweep(bucket.store, compactor, 0).object_count == 0
    sink.append(waiting)
    assert bucket.named_are_there()


def test_w1_the_upload_goes_once_its_own_role_has_claimed_anew(bucket: Bucket) -> None:
    left = uploaded(bucket.sink(), 0, 2)
    bucket.sink()
    assert set(sweep(bucket.store, bucket.compactor(), 0).orphans) == {left.name, left.index_name}


@pytest.mark.parametrize("crashes", [False, True])
def test_w2_the_deletion_delay_begins_after_a_late_landing(bucket: Bucket, *, crashes: bool) -> None:
    old = appended(bucket.sink(), 2)
    process = bucket.process(patience_s=0.0)
    compactor = process.log.claim_compactor(lease_ms=0, holder="c")
    replacement = merge(compactor, old)
    process.at_manifest_put(Kind.CRASH_LATE if crashes else Kind.LATE)
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


def test_w5_the_first_dirty_offset_is_what_the_pass_says_and_never_goes_back(bucket: Bucket) -> None:
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
        lambda: sweep(bucket.store, compactor, 0),
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
    with pytest.raises(AssertionError, match="is not of role SINK"):
        again.append(left)
    assert bucket.ranges() == []


def test_w9_the_own_commit_is_found_after_a_takeover(bucket: Bucket) -> None:
    process = bucket.process(patience_s=0.0)
    sink = process.log.claim_sink()
    made = uploaded(sink, 0, 2)
    process.at_manifest_put(Kind.LOST_ANSWER)
    with pytest.raises(CommitUnknown):
        sink.append(made)
    appended(bucket.sink(), 1)  # its commit id is the last one now
    sink.append(made)
    assert bucket.ranges() == [(0, 2), (2, 3)]
    assert process.deletes == []


def test_w9_the_own_commit_is_found_after_its_segment_was_replaced(bucket: Bucket) -> None:
    process = bucket.process(patience_s=0.0)
    sink = process.log.claim_sink()
    made = uploaded(sink, 0, 2)
    process.at_manifest_put(Kind.LOST_ANSWER)
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


def test_a_412_on_an_upload_whose_own_bytes_are_stored_is_a_success(bucket: Bucket) -> None:
    process = bucket.process()
    key = PLACE.key(str(process.log.claim_sink().new_name(0)))
    process.store.add(Fault(lambda call: call.key == key, Kind.LOST_ANSWER))
    create_object(process.store, key, b"bytes", process.log.patience)
    assert bucket.store.get(key).data == b"bytes"


def test_a_412_on_an_upload_whose_name_holds_other_bytes_is_an_error(bucket: Bucket) -> None:
    process = bucket.process()
    key = PLACE.key(str(process.log.claim_sink().new_name(0)))
    bucket.store.put(key, b"somebody else's", Create())
    with pytest.raises(StoreError, match="object names are never reused"):
        create_object(process.store, key, b"bytes", process.log.patience)


@pytest.mark.parametrize("kind", [Kind.LOST_ANSWER, Kind.LATE, Kind.UNAVAILABLE, Kind.CONFLICT])
def test_whatever_the_answer_to_a_commit_it_is_there_once(bucket: Bucket, kind: Kind) -> None:
    process = bucket.process()
    sink = process.log.claim_sink()
    process.at_manifest_put(kind)
    appended(sink, 2)
    process.store.land()
    appended(sink, 1)
    assert bucket.ranges() == [(0, 2), (2, 3)]


def test_a_late_commit_that_lands_after_a_rivals_dies(bucket: Bucket) -> None:
    process = bucket.process(patience_s=0.0)
    sink = process.log.claim_sink()
    made = uploaded(sink, 0, 2)
    process.at_manifest_put(Kind.LATE)
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
    process = bucket.process(patience_s=0.0)
    sink = process.log.claim_sink()
    made = uploaded(sink, 0, 2)
    process.at_manifest_put(Kind.LATE)
    with pytest.raises(CommitUnknown, match="may have landed"):
        sink.append(made)
    assert bucket.ranges() == []  # as if it had not landed
    process.store.land()
    sink.append(made)
    assert bucket.ranges() == [(0, 2)]


def test_the_same_append_called_again_after_an_unknown_one_is_there_once(bucket: Bucket) -> None:
    process = bucket.process(patience_s=0.0)
    sink = process.log.claim_sink()
    made = uploaded(sink, 0, 2)
    process.at_manifest_put(Kind.LATE)
    with pytest.raises(CommitUnknown):
        sink.append(made)
    sink.append(made)
    process.store.land()
    assert bucket.ranges() == [(0, 2)]


def test_a_claim_whose_answer_is_lost_is_found(bucket: Bucket) -> None:
    process = bucket.process()
    process.at_manifest_put(Kind.LOST_ANSWER)
    sink = process.log.claim_sink()
    assert (sink.epoch, bucket.manifest.last_epoch) == (1, 1)
    appended(sink, 1)


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


def test_an_expired_lease_alone_fences_nobody_and_a_claim_does(bucket: Bucket) -> None:
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


def test_a_local_clock_that_jumps_moves_no_stamp_and_no_lease(bucket: Bucket) -> None:
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


def test_a_deletion_that_crashes_is_finished_by_the_next_and_forgotten_then(bucket: Bucket) -> None:
    old = appended(bucket.sink(), 2)
    compactor = bucket.compactor()
    compactor.replace(merge(compactor, old))
    process = bucket.process(Fault(lambda call: call.operation == "delete", Kind.CRASH_AFTER))
    session = process.log.claim_compactor(lease_ms=0, holder="c")
    with pytest.raises(SimulatedCrash):
        sweep(process.store, session, 0)
    assert {r.name for r in bucket.manifest.replaced} == {old.name, old.index_name}
    sweep(bucket.store, bucket.compactor(), 0)
    assert not bucket.manifest.replaced
    assert bucket.names() == bucket.manifest.object_names()


def test_a_delete_that_lands_again_much_later_hits_nothing(bucket: Bucket) -> None:
    sink = bucket.sink()
    old = appended(sink, 2)
    compactor = bucket.compactor()
    compactor.replace(merge(compactor, old))
    process = bucket.process(Fault(lambda call: call.operation == "delete", Kind.LATE))
    session = process.log.claim_compactor(lease_ms=0, holder="c")
    with pytest.raises(StoreError):
        sweep(process.store, session, 0)
    sweep(bucket.store, bucket.compactor(), 0)
    appended(sink, 3)
    process.store.land()
    assert bucket.named_are_there()


def test_what_is_committed_between_the_listing_and_the_manifest_stays(bucket: Bucket) -> None:
    sink = bucket.sink()
    waiting = uploaded(sink, 0, 2)
    process = bucket.process()
    session = process.log.claim_compactor(lease_ms=0, holder="c")

    def commits_and_loses_the_partition() -> None:
        sink.append(waiting)
        bucket.sink()  # now its epoch is old, and only the manifest says that the upload is not

    process.before("get", commits_and_loses_the_partition)
    swept = sweep(process.store, session, 0)
    assert swept.object_count == 0
    assert bucket.named_are_there()


def test_unfinished_uploads_are_judged_by_the_role_in_their_name(bucket: Bucket) -> None:
    sink = bucket.sink()
    upload = bucket.store.start_upload(PLACE.key(str(sink.new_name(0))))
    upload.write(b"part")
    assert sweep(bucket.store, bucket.compactor(), 0).uploads == ()
    bucket.sink()
    assert len(sweep(bucket.store, bucket.compactor(), 0).uploads) == 1


def test_a_foreign_object_is_nobodys_orphan(bucket: Bucket) -> None:
    names = ["00000000000000000000.avro", "notes.txt", "_index/x.parquet", MANIFEST_NAME]
    bucket.sink()
    bucket.sink()
    assert orphan_names(names, bucket.manifest) == []
