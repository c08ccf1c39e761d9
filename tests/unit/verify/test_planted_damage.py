"""Each kind of damage, planted on a log of four segments in four codecs, and what `keyfold log verify` says of it.

One test a kind: the finding's name, object, block, record and offset, in text and in JSON, and what is lost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from isal.isal_zlib import crc32

from keyfold.cli.app import run
from keyfold.cli.context import CliContext
from keyfold.log.index import ROWS, Index, read_index
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.manifest_codec import encode_manifest
from keyfold.log.names import Place, Role, new_name
from keyfold.log.partition_log import Replacement, Swap
from keyfold.log.record import Record
from keyfold.log.record_decoder import read_records
from keyfold.log.segment import SegmentWriter
from keyfold.runtime.arrow_types import values_of
from keyfold.store.api import Create, Update
from keyfold.store.memory import MemoryStore
from tests.support.logs import MadeLog, columns, record

CODECS = ("zstandard", "snappy", "deflate", "null")
Json = dict[str, Any]


def batch(start: int, count: int, *, dead: Sequence[int] = ()) -> list[Record]:
    return [record(o, f"key-{o % 110:03}", None if o in dead else f"value {o}") for o in range(start, start + count)]


@dataclass
class World:
    """The log under test, and the command."""

    made: MadeLog
    capture: pytest.CaptureFixture[str]

    def verify(self) -> list[Json]:
        """What is damaged, as JSON says it; text must say the same."""
        world = CliContext(lambda _url: (self.made.store, "topics"), self.made.clock, self.made.random)
        code = run(["log", "verify", "s3://bucket/topics", "users", "--json"], world)
        (report,) = map(json.loads, self.capture.readouterr().out.splitlines())
        assert code == (0 if report["ok"] else 1)
        assert run(["log", "verify", "s3://bucket/topics", "users", "--parallel", "3"], world) == code
        lines = self.capture.readouterr().out.splitlines()
        damage: list[Json] = [f for f in report["findings"] if f["damage"]]
        for f in damage:
            places = [f"{n} {f[n]}" for n in ("block", "record", "offset") if f[n] is not None]
            start = f"DAMAGE users-0 {f['kind']}: {', '.join([f['object'], *places])}: {f['what']}; lost: {f['lost']}"
            assert any(line.startswith(start) for line in lines), (start, lines)
        return damage

    def entry(self, at: int) -> SegmentEntry:
        return self.made.manifest.segments[at]

    def key(self, at: int) -> str:
        return self.made.place.key(self.entry(at).name)

    def index_key(self, at: int) -> str:
        return self.made.place.key(self.entry(at).index_name)

    def data(self, key: str) -> bytes:
        return self.made.store.get(key).data

    def overwrite(self, key: str, data: bytes) -> None:
        """What no writer of keyfold does."""
        self.made.store.delete(key)
        self.made.store.put(key, data, Create())

    def flip(self, key: str, at: int) -> None:
        data = bytearray(self.data(key))
        data[at] ^= 0x10
        self.overwrite(key, bytes(data))

    def put_manifest(self, change: Callable[[Manifest], Manifest]) -> None:
        pinned = self.made.log.load()
        self.made.store.put(self.made.place.manifest_key, encode_manifest(change(pinned.manifest)), Update(pinned.etag))

    def put_entry(self, at: int, change: Callable[[SegmentEntry], SegmentEntry]) -> None:
        def changed(manifest: Manifest) -> Manifest:
            segments = list(manifest.segments)
            segments[at] = change(segments[at])
            return replace(manifest, segments=tuple(segments))

        self.put_manifest(changed)

    def rewrite(self, at: int, change: Callable[[list[Record]], list[Record]], *, keep_index: bool = False) -> None:
        """Other records under the same name, and a manifest that agrees: what a broken writer would do."""
        entry = self.entry(at)
        index = read_index(self.made.store, self.made.place, entry)
        writer = SegmentWriter(
            sync_marker=self.made.manifest.sync_marker, codec=index.codec, block_bytes=self.made.block_bytes
        )
        writer.append(columns(change(list(read_records(self.data(self.key(at)))))))
        finished = writer.finish()
        self.overwrite(self.key(at), b"".join(finished.data))
        new = finished.entry(entry.name, entry.index_name, base_offset=entry.base_offset, next_offset=entry.next_offset)
        if keep_index:
            new = replace(new, index_checksum=entry.index_checksum, index_size_bytes=entry.index_size_bytes)
        else:
            self.overwrite(self.index_key(at), finished.index_data)
        self.put_entry(at, lambda _: new)


def made_log(store: MemoryStore | None = None, place: Place | None = None, seed: int = 7) -> MadeLog:
    """[0, 40), [40, 80) and [80, 120) are clean, each in a codec of its own; [120, 160) is dirty.

    The pass has taken offsets 0 to 9, and marked the tombstones 50 and 90.
    """
    made = MadeLog(store=store or MemoryStore(), random=Random(seed), block_bytes=300)
    made.place = place or made.place
    for number in range(3):
        made.append(batch(40 * number, 40, dead=(50, 90)))
    session = made.log.claim_compactor(lease_ms=1000, holder="test")
    entries = session.manifest.segments
    indexes = [read_index(made.store, made.place, e) for e in entries]
    last = {
        k: o for i in indexes for k, o in zip(*(i.rows.column(n).to_pylist() for n in ("key", "offset")), strict=True)
    }
    swaps: list[Swap] = []
    for codec, pair in zip(CODECS, zip(entries, indexes, strict=True), strict=False):
        made.codec = codec
        swaps.append(made._swap(session, [pair], last, [], purge=False))
    session.replace(Replacement(tuple(swaps), first_dirty_offset=120))
    made.codec = CODECS[3]
    made.append(batch(120, 40, dead=(130,)))
    return made


@pytest.fixture
def world(capsys: pytest.CaptureFixture[str]) -> World:
    made = made_log()
    made.delete_replaced(forget=True)
    return World(made, capsys)


def one(found: list[Json], kind: str) -> Json:
    (finding,) = [f for f in found if f["kind"] == kind]
    return finding


def kinds(found: list[Json]) -> set[str]:
    return {f["kind"] for f in found}


def test_the_log_is_sound_and_has_every_feature_the_tests_need(world: World) -> None:
    assert world.verify() == []
    indexes = [read_index(world.made.store, world.made.place, e) for e in world.made.manifest.segments]
    assert [i.codec for i in indexes] == list(CODECS)
    assert all(len(i.blocks) > 3 for i in indexes)
    assert [len(i) for i in indexes] == [30, 40, 40, 40]
    assert [e.cleaned_epochs != () for e in world.made.manifest.segments] == [False, True, True, False]


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("block", [0, 2])
def test_a_flipped_byte_in_a_block_is_found(world: World, at: int, block: int) -> None:
    index = read_index(world.made.store, world.made.place, world.entry(at))
    world.flip(world.key(at), int(index.blocks.position[block] + index.blocks.length[block] // 2))
    found = world.verify()
    assert kinds(found) == {"segment-checksum", "block-damaged"}
    hurt = one(found, "block-damaged")
    first, count = int(index.blocks.first_offset[block]), int(index.blocks.record_count[block])
    last = index.ints("offset")[index.ints("block") == block][-1]
    assert (hurt["object"], hurt["block"], hurt["offset"]) == (world.key(at), block, first)
    assert hurt["lost"] == f"{count} records, offsets {first} to {last}"
    assert one(found, "segment-checksum")["object"] == world.key(at)


@pytest.mark.parametrize("at", range(4))
def test_many_flipped_bytes_are_each_named(world: World, at: int) -> None:
    blocks = read_index(world.made.store, world.made.place, world.entry(at)).blocks
    for block in (0, 1, 3):  # a block's last byte is of its sync marker: there the stream breaks off
        world.flip(world.key(at), int(blocks.position[block] + blocks.length[block]) - 1)
    hurt = [f["block"] for f in world.verify() if f["kind"] == "block-damaged"]
    assert hurt == [0, 1, 3]


def test_a_flipped_byte_in_a_header_is_found(world: World) -> None:
    world.flip(world.key(1), 30)
    found = one(world.verify(), "segment-checksum")
    assert found["object"] == world.key(1)
    world.overwrite(world.key(1), b"x")
    assert "segment-truncated" in kinds(world.verify())


@pytest.mark.parametrize("at", range(4))
def test_a_wrongly_written_record_is_named_in_its_block(world: World, at: int) -> None:
    """Checksums agree: only reading the records shows it."""
    entry = world.entry(at)
    index = read_index(world.made.store, world.made.place, entry)
    lengths = values_of(index.rows.column("length"))
    where = next(i for i, b in enumerate(index.rows.column("block").to_pylist()) if b == 1) + 2
    lengths[where] += 1
    column = index.rows.schema.get_field_index("length")
    rows = index.rows.set_column(column, ROWS.field(column), pa.array(lengths, pa.int32()))
    bent = Index(rows, index.blocks, index.codec, index.sync_marker).encode()
    world.overwrite(world.index_key(at), bent)
    world.put_entry(at, lambda e: replace(e, index_checksum=hashlib.sha256(bent).digest(),
                                          index_size_bytes=len(bent)))  # fmt: skip
    differs = [f for f in world.verify() if f["kind"] == "index-differs" and f["record"] is not None]
    (found,) = differs
    assert (found["object"], found["block"], found["record"]) == (world.index_key(at), 1, 2)
    assert found["offset"] == index.ints("offset")[where]
    assert "length" in found["what"]


def test_an_undecodable_record_is_named_though_every_checksum_matches(world: World) -> None:
    """What a broken encoder would commit: the block's CRC-32 and both SHA-256 are those of the bytes."""
    index = read_index(world.made.store, world.made.place, world.entry(3))
    number, data = 2, bytearray(world.data(world.key(3)))
    row = int(index.blocks.record_count[:number].sum()) + 3
    begin, length = int(index.blocks.position[number]), int(index.blocks.length[number])
    raw_at = bytes(data[begin : begin + length]).index(b"key-0")  # codec null: the first key of the block, as it is
    first = int(index.ints("position")[row - 3]) + raw_at
    at_key = begin + raw_at + int(index.ints("position")[row]) - int(index.ints("position")[row - 3])
    assert data[at_key : at_key + 4] == b"key-", first
    data[at_key - 2] = 7  # the branch of the key: neither null nor bytes
    world.overwrite(world.key(3), bytes(data))
    crc = index.blocks.crc32.copy()
    crc[number] = crc32(data[begin : begin + length])
    bent = Index(index.rows, replace(index.blocks, crc32=crc), index.codec, index.sync_marker).encode()
    world.overwrite(world.index_key(3), bent)
    world.put_entry(
        3,
        lambda e: replace(
            e,
            checksum=hashlib.sha256(data).digest(),
            index_checksum=hashlib.sha256(bent).digest(),
            index_size_bytes=len(bent),
        ),
    )
    found = one(world.verify(), "block-damaged")
    assert (found["object"], found["block"], found["record"]) == (world.key(3), number, 3)
    assert found["offset"] == index.ints("offset")[row]


