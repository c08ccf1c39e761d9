"""Avro values in Python: against fastavro where it is right, and by hand where it is not."""

from __future__ import annotations

import io
import json
import math
import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfold.formats.avro_default import check_defaults, default_value
from keyfold.formats.avro_read import FAULTS, Into, fault_text, plain_reader
from keyfold.formats.avro_schema import NotAvro, avro_type, parse_avro
from keyfold.formats.decoder import Decoder, reader_type
from keyfold.formats.errors import FormatMismatch
from keyfold.formats.logical_types import EPOCH_LOCAL
from keyfold.formats.schema_archive import ArchivedSchemaUnusable, SchemaArchive
from keyfold.log.record import CREATE_TIME, Record
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from tests.support.avro_words import Json, logical, record
from tests.support.untyped import untyped


def written(schema: Json, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def read(writer: Json, data: bytes, reader: Json = None, into: Into = Into.PYTHON) -> Any:
    function = plain_reader(avro_type(writer), None if reader is None else avro_type(reader), into)
    value, end = function(data, 0)
    assert end == len(data)
    return value


LIST = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "at", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
}
EVERYTHING = record(
    "org.example.All",
    a="null",
    b="boolean",
    c="int",
    d="long",
    e="float",
    f="double",
    g="bytes",
    h="string",
    i={"type": "fixed", "name": "Four", "size": 4},
    j={"type": "enum", "name": "Suit", "symbols": ["S", "H"]},
    k={"type": "array", "items": ["null", "long"]},
    m={"type": "map", "values": {"type": "array", "items": "string"}},
    n=["null", "string", "long", record("Inner", x="Four", y="Suit")],
    o=LIST,
)


def some(schema: Json) -> st.SearchStrategy[Any]:
    """Values of `EVERYTHING`."""
    node = st.recursive(
        st.fixed_dictionaries({"at": st.integers(-(2**31), 2**31 - 1), "next": st.none()}),
        lambda inner: st.fixed_dictionaries({"at": st.integers(0, 9), "next": st.none() | inner}),
        max_leaves=5,
    )
    suits = st.sampled_from(["S", "H"])
    return st.fixed_dictionaries(
        {
            "a": st.none(),
            "b": st.booleans(),
            "c": st.integers(-(2**31), 2**31 - 1),
            "d": st.integers(-(2**63), 2**63 - 1),
            "e": st.floats(width=32, allow_nan=False),
            "f": st.floats(allow_nan=False),
            "g": st.binary(max_size=200),
            "h": st.text(max_size=200),
            "i": st.binary(min_size=4, max_size=4),
            "j": suits,
            "k": st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)),
            "m": st.dictionaries(st.text(max_size=5), st.lists(st.text(max_size=5), max_size=3), max_size=3),
            "n": st.none()
            | st.text()
            | st.integers(-5, 5)
            | st.fixed_dictionaries({"x": st.binary(min_size=4, max_size=4), "y": suits}),
            "o": node,
        }
    )


@given(some(EVERYTHING))
def test_every_type_is_read_as_fastavro_reads_it(value: Any) -> None:
    data = written(EVERYTHING, value)
    assert read(EVERYTHING, data) == fastavro.schemaless_reader(
        io.BytesIO(data), fastavro.parse_schema(EVERYTHING), None
    )


FEWER = {
    "type": "record",
    "name": "other.All",
    "fields": [
        {"name": "d", "type": "double"},
        {"name": "new", "type": {"type": "array", "items": "string"}, "default": ["x"]},
        {"name": "h", "type": ["null", "bytes"]},
        {"name": "c", "type": ["null", "double", "long"]},
        {"name": "k", "type": {"type": "array", "items": ["null", "double"]}},
        {"name": "renamed", "type": "string", "aliases": ["g"]},
    ],
}


@given(some(EVERYTHING).filter(lambda v: v["g"].isascii()))
def test_a_reader_gets_the_fields_of_its_schema(value: Any) -> None:
    found = read(EVERYTHING, written(EVERYTHING, value), FEWER)
    assert found == {
        "d": float(value["d"]),
        "new": ["x"],
        "h": value["h"].encode(),
        "c": float(value["c"]),
        "k": [None if each is None else float(each) for each in value["k"]],
        "renamed": value["g"].decode(),
    }


