"""Small segments of logs that are only `delete`: which are merged, and that nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from keyfold.log.edits import Replacement, Swap, replace_segments
from keyfold.log.index import read_index
from keyfold.log.manifest import UNSTAMPED, Manifest
from keyfold.log.partition_log import PartitionLog
from keyfold.runtime.clock import ManualClock
from keyfold.store.memory import MemoryStore
from keyfold.verify.partition import verify_partition
from keyfold_compactor.decide.merge import SEGMENTS_MIN, merges
from keyfold_compactor.decide.policy import Reason, decide_cleaning
from keyfold_compactor.decide.retention import born_ms
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.report import PartitionOutcome
from tests.support.cleaning import EAGER, PLACE, clean, load, memory_log, read_all, record
from tests.support.manifests import compactor_name, empty_manifest, entry, sink_name

SPAN = 1_000
DELETE = TopicSettings(compact=False, delete=True, merge_span_ms=SPAN, segment_bytes=1_000, file_delete_delay_ms=0)


def log(*segments: tuple[int, int, int], first_dirty: int = 0) -> Manifest:
    """Segments of ten offsets each: (stored bytes, appended_at, largest timestamp)."""
    entries = tuple(
        entry(sink_name(10 * i), 10 * i, 10 * i + 10, size_bytes=size, appended_at_ms=appended, max_timestamp=newest)
        for i, (size, appended, newest) in enumerate(segments)
    )
    return empty_manifest(next_offset=10 * len(segments), first_dirty_offset=first_dirty, segments=entries)


def merged(manifest: Manifest, topic: TopicSettings = DELETE) -> list[tuple[int, int]]:
    return [(g.first, g.last) for g in merges(manifest.segments, manifest.first_dirty_offset, topic)]


def test_a_dozen_small_neighbours_or_a_nearly_full_group_is_merged() -> None:
    small = (10, 5, 5)
    assert merged(log(*[small] * SEGMENTS_MIN)) == [(0, SEGMENTS_MIN - 1)]
    assert merged(log(*[small] * (SEGMENTS_MIN - 1))) == []
    assert merged(log((250, 5, 5), (250, 5, 5))) == [(0, 1)]
    assert merged(log((249, 5, 5), (249, 5, 5))) == []


def test_nothing_is_merged_again_before_it_doubled_or_above_the_segment_size() -> None:
    small = (10, 5, 5)
    assert merged(log((600, 5, 5), *[small] * 3)) == []
    assert merged(log((600, 5, 5), *[small] * SEGMENTS_MIN)) == [(1, SEGMENTS_MIN)]
    assert merged(log(*[(600, 5, 5)] * 9)) == []


@pytest.mark.parametrize(
    "odd",
    [
        (10, 5 + SPAN, 5 + SPAN),  # another span
        (10, 5 + SPAN, 7),  # the whole would be counted from its append and another's timestamp
        (10, UNSTAMPED, 5),  # of an age that is not known yet
        (10, 5, -1),  # counted from the append alone
    ],
)
def test_segments_of_different_age_are_not_merged(odd: tuple[int, int, int]) -> None:
    few = [(10, 5, 10**9)] * (SEGMENTS_MIN - 1)
    assert merged(log(*few, few[0], *few)) == [(0, 2 * SEGMENTS_MIN - 2)]
    assert merged(log(*few, odd, *few)) == []


def test_segments_of_unknown_age_are_not_merged() -> None:
    assert merged(log(*[(10, UNSTAMPED, 5)] * (2 * SEGMENTS_MIN))) == []


def test_each_run_of_one_age_is_judged_separately() -> None:
    few = [(10, 5, 5)] * SEGMENTS_MIN
    assert merged(log((10, 5 + 9 * SPAN, 10**9), *few, (10, 5 + 9 * SPAN, 10**9), *few)) == [
        (1, SEGMENTS_MIN),
        (SEGMENTS_MIN + 2, 2 * SEGMENTS_MIN + 1),
    ]


def test_a_merge_does_not_move_the_first_dirty_offset() -> None:
    store, sink = memory_log(*[[record(i, f"k{i}", "v")] for i in range(SEGMENTS_MIN)])
    clean(store, replace(EAGER, segment_bytes=1))
    sink.session.refresh()
    sink.append([record(SEGMENTS_MIN, "k0", "new")])
    assert load(store).first_dirty_offset == SEGMENTS_MIN
    (part,) = clean(store, replace(DELETE, segment_bytes=10**6, merge_span_ms=86_400_000), seed=2).partitions
    assert part.outcome is PartitionOutcome.CLEANED
    assert [s.record_count for s in load(store).segments] == [SEGMENTS_MIN, 1]
    assert load(store).first_dirty_offset == SEGMENTS_MIN


def test_a_merged_segment_is_as_young_as_its_youngest_source_even_an_emptied_one() -> None:
    manifest = log((10, 5, 5), (10, 9, 9), (10, 7, 7))
    manifest = replace(manifest, last_epoch=3, compactor=replace(manifest.compactor, epoch=3))
    new = entry(compactor_name(0, 3), 0, 10, appended_at_ms=5)
    after = replace_segments(3, Replacement((Swap(manifest.segments, (new,)),), 30))(manifest, 0)
    (made,) = after.segments
    assert (made.appended_at_ms, made.base_offset, made.next_offset) == (9, 0, 30)


def test_nothing_is_merged_across_first_dirty_or_with_a_zero_span() -> None:
    manifest = log(*[(10, 5, 5)] * (2 * SEGMENTS_MIN), first_dirty=10 * SEGMENTS_MIN)
    assert merged(manifest) == [(0, SEGMENTS_MIN - 1), (SEGMENTS_MIN, 2 * SEGMENTS_MIN - 1)]
    assert merged(manifest, replace(DELETE, merge_span_ms=0)) == []


def test_a_delete_only_log_is_due_for_merges_after_all_logs_to_clean() -> None:
    small = decide_cleaning(log(*[(10, 5, 5)] * SEGMENTS_MIN), DELETE, 0)
    assert small.reasons == (Reason.MERGE,)
    assert small.is_merge
    dirty = decide_cleaning(log((10, 5, 5)), TopicSettings(), 0)
    assert sorted([small, dirty], key=lambda v: v.rank) == [dirty, small]
    assert not decide_cleaning(log((10, 5, 5)), DELETE, 0).is_due


def test_only_a_policy_of_delete_merges() -> None:
    base = {"s3.bucket.name": "b", "segment.merge.span.ms": "7"}
    options = CompactOptions.parse(base)
    assert options.settings_of("users", {"cleanup.policy": "delete"}).merge_span_ms == 7
    assert options.settings_of("users", {"cleanup.policy": ""}).merge_span_ms == 0
    assert (
        CompactOptions.parse({**base, "topic.users.segment.merge.span.ms": "9"}).settings_of("users", {}).merge_span_ms
        == 9
    )


def test_a_merge_changes_neither_records_nor_marks_nor_offsets() -> None:
    store, sink = memory_log(
        *[[record(2 * i, "k", None if i % 3 else f"v{i}"), record(2 * i + 1, None, "x")] for i in range(30)]
    )
    before = read_all(store)
    topic = replace(DELETE, segment_bytes=10**6)
    (part,) = clean(store, topic).partitions
    assert (part.outcome, part.reasons, part.removed) == (PartitionOutcome.CLEANED, (Reason.MERGE.value,), 0)
    manifest = load(store)
    assert read_all(store) == before
    assert len(manifest.segments) == 1
    assert (manifest.first_dirty_offset, manifest.last_pass_epoch, manifest.purged_to) == (0, 0, -1)
    assert manifest.passes == ()
    assert manifest.segments[0].unmarked_tombstone_count == 20
    marks = read_index(store, PLACE, manifest.segments[0]).rows["cleaned_epoch"].to_pylist()
    assert set(marks) == {None}
    sink.session.refresh()
    sink.append([record(60, "k", "new")])
    assert clean(store, topic, seed=2).partitions == []
    assert verify_partition(store, PLACE, clock=ManualClock(), random=Random(0)).is_sound


def test_a_due_merge_happens_however_small_the_tasks_are() -> None:
    """A log that is due, and whose pass then finds nothing to do, would be claimed in every run for ever."""
    store, _ = memory_log(*[[record(i, f"k{i}", "v" * 500)] for i in range(3)])
    topic = replace(DELETE, segment_bytes=load(store).size_bytes + 100)
    (part,) = clean(store, topic, unit_bytes_min=1).partitions
    assert part.outcome is PartitionOutcome.CLEANED
    assert len(load(store).segments) == 1
    assert clean(store, topic, seed=2, unit_bytes_min=1).partitions == []


@pytest.mark.sharded
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_no_record_expires_early_or_later_than_the_merge_span_allows(seed: int) -> None:
    clock = ManualClock()
    random = Random(seed)
    store, sink = memory_log(clock=clock)
    born: dict[int, int] = {}
    topic = replace(
        DELETE,
        segment_bytes=random.choice([2_000, 20_000]),
        merge_span_ms=20_000,
        retention_ms=random.choice([-1, 60_000]),
    )
    for number in range(40):
        offset = sink.session.refresh().next_offset
        times = [clock.now_ms(), clock.now_ms(), clock.now_ms() + 10**9, clock.now_ms() - 30_000, -1]
        sink.append([record(offset, "k", "v", random.choice(times))])
        clock.advance(random.choice([10, 500, 2_000]))
        if number % 5 == 4:
            PartitionLog(store, PLACE, clock=clock, random=random).claim_compactor(lease_ms=0, holder="stamps")
            check(store, born, topic)
            clean(store, topic, clock=clock, seed=random.getrandbits(32))
            check(store, born, topic)


def check(store: MemoryStore, born: dict[int, int], topic: TopicSettings) -> None:
    manifest = load(store)
    offsets = [r.offset for r in read_all(store)]
    assert offsets == list(range(manifest.log_start_offset, manifest.next_offset))
    for segment in manifest.segments:
        own = born_ms(segment)
        if segment.record_count > 1:
            event("merged")
        for offset in range(segment.base_offset, segment.next_offset):
            if own != UNSTAMPED:
                first = born.setdefault(offset, own)
                assert 0 <= own - first < topic.merge_span_ms
