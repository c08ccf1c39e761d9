"""Types of columns: what Iceberg can hold, how a schema grows, and arrays of narrower types."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField

from keyfold.table.conform import conform
from keyfold.table.types import FieldIds, NoIcebergType, arrow_schema, grown

BASE = Schema(NestedField(1, "partition", IntegerType(), required=True))
INSIDE = pa.struct(
    [
        ("b", pa.int32()),
        ("a", pa.list_(pa.struct([("x", pa.float32()), ("n", pa.null())]))),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("t", pa.timestamp("ms", "UTC")),
    ]
)


def schema_of(*kinds: pa.DataType) -> Schema:
    """The schema of a table whose values have had these types, one after another."""
    schema, ids = BASE, FieldIds(1)
    for kind in kinds:
        schema = grown(schema, {"value": kind}, ids)
    return schema


def text_of(*kinds: pa.DataType) -> str:
    return str(schema_of(*kinds).find_type("value"))


def test_a_type_of_arrow_becomes_one_of_iceberg() -> None:
    assert text_of(INSIDE) == (
        "struct<3: b: optional int, 4: a: optional list<struct<6: x: optional float>>, "
        "7: m: optional map<string, int>, 10: t: optional timestamptz>"
    )


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pa.bool_(), "boolean"),
        (pa.int64(), "long"),
        (pa.string(), "string"),
        (pa.binary(), "binary"),
        (pa.binary(7), "fixed[7]"),
        (pa.decimal128(9, 2), "decimal(9, 2)"),
        (pa.date32(), "date"),
        (pa.time32("ms"), "time"),
        (pa.time64("us"), "time"),
        (pa.timestamp("us"), "timestamp"),
        (pa.timestamp("us", "UTC"), "timestamptz"),
    ],
)
def test_every_leaf_has_a_type(kind: pa.DataType, name: str) -> None:
    schema = schema_of(kind)
    assert str(schema.find_type("value")) == name
    found = conform(pa.array([None], kind), arrow_schema(schema).field("value").type)
    assert found.to_pylist() == [None]


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.decimal256(40, 2)])
def test_what_format_version_2_cannot_represent_is_named(kind: pa.DataType) -> None:
    with pytest.raises(NoIcebergType, match=r"`value\.at` is .*, which Iceberg cannot represent in format version 2"):
        schema_of(pa.struct([("at", kind)]))


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        (pa.int32(), pa.int64(), "long"),
        (pa.int64(), pa.int32(), "long"),
        (pa.float32(), pa.float64(), "double"),
        (pa.float64(), pa.float32(), "double"),
        (pa.decimal128(5, 2), pa.decimal128(9, 2), "decimal(9, 2)"),
        (pa.decimal128(9, 2), pa.decimal128(5, 2), "decimal(9, 2)"),
        (pa.string(), pa.null(), "string"),
        (pa.null(), pa.string(), "string"),
    ],
)
def test_a_type_becomes_wider_and_never_narrower(old: pa.DataType, new: pa.DataType, name: str) -> None:
    assert text_of(old, new) == name


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.int64(), pa.float64()),
        (pa.int32(), pa.string()),
        (pa.decimal128(5, 2), pa.decimal128(5, 3)),
        (pa.struct([("a", pa.int32())]), pa.int32()),
        (pa.int32(), pa.struct([("a", pa.int32())])),
        (pa.list_(pa.int32()), pa.list_(pa.string())),
        (pa.date32(), pa.timestamp("us")),
    ],
)
def test_a_change_that_iceberg_does_not_have_is_refused(old: pa.DataType, new: pa.DataType) -> None:
    with pytest.raises(NoIcebergType, match=r"`value.*` is .* in the table and .* in newer records"):
        schema_of(old, new)


def test_ids_are_kept_and_never_given_twice() -> None:
    newer = pa.struct([("a", pa.list_(pa.struct([("n", pa.int64()), ("x", pa.float64())]))), ("c", pa.string())])
    assert text_of(INSIDE, newer) == (
        "struct<3: b: optional int, 4: a: optional list<struct<6: x: optional double, 11: n: optional long>>, "
        "7: m: optional map<string, int>, 10: t: optional timestamptz, 12: c: optional string>"
    )
    schema = schema_of(INSIDE)
    assert grown(schema, {"value": INSIDE}, FieldIds(10)) is schema


ROWS: list[Any] = [
    {"b": 1, "a": [{"x": 1.5}], "m": [("k", 1)]},
    None,
    {"b": None, "a": None},
    {"a": [], "m": []},
    {"a": [None, {"x": None}], "m": [("k", None)]},
]


@pytest.mark.parametrize("start", range(len(ROWS)))
def test_arrays_of_an_older_type_fit_a_newer_one(start: int) -> None:
    newer = pa.struct([("c", pa.string()), ("a", pa.list_(pa.struct([("n", pa.int64()), ("x", pa.float64())])))])
    kind = arrow_schema(schema_of(INSIDE, newer)).field("value").type
    found = conform(pa.array(ROWS, INSIDE).slice(start), kind)
    found.validate(full=True)
    assert found.type.equals(kind, check_metadata=True)
    assert found.to_pylist() == [_full(row) for row in ROWS[start:]]


def _full(row: Any) -> Any:
    if row is None:
        return None
    items = row.get("a")
    return {
        "b": row.get("b"),
        "a": None if items is None else [None if item is None else {"x": item.get("x"), "n": None} for item in items],
        "m": row.get("m"),
        "t": None,
        "c": None,
    }


def test_a_renamed_column_of_a_file_is_found_by_its_id() -> None:
    old = arrow_schema(schema_of(pa.struct([("a", pa.int32())]))).field("value").type
    schema = schema_of(pa.struct([("a", pa.int32())]))
    renamed = str(schema.model_dump_json()).replace('"name":"a"', '"name":"z"')
    new = arrow_schema(Schema.model_validate_json(renamed)).field("value").type
    assert conform(pa.array([{"a": 1}], pa.struct(list(old))), new).to_pylist() == [{"z": 1}]
