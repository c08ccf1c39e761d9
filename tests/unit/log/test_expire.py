"""The commit of retention: the log's first segments go, and every reader notices."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from keyfold.errors import CommitUnknown, Fenced, OffsetOutOfRange, SegmentsMoved
from keyfold.log.edits import without_first
from keyfold.log.gc import collect_garbage
from keyfold.log.manifest import UNSTAMPED, Pass, faults
from keyfold.log.names import Place
from keyfold.log.partition_log import Replacement, Swap
from keyfold.read.log import Log
from keyfold.read.position import anchor_of, check_resumed, start_offset
from keyfold.runtime.clock import ManualClock
from keyfold.store.wrappers.faults import FaultKind
from keyfold.verify.partition import verify_partition
from keyfold_compactor.decide.settings import TopicSettings
from tests.support import cleaning
from tests.support.bucket import Bucket, appended, merge, uploaded
from tests.support.manifests import compactor_name, empty_manifest, entry, sink_name


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


def test_the_log_start_moves_to_the_next_segment_and_the_objects_wait_for_their_deletion(bucket: Bucket) -> None:
    sink = bucket.sink()
    first, second = appended(sink, 2), appended(sink, 3)
    appended(sink, 1)
    session = bucket.compactor()
    after = session.expire([first, second])
    assert bucket.ranges() == [(5, 6)]
    assert (after.log_start_offset, after.first_dirty_offset, after.next_offset) == (5, 5, 6)
    gone = {n for e in (first, second) for n in (e.name, e.index_name)}
    assert {r.name for r in after.replaced} == gone
    assert all(r.unlinked_at_ms == UNSTAMPED and r.version == after.version for r in after.replaced)
    assert gone <= bucket.names(), "only garbage collection deletes"
    collect_garbage(bucket.store, session, 0)
    assert bucket.names() == bucket.manifest.object_names()


def test_the_last_segment_may_expire_and_the_log_continues_at_its_end(bucket: Bucket) -> None:
    sink = bucket.sink()
    only = appended(sink, 4)
    after = bucket.compactor().expire([only])
    assert bucket.ranges() == []
    assert (after.log_start_offset, after.first_dirty_offset, after.next_offset) == (4, 4, 4)
    sink.refresh()
    sink.advance(6)
    appended(sink, 2)
    assert bucket.ranges() == [(4, 8)]
    assert bucket.manifest.first_dirty_offset == 6, "over the hole that nothing is in"


def test_expiry_and_appends_commute(bucket: Bucket) -> None:
    sink = bucket.sink()
    first, last = appended(sink, 2), appended(sink, 2)
    process = bucket.process()
    session = process.log.claim_compactor(lease_ms=0, holder="c")
    process.before("put", lambda: appended(sink, 1))
    session.expire([first])
    process.before("put", lambda: sink.advance(9))
    after = session.expire([last])
    assert bucket.ranges() == [(4, 9)]
    assert after.log_start_offset == 4
    process.before("put", lambda: sink.advance(11))
    assert session.expire(after.segments).log_start_offset == 11, "the range's end as the newest commit has it"


def test_only_the_listed_first_segments_can_expire(bucket: Bucket) -> None:
    sink = bucket.sink()
    first, second = appended(sink, 2), appended(sink, 2)
    session = bucket.compactor()
    with pytest.raises(SegmentsMoved):
        session.expire([second])
    session.replace(merge(session, first))
    with pytest.raises(SegmentsMoved):
        session.expire([first])
    assert bucket.ranges() == [(0, 2), (2, 4)]


def test_a_fenced_compactor_expires_nothing(bucket: Bucket) -> None:
    first = appended(bucket.sink(), 2)
    paused = bucket.compactor()
    bucket.compactor()
    with pytest.raises(Fenced):
        paused.expire([first])
    assert bucket.ranges() == [(0, 2)]


def test_an_expiry_with_a_lost_answer_is_recognised_even_after_later_commits(bucket: Bucket) -> None:
    sink = bucket.sink()
    first = appended(sink, 2)
    appended(sink, 1)
    process = bucket.process(retry_timeout_s=0.0)
    session = process.log.claim_compactor(lease_ms=0, holder="c")
    process.at_manifest_put(FaultKind.LOST_ANSWER)
    with pytest.raises(CommitUnknown):
        session.expire([first])
    assert bucket.ranges() == [(2, 3)], "it had landed"
    sink.refresh()
    appended(sink, 1)
    after = session.expire([first])
    assert after.log_start_offset == 2
    assert bucket.ranges() == [(2, 3), (3, 4)]


def test_an_unreferenced_pass_is_forgotten_and_a_referenced_one_keeps_its_time() -> None:
    first = entry(compactor_name(0, 2), 0, 5, tombstones=1, unmarked=0, cleaned_epochs=(2,))
    second = entry(compactor_name(5, 3), 5, 9, tombstones=1, unmarked=0, cleaned_epochs=(3,))
    manifest = empty_manifest(
        next_offset=9, first_dirty_offset=9, last_epoch=3, segments=(first, second), passes=(Pass(2, 7), Pass(3, 8))
    )
    after = without_first(manifest, 1)
    assert (after.passes, after.last_pass_epoch) == ((Pass(3, 8),), manifest.last_pass_epoch)
    assert faults(after) == []
    assert without_first(manifest, 0) is manifest
    assert without_first(manifest, 2).passes == ()


def test_marks_made_by_this_session_are_not_unstamped_again(bucket: Bucket) -> None:
    sink = bucket.sink()
    first, second = appended(sink, 2), appended(sink, 2, tombstones=1)
    session = bucket.compactor()
    new_index = str(session.new_name(2).index)
    marked = replace(second, index_name=new_index, unmarked_tombstone_count=0, cleaned_epochs=(session.epoch,))
    session.replace(Replacement((Swap((second,), (marked,)),), first_dirty_offset=4))
    stamp = session.release().passes[0].committed_at_ms
    assert stamp != UNSTAMPED
    assert session.expire([first]).passes == (Pass(session.epoch, stamp),)


def test_first_dirty_stays_above_the_log_start_and_moves_over_a_hole() -> None:
    segments = (
        entry(sink_name(0), 0, 5),
        entry(sink_name(5), 5, 20, last_offset=7, record_count=3),
        entry(sink_name(20), 20, 30),
    )
    manifest = empty_manifest(next_offset=30, first_dirty_offset=3, segments=segments)
    assert without_first(manifest, 1).first_dirty_offset == 5
    assert without_first(replace(manifest, first_dirty_offset=12), 1).first_dirty_offset == 20
    assert without_first(manifest, 3).first_dirty_offset == 30


def test_an_overtaken_reader_gets_an_error_and_one_beyond_continues(bucket: Bucket) -> None:
    sink = bucket.sink()
    first = appended(sink, 3)
    appended(sink, 2)
    anchor = anchor_of(bucket.manifest)
    after = bucket.compactor().expire([first])
    for position in (0, 2):
        with pytest.raises(OffsetOutOfRange, match="log start moved to 3"):
            check_resumed(anchor, position, after)
        with pytest.raises(OffsetOutOfRange):
            start_offset(after, position)
    check_resumed(anchor, 3, after)
    assert start_offset(after, None) == 3


def test_only_a_fenced_sinks_upload_below_the_new_start_is_an_orphan(bucket: Bucket) -> None:
    sink = bucket.sink()
    first = appended(sink, 3)
    lost = uploaded(sink, 3, 5)
    bucket.compactor().expire([first])
    bucket.sink()
    session = bucket.compactor()
    swept = collect_garbage(bucket.store, session, 0)
    assert {lost.name, lost.index_name} <= set(swept.orphans)
    assert bucket.names() == set()


def test_reading_verifying_and_cleaning_continue_after_the_log_start_moved() -> None:
    clock = ManualClock()
    store, sink = cleaning.memory_log(
        [cleaning.record(0, "a", "1"), cleaning.record(1, "b", "1")], [cleaning.record(2, "a", "2")], clock=clock
    )
    log = Log(store, "topics", "users")
    halfway, beyond = log.read(), log.read(from_offset=2)
    assert next(halfway).offset == 0
    sized = TopicSettings(
        min_cleanable_dirty_ratio=1.0, file_delete_delay_ms=0, delete=True, retention_bytes=1, delete_retention_ms=0
    )
    cleaning.clean(store, sized, clock=clock)
    assert cleaning.load(store).log_start_offset == 2
    assert [r.offset for r in beyond] == [2]
    assert [r.offset for r in halfway] == [1, 2], "it had the segment in hand, and what follows is there"
    with pytest.raises(OffsetOutOfRange):
        list(log.read(from_offset=1))
    assert [r.offset for r in log.read()] == [2]
    assert [r.key for r in log.latest()] == [b"a"]

    def is_sound() -> bool:
        place = Place("topics", "users", 0)
        return verify_partition(store, place, clock=clock, random=Random(0)).is_sound

    assert is_sound()
    sink.session.refresh()
    sink.append([cleaning.record(3, "a", None)])
    for seed in range(3):
        cleaning.clean(store, cleaning.EAGER, clock=clock, seed=seed)
        assert is_sound()
    assert (cleaning.load(store).log_start_offset, cleaning.load(store).next_offset) == (2, 4)
    assert list(log.read()) == []


def test_a_reader_whose_segments_expired_gets_an_error_and_no_hole() -> None:
    clock = ManualClock()
    batches = [[cleaning.record(i, f"k{i}", "v")] for i in range(6)]
    store, _ = cleaning.memory_log(*batches, clock=clock)
    reading = Log(store, "topics", "users").read()
    assert next(reading).offset == 0
    clock.advance(10_000)
    settings = TopicSettings(
        compact=False, file_delete_delay_ms=0, delete=True, retention_bytes=cleaning.load(store).segments[-1].size_bytes
    )
    cleaning.clean(store, settings, clock=clock)
    assert cleaning.load(store).log_start_offset == 5
    with pytest.raises(OffsetOutOfRange, match="log start moved to 5"):
        list(reading)
