"""The latest state in little memory: the fold of a read, however often the indexes have to be walked over."""

from __future__ import annotations

from random import Random
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfold.errors import SnapshotLost
from keyfold.log.assembly import SegmentLimits
from keyfold.log.record import CREATE_TIME, Record
from keyfold.read.batches import SegmentRead
from keyfold.read.blocks import ReadLimits
from keyfold.read.key_hash import HASHES, key_hashes
from keyfold.read.latest import Chosen, choose, chosen_batches, count_superseded
from keyfold.read.latest_keys import KEY_BYTES, Flags, KeyRange, RowBits
from keyfold.read.log import Log
from keyfold.read.records import records_of
from keyfold.runtime.arrow_types import ArrowArray
from keyfold.store.wrappers.counting import CountedStore
from tests.support.logs import MadeLog, latest_of, record, records
from tests.support.meddling import MeddlingStore
from tests.unit.read.test_batches import random_log, taken

BUDGETS = (1, 200, 400, 3 * KEY_BYTES, 10**9)


def state_of(made: MadeLog, chosen: Chosen) -> list[Record]:
    batches = chosen_batches(made.store, made.place, chosen, SegmentRead.of(0, 2**63 - 1, None, None, 300))
    return [r for batch in batches for r in records_of(batch)]


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("memory_bytes", BUDGETS)
def test_the_state_equals_the_fold_of_a_read_for_any_memory_budget(seed: int, memory_bytes: int) -> None:
    made = random_log(Random(seed))
    everything = list(Log(made.store, "topics", "users").read())
    expected = sorted(latest_of(everything).values(), key=lambda r: r.offset)
    chosen = choose(made.store, made.place, made.manifest, memory_bytes)
    assert state_of(made, chosen) == expected
    assert list(Log(made.store, "topics", "users").latest()) == expected
    dirty = {r.key for r in everything if r.key is not None and r.offset >= made.manifest.first_dirty_offset}
    assert (chosen.walk_count > 1) == (memory_bytes < sum(len(key) + KEY_BYTES for key in dirty))


def test_the_number_of_walks_is_about_the_keys_over_the_budget() -> None:
    made = MadeLog(block_bytes=10**6)
    for start in range(0, 20_000, 5_000):
        made.append(
            [record(o, f"key-{o * 7919 % 8000}", None if o % 11 == 0 else "v") for o in range(start, start + 5_000)]
        )
    held: list[int] = []
    take = KeyRange.take

    def watched(walk: KeyRange, keys: ArrowArray, tombstones: Flags, *, is_clean: bool) -> object:
        for rows in take(walk, keys, tombstones, is_clean=is_clean):
            held.append(walk.held_bytes)
            yield rows

    most = 8000 * (KEY_BYTES + 8) // 5
    with patch.object(KeyRange, "take", watched):
        chosen = choose(made.store, made.place, made.manifest, most, keys_at_once=100)
    assert 5 <= chosen.walk_count <= 8
    assert max(held) <= most
    expected = latest_of(Log(made.store, "topics", "users").read())
    assert {r.key: r for r in state_of(made, chosen)} == expected


def test_memory_and_walks_depend_on_the_dirty_part_alone() -> None:
    made = MadeLog(block_bytes=10**6)
    made.append([record(o, f"key-{o}", None if o % 11 == 0 else "v") for o in range(20_000)])
    made.compact()
    made.append([record(o, f"key-{o * 7 % 30_000}", None if o % 3 == 0 else "w") for o in range(20_000, 21_000)])
    expected = latest_of(Log(made.store, "topics", "users").read())
    for memory_bytes, walk_count in ((1000 * (KEY_BYTES + 9), 1), (500 * (KEY_BYTES + 9), 2)):
        chosen = choose(made.store, made.place, made.manifest, memory_bytes)
        assert chosen.walk_count >= walk_count
        assert chosen.walk_count < 2 * walk_count
        assert {r.key: r for r in state_of(made, chosen)} == expected


