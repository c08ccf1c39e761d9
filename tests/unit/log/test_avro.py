"""Container files: what is written is exactly what is read, and damage is named by block and record."""

import pytest

from keyfold.log.avro import (
    SegmentDamaged,
    SegmentHeader,
    StoredBlock,
    header_bytes,
    parse_block,
    parse_header,
    read_blocks,
    read_varint,
    stored_block,
    varint,
)
from keyfold.log.codec import CODECS
from keyfold.log.record import Record
from keyfold.log.record_decoder import decode_block, read_records
from keyfold_schemas import load_schema, schema_text
from tests.support.pickled import sent
from tests.support.segments import SYNC, Made, make, plain_records

EDGES = [0, -1, 1, 63, -64, 64, -65, 8191, 8192, 2**31 - 1, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63)]


@pytest.fixture(scope="module")
def small() -> Made:
    records = [*plain_records(9, value_bytes=10), Record(9, 5, "CreateTime", None, None, (("a", None), ("b", b"x")), 3)]
    return make(records, block_bytes=80)


@pytest.mark.parametrize("number", EDGES)
def test_numbers_round_trip(number: int) -> None:
    assert read_varint(b"?" + varint(number) + b"?", 1) == (number, 1 + len(varint(number)))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9, b"\xff" * 10, b"\xff" * 9 + b"\x02", b"\x80\x00"])
def test_an_invalid_number_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="has a malformed varint"):
        read_varint(data, 0)


@pytest.mark.parametrize("codec", CODECS)
def test_a_header_round_trips(codec: str) -> None:
    data = header_bytes(codec, SYNC)
    header = parse_header(data + b"blocks")
    assert header == SegmentHeader(codec, SYNC, schema_text("record", 1), len(data))


def test_invalid_headers_are_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        header_bytes("null", b"short")
    with pytest.raises(ValueError, match="bzip2"):
        header_bytes("bzip2", SYNC)


