"""One listed segment against its index and its manifest entry.

    1. the index: there, its SHA-256, readable
    2. the segment as a stream: its SHA-256, header, every block against the block table, every record against its row
    3. where step 2 stops at damage, every block again by the block table alone, so that each damaged block is named
       with the offsets that it held
    4. what was counted against what the entry says

Memory is the index, one range and one block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from keyfold.errors import StoreError
from keyfold.log.assembly import NO_TIMESTAMP_MS
from keyfold.log.avro import SegmentDamaged, SegmentHeader, StoredBlock, parse_block, read_blocks
from keyfold.log.codec import Codec, open_codec
from keyfold.log.decode import decode_record, decompress_block
from keyfold.log.index import Index
from keyfold.log.manifest import SegmentEntry
from keyfold.log.names import Place
from keyfold.read.fetch import READ_AHEAD_BYTES
from keyfold.read.findings import NOTHING, REPORT, RESTORE, Finding, Kind
from keyfold.store.api import ObjectStore

Progress = Callable[[int], None]
"""Told how many stored bytes were read since the last call."""

_ITS_RANGE = "the records of its range"
_ROW_COLUMNS = ("offset", "timestamp", "key", "is_tombstone", "position", "length")
Row = tuple[int, int, bytes | None, bool, int, int]
"""One record as its index has it: the columns of `_ROW_COLUMNS`."""


@dataclass(slots=True)
class Seen:
    """What the records of a segment add up to."""

    record_count: int = 0
    tombstone_count: int = 0
    keyless_count: int = 0
    first_offset: int = -1
    last_offset: int = -1
    min_timestamp: int = NO_TIMESTAMP_MS
    max_timestamp: int = NO_TIMESTAMP_MS
    has_times: bool = False

    def add(self, rows: Iterable[Row]) -> None:
        """Count rows, in order."""
        for offset, timestamp, key, is_tombstone, _, _ in rows:
            self.first_offset = offset if self.record_count == 0 else self.first_offset
            if timestamp != NO_TIMESTAMP_MS:
                self.min_timestamp = min(self.min_timestamp, timestamp) if self.has_times else timestamp
                self.max_timestamp = max(self.max_timestamp, timestamp) if self.has_times else timestamp
                self.has_times = True
            self.last_offset = offset
            self.record_count += 1
            self.tombstone_count += is_tombstone
            self.keyless_count += key is None


@dataclass(slots=True)
class SegmentCheck:
    """The check of one segment. `names_by_checksum` are all listed segments, to tell swapped ones."""

    store: ObjectStore
    place: Place
    entry: SegmentEntry
    sync_marker: bytes
    names_by_checksum: dict[bytes, str]
    size_bytes: int
    progress: Progress
    findings: list[Finding] = field(default_factory=list)
    seen: Seen = field(default_factory=Seen)

    def run(self) -> None:
        """Do it. Raises `ObjectNotFound` where segment or index have gone, and other store errors."""
        index = self._read_index()
        if self.size_bytes != self.entry.size_bytes:
            self._add(
                Kind.SEGMENT_TRUNCATED,
                f"has {self.size_bytes} bytes, the manifest says {self.entry.size_bytes}",
                lost="the records behind its end",
            )
        digest = hashlib.sha256()
        try:
            self._stream(index, digest.update)
        except SegmentDamaged as stopped:
            checksum = self._digest()
            if checksum == self.entry.checksum and index is not None:
                self._compare_all(index, stopped)
            else:
                self._blame_bytes(checksum, str(stopped))
                self._blame_blocks(index, stopped)
            return
        if digest.digest() != self.entry.checksum:
            self._blame_bytes(digest.digest(), "every block can be read")
        self._compare_counts(index)

    def _add(
        self,
        kind: Kind,
        what: str,
        *,
        lost: str = NOTHING,
        to_do: str = RESTORE,
        block: int = -1,
        offset: int = -1,
        name: str | None = None,
    ) -> None:
        key = self.place.key(self.entry.name if name is None else name)
        self.findings.append(Finding(kind, key, what, lost, to_do, block, offset))

    def _read_index(self) -> Index | None:
        name = self.entry.index_name
        data = self.store.get(self.place.key(name)).data
        self.progress(len(data))
        if hashlib.sha256(data).digest() != self.entry.index_checksum:
            self._add(Kind.INDEX_DAMAGED, "its SHA-256 is not the one in the manifest", name=name)
        try:
            return Index.parse(data)
        except SegmentDamaged as error:
            self._add(Kind.INDEX_DAMAGED, f"it cannot be read: {error}", name=name)
            return None

    def _chunks(self, update: Callable[[bytes], None]) -> Iterator[bytes]:
        key = self.place.key(self.entry.name)
        for start in range(0, self.size_bytes, READ_AHEAD_BYTES):
            chunk = self.store.get_range(key, start, min(READ_AHEAD_BYTES, self.size_bytes - start))
            update(chunk)
            self.progress(len(chunk))
            yield chunk

    def _digest(self) -> bytes:
        digest = hashlib.sha256()
        for _ in self._chunks(digest.update):
            pass
        return digest.digest()

    def _stream(self, index: Index | None, update: Callable[[bytes], None]) -> None:
        """Read every record once. Raises `SegmentDamaged` where the stream cannot be followed."""
        parts = read_blocks(self._chunks(update))
        header = next(parts)
        assert isinstance(header, SegmentHeader)
        codec = open_codec(header.codec)
        last = self.entry.base_offset - 1
        blocks = 0
        for block in parts:
            assert isinstance(block, StoredBlock)
            if block.number == 0:  # the block ends in the header's marker, so that is not just a flipped bit
                self._check_header(header, index)
            if index is not None and block.number < len(index.blocks):
                index.blocks.check(block)
            rows = list(block_rows(block, codec))
            last = self._check_offsets(rows, last, block.number)
            if index is not None:
                self._compare_rows(rows, index, block.number)
            self.seen.add(rows)
            blocks += 1
        if index is not None and blocks < len(index.blocks):
            raise SegmentDamaged("", f"it ends after {blocks} of {len(index.blocks)} blocks", block=blocks)

    def _check_header(self, header: SegmentHeader, index: Index | None) -> None:
        if header.sync_marker != self.sync_marker:
            self._add(
                Kind.SEGMENT_FOREIGN, "it carries the sync marker of another log", lost="the records of its range"
            )
        if index is not None and (index.codec, index.sync_marker) != (header.codec, self.sync_marker):
            name = self.entry.index_name
            self._add(Kind.INDEX_DIFFERS, "it is the index of a segment of another codec or log", name=name)

    def _check_offsets(self, rows: list[Row], last: int, block: int) -> int:
        for offset, *_ in rows:
            if offset <= last or offset > self.entry.last_offset:
                ends = f"[{self.entry.base_offset}, {self.entry.last_offset}]"
                what = f"offset {offset} after {last}, in a segment of {ends}"
                self._add(Kind.OFFSETS_WRONG, what, to_do=REPORT, block=block, offset=offset)
                return rows[-1][0]
            last = offset
        return last

    def _compare_all(self, index: Index, stopped: SegmentDamaged) -> None:
        """The bytes are those that were committed, and the index is not theirs: say which records it is about."""
        rows: list[Row] = []
        try:
            parts = read_blocks(self._chunks(lambda _: None))
            header = next(parts)
            assert isinstance(header, SegmentHeader)
            codec = open_codec(header.codec)
            for block in parts:
                assert isinstance(block, StoredBlock)
                rows.extend(block_rows(block, codec))
        except SegmentDamaged as error:
            self._add(Kind.BLOCK_DAMAGED, str(error), lost="the records from here on", block=max(error.block, 0))
            return
        self.seen.add(rows)
        in_index = [row for block in range(len(index.blocks)) for row in index_rows(index, block)]
        self._add(Kind.INDEX_DIFFERS, str(stopped), to_do=REPORT, name=self.entry.index_name)
        self._compare_by_offset(rows, in_index, -1)
        self._compare_counts(index)

    def _compare_rows(self, rows: list[Row], index: Index, block: int) -> None:
        in_index = index_rows(index, block)
        if in_index != rows:
            self._compare_by_offset(rows, in_index, block)

    def _compare_by_offset(self, rows: list[Row], in_index: list[Row], block: int) -> None:
        data = {row[0]: row for row in rows}
        indexed = {row[0]: row for row in in_index}
        for offset in sorted(data.keys() | indexed.keys()):
            if offset not in data:
                self._blame_lost(indexed[offset], block)
            elif offset not in indexed:
                what = "the segment has a record that its index has not"
                self._add(Kind.RECORD_UNEXPECTED, what, to_do=REPORT, block=block, offset=offset)
            elif data[offset] != indexed[offset]:
                pairs = zip(_ROW_COLUMNS, data[offset], indexed[offset], strict=True)
                fields = ", ".join(f"{name} {a!r} as {b!r}" for name, a, b in pairs if a != b)
                what = f"it has {fields}"
                self._add(
                    Kind.INDEX_DIFFERS, what, to_do=REPORT, block=block, offset=offset, name=self.entry.index_name
                )

    def _blame_lost(self, row: Row, block: int) -> None:
        offset, _, key, is_tombstone, _, _ = row
        if is_tombstone:
            kind, what = Kind.TOMBSTONE_LOST, "its index has a tombstone here, the segment has none"
            lost = f"the tombstone of key {key!r}: what it deleted would live on"
        else:
            kind, what = Kind.RECORD_LOST, "its index has a record here, the segment has none"
            lost = f"the record of key {key!r}"
        self._add(kind, what, lost=lost, block=block, offset=offset)

    def _blame_bytes(self, checksum: bytes, how: str) -> None:
        other = self.names_by_checksum.get(checksum)
        if checksum == self.entry.checksum:
            return
        if other is not None:
            self._add(Kind.SEGMENT_SWAPPED, f"it has the bytes of {other}", lost=_ITS_RANGE)
        else:
            self._add(
                Kind.SEGMENT_CHECKSUM, f"its SHA-256 is not the one in the manifest; {how}", lost="see its blocks"
            )

    def _blame_blocks(self, index: Index | None, stopped: SegmentDamaged) -> None:
        """Try every block by itself."""
        if index is None or any(f.kind is Kind.SEGMENT_SWAPPED for f in self.findings):
            self._add(Kind.BLOCK_DAMAGED, str(stopped), lost="the records from here on", block=max(stopped.block, 0))
            return
        found = len(self.findings)
        codec = open_codec(index.codec)
        key = self.place.key(self.entry.name)
        for number in range(len(index.blocks)):
            position, length = int(index.blocks.position[number]), int(index.blocks.length[number])
            try:
                stored = memoryview(self.store.get_range(key, position, length))
                block = parse_block(stored, index.sync_marker, number=number, position=position)
                index.blocks.check(block)
                rows = list(block_rows(block, codec))
            except (SegmentDamaged, StoreError) as error:
                self._blame_block(index, number, error)
            else:
                self._compare_rows(rows, index, number)
        if len(self.findings) == found:
            self._add(Kind.SEGMENT_CHECKSUM, f"its header is damaged: {stopped}", to_do=RESTORE)

    def _blame_block(self, index: Index, number: int, error: Exception) -> None:
        if isinstance(error, StoreError) and error.retriable:
            raise error
        rows = index_rows(index, number)
        lost = f"{len(rows)} records, offsets {rows[0][0]} to {rows[-1][0]}"
        self._add(Kind.BLOCK_DAMAGED, str(error), lost=lost, block=number, offset=rows[0][0])

    def _compare_counts(self, index: Index | None) -> None:
        entry, seen = self.entry, self.seen
        counts = [
            (n, getattr(seen, n), getattr(entry, n)) for n in ("record_count", "tombstone_count", "keyless_count")
        ]
        times = [(n, getattr(seen, n), getattr(entry, n)) for n in ("min_timestamp", "max_timestamp")]
        self._compare(Kind.COUNT_WRONG, counts)
        self._compare(Kind.TIMES_WRONG, times)
        self._compare(Kind.OFFSETS_WRONG, [("last_offset", seen.last_offset, entry.last_offset)])
        if index is None:
            return
        marks = index.rows.column("cleaned_epoch").to_pylist()
        marked = [m for m in marks if m is not None]
        unmarked = sum(m is None for m, dead in zip(marks, index.is_tombstone.tolist(), strict=True) if dead)
        self._compare(Kind.MARKS_WRONG, [
            ("unmarked_tombstone_count", unmarked, entry.unmarked_tombstone_count),
            ("cleaned_epochs", tuple(sorted(set(marked))), entry.cleaned_epochs),
            ("marks of tombstones", seen.tombstone_count - unmarked, len(marked)),
        ])  # fmt: skip

    def _compare(self, kind: Kind, pairs: list[tuple[str, object, object]]) -> None:
        for name, found, expected in pairs:
            if found != expected:
                self._add(kind, f"{name} is {found}, the manifest says {expected}", to_do=REPORT)


def block_rows(block: StoredBlock, codec: Codec) -> Iterator[Row]:
    """The rows that an index must have for a block. Raises `SegmentDamaged`."""
    raw = bytes(decompress_block(block, codec))
    position = 0
    for number in range(block.record_count):
        try:
            record, end = decode_record(raw, position)
        except (ValueError, IndexError) as error:
            raise SegmentDamaged("", str(error), block=block.number, record=number) from error
        yield record.offset, record.timestamp, record.key, record.is_tombstone, position, end - position
        position = end
    if position != len(raw):
        raise SegmentDamaged("", f"{len(raw) - position} bytes are left behind its records", block=block.number)


def index_rows(index: Index, block: int) -> list[Row]:
    """The rows of an index about one block; none where it does not know the block."""
    begin = int(index.blocks.record_count[:block].sum())
    count = int(index.blocks.record_count[block]) if block < len(index.blocks) else 0
    part = index.rows.slice(begin, count)
    return list(zip(*(part.column(name).to_pylist() for name in _ROW_COLUMNS), strict=True))
