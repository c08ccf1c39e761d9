"""Random logs, random passes, and a dict that says what must be left."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfold.log.manifest import UNSTAMPED, Manifest
from keyfold.log.record import Record
from keyfold.runtime.clock import ManualClock
from keyfold_compactor.decide.settings import TopicSettings
from tests.support.cleaning import EAGER, clean, last_per_key, latest, load, memory_log, object_names, read_all, record

KEYS = st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"c", b"long key " * 40]), st.binary(max_size=2))
VALUES = st.one_of(st.none(), st.binary(max_size=40))


@st.composite
def batches(draw: st.DrawFn) -> list[list[Record]]:
    """Segments of records with holes between offsets."""
    offset = 0
    found: list[list[Record]] = []
    for _ in range(draw(st.integers(1, 5))):
        batch: list[Record] = []
        for key, value in draw(st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=12)):
            batch.append(record(offset, key, value, timestamp=draw(st.integers(-1, 9))))
            offset += draw(st.sampled_from([1, 1, 1, 3]))
        found.append(batch)
    return found


def live_only(records: list[Record]) -> list[Record]:
    return [r for r in last_per_key(records) if not r.is_tombstone]


@pytest.mark.sharded
@settings(max_examples=120, deadline=None)
@given(batches(), st.integers(0, 2**32))
def test_two_passes_without_retention_leave_exactly_the_live_records(log: list[list[Record]], seed: int) -> None:
    appended = [r for batch in log for r in batch]
    store, _ = memory_log(*log)
    clean(store, seed=seed)
    assert read_all(store) == last_per_key(appended)
    clean(store, seed=seed + 1)
    assert read_all(store) == live_only(appended)
    clean(store, seed=seed + 2)
    assert object_names(store) == load(store).object_names()


@pytest.mark.sharded
@settings(max_examples=120, deadline=None)
@given(st.data(), st.integers(0, 2**32))
def test_passes_between_appends_keep_the_records_that_the_rules_keep(data: st.DataObject, seed: int) -> None:
    """Appends, passes and time in any order, with lags and retention, never change the latest state."""
    clock = ManualClock()
    random = Random(seed)
    store, sink = memory_log(clock=clock)
    appended: list[Record] = []
    topic = TopicSettings(
        min_cleanable_dirty_ratio=data.draw(st.sampled_from([0.0, 0.5])),
        min_compaction_lag_ms=data.draw(st.sampled_from([0, 1_000])),
        delete_retention_ms=data.draw(st.sampled_from([0, 5_000])),
        file_delete_delay_ms=data.draw(st.sampled_from([0, 3_000])),
        segment_bytes=data.draw(st.sampled_from([300, 10_000])),
        remove_keyless=data.draw(st.booleans()),
    )
    for step in data.draw(st.lists(st.sampled_from(["append", "pass", "wait"]), min_size=2, max_size=12)):
        if step == "wait":
            clock.advance(random.randrange(10, 4_000))
        elif step == "append":
            offset = sink.session.manifest.next_offset
            keys = [random.choice([None, b"a", b"b", b"c", b"d"]) for _ in range(random.randrange(1, 8))]
            batch = [
                record(offset + i, key, None if random.random() < 0.3 else f"v{offset + i}")
                for i, key in enumerate(keys)
            ]
            sink.append(batch)
            appended += batch
        else:
            before = load(store)
            clean(store, topic, clock=clock, seed=random.getrandbits(32))
            check(before, load(store), appended, read_all(store), topic, clock.now_ms())
    assert latest(read_all(store)) == latest(appended)


def check(
    before: Manifest, after: Manifest, appended: list[Record], found: list[Record], topic: TopicSettings, now_ms: int
) -> None:
    assert latest(found) == latest(appended)
    by_offset = {r.offset: r for r in appended}
    assert all(by_offset[r.offset] == r for r in found)
    keyed = [r for r in found if r.offset < after.first_dirty_offset and r.key is not None]
    assert len({r.key for r in keyed}) == len(keyed), "superseded below first_dirty_offset"
    beyond = [r for r in appended if r.offset >= after.first_dirty_offset]
    assert [r for r in found if r.offset >= after.first_dirty_offset] == beyond, "the head must stay dense"
    if topic.min_compaction_lag_ms:
        young = [
            s
            for s in before.segments
            if s.appended_at_ms in range(now_ms - topic.min_compaction_lag_ms + 1, now_ms + 1)
        ]
        assert all(after.first_dirty_offset <= max(s.base_offset, before.first_dirty_offset) for s in young)
    assert before.next_offset == after.next_offset
    gone = {r.offset for r in last_per_key(appended) if r.is_tombstone} - {r.offset for r in found}
    assert not gone or max(gone) <= after.purged_to
    assert all(p.committed_at_ms != UNSTAMPED or p.epoch == after.last_pass_epoch for p in after.passes)


@pytest.mark.sharded
@pytest.mark.parametrize("segment_bytes", [1, 200, 5_000, 10**9])
def test_merging_terminates_and_moves_each_byte_a_few_times(segment_bytes: int) -> None:
    """Sixty-four small segments, each appended and cleaned alone: no pass merges again what did not double."""
    store, sink = memory_log()
    written = 0
    for i in range(64):
        sink.append([record(i, f"key-{i}", "x" * 50)])
        report = clean(store, replace(EAGER, segment_bytes=segment_bytes), seed=i)
        written += sum(p.segments_written and p.traffic.written_bytes for p in report.partitions)
    assert [r.offset for r in read_all(store)] == list(range(64))
    size = load(store).size_bytes
    assert written <= 64 * 3_000 * 7, (written, size)
    if segment_bytes == 10**9:
        assert len(load(store).segments) <= 8
    if segment_bytes == 1:
        assert written == 0
