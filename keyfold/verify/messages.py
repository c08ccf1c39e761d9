"""Messages about blocks and records of a segment that contradict its index."""

from __future__ import annotations

from collections.abc import Iterator

from keyfold.errors import StoreError
from keyfold.log.avro import SegmentDamaged
from keyfold.log.index import Index
from keyfold.log.manifest import SegmentEntry
from keyfold.log.names import Place
from keyfold.verify.findings import NOTHING, REPORT, RESTORE, Finding, FindingKind
from keyfold.verify.row_checks import ROW_COLUMNS, PlacedRow, index_rows


def damaged_block(place: Place, entry: SegmentEntry, part: Index, number: int, error: Exception) -> Finding:
    """A block that cannot be read, with the offsets that it held."""
    rows = index_rows(part, number)
    record = getattr(error, "record", -1)
    lost = f"{len(rows)} records, offsets {rows[0][0]} to {rows[-1][0]}" if rows else "its records"
    offset = rows[record if 0 <= record < len(rows) else 0][0] if rows else -1
    what = error.message if isinstance(error, SegmentDamaged | StoreError) else str(error)
    key = place.key(entry.name)
    return Finding(FindingKind.BLOCK_DAMAGED, key, what, lost, RESTORE, number, offset, record)


def compare_rows(
    place: Place, entry: SegmentEntry, data: Iterator[PlacedRow], indexed: Iterator[PlacedRow]
) -> Iterator[Finding]:
    """Records that a segment or its index has alone, or that differ: both sides in offset order, as they come."""
    key, index_key = place.key(entry.name), place.key(entry.index_name)
    mine, theirs = next(data, None), next(indexed, None)
    while mine is not None or theirs is not None:
        if mine is None or (theirs is not None and theirs[2][0] < mine[2][0]):
            assert theirs is not None
            yield _lost_row(key, theirs)
            theirs = next(indexed, None)
            continue
        block, record, row = mine
        if theirs is None or row[0] < theirs[2][0]:
            what = "the segment has a record that is missing from its index"
            yield Finding(FindingKind.RECORD_UNEXPECTED, key, what, NOTHING, REPORT, block, row[0], record)
        else:
            if row != theirs[2]:
                pairs = zip(ROW_COLUMNS, row, theirs[2], strict=True)
                what = f"its index has {', '.join(f'{name} {b!r} instead of {a!r}' for name, a, b in pairs if a != b)}"
                yield Finding(FindingKind.INDEX_DIFFERS, index_key, what, NOTHING, REPORT, block, row[0], record)
            theirs = next(indexed, None)
        mine = next(data, None)


def _lost_row(object_key: str, placed_row: PlacedRow) -> Finding:
    """A record of which only the index still knows."""
    block, record, (offset, _, key, is_tombstone, _, _) = placed_row
    if is_tombstone:
        what = "its index has a tombstone at this offset, but the segment has none"
        lost = f"the tombstone of key {key!r}: the deleted value would be visible again"
        return Finding(FindingKind.TOMBSTONE_LOST, object_key, what, lost, RESTORE, block, offset, record)
    what = "its index has a record at this offset, but the segment has none"
    return Finding(
        FindingKind.RECORD_LOST, object_key, what, f"the record of key {key!r}", RESTORE, block, offset, record
    )