@pytest.mark.parametrize("at", range(4))
def test_a_flipped_byte_in_an_index_is_found(world: World, at: int) -> None:
    for place in (10, len(world.data(world.index_key(at))) // 2, -20):
        whole = world.data(world.index_key(at))
        world.flip(world.index_key(at), place)
        found = world.verify()
        assert kinds(found) == {"index-damaged"}
        assert {f["object"] for f in found} == {world.index_key(at)}
        world.overwrite(world.index_key(at), whole)


def test_a_flipped_byte_in_the_manifest_is_found(world: World) -> None:
    key = world.made.place.manifest_key
    world.flip(key, len(world.data(key)) // 2)
    found = one(world.verify(), "manifest-damaged")
    assert found["object"] == key
    assert "repair" in found["to_do"]


def test_a_lost_manifest_is_found(world: World) -> None:
    world.made.store.delete(world.made.place.manifest_key)
    assert one(world.verify(), "manifest-lost")["object"] == world.made.place.manifest_key


def test_an_older_manifest_put_back_is_found(world: World) -> None:
    key = world.made.place.manifest_key
    old = world.data(key)
    assert world.verify() == []
    world.made._sink = None
    world.made.append(batch(160, 5))  # a sink that claimed a new epoch
    world.overwrite(key, old)
    found = one(world.verify(), "manifest-outdated")
    assert found["object"] == key
    assert found["lost"] == "everything that was committed since that version"


def test_a_sinks_upload_during_verification_does_not_mean_an_old_manifest(world: World) -> None:
    made = world.made
    load = made.log.load().manifest.last_epoch
    made.store.start_upload(made.place.key(str(new_name(160, load, Role.SINK, made.random)))).write(b"x")
    assert world.verify() == []


@pytest.mark.parametrize("at", range(4))
def test_a_missing_segment_and_a_missing_index_are_found(world: World, at: int) -> None:
    entry = world.entry(at)
    world.made.store.delete(world.index_key(at))
    found = one(world.verify(), "index-missing")
    assert found["object"] == world.index_key(at)
    world.made.store.delete(world.key(at))
    found = one(world.verify(), "segment-missing")
    assert found["object"] == world.key(at)
    assert found["lost"] == f"{entry.record_count} records, offsets {entry.base_offset} to {entry.last_offset}"


def test_a_segment_without_its_index_is_still_read(world: World) -> None:
    world.made.store.delete(world.index_key(3))
    world.put_entry(3, lambda e: replace(e, record_count=41))
    found = world.verify()
    assert kinds(found) == {"index-missing", "count-wrong"}
    world.flip(world.key(3), -40)
    assert {"segment-checksum", "index-missing"} <= kinds(world.verify())


def test_a_doubled_segment_is_found(world: World) -> None:
    world.overwrite(world.key(2), world.data(world.key(1)))
    found = one(world.verify(), "segment-doubled")
    assert found["object"] == world.key(2)
    assert found["what"] == f"has the bytes of {world.entry(1).name}, which has them too"
    assert found["lost"] == "40 records, offsets 80 to 119"


def test_two_swapped_segments_are_found(world: World) -> None:
    first, second = world.data(world.key(1)), world.data(world.key(2))
    world.overwrite(world.key(1), second)
    world.overwrite(world.key(2), first)
    found = world.verify()
    assert [(f["kind"], f["object"]) for f in found] == [
        ("segment-swapped", world.key(1)),
        ("segment-swapped", world.key(2)),
    ]
    assert found[0]["what"] == f"has the bytes of {world.entry(2).name}"


@pytest.mark.parametrize(
    ("place", "whose"),
    [
        (Place("topics", "users", 1), "of users-1"),
        (Place("topics", "orders", 3), "of orders-3"),
        (Place("elsewhere", "users", 0), "of another log"),
    ],
)
def test_a_foreign_segment_is_found(world: World, place: Place, whose: str) -> None:
    assert isinstance(world.made.store, MemoryStore)
    other = made_log(world.made.store, place, seed=8)
    strange = other.manifest.segments[2]
    world.overwrite(world.key(2), world.data(other.place.key(strange.name)))
    found = one(world_verify_one(world), "segment-foreign")
    assert found["object"] == world.key(2)
    assert found["what"] == f"has the sync marker {whose}"
    assert found["lost"] == "the records in its range"


def world_verify_one(world: World) -> list[Json]:
    """Partition 0 alone."""
    context = CliContext(lambda _url: (world.made.store, "topics"), world.made.clock, world.made.random)
    assert run(["log", "verify", "s3://bucket/topics", "users", "-p", "0", "--json"], context) == 1
    (report,) = map(json.loads, world.capture.readouterr().out.splitlines())
    return [f for f in report["findings"] if f["damage"]]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda e: replace(e, record_count=e.record_count - 1), "count-wrong"),
        (lambda e: replace(e, tombstone_count=2), "count-wrong"),
        (lambda e: replace(e, keyless_count=1), "count-wrong"),
        (lambda e: replace(e, index_size_bytes=7), "count-wrong"),
        (lambda e: replace(e, size_bytes=7), "count-wrong"),
        (lambda e: replace(e, min_timestamp=7), "times-wrong"),
        (lambda e: replace(e, max_timestamp=7), "times-wrong"),
        (lambda e: replace(e, last_offset=78), "offsets-wrong"),
        (lambda e: replace(e, unmarked_tombstone_count=1), "marks-wrong"),
        (lambda e: replace(e, cleaned_epochs=()), "marks-wrong"),
        (lambda e: replace(e, checksum=bytes(32)), "segment-checksum"),
        (lambda e: replace(e, index_checksum=bytes(32)), "index-damaged"),
    ],
)
def test_a_wrong_entry_is_found(world: World, change: Callable[[SegmentEntry], SegmentEntry], kind: str) -> None:
    world.put_entry(1, change)
    found = world.verify()
    assert kinds(found) >= {kind}
    assert {f["object"] for f in found} <= {world.key(1), world.index_key(1)}


