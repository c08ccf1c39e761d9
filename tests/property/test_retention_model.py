"""Random appends, passes, retention and waits, with a slow reader: a dict says what must be left."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from keyfold.log.manifest import Manifest, faults
from keyfold.log.record import Record
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import STORE_TIME_RESOLUTION_MS
from keyfold.store.memory import MemoryStore
from keyfold_compactor.decide.policy import MaintenanceTask, forecast
from keyfold_compactor.decide.retention import born_ms
from keyfold_compactor.decide.settings import TopicSettings
from tests.support.cleaning import clean, latest, load, memory_log, read_all, record
from tests.support.slow_reader import Reader, read_on

KEYS = [None, b"a", b"b", b"c", b"d"]


def batch(offset: int, now_ms: int, random: Random) -> list[Record]:
    """Records with keys, tombstones, and timestamps from the future, the past, and nowhere."""
    times = [now_ms, now_ms, now_ms - random.randrange(20_000), now_ms + 10**9, 0, -1]
    return [
        record(
            offset + i, random.choice(KEYS), None if random.random() < 0.3 else f"v{offset + i}", random.choice(times)
        )
        for i in range(random.randrange(1, 6))
    ]


@pytest.mark.sharded
@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(0, 2**32))
def test_retention_removes_old_segments_and_nothing_else(data: st.DataObject, seed: int) -> None:
    clock = ManualClock()
    random = Random(seed)
    store, sink = memory_log(clock=clock)
    appended: list[Record] = []
    topic = TopicSettings(
        compact=data.draw(st.booleans()),
        min_cleanable_dirty_ratio=data.draw(st.sampled_from([0.0, 0.5])),
        delete_retention_ms=data.draw(st.sampled_from([0, 5_000])),
        file_delete_delay_ms=0,
        segment_bytes=data.draw(st.sampled_from([300, 10_000])),
        delete=True,
        retention_ms=data.draw(st.sampled_from([-1, 0, 4_000, 15_000])),
        retention_bytes=data.draw(st.sampled_from([-1, 0, 500, 2_000])),
        segment_min_garbage_ratio=data.draw(st.sampled_from([0.0, 0.0, 0.4])),
    )
    reader = Reader.begin(load(store))
    for step in data.draw(
        st.lists(st.sampled_from(["append", "append", "run", "wait", "read"]), min_size=4, max_size=20)
    ):
        if step == "wait":
            clock.advance(random.randrange(10, 9_000))
        elif step == "read":
            reader = read_on(store, reader, appended, random)
            event("a reader was overtaken" if reader.was_refused else "a reader went on")
        elif step == "append":
            records = batch(sink.session.refresh().next_offset, clock.now_ms(), random)
            sink.append(records)
            appended += records
        else:
            before = load(store)
            report = clean(store, topic, clock=clock, seed=random.getrandbits(32))
            assert report.exit_code == 0
            check(before, load(store), topic, clock.now_ms())
            check_records(store, appended)


def check(before: Manifest, after: Manifest, topic: TopicSettings, now_ms: int) -> None:
    assert faults(after) == []
    assert after.next_offset == before.next_offset
    gone = [s for s in before.segments if s.next_offset <= after.log_start_offset]
    starts = {s.base_offset for s in before.segments} | {before.next_offset, before.log_start_offset}
    assert after.log_start_offset in starts, "whole segments only"
    rest_bytes = sum(s.size_bytes for s in before.segments if s not in gone)
    for entry in reversed(gone):
        by_size = 0 <= topic.retention_bytes <= rest_bytes
        by_time = 0 <= topic.retention_ms <= now_ms - born_ms(entry)
        assert by_size or by_time, "nothing goes before its time"
        rest_bytes += entry.size_bytes
        event("segments expired")
    if after.segments and topic.retention_ms >= 0:
        first = after.segments[0]
        latest_ms = first.appended_at_ms + topic.retention_ms + STORE_TIME_RESOLUTION_MS
        was_known = any(s.name == first.name and s.appended_at_ms >= 0 for s in before.segments)
        assert now_ms < latest_ms or not was_known, "no timestamp keeps a segment beyond its time"
    if not topic.compact:
        settled = forecast(after, topic, now_ms)
        assert MaintenanceTask.EXPIRE not in settled.maintenance or any(s.appended_at_ms < 0 for s in before.segments)


def check_records(store: MemoryStore, appended: list[Record]) -> None:
    manifest = load(store)
    found = read_all(store, manifest)
    kept = [r for r in appended if r.offset >= manifest.log_start_offset]
    by_offset = {r.offset: r for r in kept}
    assert all(by_offset[r.offset] == r for r in found)
    assert latest(found) == latest(kept)
    keyed = [r.key for r in found if r.offset < manifest.first_dirty_offset and r.key is not None]
    assert len(set(keyed)) == len(keyed), "superseded below first_dirty_offset"
