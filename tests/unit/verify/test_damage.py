"""Planted damage: each kind is named with its place and loss, and verification changes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from keyfold.errors import Corrupt, FormatTooNew, StoreUnavailable
from keyfold.log.index import read_index
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.manifest_codec import encode_manifest
from keyfold.log.record import Record
from keyfold.log.segment import SegmentWriter
from keyfold.read.log import Log
from keyfold.store.api import Blob, Create, Update
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.counting import CountedStore
from keyfold.store.wrappers.faults import Fault, FaultKind, FaultyStore
from keyfold.verify.findings import MAX_ALIKE, Finding, FindingKind, VerifyReport
from keyfold.verify.partition import verify_partition
from tests.support.logs import PLACE, MadeLog, columns, record, records


@pytest.fixture
def made() -> MadeLog:
    made = MadeLog()
    made.append(records("a=1 b=1 a=2 c=1"))
    made.append(records("d=1 b= =x e=1", 4))
    made.append(records("f=1 g=1 h=1 i=1", 8))
    made.compact()
    made.append(records("a=3 j=1 k=1", 12))
    made.delete_replaced(forget=True)
    return made


def verify(made: MadeLog) -> VerifyReport:
    before = {key: made.store.get(key) for key in made.object_keys()}
    report = verify_partition(made.store, made.place, clock=made.clock, random=made.random)
    assert {key: made.store.get(key).etag for key in made.object_keys()} == {k: b.etag for k, b in before.items()}
    return report


def kinds(found: Sequence[Finding]) -> set[FindingKind]:
    return {f.kind for f in found}


def overwrite(made: MadeLog, name: str, data: bytes) -> None:
    """What no writer of keyfold does."""
    key = made.place.key(name)
    made.store.delete(key)
    made.store.put(key, data, Create())


def put_manifest(made: MadeLog, change: Callable[[Manifest], Manifest]) -> None:
    pinned = made.log.load()
    made.store.put(made.place.manifest_key, encode_manifest(change(pinned.manifest)), Update(pinned.etag))


def swap_entry(made: MadeLog, at: int, change: Callable[[SegmentEntry], SegmentEntry]) -> None:
    def changed(manifest: Manifest) -> Manifest:
        segments = list(manifest.segments)
        segments[at] = change(segments[at])
        return replace(manifest, segments=tuple(segments))

    put_manifest(made, changed)


def test_a_sound_log_has_no_findings(made: MadeLog) -> None:
    report = verify(made)
    assert report.findings == ()
    assert (report.segments, report.records) == (4, 12 - 2 + 3)
    assert report.version == made.manifest.version


def test_an_empty_log_is_sound() -> None:
    made = MadeLog()
    assert made.sink
    assert verify(made).findings == ()


@pytest.mark.parametrize("codec", ["zstandard", "snappy", "deflate", "null"])
def test_a_flip_of_any_byte_of_a_segment_is_found_and_named(codec: str) -> None:
    made = MadeLog(codec=codec)
    made.append(records("a=1 b=2 c=3 d=4 e=5 f=6"))
    entry = made.manifest.segments[0]
    blocks = read_index(made.store, made.place, entry).blocks
    whole = made.store.get(made.place.key(entry.name)).data
    for at in range(0, len(whole), 7 if codec == "zstandard" else 31):
        overwrite(made, entry.name, whole[:at] + bytes((whole[at] ^ 0x40,)) + whole[at + 1 :])
        found = verify(made).damage
        assert FindingKind.SEGMENT_CHECKSUM in kinds(found), at
        assert all(made.place.key(entry.name) == f.object for f in found)
        in_block = int(np.searchsorted(blocks.position, at, side="right")) - 1
        if in_block >= 0:
            (block,) = [f for f in found if f.kind is FindingKind.BLOCK_DAMAGED]
            assert block.block == in_block
            assert "records, offsets" in block.lost
        with pytest.raises(Corrupt, match=entry.name):
            list(Log(made.store, "topics", "users").read())


@pytest.mark.parametrize("left", [0, 10, 930, -1])
def test_a_truncated_segment_is_found(made: MadeLog, left: int) -> None:
    name = made.manifest.segments[1].name
    overwrite(made, name, made.store.get(made.place.key(name)).data[:left])
    found = verify(made).damage
    assert FindingKind.SEGMENT_TRUNCATED in kinds(found)
    assert {f.object for f in found} == {made.place.key(name)}
    with pytest.raises(Corrupt, match=name):
        list(Log(made.store, "topics", "users").read())


def test_a_flip_of_any_byte_of_an_index_is_found(made: MadeLog) -> None:
    entry = made.manifest.segments[0]
    whole = made.store.get(made.place.key(entry.index_name)).data
    for at in range(0, len(whole), 97):
        overwrite(made, entry.index_name, whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :])
        found = verify(made).damage
        assert FindingKind.INDEX_DAMAGED in kinds(found)
        assert {f.object for f in found} == {made.place.key(entry.index_name)}
        with pytest.raises(Corrupt, match=entry.index_name):
            list(Log(made.store, "topics", "users").latest())


def test_a_flip_of_any_byte_of_the_manifest_is_found(made: MadeLog) -> None:
    whole = made.store.get(made.place.manifest_key).data
    for at in range(0, len(whole), 61):
        overwrite(made, "_manifest.avro", whole[:at] + bytes((whole[at] ^ 4,)) + whole[at + 1 :])
        (found,) = verify(made).damage
        assert found.kind is FindingKind.MANIFEST_DAMAGED
        assert found.object == made.place.manifest_key


def test_a_lost_manifest_is_found(made: MadeLog) -> None:
    made.store.delete(made.place.manifest_key)
    (found,) = verify(made).damage
    assert found.kind is FindingKind.MANIFEST_LOST
    assert "keyfold log repair" in found.to_do


def test_a_missing_segment_and_a_missing_index_are_found(made: MadeLog) -> None:
    first, second, *_ = made.manifest.segments
    made.store.delete(made.place.key(first.name))
    made.store.delete(made.place.key(second.index_name))
    found = verify(made).damage
    assert [(f.kind, f.object) for f in found] == [
        (FindingKind.SEGMENT_MISSING, made.place.key(first.name)),
        (FindingKind.INDEX_MISSING, made.place.key(second.index_name)),
    ]
    assert f"{first.record_count} records" in found[0].lost


def test_two_swapped_segments_are_found(made: MadeLog) -> None:
    first, second, *_ = made.manifest.segments
    datas = [made.store.get(made.place.key(e.name)).data for e in (first, second)]
    overwrite(made, first.name, datas[1])
    overwrite(made, second.name, datas[0])
    found = [f for f in verify(made).damage if f.kind is FindingKind.SEGMENT_SWAPPED]
    assert [(f.object, f.what) for f in found] == [
        (made.place.key(first.name), f"has the bytes of {second.name}"),
        (made.place.key(second.name), f"has the bytes of {first.name}"),
    ]


def test_a_segment_of_another_log_is_found(made: MadeLog) -> None:
    other = MadeLog(store=MemoryStore(), random=made.random)
    theirs = other.append(records("a=1 b=1"))
    data = other.store.get(other.place.key(theirs.name)).data
    index = other.store.get(other.place.key(theirs.index_name)).data
    mine = made.manifest.segments[-1]
    overwrite(made, mine.name, data)
    assert FindingKind.SEGMENT_FOREIGN in kinds(verify(made).damage)
    overwrite(made, mine.index_name, index)
    found = verify(made).damage
    assert {FindingKind.SEGMENT_FOREIGN, FindingKind.SEGMENT_CHECKSUM, FindingKind.INDEX_DAMAGED} <= kinds(found)
    assert {f.object for f in found} == {made.place.key(mine.name), made.place.key(mine.index_name)}


def test_a_segment_listed_twice_is_found(made: MadeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    doubled = replace(made.manifest, segments=(*made.manifest.segments, made.manifest.segments[-1]))
    with pytest.raises(AssertionError, match="listed twice"):
        encode_manifest(doubled)
    with monkeypatch.context() as patched:  # a broken writer
        patched.setattr("keyfold.log.manifest_codec.faults", lambda _: [])
        overwrite(made, "_manifest.avro", encode_manifest(doubled))
    (found,) = verify(made).damage
    assert found.kind is FindingKind.MANIFEST_DAMAGED
    assert "an object is listed twice" in found.what
    assert f"{made_name(doubled)}: range starts at 12" in found.what


def made_name(manifest: Manifest) -> str:
    return manifest.segments[-1].name


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda e: replace(e, record_count=e.record_count + 1), FindingKind.COUNT_WRONG),
        (lambda e: replace(e, tombstone_count=0, unmarked_tombstone_count=0), FindingKind.COUNT_WRONG),
        (lambda e: replace(e, keyless_count=0), FindingKind.COUNT_WRONG),
        (lambda e: replace(e, max_timestamp=e.max_timestamp + 1), FindingKind.TIMES_WRONG),
        (lambda e: replace(e, last_offset=e.last_offset - 1), FindingKind.OFFSETS_WRONG),
        (lambda e: replace(e, unmarked_tombstone_count=1), FindingKind.MARKS_WRONG),
        (lambda e: replace(e, cleaned_epochs=()), FindingKind.MARKS_WRONG),
    ],
)
def test_a_wrong_entry_is_found(
    made: MadeLog, change: Callable[[SegmentEntry], SegmentEntry], kind: FindingKind
) -> None:
    swap_entry(made, 1, change)
    found = verify(made).damage
    assert kind in kinds(found)
    assert any("the manifest says" in f.what or "in a segment of" in f.what for f in found)


def rewrite(made: MadeLog, at: int, batch: Sequence[Record], *, keep_index: bool) -> None:
    """A segment with other records, under its own name, with a manifest that agrees: what a broken writer would do."""
    entry = made.manifest.segments[at]
    writer = SegmentWriter(sync_marker=made.manifest.sync_marker, block_bytes=10_000)
    writer.append(columns(batch))
    finished = writer.finish()
    overwrite(made, entry.name, b"".join(finished.data))
    fresh = finished.entry(entry.name, entry.index_name, base_offset=entry.base_offset, next_offset=entry.next_offset)
    if keep_index:
        fresh = replace(fresh, index_checksum=entry.index_checksum, index_size_bytes=entry.index_size_bytes)
    else:
        overwrite(made, entry.index_name, finished.index_data)
    swap_entry(made, at, lambda _: fresh)


def test_a_resurrected_key_below_the_first_dirty_offset_is_found(made: MadeLog) -> None:
    rewrite(made, 0, [record(1, "b", "1"), record(2, "a", "2"), record(3, "c", "1")], keep_index=False)
    (found,) = verify(made).damage
    assert found.kind is FindingKind.KEY_RESURRECTED
    assert found.offset == 1
    assert "a record of key b'b' exists although its tombstone at offset 5 is clean" in found.what


def test_a_superseded_record_below_the_first_dirty_offset_is_found(made: MadeLog) -> None:
    rewrite(made, 0, [record(0, "a", "1"), record(2, "a", "2"), record(3, "c", "1")], keep_index=False)
    (found,) = verify(made).damage
    assert found.kind is FindingKind.RECORD_SUPERSEDED
    assert (found.offset, found.object) == (0, made.place.key(made.manifest.segments[0].name))


def test_superseded_records_in_the_dirty_head_are_no_damage(made: MadeLog) -> None:
    made.append(records("a=4 a=5 j=", 15))
    assert verify(made).findings == ()


def test_a_lost_tombstone_and_a_lost_record_are_found(made: MadeLog) -> None:
    swap_entry(made, 1, lambda e: e)
    rewrite(made, 1, [record(4, "d", "1"), record(7, "e", "1")], keep_index=True)
    found = verify(made).damage
    lost = {f.kind: f for f in found}
    assert lost[FindingKind.TOMBSTONE_LOST].offset == 5
    assert "the tombstone of key b'b'" in lost[FindingKind.TOMBSTONE_LOST].lost
    assert lost[FindingKind.RECORD_LOST].offset == 6


def test_bounded_memory_gives_the_same_findings() -> None:
    made = MadeLog()
    for start in range(0, 200, 20):
        made.append([record(start + i, f"{'long' * 20}{i % 10}", "v") for i in range(20)])
    put_manifest(made, lambda m: replace(m, first_dirty_offset=m.next_offset))
    whole = verify(made).damage
    parts = verify_partition(made.store, made.place, clock=made.clock, random=made.random, rows_at_once=30).damage
    assert len(whole) == len(parts) == MAX_ALIKE + 1
    assert "170 more superseded" in whole[-1].what
    assert whole[-1] == parts[-1]
    assert {f.offset for f in (*whole[:-1], *parts[:-1])} <= set(range(190))


def test_orphans_replaced_objects_and_unfinished_uploads_are_notes() -> None:
    made = MadeLog()
    made.append(records("a=1 a=2"))
    made.compact()
    made.compact(commit=False)
    made.store.start_upload(made.place.key("unfinished.avro")).write(b"x")
    made.store.put(made.place.key("README.txt"), b"x", Create())
    report = verify(made)
    assert report.is_sound
    assert sorted(f.kind.value for f in report.findings) == [
        "orphan", "orphan", "replaced", "replaced", "unfinished-upload", "unknown-object",
    ]  # fmt: skip


def test_a_log_compacted_meanwhile_is_verified_in_its_newest_version() -> None:
    class Meddling(MemoryStore):
        meddle: Callable[[], None] | None = None

        def get(self, key: str, max_bytes: int | None = None) -> Blob:
            if key.endswith(".parquet") and self.meddle is not None:
                meddle, self.meddle = self.meddle, None
                meddle()
            return super().get(key, max_bytes)

    store = Meddling()
    log = MadeLog(store=store)
    log.append(records("a=1 a=2 b=1"))

    def compact() -> None:
        log.compact()
        log.delete_replaced()

    version = log.manifest.version
    store.meddle = compact
    report = verify_partition(store, PLACE, clock=log.clock, random=log.random)
    assert report.version > version
    assert report.is_sound
    assert report.records == 2


def test_a_newer_format_is_refused_but_is_no_damage(made: MadeLog) -> None:
    put_manifest(made, lambda m: replace(m, min_reader=99))
    with pytest.raises(FormatTooNew, match="needs a reader of format 99"):
        verify(made)
    with pytest.raises(FormatTooNew, match="format 99"):
        Log(made.store, "topics", "users").read()


def test_the_manifests_checksum_matches_the_bytes(made: MadeLog) -> None:
    for entry in made.manifest.segments:
        assert hashlib.sha256(made.store.get(made.place.key(entry.name)).data).digest() == entry.checksum


@pytest.mark.parametrize("parallel", [1, 4])
def test_a_sound_log_is_read_once(made: MadeLog, parallel: int) -> None:
    made.compact()  # with replaced objects, whose indexes are read too
    store = CountedStore(made.store)
    report = verify_partition(store, made.place, clock=made.clock, random=made.random, parallel=parallel)
    assert report.is_sound
    manifest = made.manifest
    names = {n for s in manifest.segments for n in (s.name, s.index_name)}
    names |= {r.name for r in manifest.replaced if r.name.startswith("_index/")} | {"_manifest.avro"}
    assert store.bytes_read == sum(len(made.store.get(made.place.key(name)).data) for name in names)
    assert store.calls["get"] + store.calls["get_range"] == len(names)
    assert store.calls["put"] == store.calls["delete"] == 0


def test_a_store_that_fails_is_no_damage(made: MadeLog) -> None:
    raised = 0
    clean = FaultyStore(made.store)
    verify_partition(clean, made.place, clock=made.clock, random=made.random)
    for number in range(1, len(clean.calls) + 1):
        store = FaultyStore(made.store, [Fault(number, FaultKind.UNAVAILABLE)])
        try:
            assert verify_partition(store, made.place, clock=made.clock, random=made.random).findings == ()
        except StoreUnavailable:
            raised += 1
    assert raised >= len(clean.calls) - 2  # the manifest is asked for again
