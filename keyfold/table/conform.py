"""Arrays of an older or narrower type as arrays of a table's type.

A field that the array does not have is null. A field that the type does not have is left out: it is always null, or it
would be in the type (see `keyfold.table.types.grown`). Fields of an array that comes from a table's file are found by
their ids, because a column may have got another name since; all others are found by their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from keyfold.runtime.arrow_types import ArrowArray, ArrowField, nulls
from keyfold.table.types import FIELD_ID


def conform(array: ArrowArray, kind: pa.DataType) -> ArrowArray:
    """Return the values as an array of `kind`. Raises `pa.ArrowInvalid` if one is out of its range."""
    if array.type.equals(kind, check_metadata=True):
        return array
    if pa.types.is_null(kind):  # of a type that no column can have
        return nulls(len(array), kind)
    if pa.types.is_struct(kind):
        return _struct(array, list(kind))
    if pa.types.is_list(kind):
        return _list(_from_zero(array), kind)
    if pa.types.is_map(kind):
        return _map(_from_zero(array), kind)
    return array.cast(kind)


# The arguments are `Any` because the stubs of pyarrow know the parts of nested arrays only where the type is concrete.


def _list(array: Any, kind: Any) -> ArrowArray:
    items = conform(array.values, kind.value_type)
    made: ArrowArray = pa.ListArray.from_arrays(array.offsets, items, type=kind, mask=array.is_null())
    return made


def _map(array: Any, kind: Any) -> ArrowArray:
    items = conform(array.items, kind.item_type)
    made: ArrowArray = pa.MapArray.from_arrays(array.offsets, array.keys, items, type=kind, mask=array.is_null())
    return made


def _struct(array: Any, kind: Sequence[ArrowField]) -> ArrowArray:
    if not pa.types.is_struct(array.type):
        return nulls(len(array), pa.struct(kind))  # of a type without values
    children = [
        nulls(len(array), field.type) if number is None else conform(array.field(number), field.type)
        for field, number in zip(kind, places(list(array.type), kind), strict=True)
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())


def places(found: Sequence[ArrowField], wanted: Sequence[ArrowField]) -> list[int | None]:
    """Return where each wanted field is among those that were found; None for a field that is not there."""
    by_id = {number: at for at, field in enumerate(found) if (number := _id(field)) is not None}
    if by_id:
        return [by_id.get(_id(field) or b"") for field in wanted]
    by_name = {field.name: at for at, field in enumerate(found)}
    return [by_name.get(field.name) for field in wanted]


def _id(field: ArrowField) -> bytes | None:
    return (field.metadata or {}).get(FIELD_ID)


def _from_zero(array: ArrowArray) -> ArrowArray:
    """Return the array with offsets that begin at its own values; Arrow accepts a mask only for such."""
    return pa.concat_arrays([array, array.slice(0, 0)]) if array.offset else array
