"""Types of Arrow's columns for mypy, and the calls between Arrow and numpy that the stubs of pyarrow do not know.

ArrowArray, ArrowChunks, ...     arrays and fields whose type is known when they are read
arrow_schema                     a schema of fields of different types
buffer_of, numbers_in            memory of numpy for Arrow, and of Arrow for numpy
column_of, lists_of, nulls       columns of numbers, of lists and of nulls
values_of                        a column as a list of Python values
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

ArrowArray: TypeAlias = "pa.Array[Any]"
ArrowChunks: TypeAlias = "pa.ChunkedArray[Any]"
ArrowScalar: TypeAlias = "pa.Scalar[Any]"
ArrowCodes: TypeAlias = "pa.DictionaryArray[Any, Any]"
ArrowLists: TypeAlias = "pa.ListArray[Any]"
ArrowField: TypeAlias = "pa.Field[Any]"

Number = TypeVar("Number", bound=np.generic)


def arrow_schema(fields: Sequence[ArrowField]) -> pa.Schema:
    """Return the schema of `fields`."""
    return pa.schema(fields)


def buffer_of(values: npt.NDArray[np.generic]) -> pa.Buffer:
    """Return the memory of `values` as an Arrow buffer, without a copy."""
    return pa.py_buffer(values)  # type: ignore[arg-type]  # numpy declares `__buffer__` for Python 3.12 and newer


def numbers_in(buffer: pa.Buffer | None, kind: type[Number]) -> npt.NDArray[Number]:
    """Return an Arrow buffer as numbers, without a copy. The buffer of an array that has rows is not None."""
    found: npt.NDArray[Number] = np.frombuffer(buffer, kind)  # type: ignore[call-overload]  # stubs lack `__buffer__`
    return found


def column_of(values: npt.NDArray[np.generic], mask: npt.NDArray[np.bool_] | None = None) -> ArrowArray:
    """Return numbers as an Arrow array with nulls where `mask` is true."""
    column: ArrowArray = pa.array(values, mask=mask)  # the stubs take every numpy array for one of booleans
    return column


def lists_of(offsets: npt.NDArray[np.int32], values: ArrowArray) -> ArrowArray:
    """Return one list per pair of neighbouring offsets into `values`."""
    column: ArrowArray = pa.ListArray.from_arrays(  # type: ignore[call-overload]  # the stubs miss values of any type
        column_of(offsets), values
    )
    return column


def nulls(count: int, kind: pa.DataType) -> ArrowArray:
    """Return `count` nulls of any type."""
    column: ArrowArray = pa.nulls(count, kind)  # type: ignore[call-overload]  # the stubs list concrete types alone
    return column


def values_of(column: ArrowArray | ArrowChunks) -> list[Any]:
    """Return the values of a column as Python's. The stubs say that any of them may be None."""
    return column.to_pylist()
