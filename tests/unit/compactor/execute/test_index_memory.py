"""What a rewrite holds of index rows is a row group's, however many records a segment has."""

from __future__ import annotations

import tracemalloc
from random import Random

import numpy as np
import pyarrow as pa

from keyfold.log.assembly import SegmentLimits
from keyfold.runtime.clock import ManualClock
from keyfold_compactor.decide.settings import Encoding
from keyfold_compactor.decide.work import UnitJob, UnitSource
from keyfold_compactor.execute.mapping import packed
from keyfold_compactor.execute.rewrite import rewrite_unit
from tests.support.cleaning import PLACE, load, memory_log, read_all, record, retry_policy

LIMITS = SegmentLimits(row_group_rows=1_000)
FOREVER_BYTES = 24
"""Of every row of the segment: both indexes as they are stored, the mask, the block table."""


def peak_bytes(row_count: int) -> int:
    """Memory of Arrow, numpy and Python while a segment of small records is rewritten without every third."""
    store, _ = memory_log([record(n, b"%06d" % n, b"v") for n in range(row_count)], limits=LIMITS)
    (entry,) = load(store).segments
    keep = np.arange(row_count) % 3 != 0
    unit = UnitJob(
        log=0,
        group=0,
        place=PLACE,
        epoch=9,
        sync_marker=load(store).sync_marker,
        encoding=Encoding("zstandard", 1, 16_384),
        sources=(UnitSource(0, entry, int(keep.sum())),),
        base_offset=0,
        next_offset=row_count,
        is_remark=False,
    )
    masks = {(0, 0): packed(keep)}
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        made = rewrite_unit(unit, masks, store, retry_policy(ManualClock(), Random(2)), limits=LIMITS)
        _, traced_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
    assert made.record_count == int(keep.sum())
    assert len(read_all(store)) == row_count, "the log names the old segment still"
    peak: int = traced_bytes + (pool.max_memory() or 0) - 2 * store.head(PLACE.key(made.name)).size_bytes
    return peak


def test_index_rows_are_held_one_row_group_at_a_time() -> None:
    few, many = 5_000, 40_000
    grown = peak_bytes(many) - peak_bytes(few)
    assert grown < FOREVER_BYTES * (many - few)