def test_non_ascending_offsets_over_segments_are_found(world: World) -> None:
    """Two entries whose ranges meet, and whose records overlap: a segment that was doubled when it was written."""
    data, index = world.data(world.key(1)), world.data(world.index_key(1))
    doubled = world.entry(1)
    world.overwrite(world.key(2), data)
    world.overwrite(world.index_key(2), index)
    mine = world.entry(2)
    world.put_entry(2, lambda e: replace(doubled, name=e.name, index_name=e.index_name, base_offset=80, next_offset=120,
                                         last_offset=119))  # fmt: skip
    found = [f for f in world.verify() if f["kind"] == "offsets-wrong" and f["block"] is not None]
    assert found[0]["object"] == world.made.place.key(mine.name)
    assert (found[0]["block"], found[0]["record"], found[0]["offset"]) == (0, 0, 40)


@pytest.mark.parametrize("at", [0, 1])
def test_a_resurrected_key_is_found(world: World, at: int) -> None:
    """The tombstone at offset 90 deleted key 90, and an older record of it is back."""
    offset = 40 * at + 13
    world.rewrite(at, lambda rs: [replace(r, key=b"key-090") if r.offset == offset else r for r in rs])
    found = one(world.verify(), "key-resurrected")
    assert (found["object"], found["offset"]) == (world.key(at), offset)
    assert "b'key-090'" in found["what"]
    assert "at offset 90" in found["what"]


