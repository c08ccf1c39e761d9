"""Limits, cuts and tasks: every record is in exactly one task, whatever the sizes are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfold.errors import Corrupt
from keyfold.log.index import BlockTable, read_index
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.record import Record
from keyfold.read.position import anchor_of
from keyfold.spark.source.admission import Amount, backlog, reach, shares
from keyfold.spark.source.plan import SpanSlice, span_of, tasks_of
from keyfold.spark.source.topic import read_block_table
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from tests.support.cleaning import PLACE, load, memory_log, read_all, record


@cache
def sparse_log(seed: int = 0, segments: int = 4, records: int = 60) -> tuple[MemoryStore, Manifest, list[Record]]:
    """A log with holes between records, before segments and at its end."""
    random = Random(seed)
    offset = 3
    batches: list[list[Record]] = []
    for _ in range(segments):
        batch: list[Record] = []
        for _ in range(random.randrange(1, records)):
            offset += random.choice([1, 1, 1, 2, 9])
            batch.append(record(offset, f"k{offset}", "v" * random.randrange(150)))
        batches.append(batch)
        offset += 5
    store, sink = memory_log()
    for number, batch in enumerate(batches):
        after = batches[number + 1][0].offset - 2 if number + 1 < len(batches) else batch[-1].offset + 8
        sink.append(batch, next_offset=after)
    return store, load(store), [one for batch in batches for one in batch]


class Tables:
    """Block tables by reading, counted."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.asked: list[str] = []

    def __call__(self, partition: int, entry: SegmentEntry) -> BlockTable:
        assert partition == 0
        self.asked.append(entry.name)
        return read_block_table(self.store, PLACE, entry)


def offsets_between(records: Sequence[Record], start: int, end: int) -> list[int]:
    return [one.offset for one in records if start <= one.offset < end]


@given(st.integers(0, 50), st.integers(0, 400), st.integers(1, 80), st.integers(1, 3000))
def test_a_partitions_share_is_respected_and_a_batch_always_advances(
    seed: int, position: int, limit: int, size_bytes: int
) -> None:
    store, manifest, records = sparse_log(seed % 5)
    end = manifest.next_offset
    position = min(position, end - 1)
    seen: list[int] = []
    steps = 0
    while position < end:
        stop = reach(manifest, position, end, Amount(limit, size_bytes), Tables(store))
        assert position < stop <= end
        batch = offsets_between(records, position, stop)
        assert len(batch) <= limit
        seen += batch
        position = stop
        steps += 1
    assert seen == [one.offset for one in records if one.offset >= (seen[0] if seen else end)]
    assert steps <= end


def test_a_dense_log_gives_exactly_the_limit() -> None:
    store, _ = memory_log(
        [record(i, f"k{i}", "v" * 40) for i in range(100)], [record(100 + i, "k", "v") for i in range(50)]
    )
    manifest, tables = load(store), Tables(store)
    stops = [0]
    while stops[-1] < 150:
        stops.append(reach(manifest, stops[-1], 150, Amount(32), tables))
    assert stops == [0, 32, 64, 96, 128, 150]


def test_whole_segments_need_no_table() -> None:
    store, manifest, records = sparse_log()
    tables = Tables(store)
    assert reach(manifest, 0, manifest.next_offset, Amount(len(records)), tables) == manifest.next_offset
    assert tables.asked == []


def test_a_byte_limit_is_respected_up_to_one_block() -> None:
    store, _ = memory_log([record(i, f"k{i}", "v" * 90) for i in range(200)])
    manifest = load(store)
    table = read_index(store, PLACE, manifest.segments[0]).blocks
    stop = reach(manifest, 0, 200, Amount(None, 1000), Tables(store))
    taken = int(table.length[table.first_offset < stop].sum())
    assert 1000 - int(table.length.max()) <= taken <= 1000
    assert reach(manifest, 0, 200, Amount(None, 1), Tables(store)) == table.first_offset[1]


def test_a_limit_is_shared_in_proportion_to_the_backlog() -> None:
    found = shares(Amount(100, None), {0: (900, 1), 1: (100, 1), 2: (1, 1)})
    assert found == {0: Amount(89), 1: Amount(9), 2: Amount(1)}


