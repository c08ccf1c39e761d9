"""Bytes that are a valid encoding under an Avro schema."""

from __future__ import annotations

import io
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfold_sink.validate.convert.avro_layout import AvroDataInvalid, compile_check
from keyfold_sink.validate.convert.avro_schema import AvroSchemaInvalid
from tests.support.avro_cases import encode, has_empty_items, schemas, values
from tests.support.convert_cases import BAD, GOOD


def accepts(schema: Any, data: bytes) -> bool:
    try:
        return compile_check(schema)(data, 0) == len(data)
    except (AvroDataInvalid, IndexError, UnicodeDecodeError, RecursionError):
        return False


@given(st.data())
@pytest.mark.sharded
@settings(max_examples=120)
def test_values_of_fastavro_are_consumed_to_the_last_byte(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    encoded = encode(schema, data.draw(values(schema)))
    assert schema == "bytes" or accepts(schema, encoded)
    if encoded and schema != "bytes":
        assert not accepts(schema, encoded[: data.draw(st.integers(0, len(encoded) - 1))])
    if schema != "bytes":
        assert not accepts(schema, encoded + data.draw(st.binary(min_size=1, max_size=3)))


@given(st.data())
@pytest.mark.sharded
@settings(max_examples=120)
def test_accepted_values_can_be_decoded(data: st.DataObject) -> None:
    """Damage that leaves the layout intact is another value, and a decoder must agree on that."""
    schema = data.draw(schemas().filter(lambda s: not has_empty_items(s)))
    encoded = bytearray(encode(schema, data.draw(values(schema))))
    for _ in range(data.draw(st.integers(0, 3))):
        if encoded:
            encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    if schema != "bytes" and accepts(schema, bytes(encoded)):
        stream = io.BytesIO(bytes(encoded))
        schemaless_reader(stream, parse_schema(schema, _force=True), None)
        assert stream.tell() == len(encoded)


@pytest.mark.parametrize("size", [63, 64, 8_191, 8_192, 1_048_576])
@pytest.mark.parametrize("field", ["string", "bytes"])
def test_lengths_of_each_number_of_bytes(field: str, size: int) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": field}]}
    encoded = encode(schema, {"f": "a" * size if field == "string" else b"a" * size})
    assert accepts(schema, encoded)
    assert not accepts(schema, encoded[:-1])
    assert not accepts(schema, encoded + b"a")
    assert not accepts(schema, bytes([encoded[0] | 1]) + encoded[1:])  # a negative length


@pytest.mark.parametrize(("schema", "data"), GOOD)
def test_valid_values_pass(schema: Any, data: bytes) -> None:
    assert accepts(schema, data)


@pytest.mark.parametrize(("schema", "data"), BAD)
def test_invalid_values_fail(schema: Any, data: bytes) -> None:
    assert not accepts(schema, data)


@pytest.mark.parametrize(
    "schema",
    [
        None,
        1,
        {},
        "strin",
        {"type": "array"},
        {"type": "map"},
        {"type": "record", "fields": []},
        {"type": "fixed", "name": "F"},
        {"type": "fixed", "name": "F", "size": -1},
        {"type": "record", "name": "R", "fields": [{"name": "a"}]},
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": "S"}]},
        ["null", {"type": "record", "name": "R", "fields": []}, {"type": "enum", "name": "R", "symbols": []}],
    ],
)
def test_invalid_schemas_are_refused(schema: Any) -> None:
    with pytest.raises(AvroSchemaInvalid):
        compile_check(schema)


def test_the_cost_of_nested_types_is_linear_in_their_text() -> None:
    """Thirty records with two fields of the previous one each would be a billion fields if written out."""
    fields: list[Any] = [{"name": "x", "type": {"type": "record", "name": "R0", "fields": []}}]
    for n in range(1, 30):
        inner = [{"name": "a", "type": f"R{n - 1}"}, {"name": "b", "type": f"R{n - 1}"}]
        if n == 1:
            inner += [{"name": f"c{i}", "type": "int"} for i in range(9)]
        fields.append({"name": f"x{n}", "type": ["null", {"type": "record", "name": f"R{n}", "fields": inner}]})
    check = compile_check({"type": "record", "name": "All", "fields": fields})
    assert check(b"\x00" * 29, 0) == 29


def test_a_record_inside_itself_inside_another_namespace() -> None:
    schema = {
        "type": "record",
        "name": "a.b.Tree",
        "fields": [
            {"name": "value", "type": {"type": "enum", "name": "Kind", "symbols": ["X"]}},
            {"name": "children", "type": {"type": "array", "items": "Tree"}},
            {"name": "again", "type": "Kind"},
            {"name": "full", "type": ["null", "a.b.Tree"]},
        ],
    }
    leaf = b"\x00\x00\x00\x00"
    assert accepts(schema, b"\x00\x04" + leaf + leaf + b"\x00\x00\x02" + leaf)
    assert not accepts(schema, b"\x00\x04" + leaf + b"\x00\x00\x02" + leaf)


def holder(name: str, *types: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": f"f{n}", "type": each} for n, each in enumerate(types)]}


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        (holder("A", "A"), b""),
        (holder("A", "int", holder("B", "long", "A")), b"\x00" * 100),
        (holder("A", ["null", holder("C", "A")], "C"), b"\x00" * 100),
        (holder("A", holder("B", ["null", "A"], "B")), b"\x00" * 100),
        (["null", holder("A", "A")], b"\x02"),
        (holder("R", {"type": "array", "items": holder("A", "int", "A")}), b"\x02\x00"),
    ],
)
def test_a_record_that_is_always_inside_itself_is_not_followed(schema: Any, data: bytes) -> None:
    with pytest.raises(AvroDataInvalid, match="without end"):
        compile_check(schema)(data, 0)


def test_a_record_that_is_always_inside_itself_may_be_absent() -> None:
    assert accepts(["null", holder("A", "A")], b"\x00")
    assert accepts(holder("R", {"type": "map", "values": holder("A", "int", "A")}, ["null", "R"]), b"\x00\x02\x00\x00")


@pytest.mark.parametrize(
    "items", ["double", "long", {"type": "fixed", "name": "F", "size": 16}, ["null", "int"], "string"]
)
def test_a_wrong_count_of_items_is_refused_before_the_items_are_read(items: Any) -> None:
    check = compile_check({"type": "array", "items": items})
    with pytest.raises(IndexError):  # 2**61 items, in three bytes of data
        check(b"\x80\x80\x80\x80\x80\x80\x80\x80\x40\x00\x00\x00", 0)
