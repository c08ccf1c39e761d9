"""Which records of one segment stay, by hand: who is counted as what, and which marks stay or are new."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pytest

from keyfold_compactor.decide.horizon import Purge
from keyfold_compactor.decide.retain import KeepDecision, new_marks, old_marks, retain

Row = tuple[str | None, bool, int | None, bool]
"""Key, whether it is a tombstone, its mark, whether the map knows a later offset. Each row is ten offsets further."""

VALUE: Row = ("v", False, None, False)
OLD_VALUE: Row = ("v", False, None, True)
UNMARKED: Row = ("t", True, None, False)
OLD_UNMARKED: Row = ("t", True, None, True)
KEYLESS: Row = (None, False, None, False)


def marked(epoch: int, *, is_superseded: bool = False) -> Row:
    return ("t", True, epoch, is_superseded)


def table(*rows: Row) -> pa.Table:
    return pa.table(
        {
            "offset": pa.array([10 * at for at in range(len(rows))], pa.int64()),
            "key": pa.array([None if key is None else key.encode() for key, *_ in rows], pa.binary()),
            "is_tombstone": pa.array([is_tombstone for _, is_tombstone, _, _ in rows], pa.bool_()),
            "cleaned_epoch": pa.array([mark for _, _, mark, _ in rows], pa.int32()),
            "length": pa.array([100 + at for at in range(len(rows))], pa.int32()),
        }
    )


def decided(*rows: Row, due: Collection[int] = (), remove_keyless: bool = False) -> KeepDecision:
    superseded = np.array([is_superseded for *_, is_superseded in rows])
    return retain(table(*rows), superseded, purge=Purge(frozenset(due)), remove_keyless=remove_keyless)


@pytest.mark.parametrize(
    ("row", "due", "stays"),
    [
        (VALUE, {3}, True),
        (OLD_VALUE, (), False),
        (UNMARKED, {3}, True),
        (OLD_UNMARKED, (), False),
        (marked(3), (), True),
        (marked(3), {2, 4}, True),
        (marked(3), {3}, False),
        (marked(3, is_superseded=True), (), False),
        (KEYLESS, {3}, True),
    ],
)
def test_a_record_stays_unless_it_is_superseded_or_its_mark_is_due(row: Row, due: set[int], stays: bool) -> None:
    assert decided(row, due=due).keep.tolist() == [stays]


def test_a_superseded_tombstone_counts_as_superseded_not_purged_even_if_due() -> None:
    """A purge is reported to readers; this one need not be, because they read the newer record."""
    found = decided(marked(3, is_superseded=True), due={3})
    assert (found.superseded_count, found.purged_count, found.kept_count) == (1, 0, 0)
    assert (found.purged_to, found.purged_epoch) == (-1, 0)


def test_the_last_purged_offset_and_latest_purged_mark_are_reported() -> None:
    found = decided(marked(7), marked(5), VALUE, marked(5), marked(9), due={5, 7})
    assert (found.purged_count, found.purged_to, found.purged_epoch) == (3, 30, 7)


def test_only_remaining_unmarked_tombstones_are_to_be_marked() -> None:
    found = decided(UNMARKED, OLD_UNMARKED, marked(3), marked(4), VALUE, due={4})
    assert (found.mark_count, found.tombstone_count, found.kept_count) == (1, 2, 3)


def test_keyless_records_are_removed_only_on_request_and_counted_separately() -> None:
    assert decided(KEYLESS, VALUE).keep.tolist() == [True, True]
    found = decided(KEYLESS, VALUE, KEYLESS, OLD_VALUE, remove_keyless=True)
    assert found.keep.tolist() == [False, True, False, False]
    assert (found.keyless_count, found.superseded_count, found.purged_count) == (2, 1, 0)


def test_remaining_records_are_counted_by_their_bytes() -> None:
    found = decided(OLD_VALUE, VALUE, VALUE)
    assert (found.kept_payload_bytes, found.payload_bytes) == (101 + 102, 100 + 101 + 102)


def test_unmarked_tombstones_get_new_marks_and_old_marks_stay() -> None:
    """A repeated mark would restart its delay for ever."""
    rows = table(UNMARKED, marked(3), VALUE, marked(4), UNMARKED, KEYLESS)
    keep = np.array([True, True, True, False, True, True])
    assert new_marks(rows, keep, 9).to_pylist() == [9, 3, None, 9, None]
    assert old_marks(rows, keep).to_pylist() == [None, 3, None, None, None]
