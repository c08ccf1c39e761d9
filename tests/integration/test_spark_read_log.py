"""`read_log` on a real Spark: the rows that the Python reader gives, of one moment, and never fewer in silence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import fastavro
import pytest
from structlog.testing import capture_logs

from keyfold.errors import ConfigError, SnapshotLost
from keyfold.log.names import schema_key
from keyfold.log.record import Record
from keyfold.store.api import Blob, Create
from tests.bench._folder_store import FolderStore
from tests.support.spark_logs import FolderLog, rows
from tests.support.tiers import Sharded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.any_spark,
    pytest.mark.filterwarnings("ignore:distutils Version classes:DeprecationWarning"),  # Spark 3.5 asks them
]
Headers = tuple[tuple[str, bytes | None], ...]


def read(spark: SparkSession, log: FolderLog, **wanted: Any) -> DataFrame:
    from keyfold.spark import read_log

    return read_log(spark, log.url, log.topic, **{**log.where, **wanted})


@contextmanager
def setting(spark: SparkSession, **values: str) -> Iterator[None]:
    names = {name: name.replace("_", ".") for name in values}
    for name, value in values.items():
        spark.conf.set(names[name], value)
    try:
        yield
    finally:
        for name in values:
            spark.conf.unset(names[name])


def test_rows_equal_those_of_the_python_reader(spark: SparkSession, log: FolderLog, engine: str) -> None:
    for partition in (0, 1, 12):
        log.fill(partition)
    log.made(5)  # a partition without segments
    before = read(spark, log, engine=engine)
    assert before.columns == [
        "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers", "leader_epoch",
    ]  # fmt: skip
    assert rows(before) == log.records()
    log.clean()
    log.fill(1, segments=1)
    assert rows(read(spark, log, engine=engine)) == log.records()
    some = read(spark, log, engine=engine, partitions=[12, 1])
    assert rows(some) == [row for row in log.records() if row[0] in {1, 12}]
    assert some.select("offset").count() == some.count()


def test_bounds_are_exact(spark: SparkSession, log: FolderLog, engine: str) -> None:
    for partition in (0, 1):
        log.fill(partition)
    log.clean()
    every = log.records()
    first, last = every[len(every) // 8][1], every[len(every) // 3][1]
    assert rows(read(spark, log, engine=engine, from_offset=first, to_offset=last)) == [
        row for row in every if first <= row[1] < last
    ]
    assert rows(read(spark, log, engine=engine, from_offset={1: first}, to_offset={0: last})) == [
        row for row in every if (row[0] == 0 and row[1] < last) or (row[0] == 1 and row[1] >= first)
    ]
    since = every[len(every) // 4][2] if every[len(every) // 4][2] > 0 else 1_700_000_030_000
    timed = [row for row in every if since <= row[2] < since + 40_000]
    assert 0 < len(timed) < len(every)
    assert rows(read(spark, log, engine=engine, from_timestamp=since, to_timestamp=since + 40_000)) == timed
    both = read(spark, log, engine=engine, from_timestamp=since, to_offset=last)
    assert rows(both) == [row for row in every if row[2] >= since and row[1] < last]


def test_an_empty_log_has_the_schema_of_a_full_one(spark: SparkSession, log: FolderLog, engine: str) -> None:
    log.made(0)
    empty = read(spark, log, engine=engine)
    assert empty.count() == 0
    log.fill(0, segments=1)
    full = read(spark, log, engine=engine)
    assert full.schema == empty.schema
    nothing = read(spark, log, engine=engine, from_offset=log.log.manifest(0).next_offset)
    assert nothing.count() == 0
    assert nothing.schema == full.schema


def test_a_dataframe_keeps_the_version_it_was_created_with(spark: SparkSession, log: FolderLog, engine: str) -> None:
    log.fill(0)
    expected = log.records()
    frame = read(spark, log, engine=engine)
    log.clean()
    log.fill(0, segments=1)
    assert log.records() != expected
    assert rows(frame) == expected


def test_a_deleted_object_fails_the_job(spark: SparkSession, log: FolderLog, engine: str) -> None:
    from keyfold.spark import snapshot_errors

    log.fill(0)
    frame = read(spark, log, engine=engine)
    log.clean()
    log.made(0).delete_replaced()
    with (
        setting(spark, spark_sql_files_ignoreMissingFiles="true", spark_sql_files_ignoreCorruptFiles="true"),
        pytest.raises(SnapshotLost, match=r"users-0.*is missing.*repeat the whole job"),
        snapshot_errors(),
    ):
        frame.count()
    assert rows(read(spark, log, engine=engine)) == log.records()


def test_a_damaged_segment_fails_the_job(spark: SparkSession, log: FolderLog, jvm: str) -> None:
    log.fill(0)
    entry = log.log.manifest(0).segments[0]
    path = log.store.path(log.place(0).key(entry.name))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with (
        setting(spark, spark_sql_files_ignoreCorruptFiles="true"),
        pytest.raises(Exception, match=f"{entry.name}|Invalid sync"),
    ):
        read(spark, log, engine=jvm).collect()


@dataclass(frozen=True, slots=True)
class _LateStore(FolderStore):
    """Gives a manifest that was replaced, and its objects collected, while it was on its way."""

    stale: dict[str, Blob]

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        return self.stale.pop(key, None) or FolderStore.get(self, key, max_bytes)


def test_a_version_deleted_before_spark_reads_it_is_pinned_again(spark: SparkSession, log: FolderLog, jvm: str) -> None:
    log.fill(0)
    key = log.place(0).manifest_key
    stale = {key: log.store.get(key)}
    log.clean()
    log.made(0).delete_replaced()
    frame = read(spark, log, store=_LateStore(str(log.folder), stale), engine=jvm)
    assert not stale
    assert rows(frame) == log.records()


def test_objects_in_a_partitions_folder_that_the_manifest_does_not_name_are_not_read(
    spark: SparkSession, log: FolderLog, jvm: str
) -> None:
    log.fill(0)
    entry = log.log.manifest(0).segments[0]
    path = log.store.path(log.place(0).key(entry.name))
    path.with_name(str(log.made(0).sink.new_name(entry.base_offset))).write_bytes(path.read_bytes())
    with capture_logs() as events:
        assert rows(read(spark, log, engine=jvm)) == log.records()
    assert events == []
    (path.parent / "copies").mkdir()
    (path.parent / "copies" / entry.name).write_bytes(path.read_bytes())
    with capture_logs() as events:
        assert rows(read(spark, log, engine=jvm)) == log.records()
    assert [event["cause"] for event in events] == ["4 of 3 objects were found"]


def test_a_copy_in_the_folder_of_another_partition_is_not_read(spark: SparkSession, log: FolderLog, jvm: str) -> None:
    for partition in (0, 1):
        log.fill(partition)
    entry = log.log.manifest(0).segments[0]
    for name in (entry.name, entry.index_name):
        copy = log.store.path(log.place(1).key(name))
        copy.write_bytes(log.store.path(log.place(0).key(name)).read_bytes())
    with capture_logs() as events:
        assert rows(read(spark, log, engine=jvm)) == log.records()
    assert [event["cause"] for event in events] == ["7 of 6 objects were found"]


def test_names_that_spark_might_misread_work(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    log = FolderLog(tmp_path, topics_dir="_raw/env=prod/a[b]*c", topic="_schemas.v1")
    log.fill(0, segments=2)
    log.fill(3, segments=1)
    with capture_logs() as events:
        assert rows(read(spark, log, engine=engine)) == log.records()
    assert events == []


@pytest.mark.usefixtures("jvm")
def test_the_session_decides_which_engine_reads(spark: SparkSession) -> None:
    from keyfold.spark.dataframe.paths import Root, choose_engine
    from keyfold.spark.jvm import has_class

    assert not has_class(spark, "org.example.NoSuchThing")
    # This session has no S3 file system: keyfold reads by itself, and who asks for the JVM is told why not.
    assert choose_engine(spark, "s3://bucket/topics", "auto", None) is None
    with pytest.raises(ConfigError, match="no file system for s3a:// or s3://"):
        choose_engine(spark, "s3://bucket/topics", "jvm", None)
    with pytest.raises(ConfigError, match="must be one of auto, jvm, keyfold"):
        choose_engine(spark, "s3://bucket/topics", "spark", None)  # type: ignore[arg-type]  # refused before the store is used
    with setting(spark, fs_s3_impl="org.apache.hadoop.fs.RawLocalFileSystem"):
        assert choose_engine(spark, "s3://bucket/topics", "auto", None) == Root("s3://bucket")
    with setting(spark, fs_s3a_impl="org.apache.hadoop.fs.RawLocalFileSystem"):
        assert choose_engine(spark, "s3://bucket/topics", "auto", None) == Root("s3a://bucket")


def test_invalid_text_is_an_error_that_names_the_record(spark: SparkSession, log: FolderLog) -> None:
    made = log.made(0)
    made.append(
        [
            Record(0, 1, "CreateTime", b"a", "grün".encode()),
            Record(1, 1, "CreateTime", b"b", None),
            Record(2, 1, "CreateTime", None, "�".encode()),
        ]
    )
    frame = read(spark, log, key_format="string", value_format="string")
    assert [(r["key"], r["value"]) for r in frame.orderBy("offset").collect()] == [
        ("a", "grün"), ("b", None), (None, "�"),
    ]  # fmt: skip
    made.append([Record(3, 1, "CreateTime", b"a", b"\xff\xfe")])
    with pytest.raises(Exception, match="users-0 offset 3: the value is not UTF-8"):
        read(spark, log, value_format="string").collect()
    lenient = read(spark, log, value_format="string", mode="PERMISSIVE")
    assert [r["value"] for r in lenient.orderBy("offset").collect()] == ["grün", None, "�", None]


def test_json_has_the_given_type(spark: SparkSession, log: FolderLog) -> None:
    good = [b'{"id": 1, "name": "a"}', None, b'{"name": null, "more": [1]}', b"null", b" \r\n"]
    made = log.made(0)
    made.append([Record(at, 1, "CreateTime", b"k", value) for at, value in enumerate(good)])
    frame = read(spark, log, value_format="json", reader_schema="id long, name string")
    found = [r["value"] for r in frame.orderBy("offset").collect()]
    assert [None if v is None else tuple(v) for v in found] == [(1, "a"), None, (None, None), None, None]
    for offset, bad in enumerate([b'{"id": "one"}', b"{", b"text"], len(good)):
        made.append([Record(offset, 1, "CreateTime", b"k", bad)])
        one = {"value_format": "json", "from_offset": offset}
        with pytest.raises(
            Exception, match=f"users-0 offset {offset}: the value is not JSON that fits the reader schema"
        ):
            read(spark, log, reader_schema="id long, name string", **one).collect()
    lenient = read(spark, log, value_format="json", reader_schema="id long, name string", mode="PERMISSIVE")
    assert lenient.where("value is not null").count() == 2
    made.append([Record(8, 1, "CreateTime", b"k", b"[1, 2]")])
    array = read(spark, log, value_format="json", reader_schema="array<int>", from_offset=8)
    assert array.collect()[0]["value"] == [1, 2]


def test_json_without_a_type_is_variant_or_refused(spark: SparkSession, log: FolderLog) -> None:
    from pyspark.sql import functions as fn

    log.made(0).append([Record(0, 1, "CreateTime", b"k", b'{"a": [1, "x"]}'), Record(1, 1, "CreateTime", b"k", None)])
    if not hasattr(fn, "try_parse_json"):
        with pytest.raises(ConfigError, match=r"reader_schema.*variant"):
            read(spark, log, value_format="json")
        return
    frame = read(spark, log, value_format="json").orderBy("offset")
    assert [r["v"] for r in frame.selectExpr("value:a[1]::string AS v").collect()] == ["x", None]
    log.made(0).append([Record(2, 1, "CreateTime", b"k", b"{")])
    with pytest.raises(Exception, match="users-0 offset 2: the value is not JSON"):
        read(spark, log, value_format="json").collect()


SCHEMAS: dict[int, Any] = {
    1: {"type": "record", "name": "User", "fields": [{"name": "name", "type": "string"}]},
    4: {
        "type": "record",
        "name": "User",
        "fields": [
            {"name": "name", "type": "string"},
            {"name": "seen", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
        ],
    },
    9: {"type": "record", "name": "Order", "fields": [{"name": "total", "type": "double"}]},  # another topic's
}
GUID = UUID("00112233-4455-6677-8899-aabbccddeeff")


def avro(key: int, value: dict[str, Any]) -> bytes:
    data = BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(SCHEMAS[key]), value)
    return data.getvalue()


def keep(log: FolderLog) -> None:
    for key, schema in SCHEMAS.items():
        log.store.put(schema_key(log.topics_dir, key), json.dumps(schema).encode(), Create())
    log.store.put(schema_key(log.topics_dir, str(GUID)), json.dumps(SCHEMAS[1]).encode(), Create())


def test_avro_is_read_with_each_records_own_schema(spark: SparkSession, log: FolderLog) -> None:
    keep(log)
    ada, bob = avro(1, {"name": "ada"}), avro(4, {"name": "bob", "seen": 1_700_000_000_123})
    header = (("other", None), ("__value_schema_id", b"\x01" + GUID.bytes))
    values: list[tuple[bytes | None, Headers]] = [
        (b"\0\0\0\0\1" + ada, ()),
        (b"\1" + GUID.bytes + ada, ()),
        (ada, header),
        (b"\0\0\0\0\4" + bob, ()),
        (None, ()),
    ]
    made = log.made(0)
    made.append([Record(at, 1, "CreateTime", b"k", value, headers) for at, (value, headers) in enumerate(values)])
    typed = read(spark, log, value_format="avro").orderBy("offset")
    assert [f.name for f in typed.schema["value"].dataType.fields] == ["name", "seen"]  # type: ignore[attr-defined]  # a struct
    found = typed.selectExpr("value.name", "unix_millis(value.seen)", "value IS NULL").collect()
    assert [tuple(row) for row in found] == [
        ("ada", None, False),
        ("ada", None, False),
        ("ada", None, False),
        ("bob", 1_700_000_000_123, False),
        (None, None, True),
    ]
    narrow = {"type": "record", "name": "User", "fields": [{"name": "name", "type": "string"}]}
    chosen = read(spark, log, value_format="avro", reader_schema=narrow).orderBy("offset")
    assert [None if r["value"] is None else tuple(r["value"]) for r in chosen.collect()] == [
        ("ada",), ("ada",), ("ada",), ("bob",), None,
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
def test_a_top_level_bytes_schema_has_no_length_prefix(spark: SparkSession, log: FolderLog, mode: str) -> None:
    """As `AbstractKafkaAvroSerializer` writes them: by Spark's `from_avro`, and by keyfold's own decoder."""
    log.store.put(schema_key(log.topics_dir, 1), b'"bytes"', Create())
    values = [b"", b"\2a", b"abc", b"\xff" * 70_000, None]
    log.made(0).append(
        [Record(at, 1, "CreateTime", b"k", None if v is None else b"\0\0\0\0\1" + v) for at, v in enumerate(values)]
    )
    frame = read(spark, log, value_format="avro", reader_schema='"bytes"', mode=mode).orderBy("offset")
    assert [None if r["value"] is None else bytes(r["value"]) for r in frame.collect()] == values
    text = read(spark, log, value_format="avro", reader_schema='"string"', mode=mode, to_offset=3).orderBy("offset")
    assert [r["value"] for r in text.collect()] == ["", "\2a", "abc"]


def test_avro_that_does_not_fit_is_an_error_or_null(spark: SparkSession, log: FolderLog, sharded: Sharded) -> None:
    keep(log)
    ada = b"\0\0\0\0\1" + avro(1, {"name": "ada"})
    bad = [b"\0\0\0\0\7xx", b"", b"\0\0\0\0\1\x40a", b"plain"]
    for offset, value in enumerate([ada, *bad]):
        log.made(0).append([Record(offset, 1, "CreateTime", b"k", value)])
    for offset in sharded(range(1, 5)):
        one = {"from_offset": offset, "to_offset": offset + 1}
        with pytest.raises(Exception, match=rf"users-0.*offset {offset}|MALFORMED_AVRO|Malformed"):
            read(spark, log, value_format="avro", reader_schema=json.dumps(SCHEMAS[1]), **one).collect()
    lenient = read(spark, log, value_format="avro", reader_schema=SCHEMAS[1], mode="PERMISSIVE").orderBy("offset")
    assert [r["value"] for r in lenient.collect()] == [("ada",), None, None, None, None]
    with pytest.raises(ConfigError, match=r"value_format.*offset 4"):
        read(spark, log, value_format="avro", to_offset=1, partitions=[0])
    with pytest.raises(ConfigError, match="reader_schema"):
        read(spark, log, value_format="avro", reader_schema='{"type": "nothing"}').collect()


def test_invalid_arguments_are_refused_before_anything_is_read(spark: SparkSession, log: FolderLog) -> None:
    for wrong in (
        {"value_format": "protobuf"},
        {"mode": "DROPMALFORMED"},
        {"reader_schema": "id long"},
        {"key_format": "string", "key_reader_schema": "id long"},
    ):
        with pytest.raises(ConfigError):
            read(spark, log, **wrong)
