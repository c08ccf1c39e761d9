"""A key that fills much of a log must not gather its records in one task of the large map."""

from __future__ import annotations

from collections import Counter
from random import Random

import pyarrow as pa
import pytest

from keyfold.runtime.arrow_types import values_of
from keyfold.runtime.clock import ManualClock
from keyfold_compactor.decide.horizon import Purge
from keyfold_compactor.decide.settings import Encoding
from keyfold_compactor.decide.work import LogJob
from keyfold_compactor.execute.large_map import Candidates, Superseded, split
from tests.support.cleaning import PLACE, clean, load, memory_log, record, retry_policy

SEGMENTS, RECORDS, BUCKETS = 6, 600, 8


def shuffled(hot_share: float, *, cleaned: bool = False) -> tuple[dict[int, list[bytes]], int]:
    """What goes to each bucket, as the rows' keys; and how many rows were judged before any shuffle."""
    random = Random(2)
    batches = [
        [
            record(s * RECORDS + n, b"hot" if random.random() < hot_share else b"k%d" % (s * RECORDS + n), b"v")
            for n in range(RECORDS)
        ]
        for s in range(SEGMENTS)
    ]
    clock = ManualClock()
    store, sink = memory_log(*batches, clock=clock)
    first_dirty = 0
    if cleaned:
        clean(store, clock=clock)
        first_dirty = load(store).next_offset
        sink.append([record(first_dirty + n, b"hot", b"w") for n in range(RECORDS)])
    manifest = load(store)
    end = manifest.next_offset
    job = LogJob(0, PLACE, manifest.segments, first_dirty, end, 9, manifest.sync_marker, Purge(), False, Encoding())
    buckets: dict[int, list[bytes]] = {number: [] for number in range(BUCKETS)}
    judged = 0
    for position in range(len(job.entries)):
        for item in split(job, position, store, retry_policy(clock, Random(1)), BUCKETS):
            if isinstance(item, Superseded):
                judged += len(item.rows) // 4
                continue
            bucket, candidates = item
            assert isinstance(candidates, Candidates)
            buckets[bucket] += values_of(pa.ipc.open_stream(candidates.data).read_all()["key"])
    return buckets, judged


@pytest.mark.parametrize("cleaned", [False, True], ids=["all dirty", "with a clean part"])
@pytest.mark.parametrize("hot_share", [0.5, 0.95, 1.0])
def test_a_hot_key_leaves_one_row_per_segment(hot_share: float, cleaned: bool) -> None:
    buckets, judged = shuffled(hot_share, cleaned=cleaned)
    keys = Counter(key for rows in buckets.values() for key in rows)
    assert 0 < keys[b"hot"] <= SEGMENTS + 1
    assert judged >= (RECORDS - 1 if cleaned else hot_share * SEGMENTS * RECORDS * 0.9 - SEGMENTS)


def test_a_hot_key_makes_no_bucket_larger_than_the_others() -> None:
    buckets, _ = shuffled(0.5)
    sizes = [len(rows) for rows in buckets.values()]
    assert max(sizes) < 1.3 * sum(sizes) / BUCKETS
