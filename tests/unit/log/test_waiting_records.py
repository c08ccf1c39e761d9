"""Records that wait for their block: what they take, and strings that are joined."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfold.log.record import RecordColumns
from keyfold.log.waiting_records import JoinedBytes, WaitingRecords, has_large_values

RECORDS = 4000


def columns(first: int, count: int, value_bytes: int) -> RecordColumns:
    """Records whose objects nothing else holds."""
    offsets = range(first, first + count)
    return RecordColumns(
        list(offsets),
        [1_700_000_000_000 + offset for offset in offsets],
        (1,) * count,
        [b"key-%08d" % offset for offset in offsets],
        [bytes([offset % 251]) * value_bytes for offset in offsets],
        [None] * count,
        [7] * count,
    )


@given(st.lists(st.lists(st.none() | st.binary(max_size=5), max_size=6), max_size=4))
def test_joined_strings_are_the_same_strings(parts: list[list[bytes | None]]) -> None:
    joined = JoinedBytes()
    for part in parts:
        assert joined.extend(part) == sum(len(string or b"") for string in part)
    expected = [string for part in parts for string in part]
    assert list(joined) == joined[:] == expected
    assert len(joined) == len(expected)
    assert JoinedBytes(expected).joined() == joined.joined() == b"".join(filter(None, expected))
    assert joined.lengths().tolist() == [-1 if string is None else len(string) for string in expected]
    if expected:
        assert joined[-1] == expected[-1]


@pytest.mark.parametrize(("count", "value_bytes"), [(1, 20), (10, 250), (100, 250), (10, 2000)])
def test_the_memory_that_is_counted_is_what_records_take(count: int, value_bytes: int) -> None:
    waiting = WaitingRecords()
    tracemalloc.start()
    try:
        before_bytes, _ = tracemalloc.get_traced_memory()
        for first in range(0, RECORDS, count):
            waiting.add(columns(first, count, value_bytes), first - 1)
        took_bytes = tracemalloc.get_traced_memory()[0] - before_bytes
    finally:
        tracemalloc.stop()
    counted_bytes = waiting.content_bytes + waiting.overhead_bytes
    assert waiting.content_bytes == RECORDS * (12 + value_bytes)
    # Arrays and lists grow ahead of what they hold, by an eighth at most.
    assert 0.85 * took_bytes <= counted_bytes <= 1.05 * took_bytes


def test_large_values_stay_apart() -> None:
    waiting = WaitingRecords()
    batch = columns(0, 3, 5000)
    waiting.add(batch, -1)
    assert all(kept is value for kept, value in zip(waiting.columns().values, batch.values, strict=True))
    assert has_large_values(batch.values)
    assert not has_large_values(JoinedBytes(batch.values))


def test_a_batch_that_is_refused_leaves_nothing() -> None:
    waiting = WaitingRecords()
    waiting.add(columns(0, 5, 10), -1)
    before = waiting.content_bytes, waiting.overhead_bytes, len(waiting)
    with pytest.raises(ValueError, match="offset 3 follows offset 4"):
        waiting.add(columns(3, 5, 10), 4)
    assert (waiting.content_bytes, waiting.overhead_bytes, len(waiting)) == before
