"""Find records by their key.

    lookup = log.lookup()
    found = lookup.get(b"user-7")           one request, once the directory of keys is in memory
    for record in lookup.history(b"user-7"): ...
    lookup.refresh()                        the log's newest version; reads the indexes of new segments only

A lookup answers from one moment: the version of each partition that `refresh` has found last. The directory
(`keyfold.read.key_directory`) is made segment by segment, from the newest on, as far as a key is looked for, or at once
by `load`. Where the compactor keeps a directory beside the log (`keyfold.read.stored_directory`), parts of that are
read instead. If the objects of a version were deleted meanwhile, the lookup goes on with the newest one. It never goes
back to an older one.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyfold.errors import FirstCopyUnfinished, LogError, LogNotFound, ObjectNotFound
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.names import Place, Role, parse_name
from keyfold.log.record import Record
from keyfold.read.key_directory import ByteLimit, SegmentKeys, matches
from keyfold.read.key_hash import key_hashes
from keyfold.read.ordered import newer
from keyfold.read.stored_directory import DirectoryReplaced, Entries, StoredDirectory
from keyfold.store.api import ObjectStore

T = TypeVar("T")

PARALLEL: Final = 8


class LogRecreated(LogError):
    """The log was created again, or a replica of it was promoted, since a lookup was opened."""


class KeyInSeveralPartitions(LogError):
    """A key has records in several partitions, so no record is its last one."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a lookup found for a key. `record` is the key's last record, a tombstone included; None if there is none.

    `version` of the log with the id `log_id` was looked at, up to `next_offset`. Where no partition was named and none
    has the key, `partition` is None, and `next_offsets` says how far each was looked at.
    """

    key: bytes
    record: Record | None
    partition: int | None
    next_offsets: Mapping[int, int]
    log_id: str = ""
    version: int = 0

    @property
    def value(self) -> bytes | None:
        """The key's value; None if it has none, or was deleted."""
        return None if self.record is None else self.record.value


@dataclass(frozen=True, slots=True)
class _Version:
    """One version of a partition, and the directories of its segments as far as they were needed, by segment."""

    place: Place
    manifest: Manifest
    directories: dict[str, SegmentKeys]


@dataclass(frozen=True, slots=True)
class _Stored:
    """The directory beside a partition's log, if there is one.

    `version` is the newest version of the log that was looked up with it. `missing` are the segments of passes that the
    directory did not name when it was opened; a directory that names them may be written later.
    """

    version: int
    directory: StoredDirectory | None
    missing: frozenset[str]

    def covers(self, entry: SegmentEntry) -> bool:
        """Whether the directory names a segment."""
        return self.directory is not None and entry.name in self.directory.segments


def _left(max_bytes: int | None, records: Mapping[bytes, Sequence[Record]]) -> int | None:
    """Return how many bytes may still be found, after these records of one partition."""
    if max_bytes is None:
        return None
    return max_bytes - sum(len(key) + len(each.value or b"") for key, found in records.items() for each in found)


def _of_passes(manifest: Manifest, directory: StoredDirectory | None) -> frozenset[str]:
    """Return the segments that passes have made and a directory does not name."""
    named = frozenset[str]() if directory is None else directory.segments.keys()
    parsed = ((entry.name, parse_name(entry.name)) for entry in manifest.segments if entry.name not in named)
    return frozenset(text for text, name in parsed if name is not None and name.role is Role.COMPACTOR)