def test_a_resurrected_key_in_a_segment_without_an_index_is_found(world: World) -> None:
    world.rewrite(0, lambda rs: [replace(r, key=b"key-090") if r.offset == 13 else r for r in rs])
    world.made.store.delete(world.index_key(0))
    found = one(world.verify(), "key-resurrected")
    assert (found["object"], found["offset"]) == (world.key(0), 13)


def test_a_superseded_record_in_the_clean_part_is_found(world: World) -> None:
    world.rewrite(0, lambda rs: [replace(r, key=b"key-060") if r.offset == 30 else r for r in rs])
    found = one(world.verify(), "record-superseded")
    assert (found["object"], found["offset"]) == (world.key(0), 30)


@pytest.mark.parametrize(("at", "offset", "kind"), [(1, 50, "tombstone-lost"), (2, 90, "tombstone-lost"),
                                                   (2, 91, "record-lost"), (3, 130, "tombstone-lost")])  # fmt: skip
def test_a_lost_record_that_the_index_still_has_is_named(world: World, at: int, offset: int, kind: str) -> None:
    index = read_index(world.made.store, world.made.place, world.entry(at))
    row = int(np.searchsorted(index.ints("offset"), offset))
    block = int(index.ints("block")[row])
    number = row - int(np.searchsorted(index.ints("block"), block))
    world.rewrite(at, lambda rs: [r for r in rs if r.offset != offset], keep_index=True)
    found = one(world.verify(), kind)
    assert (found["object"], found["block"], found["record"], found["offset"]) == (world.key(at), block, number, offset)
    assert f"key-{offset % 110:03}" in found["lost"]


