"""Real manifests, numbered.

Exploring millions of states with real `Manifest` values would be slow, and so would be a second implementation of the
edits. So the model's states hold small numbers, and this book holds what they stand for: every distinct manifest,
object, entry and replacement once. A transition of the manifest is computed by the real code (`Committer._next`, which
runs `stamped`, the edit and `with_commit_id`) when it is met for the first time, and looked up ever after.

What decides nothing is made canonical, so that states which differ only in it are one: the version number (a version
is known by its place in the chain, see `protocol`), the version in `replaced`, and the time of an append.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any

from keyfold.errors import CommitRefused
from keyfold.log import edits
from keyfold.log.commit import Committer, Pinned
from keyfold.log.edits import Edit, Replacement
from keyfold.log.manifest import Manifest, SegmentEntry, faults
from keyfold.log.names import ObjectName, Place, Role
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.memory import MemoryStore
from tests.model import truth

GONE = 0
"""The number that stands for "there is no manifest"."""

LEASE_END_MS = 1 << 40
"""Whether a lease has run out is a condition of the model, not a time."""

PLACE = Place("topics", "t", 0)
NOBODY = ""

Row = tuple[int, int]
"""(offset, epoch of the pass that marked it, or 0)."""

EditKey = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Blob:
    """An object: its name and what its bytes mean. A segment's rows have no marks, an index's have."""

    name: str
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        return f"{short(self.name)}{list(self.rows) if '_index' in self.name else [o for o, _ in self.rows]}"


def short(name: str) -> str:
    """A name without its zeros: base, epoch, role and attempt."""
    base, epoch, rest = name.removeprefix("_index/").split("-")
    kind = "index" if name.startswith("_index/") else "segment"
    attempt = rest[1:].split(".", maxsplit=1)[0].lstrip("0") or "0"
    return f"{kind} {int(base)}-{int(epoch)}-{rest[0]}{attempt}"


class _Dealt(Random):
    """The commit id that the committer draws is the one that it is dealt."""

    dealt = 0

    def getrandbits(self, k: int, /) -> int:
        return self.dealt


class Numbers:
    """Things by number, and numbers by thing."""

    def __init__(self) -> None:
        self.things: list[object] = [None, None]
        self.numbers: dict[Hashable, int] = {}

    def of(self, key: Hashable, thing: object) -> int:
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.things)
            self.things.append(thing)
        return number


class Book:
    """Everything that the numbers in a state stand for."""

    def __init__(self, kafka: truth.KafkaLog, careless: Callable[[EditKey, Edit], Edit] | None = None) -> None:
        self.kafka = kafka
        self._careless = careless
        self._manifests = Numbers()
        self._blobs = Numbers()
        self._entries = Numbers()
        self._replacements = Numbers()
        self._next: dict[Hashable, int | str] = {}
        self._needs: dict[int, frozenset[int]] = {}
        self._anonymous: dict[tuple[int, Role], int] = {}
        self._random = _Dealt()
        clock = ManualClock()
        self._committer = Committer(MemoryStore(clock=clock), PLACE, RetryPolicy(clock, self._random))
        # Manifests by number: value, (sink's, compactor's) pending commit id (0: nobody's), names it brings
        self.manifest: list[Manifest] = []
        self.commit_ids: list[tuple[int, int]] = []
        fresh = Manifest(PLACE.topic, PLACE.partition, log_id="l", sync_marker=bytes(16))
        self.manifest += [fresh, fresh]  # numbers 0 and 1 are no manifests
        self.commit_ids += [(0, 0), (0, 0)]
        self.fresh = self.add_manifest(fresh)

    # objects

    def add_blob(self, name: ObjectName | str, rows: tuple[Row, ...]) -> int:
        blob = Blob(str(name), rows)
        return self._blobs.of(blob, blob)

    def blob(self, number: int) -> Blob:
        thing = self._blobs.things[number]
        assert isinstance(thing, Blob)
        return thing

    def _blob_of(self, name: str, checksum: bytes) -> int:
        number = int.from_bytes(checksum, "big")
        rows = self.blob(number).rows
        return self.add_blob(name, rows)

    # entries and replacements

    def add_entry(self, entry: SegmentEntry) -> int:
        return self._entries.of(entry, entry)

    def entry(self, number: int) -> SegmentEntry:
        thing = self._entries.things[number]
        assert isinstance(thing, SegmentEntry)
        return thing

    def make_entry(
        self, name: ObjectName, index: ObjectName, rows: tuple[Row, ...], base_offset: int, next_offset: int
    ) -> SegmentEntry:
        """An entry whose checksums are the numbers of the objects' bytes."""
        tombstones = [(o, mark) for o, mark in rows if self._is_tombstone(o)]
        return SegmentEntry(
            name=str(name),
            index_name=str(index),
            base_offset=base_offset,
            last_offset=rows[-1][0],
            next_offset=next_offset,
            record_count=len(rows),
            tombstone_count=len(tombstones),
            unmarked_tombstone_count=sum(1 for _, mark in tombstones if not mark),
            keyless_count=0,
            size_bytes=1,
            index_size_bytes=1,
            min_timestamp=rows[0][0],
            max_timestamp=rows[-1][0],
            appended_at_ms=0,
            checksum=self.add_blob(name, tuple((o, 0) for o, _ in rows)).to_bytes(32, "big"),
            index_checksum=self.add_blob(index, rows).to_bytes(32, "big"),
            cleaned_epochs=tuple(sorted({mark for _, mark in tombstones if mark})),
        )

    @staticmethod
    def replace_entry(entry: SegmentEntry, **changed: Any) -> SegmentEntry:
        """The same entry with other fields."""
        return replace(entry, **changed)

    def _is_tombstone(self, offset: int) -> bool:
        record = self.kafka[offset]
        return record is not None and record[1] is None

    def rows(self, entry: SegmentEntry) -> tuple[Row, ...]:
        """The rows that the manifest means: those of the index, with marks."""
        return self.blob(int.from_bytes(entry.index_checksum, "big")).rows

    def blobs_of(self, entry: SegmentEntry) -> tuple[int, int]:
        """The segment and the index that an entry means."""
        return self._blob_of(entry.name, entry.checksum), self._blob_of(entry.index_name, entry.index_checksum)

    def add_replacement(self, replacement: Replacement) -> int:
        return self._replacements.of(replacement, replacement)

    def replacement(self, number: int) -> Replacement:
        thing = self._replacements.things[number]
        assert isinstance(thing, Replacement)
        return thing

    # manifests

    def add_manifest(self, manifest: Manifest) -> int:
        manifest = replace(
            manifest,
            version=1,
            segments=tuple(replace(s, appended_at_ms=0) if s.appended_at_ms else s for s in manifest.segments),
            replaced=tuple(replace(r, version=1) if r.version != 1 else r for r in manifest.replaced),
            compactor=replace(
                manifest.compactor, lease_until_ms=LEASE_END_MS if manifest.compactor.lease_until_ms else 0
            ),
        )
        m = manifest
        key = (
            *(m.last_epoch, m.sink, m.compactor, m.log_start_offset, m.next_offset, m.first_dirty_offset),
            *(m.purged_to, m.purged_epoch, m.last_pass_epoch, m.passes, m.segments, m.replaced),
        )
        number = self._manifests.of(key, manifest)
        if number == len(self.manifest):
            self.manifest.append(manifest)
            self.commit_ids.append((int(m.sink.commit_id or "0", 16), int(m.compactor.commit_id or "0", 16)))
        return number

    def next(self, manifest: int, seen_ms: int, role: Role, who: int, key: EditKey) -> int | str:
        """The manifest that this edit's commit by `who` would make, or the name of the error that refuses it."""
        known = self._next.get((manifest, seen_ms, role, who, key))
        if known is None:
            known = self._next[manifest, seen_ms, role, who, key] = self._apply(manifest, seen_ms, role, who, key)
        return known

    def _apply(self, number: int, seen_ms: int, role: Role, who: int, key: EditKey) -> int | str:
        manifest = self.manifest[number]
        if key[0] == "claim" and key[-1]:  # the lease has run out meanwhile
            manifest = replace(manifest, compactor=replace(manifest.compactor, lease_until_ms=0))
        edit = self.edit(key)
        if self._careless is not None:
            edit = self._careless(key, edit)
        self._random.dealt = who
        try:
            after = self._committer._next(Pinned(manifest, "etag", seen_ms), edit, role)
        except CommitRefused as error:
            return type(error).__name__
        if key[0] == "expire":
            self._check_expired(manifest, after, key)
        return self.add_manifest(after)

    def _check_expired(self, before: Manifest, after: Manifest, key: EditKey) -> None:
        """Retention takes the records that it has judged, and no other."""
        judged = {o for number in key[2:] if isinstance(number, int) for o, _ in self.rows(self.entry(number))}
        here = {o for s in after.segments for o, _ in self.rows(s)}
        gone = {o for s in before.segments for o, _ in self.rows(s)} - here
        if gone - judged:
            raise Violation(f"{sorted(gone - judged)} expired, and nobody had judged them", "a commit of retention")

    def edit(self, key: EditKey) -> Edit:
        """The real edit for a key."""
        match key:
            case ("claim", Role() as role, int(expected), str(holder), bool()):
                return edits.claim(role, expected, lease_ms=LEASE_END_MS if holder else 0, holder=holder)
            case ("append", int(epoch), int(entry), int(base), int(end)):
                return edits.append(epoch, self.entry(entry) if entry else None, base_offset=base, next_offset=end)
            case ("replace", int(epoch), int(replacement), int(), bool()):
                return edits.replace_segments(epoch, self.replacement(replacement))
            case ("expire", int(epoch), *entries):
                return edits.expire(epoch, [self.entry(number) for number in entries if isinstance(number, int)])
            case ("forget", int(epoch), frozenset() as names):
                return edits.forget(epoch, names)
        raise AssertionError(key)

    def anonymous(self, number: int, role: Role) -> int:
        """The same manifest with a commit id that no writer waits for."""
        known = self._anonymous.get((number, role))
        if known is None:
            known = self._anonymous[number, role] = self.add_manifest(
                edits.with_commit_id(self.manifest[number], role, NOBODY)
            )
        return known

    # invariants of one manifest

    def needs(self, number: int) -> frozenset[int]:
        """The objects that a manifest names, with the bytes that it means. Raises `Violation` if it is wrong."""
        known = self._needs.get(number)
        if known is None:
            manifest = self.manifest[number]
            self._check(manifest)
            known = frozenset(b for s in manifest.segments for b in self.blobs_of(s))
            self._needs[number] = known
        return known

    def _check(self, manifest: Manifest) -> None:
        wrong = faults(manifest)
        if wrong:
            raise Violation(wrong[0])
        offsets: list[int] = []
        for entry in manifest.segments:
            rows = [o for o, _ in self.rows(entry)]
            data = self.blob(int.from_bytes(entry.checksum, "big")).rows
            if rows != [o for o, _ in data]:
                raise Violation(f"index and segment of {short(entry.name)} differ")
            if rows[0] < entry.base_offset or rows[-1] != entry.last_offset:
                raise Violation(f"{short(entry.name)}: records outside its range")
            offsets += rows
        if any(a >= b for a, b in pairwise(offsets)):
            raise Violation(f"a record is there twice or out of order: {offsets}")
        mine = truth.fold(self.kafka, offsets)
        log_start = manifest.log_start_offset
        kafkas = truth.fold(self.kafka, truth.offsets_between(self.kafka, log_start, manifest.next_offset))
        if mine != kafkas:
            raise Violation(f"the log folds to {dict(mine)}, Kafka's to {dict(kafkas)}: a record lost or a key revived")
        old = truth.superseded(self.kafka, offsets, manifest.first_dirty_offset)
        if old:
            raise Violation(
                f"superseded {old} below first_dirty_offset {manifest.first_dirty_offset}: never found again"
            )


class Violation(Exception):
    """A state that must not be, or a step (`step` says which) that must not be possible."""

    def __init__(self, message: str, step: str = "") -> None:
        super().__init__(message)
        self.step = step
