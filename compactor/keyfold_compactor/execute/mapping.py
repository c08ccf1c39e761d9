"""The map of one log inside one task: which records of which segments are removed.

The map reads only indexes. It reads the dirty part first and makes the offset map of it. Then it probes the clean part
a few segments at a time, so memory follows the size of the dirty range. A clean segment is not read at all if the map
is empty (a pass for tombstones alone) and the manifest says that none of its tombstones is due.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import pyarrow as pa

from keyfold.log.index import read_index
from keyfold.log.manifest import SegmentEntry
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import ObjectStore
from keyfold_compactor.decide.plan import SegmentStats, untouched
from keyfold_compactor.decide.retain import Bools, KeepDecision, retain
from keyfold_compactor.decide.work import LogJob
from keyfold_compactor.execute import offset_map
from keyfold_compactor.execute.offset_map import OffsetMap, Offsets

COLUMNS: Final = ("offset", "key", "is_tombstone", "cleaned_epoch", "length")
READ_THREADS: Final = 4
# Probing builds a hash table of the map's keys each time, so several segments are probed at once.
PROBE_ROWS_MIN: Final = 1_000_000

Mapped = tuple[int, SegmentStats, bytes | None]
"""A segment's position, the map's result for it, and its mask (packed bits) if a unit will need it."""


def map_log(job: LogJob, store: ObjectStore, retry: RetryPolicy, *, threads: int = READ_THREADS) -> Iterator[Mapped]:
    """Decide about every segment of a log, in no particular order. Raise `Corrupt` and `StoreError`."""
    dirty = [at for at, e in enumerate(job.entries) if job.is_dirty(e)]
    with ThreadPoolExecutor(threads) as pool:

        def read(positions: Sequence[int]) -> list[pa.Table]:
            return list(pool.map(lambda at: read_rows(job, job.entries[at], store, retry), positions))

        tables = read(dirty)
        known, last_offsets = _build(tables, job.first_dirty)
        for at, rows, last in zip(dirty, tables, last_offsets, strict=True):
            yield decided(job, at, rows, rows["offset"].to_numpy() < last)
        del tables, last_offsets
        for batch in _probe_batches(job, known):
            yield from _probed(job, batch, read(batch), known)
    for at, entry in enumerate(job.entries):
        if not job.is_dirty(entry) and not _is_read(job, entry, known):
            yield at, untouched(entry), None


def read_rows(job: LogJob, entry: SegmentEntry, store: ObjectStore, retry: RetryPolicy) -> pa.Table:
    """Read the columns of one index that cleaning needs."""
    return retry.repeat(lambda: read_index(store, job.place, entry, columns=COLUMNS)).rows


def decided(job: LogJob, at: int, rows: pa.Table, superseded: Bools) -> Mapped:
    """Decide about one segment, given per row whether the dirty range has a later offset of its key."""
    found = retain(rows, superseded, purge=job.purge, remove_keyless=job.remove_keyless)
    stats = stats_of(job.entries[at], found)
    return at, stats, packed(found.keep) if stats.has_mask and stats.kept_count else None


def stats_of(entry: SegmentEntry, found: KeepDecision) -> SegmentStats:
    """Return the stats of one segment. Kept stored bytes are estimated by the share of kept plain bytes."""
    share = found.kept_payload_bytes / found.payload_bytes if found.payload_bytes else 1.0
    return SegmentStats(
        record_count=len(found.keep),
        kept_count=found.kept_count,
        kept_bytes=round(entry.size_bytes * share),
        superseded_count=found.superseded_count,
        purged_count=found.purged_count,
        held_count=found.held_count,
        keyless_count=found.keyless_count,
        mark_count=found.mark_count,
        tombstone_count=found.tombstone_count,
        purged_to=found.purged_to,
        purged_epoch=found.purged_epoch,
    )


def packed(keep: Bools) -> bytes:
    """Pack a mask into bits."""
    return np.packbits(keep).tobytes()


def unpacked(mask: bytes, count: int) -> Bools:
    """Return a mask of `count` rows from its bits."""
    return np.unpackbits(np.frombuffer(mask, np.uint8), count=count).astype(np.bool_)


def _build(tables: Sequence[pa.Table], first_dirty: int) -> tuple[OffsetMap, list[Offsets]]:
    return offset_map.build([t["key"] for t in tables], [t["offset"].to_numpy() for t in tables], first_dirty)


def _is_read(job: LogJob, entry: SegmentEntry, known: OffsetMap) -> bool:
    return len(known) > 0 or job.needs_index(entry)


def _probe_batches(job: LogJob, known: OffsetMap) -> Iterator[list[int]]:
    batch: list[int] = []
    rows = 0
    for at, entry in enumerate(job.entries):
        if job.is_dirty(entry) or not _is_read(job, entry, known):
            continue
        batch.append(at)
        rows += entry.record_count
        if rows >= PROBE_ROWS_MIN:
            yield batch
            batch, rows = [], 0
    if batch:
        yield batch


def _probed(job: LogJob, batch: Sequence[int], tables: Sequence[pa.Table], known: OffsetMap) -> Iterator[Mapped]:
    column = pa.chunked_array([chunk for t in tables for chunk in t["key"].chunks], tables[0]["key"].type)
    last = known.probe(column)
    ends = np.cumsum([len(t) for t in tables])[:-1]
    for at, rows, part in zip(batch, tables, np.split(last, ends), strict=True):
        yield decided(job, at, rows, rows["offset"].to_numpy() < part)
