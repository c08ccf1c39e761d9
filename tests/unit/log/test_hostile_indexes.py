"""Indexes that grow when Arrow reads them: each is `SegmentDamaged` by name, and costs no memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from keyfold.log.avro import SegmentDamaged, varint
from keyfold.log.index import ROW_GROUP_ROWS, Index
from keyfold.runtime.zstd import zstd
from tests.support.bounded import Bounded
from tests.support.hostile import zeros_zstd
from tests.support.hostile_index import data_page, footer_of, index_file, with_footer, with_key_page

PLAIN, DELTA_LENGTH = 0, 6
SAME_KEYS = pa.chunked_array([pa.array([Random(1).randbytes(5000)] * 1024)] * (ROW_GROUP_ROWS // 1024))
"""655 MB of keys in 5 MB of memory."""

ROOM = Random(1).randbytes(200_000)
"""A key whose page has room for another one, as it is larger than that when it is compressed."""


def key_page(stored: bytes, unpacked_bytes: int, encoding: int, value_count: int = 1) -> bytes:
    page = data_page(stored, unpacked_bytes, value_count, encoding)
    return with_key_page(index_file([ROOM], length=len(ROOM), write_page_checksum=False), page)


def lengths(count: int, *, levels: bytes = b"\x02\x01") -> tuple[bytes, int]:
    """A page of keys that claims this number of empty keys: a block of 2^31 lengths of no bits. And its raw size."""
    numbers = b"".join(varint(n // 2 if n % 2 == 0 else -(n + 1) // 2) for n in (1 << 31, 1, count))
    raw = len(levels).to_bytes(4, "little") + levels + numbers + bytes(40)
    return zstd.compress(raw), len(raw)


def many_columns() -> bytes:
    """A footer with a row group that claims a million columns, each of which is a struct of a kilobyte in Arrow."""
    data = index_file([b"a"])
    columns = b"\x19\xfc" + bytes([0xC0, 0x84, 0x3D])  # a list of 1,000,000 structs
    return with_footer(data, b"\x15\x02" + b"\x19\x0c" + b"\x16\x02" + b"\x19\x1c" + columns)


ATTACKS: dict[str, Callable[[], bytes]] = {
    "a dictionary of keys": lambda: index_file(SAME_KEYS, use_dictionary=["key"]),
    "keys that repeat the key before": lambda: index_file(
        SAME_KEYS, column_encoding={"key": "DELTA_BYTE_ARRAY"}
    ),
    "a page larger than the footer says": lambda: key_page(zeros_zstd(2**31 - 1, checksum=False), 2**31 - 1, PLAIN),
    "more lengths than values": lambda: key_page(*lengths(400_000_000), DELTA_LENGTH),
    "more lengths than values behind long levels": lambda: key_page(
        *lengths(400_000_000, levels=b"\x02\x01" * 10_240), DELTA_LENGTH
    ),
    "levels of any size": lambda: key_page(
        zstd.compress((2**30).to_bytes(4, "little") + bytes(10**6)), 2**30, DELTA_LENGTH
    ),
    "row groups with a large key each": lambda: index_file(
        pa.chunked_array([pa.array([bytes(60_000_000)])] * 12), group_rows=1
    ),
    "a million columns": many_columns,
}  # fmt: skip


@pytest.fixture(scope="module")
def bounded() -> Iterator[Bounded]:
    with Bounded() as process:
        yield process


@cache
def made(attack: str) -> bytes:
    return ATTACKS[attack]()


def read(data: bytes, way: str) -> str:
    ways: dict[str, Callable[[], object]] = {
        "whole": lambda: len(Index.parse(data)),
        "keys": lambda: len(Index.parse(data, columns=("offset", "key"))),
        "parts": lambda: sum(len(part) for part in Index.parts(data)),
        "backwards": lambda: sum(len(rows) for _, rows in Index.groups_backwards(data, columns=("offset", "key"))),
    }
    try:
        return f"read {ways[way]()}"
    except SegmentDamaged as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.sharded
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("way", ["whole", "keys", "parts", "backwards"])
def test_an_index_that_expands_beyond_its_limit_is_damaged(bounded: Bounded, attack: str, way: str) -> None:
    assert len(made(attack)) < 1_000_000
    assert bounded.run(read, made(attack), way).startswith("SegmentDamaged: ")


def table(data: bytes) -> str:
    try:
        return f"read {len(Index.block_table(data[4:]))}"
    except SegmentDamaged as error:
        return f"{type(error).__name__}: {error}"


TABLES: dict[str, Callable[[], bytes]] = {
    "a row group of any size": lambda: index_file([None] * (ROW_GROUP_ROWS + 1)),
    "a million columns": many_columns,
}


@pytest.mark.parametrize("which", TABLES)
def test_an_oversized_block_table_is_refused_with_its_index(bounded: Bounded, which: str) -> None:
    assert bounded.run(table, TABLES[which]()).startswith("SegmentDamaged: ")


REFUSED: dict[str, dict[str, Any]] = {
    "a dictionary of numbers": {"use_dictionary": ["offset"]},
    "another codec": {"compression": "gzip"},
    "pages of format 2": {"data_page_version": "2.0"},
    "an encoding of another kind": {"column_encoding": {"block": "BYTE_STREAM_SPLIT"}},
}


@pytest.mark.parametrize("what", REFUSED)
def test_index_features_that_keyfold_never_writes_are_refused_by_name(what: str) -> None:
    with pytest.raises(SegmentDamaged, match=r"dictionary|codec|type|encoding"):
        Index.parse(index_file([b"a", None, b"b"], **REFUSED[what]))


READ: dict[str, dict[str, Any]] = {
    "all of it by zstd": {},
    "nothing compressed": {"compression": "none"},
    "keys with their lengths apart": {"column_encoding": {"key": "DELTA_LENGTH_BYTE_ARRAY"}},
    "the same not compressed": {"column_encoding": {"key": "DELTA_LENGTH_BYTE_ARRAY"}, "compression": "none"},
    "small pages and row groups": {"data_page_size": 64, "write_batch_size": 7, "group_rows": 100},
    "with statistics of pages and an index of them": {"write_page_index": True, "write_page_checksum": True},
}


@pytest.mark.parametrize("what", READ)
@pytest.mark.parametrize(
    "keys", [[b"a", None, b""], [None] * 5000, [b"%d" % n if n % 3 else None for n in range(5000)]]
)
def test_every_index_that_keyfold_may_write_is_readable(what: str, keys: list[bytes | None]) -> None:
    data = index_file(keys, **READ[what])
    assert Index.parse(data).rows.column("key").to_pylist() == keys
    assert [key for part in Index.parts(data) for key in part.rows.column("key").to_pylist()] == keys
    assert len(Index.block_table(data[len(data) - len(footer_of(data)) - 8 :])) == 1


def test_keys_as_large_as_their_records_are_readable() -> None:
    keys = [Random(1).randbytes(3_000_000), None, b"a"]
    data = index_file(keys, length=3_000_000, column_encoding={"key": "DELTA_LENGTH_BYTE_ARRAY"})
    assert Index.parse(data).rows.column("key").to_pylist() == keys


@pytest.mark.sharded
@pytest.mark.parametrize("end", range(1, 60))
def test_a_truncated_footer_is_damaged(end: int) -> None:
    data = index_file([b"a"])
    footer = footer_of(data)
    for cut in (footer[: -end * len(footer) // 60 or None], footer[end:]):
        with pytest.raises(SegmentDamaged):
            Index.parse(with_footer(data, cut))