def test_a_backlog_is_counted_from_the_manifest() -> None:
    _, manifest, records = sparse_log()
    assert backlog(manifest, 0, manifest.next_offset) == (len(records), manifest.size_bytes)
    assert backlog(manifest, manifest.next_offset, manifest.next_offset) == (0, 0)


@given(st.integers(0, 4), st.integers(0, 500), st.integers(0, 500), st.integers(200, 9000), st.integers(1, 9))
def test_every_record_is_in_one_task(seed: int, start: int, end: int, max_bytes: int, min_tasks: int) -> None:
    store, manifest, records = sparse_log(seed)
    span = span_of(manifest, start, min(end, manifest.next_offset), anchor_of(manifest))
    tasks = tasks_of([span] if span.entries else [], max_bytes, min_tasks, Tables(store))
    slices = [one for task in tasks for one in task]
    seen = [offset for one in slices for offset in in_slice(records, one)]
    assert seen == offsets_between(records, start, end)
    assert all(task for task in tasks)
    for one in slices:
        assert one.start < one.end
        assert all(entry.base_offset < one.end and entry.next_offset > one.start for entry in one.entries)


def in_slice(records: Sequence[Record], one: SpanSlice) -> list[int]:
    """Offsets of a slice, found in its own segments alone."""
    return [
        record.offset
        for entry in one.entries
        for record in records
        if entry.base_offset <= record.offset < entry.next_offset and one.start <= record.offset < one.end
    ]


def test_tasks_have_about_the_requested_size() -> None:
    store, _ = memory_log(*[[record(400 * s + i, f"k{i}", "v" * 100) for i in range(400)] for s in range(3)])
    manifest = load(store)
    span = span_of(manifest, 0, manifest.next_offset, anchor_of(manifest))
    tables = Tables(store)
    sizes = [sum(one.size_bytes for one in task) for task in tasks_of([span], 20_000, 1, tables)]
    assert sum(sizes) == pytest.approx(manifest.size_bytes, rel=0.02)
    assert max(sizes) <= 22_500
    assert len(sizes) <= -(-manifest.size_bytes // 20_000) + 3
    assert tables.asked == [entry.name for entry in manifest.segments]
    assert len(tasks_of([span], 10**9, 8, tables)) in range(8, 11)


def test_small_segments_share_a_task_and_their_tables_are_not_read() -> None:
    store, manifest, _ = sparse_log(segments=9)
    tables = Tables(store)
    span = span_of(manifest, 0, manifest.next_offset, anchor_of(manifest))
    assert len(tasks_of([span], 10**9, 1, tables)) == 1
    assert tables.asked == []


def test_a_block_table_is_read_from_the_end_of_the_index() -> None:
    store, manifest, _ = sparse_log()
    for entry in manifest.segments:
        whole = read_index(store, PLACE, entry).blocks
        for tail_bytes in (64 * 1024, 100, 8, 3):
            if tail_bytes < 8:
                with pytest.raises(Corrupt, match="does not end with Parquet's magic bytes"):
                    read_block_table(store, PLACE, entry, tail_bytes=tail_bytes)
                continue
            table = read_block_table(store, PLACE, entry, tail_bytes=tail_bytes)
            for name in ("position", "length", "record_count", "first_offset", "crc32"):
                assert np.array_equal(getattr(table, name), getattr(whole, name))


@pytest.mark.parametrize("at", [-1, -5, -200, -400])
def test_a_damaged_index_end_is_reported(at: int) -> None:
    store, manifest, _ = sparse_log.__wrapped__()
    entry = manifest.segments[0]
    key = PLACE.key(entry.index_name)
    data = bytearray(store.get(key).data)
    data[at] ^= 0x40
    store.delete(key)
    store.put(key, bytes(data), Create())
    with pytest.raises(Corrupt, match=re.escape(entry.index_name)):
        read_block_table(store, PLACE, entry)


def test_the_log_used_here_is_sound() -> None:
    store, manifest, records = sparse_log()
    assert read_all(store, manifest) == records
