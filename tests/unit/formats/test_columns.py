"""Columns of keys and values: decoding many at once equals decoding each."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from unittest.mock import patch
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfold.errors import ConfigError
from keyfold.formats import columns
from keyfold.formats.arrow_types import NoArrowType, arrow_type
from keyfold.formats.avro_schema import avro_type
from keyfold.formats.column_type import column_for
from keyfold.formats.columns import AvroColumn, Decoded, StringColumn
from keyfold.formats.errors import Unsuited
from keyfold.formats.format import Format, RecordPart
from keyfold.formats.schema_archive import SchemaArchive
from keyfold.log.arrow_headers import HEADERS
from keyfold.runtime.arrow_types import ArrowArray, values_of
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from tests.support.avro_words import Json, decimal, kept, logical, record


def written(schema: Json, value: Any, key: int = 1) -> bytes:
    out = io.BytesIO()
    if schema in ("bytes", {"type": "bytes"}):
        out.write(value)
        return b"\0" + key.to_bytes(4) + out.getvalue()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return b"\0" + key.to_bytes(4) + out.getvalue()


def without_logical(schema: Json) -> Json:
    """The schema as the encoder is given a value of it: decimals as their bytes, times as their numbers."""
    if isinstance(schema, dict) and schema["type"] == "bytes":
        return "bytes"
    return {k: v for k, v in schema.items() if k != "logicalType"} if isinstance(schema, dict) else schema


def avro(writer: Json, reader: Json) -> AvroColumn:
    return AvroColumn(RecordPart.VALUE, kept(writer), avro_type(reader))


@contextmanager
def one_by_one() -> Iterator[None]:
    with patch.object(columns, "read_arrow", side_effect=Unsuited):
        yield


def texts(array: ArrowArray) -> str:
    """For arrays with NaN, which is not equal to itself; years beyond 9999 have no text."""
    try:
        return repr(array.to_pylist())
    except OverflowError:
        return ""


def bad(found: Decoded) -> list[tuple[int, str]]:
    return [(row, mismatch.message) for row, mismatch in found.mismatches]


def both_ways(column: AvroColumn, data: Sequence[bytes | None]) -> Decoded:
    """Decode at once and one by one; the two must agree."""
    array = pa.array(data, pa.binary())
    at_once = column.decode(array, None)
    with one_by_one():
        expected = column.decode(array, None)
    at_once.array.validate(full=True)
    assert at_once.array.equals(expected.array) or texts(at_once.array) == texts(expected.array)
    assert bad(at_once) == bad(expected)
    assert at_once.array.type == column.type
    return at_once


LIST = record("Node", at="int", next=["null", "Node"])
WRITER = record(
    "W",
    b="boolean",
    c="int",
    d="long",
    e="float",
    f="double",
    g=["null", "bytes"],
    h="string",
    i={"type": "fixed", "name": "Four", "size": 4},
    j={"type": "enum", "name": "Suit", "symbols": ["S", "H", "D"]},
    k={"type": "array", "items": ["null", "long"]},
    m={"type": "map", "values": {"type": "array", "items": record("In", p="int", q=["null", "string"])}},
    n=["null", "string", "long", "Four"],
    o=LIST,
    p=logical("bytes", "decimal", precision=20, scale=3),
    q=logical("long", "timestamp-millis"),
    r={"type": "array", "items": {"type": "array", "items": "string"}},
    s=["int", "null", "double"],
)
READER = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "d", "type": "double"},
        {"name": "new", "type": {"type": "array", "items": "string"}, "default": ["x", "y"]},
        {"name": "c", "type": ["null", "long"]},
        {"name": "b", "type": "boolean"},
        {"name": "e", "type": "double"},
        {"name": "f", "type": "double"},
        {"name": "g", "type": ["null", "bytes"]},
        {"name": "h", "type": ["null", "string"]},
        {"name": "i", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {"name": "j", "type": {"type": "enum", "name": "Suit", "symbols": ["H", "S", "X"], "default": "X"}},
        {"name": "k", "type": {"type": "array", "items": ["null", "double"]}},
        {
            "name": "m",
            "type": {"type": "map", "values": {"type": "array", "items": record("In", q=["null", "string"])}},
        },
        {"name": "p", "type": logical("bytes", "decimal", precision=24, scale=5)},
        {"name": "q", "type": logical("long", "timestamp-micros")},
        {"name": "r", "type": {"type": "array", "items": {"type": "array", "items": "string"}}},
        {"name": "s", "type": ["null", "double"]},
        {"name": "gone", "type": record("Gone", a="int", b="string"), "default": {"a": 1, "b": "b"}},
    ],
}
LONGS = st.integers(-(2**63), 2**63 - 1) | st.integers(-70, 70)
INTS = st.integers(-(2**31), 2**31 - 1) | st.integers(-70, 70)
TEXTS = st.text(max_size=4) | st.text(min_size=60, max_size=70)
NODES = st.recursive(
    st.fixed_dictionaries({"at": INTS, "next": st.none()}),
    lambda inner: st.fixed_dictionaries({"at": INTS, "next": st.none() | inner}),
    max_leaves=4,
)
VALUES = st.fixed_dictionaries(
    {
        "b": st.booleans(),
        "c": INTS,
        "d": LONGS,
        "e": st.floats(width=32, allow_nan=False),
        "f": st.floats(allow_nan=False),
        "g": st.none() | st.binary(max_size=70),
        "h": TEXTS,
        "i": st.binary(min_size=4, max_size=4),
        "j": st.sampled_from(["S", "H", "D"]),
        "k": st.lists(st.none() | LONGS, max_size=4),
        "m": st.dictionaries(
            TEXTS, st.lists(st.fixed_dictionaries({"p": INTS, "q": st.none() | TEXTS}), max_size=3), max_size=3
        ),
        "n": st.none() | TEXTS | LONGS | st.binary(min_size=4, max_size=4),
        "o": NODES,
        "p": st.decimals(-(10**10), 10**10, places=3, allow_nan=False),
        "q": st.integers(-(2**40), 2**40),
        "r": st.lists(st.lists(TEXTS, max_size=3), max_size=3),
        "s": st.none() | INTS | st.floats(allow_nan=False),
    }
)
RAW = {**WRITER, "fields": [{**f, "type": "long"} if f["name"] == "q" else f for f in WRITER["fields"]]}


@settings(max_examples=60)
@given(st.lists(st.none() | VALUES, min_size=1, max_size=12))
def test_decoding_a_batch_equals_decoding_one_by_one(values: list[Any]) -> None:
    data = [None if value is None else written(RAW, value) for value in values]
    found = both_ways(avro(WRITER, READER), data)
    assert found.mismatches == []
    for value, row in zip(values, values_of(found.array), strict=True):
        if value is not None:
            assert (row["h"], row["d"], row["p"], row["r"]) == (value["h"], float(value["d"]), value["p"], value["r"])
            assert row["new"] == ["x", "y"]
            assert row["gone"] == {"a": 1, "b": "b"}


@settings(max_examples=80)
@given(
    st.lists(VALUES, min_size=2, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=4),
    st.booleans(),
)
def test_damage_is_found_in_a_batch_as_one_by_one(
    values: list[Any], flips: list[tuple[int, int, int]], cut: bool
) -> None:
    data = [bytearray(written(RAW, value)) for value in values]
    for row, at, byte in flips:
        target = data[row % len(data)]
        if cut:
            del target[5 + at % (len(target) - 5) :]
            target += b"\0" * (5 - len(target))
        else:
            target[5 + at % (len(target) - 5)] = byte
        if len(target) == 5:
            target += b"\0"
    both_ways(avro(WRITER, READER), [bytes(each) for each in data])


@given(st.lists(st.lists(st.integers(-3, 3), max_size=60), min_size=1, max_size=5))
def test_arrays_of_any_length_are_decoded(lists: list[list[int]]) -> None:
    schema = {"type": "array", "items": "long"}
    found = both_ways(avro(schema, schema), [written(schema, each) for each in lists])
    assert found.array.to_pylist() == lists


def test_arrays_in_several_blocks_are_decoded() -> None:
    schema = {"type": "array", "items": "int"}
    head = b"\0\0\0\0\1"
    rows = [b"\2\2\3\4\4\6\0", b"\0", b"\1\2\2\0", b"\4\2\4\0"]
    found = both_ways(avro(schema, schema), [head + row for row in rows])
    assert found.array.to_pylist() == [[1, 2, 3], [], [1], [1, 2]]


@pytest.mark.parametrize(
    ("kind", "value", "raw", "python"),
    [
        (logical("int", "date"), 19_000, pa.date32(), date(2022, 1, 8)),
        (logical("int", "time-millis"), 1, pa.time32("ms"), time(0, 0, 0, 1000)),
        (logical("long", "time-micros"), 1, pa.time64("us"), time(0, 0, 0, 1)),
        (logical("long", "timestamp-millis"), 1, pa.timestamp("ms", "UTC"), datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)),
        (logical("long", "timestamp-micros"), 1, pa.timestamp("us", "UTC"), datetime(1970, 1, 1, 0, 0, 0, 1, UTC)),
        (logical("long", "timestamp-nanos"), 1000, pa.timestamp("ns", "UTC"), None),
        (logical("long", "local-timestamp-millis"), 0, pa.timestamp("ms"), datetime(1970, 1, 1)),  # noqa: DTZ001 - a time without a zone is the case
        (logical("long", "timestamp-micros"), 2**63 - 1, pa.timestamp("us", "UTC"), None),
        (logical("string", "uuid"), str(UUID(int=5)), pa.string(), str(UUID(int=5))),
        (logical("string", "uuid"), str(UUID(int=0xAB)).upper(), pa.string(), str(UUID(int=0xAB))),
        (logical("fixed", "uuid", name="U", size=16), UUID(int=0xABCDEF).bytes, pa.string(), str(UUID(int=0xABCDEF))),
        (logical("fixed", "duration", name="D", size=12), bytes(12), pa.binary(12), bytes(12)),
        (logical("bytes", "decimal", precision=4, scale=2), b"\xff", pa.decimal128(4, 2), Decimal("-0.01")),
        (logical("bytes", "decimal", precision=4, scale=2), b"", pa.decimal128(4, 2), Decimal("0.00")),
        (logical("bytes", "decimal", precision=4, scale=2), bytes(30), pa.decimal128(4, 2), Decimal("0.00")),
        (logical("bytes", "decimal", precision=50, scale=2), b"\x01" * 18, pa.decimal256(50, 2), None),
        (logical("fixed", "decimal", name="F", size=3, precision=6), b"\0\1\0", pa.decimal128(6, 0), Decimal(256)),
        ({"type": "fixed", "name": "G", "size": 2}, b"ab", pa.binary(2), b"ab"),
        ({"type": "fixed", "name": "H", "size": 100}, bytes(100), pa.binary(100), bytes(100)),
        ("null", None, pa.null(), None),
        (["int", "long"], 7, pa.int64(), 7),
        (["int", "null", "double"], 7, pa.float64(), 7.0),
    ],
)  # fmt: skip
def test_every_type_is_decoded(kind: Json, value: Any, raw: pa.DataType, python: Any) -> None:
    plain = without_logical(kind)
    found = both_ways(avro(kind, kind), [written(plain, value), None, written(plain, value)])
    assert found.array.type == raw
    assert found.mismatches == []
    if python is not None:
        assert found.array.to_pylist() == [python, None, python]


@pytest.mark.parametrize(
    ("writer", "reader", "value", "what"),
    [
        (decimal(9, 2), decimal(3, 2), b"\x7f\xff\xff", "not exact in"),
        (decimal(9, 4), decimal(9, 2), b"\x01", "not exact in"),
        (logical("long", "timestamp-millis"), logical("long", "timestamp-micros"), 2**62,
         "does not fit into the columns"),
        ("long", "string", 1, "was written as long, but the reader schema says string"),
        (["null", "string"], "string", None, "was written as null, but the reader schema says"),
    ],
)  # fmt: skip
def test_a_value_without_a_place_in_the_readers_schema_is_a_mismatch(
    writer: Json, reader: Json, value: Any, what: str
) -> None:
    plain = without_logical(writer)
    found = both_ways(avro(writer, reader), [written(plain, value), None])
    ((row, mismatch),) = found.mismatches
    assert row == 0
    assert what in mismatch.message


@pytest.mark.parametrize("data", [b"", b"\2a", b"\x02", b"abc", b"\xff" * 300])
def test_a_bytes_value_is_everything_after_the_frame(data: bytes) -> None:
    """Confluent's serializers write no length; a value that looks like one is a value all the same."""
    rows = [b"\0\0\0\0\1" + data, None, b"\0\0\0\0\1x" + data]
    for writer in ("bytes", {"type": "bytes"}, {"type": {"type": "bytes"}}):
        found = both_ways(avro(writer, "bytes"), rows)
        assert found.array.to_pylist() == [data, None, b"x" + data]
        assert found.mismatches == []
        assert both_ways(avro(writer, ["null", "bytes"]), rows).array.to_pylist() == [data, None, b"x" + data]


