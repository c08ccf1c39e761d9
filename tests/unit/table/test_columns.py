"""Avro values in a table: each is read by the schema that wrote it, whatever came later."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keyfold.errors import ConfigError
from keyfold.formats.errors import RecordFormatMismatch
from keyfold.formats.format import Format
from keyfold.log.record import CREATE_TIME, Record
from keyfold.store.api import Create
from keyfold.table.request import TableRequest
from keyfold.table.types import NoIcebergType
from tests.support.avro_cases import framed
from tests.support.logs import MadeLog
from tests.support.tables import MadeTable

AVRO = TableRequest(value_format=Format.AVRO)


def schema(*fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "User",
        "fields": [{"name": name, "type": kind, **more.get(name, {})} for name, kind in fields],
    }


OLD = schema(("id", "int"), ("gone", "string"))
NEW = schema(("id", "long"), ("name", "string"), name={"default": "unknown"})


def log_with(*schemas: dict[str, Any]) -> MadeLog:
    made = MadeLog()
    for number, each in enumerate(schemas, 1):
        made.store.put(f"topics/_schemas/{number}.avsc", json.dumps(each).encode(), Create())
    return made


def avro(offset: int, key: str, schema_id: int, kind: Any, value: Any) -> Record:
    return Record(offset, 1000 * offset, CREATE_TIME, key.encode(), framed(schema_id, kind, value))


OLD_ROW = {"id": 1, "gone": "x"}
NEW_ROW = {"id": 2**40, "name": "b"}


@pytest.mark.parametrize("at_once", [True, False])
def test_rows_do_not_depend_on_when_they_were_synchronised(at_once: bool) -> None:
    made = log_with(OLD, NEW)
    table = MadeTable(made, AVRO)
    made.append([avro(0, "a", 1, OLD, OLD_ROW)])
    if not at_once:
        table.sync()
    made.append([avro(1, "b", 2, NEW, NEW_ROW), avro(2, "c", 1, OLD, OLD_ROW)])
    table.sync()
    assert [row["value"] for row in table.rows()] == [
        {"id": 1, "gone": "x", "name": None},
        {"id": 2**40, "gone": None, "name": "b"},
        {"id": 1, "gone": "x", "name": None},
    ]
    assert str(table.version.schema.find_type("value.id")) == "long"


def test_a_readers_schema_reads_all_values() -> None:
    made = log_with(OLD, NEW)
    made.append([avro(0, "a", 1, OLD, OLD_ROW), avro(1, "b", 2, NEW, NEW_ROW)])
    table = MadeTable(made, TableRequest(value_format=Format.AVRO, reader_schema=json.dumps(NEW)))
    table.sync()
    assert [row["value"] for row in table.rows()] == [{"id": 1, "name": "unknown"}, NEW_ROW]


def test_a_type_that_changed_beyond_iceberg_stops_the_sync() -> None:
    other = schema(("id", "string"))
    made = log_with(OLD, other)
    made.append([avro(0, "a", 1, OLD, OLD_ROW), avro(1, "b", 2, other, {"id": "x"})])
    with pytest.raises(NoIcebergType, match=r"`value\.id` is int in the table and string in newer records"):
        MadeTable(made, AVRO).sync()


def test_a_union_of_several_types_asks_for_a_readers_schema() -> None:
    union = schema(("id", ["int", "string"]))
    made = log_with(union)
    made.append([avro(0, "a", 1, union, {"id": 1})])
    with pytest.raises(ConfigError, match="reader schema"):
        MadeTable(made, AVRO).sync()


@pytest.mark.parametrize("value", [b"no avro", framed(9, OLD, OLD_ROW)])
def test_a_value_without_a_kept_schema_stops_the_sync(value: bytes) -> None:
    made = log_with(OLD)
    made.append([avro(0, "a", 1, OLD, OLD_ROW), Record(1, 0, CREATE_TIME, b"b", value)])
    with pytest.raises(RecordFormatMismatch, match="offset 1"):
        MadeTable(made, AVRO).sync()


def test_a_table_of_tombstones_gets_its_value_later() -> None:
    made = log_with(OLD)
    made.append([Record(0, 0, CREATE_TIME, b"a", None)])
    table = MadeTable(made, AVRO)
    table.sync()
    assert table.rows() == []
    made.append([avro(1, "b", 1, OLD, OLD_ROW)])
    table.sync()
    assert [row["value"] for row in table.rows()] == [OLD_ROW]
