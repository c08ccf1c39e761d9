"""The directory of keys as an object, so that a new process finds a key with a few small reads.

    <topics.dir>/_keys/<topic>/partition=<p>/<version:020>-<attempt:016>.keys

`version` is the manifest's version that it was made of. It covers the segments that it names, whatever a later version
consists of: the bytes of a segment never change. Segments that it does not name are looked up in their indexes. So an
old directory is slower and never wrong, and you may delete it.

    chunks     entries in the order of their hashes: of each chunk all hashes (uint32), then the numbers of the segments
               (uint16), then the places (uint64). A chunk has the hashes with the same first `bits` bits
    tables     of each segment: zstd of int64, the columns of its block table and the size of each block without
               compression; positions and first offsets as differences to the block before
    footer     JSON: format, log_id, version, bits; segments (name, codec, sync, record_count, position and length of
               the table, its CRC-32); chunks, the base64 of zstd of int64: their lengths, then their CRC-32
    tail       the footer's length and CRC-32 (uint32), and MAGIC

All numbers are little-endian. A hash only says where to look: see `keyfold.read.key_directory`, and `key_hash` for the
hash, which is part of this format. That a key is absent is believed because of the checksums of footer and chunk.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from keyfold.errors import Corrupt, ObjectNotFound, StoreError
from keyfold.log.arrow_numbers import Ints
from keyfold.log.avro import SYNC_BYTES
from keyfold.log.codec import CODECS, DecompressionFailed, open_codec
from keyfold.log.index import GAP_BYTES, BlockTable
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.names import Place
from keyfold.log.objects import ObjectStream, Retries
from keyfold.read.blocks import BlockSource
from keyfold.read.key_directory import SegmentKeys
from keyfold.read.key_hash import HASHES
from keyfold.store.api import ObjectInfo, ObjectStore

MAGIC: Final = b"KEYFOLD1"
FORMAT: Final = 1
SUFFIX: Final = ".keys"

_TAIL: Final = Struct("<II8s")
_FIRST_READ_BYTES: Final = 32 * 1024
_CHUNK_ENTRIES: Final = 4096
_ENTRY_BYTES: Final = 14
_SEGMENTS_MAX: Final = 1 << 16
_COLUMNS: Final = 6
_TABLE_RATIO: Final = 64
_UNPACKED_BYTES_MIN: Final = 1024 * 1024
_READ_BYTES: Final = 8 * 1024 * 1024
_BITS_MAX: Final = 20
_TRIES: Final = 5
_CHUNK_BYTES_MAX: Final = 1 << 40
_HASH_BITS: Final = 32

ROUND_RECORDS: Final = 8_000_000
"""New entries that `write` holds at once: about 200 MB. For more it reads the indexes several times."""


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries in the order of hash, segment and place."""

    hashes: npt.NDArray[np.uint32]
    segments: npt.NDArray[np.uint16]
    places: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.hashes)

    def between(self, low: int, high: int) -> Entries:
        """Return the entries with a hash in `[low, high)`."""
        first = int(np.searchsorted(self.hashes, np.uint32(low)))
        end = len(self) if high >= HASHES else int(np.searchsorted(self.hashes, np.uint32(high)))
        return Entries(self.hashes[first:end], self.segments[first:end], self.places[first:end])

    def of(self, hashes: npt.NDArray[np.uint32]) -> Entries:
        """Return the entries with one of `hashes`, which ascend."""
        first, end = np.searchsorted(self.hashes, hashes), np.searchsorted(self.hashes, hashes, "right")
        rows = np.concatenate([np.zeros(0, np.int64), *map(np.arange, first, end)])
        return Entries(self.hashes[rows], self.segments[rows], self.places[rows])

    def encode(self) -> bytes:
        """Return a chunk."""
        return self.hashes.astype("<u4").tobytes() + self.segments.astype("<u2").tobytes() + self.places.tobytes()

    @staticmethod
    def decode(data: bytes) -> Entries:
        """Read a chunk, whose length was checked."""
        count = len(data) // _ENTRY_BYTES
        hashes = np.frombuffer(data, "<u4", count)
        places = np.frombuffer(data, "<u8", count, 6 * count)
        return Entries(hashes, np.frombuffer(data, "<u2", count, 4 * count), places)

    @staticmethod
    def joined(parts: Sequence[Entries]) -> Entries:
        """Return the entries of several, in order."""
        if not parts:
            return Entries(np.zeros(0, np.uint32), np.zeros(0, np.uint16), np.zeros(0, np.uint64))
        hashes = np.concatenate([each.hashes for each in parts])
        segments = np.concatenate([each.segments for each in parts])
        places = np.concatenate([each.places for each in parts])
        order = np.lexsort((places, segments, hashes))
        return Entries(hashes[order], segments[order], places[order])