def test_bytes_are_read_as_text_and_in_a_union() -> None:
    found = both_ways(avro("bytes", "string"), [b"\0\0\0\0\1\xc3\xa9", b"\0\0\0\0\1\xff"])
    assert found.array.to_pylist() == ["é", None]
    union = ["null", "bytes"]
    found = both_ways(avro(union, union), [written(union, b"ab"), written(union, None)])
    assert found.array.to_pylist() == [b"ab", None]


def test_several_schemas_guids_headers_and_garbage_in_one_batch() -> None:
    one, two = record("U", name="string"), record("U", age="int", name="string")
    guid = UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6")
    store = MemoryStore()
    for key, schema in ((1, one), (2, two), (guid, two)):
        store.put(f"topics/_schemas/{key}.avsc", json.dumps(schema).encode(), Create())
    column = AvroColumn(RecordPart.VALUE, SchemaArchive(store, "topics"), avro_type(one))
    anne, bob = written(one, {"name": "anne"}), written(two, {"age": 1, "name": "bob"}, 2)
    data = [anne, bob, None, b"", b"\1" + guid.bytes + bob[5:], bob[5:], b"\0\0\0\0\7xxx", bob[5:], anne[5:], anne]
    headers: list[list[tuple[str, bytes | None]]] = [[] for _ in data]
    headers[0] = [("other", b"x")]
    headers[5] = [("__key_schema_id", b"\0\0\0\0\1"), ("__value_schema_id", b"\1" + guid.bytes)]
    headers[7] = [("__value_schema_id", b"\0\0\0\0\2"), ("__value_schema_id", b"\0\0\0\0\1")]
    headers[8] = [("__value_schema_id", b"\0\0\0\0\1")]
    as_arrow = pa.array([[{"name": n, "value": v} for n, v in row] for row in headers], HEADERS)
    found = column.decode(pa.array(data, pa.binary()), as_arrow)
    names = [row and row["name"] for row in found.array.to_pylist()]
    assert names == ["anne", "bob", None, None, "bob", "bob", None, None, "anne", "anne"]
    assert [(row, mismatch.schema) for row, mismatch in found.mismatches] == [(3, None), (6, 7), (7, None)]
    sliced = column.decode(pa.array(data, pa.binary())[8:], as_arrow[8:])
    assert [row["name"] for row in values_of(sliced.array)] == ["anne", "anne"]


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        (["string", "long"], "the value is a union of string, long, which is not one type"),
        (record("R", a={"type": "array", "items": record("I", b=["int", "string"])}),
         "`a[].b` is a union of int, string"),
        (LIST, "`next` is a recursive record Node"),
        (record("E"), "the value is a record E without fields"),
        (record("R", d=logical("bytes", "decimal", precision=80)),
         "`d` is a decimal of 80 digits; the limit in Arrow is 76"),
    ],
)  # fmt: skip
def test_a_schema_without_an_arrow_type_is_refused(schema: Json, what: str) -> None:
    with pytest.raises(NoArrowType) as caught:
        arrow_type(avro_type(schema))
    assert str(caught.value).startswith(what)
    with pytest.raises(ConfigError, match="set a reader schema with --reader-schema FILE"):
        column_for(RecordPart.VALUE, Format.AVRO, kept(), avro_type(schema))


def test_text_is_decoded() -> None:
    found = StringColumn().decode(pa.array([b"a", None, b"\xff", "é".encode()], pa.binary()), None)
    assert found.array.to_pylist() == ["a", None, None, "é"]
    assert bad(found) == [(2, "is not UTF-8: invalid start byte at byte 0")]