class Lookup:
    """Answers by key. Thread-safe. `Log.lookup` opens one."""

    def __init__(
        self,
        store: ObjectStore,
        place: Callable[[int], Place],
        partitions: Callable[[], Iterable[int]],
        load: Callable[[int], Manifest],
    ) -> None:
        self._store = store
        self._place = place
        self._partitions = partitions
        self._load = load
        self._lock = Lock()
        self._versions: Mapping[int, _Version] = {}
        self._stored: dict[int, _Stored] = {}
        self.refresh()

    @property
    def next_offsets(self) -> dict[int, int]:
        """How far each partition is looked at."""
        return {number: version.manifest.next_offset for number, version in self._versions.items()}

    @property
    def memory_bytes(self) -> int:
        """About the memory that the directory takes now."""
        held = [each for version in self._versions.values() for each in list(version.directories.values())]
        stored = [each.directory for each in list(self._stored.values()) if each.directory is not None]
        return sum(each.size_bytes for each in held) + sum(each.size_bytes for each in stored)

    def refresh(self) -> None:
        """Go to the newest version of each partition. Raises `LogRecreated`, and what reading a manifest raises."""
        for number in self._partitions():
            with suppress(LogNotFound, FirstCopyUnfinished):  # a folder without a log
                self._advance(number, self._load(number))

    def load(self, parallel: int = PARALLEL) -> None:
        """Read the indexes of all segments, `parallel` at a time, so that each lookup is one request.

        Raises what `get` raises.
        """
        with ThreadPoolExecutor(parallel, thread_name_prefix="lookup") as pool:
            for number in self._versions:
                self._retried(number, partial(self._load_all, pool))

    def get(self, key: bytes, partition: int | None = None) -> Found:
        """Return the last record of a key, in one partition or in all.

        Raises `KeyInSeveralPartitions`, `LogRecreated`, `Corrupt`, and the errors of the store.
        """
        return self.get_many([key], partition)[key]

    def get_many(
        self, keys: Sequence[bytes], partition: int | None = None, *, max_bytes: int | None = None
    ) -> dict[bytes, Found]:
        """Return the last record of each key; a block that has several of them is fetched once.

        Raises as `get`, and `RecordsTooLarge` if more than one record and more than `max_bytes` were found.
        """
        wanted = list(dict.fromkeys(keys))
        seen: dict[int, Manifest] = {}
        found: dict[bytes, list[tuple[int, Record]]] = {key: [] for key in wanted}
        for number in self._numbers(partition):
            version, records = self._find(number, wanted, 1, max_bytes)
            max_bytes = _left(max_bytes, records)
            seen[number] = version.manifest
            for key, (record, *_) in records.items():
                found[key].append((number, record))
        next_offsets = {number: manifest.next_offset for number, manifest in seen.items()}
        return {key: self._found(key, each, seen, next_offsets) for key, each in found.items()}

    def history(
        self,
        key: bytes,
        partition: int | None = None,
        *,
        limit: int | None = None,
        max_bytes: int | None = None,
    ) -> list[tuple[int, Record]]:
        """Return every record of a key that the log still has, with its partition, in order of offsets.

        `limit` is the most for each partition; the newest are returned. Raises as `get_many`, but a key may be in
        several partitions.
        """
        count, found = sys.maxsize if limit is None else limit, list[tuple[int, Record]]()
        for number in self._numbers(partition):
            _, records = self._find(number, [key], count, max_bytes)
            max_bytes = _left(max_bytes, records)
            found += [(number, record) for record in reversed(records.get(key, []))]
        return found

    async def aget(self, key: bytes, partition: int | None = None) -> Found:
        """See `get`; it runs in a thread."""
        return await asyncio.to_thread(self.get, key, partition)

    async def aget_many(self, keys: Sequence[bytes], partition: int | None = None) -> dict[bytes, Found]:
        """See `get_many`; it runs in a thread."""
        return await asyncio.to_thread(self.get_many, keys, partition)

    async def ahistory(
        self, key: bytes, partition: int | None = None, *, limit: int | None = None
    ) -> list[tuple[int, Record]]:
        """See `history`; it runs in a thread."""
        return await asyncio.to_thread(self.history, key, partition, limit=limit)

    async def arefresh(self) -> None:
        """See `refresh`; it runs in a thread."""
        await asyncio.to_thread(self.refresh)

    def _load_all(self, pool: ThreadPoolExecutor, version: _Version) -> None:
        stored = self._stored_of(version)
        covered = [entry for entry in version.manifest.segments if stored.covers(entry)]
        if stored.directory is not None:
            stored.directory.load(covered)
        for _ in pool.map(
            partial(self._keys_of, version), [each for each in version.manifest.segments if not stored.covers(each)]
        ):
            pass

    def _numbers(self, partition: int | None) -> list[int]:
        if partition is None:
            return sorted(self._versions)
        if partition not in self._versions:
            self._advance(partition, self._load(partition))  # it may be new; if not, this says what is wrong
        return [partition]

    def _found(
        self, key: bytes, each: list[tuple[int, Record]], seen: Mapping[int, Manifest], next_offsets: Mapping[int, int]
    ) -> Found:
        if len(each) > 1:
            numbers = [number for number, _ in each]
            raise KeyInSeveralPartitions(
                self._place(numbers[0]).topic,
                numbers[0],
                f"a key has records in the partitions {', '.join(map(str, numbers))}",
                hint="name the partition; for the command with --partition",
            )
        if each:
            number, record = each[0]
        elif len(seen) == 1:
            (number,), record = seen, None
        else:
            return Found(key, None, None, next_offsets)
        return Found(key, record, number, next_offsets, seen[number].log_id, seen[number].version)

    def _find(
        self, number: int, keys: Sequence[bytes], count: int, max_bytes: int | None = None
    ) -> tuple[_Version, dict[bytes, list[Record]]]:
        """Return the last `count` records of each key, the newest first."""
        hashes = key_hashes(pa.array(keys, pa.binary()))
        return self._retried(
            number, lambda version: (version, self._search(version, keys, hashes, count, ByteLimit(max_bytes)))
        )

    def _search(
        self, version: _Version, keys: Sequence[bytes], hashes: npt.NDArray[np.int64], count: int, limit: ByteLimit
    ) -> dict[bytes, list[Record]]:
        found: dict[bytes, list[Record]] = {}
        pending = list(range(len(keys)))
        stored = self._stored_of(version)
        places: Entries | None = None
        for entry in reversed(version.manifest.segments):
            if not pending:
                break
            segment: SegmentKeys | None
            if stored.directory is None or not stored.covers(entry) or entry.name in version.directories:
                segment = self._keys_of(version, entry)
            else:
                places = stored.directory.find(hashes[pending]) if places is None else places
                segment = stored.directory.segment_keys(entry, places)
            if segment is None:
                continue
            wanted = [keys[at] for at in pending]
            here = matches(self._store, version.place, segment, wanted, hashes[pending], count, limit)
            for at, records in here.items():
                found.setdefault(wanted[at], []).extend(records)
            pending = [at for at in pending if len(found.get(keys[at], ())) < count]
        return {key: records[:count] for key, records in found.items()}

    def _keys_of(self, version: _Version, entry: SegmentEntry) -> SegmentKeys:
        known = version.directories.get(entry.name)
        if known is None:
            known = version.directories[entry.name] = SegmentKeys.read(self._store, version.place, entry)
        return known

    def _stored_of(self, version: _Version) -> _Stored:
        """Return the directory beside the log. It is looked for again when a pass has made other segments."""
        number, manifest = version.place.partition, version.manifest
        known = self._stored.get(number)
        if known is not None and known.version >= manifest.version:
            return known
        if known is None or not _of_passes(manifest, known.directory) <= known.missing:
            directory = StoredDirectory.newest(self._store, version.place, manifest.log_id)
            known = _Stored(manifest.version, directory, _of_passes(manifest, directory))
        self._stored[number] = known = replace(known, version=manifest.version)
        return known

    def _retried(self, number: int, work: Callable[[_Version], T]) -> T:
        """Do work on the current version of a partition, and on a newer one if its objects were deleted."""
        while True:
            version = self._versions[number]
            try:
                return work(version)
            except DirectoryReplaced:
                self._stored.pop(number, None)
            except ObjectNotFound as error:
                self._advance(number, newer(version.place, lambda: self._load(number), error))

    def _advance(self, number: int, manifest: Manifest) -> None:
        """Go to a version of a partition unless a newer one is known."""
        with self._lock:
            known = self._versions.get(number)
            directories: dict[str, SegmentKeys] = {}
            if known is not None:
                if known.manifest.log_id != manifest.log_id:
                    raise LogRecreated(
                        known.place.topic,
                        number,
                        f"the log has another id now, `{manifest.log_id}`, and had `{known.manifest.log_id}`",
                        hint="open the lookup again",
                    )
                if known.manifest.version >= manifest.version:
                    return
                names = {entry.name for entry in manifest.segments}
                held = list(known.directories.items())
                directories = {name: each for name, each in held if name in names}
            self._versions = {**self._versions, number: _Version(self._place(number), manifest, directories)}
