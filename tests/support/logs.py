"""A small real log in a store: appends as the sink does, passes as the compactor does, without Kafka and Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

import numpy as np
import pyarrow as pa

from keyfold.log.assembly import SEGMENT_LIMITS, FinishedSegment, SegmentLimits
from keyfold.log.index import Index, read_index
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.names import ObjectName, Place
from keyfold.log.partition_log import CompactorSession, PartitionLog, Replacement, SinkSession, Swap
from keyfold.log.record import CREATE_TIME, TIMESTAMP_TYPES, Record, RecordColumns
from keyfold.log.rewrite import SegmentRewriter
from keyfold.log.segment import SegmentWriter, segment_bytes
from keyfold.runtime.clock import Clock, ManualClock
from keyfold.store.api import Create, ObjectStore
from keyfold.store.memory import MemoryStore

PLACE = Place("topics", "users", 0)


def record(offset: int, key: str | None, value: str | None, *, timestamp: int | None = None) -> Record:
    """A record with a timestamp of 1000 ms an offset, unless told otherwise."""
    at = 1000 * offset if timestamp is None else timestamp
    return Record(offset, at, CREATE_TIME, key.encode() if key is not None else None,
                  value.encode() if value is not None else None)  # fmt: skip


def records(text: str, start: int = 0) -> list[Record]:
    """`"a=1 b=2 a= =4"`: key and value, a tombstone, a keyless record; `_` leaves a hole."""
    found: list[Record] = []
    for offset, word in enumerate(text.split(), start):
        if word != "_":
            key, _, value = word.partition("=")
            found.append(record(offset, key or None, value or None))
    return found


def columns(batch: Sequence[Record]) -> RecordColumns:
    """Records as the writer takes them."""
    return RecordColumns(
        [r.offset for r in batch],
        [r.timestamp for r in batch],
        [TIMESTAMP_TYPES.index(r.timestamp_type) for r in batch],
        [r.key for r in batch],
        [r.value for r in batch],
        [r.headers for r in batch],
        [r.leader_epoch for r in batch],
    )


def latest_of(batch: Iterable[Record]) -> dict[bytes, Record]:
    """The specification: a dict."""
    state: dict[bytes, Record] = {}
    for r in batch:
        if r.key is None:
            continue
        if r.value is None:
            state.pop(r.key, None)
        else:
            state[r.key] = r
    return state


@dataclass(slots=True)
class MadeLog:
    """One partition's log, written by hand."""

    store: ObjectStore = field(default_factory=MemoryStore)
    place: Place = PLACE
    clock: Clock = field(default_factory=ManualClock)
    random: Random = field(default_factory=lambda: Random(7))
    block_bytes: int = 64
    codec: str = "zstandard"
    limits: SegmentLimits = SEGMENT_LIMITS
    _sink: SinkSession | None = None

    @property
    def log(self) -> PartitionLog:
        return PartitionLog(self.store, self.place, clock=self.clock, random=self.random)

    @property
    def manifest(self) -> Manifest:
        return self.log.load().manifest

    @property
    def sink(self) -> SinkSession:
        if self._sink is None:
            self.log.create()
            self._sink = self.log.claim_sink()
        return self._sink

    def append(self, batch: Sequence[Record], *, next_offset: int | None = None) -> SegmentEntry:
        """Commit one segment."""
        writer = SegmentWriter(
            sync_marker=self.sink.manifest.sync_marker,
            codec=self.codec,
            block_bytes=self.block_bytes,
            limits=self.limits,
        )
        writer.append(columns(batch))
        base = self.sink.refresh().next_offset
        name = self.sink.new_name(base)
        end = batch[-1].offset + 1 if next_offset is None else next_offset
        entry = self.upload(writer.finish(), name, base, end)
        self.sink.append(entry)
        return entry

    def upload(self, finished: FinishedSegment, name: ObjectName, base: int, end: int) -> SegmentEntry:
        """Put both objects; nothing is committed."""
        self.store.put(self.place.key(str(name)), segment_bytes(finished), Create())
        self.store.put(self.place.key(str(name.index)), finished.index_data, Create())
        return finished.entry(str(name), str(name.index), base_offset=base, next_offset=end)

    def compact(self, *, purge: bool = False, merge: bool = False, commit: bool = True) -> CompactorSession:
        """One pass over all segments. `purge` removes tombstones that an earlier pass marked."""
        session = self.log.claim_compactor(lease_ms=1000, holder="test")
        entries = session.manifest.segments
        indexes = [read_index(self.store, self.place, e) for e in entries]
        last = {
            key: offset
            for index in indexes
            for key, offset in zip(*(index.rows.column(n).to_pylist() for n in ("key", "offset")), strict=True)
        }
        groups = (
            [list(zip(entries, indexes, strict=True))] if merge else [[p] for p in zip(entries, indexes, strict=True)]
        )
        purged: list[tuple[int, int]] = []
        swaps = tuple(self._swap(session, group, last, purged, purge=purge) for group in groups if group)
        if commit:
            session.replace(
                Replacement(
                    swaps,
                    first_dirty_offset=entries[-1].next_offset if entries else 0,
                    purged_to=max((offset for offset, _ in purged), default=-1),
                    purged_epoch=max((mark for _, mark in purged), default=0),
                )
            )
        return session

    def _swap(
        self, session: CompactorSession, group: list[tuple[SegmentEntry, Index]], last: dict[bytes, int],
        purged: list[tuple[int, int]], *, purge: bool,
    ) -> Swap:  # fmt: skip
        rewriter = SegmentRewriter(
            sync_marker=session.manifest.sync_marker,
            codec=self.codec,
            block_bytes=self.block_bytes,
            limits=self.limits,
        )
        old = tuple(e for e, _ in group)
        for entry, index in group:
            keep, marks = [], []
            names = ("offset", "key", "is_tombstone", "cleaned_epoch")
            for offset, key, dead, mark in zip(*(index.rows.column(n).to_pylist() for n in names), strict=True):
                due = purge and dead and mark is not None
                kept = (key is None or last[key] == offset) and not due
                if due:
                    purged.append((offset, mark))
                keep.append(kept)
                if kept:
                    marks.append(mark if mark is not None or not dead else session.epoch)
            rewriter.add(
                index, None, np.array(keep, bool), pa.array(marks, pa.int32()),
                partial(self.store.get_range, self.place.key(entry.name)),
            )  # fmt: skip
        if not rewriter.record_count:
            return Swap(old, ())
        name = session.new_name(old[0].base_offset)
        return Swap(old, (self.upload(rewriter.finish(), name, old[0].base_offset, old[-1].next_offset),))

    def delete_replaced(self, *, forget: bool = False, most: int | None = None) -> None:
        """Delete every replaced object at once: no grace for readers. With `most` it stops after that many."""
        names = sorted((r.name for r in self.manifest.replaced), key=lambda n: (n.startswith("_index/"), n))[:most]
        for name in names:
            self.store.delete(self.place.key(name))
        if forget:
            self.log.claim_compactor(lease_ms=1000, holder="test").forget(names)

    def object_keys(self) -> Iterator[str]:
        """All objects of the partition."""
        return (info.key for info in self.store.list(self.place.folder))
