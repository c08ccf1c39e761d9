"""What a segment's mismatches mean, once its SHA-256 is known. Reads again what it needs to say so, and no more.

What was read tells what it is:

    the bytes are those that were committed    then the index is not theirs: record by record, what only one side has
    other bytes                                which blocks are hurt, and which offsets they held. Where the stream
                                               broke off, the blocks behind are found by the block table alone
    the bytes of another listed segment        doubled, where that one has them still; else swapped
    another log's sync marker                  foreign, and whose it is where a manifest near by says so
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from keyfold.errors import KeyfoldError, StoreError
from keyfold.log import catalog
from keyfold.log.avro import SegmentDamaged, SegmentHeader, StoredBlock, parse_block, read_blocks
from keyfold.log.codec import open_codec
from keyfold.log.commit import get_manifest
from keyfold.log.index import Index
from keyfold.log.manifest_codec import decode_manifest
from keyfold.log.names import Place
from keyfold.log.record_decoder import decompress_block
from keyfold.store.api import ObjectStore
from keyfold.verify.findings import NOTHING, REPORT, Finding, FindingKind, Findings
from keyfold.verify.messages import compare_rows, damaged_block
from keyfold.verify.row_checks import PlacedRow, block_rows, index_rows, placed, raw_rows
from keyfold.verify.segment import SegmentCheck, SegmentResult

_ITS_RANGE = "the records in its range"
_FROM_HERE = "the records from here on"
_MANIFESTS_ASKED = 1000


def blame(check: SegmentCheck) -> None:
    """Add the findings of a check that has run. Raises `StoreError`."""
    if check.is_foreign:
        _add_foreign(check)
    if check.checksum != check.entry.checksum:
        _blame_bytes(check)
    elif check.has_mismatch and (check.index_is_sound or not check.has_index):
        _blame_writer(check)


def _blame_bytes(check: SegmentCheck) -> None:
    if check.size_bytes != check.entry.size_bytes and not check.is_foreign:
        what = f"has {check.size_bytes} bytes, but the manifest says {check.entry.size_bytes}"
        is_short = check.size_bytes < check.entry.size_bytes
        check.add(FindingKind.SEGMENT_TRUNCATED, what, lost="the records after its end" if is_short else NOTHING)
    if check.is_foreign:
        _add_checksum(check, "it is a segment of another log")
        return
    at = len(check.findings)
    # Where they differ the segment is at fault: the index is what was committed, or has a finding of its own.
    check.findings.extend(f for f in check.mismatches if f.kind is not FindingKind.INDEX_DIFFERS)
    if check.stopped is not None:
        _blame_rest(check, check.stopped)
    if len(check.findings) > at or check.findings.has(FindingKind.BLOCK_DAMAGED):
        _add_checksum(check, "see the findings about its blocks")
    elif check.stopped is None:
        _add_checksum(check, "every block can be read")
    else:
        _add_checksum(check, f"every block can be read with the index, but the segment cannot: {check.stopped.message}")


def _add_checksum(check: SegmentCheck, how: str) -> None:
    check.add(FindingKind.SEGMENT_CHECKSUM, f"does not have the SHA-256 of the manifest; {how}", lost="see its blocks")


def _add_foreign(check: SegmentCheck) -> None:
    owner = owner_of(check.store, check.place, check.foreign_marker)
    whose = f"of {owner}" if owner is not None else "of another log"
    check.add(FindingKind.SEGMENT_FOREIGN, f"has the sync marker {whose}", lost=_ITS_RANGE)


def owner_of(store: ObjectStore, place: Place, marker: bytes) -> Place | None:
    """The partition whose segments carry this sync marker: first of the same topic, then of the topics beside it."""
    own = (Place(place.topics_dir, place.topic, p) for p in catalog.partitions(store, place.topics_dir, place.topic))
    others = (p for p in catalog.places(store, place.topics_dir) if p.topic != place.topic)
    for places in (own, others):
        for other in islice(places, _MANIFESTS_ASKED):
            try:
                if decode_manifest(get_manifest(store, other).data, other).sync_marker == marker:
                    return other
            except KeyfoldError:
                continue  # not the log under test: whatever is wrong with it is no finding here
    return None


def _blame_rest(check: SegmentCheck, stopped: SegmentDamaged) -> None:
    """Try every block from the one on where the stream broke off by itself."""
    if not check.has_index:
        check.add(FindingKind.BLOCK_DAMAGED, stopped.message, lost=_FROM_HERE, block=max(stopped.block, 0))
        return
    for part in index_parts(check):
        codec = open_codec(part.codec)
        first, end = part.part or (0, len(part.blocks))
        for number in range(max(first, stopped.block), end):
            try:
                block = _fetch_block(check, part, number)
                rows = list(raw_rows(bytes(decompress_block(block, codec)), block))
            except (SegmentDamaged, StoreError) as error:
                if isinstance(error, StoreError) and error.retriable:
                    raise
                check.findings.add(damaged_block(check.place, check.entry, part, number, error))
            else:
                indexed = placed(index_rows(part, number), number)
                check.findings.extend(compare_rows(check.place, check.entry, placed(rows, number), indexed))


def _fetch_block(check: SegmentCheck, part: Index, number: int) -> StoredBlock:
    position, length = int(part.blocks.position[number]), int(part.blocks.length[number])
    stored = memoryview(check.store.get_range(check.place.key(check.entry.name), position, length))
    block = parse_block(stored, part.sync_marker, number=number, position=position)
    part.blocks.check(block)
    return block


def _blame_writer(check: SegmentCheck) -> None:
    """The bytes are those that were committed, and the index is not theirs: say which records it is about."""
    first = check.stopped.message if check.stopped is not None else next(iter(check.mismatches)).what
    if not check.has_index:
        at = max(check.stopped.block if check.stopped is not None else 0, 0)
        check.add(FindingKind.BLOCK_DAMAGED, first, lost=_FROM_HERE, to_do=REPORT, block=at)
        return
    check.seen = type(check.seen)()
    indexed = (row for part in index_parts(check) for n in _numbers(part) for row in placed(index_rows(part, n), n))
    differ = Findings()
    try:
        differ.extend(compare_rows(check.place, check.entry, _segment_rows(check), indexed))
    except SegmentDamaged as error:  # what was written cannot be read: that is no fault of the index
        check.findings.extend(check.mismatches)
        if check.stopped is not None or not check.mismatches.has(FindingKind.BLOCK_DAMAGED):
            at = max(error.block, 0)
            check.add(
                FindingKind.BLOCK_DAMAGED, error.message, lost=_FROM_HERE, to_do=REPORT, block=at, record=error.record
            )
    else:
        check.add(FindingKind.INDEX_DIFFERS, first, to_do=REPORT, name=check.entry.index_name)
        check.findings.extend(differ)
        check.index_is_sound = False  # its marks are not about these records
        check.compare_counts()


def _segment_rows(check: SegmentCheck) -> Iterator[PlacedRow]:
    stream = read_blocks(check.chunks(lambda _: None))
    header = next(stream)
    assert isinstance(header, SegmentHeader)
    codec = open_codec(header.codec)
    for block in stream:
        assert isinstance(block, StoredBlock)
        rows = list(block_rows(block, codec))
        check.seen.add(rows)
        yield from placed(rows, block.number)


def _numbers(part: Index) -> range:
    return range(*part.part) if part.part is not None else range(len(part.blocks))


def index_parts(check: SegmentCheck) -> Iterator[Index]:
    """The index again, in parts, as far as it can be read. Raises `ObjectNotFound`."""
    name = check.entry.index_name
    try:
        yield from Index.parts(check.index_bytes())
    except SegmentDamaged as error:
        check.add(FindingKind.INDEX_DAMAGED, " ".join(f"cannot be read: {error.message}".split()), name=name)


def impostors(place: Place, results: Sequence[SegmentResult], names: Mapping[bytes, str]) -> Iterator[Finding]:
    """Segments with the bytes of another listed one: `names` says whose bytes have this SHA-256."""
    held_by = {r.entry.name: r.checksum for r in results}
    for result in results:
        entry, other = result.entry, names.get(result.checksum)
        if result.checksum == entry.checksum or other is None:
            continue
        still_there = held_by.get(other) == result.checksum
        kind = FindingKind.SEGMENT_DOUBLED if still_there else FindingKind.SEGMENT_SWAPPED
        what = f"has the bytes of {other}" + (", which has them too" if still_there else "")
        lost = f"{entry.record_count} records, offsets {entry.base_offset} to {entry.last_offset}"
        yield Finding(kind, place.key(entry.name), what, lost)
