"""Nothing superseded below the first dirty offset, and nothing left under a marked tombstone.

Below `first_dirty_offset` a key may occur once. A tombstone that a pass has marked says that no older record of its
key is left *anywhere* in the log; readers rely on it when the tombstone goes, so an older one is damage at any offset.

Keys come from index rows. A log with more rows than fit the budget is walked several times, each time for the keys of
one hash bucket, so that memory stays bounded.
"""

from __future__ import annotations

import hashlib
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from keyfold.errors import Corrupt
from keyfold.log.index import read_index
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.names import Place
from keyfold.read.findings import REPORT, Finding, Kind
from keyfold.store.api import ObjectStore

ROWS_AT_ONCE: Final = 4_000_000
MAX_FINDINGS: Final = 20

_COLUMNS: Final = ("offset", "key", "is_tombstone", "cleaned_epoch")
_LONG_KEY_BYTES: Final = 32
KeyRow = tuple[int, bytes, bool, int | None]


def check_keys(
    store: ObjectStore, place: Place, manifest: Manifest, *, rows_at_once: int = ROWS_AT_ONCE
) -> Iterator[Finding]:
    """Findings about keys; at most `MAX_FINDINGS` by name, then one that counts the rest.

    Segments whose index cannot be read are passed over: they have a finding of their own. Raises `ObjectNotFound`.
    """
    entries = _entries_to_walk(manifest)
    buckets = -(-sum(e.record_count for e in entries) // rows_at_once)
    more = 0
    for bucket in range(buckets):
        for number, finding in enumerate(_walk(store, place, manifest, entries, (bucket, buckets))):
            if number < MAX_FINDINGS:
                yield finding
            else:
                more += 1
    if more:
        what = f"{more} more superseded records below first_dirty_offset {manifest.first_dirty_offset}"
        yield Finding(Kind.RECORD_SUPERSEDED, place.manifest_key, what, to_do=REPORT)


def _entries_to_walk(manifest: Manifest) -> Sequence[SegmentEntry]:
    """All segments up to the last one about whose rows something is promised."""
    clean = [e.base_offset < manifest.first_dirty_offset or bool(e.cleaned_epochs) for e in manifest.segments]
    return manifest.segments[: max((i + 1 for i, promised in enumerate(clean) if promised), default=0)]


def _walk(
    store: ObjectStore,
    place: Place,
    manifest: Manifest,
    entries: Sequence[SegmentEntry],
    bucket: tuple[int, int],
) -> Iterator[Finding]:
    last: dict[bytes, int] = {}
    for entry in entries:
        for offset, key, is_tombstone, mark in _rows(store, place, entry, bucket):
            short = _short(key)
            older = last.get(short)
            last[short] = offset
            if older is None:
                continue
            if offset < manifest.first_dirty_offset or mark is not None:
                name = _name_at(manifest, older)
                yield _finding(place.key(name), manifest, key, older, offset, is_tombstone=is_tombstone)


def _rows(store: ObjectStore, place: Place, entry: SegmentEntry, bucket: tuple[int, int]) -> Iterator[KeyRow]:
    try:
        rows = read_index(store, place, entry, columns=_COLUMNS).rows
    except Corrupt:
        return
    number, of = bucket
    for row in zip(*(rows.column(name).to_pylist() for name in _COLUMNS), strict=True):
        if row[1] is not None and (of == 1 or zlib.crc32(row[1]) % of == number):
            yield row


def _short(key: bytes) -> bytes:
    """A key to compare by: itself, or a digest that is longer than any key that stands for itself."""
    return key if len(key) <= _LONG_KEY_BYTES else hashlib.blake2b(key, digest_size=_LONG_KEY_BYTES + 1).digest()


def _name_at(manifest: Manifest, offset: int) -> str:
    return manifest.segments[bisect_right(manifest.segments, offset, key=lambda s: s.base_offset) - 1].name


def _finding(object_key: str, manifest: Manifest, key: bytes, older: int, newer: int, *, is_tombstone: bool) -> Finding:
    clean = f"first_dirty_offset is {manifest.first_dirty_offset}"
    if is_tombstone:
        what = f"key {key!r} is here although its tombstone at offset {newer} was cleaned ({clean})"
        lost = "nothing yet; the deleted key comes back when the tombstone goes"
        return Finding(Kind.KEY_RESURRECTED, object_key, what, lost, REPORT, offset=older)
    what = f"key {key!r} has a newer record at offset {newer}, and both are clean ({clean})"
    return Finding(Kind.RECORD_SUPERSEDED, object_key, what, to_do=REPORT, offset=older)
