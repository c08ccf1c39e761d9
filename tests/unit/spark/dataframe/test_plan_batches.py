"""What Spark's tasks give, batch by batch, in this process: the columns that Spark was promised. No Spark runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from keyfold.errors import ConfigError
from keyfold.formats.errors import RecordFormatMismatch
from keyfold.formats.schema_archive import SchemaArchive
from keyfold.log.names import schema_key
from keyfold.log.record import Record
from keyfold.read.log import Log
from keyfold.spark.dataframe.avro_columns import _reader
from keyfold.spark.dataframe.avro_tasks import _avro_typing, _decoding
from keyfold.spark.dataframe.scan import INDEX, RECORDS
from keyfold.spark.dataframe.scan_tasks import SegmentRange, _index_batches, _run_task, record_batches
from keyfold.spark.dataframe.snapshot_pins import pin_log
from keyfold.spark.dataframe.value_formats import Typing
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from tests.support.logs import MadeLog

OLD = {"type": "record", "name": "User", "fields": [{"name": "name", "type": "string"}]}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "age", "type": ["null", "int"], "default": None}]}


@dataclass(frozen=True, slots=True)
class Here:
    """The location of a store of this process."""

    store: MemoryStore

    def open(self) -> MemoryStore:
        return self.store


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def log(store: MemoryStore) -> Log:
    return Log(store, "topics", "users")


def append(store: MemoryStore, *values: bytes | None) -> None:
    made = MadeLog(store=store)
    headers = (("h", None), ("h", b"\xff"))
    made.append([Record(at, 2**62 if at else 7, "CreateTime", b"k", v, headers, 3) for at, v in enumerate(values)])


def task(log: Log) -> tuple[SegmentRange, ...]:
    (pin,) = pin_log(log)
    return tuple(SegmentRange(pin.place, entry, pin.start, pin.end) for entry in pin.entries)


def plain(schema: pa.Schema) -> pa.Schema:
    """Without what Spark does not compare: whether a column may be null, and how a time zone is spelt."""
    return pa.schema([(f.name, pa.timestamp("us", "UTC") if pa.types.is_timestamp(f.type) else f.type) for f in schema])


def test_batches_have_the_declared_columns(store: MemoryStore, log: Log) -> None:
    append(store, b"one", None, b"three")
    (batch,) = _run_task(cast("Any", Here(store)), task(log), record_batches)
    assert plain(batch.schema) == plain(to_arrow_schema(RECORDS, timezone="UTC"))
    assert batch.column("partition").to_pylist() == [0, 0, 0]
    assert batch.column("value").to_pylist() == [b"one", None, b"three"]
    # Kafka takes any 64 bits for a timestamp. Spark's end earlier, and one odd record must not fail each job.
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [7_000, 2**63 // 1000 * 1000, 2**63 // 1000 * 1000]
    (rows,) = _run_task(cast("Any", Here(store)), task(log), _index_batches)
    assert plain(rows.schema) == plain(to_arrow_schema(INDEX, timezone="UTC"))
    assert rows.column("is_tombstone").to_pylist() == [False, True, False]


def keep(store: MemoryStore, schemas: dict[int, Any]) -> SchemaArchive:
    for key, schema in schemas.items():
        store.put(schema_key("topics", key), json.dumps(schema).encode(), Create())
    return SchemaArchive(store, "topics")


def test_the_newest_schema_is_that_of_the_last_value(store: MemoryStore, log: Log) -> None:
    kept = keep(store, {1: OLD, 2: NEW, 3: {"type": "string"}})
    append(store, b"\0\0\0\0\1\2a", b"\0\0\0\0\2\2b\2\4", None)
    assert json.loads(_reader(Typing("value", "avro"), log, kept, [0])) == NEW
    # Another topic's schema, which is newer, is no matter; a given one wins.
    assert json.loads(_reader(Typing("value", "avro", OLD), log, kept, [0])) == OLD
    with pytest.raises(ConfigError, match=r"key_format.*offset 2"):
        _reader(Typing("key", "avro"), log, kept, [0])
    with pytest.raises(ConfigError, match="reader_schema"):
        _reader(Typing("value", "avro", '{"type": "nothing"}'), log, kept, [0])


def test_an_empty_log_needs_no_schema(store: MemoryStore, log: Log) -> None:
    _ = MadeLog(store=store).sink
    assert json.loads(_reader(Typing("value", "avro"), log, SchemaArchive(store, "topics"), [0])) == "bytes"


def test_a_schema_that_is_not_archived_must_be_given(store: MemoryStore, log: Log) -> None:
    append(store, b"\0\0\0\0\7\2a")
    with pytest.raises(ConfigError, match=r"reader_schema.*names schema 7, which was not kept"):
        _reader(Typing("value", "avro"), log, SchemaArchive(store, "topics"), [0])


def test_tasks_read_each_value_with_its_own_schema(store: MemoryStore, log: Log) -> None:
    keep(store, {1: OLD, 2: NEW})
    append(store, b"\0\0\0\0\1\2a", b"\0\0\0\0\2\2b\2\4", None, b"plain")
    (batch,) = _run_task(cast("Any", Here(store)), task(log), record_batches)
    lenient = _avro_typing(Typing("value", "avro", NEW, "PERMISSIVE"), json.dumps(NEW))
    (typed,) = _decoding(cast("Any", Here(store)), "topics", "users", [lenient])(iter([batch]))
    assert typed.column("value").type == lenient.type
    assert typed.column("value").to_pylist() == [{"name": "a", "age": None}, {"name": "b", "age": 2}, None, None]
    strict = _avro_typing(Typing("value", "avro", NEW), json.dumps(NEW))
    with pytest.raises(RecordFormatMismatch, match=r"users-0: the value at offset 3 begins with byte 112"):
        list(_decoding(cast("Any", Here(store)), "topics", "users", [strict])(iter([batch])))