def test_defaults_are_values_and_not_shared() -> None:
    reader = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "when", "type": logical("long", "timestamp-millis"), "default": 1000},
            {"name": "raw", "type": "bytes", "default": "\u00ff"},
            {"name": "sum", "type": logical("bytes", "decimal", precision=5, scale=2), "default": "\u0001\u0000"},
            {"name": "in", "type": record("In", x="int"), "default": {"x": 1}},
            {"name": "map", "type": {"type": "map", "values": "int"}, "default": {"a": 1}},
            {"name": "opt", "type": ["null", "string"], "default": None},
            {"name": "any", "type": ["null", "string"], "default": "x"},
        ],
    }
    function = plain_reader(avro_type(record("R")), avro_type(reader), Into.PYTHON)
    first, second = function(b"", 0)[0], function(b"", 0)[0]
    assert first == {
        "when": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "raw": b"\xff", "sum": Decimal("2.56"),
        "in": {"x": 1}, "map": {"a": 1}, "opt": None, "any": "x",
    }  # fmt: skip
    first["in"]["x"] = 2
    assert untyped(second)["in"] == {"x": 1}


@pytest.mark.parametrize(
    ("kind", "data", "python", "raw"),
    [
        (logical("int", "date"), 19_000, date(2022, 1, 8), 19_000),
        (logical("int", "time-millis"), 3_600_001, time(1, 0, 0, 1000), 3_600_001),
        (logical("long", "time-micros"), 1, time(0, 0, 0, 1), 1),
        (logical("long", "timestamp-millis"), -1, datetime(1969, 12, 31, 23, 59, 59, 999000, UTC), -1),
        (logical("long", "timestamp-micros"), 1, datetime(1970, 1, 1, 0, 0, 0, 1, UTC), 1),
        (logical("long", "timestamp-nanos"), 2**62, 2**62, 2**62),
        (logical("long", "local-timestamp-millis"), 0, EPOCH_LOCAL, 0),
        (logical("long", "no-such-thing"), 5, 5, 5),
        (logical("string", "date"), "x", "x", "x"),
        (logical("string", "uuid"), "AB123456-0000-0000-0000-000000000000",
         UUID("ab123456-0000-0000-0000-000000000000"), "ab123456-0000-0000-0000-000000000000"),
        (logical("fixed", "uuid", name="U", size=16), bytes(16), UUID(int=0), str(UUID(int=0))),
        (logical("fixed", "duration", name="D", size=12), struct.pack("<III", 1, 2, 3), (1, 2, 3),
         struct.pack("<III", 1, 2, 3)),
        (logical("fixed", "decimal", name="F", size=2, precision=4, scale=1), b"\xff\xff", Decimal("-0.1"),
         Decimal("-0.1")),
        (logical("bytes", "decimal", precision=3, scale=5), b"\x01", b"\x01", b"\x01"),
    ],
)  # fmt: skip
def test_logical_types_are_decoded(kind: Json, data: Any, python: Any, raw: Any) -> None:
    plain = {k: v for k, v in kind.items() if k != "logicalType"}
    stored = written(plain, data)
    assert read(kind, stored) == python
    assert read(kind, stored, into=Into.RAW) == raw


@pytest.mark.parametrize("digits", [1, 9, 28, 29, 38, 60])
def test_a_decimal_keeps_all_its_digits(digits: int) -> None:
    unscaled = 10**digits - 1
    data = written("bytes", unscaled.to_bytes(40, "big", signed=True))
    kind = logical("bytes", "decimal", precision=max(digits - 1, 1), scale=1 if digits > 2 else 0)
    scale = kind["scale"]
    assert read(kind, data) == Decimal(unscaled).scaleb(-scale, context=None) or digits > 28
    assert str(read(kind, data)).replace(".", "") == "9" * digits


