"""Nothing superseded below the first dirty offset, nothing under a marked tombstone, and nothing gone without reason.

    promised    below `first_dirty_offset` a key occurs once. A tombstone that a pass has marked says that no older
                record of its key is left *anywhere* in the log; readers rely on it when the tombstone goes
    replaced    objects that an earlier version named, and that still exist, tell what the log had. Their newest
                record of a key must be there still, or a newer one; a tombstone may have been purged, up to
                `purged_to`, where nothing that it deleted is left. So for as long as the sources of a pass are there,
                the pass is proved against them

Keys come from index rows, as hashes (`verify_hashes`); what speaks against the log is proved by the keys themselves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from keyfold.errors import Corrupt, ObjectNotFound
from keyfold.log.avro import SegmentDamaged
from keyfold.log.index import Index, read_index
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.names import Place, parse_name
from keyfold.log.record_decoder import read_records
from keyfold.store.api import ObjectStore
from keyfold.verify.findings import MAX_ALIKE, REPORT, Finding, FindingKind
from keyfold.verify.key_hashes import IN_LOG, MARKED, REPLACED, TOMBSTONE, Flags, Grouped, HashedRows, row_flags

_COLUMNS = ("offset", "key", "is_tombstone")
_PROVED_AT_MOST = 1000


@dataclass(frozen=True, slots=True)
class Suspect:
    """A record that should not be there any more (`newer` says why), or that should be (`newer` is -1).

    `flags` are those of the newer one, where there is one.
    """

    offset: int
    newer: int
    flags: int


@dataclass(slots=True)
class Suspects:
    """Some suspects, and how many there are."""

    some: list[Suspect] = field(default_factory=list)
    count: int = 0

    def add(self, offsets: npt.NDArray[np.int64], newer: npt.NDArray[np.int64], flags: Flags) -> None:
        """Take the first ones, and count all."""
        room = max(0, _PROVED_AT_MOST - len(self.some))
        columns = (offsets[:room].tolist(), newer[:room].tolist(), flags[:room].tolist())
        self.some += [Suspect(*row) for row in zip(*columns, strict=True)]
        self.count += len(offsets)

    def first(self, most: int) -> list[Suspect]:
        """The remembered rows by offset, up to a maximum."""
        return sorted(self.some, key=lambda s: s.offset)[:most]


@dataclass(frozen=True, slots=True)
class Promises:
    """What a manifest says about keys."""

    first_dirty_offset: int
    purged_to: int


@dataclass(frozen=True, slots=True)
class Suspected:
    """Records that are there and should not be, and records that should be there and are not.

    `outlived`: values that are there although what went before them is gone.
    """

    twice: Suspects = field(default_factory=Suspects)
    gone: Suspects = field(default_factory=Suspects)
    outlived: Suspects = field(default_factory=Suspects)

    def join(self, other: Suspected) -> None:
        """Take those of another part of the keys."""
        pairs = ((self.twice, other.twice), (self.gone, other.gone), (self.outlived, other.outlived))
        for mine, theirs in pairs:
            mine.some += theirs.some[: max(0, _PROVED_AT_MOST - len(mine.some))]
            mine.count += theirs.count


def add_replaced(store: ObjectStore, place: Place, log_start: int, name: str, rows: HashedRows) -> None:
    """Add what is left of a replaced index. One that is gone or damaged says nothing."""
    index = _replaced_index(store, place, name)
    if index is not None:
        offsets = index.ints("offset").astype(np.int64)
        here = offsets >= log_start
        flags = row_flags(index, REPLACED, with_marks=False)
        keys = index.rows.column("key").combine_chunks()
        rows.add(keys.filter(here), offsets[here], flags[here])


def _replaced_index(store: ObjectStore, place: Place, name: str) -> Index | None:
    try:
        return Index.parse(store.get(place.key(name)).data, columns=_COLUMNS)
    except (ObjectNotFound, SegmentDamaged):
        return None


def replaced_indexes(manifest: Manifest) -> list[str]:
    """Names of the indexes among the replaced objects."""
    names = [(r.name, parse_name(r.name)) for r in manifest.replaced]
    return [name for name, parsed in names if parsed is not None and parsed.is_index]


def suspects_of(rows: HashedRows, promises: Promises) -> Suspected:
    """What the rows that were collected speak of. Candidates: equal hashes are not equal keys yet."""
    found = Suspected()
    for group in rows.groups():
        _find_twice(group, promises, found.twice)
        _find_gone(group, promises, found)
    return found


def tell(
    store: ObjectStore, place: Place, manifest: Manifest, suspected: Suspected, *, knows_all: bool
) -> Iterator[Finding]:
    """Findings about those suspects that keys prove. Raises `ObjectNotFound` where a segment has gone since.

    Whether something is gone without reason can be said only where the keys of the whole log are known (`knows_all`).
    """
    keys = _Keys(store, place, manifest)
    yield from _told_twice(keys, suspected.twice)
    if knows_all:
        yield from _told_gone(keys, suspected.gone)
        yield from _told_outlived(keys, suspected.outlived)


def _find_twice(group: Grouped, promises: Promises, suspects: Suspects) -> None:
    """Pairs of neighbours, both in the log, of which the newer one says that the older one is not there."""
    here = np.flatnonzero(group.flags & IN_LOG)
    older, newer = here[:-1], here[1:]
    promised = (group.offset[newer] < promises.first_dirty_offset) | (group.flags[newer] & MARKED != 0)
    found = promised & (group.hash[older] == group.hash[newer])
    suspects.add(group.offset[older[found]], group.offset[newer[found]], group.flags[newer[found]])


def _find_gone(group: Grouped, promises: Promises, suspected: Suspected) -> None:
    """The newest record of a key that the log has had and has no more, and that nothing can have taken away.

    A tombstone up to `purged_to` may have been purged, and may have taken an older value with it before. But then no
    older value can be there: it is purged only when none is left.
    """
    gone = ~group.followed() & (group.flags & (IN_LOG | REPLACED) == REPLACED)
    found = gone & (group.offset > promises.purged_to)
    suspected.gone.add(group.offset[found], np.full(int(found.sum()), -1), group.flags[found])
    older = group.value_before()
    found = gone & (group.offset <= promises.purged_to) & (older >= 0)
    suspected.outlived.add(group.offset[older[found]], group.offset[found], group.flags[found])


class _Keys:
    """The key at an offset, from indexes; the last one that was read is kept."""

    def __init__(self, store: ObjectStore, place: Place, manifest: Manifest) -> None:
        self._store = store
        self.place = place
        self.manifest = manifest
        self._entry: SegmentEntry | None = None
        self._keys: dict[int, bytes | None] = {}

    def entry_at(self, offset: int) -> SegmentEntry:
        at = bisect_right(self.manifest.segments, offset, key=lambda s: s.base_offset) - 1
        return self.manifest.segments[at]

    def at(self, offset: int) -> bytes | None:
        entry = self.entry_at(offset)
        if entry is not self._entry:
            self._keys = dict(self._read(entry))
            self._entry = entry
        return self._keys.get(offset)

    def _read(self, entry: SegmentEntry) -> Iterator[tuple[int, bytes | None]]:
        try:
            index = read_index(self._store, self.place, entry, columns=_COLUMNS)
        except (Corrupt, ObjectNotFound):  # it has a finding of its own; the segment has the keys too
            with suppress(SegmentDamaged):
                yield from ((r.offset, r.key) for r in read_records(self._store.get(self.place.key(entry.name)).data))
        else:
            yield from zip(index.ints("offset").tolist(), index.rows.column("key").to_pylist(), strict=True)

    def replaced(self, wanted: set[int]) -> dict[int, tuple[bytes, str]]:
        """Keys of records that only replaced objects have, and the name of one of those."""
        found: dict[int, tuple[bytes, str]] = {}
        for name in replaced_indexes(self.manifest):
            index = _replaced_index(self._store, self.place, name)
            if index is None:
                continue
            for offset, key in zip(index.ints("offset").tolist(), index.rows.column("key").to_pylist(), strict=True):
                if offset in wanted and key is not None:
                    found[offset] = key, name
        return found


def _told_twice(keys: _Keys, suspects: Suspects) -> Iterator[Finding]:
    proved = 0
    for suspect in suspects.first(_PROVED_AT_MOST):
        key = keys.at(suspect.offset)
        if key is None or key != keys.at(suspect.newer):
            continue  # another key of the same hash
        proved += 1
        if proved <= MAX_ALIKE:
            yield _twice(keys, key, suspect)
    more = suspects.count - len(suspects.some) + max(0, proved - MAX_ALIKE)
    if more:
        what = f"{more} more superseded records below first_dirty_offset {keys.manifest.first_dirty_offset}"
        yield Finding(FindingKind.RECORD_SUPERSEDED, keys.place.manifest_key, what, to_do=REPORT)


def _twice(keys: _Keys, key: bytes, suspect: Suspect) -> Finding:
    clean = f"first_dirty_offset is {keys.manifest.first_dirty_offset}"
    name = keys.place.key(keys.entry_at(suspect.offset).name)
    if suspect.flags & TOMBSTONE:
        what = f"a record of key {key!r} exists although its tombstone at offset {suspect.newer} is clean ({clean})"
        lost = "nothing yet; the deleted key reappears when the tombstone is removed"
        return Finding(FindingKind.KEY_RESURRECTED, name, what, lost, REPORT, offset=suspect.offset)
    what = f"key {key!r} has a newer record at offset {suspect.newer}, and both records are clean ({clean})"
    return Finding(FindingKind.RECORD_SUPERSEDED, name, what, to_do=REPORT, offset=suspect.offset)


def _told_gone(keys: _Keys, suspects: Suspects) -> Iterator[Finding]:
    if not suspects.count:
        return
    known = keys.replaced({s.offset for s in suspects.some})
    for suspect in suspects.first(MAX_ALIKE):
        if suspect.offset not in known:
            continue  # collected meanwhile
        key, name = known[suspect.offset]
        where = keys.entry_at(suspect.offset).name if keys.manifest.segments else ""
        object_key = keys.place.key(where) if where else keys.place.manifest_key
        since = f"the replaced object {name} has this record, but the log has no newer record of key {key!r}"
        to_do = f"stop the compactor so that it does not delete {name}, and report this"
        if suspect.flags & TOMBSTONE:
            lost = f"the tombstone of key {key!r}: readers that have not read it keep the deleted key"
            yield Finding(FindingKind.TOMBSTONE_LOST, object_key, since, lost, to_do, offset=suspect.offset)
        else:
            lost = f"the record of key {key!r}"
            yield Finding(FindingKind.RECORD_LOST, object_key, since, lost, to_do, offset=suspect.offset)
    more = suspects.count - min(len(suspects.some), MAX_ALIKE)
    if more > 0:
        what = f"{more} more records of replaced objects"
        yield Finding(FindingKind.RECORD_LOST, keys.place.manifest_key, what, what, REPORT)


def _told_outlived(keys: _Keys, suspects: Suspects) -> Iterator[Finding]:
    if not suspects.count:
        return
    known = keys.replaced({s.newer for s in suspects.some})
    proved = 0
    for suspect in suspects.first(_PROVED_AT_MOST):
        key, name = known.get(suspect.newer, (None, ""))
        if key is None or key != keys.at(suspect.offset):
            continue  # collected meanwhile, or another key of the same hash
        proved += 1
        if proved <= MAX_ALIKE:
            yield _outlived(keys, key, name, suspect)
    more = suspects.count - len(suspects.some) + max(0, proved - MAX_ALIKE)
    if more:
        what = f"{more} more values whose newer records are only in replaced objects"
        yield Finding(FindingKind.KEY_RESURRECTED, keys.place.manifest_key, what, what, REPORT)


def _outlived(keys: _Keys, key: bytes, name: str, suspect: Suspect) -> Finding:
    object_key = keys.place.key(keys.entry_at(suspect.offset).name)
    to_do = f"stop the compactor so that it does not delete {name}, and report this"
    newer = "the tombstone" if suspect.flags & TOMBSTONE else "the record"
    what = f"a record of key {key!r} exists, but {newer} at offset {suspect.newer}, which {name} has, is not in the log"
    lost = f"{newer} of key {key!r} at offset {suspect.newer}: an older value is visible again"
    kind = FindingKind.KEY_RESURRECTED if suspect.flags & TOMBSTONE else FindingKind.RECORD_LOST
    return Finding(kind, object_key, what, lost, to_do, offset=suspect.offset)
