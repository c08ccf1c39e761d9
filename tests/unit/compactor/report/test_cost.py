"""What a pass costs follows the garbage that it finds, not the log. Bytes are counted at the store: they are exact."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from keyfold.store.memory import MemoryStore
from keyfold_compactor.decide.settings import TopicSettings
from tests.support.costs import CostLog, Moved, bound, even, in_turn

SEGMENT_RECORDS = 500
SEGMENT_BYTES = 300_000
"""A segment of `SEGMENT_RECORDS` records is near it, so full segments stay as they are."""
SETTINGS = TopicSettings(min_cleanable_dirty_ratio=0.0, segment_bytes=SEGMENT_BYTES)
WORST = 1.2
"""How far above the bound a pass may be: for indexes, headers and repacked blocks."""


def with_tail(tail_records: int, segment_records: int) -> CostLog:
    """A log that is clean and stays so, for its keys are not written again; passes have cleaned it as it grew."""
    log = CostLog(MemoryStore(), segment_records, block_bytes=16_384)
    for start in range(0, tail_records, 2_000):
        log.append(range(start, start + 2_000))
        log.clean(SETTINGS)
    log.segment_records = SEGMENT_RECORDS
    return log


def head_pass(tail_records: int, segment_records: int = SEGMENT_RECORDS) -> Moved:
    """The same dirty head is appended and cleaned, whatever is below."""
    log = with_tail(tail_records, segment_records)
    clean = log.manifest.segments
    log.append(even(2_000, 0.5, first_key=10**9))
    moved, _ = log.clean(SETTINGS)
    if segment_records == SEGMENT_RECORDS:
        assert log.manifest.segments[: len(clean)] == clean
    return moved


def test_cleaning_a_head_costs_the_same_over_a_tail_ten_times_as_long() -> None:
    small, large = head_pass(2_000), head_pass(20_000)
    assert large.data == pytest.approx(small.data, rel=0.01)
    assert large.data_freed == pytest.approx(small.data_freed, rel=0.01)
    assert large.index_read > small.index_read, "every index is read: that is how a pass knows that nothing is there"


@pytest.mark.full
def test_a_tail_of_small_segments_is_not_rewritten_repeatedly() -> None:
    """Merges cost what they cost once; where a tail ends in a small segment, that one may be merged with the head."""
    small, large = head_pass(2_000, 50), head_pass(20_000, 50)
    assert large.data <= small.data + 2 * SEGMENT_BYTES


@pytest.mark.parametrize("garbage", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("keys", [even, in_turn])
def test_a_freed_byte_costs_at_most_a_full_read_and_rewrite(
    keys: Callable[[int, float], list[int]], garbage: float
) -> None:
    log = CostLog(MemoryStore(), SEGMENT_RECORDS, block_bytes=16_384)
    log.append(keys(4_000, garbage))
    moved, _ = log.clean(SETTINGS)
    assert moved.data_ratio <= WORST * bound(garbage)
    assert moved.ratio <= WORST * bound(garbage)
    if keys is in_turn:
        # Whole segments of garbage are not even read; at most one has both, and its blocks of garbage are skipped.
        assert moved.data <= 4 * SEGMENT_BYTES


def test_over_a_logs_life_passes_move_at_most_what_full_rewrites_would() -> None:
    """Few keys are written often among many that are written once: small segments, merges and rewrites together."""
    log, random = CostLog(MemoryStore(), 100, block_bytes=16_384), np.random.default_rng(1)
    settings = TopicSettings(min_cleanable_dirty_ratio=0.2, segment_bytes=SEGMENT_BYTES)
    moved_bytes = freed_bytes = whole_bytes = 0
    for start in range(0, 12_000, 400):
        once = np.arange(start, start + 400) + 10**6
        log.append(np.where(random.random(400) < 0.7, random.integers(0, 50, 400), once).tolist())
        before = log.manifest.size_bytes
        moved, report = log.clean(settings)
        if report.partitions:
            moved_bytes += moved.data
            freed_bytes += moved.data_freed
            whole_bytes += 2 * before - moved.data_freed
    assert freed_bytes > 3_000_000
    assert moved_bytes < whole_bytes / 2
    assert moved_bytes < 4 * freed_bytes