def test_time_units_are_those_of_the_readers_schema() -> None:
    data = written("long", 1_700_000_000_123)
    ms, us = logical("long", "timestamp-millis"), logical("long", "timestamp-micros")
    assert read(ms, data, us, Into.RAW) == 1_700_000_000_123_000
    assert read(us, data, ms, Into.RAW) == 1_700_000_000
    assert read(ms, data, "double") == 1_700_000_000_123.0
    assert read(ms, data, "long") == 1_700_000_000_123
    assert read("long", data, ms) == datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
    assert read(logical("bytes", "decimal", precision=9, scale=2), b"\x04\x01\x00",
                logical("bytes", "decimal", precision=9, scale=4), Into.RAW) == Decimal("2.56")  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "data", "what"),
    [
        (["null", "long"], b"\x01\x02", "branch -1 of a union of 2"),
        (["null", "long"], b"\x04", "branch 2 of a union of 2"),
        ("int", written("long", 2**31), "2147483648 instead of an int"),
        ("boolean", b"\x02", "byte 2 instead of a boolean"),
        ("string", b"\x04a", "a length of 2 with 1 bytes left"),
        ("string", b"\x01a", "a length of -1 with 1 bytes left"),
        ("string", b"\x02\xff", "a string is not UTF-8 (invalid start byte)"),
        ("double", b"1234567", "its bytes end too early"),
        ("long", b"", "its bytes end too early"),
        ("long", b"\xff" * 11, "has a malformed varint"),
        ({"type": "array", "items": "null"}, written("long", 2**62),
         "4611686018427387904 items with 0 bytes left"),
        ({"type": "array", "items": "long"}, b"\x01\xfe\x01\x02", "127 bytes of items with 1 bytes left"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "index 1 of enum E, which has 1 symbols"),
        (logical("int", "time-millis"), b"\x01", "-1000 µs is not a time of day"),
        (logical("int", "date"), written("int", 2**31 - 1), "signed integer is greater than maximum"),
        (logical("string", "uuid"), b"\x02a", "badly formed hexadecimal UUID string"),
    ],
)  # fmt: skip
def test_damage_is_reported(schema: Json, data: bytes, what: str) -> None:
    with pytest.raises(FAULTS) as caught:
        read(schema, data)
    assert what in fault_text(caught.value)


@given(some(EVERYTHING), st.data())
def test_truncated_or_changed_bytes_only_ever_raise_the_documented_error(value: Any, draw: st.DataObject) -> None:
    data = bytearray(written(EVERYTHING, value))
    at = draw.draw(st.integers(0, len(data) - 1))
    data[at] = draw.draw(st.integers(0, 255))
    function = plain_reader(avro_type(EVERYTHING), avro_type(FEWER), Into.RAW)
    for candidate in (bytes(data), bytes(data[:at])):
        try:
            function(candidate, 0)
        except FAULTS as error:
            fault_text(error)


@pytest.mark.parametrize(
    ("writer", "reader", "value", "what"),
    [
        ("string", "long", "x", "was written as string, but the reader schema says long"),
        ("long", "int", 1, "was written as long, but the reader schema says int"),
        (["null", "long"], "long", None, "was written as null, but the reader schema says long"),
        (record("A", x="int"), record("B", x="int", y="int"), {"x": 1}, "was written without `y` of B"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, {"type": "enum", "name": "n.E", "symbols": ["A"]}, "B",
         "'B' is not a symbol of the reader's enum n.E"),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}, b"12",
         "fixed F of 3 bytes"),
    ],
)  # fmt: skip
def test_a_value_that_the_readers_schema_cannot_hold_is_reported(
    writer: Json, reader: Json, value: Any, what: str
) -> None:
    with pytest.raises(FAULTS) as caught:
        read(writer, written(writer, value), reader)
    assert what in fault_text(caught.value)


def test_a_schema_mismatch_affects_only_the_values_that_hit_it() -> None:
    assert read(["null", "string"], b"\x00", ["null", "long"]) is None
    symbols = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
    assert read(symbols, b"\x02", {"type": "enum", "name": "E", "symbols": ["A"], "default": "A"}) == "A"
    assert read(symbols, b"\x00", {"type": "enum", "name": "E", "symbols": ["A"]}) == "A"