@dataclass(frozen=True, slots=True)
class _Segment:
    """A segment that a directory names, and where its block table is."""

    number: int
    codec: str
    sync_marker: bytes
    record_count: int
    position: int
    length: int
    crc: int


class DirectoryDamaged(Corrupt):
    """A directory cannot be read. The log is not affected."""


class DirectoryReplaced(Exception):
    """A directory was deleted. There may be a newer one."""


@dataclass(slots=True)
class StoredDirectory:
    """A directory that is read as far as it is needed. Thread-safe: reading a part twice does no harm."""

    store: ObjectStore
    place: Place
    key: str
    log_id: str
    version: int
    bits: int
    segments: Mapping[str, _Segment]
    starts: Ints
    crcs: Ints
    _chunks: dict[int, Entries] = field(default_factory=dict)
    _sources: dict[str, tuple[BlockSource, Ints]] = field(default_factory=dict)

    @staticmethod
    def newest(store: ObjectStore, place: Place, log_id: str) -> StoredDirectory | None:
        """Open the newest directory of a log; None if there is none. Raises `Corrupt`, and the errors of the store.

        Those of a log that was here before, or in a format of a later keyfold, are passed over.
        """
        for _ in range(_TRIES):
            with suppress(DirectoryReplaced):
                found = (opened(store, place, info) for info in reversed(directories(store, place)))
                return next((each for each in found if each is not None and each.log_id == log_id), None)
        return None

    @property
    def size_bytes(self) -> int:
        """About the memory that it takes."""
        chunks = sum(_ENTRY_BYTES * len(each) for each in list(self._chunks.values()))
        tables = sum(8 * _COLUMNS * len(starts) for _, starts in list(self._sources.values()))
        return chunks + tables + self.starts.nbytes + self.crcs.nbytes

    def find(self, hashes: npt.NDArray[np.int64]) -> Entries:
        """Return the entries of all segments with these hashes; the chunks are kept.

        Raises `Corrupt`, `DirectoryReplaced`, and the errors of the store.
        """
        wanted = np.unique(hashes).astype(np.uint32)
        chunks = wanted >> np.uint64(_HASH_BITS - self.bits)
        numbers = sorted(set(chunks.tolist()))
        self._fetch([number for number in numbers if number not in self._chunks])
        return Entries.joined([self._chunks[number].of(wanted[chunks == number]) for number in numbers])

    def segment_keys(self, entry: SegmentEntry, found: Entries) -> SegmentKeys | None:
        """Return the entries of one segment among `found`; None if there are none. Raises as `find`.

        The directory must name the segment.
        """
        keep = found.segments == self.segments[entry.name].number
        if not keep.any():
            return None
        source, starts = self._source(entry)
        places = found.places[keep]
        if (places >= starts[-1]).any():
            raise damaged(self.place, self.key, f"has places after the end of the segment `{entry.name}`")
        return SegmentKeys(source, found.hashes[keep], places, starts, self.key)

    def load(self, entries: Sequence[SegmentEntry]) -> None:
        """Read all chunks and the tables of segments, so that each lookup is one request. Raises as `find`."""
        self._fetch([number for number in range(1 << self.bits) if number not in self._chunks])
        for entry in entries:
            self._source(entry)

    def between(self, low: int, high: int) -> Entries:
        """Return the entries with hashes in `[low, high)`; the chunks are not kept. Raises as `find`."""
        width = 1 << (_HASH_BITS - self.bits)
        parts = self._read(low // width, -(-high // width))
        return Entries.joined([part.between(low, high) for _, part in parts])

    def _fetch(self, numbers: Sequence[int]) -> None:
        """Read chunks, those near to each other with one request."""
        at = 0
        while at < len(numbers):
            end = at + 1
            while end < len(numbers) and self._is_near(numbers[at], numbers[end - 1], numbers[end]):
                end += 1
            self._chunks.update(self._read(numbers[at], numbers[end - 1] + 1))
            at = end

    def _is_near(self, first: int, last: int, number: int) -> bool:
        gap_bytes = self.starts[number] - self.starts[last + 1]
        return bool(gap_bytes <= GAP_BYTES and self.starts[number + 1] - self.starts[first] <= _READ_BYTES)

    def _read(self, first: int, end: int) -> Iterator[tuple[int, Entries]]:
        """Read the chunks `[first, end)` with one request."""
        start = int(self.starts[first])
        data = _range(self.store, self.place, self.key, start, int(self.starts[end]) - start)
        for number in range(first, end):
            chunk = data[int(self.starts[number]) - start : int(self.starts[number + 1]) - start]
            if crc32(chunk) != self.crcs[number] or len(chunk) % _ENTRY_BYTES:
                raise damaged(self.place, self.key, f"has a chunk {number} with another CRC-32 than its footer says")
            yield number, Entries.decode(chunk)

    def _source(self, entry: SegmentEntry) -> tuple[BlockSource, Ints]:
        known = self._sources.get(entry.name)
        if known is None:
            segment = self.segments[entry.name]
            data = _range(self.store, self.place, self.key, segment.position, segment.length)
            if crc32(data) != segment.crc or segment.record_count != entry.record_count:
                raise damaged(self.place, self.key, f"the block table of `{entry.name}` is not that of the segment")
            blocks, starts = _decode_table(self.place, self.key, data)
            source = BlockSource(entry, blocks, segment.codec, segment.sync_marker)
            known = self._sources[entry.name] = (source, starts)
        return known


def directories(store: ObjectStore, place: Place) -> list[ObjectInfo]:
    """Return the directories of a partition, the oldest first."""
    return [info for info in store.list(place.key_directories) if info.key.endswith(SUFFIX)]


def damaged(place: Place, key: str, message: str) -> DirectoryDamaged:
    """Return the error of a directory that cannot be used."""
    hint = "delete the object: lookups then read the indexes, and the compactor makes a new one"
    return DirectoryDamaged(place.topic, place.partition, f"the directory of keys `{key}` {message}", hint=hint)


def _range(store: ObjectStore, place: Place, key: str, start: int, length: int) -> bytes:
    if not length:
        return b""
    try:
        return store.get_range(key, start, length)
    except ObjectNotFound as error:
        raise DirectoryReplaced(key) from error
    except StoreError as error:
        if type(error) is StoreError:
            raise damaged(place, key, f"is shorter than its footer says: {error}") from error
        raise


def opened(store: ObjectStore, place: Place, info: ObjectInfo) -> StoredDirectory | None:
    """Open a directory; None if its format is newer. Raises `DirectoryDamaged`, `DirectoryReplaced`."""
    if info.size_bytes < _TAIL.size:
        raise damaged(place, info.key, f"has {info.size_bytes} bytes")
    first = max(0, info.size_bytes - _FIRST_READ_BYTES)
    tail = _range(store, place, info.key, first, info.size_bytes - first)
    length, crc, magic = _TAIL.unpack(tail[-_TAIL.size :])
    end = info.size_bytes - _TAIL.size
    if magic != MAGIC or length > end:
        raise damaged(place, info.key, "does not end as a directory of keys does")
    data = tail[-_TAIL.size - length : -_TAIL.size]
    if len(data) < length:
        data = _range(store, place, info.key, end - length, length)
    if crc32(data) != crc:
        raise damaged(place, info.key, "has a footer with another CRC-32 than it says")
    try:
        return _parsed(store, place, info.key, json.loads(data))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, DecompressionFailed) as error:
        raise damaged(place, info.key, f"has a footer that cannot be read: {error!r}") from error


