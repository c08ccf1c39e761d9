"""Stored blocks as Arrow: the same records as one after another, and the same refusals."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfold.log.arrow import COLUMNS, RECORDS, BlockRows, RawBlock, decode_blocks
from keyfold.log.arrow_headers import FEW_RECORDS
from keyfold.log.avro import SegmentDamaged, StoredBlock, read_blocks
from keyfold.log.codec import CODECS, open_codec
from keyfold.log.record import CREATE_TIME, NO_TIMESTAMP, Record
from keyfold.log.record_decoder import decode_raw, decompress_block
from tests.support.segments import Made, make, plain_records, record_lists


def blocks_of(made: Made) -> list[RawBlock]:
    codec = open_codec(made.index.codec)
    stored = [b for b in read_blocks(made.data) if isinstance(b, StoredBlock)]
    return [RawBlock(b.number, bytes(decompress_block(b, codec)), b.record_count) for b in stored]


def rows_of(made: Made) -> BlockRows:
    return BlockRows(*(made.index.ints(name) for name in ("offset", "position", "length")))


def records_of(batch: pa.RecordBatch) -> list[Record]:
    columns = [batch.column(name) for name in COLUMNS]
    columns[1] = columns[1].cast(pa.int64())
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return [
        Record(offset, timestamp, kind, key, value, tuple((h["name"], h["value"]) for h in headers), epoch)
        for offset, timestamp, kind, key, value, headers, epoch in rows
    ]


def decoded(made: Made, columns: Sequence[str] | None = None, few_records: int = FEW_RECORDS) -> pa.RecordBatch:
    batch = decode_blocks(blocks_of(made), rows_of(made), columns, few_records=few_records)
    batch.validate(full=True)
    return batch


@given(record_lists(), st.sampled_from(CODECS), st.sampled_from([1, 200, 1000, 65536]), st.booleans())
@pytest.mark.sharded
@settings(max_examples=60, deadline=None)
def test_batch_decoding_equals_decoding_one_by_one(
    batch: list[Record], codec: str, block_bytes: int, one_by_one: bool
) -> None:
    made = make(batch, codec=codec, block_bytes=block_bytes)
    found = decoded(made, few_records=1000 if one_by_one else 1)
    assert found.schema == RECORDS
    assert records_of(found) == batch == made.records()


@given(record_lists(), st.lists(st.sampled_from(COLUMNS), unique=True, min_size=1), st.data())
@pytest.mark.sharded
@settings(max_examples=50, deadline=None)
def test_requested_columns_and_rows_are_a_subset_of_all(
    batch: list[Record], columns: list[str], data: st.DataObject
) -> None:
    made = make(batch, block_bytes=300)
    keep = np.array([data.draw(st.booleans()) for _ in batch], np.bool_)
    found = decode_blocks(blocks_of(made), rows_of(made), columns, keep=keep)
    found.validate(full=True)
    assert found.equals(decoded(made).filter(pa.array(keep)).select(columns))


@given(record_lists(max_size=12), st.data())
@pytest.mark.sharded
@settings(max_examples=200, deadline=None)
def test_damage_is_refused_exactly_where_the_slow_decoder_refuses_it(batch: list[Record], data: st.DataObject) -> None:
    made = make(batch, codec="null", block_bytes=10**6)
    (block,) = blocks_of(made)
    raw = bytearray(block.raw)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF, raw[at] ^ 1, raw[at] ^ 0x80]))
    broken = RawBlock(0, bytes(raw), block.record_count)
    expected, refusal = slowly(broken)
    if refusal:
        with pytest.raises(SegmentDamaged) as raised:
            decode_blocks([broken], rows_of(made), origin="x")
        assert str(raised.value) == refusal or "its index" in str(raised.value)
        return
    ends_agree = [r.offset for r in expected] == [r.offset for r in batch]
    try:
        found = records_of(decode_blocks([broken], rows_of(made), origin="x"))
    except SegmentDamaged:
        # The index says where records end and which offsets they have; the slow decoder does not know it.
        assert not ends_agree or _ends(expected) != made.index.ints("length").tolist()
    else:
        assert found == expected


def slowly(block: RawBlock) -> tuple[list[Record], str]:
    try:
        return decode_raw(bytes(block.raw), block.record_count, origin="x"), ""
    except SegmentDamaged as error:
        return [], str(error)


def _ends(records: list[Record]) -> list[int]:
    return make(records, codec="null", block_bytes=5 * 10**6).index.ints("length").tolist()  # type: ignore[no-any-return]  # numbers


@given(record_lists(max_size=12), st.data())
@pytest.mark.sharded
@settings(max_examples=200, deadline=None)
def test_an_index_of_other_numbers_is_refused(batch: list[Record], data: st.DataObject) -> None:
    made = make(batch, codec="null", block_bytes=200)
    columns = [np.array(made.index.ints(name)) for name in ("offset", "position", "length")]
    column, row = data.draw(st.sampled_from(columns)), data.draw(st.integers(0, len(batch) - 1))
    by = data.draw(st.sampled_from([-(2**31), -1, 1, 7, 2**31 - 1]))
    was = int(column[row])
    column[row] = np.array(was + by).astype(column.dtype)
    with pytest.raises(SegmentDamaged, match="index"):
        decode_blocks(blocks_of(made), BlockRows(*columns))


def test_a_batch_represents_unusual_records() -> None:
    batch = [
        Record(3, -1, NO_TIMESTAMP, None, None, (), -1),
        Record(7, -(2**63), CREATE_TIME, b"", b"", (("a", None), ("a", b""), ("", b"\xff")), 2**31 - 1),
        Record(9, 2**63 - 1, CREATE_TIME, b"k", None, tuple((f"h{i}", b"v") for i in range(500))),
        Record(2**62, 0, CREATE_TIME, None, b"v" * 70_000, (), -(2**31)),
    ]
    made = make(batch, block_bytes=100)
    assert records_of(decoded(made)) == batch


def test_unwanted_rows_are_not_decoded_and_no_rows_are_an_empty_batch() -> None:
    made = make(list(plain_records(5)))
    found = decode_blocks(blocks_of(made), rows_of(made), ["value"], keep=np.zeros(5, np.bool_))
    assert (found.num_rows, found.schema.names) == (0, ["value"])


def test_an_unknown_column_is_refused() -> None:
    made = make(list(plain_records(2)))
    with pytest.raises(ValueError, match="unknown column 'partition'"):
        decoded(made, ["partition"])
    with pytest.raises(ValueError, match="no column was given"):
        decoded(made, [])
    with pytest.raises(ValueError, match="was given twice"):
        decoded(made, ["key", "key"])


def test_damage_in_the_second_of_three_blocks_is_named() -> None:
    made = make(list(plain_records(30)), block_bytes=1000, codec="null")
    blocks = blocks_of(made)
    raw = bytearray(blocks[1].raw)
    position = int(made.index.ints("position")[blocks[0].record_count + 2])
    raw[position + 10 :] = b"\xff" * (len(raw) - position - 10)
    blocks[1] = RawBlock(1, bytes(raw), blocks[1].record_count)
    with pytest.raises(SegmentDamaged, match=r"seg, block 1, record 2: "):
        decode_blocks(blocks, rows_of(made), origin="seg")


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(20))
def test_headers_of_all_lengths_are_decoded(seed: int) -> None:
    random = Random(seed)
    batch = [
        Record(
            o, o, CREATE_TIME, b"k%d" % o, random.choice([None, b"", random.randbytes(200)]),
            tuple((random.choice(["", "id", "ключ"]), random.choice([None, b"", random.randbytes(o % 90)]))
                  for _ in range(random.choice([0, 0, 1, 2, 3, 70] if seed % 2 else [0, 3]))),
        )
        for o in range(400)
    ]  # fmt: skip
    assert records_of(decoded(make(batch, block_bytes=5000))) == batch


def test_a_header_name_that_is_not_text_is_damage() -> None:
    batch = [Record(o, 0, CREATE_TIME, None, None, (("abcd", b"v"),)) for o in range(100)]
    made = make(batch, codec="null")
    (block,) = blocks_of(made)
    raw = bytearray(block.raw)
    raw[raw.index(b"abcd", int(made.index.ints("position")[61]))] = 0xFF
    with pytest.raises(SegmentDamaged, match=r"block 0, record 61: .*utf-8"):
        decode_blocks([RawBlock(0, bytes(raw), 100)], rows_of(made))
