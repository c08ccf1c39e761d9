"""Types of columns: Iceberg's for Arrow's, and how the schema of a table grows with the data.

    bool, int32, int64      boolean, int, long             list, map with keys of text   list, map
    float32, float64        float, double                  struct                        struct
    decimal up to 38 digits decimal                        date32                        date
    binary, string          binary, string                 time in ms or us              time
    fixed-size binary       fixed                          timestamp in s, ms or us      timestamp, timestamptz

Format version 2 has no nanoseconds, and no type without values. A field that has only been null so far has no column.

A schema grows as Iceberg allows: fields are added, and int becomes long, float double, and a decimal gets more digits.
Field ids are never given twice. Source: the Iceberg table specification, "Schema evolution".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from keyfold.errors import KeyfoldError
from keyfold.runtime.arrow_types import ArrowField

FIELD_ID: Final = b"PARQUET:field_id"
_DECIMAL_DIGITS: Final = 38
_LEAVES: Final[dict[pa.DataType, IcebergType]] = {
    pa.bool_(): BooleanType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.date32(): DateType(),
    pa.time32("ms"): TimeType(),
    pa.time64("us"): TimeType(),
    **{pa.timestamp(unit): TimestampType() for unit in ("s", "ms", "us")},
    **{pa.timestamp(unit, "UTC"): TimestamptzType() for unit in ("s", "ms", "us")},
}
_ARROW: Final[dict[IcebergType, pa.DataType]] = {
    BooleanType(): pa.bool_(),
    IntegerType(): pa.int32(),
    LongType(): pa.int64(),
    FloatType(): pa.float32(),
    DoubleType(): pa.float64(),
    StringType(): pa.string(),
    BinaryType(): pa.binary(),
    DateType(): pa.date32(),
    TimeType(): pa.time64("us"),
    TimestampType(): pa.timestamp("us"),
    TimestamptzType(): pa.timestamp("us", "UTC"),
}
_WIDER: Final[dict[tuple[IcebergType, IcebergType], IcebergType]] = {
    (IntegerType(), LongType()): LongType(),
    (FloatType(), DoubleType()): DoubleType(),
}


class NoIcebergType(KeyfoldError):
    """A type, or a change of a type, that Iceberg cannot represent. The message names the field and the types."""


@dataclass(slots=True)
class FieldIds:
    """The ids of a table's fields: `last` is the highest one that was ever given."""

    last: int

    def new(self) -> int:
        """Return an id that no field has had."""
        self.last += 1
        return self.last


def grown(schema: Schema, columns: dict[str, pa.DataType], ids: FieldIds) -> Schema:
    """Return a schema that has these columns too, with wider types where that is needed.

    Returns `schema` itself if nothing is to be changed. Raises `NoIcebergType`.
    """
    old = schema.as_struct()
    new = _with_fields(old, pa.struct(list(columns.items())), ids, ())
    if new == old:
        return schema
    return Schema(*new.fields, identifier_field_ids=schema.identifier_field_ids)


def _with_fields(old: StructType, new: pa.StructType, ids: FieldIds, path: tuple[str, ...]) -> StructType:
    fields = {field.name: field for field in old.fields}
    for field in new:
        at = (*path, field.name)
        known = fields.get(field.name)
        if known is not None:
            kind = _widened(known.field_type, field.type, ids, at)
            fields[field.name] = known if kind == known.field_type else known.model_copy(update={"field_type": kind})
        elif has_values(field.type):
            number = ids.new()
            fields[field.name] = NestedField(number, field.name, _fresh(field.type, ids, at), required=False)
    return StructType(*fields.values())


def has_values(kind: pa.DataType) -> bool:
    """Return whether Iceberg can hold values of a type; it has no type for what is always null."""
    if pa.types.is_struct(kind):
        return any(has_values(field.type) for field in kind)
    if pa.types.is_list(kind):
        return has_values(kind.value_type)
    if pa.types.is_map(kind):
        return has_values(kind.item_type)
    return not pa.types.is_null(kind)


