"""Partitions of a table: columns and transforms of them, files of one partition each, and merging inside them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, LongType, NestedField, StringType, StructType, TimestamptzType

from keyfold.errors import ConfigError
from keyfold.formats.format import Format
from keyfold.log.record import CREATE_TIME, Record
from keyfold.runtime.arrow_types import values_of
from keyfold.table.maintain import merge
from keyfold.table.partitioning import parse_columns, partition_spec, split
from keyfold.table.request import TableRequest
from tests.support.logs import MadeLog, records
from tests.support.tables import MadeTable

SCHEMA = Schema(
    NestedField(1, "partition", LongType(), required=True),
    NestedField(2, "offset", LongType(), required=True),
    NestedField(3, "timestamp", TimestamptzType(), required=False),
    NestedField(4, "key", StringType(), required=False),
    NestedField(5, "value", StructType(NestedField(6, "day", DateType(), required=False)), required=False),
)
DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("partition", ["partition"]),
        ("day(timestamp)", ["timestamp_day"]),
        ("partition, bucket(16, key)", ["partition", "key_bucket"]),
        ("truncate( 2 ,key ),value.day", ["key_truncate", "value_day"]),
        ("year(value.day)", ["value_day_year"]),
    ],
)
def test_columns_and_transforms_are_understood(text: str, names: list[str]) -> None:
    assert [field.name for field in partition_spec(parse_columns(text), SCHEMA).fields] == names


@pytest.mark.parametrize(
    "text", ["", "partition partition", "day(timestamp", "week(timestamp)", "day(3, timestamp)", "bucket(key)",
             "bucket(0, key)", "key, key", "day(timestamp)) "],
)  # fmt: skip
def test_anything_else_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="--partition-by"):
        parse_columns(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("value.month", "no row has a column `value.month`"),
        ("value", "column `value` is struct"),
        ("day(key)", "column `key` is string, which `day` does not apply to"),
    ],
)
def test_a_column_must_fit_its_transform(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        partition_spec(parse_columns(text), SCHEMA)


def parts(text: str, **columns: Any) -> dict[Any, list[int]]:
    """The offsets of each partition."""
    table = pa.table({"offset": list(range(len(next(iter(columns.values()))))), **columns})
    spec = partition_spec(parse_columns(text), SCHEMA)
    return {tuple(record[at] for at in range(len(record))): values_of(rows.column("offset"))
            for record, rows in split(table, spec, SCHEMA)}  # fmt: skip


def test_rows_go_to_the_partitions_that_iceberg_names() -> None:
    moments = [datetime(1970, 1, 2, 23, 59, 59, 999999, UTC), datetime(1970, 1, 3, tzinfo=UTC), None,
               datetime(1969, 12, 31, 23, tzinfo=UTC), datetime(1970, 1, 3, 5, tzinfo=UTC)]  # fmt: skip
    times = pa.array(moments, pa.timestamp("us", "UTC"))
    assert parts("day(timestamp)", timestamp=times) == {(1,): [0], (2,): [1, 4], (None,): [2], (-1,): [3]}
    assert parts("hour(timestamp)", timestamp=times) == {(47,): [0], (48,): [1], (None,): [2], (-1,): [3], (53,): [4]}
    assert parts("truncate(1, key), partition", key=["ab", "b", "ac", "é€"], partition=[0, 0, 0, 1]) == {
        ("a", 0): [0, 2], ("b", 0): [1], ("é", 1): [3],
    }  # fmt: skip
    days = pa.array([{"day": moment and moment.date()} for moment in moments], pa.struct([("day", pa.date32())]))
    assert parts("value.day", value=days) == {(1,): [0], (2,): [1, 4], (None,): [2], (-1,): [3]}
    # The hash of Iceberg's specification, appendix B: "iceberg" has 1210000089, and 1210000089 % 100 is 89.
    assert parts("bucket(100, key)", key=["iceberg", None]) == {(89,): [0], (None,): [1]}


def test_a_table_without_partitions_has_one() -> None:
    ((record, rows),) = split(pa.table({"offset": [1, 2]}), UNPARTITIONED_PARTITION_SPEC, SCHEMA)
    assert (len(record), rows.num_rows) == (0, 2)


def person(offset: int, key: str, country: str | None, day: int = 0) -> Record:
    value = None if country is None else json.dumps({"country": country, "n": offset}).encode()
    return Record(offset, 10**12 + day * DAY_MS, CREATE_TIME, key.encode(), value)


BY_COUNTRY = TableRequest(Format.STRING, Format.JSON, partition_by="value.country, day(timestamp)")


def files_of(table: MadeTable) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(file.file.partition[at] for at in range(2)) for file in table.version.data_files)


def countries(table: MadeTable) -> dict[str, str]:
    return {row["key"]: row["value"]["country"] for row in table.rows()}


def test_a_table_by_a_field_of_the_values_is_partitioned_with_its_first_rows() -> None:
    made = MadeLog()
    made.append([person(0, "a", None)])
    table = MadeTable(made, BY_COUNTRY)
    table.sync()
    assert table.version.loaded.metadata.spec().is_unpartitioned()
    made.append([person(1, "a", "at"), person(2, "b", "de"), person(3, "c", "at", day=1), person(4, "d", "at")])
    table.sync()
    first = 10**12 // DAY_MS
    assert files_of(table) == {("at", first): 1, ("de", first): 1, ("at", first + 1): 1}
    made.append([person(5, "a", "de"), person(6, "c", None), person(7, "e", "at")])
    table.sync()
    assert countries(table) == {"a": "de", "b": "de", "d": "at", "e": "at"}
    assert files_of(table) == {("at", first): 2, ("de", first): 2}


def test_files_are_merged_inside_a_partition_of_the_table() -> None:
    made = MadeLog()
    table = MadeTable(made, BY_COUNTRY)
    for offset in range(12):
        made.append([person(offset, f"k{offset}", "at" if offset % 2 else "de")])
        table.sync()
    before = countries(table)
    merge(table.opened, clock=made.clock, random=Random(99), files_max=2)
    assert countries(table) == before
    assert list(files_of(table).values()) == [1, 1]


def test_many_partitions_are_written_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keyfold.table.data_files._OPEN_MAX", 3)
    made = MadeLog()
    made.append([person(offset, f"k{offset}", f"c{offset % 7}") for offset in range(21)])
    table = MadeTable(made, BY_COUNTRY)
    table.sync()
    assert len(countries(table)) == 21
    assert len(files_of(table)) == 7


def test_a_column_that_no_row_has_stops_the_first_rows() -> None:
    made = MadeLog()
    made.append([person(0, "a", "at")])
    table = MadeTable(made, TableRequest(Format.STRING, Format.JSON, partition_by="value.region"))
    for dry_run in (True, False):
        with pytest.raises(ConfigError, match=r"no row has a column `value\.region`"):
            table.sync(dry_run=dry_run)
    assert table.version.snapshot is None


def test_the_same_partitioning_may_be_written_in_another_way() -> None:
    made = MadeLog()
    made.append([person(0, "a", "at")])
    table = MadeTable(made, BY_COUNTRY)
    table.sync()
    made.append([person(1, "b", "de")])
    table.sync(replace(BY_COUNTRY, partition_by=" value.country,day( timestamp ) "))
    assert sorted(countries(table)) == ["a", "b"]
    columns = "key, truncate(2, key), bucket(16, key), year(timestamp)"
    assert ", ".join(map(str, parse_columns(columns.replace(" ", "")))) == columns


def test_another_partitioning_needs_another_table() -> None:
    made = MadeLog()
    made.append(records("a=1"))
    table = MadeTable(made)
    table.sync()
    with pytest.raises(ConfigError, match="was made with partition-by `partition`, not `bucket"):
        table.sync(TableRequest(partition_by="bucket(4, key)"))
