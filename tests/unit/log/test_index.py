"""Indexes: what is written is read, damage is found, and the manifest's checksum stands above all."""

from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from keyfold.errors import Corrupt, ObjectNotFound
from keyfold.log.assembly import SegmentLimits
from keyfold.log.avro import SegmentDamaged, StoredBlock, read_blocks
from keyfold.log.codec import CODECS
from keyfold.log.index import ROWS, BlockTable, Index, IndexWriter, read_index, remark
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from tests.support.segments import SYNC, Made, make, plain_records

PLACE = Place("topics", "users", 3)


@pytest.fixture(scope="module")
def segment() -> Made:
    records = [
        *plain_records(500),
        Record(500, -1, "NoTimestampType", None, b""),
        Record(2**60, 1, "CreateTime", b"", None),
    ]
    return make(records, block_bytes=3000)


@pytest.mark.parametrize("codec", CODECS)
def test_rows_and_blocks_locate_every_record(codec: str) -> None:
    from keyfold.log.codec import open_codec
    from keyfold.log.record_decoder import decode_record

    made = make(list(plain_records(300)), codec=codec, block_bytes=2000)
    index, records = made.index, made.records()
    assert (index.codec, index.sync_marker, len(index)) == (codec, SYNC, 300)
    for block in read_blocks(made.data):
        if not isinstance(block, StoredBlock):
            continue
        raw = bytes(open_codec(codec).decompress(block.payload))
        rows = np.flatnonzero(index.ints("block") == block.number)
        assert index.blocks.first_offset[block.number] == records[rows[0]].offset
        for row in rows.tolist():
            start = int(index.ints("position")[row])
            record, end = decode_record(raw, start)
            assert (record, end - start) == (records[row], index.ints("length")[row])


def test_columns_are_one_chunk_each_and_have_the_agreed_types(segment: Made) -> None:
    assert segment.index.rows.schema.equals(ROWS)
    assert all(column.num_chunks == 1 for column in segment.index.rows.columns)
    assert segment.index.rows["cleaned_epoch"].null_count == 502
    assert segment.index.rows["key"].to_pylist()[-2:] == [None, b""]
    assert segment.index.is_tombstone.tolist()[-3:] == [False, False, True]


def test_encode_and_parse_are_inverse(segment: Made) -> None:
    again = Index.parse(segment.index.encode())
    assert again.rows.equals(segment.index.rows)
    assert again.encode() == segment.index.encode() == segment.finished.index_data
    assert np.array_equal(again.blocks.crc32, segment.index.blocks.crc32)


def test_some_columns_can_be_read_alone(segment: Made) -> None:
    index = Index.parse(segment.finished.index_data, columns=["offset", "key"])
    assert index.rows.schema.names == ["offset", "key"]
    assert index.ints("offset").tolist() == segment.index.ints("offset").tolist()
    assert len(index.blocks) == len(segment.index.blocks)


def test_a_remarked_index_has_other_marks_and_nothing_else(segment: Made) -> None:
    marks: list[int | None] = [None] * 501 + [7]
    marked = Index.parse(remark(segment.index, pa.array(marks, pa.int32())).encode())
    assert marked.rows["cleaned_epoch"].to_pylist() == marks
    others = [name for name in ROWS.names if name != "cleaned_epoch"]
    assert marked.rows.select(others).equals(segment.index.rows.select(others))
    assert np.array_equal(marked.blocks.position, segment.index.blocks.position)
    with pytest.raises(ValueError, match="3 marks for 502 rows"):
        remark(segment.index, pa.array([1, 2, 3], pa.int32()))


def test_large_indexes_have_several_row_groups_and_still_one_chunk() -> None:
    made = make(list(plain_records(1050)), limits=SegmentLimits(row_group_rows=100))
    assert pq.ParquetFile(BytesIO(made.finished.index_data)).num_row_groups == 11
    assert made.index.ints("offset").tolist() == list(range(1050))
    assert made.index.rows["key"].num_chunks == 1