def test_an_unknown_field_of_any_type_is_skipped() -> None:
    reader = record("All", c="int")
    value = {"a": None, "b": True, "c": 7, "d": 1, "e": 0.5, "f": 0.5, "g": b"g", "h": "h", "i": b"four", "j": "H",
             "k": [1, None], "m": {"x": ["y"]}, "n": {"x": b"four", "y": "S"},
             "o": {"at": 1, "next": {"at": 2, "next": None}}}  # fmt: skip
    assert read(EVERYTHING, written(EVERYTHING, value), reader) == {"c": 7}
    broken = record("R", u=logical("string", "uuid"), c="int")
    assert read(broken, b"\x02a\x02", record("R", c="int")) == {"c": 1}


def test_arrays_in_several_blocks_with_sizes_are_read() -> None:
    data = b"\x02\x02" + b"\x03\x04\x04\x06" + b"\x00"
    assert read({"type": "array", "items": "int"}, data) == [1, 2, 3]


def test_deep_nesting_is_read_up_to_pythons_limit_and_refused_beyond() -> None:
    deep = b"\x02\x02" * 5000 + b"\x02\x00"
    with pytest.raises(RecursionError):
        read(LIST, deep)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "is not JSON"),
        ('"nothing"', "'nothing' is not defined"),
        ('{"type": "record"}', "name"),
        ("[]x", "is not JSON"),
        ("7", "7"),
        (json.dumps(logical("fixed", "decimal", name="F", size=float("inf"), precision=3)), "infinity"),
        (json.dumps(logical("fixed", "decimal", name="F", size=10**400, precision=3)), "too large"),
    ],
)
def test_an_invalid_schema_is_refused(text: str, what: str) -> None:
    with pytest.raises(NotAvro, match=what):
        parse_avro(text)


def test_a_default_of_another_type_is_refused() -> None:
    with pytest.raises(NotAvro, match="must match schema type: int"):
        check_defaults(
            avro_type({"type": "record", "name": "R", "fields": [{"name": "x", "type": "int", "default": "x"}]})
        )
    with pytest.raises(ValueError, match="is not an Avro schema"):
        reader_type('{"type": "record", "name": "R", "fields": [{"name": "x", "type": "int", "default": "x"}]}')


SCHEMA_1 = '{"type": "record", "name": "User", "fields": [{"name": "name", "type": "string"}]}'
SCHEMA_2 = (
    '{"type": "record", "name": "User", "fields": [{"name": "name", "type": "string"},'
    ' {"name": "age", "type": "int", "default": 0}]}'
)
GUID = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"


@pytest.fixture
def schemas() -> SchemaArchive:
    store = MemoryStore()
    store.put("topics/_schemas/1.avsc", SCHEMA_1.encode(), Create())
    store.put("topics/_schemas/2.avsc", SCHEMA_2.encode(), Create())
    store.put(f"topics/_schemas/{GUID}.avsc", SCHEMA_2.encode(), Create())
    store.put("topics/_schemas/3.avsc", b"{", Create())
    store.put("topics/_schemas/4.avsc", b'{"type": "object"}', Create())
    return SchemaArchive(store, "topics")


def make(value: bytes | None, key: bytes | None = b"k", **headers: bytes) -> Record:
    return Record(0, 0, CREATE_TIME, key, value, tuple(headers.items()))


def test_records_are_decoded_with_the_schema_they_name(schemas: SchemaArchive) -> None:
    decoder = Decoder(key_format="string", value_format="avro", schemas=schemas)
    assert decoder.value(make(b"\0\0\0\0\1\4ab")) == {"name": "ab"}
    assert decoder.value(make(b"\0\0\0\0\2\4ab\2")) == {"name": "ab", "age": 1}
    assert decoder.value(make(b"\1" + UUID(GUID).bytes + b"\4ab\2")) == {"name": "ab", "age": 1}
    assert decoder.value(make(b"\4ab", __value_schema_id=b"\0\0\0\0\1")) == {"name": "ab"}
    assert decoder.value(make(b"\4ab", __key_schema_id=b"\0\0\0\0\1", __value_schema_id=b"\0\0\0\0\1")) == {
        "name": "ab"
    }
    assert decoder.value(make(None)) is None
    assert decoder.key(make(None)) == "k"
    assert decoder.key(make(None, None)) is None
    reader = Decoder(value_format="avro", schemas=schemas, reader_schema=SCHEMA_2)
    assert reader.value(make(b"\0\0\0\0\1\4ab")) == {"name": "ab", "age": 0}
    assert reader.key(make(None)) == b"k"
    assert schemas.keys() == [1, 2, 3, 4, GUID]


