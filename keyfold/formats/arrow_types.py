"""The Arrow type of an Avro schema.

    null, boolean            null, bool             array       list
    int, long                int32, int64           map         map of string
    float, double            float32, float64       record      struct
    bytes, string            binary, string         enum        string
    fixed                    fixed-size binary (*)  union       the one type beside null
    date                     date32                 decimal     decimal128, above 38 digits decimal256
    time-millis, -micros     time32 ms, time64 us   uuid        string
    timestamp-...            timestamp in UTC, ms, us or ns; local-timestamp-... without a zone

(*) Above 1,024 bytes a binary of any size.

Everything may be null. A union of `int` and `long` is int64, one of `int`, `float` and `double` float64. Other unions,
and a record that holds itself, have no type in Arrow: a reader's schema without them must say what to take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import pyarrow as pa

from keyfold.formats.avro_schema import (
    Array,
    Enumeration,
    Fixed,
    Logical,
    Map,
    Primitive,
    RecordType,
    Type,
    Union,
    describe,
)
from keyfold.formats.column_width import FIXED_BYTES_MAX

_PRIMITIVES: Final[Mapping[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_UNITS: Final[dict[str, Literal["ms", "us", "ns"]]] = {"millis": "ms", "micros": "us", "nanos": "ns"}
_DECIMAL128_DIGITS: Final = 38
_DECIMAL256_DIGITS: Final = 76


class NoArrowType(Exception):
    """A schema has no type in Arrow; the message says which part of it."""


def arrow_type(schema: Type) -> pa.DataType:
    """The type of an array of such values. Raises `NoArrowType`."""
    return _arrow(schema, (), ())


def _arrow(schema: Type, path: tuple[str, ...], inside: tuple[RecordType, ...]) -> pa.DataType:  # noqa: PLR0911 - one for each kind
    match schema:
        case Primitive(kind, logical):
            return _PRIMITIVES[kind] if logical is None else _logical(logical, _PRIMITIVES[kind], path)
        case Fixed(_, size, logical):
            bare = pa.binary(size if size <= FIXED_BYTES_MAX else -1)
            return bare if logical is None else _logical(logical, bare, path)
        case Enumeration():
            return pa.string()
        case Array(items):
            return pa.list_(_arrow(items, (*path, "[]"), inside))
        case Map(values):
            return pa.map_(pa.string(), _arrow(values, (*path, "{}"), inside))
        case Union():
            return _arrow(one_branch(schema, path), path, inside)
    if any(schema is outer for outer in inside):
        raise NoArrowType(f"{_at(path)} is a recursive record {schema.name}, which has no end as columns")
    if not schema.fields:
        raise NoArrowType(f"{_at(path)} is a record {schema.name} without fields, which Parquet cannot hold")
    return pa.struct([(each.name, _arrow(each.type, (*path, each.name), (*inside, schema))) for each in schema.fields])


def _logical(logical: Logical, bare: pa.DataType, path: tuple[str, ...]) -> pa.DataType:
    if logical.name == "decimal":
        if logical.precision > _DECIMAL256_DIGITS:
            raise NoArrowType(
                f"{_at(path)} is a decimal of {logical.precision} digits; the limit in Arrow is {_DECIMAL256_DIGITS}"
            )
        make = pa.decimal128 if logical.precision <= _DECIMAL128_DIGITS else pa.decimal256
        return make(logical.precision, logical.scale)
    if logical.name in {"uuid", "json"}:
        return pa.string()
    if logical.name == "date":
        return pa.date32()
    kind, _, unit = logical.name.rpartition("-")
    if kind == "time":
        return pa.time32("ms") if unit == "millis" else pa.time64("us")
    if kind in {"timestamp", "local-timestamp"}:
        return pa.timestamp(_UNITS[unit], None if kind.startswith("local-") else "UTC")
    return bare


def one_branch(union: Union, path: tuple[str, ...] = ()) -> Type:
    """The type of a union beside null. Raises `NoArrowType` where there are several that are not one."""
    branches = [branch for branch in union.branches if branch != Primitive("null")]
    if len(branches) == 1:
        return branches[0]
    kinds = {branch.kind if isinstance(branch, Primitive) and branch.logical is None else "" for branch in branches}
    if not branches:
        return Primitive("null")
    for wide, narrow in (("long", {"int", "long"}), ("double", {"int", "float", "double"})):
        if kinds <= narrow:
            return Primitive(wide)
    raise NoArrowType(f"{_at(path)} is a {describe(union)}, which is not one type; a reader schema can select a type")


def _at(path: tuple[str, ...]) -> str:
    return f"`{'.'.join(path).replace('.[]', '[]').replace('.{}', '{}')}`" if path else "the value"
