"""How a table is partitioned: by the topic's partition, or by transforms of columns, such as `day(timestamp)`.

    NAME                                   the column's value, `value.country` for a field of a struct
    year(NAME) month(NAME) day(NAME) hour(NAME)
    bucket(N, NAME)                        a hash of the value, modulo N
    truncate(N, NAME)                      the first N characters, or the number rounded down to a multiple of N

Source: the Iceberg table specification, "Partition Transforms".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TimeTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField, PrimitiveType, StructType

from keyfold.errors import ConfigError
from keyfold.log.arrow_numbers import Ints
from keyfold.runtime.arrow_types import ArrowArray, column_of, values_of
from keyfold.table.table import PARTITION_ID

OPTION: Final = "--partition-by"
_TERM: Final = re.compile(r"(?:(\w+)\s*\(\s*(?:(\d+)\s*,\s*)?([^(),\s]+)\s*\)|([^(),\s]+))\s*(?:,|$)\s*")
_OF_TIMES: Final[dict[str, Callable[[], Transform[Any, Any]]]] = {
    "year": YearTransform,
    "month": MonthTransform,
    "day": DayTransform,
    "hour": HourTransform,
}
_OF_WIDTHS: Final[dict[str, Callable[[int], Transform[Any, Any]]]] = {
    "bucket": BucketTransform,
    "truncate": TruncateTransform,
}
_HOUR_US: Final = 3_600_000_000


@dataclass(frozen=True, slots=True)
class PartitionColumn:
    """One column that a table is partitioned by. Fields of structs are named with dots."""

    name: str
    transform: Transform[Any, Any]

    @property
    def field_name(self) -> str:
        """The name of the partition field, as other tools would name it."""
        plain = self.name.replace(".", "_")
        if isinstance(self.transform, IdentityTransform):
            return plain
        return f"{plain}_{str(self.transform).partition('[')[0]}"

    def __str__(self) -> str:
        """Return the column as `parse_columns` reads it."""
        name, _, width = str(self.transform).rstrip("]").partition("[")
        if isinstance(self.transform, IdentityTransform):
            return self.name
        return f"{name}({width}, {self.name})" if width else f"{name}({self.name})"


def parse_columns(text: str) -> tuple[PartitionColumn, ...]:
    """Read what a table is to be partitioned by. Raises `ConfigError`."""
    found: list[PartitionColumn] = []
    text, at = text.strip(), 0
    while at < len(text):
        term = _TERM.match(text, at)
        if term is None:
            raise _wrong(f"`{text}` is not understood from `{text[at:]}` on")
        found.append(_column(*term.groups()))
        at = term.end()
    names = [each.field_name for each in found]
    if not found or len(set(names)) < len(names):
        raise _wrong(f"`{text}` names no column, or one twice")
    return tuple(found)


def _column(transform: str | None, width: str | None, name: str, plain: str | None) -> PartitionColumn:
    if transform is None:
        return PartitionColumn(plain or name, IdentityTransform())
    if transform in _OF_TIMES and width is None:
        return PartitionColumn(name, _OF_TIMES[transform]())
    if transform in _OF_WIDTHS and width is not None and int(width) > 0:
        return PartitionColumn(name, _OF_WIDTHS[transform](int(width)))
    raise _wrong(f"there is no transform `{transform}` of this form")


def _wrong(what: str) -> ConfigError:
    hint = "columns, year|month|day|hour(COLUMN), bucket|truncate(N, COLUMN), separated by commas"
    return ConfigError(OPTION, what, hint=hint)


def has_columns(columns: Sequence[PartitionColumn], schema: Schema) -> bool:
    """Return whether a schema has all these columns."""
    return all(_path(schema, each.name) for each in columns)


def partition_spec(columns: Sequence[PartitionColumn], schema: Schema, spec_id: int = 0) -> PartitionSpec:
    """Return Iceberg's partition spec. Raises `ConfigError` for a column that is missing or has no fitting type."""
    return PartitionSpec(
        *(_field(PARTITION_FIELD_ID_START + number, each, schema) for number, each in enumerate(columns)),
        spec_id=spec_id,
    )


def _field(number: int, column: PartitionColumn, schema: Schema) -> PartitionField:
    path = _path(schema, column.name)
    if not path:
        raise ConfigError(OPTION, f"no row has a column `{column.name}`")
    kind = path[-1].field_type
    if not isinstance(kind, PrimitiveType) or not column.transform.can_transform(kind):
        raise ConfigError(OPTION, f"column `{column.name}` is {kind}, which `{column.transform}` does not apply to")
    return PartitionField(path[-1].field_id, number, column.transform, column.field_name)


def _path(schema: Schema, name: str) -> list[NestedField]:
    """Return the column and the fields of structs that lead to a field; empty if there is none."""
    path: list[NestedField] = []
    fields: Sequence[NestedField] = schema.fields
    for part in name.split("."):
        found = next((field for field in fields if field.name == part), None)
        if found is None:
            return []
        path.append(found)
        fields = found.field_type.fields if isinstance(found.field_type, StructType) else ()
    return path


def is_by_topic_partition(spec: PartitionSpec) -> bool:
    """Return whether a table is partitioned by the topic's partition alone."""
    return [(each.source_id, each.transform) for each in spec.fields] == [(PARTITION_ID, IdentityTransform())]


def split(table: pa.Table, spec: PartitionSpec, schema: Schema) -> Iterator[tuple[Record, pa.Table]]:
    """Yield the rows of each partition of the spec with its values. Rows stay in their order."""
    if spec.is_unpartitioned():
        yield Record(), table
        return
    coded = [_coded(table, field, schema) for field in spec.fields]
    kinds, group = np.unique(np.stack([codes for codes, _ in coded]), axis=1, return_inverse=True)
    group = group.reshape(-1)
    for number in range(kinds.shape[1]):
        record = Record(*(values[code] for (_, values), code in zip(coded, kinds[:, number].tolist(), strict=True)))
        rows = np.flatnonzero(group == number)
        yield record, table if len(rows) == table.num_rows else table.take(column_of(rows))


def _coded(table: pa.Table, field: PartitionField, schema: Schema) -> tuple[Ints, list[Any]]:
    """Return a number for the partition value of each row, and the values by number."""
    name = schema.find_column_name(field.source_id) or ""
    head, *rest = name.split(".")
    array = table.column(head).combine_chunks()
    for part in rest:
        array = pc.struct_field(array, part)
    kind = schema.find_type(field.source_id)
    transform = field.transform.transform(kind)
    coded = _plain(array, is_time=isinstance(field.transform, TimeTransform)).dictionary_encode("encode")
    numbers: dict[Any, int] = {}
    of_value = [numbers.setdefault(transform(value), len(numbers)) for value in values_of(coded.dictionary)]
    return np.asarray(of_value, np.int64)[coded.indices.to_numpy()], list(numbers)


def _plain(array: ArrowArray, *, is_time: bool) -> ArrowArray:
    """Return the values as Iceberg's transforms take them: times and dates are numbers.

    No transform of a time tells two moments of one hour apart, so there are fewer values to transform without these.
    """
    if pa.types.is_date32(array.type):
        return array.cast(pa.int32())
    if pa.types.is_time64(array.type):
        return array.cast(pa.int64())
    if not pa.types.is_timestamp(array.type):
        return array
    numbers = array.cast(pa.int64())
    if not is_time:
        return numbers
    known = numbers.is_valid().to_numpy(zero_copy_only=False)
    return column_of(numbers.fill_null(0).to_numpy() // _HOUR_US * _HOUR_US, mask=~known)
