"""The quick proof says yes exactly where the slow one finds these rows; whatever is bent, it says no."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfold.log.avro import StoredBlock, parse_block
from keyfold.log.codec import open_codec
from keyfold.log.index import ROWS, Index
from keyfold.log.record import TIMESTAMP_TYPES, Record
from keyfold.log.segment import SegmentWriter, segment_bytes
from keyfold.runtime.arrow_types import values_of
from keyfold.verify.key_hashes import BUCKETS_MAX, IN_LOG, TOMBSTONE, HashedRows, hashes_of
from keyfold.verify.row_checks import index_rows, prove, raw_rows
from tests.support.logs import columns

LONGS = st.integers(-(2**63), 2**63 - 1)
BYTES = st.one_of(st.none(), st.binary(max_size=200))
RECORDS = st.lists(
    st.builds(
        Record,
        st.integers(1, 2**40),
        st.one_of(st.just(-1), st.integers(0, 2**42), LONGS),
        st.sampled_from(TIMESTAMP_TYPES),
        BYTES,
        BYTES,
        st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=3).map(tuple),
        st.integers(-(2**31), 2**31 - 1),
    ),
    min_size=1,
    max_size=60,
)


def blocks_of(batch: list[Record], block_bytes: int) -> tuple[Index, list[bytes]]:
    """The index of a segment with these records at ascending offsets, and its raw blocks."""
    offset, ascending = 0, []
    for r in batch:
        offset += r.offset
        ascending.append(Record(offset, r.timestamp, r.timestamp_type, r.key, r.value, r.headers, r.leader_epoch))
    writer = SegmentWriter(sync_marker=bytes(16), codec="null", block_bytes=block_bytes)
    writer.append(columns(ascending))
    finished = writer.finish()
    data = memoryview(segment_bytes(finished))
    index = Index.parse(finished.index_data)
    codec = open_codec("null")
    return index, [
        bytes(codec.decompress(parse_block(data[p : p + n], None).payload))
        for p, n in zip(index.blocks.position.tolist(), index.blocks.length.tolist(), strict=True)
    ]


def is_proved(index: Index, raws: list[bytes]) -> bool:
    return prove(raws, index.rows, index.blocks.record_count)


def slow(index: Index, raws: list[bytes]) -> bool:
    """What the comparison record by record says."""
    for number, raw in enumerate(raws):
        block = StoredBlock(number, 0, int(index.blocks.record_count[number]), memoryview(b""), memoryview(b""))
        try:
            if list(raw_rows(raw, block)) != index_rows(index, number):
                return False
        except ValueError:
            return False
    return True


def is_quick(batch: list[Record]) -> bool:
    """Whether no number of a record takes more than eight bytes."""
    return all(-(2**55) <= r.timestamp < 2**55 for r in batch)


@given(RECORDS, st.sampled_from([1, 100, 5000]))
def test_intact_rows_are_proved(batch: list[Record], block_bytes: int) -> None:
    index, raws = blocks_of(batch, block_bytes)
    assert slow(index, raws)
    assert is_proved(index, raws) or not is_quick(batch)


@given(RECORDS, st.sampled_from([1, 100, 5000]), st.integers(0, 2**32))
def test_a_changed_byte_is_accepted_only_if_the_rows_are_still_right(
    batch: list[Record], block_bytes: int, seed: int
) -> None:
    index, raws = blocks_of(batch, block_bytes)
    random = Random(seed)
    for _ in range(20):
        number = random.randrange(len(raws))
        raw = bytearray(raws[number])
        raw[random.randrange(len(raw))] ^= random.choice([1, 2, 0x40, 0x80, 0xFF])
        bent = [*raws[:number], bytes(raw), *raws[number + 1 :]]
        if is_proved(index, bent):
            assert slow(index, bent)


@given(RECORDS, st.integers(0, 2**32))
def test_a_changed_row_is_never_proved(batch: list[Record], seed: int) -> None:
    index, raws = blocks_of(batch, 100)
    random = Random(seed)
    for name in ("offset", "timestamp", "key", "is_tombstone", "position", "length"):
        values = values_of(index.rows.column(name))
        at = random.randrange(len(values))
        if name == "key":
            was = values[at]
            values[at] = b"x" if was is None else random.choice([None, was + b"\0", was[1:] + b"~"])
        elif name == "is_tombstone":
            values[at] = not values[at]
        else:
            values[at] += random.choice([1, 7, 10**6]) if values[at] < 2**31 - 10**7 else -5
        if values == index.rows.column(name).to_pylist():
            continue
        column = index.rows.schema.get_field_index(name)
        rows = index.rows.set_column(column, ROWS.field(name), pa.array(values, ROWS.field(name).type))
        assert not prove(raws, rows, index.blocks.record_count)


def test_missing_bytes_rows_and_blocks_are_not_proved() -> None:
    batch = [Record(1, 5, "CreateTime", b"key", b"v" * 50) for _ in range(40)]
    index, raws = blocks_of(batch, 500)
    assert len(raws) > 2
    assert is_proved(index, raws)
    assert not is_proved(index, [*raws[:-1], raws[-1][:-1]])
    assert not is_proved(index, [*raws[:-1], raws[-1] + b"\0"])
    assert not is_proved(index, [*raws[:-1], b""])
    assert not prove(raws, index.rows[:-1], index.blocks.record_count)


@given(st.lists(st.binary(max_size=1200), max_size=30))
def test_equal_keys_have_equal_hashes_at_any_position(keys: list[bytes]) -> None:
    together = hashes_of(pa.array(keys, pa.binary()))
    alone = [int(hashes_of(pa.array([key], pa.binary()))[0]) for key in keys]
    assert together.tolist() == alone
    assert len(set(alone)) == len(set(keys))
    sliced = hashes_of(pa.array([b"before", *keys], pa.binary())[1:])
    assert sliced.tolist() == alone


@pytest.mark.parametrize("expected", [2**31, 2**63])
def test_rows_that_only_the_manifest_claims_allocate_nothing(expected: int) -> None:
    with HashedRows(expected, 1) as rows:
        assert rows.bucket_count <= BUCKETS_MAX
        rows.add(pa.array([b"a", b"b", b"a"]), np.arange(3), np.full(3, IN_LOG, np.uint8))
        assert sorted(len(group.offset) for group in rows.groups()) == [1, 2]


@pytest.mark.parametrize("rows_at_once", [1, 7, 50, 10_000])
def test_rows_are_grouped_by_key_for_any_memory_limit(rows_at_once: int) -> None:
    random = Random(1)
    keys = [random.choice([b"a", b"bb", b"", b"d" * 50, None, b"%d" % random.randrange(30)]) for _ in range(500)]
    with HashedRows(len(keys), rows_at_once) as rows:
        for start in range(0, 500, 50):
            part = pa.array(keys[start : start + 50], pa.binary())
            rows.add(part, np.arange(start, start + 50), np.full(50, IN_LOG, np.uint8))
        rows.add(pa.array([b"a"], pa.binary()), np.array([0]), np.array([TOMBSTONE], np.uint8))
        groups = list(rows.groups())
    found: dict[int, list[int]] = {}
    for group in groups:
        for key_hash, offset in zip(group.hash.tolist(), group.offset.tolist(), strict=True):
            found.setdefault(key_hash, []).append(offset)
    expected: dict[bytes, list[int]] = {}
    for offset, key in enumerate(keys):
        if key is not None:
            expected.setdefault(key, []).append(offset)
    expected[b"a"] = sorted({0, *expected[b"a"]})
    assert sorted(found.values()) == sorted(expected.values())
    if rows_at_once < 500:
        assert len(groups) > 1
