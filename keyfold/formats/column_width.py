"""How much memory columns may take, so that a few bytes of a log do not become gigabytes of Arrow.

A column has memory for each field of each row. One byte can stand for a null in place of a record of a thousand fields,
for a long symbol of an enum, or for a record whose fields all have defaults. What grows so is counted before an array
is made. Where a column would take too much, `TooWide` is raised, and the caller asks for fewer rows (`in_parts`). A
row that is too wide by itself does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import pyarrow as pa

T = TypeVar("T")

MEMORY_BYTES: Final = 32 * 1024 * 1024
"""The most that one column of one batch takes beyond what its raw bytes explain."""

RAW_RATIO: Final = 16
"""How many bytes of a column one raw byte explains: a byte can be a decimal, or a text with its offset and validity."""

FIXED_BYTES_MAX: Final = 1024
"""A larger `fixed` becomes a column of bytes of any length, because Arrow keeps its size free also where it is null."""


class TooWide(Exception):
    """A column would take more memory than it may. Fewer rows may fit."""


class ColumnMemory:
    """What is left of the memory that a column may take."""

    __slots__ = ("left_bytes",)

    def __init__(self, raw_bytes: int) -> None:
        """Begin with the memory of a column whose raw values have `raw_bytes`."""
        self.left_bytes = MEMORY_BYTES + RAW_RATIO * raw_bytes

    def reserve(self, n_bytes: int) -> None:
        """Count what an array takes. Raises `TooWide`."""
        self.left_bytes -= n_bytes
        if self.left_bytes < 0:
            raise TooWide


def null_bytes(kind: pa.DataType) -> int:
    """How many bytes an array of `kind` has for a value that is null."""
    if pa.types.is_struct(kind):
        return 1 + sum(null_bytes(field.type) for field in kind)
    if pa.types.is_fixed_size_binary(kind):
        return 1 + int(kind.byte_width)
    return 9


def measure_of(kind: pa.DataType) -> Callable[[Any], int]:
    """The function that says about how many bytes a raw value takes in an array of `kind`.

    Raw values are those of `keyfold.formats.logical_types`: a record is a tuple, a map a list of pairs.
    """
    null = null_bytes(kind)
    if pa.types.is_struct(kind):
        return _measure_of_record(kind)
    if pa.types.is_list(kind):
        item = measure_of(kind.value_type)
        return lambda value: null if value is None else null + sum(map(item, value))
    if pa.types.is_map(kind):
        item = measure_of(kind.item_type)
        return lambda value: null if value is None else null + sum(len(name) + item(found) for name, found in value)
    return lambda value: null + len(value) if isinstance(value, str | bytes) else null


def _measure_of_record(kind: pa.StructType) -> Callable[[Any], int]:
    null = null_bytes(kind)
    types = [field.type for field in kind]
    texts = [place for place, each in enumerate(types) if pa.types.is_string(each) or pa.types.is_binary(each)]
    nested = [(place, measure_of(each)) for place, each in enumerate(types) if pa.types.is_nested(each)]

    def measure(value: Any) -> int:
        total = null
        if value is not None:
            for place in texts:
                if text := value[place]:
                    total += len(text)
            for place, measured in nested:
                total += measured(value[place])
        return total

    return measure


def in_parts(batch: pa.RecordBatch, made: Callable[[pa.RecordBatch], T]) -> Iterator[T]:
    """What `made` makes of a batch: of all its rows, or where that raises `TooWide` of each half, and so on."""
    try:
        found = made(batch)
    except TooWide:
        half = len(batch) // 2
        yield from in_parts(batch.slice(0, half), made)
        yield from in_parts(batch.slice(half), made)
    else:
        yield found
