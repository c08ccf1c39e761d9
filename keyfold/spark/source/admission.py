"""How far the next batch of a stream goes: limits shared out over partitions, and cut at blocks.

A limit is shared out by what each partition still has, at least one record each, as Kafka's source does. Within a
partition whole segments are taken by the manifest's counts; in the one where the limit falls the block table says
where. Inside a block, offsets bound records: so a batch may be smaller than allowed, in a compacted log, but a
partition's share is never exceeded, and every batch goes on by one offset at least. Bytes are stored bytes; they are
cut after whole blocks, so a share of them is exceeded by at most one block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from keyfold.log.index import BlockTable
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.read.position import segments_between

Tables = Callable[[int, SegmentEntry], BlockTable]
"""The block table of a partition's segment."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Records and stored bytes; None is no limit."""

    records: int | None = None
    size_bytes: int | None = None

    @property
    def is_unlimited(self) -> bool:
        """Whether it limits nothing."""
        return self.records is None and self.size_bytes is None


def backlog(manifest: Manifest, position: int, end: int) -> tuple[int, int]:
    """About how many records, and stored bytes, are in `[position, end)`: parts of segments by their offsets."""
    records = size_bytes = 0.0
    for entry in segments_between(manifest, position, end):
        share = share_of(entry, position, end)
        records += entry.record_count * share
        size_bytes += entry.size_bytes * share
    return round(records), round(size_bytes)


def share_of(entry: SegmentEntry, start: int, end: int) -> float:
    """Which part of a segment `[start, end)` is, by offsets."""
    first, stop = max(start, entry.base_offset), min(end, entry.last_offset + 1)
    return max(0, stop - first) / (entry.last_offset + 1 - entry.base_offset)


def shares(limit: Amount, backlogs: Mapping[int, tuple[int, int]]) -> dict[int, Amount]:
    """Each partition's share of the limit."""
    all_records = sum(records for records, _ in backlogs.values())
    all_bytes = sum(size_bytes for _, size_bytes in backlogs.values())
    return {
        partition: Amount(_share(limit.records, records, all_records), _share(limit.size_bytes, size_bytes, all_bytes))
        for partition, (records, size_bytes) in backlogs.items()
    }


def _share(limit: int | None, part: int, whole: int) -> int | None:
    return None if limit is None else max(1, limit * part // max(whole, 1))


def reach(manifest: Manifest, position: int, end: int, share: Amount, tables: Tables) -> int:
    """The offset up to which a share goes from `position`, at most `end`."""
    records = float("inf") if share.records is None else share.records
    size_bytes = float("inf") if share.size_bytes is None else share.size_bytes
    is_first = True
    for entry in segments_between(manifest, position, end):
        is_whole = position <= entry.base_offset and entry.last_offset < end
        if is_whole and entry.record_count <= records and entry.size_bytes <= size_bytes:
            records -= entry.record_count
            size_bytes -= entry.size_bytes
        else:
            table = tables(manifest.partition, entry)
            stop, records, size_bytes = _in_blocks(table, position, end, records, size_bytes, must_move=is_first)
            if stop is not None:
                return min(end, max(stop, position))
        is_first = False
        position = max(position, entry.next_offset)
        if records <= 0 or size_bytes <= 0:
            return min(end, position)
    return end


def _in_blocks(
    table: BlockTable, position: int, end: int, records: float, size_bytes: float, *, must_move: bool
) -> tuple[int | None, float, float]:
    """Where inside a segment the share ends (None: it reaches its end), and what is left of it."""
    begin = max(0, int(np.searchsorted(table.first_offset, position, side="right")) - 1)
    stop = int(np.searchsorted(table.first_offset, end, side="left"))
    for number in range(begin, stop):
        first = max(position, int(table.first_offset[number]))
        after = int(table.first_offset[number + 1]) if number + 1 < len(table) else None
        count = int(table.record_count[number])
        if after is not None:
            count = min(count, after - first)
        if size_bytes <= 0 or (table.length[number] > size_bytes and not must_move):
            return first, records, size_bytes
        if count > records:
            return first + int(records), records, size_bytes
        records -= count
        size_bytes -= int(table.length[number])
        must_move = False
    return None, records, size_bytes
