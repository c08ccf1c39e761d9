"""The topic as the driver sees it: its partitions, their newest manifests, and block tables where planning cuts."""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Final

from keyfold.errors import FirstCopyUnfinished, LogNotFound, ObjectNotFound
from keyfold.log.avro import SegmentDamaged
from keyfold.log.index import BlockTable, Index
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.names import Place
from keyfold.read.fetch import damage_named
from keyfold.read.log import Log
from keyfold.read.ordered import newer, offset_for_time
from keyfold.runtime.clock import Clock, SystemClock
from keyfold.store.api import ObjectStore

_THREADS: Final = 16
_TABLES_KEPT: Final = 64
TAIL_BYTES: Final = 64 * 1024
"""The footer of an index is rarely larger."""
_END: Final = struct.Struct("<I4s")


class SourceTopic:
    """One topic of a store, and which partitions of it are meant (none named: all that there are)."""

    def __init__(
        self,
        store: ObjectStore,
        topics_dir: str,
        topic: str,
        chosen: tuple[int, ...] = (),
        *,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self.store = store
        self.topic = topic
        self.chosen = chosen
        self.clock = clock or SystemClock()
        self._log = Log(store, topics_dir, topic, clock=self.clock, random=random)
        self._tables: dict[str, BlockTable] = {}

    def place(self, partition: int) -> Place:
        """Where a partition is."""
        return self._log.place(partition)

    def partitions(self) -> list[int]:
        """The selected partitions. Raises `TopicNotFound` if there are none."""
        return list(self.chosen) or self._log.partitions()

    def manifest(self, partition: int) -> Manifest:
        """The newest manifest of a partition. Raises what `Log.manifest` raises."""
        return self._log.manifest(partition)

    def manifests(self, partitions: Iterable[int], *, known: Container[int] | None = None) -> dict[int, Manifest]:
        """Read the newest manifests side by side.

        With `known`, other partitions whose folder has no log yet are left out.
        """
        wanted = list(partitions)

        def manifest(partition: int) -> Manifest | None:
            try:
                return self.manifest(partition)
            except (LogNotFound, FirstCopyUnfinished):
                if known is None or partition in known or partition in self.chosen:
                    raise
                return None

        if len(wanted) < 2:
            found = list(map(manifest, wanted))
        else:
            with ThreadPoolExecutor(min(_THREADS, len(wanted))) as pool:
                found = list(pool.map(manifest, wanted))
        return {partition: one for partition, one in zip(wanted, found, strict=True) if one is not None}

    def table(self, partition: int, entry: SegmentEntry) -> BlockTable:
        """A segment's block table. The most recent ones are cached: a stream with limits asks for one many times."""
        key = self.place(partition).key(entry.index_name)
        table = self._tables.pop(key, None) or read_block_table(self.store, self.place(partition), entry)
        self._tables[key] = table
        while len(self._tables) > _TABLES_KEPT:
            self._tables.pop(next(iter(self._tables)))
        return table

    def prove_gone(self, missing: ObjectNotFound, partitions: Iterable[int]) -> None:
        """Raise `Corrupt` where the newest manifest still lists an object that is missing; else it was collected."""
        for partition in partitions:
            place = self.place(partition)
            if missing.key.startswith(place.folder):
                newer(place, lambda at=partition: self.manifest(at), missing)  # type: ignore[misc]  # bound in the loop

    def at_time(self, manifest: Manifest, timestamp_ms: int) -> tuple[Manifest, int]:
        """The offset of a time, and the version in which it was found: the log's end where no record is so late."""
        place = self.place(manifest.partition)
        while True:
            try:
                found = offset_for_time(self.store, place, manifest, timestamp_ms)
            except ObjectNotFound as error:
                manifest = newer(place, lambda: self.manifest(place.partition), error)
            else:
                return manifest, manifest.next_offset if found is None else found


def read_block_table(
    store: ObjectStore, place: Place, entry: SegmentEntry, *, tail_bytes: int = TAIL_BYTES
) -> BlockTable:
    """Return where the blocks of a segment begin, with one request for `tail_bytes`, or two if the footer is larger.

    The table is in the footer of the segment's index, which has a checksum of its own, so the end of the object is
    enough. Raises `Corrupt`, and the errors of `ObjectStore.get_range`.
    """
    key = place.key(entry.index_name)
    with damage_named(place):
        tail = _tail(store, key, entry.index_size_bytes, tail_bytes)
        length, magic = _END.unpack(tail[-_END.size :]) if len(tail) >= _END.size else (0, b"")
        wanted = length + _END.size
        if magic != b"PAR1" or wanted > entry.index_size_bytes:
            raise SegmentDamaged(key, "the index does not end with Parquet's magic bytes")
        if wanted > len(tail):
            tail = _tail(store, key, entry.index_size_bytes, wanted)
        table = Index.block_table(tail, origin=key)
        if int(table.record_count.sum()) != entry.record_count:
            raise SegmentDamaged(
                key, f"has {int(table.record_count.sum())} records, but the manifest says {entry.record_count}"
            )
    return table


def _tail(store: ObjectStore, key: str, size_bytes: int, length: int) -> bytes:
    length = min(length, size_bytes)
    return store.get_range(key, size_bytes - length, length)
