"""JSON documents to Arrow without a loop over documents: the members of one name, of all documents, are one column.

A column whose values are all of Python's type for it is given to pyarrow as it is. Others are converted one by one, by
`keyfold.formats.json_values`.

Invariant: the result is that of `keyfold.formats.json_values` for each document, or an error. After an error the
documents are read one by one, which also says which of them is wrong. This way counts no more memory than the other
one, so a column that is `TooWide` here is `TooWide` there too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyfold.formats.arrow_types import arrow_type
from keyfold.formats.avro_default import default_value
from keyfold.formats.avro_schema import Array, Primitive, RecordField, RecordType, Type, Union
from keyfold.formats.column_width import ColumnMemory, measure_of, null_bytes
from keyfold.formats.errors import Unsuited
from keyfold.formats.json_values import compile_json
from keyfold.runtime.arrow_types import ArrowArray, column_of, lists_of

Build = Callable[[list[Any], ColumnMemory], ArrowArray]
"""Makes an array of the values of documents at one place, where None is null.

Raises `Unsuited`, `FormatMismatch`, `TooWide`, and what `pyarrow.array` raises.
"""

_NULL: Final = Primitive("null")
_NONE: Final = type(None)
_AS_IT_IS: Final = {"int": int, "long": int, "float": float, "double": float, "string": str, "boolean": bool}
"""The type of Python whose values pyarrow takes for just this type."""


def compile_columns(schema: Type) -> Build:
    """The function for documents of one type; a null document is null. Raises `NoArrowType`."""
    match schema:
        case Union(branches) if len(branches) == 2 and _NULL in branches:
            first, second = branches
            return compile_columns(second if first == _NULL else first)
        case RecordType():
            return _record(schema)
        case Array():
            return _array(schema)
    return _leaf(schema)


def _member(schema: Type) -> Build:
    """The function for what is inside a document, where null must be allowed."""
    build = compile_columns(schema)
    if schema == _NULL or (isinstance(schema, Union) and _NULL in schema.branches):
        return build

    def present(values: list[Any], memory: ColumnMemory) -> ArrowArray:
        if None in values:
            raise Unsuited
        return build(values, memory)

    return present


def _leaf(schema: Type) -> Build:
    kind, fit = arrow_type(schema), compile_json(schema)
    more = _beyond_null(kind)
    plain = schema.kind if isinstance(schema, Primitive) and schema.logical is None else ""
    as_it_is = {_NONE, _AS_IT_IS.get(plain, _NONE)}

    def build(values: list[Any], memory: ColumnMemory) -> ArrowArray:
        if not set(map(type, values)) <= as_it_is:
            values = [None if value is None else fit(value) for value in values]
            memory.reserve(sum(map(more, values)))
        return pa.array(values, kind)

    return build


def _array(schema: Array) -> Build:
    items, kind = _member(schema.items), arrow_type(schema.items)
    item_bytes = 0 if pa.types.is_struct(kind) else null_bytes(kind)  # records reserve their own

    def build(values: list[Any], memory: ColumnMemory) -> ArrowArray:
        present = _present(values, list)
        counts = np.fromiter(map(len, present), np.int64, len(present))
        offsets = np.concatenate([[0], np.cumsum(counts)])
        memory.reserve(int(offsets[-1]) * item_bytes)
        made = items(list(chain.from_iterable(present)), memory)
        return _spread(lists_of(offsets.astype(np.int32), made), values)

    return build


def _record(schema: RecordType) -> Build:
    kind = arrow_type(schema)
    members = [_field(each) for each in schema.fields]

    def build(values: list[Any], memory: ColumnMemory) -> ArrowArray:
        present = _present(values, dict)
        memory.reserve(len(values) * null_bytes(kind))
        arrays = [member(present, memory) for member in members]
        made = pa.StructArray.from_arrays(arrays, fields=list(cast("pa.StructType", kind)))
        return _spread(made, values)

    return build


def _field(field: RecordField) -> Build:
    """The function for one field. Its argument is the records, not the values of the field."""
    name, aliases, build = field.name, sorted(field.aliases), _member(field.type)
    kind, default = arrow_type(field.type), list[object]()
    more = _beyond_null(kind)
    if field.has_default:
        default = [default_value(field.type, field.default, raw=True)]
    elif isinstance(field.type, Union) and _NULL in field.type.branches:
        default = [None]

    def column(records: list[Any], memory: ColumnMemory) -> ArrowArray:
        if default == [None] and not aliases:
            return build([record.get(name) for record in records], memory)
        with suppress(KeyError):
            return build([record[name] for record in records], memory)
        names = [next((each for each in (name, *aliases) if each in record), None) for record in records]
        is_there = np.array([each is not None for each in names], np.bool_)
        values = [record[each] for record, each in zip(records, names, strict=True) if each is not None]
        found = build(values, memory)
        memory.reserve((len(records) - len(values)) * sum(map(more, default)))
        return _defaulted(found, is_there, pa.array(default, kind))

    return column


def _defaulted(found: ArrowArray, is_there: npt.NDArray[np.bool_], default: ArrowArray) -> ArrowArray:
    """The `found` values in order where `is_there` is set, and the default, an array of at most one, elsewhere."""
    if len(found) == len(is_there):
        return found
    if not len(default):
        raise Unsuited
    order = np.full(len(is_there), len(found), np.int64)
    order[is_there] = np.arange(len(found))
    return pa.concat_arrays([found, default]).take(column_of(order))


def _beyond_null(kind: pa.DataType) -> Callable[[object], int]:
    """The function that says how many more bytes a raw value takes than a null."""
    measure, null = measure_of(kind), null_bytes(kind)
    return lambda value: measure(value) - null


def _present(values: list[Any], kind: type) -> list[Any]:
    """The values that are not null, which must be of one type."""
    kinds = set(map(type, values))
    if not kinds <= {kind, _NONE}:
        raise Unsuited
    return [value for value in values if value is not None] if _NONE in kinds else values


def _spread(present: ArrowArray, values: list[Any]) -> ArrowArray:
    """An array with nulls where `values` are null."""
    if len(present) == len(values):
        return present
    is_there = np.array([value is not None for value in values], np.bool_)
    order = np.cumsum(is_there) - 1
    return present.take(column_of(order, mask=~is_there))