def test_truncated_and_overwritten_indexes_are_damage(segment: Made) -> None:
    data = segment.finished.index_data
    for length in (0, 3, 4, 100, len(data) // 2, len(data) - 1):
        with pytest.raises(SegmentDamaged, match="the index cannot be read"):
            Index.parse(data[:length], origin="i.parquet")


def test_a_flipped_bit_in_an_index_never_makes_another_index(segment: Made) -> None:
    """Also without the manifest's checksum, as when a lost manifest is repaired."""
    data = segment.finished.index_data
    found = 0
    for position in range(0, len(data), 3):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        try:
            index = Index.parse(bytes(damaged))
        except SegmentDamaged:
            found += 1
            continue
        # Statistics and the like are not looked at; what is looked at is the same.
        assert index.rows.equals(segment.index.rows)
        assert (index.codec, index.sync_marker) == (segment.index.codec, segment.index.sync_marker)
        assert index.blocks.encode() == segment.index.blocks.encode()
    assert found > len(data) / 3 / 2


def test_every_flipped_byte_of_an_index_is_found_against_the_manifest(segment: Made) -> None:
    store = MemoryStore()
    entry = segment.finished.entry("s.avro", "i", base_offset=0, next_offset=2**61)
    data = segment.finished.index_data
    for number, position in enumerate(range(0, len(data), 41)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        name = f"_index/{number}.parquet"
        store.put(PLACE.key(name), bytes(damaged), Create())
        with pytest.raises(Corrupt, match=rf"users-3: index `{PLACE.key(name)}`.*does not have the SHA-256"):
            read_index(store, PLACE, replace(entry, index_name=name))


def test_read_index_reads_what_the_manifest_names(segment: Made) -> None:
    store = MemoryStore()
    entry = segment.finished.entry("s.avro", "_index/i.parquet", base_offset=0, next_offset=2**61)
    with pytest.raises(ObjectNotFound):
        read_index(store, PLACE, entry)
    store.put(PLACE.key("_index/i.parquet"), segment.finished.index_data, Create())
    assert read_index(store, PLACE, entry).rows.equals(segment.index.rows)
    assert read_index(store, PLACE, entry, columns=["key"]).rows.schema.names == ["key"]
    with pytest.raises(Corrupt, match="has 502 rows, but its segment has 501 records"):
        read_index(store, PLACE, replace(entry, record_count=501))


def test_indexes_of_other_formats_and_shapes_are_refused(segment: Made) -> None:
    writer = IndexWriter(codec="null", sync_marker=SYNC)
    writer.write(segment.index.rows.slice(0, 10))
    with pytest.raises(SegmentDamaged, match="rows do not match its block table"):
        Index.parse(writer.finish(segment.index.blocks))
    newer = segment.finished.index_data.replace(b"keyfold.format\x18\x011", b"keyfold.format\x18\x012")
    assert newer != segment.finished.index_data
    with pytest.raises(SegmentDamaged, match="the index has format '2'; this version reads format '1'"):
        Index.parse(newer)


@pytest.mark.parametrize("text", [b"", b"!", b"AAAA", b"KLUv/SQ="])
def test_an_invalid_block_table_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        BlockTable.parse(text)


def test_block_tables_are_compact() -> None:
    count = 2000
    chance = np.random.default_rng(1)
    length = chance.integers(15_000, 25_000, count)
    numbers: dict[str, Any] = {
        "position": np.cumsum(length) - length + 800,
        "length": length,
        "record_count": chance.integers(280, 320, count),
        "first_offset": np.arange(count) * 300,
        "crc32": chance.integers(0, 2**32, count),
    }
    table = BlockTable(**numbers)
    text = table.encode()
    assert len(text) < 20 * count
    parsed = BlockTable.parse(text)
    assert all(np.array_equal(getattr(parsed, name), value) for name, value in numbers.items())