def test_every_damage_to_a_header_is_found_the_sync_marker_through_its_blocks() -> None:
    data = header_bytes("zstandard", SYNC)
    for position in range(len(data) - len(SYNC)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(SegmentDamaged):
                parse_header(bytes(damaged))


def test_a_truncated_header_is_damaged() -> None:
    data = header_bytes("zstandard", SYNC)
    for length in range(len(data)):
        with pytest.raises(SegmentDamaged):
            parse_header(data[:length])


def test_a_newer_format_is_named() -> None:
    data = header_bytes("null", SYNC).replace(b"keyfold.format\x02" + b"1", b"keyfold.format\x02" + b"2")
    with pytest.raises(SegmentDamaged, match="has format '2'; this version reads format '1'"):
        parse_header(data, origin="a.avro")


def test_chunks_of_any_size_give_the_same_blocks(small: Made) -> None:
    whole = [b.position for b in read_blocks(small.data) if isinstance(b, StoredBlock)]
    assert len(whole) > 3
    for size in (1, 7, 100, 4096):
        chunks = [small.data[i : i + size] for i in range(0, len(small.data), size)]
        assert [b.position for b in read_blocks(chunks) if isinstance(b, StoredBlock)] == whole
        assert list(read_records(chunks, blocks=small.index.blocks)) == small.records()


@pytest.mark.parametrize("codec", CODECS)
def test_every_flipped_bit_of_a_segment_is_found(codec: str) -> None:
    segment = make(list(plain_records(6, value_bytes=20)), codec=codec, block_bytes=100)
    for position in range(len(segment.data)):
        for bit in (0, 3, 7):
            damaged = bytearray(segment.data)
            damaged[position] ^= 1 << bit
            with pytest.raises(SegmentDamaged):
                list(read_records(bytes(damaged), blocks=segment.index.blocks))


@pytest.mark.parametrize("codec", ["zstandard", "snappy"])
def test_without_the_index_no_flipped_bit_makes_other_records(codec: str) -> None:
    """Some bits of a compressed block mean nothing; only the CRC-32 in the index sees those."""
    segment = make(list(plain_records(6, value_bytes=20)), codec=codec, block_bytes=100)
    records = segment.records()
    found = 0
    for position in range(len(segment.data)):
        for bit in range(8):
            damaged = bytearray(segment.data)
            damaged[position] ^= 1 << bit
            try:
                assert list(read_records(bytes(damaged))) == records
            except SegmentDamaged:
                found += 1
    assert found > 0.99 * 8 * len(segment.data)


@pytest.mark.parametrize("codec", CODECS)
def test_truncation_is_found_at_every_byte(codec: str) -> None:
    segment = make(list(plain_records(6, value_bytes=20)), codec=codec, block_bytes=100)
    for length in range(len(segment.data)):
        with pytest.raises(SegmentDamaged):
            list(read_records(segment.data[:length], blocks=segment.index.blocks))


@pytest.mark.parametrize("start", [b"\x80\x00", b"\xff" * 9 + b"\x02", b"\xff" * 50_000])
def test_records_that_do_not_start_with_a_number_are_damage(start: bytes) -> None:
    with pytest.raises(SegmentDamaged, match="block 0, record 0: has a malformed varint"):
        decode_block(stored_block(1, start + bytes(20), SYNC), "null")


def test_random_bytes_only_raise_the_documented_errors(small: Made) -> None:
    payloads = [b"", b"\0", b"\x02" * 50, bytes(range(256)), b"\xff" * 30, b"\x80" * 12]
    for payload in payloads:
        with pytest.raises(SegmentDamaged):
            decode_block(stored_block(1, payload, SYNC), "null")
    for position in range(0, len(small.data), 3):
        damaged = small.data[:position] + b"\xff\x7f\x00" + small.data[position + 3 :]
        with pytest.raises(SegmentDamaged):
            list(read_records(damaged))


def test_damage_is_named_by_object_block_and_record() -> None:
    records = list(plain_records(8, value_bytes=20))
    segment = make(records, codec="null", block_bytes=150)
    second = int(segment.index.blocks.position[1])
    row = int(segment.index.ints("block").searchsorted(1)) + 1
    at = second + 2 + int(segment.index.ints("position")[row])
    type_of_it = segment.data.index(b"\x02\x02", at)
    damaged = segment.data[:type_of_it] + b"\x08" + segment.data[type_of_it + 1 :]
    with pytest.raises(SegmentDamaged, match=r"p/a\.avro, block 1, record 1: .*timestamp type 8") as raised:
        list(read_records(damaged, origin="p/a.avro"))
    assert (raised.value.origin, raised.value.block, raised.value.record) == ("p/a.avro", 1, 1)


def test_damage_errors_can_be_pickled() -> None:
    error = SegmentDamaged("p/a.avro", "is broken", block=3, record=1)
    again = sent(error)
    assert str(again) == str(error) == "p/a.avro, block 3, record 1: is broken"
    assert (again.origin, again.block, again.record) == ("p/a.avro", 3, 1)


def test_offsets_that_do_not_ascend_are_damage() -> None:
    one = make(list(plain_records(3)), codec="null")
    body = one.data[int(one.index.blocks.position[0]) :]
    with pytest.raises(SegmentDamaged, match="block 1, record 0: has offset 0 after offset 2"):
        list(read_records(one.data + body))


def test_a_foreign_sync_marker_is_found() -> None:
    block = stored_block(1, b"payload", SYNC)
    assert parse_block(memoryview(block), SYNC).payload.tobytes() == b"payload"
    with pytest.raises(SegmentDamaged, match="block 4: does not end with the sync marker"):
        parse_block(memoryview(block), bytes(16), number=4)
    with pytest.raises(SegmentDamaged, match="block 0: declares"):
        parse_block(memoryview(block + b"x"), SYNC)


def test_another_segments_index_is_refused() -> None:
    records = list(plain_records(6, value_bytes=40))
    one, other = make(records, block_bytes=100), make(records, block_bytes=150)
    with pytest.raises(SegmentDamaged, match="has another position or length"):
        list(read_records(one.data, blocks=other.index.blocks))


def test_schemas_are_loaded_by_name_and_version() -> None:
    names = [field["name"] for field in load_schema("record", 1)["fields"]]
    assert names == ["offset", "timestamp", "timestamp_type", "key", "value", "headers", "leader_epoch"]
    with pytest.raises(LookupError, match="record of version 99"):
        load_schema("record", 99)