def _parsed(store: ObjectStore, place: Place, key: str, footer: Any) -> StoredDirectory | None:
    if footer["format"] > FORMAT:
        return None
    packed, bits, version = base64.b64decode(footer["chunks"], validate=True), footer["bits"], footer["version"]
    if type(bits) is not int or not 0 <= bits <= _BITS_MAX or type(version) is not int:
        raise ValueError(f"{bits} bits, version {version}")
    raw = open_codec("zstandard").decompress(packed, _UNPACKED_BYTES_MIN + _TABLE_RATIO * len(packed))
    lengths, crcs = np.frombuffer(raw, "<i8").reshape(2, 1 << bits)
    segments = {str(each["name"]): _segment(number, each) for number, each in enumerate(footer["segments"])}
    if (lengths < 0).any() or (lengths > _CHUNK_BYTES_MAX).any():
        raise ValueError("a chunk's length is not one that keyfold writes")
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return StoredDirectory(store, place, key, str(footer["log_id"]), version, bits, segments, starts, crcs)


def _segment(number: int, document: Any) -> _Segment:
    """Read a segment of the footer. Raises `ValueError`, `KeyError`, `TypeError`."""
    sync_marker, codec = bytes.fromhex(document["sync"]), document["codec"]
    numbers = [document[name] for name in ("record_count", "position", "length", "crc")]
    if len(sync_marker) != SYNC_BYTES or codec not in CODECS:
        raise ValueError(f"segment {number} has an unknown codec or marker")
    if not all(type(each) is int and 0 <= each < 1 << 62 for each in numbers):
        raise ValueError(f"segment {number} has a number that is none")
    return _Segment(number, codec, sync_marker, *numbers)