def _widened(old: IcebergType, new: pa.DataType, ids: FieldIds, at: tuple[str, ...]) -> IcebergType:
    if not has_values(new):
        return old
    if isinstance(old, StructType) and pa.types.is_struct(new):
        return _with_fields(old, new, ids, at)
    if isinstance(old, ListType) and pa.types.is_list(new):
        element = _widened(old.element_type, new.value_type, ids, (*at, "element"))
        return ListType(old.element_id, element, element_required=old.element_required)
    if isinstance(old, MapType) and pa.types.is_map(new):
        value = _widened(old.value_type, new.item_type, ids, (*at, "value"))
        return MapType(old.key_id, old.key_type, old.value_id, value, value_required=old.value_required)
    found = None if pa.types.is_nested(new) else _wider(old, _leaf(new, at))
    if found is None:
        raise NoIcebergType(
            f"`{'.'.join(at)}` is {old} in the table and {new} in newer records",
            hint="read all values with your own schema, --reader-schema FILE; or drop the table and sync again",
        )
    return found


def _wider(old: IcebergType, new: IcebergType) -> IcebergType | None:
    """Return the type that has the values of both; None if Iceberg has none."""
    if isinstance(old, DecimalType) and isinstance(new, DecimalType) and old.scale == new.scale:
        return max(old, new, key=lambda kind: kind.precision)
    return old if old == new else _WIDER.get((old, new)) or _WIDER.get((new, old))


def _fresh(kind: pa.DataType, ids: FieldIds, at: tuple[str, ...]) -> IcebergType:
    """Return the type of a new field, with new ids for what is inside it."""
    if pa.types.is_struct(kind):
        return _with_fields(StructType(), kind, ids, at)
    if pa.types.is_list(kind):
        number = ids.new()
        return ListType(number, _fresh(kind.value_type, ids, (*at, "element")), element_required=False)
    if pa.types.is_map(kind):
        key, value = ids.new(), ids.new()
        return MapType(key, StringType(), value, _fresh(kind.item_type, ids, (*at, "value")), value_required=False)
    return _leaf(kind, at)


def _leaf(kind: pa.DataType, at: tuple[str, ...]) -> IcebergType:
    if pa.types.is_decimal(kind) and kind.precision <= _DECIMAL_DIGITS:
        return DecimalType(kind.precision, kind.scale)
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        return FixedType(kind.byte_width)
    found = _LEAVES.get(kind)
    if found is None:
        raise NoIcebergType(
            f"`{'.'.join(at)}` is {kind}, which Iceberg cannot represent in format version 2",
            hint="read the values with your own schema that has another type there: --reader-schema FILE",
        )
    return found


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of a table's Parquet files, with the field ids that Parquet readers look for."""
    return pa.schema([_arrow_field(field) for field in schema.fields])


def _arrow_field(field: NestedField) -> ArrowField:
    return _named(field.name, field.field_id, field.field_type, field.required)


def _named(name: str, number: int, kind: IcebergType, required: bool) -> ArrowField:  # noqa: FBT001 - as in `pa.field`
    return pa.field(name, arrow_type(kind), nullable=not required, metadata={FIELD_ID: str(number).encode()})


def arrow_type(kind: IcebergType) -> pa.DataType:
    """Return the Arrow type of a column, with field ids in it."""
    match kind:
        case StructType():
            return pa.struct([_arrow_field(field) for field in kind.fields])
        case ListType():
            return pa.list_(_named("element", kind.element_id, kind.element_type, kind.element_required))
        case MapType():
            key = _named("key", kind.key_id, kind.key_type, required=True)
            value = _named("value", kind.value_id, kind.value_type, kind.value_required)
            made: pa.DataType = pa.map_(key, value)  # type: ignore[call-overload]  # the stubs miss fields as items
            return made
        case DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case FixedType():
            return pa.binary(len(kind))
        case _:
            return _ARROW[kind]