@given(
    st.lists(st.binary(max_size=3), max_size=60),
    st.sets(st.none() | st.binary(max_size=3), max_size=60),
    st.integers(0, 2),
)
def test_keys_of_the_clean_part_are_compared_with_those_that_were_met(
    dirty: list[bytes], clean: set[bytes | None], slice_number: int
) -> None:
    walk = KeyRange(slice_number * HASHES // 4, (slice_number + 1) * HASHES // 4, 10**9)
    for _ in walk.take(pa.array(dirty, pa.binary()), np.zeros(len(dirty), np.bool_)):
        pass
    keys = pa.array(sorted(clean, key=str), pa.binary())
    tombstones = np.arange(len(keys)) % 5 == 0
    (rows,) = walk.take(keys, tombstones, is_clean=True)
    hashes = key_hashes(keys)
    assert rows.tolist() == [
        row
        for row, key in enumerate(keys.to_pylist())
        if key is not None
        and key not in dirty
        and not tombstones[row]
        and slice_number * HASHES // 4 <= hashes[row] < (slice_number + 1) * HASHES // 4
    ]


def test_an_index_of_many_row_groups_is_read_from_its_end() -> None:
    made = random_log(Random(4), segments=5, limits=SegmentLimits(row_group_rows=7))
    expected = sorted(latest_of(Log(made.store, "topics", "users").read()).values(), key=lambda r: r.offset)
    for memory_bytes in BUDGETS:
        assert state_of(made, choose(made.store, made.place, made.manifest, memory_bytes)) == expected


def test_the_state_comes_as_batches_with_the_requested_columns() -> None:
    made = MadeLog()
    made.append(records("a=1 b=1 a=2 c=1"))
    made.append(records("=5 b= d=1", 4))
    log = Log(made.store, "topics", "users")
    assert taken(log.latest_batches()) == list(log.latest())
    found = [b.to_pydict() for b in log.latest_batches(columns=["key", "value"])]
    assert found == [{"key": [b"a", b"c"], "value": [b"2", b"1"]}, {"key": [b"d"], "value": [b"1"]}]
    with pytest.raises(ValueError, match="unknown column 'x'"):
        log.latest_batches(columns=["x"])
    with pytest.raises(ValueError, match="must be at least 1048576"):
        log.latest(memory_bytes=1)


def test_keys_alone_are_read_from_the_indexes() -> None:
    made = MadeLog()
    made.append(records("a=1 b=1 a=2 c=1"))
    counted = CountedStore(made.store)
    (batch,) = Log(counted, "topics", "users").latest_batches(columns=["key"])
    assert batch.column("key").to_pylist() == [b"b", b"a", b"c"]
    assert counted.calls["get_range"] == 0


def test_an_index_is_fetched_once_as_long_as_there_is_room_for_it() -> None:
    made = MadeLog()
    for start, keys in ((0, "a=1 b=1"), (2, "c=1 d=1"), (4, "a=2 e=1")):
        made.append(records(keys, start))
    size_bytes = max(entry.index_size_bytes for entry in made.manifest.segments)
    for memory_bytes, gets in ((10**9, 3), (16 * size_bytes, 5), (16, 6)):
        counted = CountedStore(made.store)
        log = Log(counted, "topics", "users", limits=ReadLimits(memory_bytes_min=1))
        # Keys take nearly nothing here, so that one walk is enough in any memory.
        with patch("keyfold.read.latest_keys.KEY_BYTES", 0):
            assert [r.offset for r in log.latest(memory_bytes=memory_bytes)] == [1, 2, 3, 4, 5]
        assert counted.calls["get"] == 1 + gets  # one of the manifest


def test_a_log_without_a_record_or_without_a_key_has_an_empty_state() -> None:
    made = MadeLog()
    assert made.sink
    log = Log(made.store, "topics", "users")
    assert list(log.latest()) == []
    made.append(records("=1 =2"))
    made.append(records("a=", 2))
    assert list(log.latest_batches()) == []


def test_long_values_and_blocks_of_one_record_are_in_the_state() -> None:
    made = MadeLog(block_bytes=1)
    batch = [Record(o, 0, CREATE_TIME, b"k%d" % (o % 7), bytes(1 << 20)) for o in range(20)]
    made.append(batch)
    log = Log(made.store, "topics", "users")
    assert [r.offset for r in log.latest()] == list(range(13, 20))
    assert [b.num_rows for b in log.latest_batches(batch_bytes=1)] == [1] * 7


def test_a_snapshot_that_returned_a_batch_does_not_mix_versions() -> None:
    made = MadeLog()
    made.append(records("a=1 b=1"))
    made.append(records("c=1 d=1", 2))
    found = Log(made.store, "topics", "users").latest_batches()
    assert next(found).num_rows == 2
    made.append(records("a=2 c=2", 4))
    made.compact(merge=True)
    made.delete_replaced()
    with pytest.raises(SnapshotLost, match="read it again"):
        list(found)


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(15))
def test_the_state_is_one_that_existed_whatever_happens_between_store_calls(seed: int) -> None:
    random = Random(seed)
    store = MeddlingStore()
    made = MadeLog(store=store, random=Random(seed))
    history: list[Record] = []
    states: list[dict[bytes, Record]] = [{}]

    def append() -> None:
        offset = len(history)
        history.append(record(offset, f"k{random.randrange(6)}", random.choice((None, f"v{offset}"))))
        states.append(latest_of(history))
        made.append(history[-1:])

    def compact() -> None:
        made.compact(purge=random.random() < 0.5, merge=random.random() < 0.5)

    def meddle() -> None:
        random.choices((append, compact, made.delete_replaced, lambda: None), (10, 10, 10, 70))[0]()

    for _ in range(6):
        append()
    store.meddle = meddle
    outcomes = 0
    log = Log(store, "topics", "users", limits=ReadLimits(memory_bytes_min=1))
    for _ in range(10):
        try:
            found = list(log.latest(memory_bytes=random.choice((250, 500, 10**6))))
        except SnapshotLost:
            continue
        outcomes += 1
        assert {r.key: r for r in found} in states
    assert outcomes


