"""One listed segment against its index and its manifest entry, in one read of both.

    1. the index: its SHA-256; then it is read a row group at a time, beside the segment
    2. the segment as a stream: its SHA-256, its header, every block against the block table, every record against its
       row (`verify_rows`), many blocks at once; only where that fails one by one, to name block and record
    3. what was counted against what the entry says

Damage does not end the read where the next block can still be found, so that each damaged block is named. What has to
be read again to say more is in `verify_blame`. Memory is the index's bytes, a part of its rows and one range.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from keyfold.errors import ObjectNotFound, ObjectTooLarge
from keyfold.log.avro import SegmentDamaged, SegmentHeader, StoredBlock, read_blocks
from keyfold.log.codec import Codec, open_codec
from keyfold.log.index import Index, Ints
from keyfold.log.manifest import SegmentEntry
from keyfold.log.names import Place
from keyfold.log.record_decoder import decompress_block
from keyfold.read.fetch import READ_AHEAD_BYTES
from keyfold.runtime.arrow_types import ArrowArray, ArrowChunks
from keyfold.runtime.buffers import Bytes
from keyfold.store.api import ObjectStore
from keyfold.verify.findings import NOTHING, REPORT, RESTORE, Finding, FindingKind, Findings
from keyfold.verify.key_hashes import IN_LOG, TOMBSTONE, Flags, row_flags
from keyfold.verify.messages import compare_rows, damaged_block
from keyfold.verify.row_checks import index_rows, placed, prove, raw_rows
from keyfold.verify.segment_totals import Marks, SegmentTotals

Progress = Callable[[int], None]
"""Told how many stored bytes were read since the last call."""

RowSink: TypeAlias = "Callable[[ArrowArray | ArrowChunks, Ints, Flags], None]"
"""Given keys (Arrow, null where a record has none), offsets and flags of records that were read."""

_BATCH_BYTES = 4 * 1024 * 1024
# An index of any usual size is read, also where the manifest is wrong about it: then the two are compared.
_INDEX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SegmentResult:
    """What a check found, as a plain value. `checksum` is the SHA-256 of what was read.

    `knows_keys`: the keys of all its records were given on, if need be those that a sound index has.
    """

    entry: SegmentEntry
    checksum: bytes
    record_count: int
    has_index: bool
    knows_keys: bool
    findings: tuple[Finding, ...]


@dataclass(slots=True)
class SegmentCheck:
    """The check of one segment. After `run`: `findings`, what was `seen`, and the SHA-256 that was read.

    `mismatches` is what makes block and index disagree; what it means is decided by the SHA-256, at the end.
    """

    store: ObjectStore
    place: Place
    entry: SegmentEntry
    sync_marker: bytes
    size_bytes: int
    progress: Progress = lambda _: None
    on_rows: RowSink = lambda _keys, _offsets, _flags: None
    findings: Findings = field(default_factory=Findings)
    seen: SegmentTotals = field(default_factory=SegmentTotals)
    mismatches: Findings = field(default_factory=Findings)
    stopped: SegmentDamaged | None = None
    has_index: bool = True
    index_is_sound: bool = False
    is_foreign: bool = False
    foreign_marker: bytes = b""
    checksum: bytes = b""
    _marks: Marks = field(default_factory=Marks)
    _unfinished: tuple[Index, ...] = ()
    _withheld: list[tuple[ArrowArray | ArrowChunks, Ints, Flags]] = field(default_factory=list)
    _last: int = -1

    def run(self) -> None:
        """Do it. Raises `ObjectNotFound` where the segment has gone, and other store errors."""
        self._last = self.entry.base_offset - 1
        digest = hashlib.sha256()
        chunks, parts = self.chunks(digest.update), self._parts()
        try:
            self._stream(chunks, parts)
        except SegmentDamaged as stopped:
            self.stopped = stopped
            for _ in chunks:  # the digest is of all bytes
                pass
            for part in chain(self._unfinished, parts):
                self._give_keys(part)
        self.checksum = digest.digest()
        if self.checksum == self.entry.checksum:
            for rows in self._withheld:
                self.on_rows(*rows)
        if self.checksum == self.entry.checksum and not self.has_mismatch:
            self.compare_counts()

    def result(self) -> SegmentResult:
        """What was found."""
        found = tuple(self.findings)
        is_read = not self.has_mismatch and not self.findings.has(FindingKind.BLOCK_DAMAGED)
        knows_keys = self.index_is_sound or (is_read and self.checksum == self.entry.checksum)
        return SegmentResult(self.entry, self.checksum, self.seen.record_count, self.has_index, knows_keys, found)

    @property
    def has_mismatch(self) -> bool:
        """Whether segment and index disagree, or one of them cannot be read to its end."""
        return bool(self.mismatches) or self.stopped is not None

    def add(
        self,
        kind: FindingKind,
        what: str,
        *,
        lost: str = NOTHING,
        to_do: str = RESTORE,
        block: int = -1,
        offset: int = -1,
        record: int = -1,
        name: str | None = None,
    ) -> None:
        """A finding about the segment, or about the object `name`."""
        key = self.place.key(self.entry.name if name is None else name)
        self.findings.add(Finding(kind, key, what, lost, to_do, block, offset, record))

    def chunks(self, update: Callable[[bytes], object]) -> Iterator[bytes]:
        """The segment in ranges."""
        key = self.place.key(self.entry.name)
        for start in range(0, self.size_bytes, READ_AHEAD_BYTES):
            chunk = self.store.get_range(key, start, min(READ_AHEAD_BYTES, self.size_bytes - start))
            update(chunk)
            self.progress(len(chunk))
            yield chunk

    def index_bytes(self) -> bytes:
        """The index's object. Raises `ObjectNotFound`, and `ObjectTooLarge` far beyond what the manifest says."""
        most_bytes = max(_INDEX_BYTES, self.entry.index_size_bytes)
        return self.store.get(self.place.key(self.entry.index_name), most_bytes).data

    def _parts(self) -> Iterator[Index]:
        """The index in parts. One that is missing or damaged has a finding, and no parts (or no more of them)."""
        name = self.entry.index_name
        try:
            data = self.index_bytes()
        except ObjectTooLarge as error:
            self.has_index = self.index_is_sound = False
            self.add(FindingKind.INDEX_DAMAGED, error.message, name=name)
            return
        except ObjectNotFound:
            self.has_index = False
            what = f"the manifest lists it for {self.entry.name}, but it is not in the bucket"
            self.add(FindingKind.INDEX_MISSING, what, name=name)
            return
        self.progress(len(data))
        self.index_is_sound = hashlib.sha256(data).digest() == self.entry.index_checksum
        if not self.index_is_sound:
            self.add(FindingKind.INDEX_DAMAGED, "does not have the SHA-256 of the manifest", name=name)
        elif len(data) != self.entry.index_size_bytes:
            what = f"index_size_bytes is {len(data)}, but the manifest says {self.entry.index_size_bytes}"
            self.add(FindingKind.COUNT_WRONG, what, to_do=REPORT, name=name)
        try:
            yield from Index.parts(data)
        except SegmentDamaged as error:
            self.has_index = self.index_is_sound = False
            self.add(FindingKind.INDEX_DAMAGED, " ".join(f"cannot be read: {error.message}".split()), name=name)

    def _stream(self, chunks: Iterator[bytes], parts: Iterator[Index]) -> None:
        """Read every record once. Raises `SegmentDamaged` where the stream cannot be followed."""
        stream = read_blocks(chunks)
        header = next(stream)
        assert isinstance(header, SegmentHeader)
        codec = open_codec(header.codec)
        blocks = self._met(stream, header)
        read = 0
        for part in parts:
            if read == 0 and (part.codec, part.sync_marker) != (header.codec, self.sync_marker):
                what = "belongs to a segment of another codec or another log"
                self.mismatches.add(Finding(FindingKind.INDEX_DIFFERS, self.place.key(self.entry.index_name), what))
            self._check_part(blocks, part, codec)
            read = len(part.blocks) if part.part is None else part.part[1]
        for block in blocks:
            if self.has_index:
                raise SegmentDamaged("", f"the index has only {read} blocks", block=block.number)
            self._take_block(block, codec)

    def _met(self, stream: Iterator[StoredBlock | SegmentHeader], header: SegmentHeader) -> Iterator[StoredBlock]:
        for block in stream:
            assert isinstance(block, StoredBlock)
            if block.number == 0 and header.sync_marker != self.sync_marker:
                # The block ends in the header's marker, so that is not just a flipped bit.
                self.is_foreign = True
                self.foreign_marker = header.sync_marker
            yield block

    def _check_part(self, blocks: Iterator[StoredBlock], part: Index, codec: Codec) -> None:
        """Hold the blocks of a part of the index against it, and count its rows where nothing is wrong."""
        first, end = part.part or (0, len(part.blocks))
        before = len(self.mismatches)
        self._unfinished = (part,)
        batch: list[tuple[StoredBlock, Bytes]] = []
        held = 0
        for number in range(first, end):
            block = next(blocks, None)
            if block is None:
                message = f"ends after {number} of {len(part.blocks)} blocks"
                raise SegmentDamaged("", message, block=number)
            try:
                part.blocks.check(block)
                raw = decompress_block(block, codec)
            except SegmentDamaged as error:
                self.mismatches.add(damaged_block(self.place, self.entry, part, number, error))
                self._prove(batch, part)
                batch, held = [], 0
                continue
            batch.append((block, raw))
            held += len(raw)
            if held >= _BATCH_BYTES:
                self._prove(batch, part)
                batch, held = [], 0
        self._prove(batch, part)
        self._unfinished = ()
        if len(self.mismatches) == before:
            self._take_part(part)
        self._give_keys(part, is_proved=len(self.mismatches) == before)

    def _give_keys(self, part: Index, *, is_proved: bool = False) -> None:
        """Those of a sound index: what should be there is no reason to miss others. Else those that are proved, once
        the SHA-256 says that they are this segment's.
        """
        rows = part.rows.column("key"), part.ints("offset").astype(np.int64)
        if self.index_is_sound:
            self.on_rows(*rows, row_flags(part, IN_LOG, with_marks=True))
        elif is_proved:
            self._withheld.append((*rows, row_flags(part, IN_LOG, with_marks=False)))

    def _prove(self, batch: list[tuple[StoredBlock, Bytes]], part: Index) -> None:
        """Neighbouring blocks against their rows; block by block where they differ."""
        if not batch:
            return
        first, _ = part.part or (0, 0)
        begin, end = batch[0][0].number, batch[-1][0].number + 1
        counts = part.blocks.record_count
        skipped, count = int(counts[first:begin].sum()), int(counts[begin:end].sum())
        if not prove([raw for _, raw in batch], part.rows.slice(skipped, count), counts[begin:end]):
            for block, raw in batch:
                self._compare_block(block, bytes(raw), part)

    def _compare_block(self, block: StoredBlock, raw: bytes, part: Index) -> None:
        try:
            rows = list(raw_rows(raw, block))
        except SegmentDamaged as error:
            self.mismatches.add(damaged_block(self.place, self.entry, part, block.number, error))
            return
        indexed = placed(index_rows(part, block.number), block.number)
        self.mismatches.extend(compare_rows(self.place, self.entry, placed(rows, block.number), indexed))

    def _take_part(self, part: Index) -> None:
        """Rows that are proved to be the segment's: count them, and check what they say."""
        first, end = part.part or (0, len(part.blocks))
        counts = part.blocks.record_count[first:end]
        offsets = part.ints("offset").astype(np.int64)
        blocks = np.repeat(np.arange(first, end), counts)
        firsts = np.cumsum(counts) - counts
        wrong = (part.ints("block") != blocks).any() or (offsets[firsts] != part.blocks.first_offset[first:end]).any()
        if wrong:
            what = "its rows and its block table are inconsistent"
            self.add(FindingKind.INDEX_DIFFERS, what, to_do=REPORT, block=first, name=self.entry.index_name)
        self._check_offsets(offsets, blocks)
        self.seen.add_index(part)
        for offset in self._marks.add(part):
            what = "the index marks a record that is not a tombstone"
            self.add(FindingKind.MARKS_WRONG, what, to_do=REPORT, offset=offset, name=self.entry.index_name)

    def _take_block(self, block: StoredBlock, codec: Codec) -> None:
        """A block of a segment whose index cannot say what must be in it."""
        try:
            rows = list(raw_rows(bytes(decompress_block(block, codec)), block))
        except SegmentDamaged as error:
            lost = f"its {block.record_count} records"
            self.add(FindingKind.BLOCK_DAMAGED, error.message, lost=lost, block=block.number, record=error.record)
            return
        offsets = np.array([row[0] for row in rows], np.int64)
        self._check_offsets(offsets, np.full(len(rows), block.number))
        self.seen.add(rows)
        flags = np.array([IN_LOG + TOMBSTONE * row[3] for row in rows], np.uint8)
        self._withheld.append((pa.array([row[2] for row in rows], pa.binary()), offsets, flags))

    def _check_offsets(self, offsets: Ints, blocks: Ints) -> None:
        """Ascending, and inside the segment's range. The first that is not is named."""
        before = np.concatenate([[self._last], offsets[:-1]])
        self._last = int(offsets[-1])
        wrong = np.flatnonzero((offsets <= before) | (offsets > self.entry.last_offset))
        if len(wrong):
            at = int(wrong[0])
            ends = f"[{self.entry.base_offset}, {self.entry.last_offset}]"
            what = f"offset {offsets[at]} after offset {before[at]}, in a segment of offsets {ends}"
            block, offset = int(blocks[at]), int(offsets[at])
            record = at - int(np.searchsorted(blocks, block))
            self.add(FindingKind.OFFSETS_WRONG, what, to_do=REPORT, block=block, offset=offset, record=record)

    def compare_counts(self) -> None:
        """What was seen against what the manifest says."""
        entry, seen = self.entry, self.seen
        names = ("record_count", "tombstone_count", "keyless_count")
        counts: list[tuple[str, object, object]] = [(n, getattr(seen, n), getattr(entry, n)) for n in names]
        counts.append(("size_bytes", self.size_bytes, entry.size_bytes))
        times: list[tuple[str, object, object]] = [
            (n, getattr(seen, n), getattr(entry, n)) for n in ("min_timestamp", "max_timestamp")
        ]
        self._compare(FindingKind.COUNT_WRONG, counts)
        self._compare(FindingKind.TIMES_WRONG, times)
        self._compare(FindingKind.OFFSETS_WRONG, [("last_offset", seen.last_offset, entry.last_offset)])
        if self.index_is_sound:
            marks = self._marks
            self._compare(FindingKind.MARKS_WRONG, [
                ("unmarked_tombstone_count", marks.unmarked, entry.unmarked_tombstone_count),
                ("cleaned_epochs", tuple(sorted(marks.epochs)), entry.cleaned_epochs),
                ("marks of tombstones", seen.tombstone_count - marks.unmarked, marks.marked),
            ])  # fmt: skip

    def _compare(self, kind: FindingKind, pairs: list[tuple[str, object, object]]) -> None:
        for name, found, expected in pairs:
            if found != expected:
                self.add(kind, f"{name} is {found}, but the manifest says {expected}", to_do=REPORT)