def _encode_table(source: BlockSource, starts: Ints) -> bytes:
    blocks = source.blocks
    columns = [np.diff(blocks.position, prepend=0), blocks.length, blocks.record_count]
    columns += [np.diff(blocks.first_offset, prepend=0), blocks.crc32, np.diff(starts)]
    return open_codec("zstandard").compress(np.concatenate(columns).astype("<i8").tobytes())


def _decode_table(place: Place, key: str, data: bytes) -> tuple[BlockTable, Ints]:
    try:
        raw = open_codec("zstandard").decompress(data, _UNPACKED_BYTES_MIN + _TABLE_RATIO * len(data))
        position, length, count, first, crc, size = np.frombuffer(raw, "<i8").reshape(_COLUMNS, -1)
    except (ValueError, DecompressionFailed) as error:
        raise damaged(place, key, f"has a block table that cannot be read: {error}") from error
    return BlockTable(np.cumsum(position), length, count, np.cumsum(first), crc), np.concatenate([[0], np.cumsum(size)])


@dataclass(frozen=True, slots=True)
class Written:
    """A directory that was written. `read_count` of its segments were read from their indexes."""

    key: str
    record_count: int
    size_bytes: int
    segment_count: int
    read_count: int


def write(
    store: ObjectStore,
    place: Place,
    manifest: Manifest,
    previous: StoredDirectory | None,
    *,
    retries: Retries,
    random: Random,
    round_records: int = ROUND_RECORDS,
) -> Written:
    """Write the directory of a version. The entries of segments that `previous` names are taken from there.

    Memory holds the new entries of one round, and some chunks. Raises `Corrupt`, `ObjectNotFound` if the version's
    objects were deleted, and the errors of the store. Nothing is visible unless the whole object is written.
    """
    entries = manifest.segments[:_SEGMENTS_MAX]
    known = {} if previous is None else previous.segments
    new = [number for number, entry in enumerate(entries) if entry.name not in known]
    numbers = np.zeros(_SEGMENTS_MAX, np.int64) - 1  # of the segments of `previous`
    for number, entry in enumerate(entries):
        if entry.name in known:
            numbers[known[entry.name].number] = number
    count = sum(entry.record_count for entry in entries)
    bits = min((count // _CHUNK_ENTRIES).bit_length(), _BITS_MAX)
    rounds = min(1 << bits, -(-sum(entries[n].record_count for n in new) // round_records) or 1)
    key = f"{place.key_directories}{manifest.version:020d}-{random.getrandbits(64):016x}{SUFFIX}"
    stream = ObjectStream(store, key, retries)
    tables: dict[str, tuple[BlockSource, Ints]] = {}
    lengths, crcs, total = [], [], 0
    try:
        bounds = [((1 << bits) * at // rounds) << (_HASH_BITS - bits) for at in range(rounds + 1)]
        for low, high in pairwise(bounds):
            fresh = _fresh(store, place, [(n, entries[n]) for n in new], low, high, tables)
            for chunk in _chunks(fresh, previous, numbers, low, high, _HASH_BITS - bits):
                data = chunk.encode()
                lengths.append(len(data))
                crcs.append(crc32(data))
                total += len(chunk)
                stream.write([data])
        footer, pieces = _footer(manifest, entries, previous, tables, (bits, lengths, crcs))
        stream.write([*pieces, footer, _TAIL.pack(len(footer), crc32(footer), MAGIC)])
        stream.finish()
    except BaseException:
        stream.abandon()
        raise
    return Written(key, total, stream.sent_bytes, len(entries), len(new))


def _fresh(
    store: ObjectStore,
    place: Place,
    new: Sequence[tuple[int, SegmentEntry]],
    low: int,
    high: int,
    tables: dict[str, tuple[BlockSource, Ints]],
) -> Entries:
    """Read the entries of new segments with hashes in `[low, high)`, and all their block tables."""
    found = []
    for number, entry in new:
        keys = SegmentKeys.read(store, place, entry)
        tables[entry.name] = keys.source, keys.starts
        mine = Entries(keys.hashes, np.full(len(keys.hashes), number, np.uint16), keys.positions.astype(np.uint64))
        found.append(mine.between(low, high))
    return Entries.joined(found)


def _chunks(
    fresh: Entries, previous: StoredDirectory | None, numbers: Ints, low: int, high: int, width_bits: int
) -> Iterator[Entries]:
    """Yield the chunks of `[low, high)`: fresh entries, and those of previous segments that still have a number."""
    span = high - low
    while previous is not None and span > 1 << width_bits and _bytes_of(previous, span) > _READ_BYTES:
        span = ((span >> width_bits) + 1) // 2 << width_bits
    for start in range(low, high, span):
        end = min(start + span, high)
        parts = [fresh.between(start, end)]
        if previous is not None:
            old = previous.between(start, end)
            now = numbers[old.segments]
            keep = now >= 0
            parts.append(Entries(old.hashes[keep], now[keep].astype(np.uint16), old.places[keep]))
        merged = Entries.joined(parts)
        for first in range(start, end, 1 << width_bits):
            yield merged.between(first, first + (1 << width_bits))


def _bytes_of(directory: StoredDirectory, span: int) -> int:
    """Return about how many bytes the entries of a span of hashes have."""
    return int(directory.starts[-1]) * span >> _HASH_BITS


def _footer(
    manifest: Manifest,
    entries: Sequence[SegmentEntry],
    previous: StoredDirectory | None,
    tables: Mapping[str, tuple[BlockSource, Ints]],
    chunks: tuple[int, Sequence[int], Sequence[int]],
) -> tuple[bytes, list[bytes]]:
    """Return the footer, and the block tables that stand before it."""
    bits, lengths, crcs = chunks
    position, pieces, segments = sum(lengths), [], []
    for entry in entries:
        if entry.name in tables:
            source, starts = tables[entry.name]
        else:
            assert previous is not None, "a segment is new, or known"
            source, starts = previous._source(entry)  # noqa: SLF001 - of the same module
        data = _encode_table(source, starts)
        segments.append({
            "name": entry.name, "codec": source.codec, "sync": source.sync_marker.hex(),
            "record_count": entry.record_count, "position": position, "length": len(data), "crc": crc32(data),
        })  # fmt: skip
        pieces.append(data)
        position += len(data)
    packed = open_codec("zstandard").compress(np.array([lengths, crcs], "<i8").tobytes())
    document = {
        "format": FORMAT, "log_id": manifest.log_id, "version": manifest.version, "bits": bits,
        "segments": segments, "chunks": base64.b64encode(packed).decode(),
    }  # fmt: skip
    return json.dumps(document).encode(), pieces