@pytest.mark.parametrize(
    ("value", "headers", "what", "schema"),
    [
        (b"", {}, "is empty; Confluent's serializers start with byte 0", None),
        (b"{}", {}, "begins with byte 123; Confluent's serializers start with byte 0", None),
        (b"\0\0\0", {}, "has 3 bytes, too few for a schema id", None),
        (b"\0\0\0\0\1\4a", {}, "cannot be decoded with schema 1: it has a length of 2 with 1 bytes left", 1),
        (b"\0\0\0\0\1\4abc", {}, "has 1 more bytes than schema 1 describes", 1),
        (b"\0\0\0\0\x09\4ab", {}, "names schema 9, which was not kept: `memory://test/topics/_schemas/9.avsc`",
         9),
        (b"\0\0\0\0\4\4ab", {}, "names schema 4, but the kept object is not an Avro schema", 4),
        (b"\4ab", {"__value_schema_id": b"\0\0"},
         "has a header __value_schema_id without a schema id: the header has 2", None),
        (b"\4ab", {"__value_schema_id": b"\0\0\0\0\1\1"}, "with 1 bytes after the schema id", None),
    ],
)  # fmt: skip
def test_format_mismatches_name_the_value_and_the_schema(
    schemas: SchemaArchive, value: bytes, headers: dict[str, bytes], what: str, schema: int | None
) -> None:
    decoder = Decoder(value_format="avro", schemas=schemas)
    with pytest.raises(FormatMismatch) as caught:
        decoder.value(make(value, **headers))
    assert what in str(caught.value)
    assert caught.value.schema == schema


def test_an_archived_schema_that_is_not_json_is_corrupt(schemas: SchemaArchive) -> None:
    with pytest.raises(ArchivedSchemaUnusable, match=r"`topics/_schemas/3.avsc`: is not JSON"):
        Decoder(value_format="avro", schemas=schemas).value(make(b"\0\0\0\0\3\4ab"))


def test_two_conflicting_schema_headers_are_refused(schemas: SchemaArchive) -> None:
    headers = (("__value_schema_id", b"\0\0\0\0\1"), ("__value_schema_id", b"\0\0\0\0\2"))
    with pytest.raises(FormatMismatch, match="has 2 different headers __value_schema_id"):
        Decoder(value_format="avro", schemas=schemas).value(Record(0, 0, CREATE_TIME, b"k", b"\4ab", headers))


def test_a_writers_wrong_default_does_not_matter() -> None:
    schema = '{"type": "record", "name": "R", "fields": [{"name": "x", "type": "int", "default": "x"}]}'
    store = MemoryStore()
    store.put("_schemas/1.avsc", schema.encode(), Create())
    assert Decoder(value_format="avro", schemas=SchemaArchive(store, "")).value(make(b"\0\0\0\0\1\2")) == {"x": 1}


def test_an_avro_decoder_needs_a_schema_archive() -> None:
    with pytest.raises(ValueError, match="pass `schemas`"):
        Decoder(key_format="avro")
    with pytest.raises(ValueError, match="protobuf"):
        Decoder(key_format="protobuf")


def test_floats_of_any_kind_are_decoded() -> None:
    assert math.isnan(read("double", struct.pack("<d", math.nan)))
    assert read("float", struct.pack("<f", math.inf)) == math.inf


@pytest.mark.parametrize(
    ("kind", "default", "what"),
    [
        ({"type": "array", "items": "int"}, {"a": 1}, "does not fit"),
        ({"type": "map", "values": "int"}, [1], "does not fit"),
        (["int", "null"], "text", "does not fit"),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, "b", "does not fit"),
        (record("Inner", a="int"), {}, "lacks `a`"),
    ],
)
def test_a_default_that_does_not_fit_its_type_is_refused(kind: Json, default: object, what: str) -> None:
    with pytest.raises(NotAvro, match=what):
        default_value(avro_type(kind), default, raw=False)