@given(st.lists(st.none() | st.binary(max_size=40) | st.integers(100, 300).map(bytes), max_size=60), st.integers(0, 9))
def test_equal_keys_have_equal_hashes_at_any_position(keys: list[bytes | None], skipped: int) -> None:
    array = pa.array([b"before"] * skipped + keys + [b"behind"], pa.binary())[skipped : skipped + len(keys)]
    alone = [int(key_hashes(pa.array([key], pa.binary()))[0]) for key in keys if key is not None]
    found = [h for h, key in zip(key_hashes(array).tolist(), keys, strict=True) if key is not None]
    assert found == alone
    assert all(0 <= h < HASHES for h in found)


@pytest.mark.parametrize("text", ["user-{:08d}", "{:d}", "tenant-{:06d}-and-the-same-for-everybody-else", "{:0200d}"])
def test_hashes_of_similar_keys_are_evenly_distributed(text: str) -> None:
    keys = pa.array([text.format(n).encode() for n in range(20_000)], pa.binary())
    counts = np.bincount(key_hashes(keys) * 64 // HASHES, minlength=64)
    assert counts.min() > 200
    assert counts.max() < 430


def test_row_bitmaps_round_trip() -> None:
    bits = RowBits(1000)
    assert not bits
    chosen = np.array([0, 1, 8, 63, 500, 999, 63], np.int64)
    bits.add(chosen)
    for start, count in ((0, 1000), (1, 999), (7, 2), (60, 10), (999, 1), (64, 400)):
        assert (np.flatnonzero(bits.flags(start, count)) + start).tolist() == [
            n for n in sorted(set(chosen.tolist())) if start <= n < start + count
        ]


def test_a_walk_that_cannot_hold_its_first_slice_is_too_wide() -> None:
    walk = KeyRange(0, HASHES, 1)
    keys = pa.array([b"%d" % n for n in range(1000)], pa.binary())
    for _ in walk.take(keys, np.zeros(1000, np.bool_)):
        pass
    assert walk.is_too_wide
    assert walk.narrower().high == HASHES // 64


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("memory_bytes", BUDGETS)
def test_superseded_records_are_counted_per_segment(seed: int, memory_bytes: int) -> None:
    made = random_log(Random(seed))
    everything = list(Log(made.store, "topics", "users").read())
    last = {r.key: r.offset for r in everything}
    superseded = [r.offset for r in everything if r.key is not None and last[r.key] != r.offset]
    manifest, counts = count_superseded(made.store, made.place, lambda: made.manifest, memory_bytes)
    expected = [sum(s.base_offset <= o < s.next_offset for o in superseded) for s in manifest.segments]
    assert list(counts) == expected
