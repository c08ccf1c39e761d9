"""Passes that leave segments with too little garbage: a dict, the invariants of marks, and a slow reader."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from keyfold.log.index import read_index
from keyfold.log.record import Record
from keyfold.runtime.clock import ManualClock
from keyfold.store.memory import MemoryStore
from keyfold_compactor.decide.settings import TopicSettings
from tests.support.cleaning import EAGER, PLACE, clean, last_per_key, latest, load, memory_log, read_all, record
from tests.support.slow_reader import Reader, read_on

KEYS = [None, b"a", b"b", b"c"]


def batch(offset: int, random: Random) -> list[Record]:
    """Some records of a few keys among records of keys that come once, so that a segment's garbage varies."""
    found: list[Record] = []
    unique = random.choice([0.1, 0.1, 0.8])
    for i in range(random.randrange(1, 9)):
        at = offset + i
        if random.random() < unique:
            found.append(record(at, f"once-{at}", "x" * 150))
        else:
            found.append(record(at, random.choice(KEYS), None if random.random() < 0.4 else "v" * random.randrange(60)))
    return found


@pytest.mark.sharded
@settings(max_examples=250, deadline=None)
@given(st.data(), st.integers(0, 2**32))
def test_no_tombstone_goes_before_its_value_whatever_a_pass_skips(data: st.DataObject, seed: int) -> None:
    clock = ManualClock()
    random = Random(seed)
    store, sink = memory_log(clock=clock)
    appended: list[Record] = []
    reader = Reader.begin(load(store))
    for step in data.draw(
        st.lists(st.sampled_from(["append", "append", "pass", "wait", "read"]), min_size=6, max_size=24)
    ):
        if step == "wait":
            clock.advance(random.randrange(10, 4_000))
        elif step == "read":
            reader = read_on(store, reader, appended, random)
            event("a reader was refused" if reader.was_refused else "a reader went on")
        elif step == "append":
            records = batch(sink.session.refresh().next_offset, random)
            sink.append(records)
            appended += records
        else:
            topic = TopicSettings(
                min_cleanable_dirty_ratio=0.0,
                delete_retention_ms=random.choice([0, 0, 2_000]),
                min_compaction_lag_ms=random.choice([0, 0, 1_000]),
                file_delete_delay_ms=0,
                segment_bytes=random.choice([1, 600, 10_000]),
                segment_min_garbage_ratio=random.choice([0.0, 0.2, 0.4, 0.6]),
                remove_keyless=random.choice([False, False, True]),
            )
            report = clean(store, topic, clock=clock, seed=random.getrandbits(32))
            assert report.exit_code == 0
            event(f"left some: {any(p.segments_left for p in report.partitions)}")
            check(store, appended)
    if appended:
        for number in range(3):  # without a minimum all of it is made good
            clock.advance(10_000)
            clean(store, EAGER, clock=clock, seed=number)
        live = [r for r in last_per_key(appended) if not r.is_tombstone]
        found = read_all(store)
        assert [r for r in found if r.key is not None] == [r for r in live if r.key is not None]
        assert all(r in live for r in found)


def check(store: MemoryStore, appended: list[Record], *, may_be_unmarked: bool = False) -> None:
    manifest = load(store)
    found = read_all(store, manifest)
    by_offset = {r.offset: r for r in appended}
    assert all(by_offset[r.offset] == r for r in found)
    assert latest(found) == latest(appended)
    clean_keys = [r.key for r in found if r.offset < manifest.first_dirty_offset and r.key is not None]
    assert len(set(clean_keys)) == len(clean_keys), "superseded below first_dirty_offset"
    first: dict[bytes, int] = {}
    for segment in manifest.segments:
        from_index = read_index(store, PLACE, segment).rows.to_pylist()
        for row in from_index:
            if row["key"] is None:
                continue
            older = first.setdefault(row["key"], row["offset"])
            if row["cleaned_epoch"] is not None:
                assert older == row["offset"], "a marked tombstone has an older record of its key"
            if row["is_tombstone"] and row["offset"] < manifest.first_dirty_offset and not may_be_unmarked:
                assert row["cleaned_epoch"] is not None, "a clean tombstone is marked"