@pytest.mark.parametrize(("offset", "kind"), [(50, "tombstone-lost"), (51, "record-lost")])
def test_a_pass_losses_are_known_while_its_sources_exist(
    offset: int, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(made_log(), capsys)
    assert world.verify() == []
    world.rewrite(1, lambda rs: [r for r in rs if r.offset != offset])
    found = one(world.verify(), kind)
    assert (found["object"], found["offset"]) == (world.key(1), offset)
    assert f"key-{offset:03}" in found["lost"]
    world.made.delete_replaced(forget=True)
    assert kind not in kinds(world.verify())  # a log alone cannot tell any more; Kafka can


def test_purged_or_expired_records_are_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    made = made_log()
    world = World(made, capsys)
    made.compact(purge=True)
    assert world.made.manifest.purged_to == 90
    assert world.verify() == []
    session = made.log.claim_compactor(lease_ms=1000, holder="test")
    session.expire(made.manifest.segments[:2])
    assert world.verify() == []


def test_a_foreign_index_is_found(world: World) -> None:
    world.overwrite(world.index_key(1), world.data(world.index_key(2)))
    found = world.verify()
    assert {f["object"] for f in found} == {world.index_key(1)}
    assert "index-damaged" in kinds(found)


def test_a_manifest_of_another_partition_is_found(world: World) -> None:
    other = made_log(MemoryStore(), Place("topics", "users", 1))
    world.overwrite(world.made.place.manifest_key, other.store.get(other.place.manifest_key).data)
    assert "it belongs to users-1" in one(world.verify(), "manifest-damaged")["what"]


def test_an_impossible_manifest_is_found(world: World) -> None:
    world.put_manifest(lambda m: replace(m, purged_to=10_000))
    assert "purged_to is 10000" in one(world.verify(), "manifest-damaged")["what"]
