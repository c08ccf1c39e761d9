"""The offset map against a dict, and the retain rules row by row."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfold.log.index import ROWS
from keyfold.runtime.arrow_types import ArrowChunks
from keyfold.runtime.clock import ManualClock
from keyfold_compactor.decide.horizon import UNHELD, Purge
from keyfold_compactor.decide.retain import new_marks, retain
from keyfold_compactor.decide.settings import Encoding
from keyfold_compactor.decide.work import LogJob
from keyfold_compactor.execute import offset_map
from keyfold_compactor.execute.large_map import Candidates, Superseded, decide, match, split
from keyfold_compactor.execute.local import run_map
from keyfold_compactor.execute.mapping import packed, unpacked
from tests.support.cleaning import PLACE, clean, load, memory_log, record, retry_policy

Keys = list[bytes | None]


def column(keys: Keys) -> ArrowChunks:
    return pa.chunked_array([pa.array(keys, pa.binary())])


@pytest.mark.sharded
@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.one_of(st.none(), st.binary(max_size=3)), max_size=10), max_size=5),
    st.lists(st.one_of(st.none(), st.binary(max_size=3)), max_size=10),
    st.integers(0, 30),
)
def test_the_offset_map_agrees_with_a_dict(dirty: list[Keys], clean: Keys, first_dirty: int) -> None:
    starts = np.cumsum([0] + [len(keys) for keys in dirty])
    offsets = [np.arange(start, start + len(keys), dtype=np.int64) for start, keys in zip(starts, dirty, strict=False)]
    expected: dict[bytes, int] = {}
    for keys, numbers in zip(dirty, offsets, strict=True):
        expected |= {k: int(n) for k, n in zip(keys, numbers, strict=True) if k is not None and n >= first_dirty}
    known, rows = offset_map.build([column(k) for k in dirty], offsets, first_dirty)
    assert dict(zip(known.keys.to_pylist(), known.last_offsets.tolist(), strict=True)) == expected
    wanted = [[-1 if k is None else expected.get(k, -1) for k in keys] for keys in dirty]
    assert [r.tolist() for r in rows] == wanted
    assert known.probe(column(clean)).tolist() == [-1 if k is None else expected.get(k, -1) for k in clean]


def test_keys_beyond_two_gigabytes_of_addresses_move_to_larger_ones() -> None:
    keys, offsets = column([b"aa", b"bb", b"aa", None] * 3), np.arange(12, dtype=np.int64)
    known, (rows,) = offset_map.build([keys], [offsets], 0, binary_bytes_max=10)
    assert known.keys.type == pa.large_binary()
    assert rows.tolist() == [10, 9, 10, -1] * 3
    assert known.probe(column([b"bb", None])).tolist() == [9, -1]


def rows_of(*rows: tuple[int, bytes | None, bool, int | None]) -> pa.Table:
    """offset, key, is_tombstone, cleaned_epoch."""
    return pa.table(
        {
            "offset": pa.array([r[0] for r in rows], pa.int64()),
            "key": pa.array([r[1] for r in rows], pa.binary()),
            "is_tombstone": pa.array([r[2] for r in rows], pa.bool_()),
            "cleaned_epoch": pa.array([r[3] for r in rows], pa.int32()),
            "length": pa.array([10] * len(rows), pa.int32()),
        }
    )


def test_every_keep_rule_applies_within_one_segment() -> None:
    rows = rows_of(
        (0, b"old", False, None),
        (1, b"a", True, 3),
        (2, b"b", True, 4),
        (3, b"c", True, None),
        (4, None, False, None),
        (5, b"d", True, 3),
        (6, b"e", False, None),
    )
    superseded = np.array([True, False, False, False, False, True, False])
    found = retain(rows, superseded, purge=Purge(frozenset({3})), remove_keyless=False)
    assert found.keep.tolist() == [False, False, True, True, True, False, True]
    assert (found.superseded_count, found.purged_count, found.keyless_count, found.mark_count) == (2, 1, 0, 1)
    assert (found.purged_to, found.purged_epoch) == (1, 3), "a superseded tombstone is not a purged one"
    assert (found.kept_payload_bytes, found.payload_bytes) == (40, 70)
    assert new_marks(rows, found.keep, 9).to_pylist() == [4, 9, None, None]
    without = retain(rows, superseded, purge=Purge(), remove_keyless=True)
    assert (without.keyless_count, without.purged_count, without.purged_to) == (1, 0, -1)
    assert without.keep.tolist() == [False, True, True, True, False, False, True]


@pytest.mark.parametrize("count", [1, 7, 8, 9, 1_000])
def test_masks_survive_as_bits(count: int) -> None:
    keep = np.array([Random(i).random() < 0.5 for i in range(count)])
    assert unpacked(packed(keep), count).tolist() == keep.tolist()


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(30))
def test_a_bucketed_map_equals_the_map_of_one_task(seed: int) -> None:
    """The steps that Spark runs in many tasks, run here one after another, against the whole map."""
    random = Random(seed)
    keys = [None, "", *(f"k{i}" for i in range(12)), "skewed", "skewed", "skewed"]
    offset = 0
    batches = []
    for _ in range(random.randrange(1, 6)):
        batch = []
        for _ in range(random.randrange(1, 30)):
            batch.append(record(offset, random.choice(keys), random.choice([None, "v"])))
            offset += random.choice([1, 2])
        batches.append(batch)
    store, sink = memory_log(*batches)
    if random.random() < 0.5:  # tombstones that are marked, and due
        clean(store, seed=seed)
        sink.append([record(offset + i, random.choice(keys), random.choice([None, "v"])) for i in range(9)])
    manifest = load(store)
    end = random.choice([manifest.next_offset, manifest.segments[-1].base_offset])
    first_dirty = min(end, random.choice([random.randrange(end + 1), *(s.base_offset for s in manifest.segments), end]))
    due = frozenset(p.epoch for p in manifest.passes if random.random() < 0.8)
    overdue = frozenset(epoch for epoch in due if random.random() < 0.3)
    purge = Purge(due, random.choice([UNHELD, random.randrange(manifest.next_offset + 1)]), overdue)
    entries = tuple(s for s in manifest.segments if s.next_offset <= end)
    job = LogJob(
        0, PLACE, entries, first_dirty, end, 9, manifest.sync_marker, purge, random.random() < 0.3, Encoding()
    )  # fmt: skip
    waiting = retry_policy(ManualClock(), random)
    whole, masks = run_map(job, store, waiting)
    buckets: dict[int, list[Candidates]] = {}
    found: list[Superseded] = []
    for at in range(len(job.entries)):
        for item in split(job, at, store, waiting, 3):
            if isinstance(item, Superseded):
                found.append(item)
            else:
                buckets.setdefault(item[0], []).append(item[1])
    for candidates in buckets.values():
        random.shuffle(candidates)
        found.extend(match(job, candidates))
    for at in range(len(job.entries)):
        parts = [s.rows for s in found if s.position == at]
        _, stats, mask = decide(job, at, parts, store, waiting)
        assert stats == whole.stats[at]
        assert mask == masks.get((0, at))
    assert set(ROWS.names) >= {"offset", "key"}
