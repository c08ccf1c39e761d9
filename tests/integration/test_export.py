"""Exports to an S3 server with its faults and by a process that is killed; and what stock Spark reads of them."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from keyfold.formats.format import Format
from keyfold.log.record import CREATE_TIME, Record
from keyfold.store.api import Create
from keyfold.store.s3 import S3Store
from tests.support.exports import Folder, exported, log_of
from tests.support.keyfold_here import here
from tests.support.logs import MadeLog, record
from tests.support.moto import DROP, Fault, LocalS3Process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BIG = 10_000


@pytest.fixture
def store(local_s3: LocalS3Process, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Store]:
    for name, value in local_s3.environment.items():
        monkeypatch.setenv(name, value)
    opened = S3Store(bucket)
    yield opened
    opened.close()


@pytest.fixture
def made(store: S3Store) -> MadeLog:
    made = MadeLog(store=store, block_bytes=2000)
    batch = [record(o, f"k{o % 40}", None if o % 7 == 0 else f"v{o}" * 20) for o in range(300)]
    for start in range(0, 300, 100):
        made.append(batch[start : start + 100])
    return made


@pytest.fixture
def big(store: S3Store) -> MadeLog:
    """A log of 20 MB that zstd does nothing about: several parts a file."""
    made, random = MadeLog(store=store, block_bytes=65536), Random(1)
    for start in range(0, BIG, 5000):
        batch = [Record(o, o, CREATE_TIME, b"%d" % o, random.randbytes(2000)) for o in range(start, start + 5000)]
        made.append(batch)
    return made


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "keyfold.cli", "log", "export", *args]


def run(*args: str, code: int = 0) -> tuple[list[str], list[str]]:
    done = here("log", "export", *args)
    assert done.returncode == code, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


def names(store: S3Store, prefix: str = "lake/users/") -> list[str]:
    return [info.key.removeprefix(prefix) for info in store.list(prefix)]


def test_from_s3_to_s3_and_read_by_pyarrow(
    made: MadeLog, store: S3Store, bucket: str, local_s3: LocalS3Process
) -> None:
    to = f"s3://{bucket}/lake/users"
    (row,) = map(json.loads, run(f"s3://{bucket}/topics", "users", "--to", to, "--rows-per-file", "90", "--json")[0])
    assert (row["rows"], len(row["files"])) == (300, 4)
    assert names(store)[0] == "_export.json"
    assert "_exporting.json" not in names(store)
    s3 = pafs.S3FileSystem(
        endpoint_override=os.environ["AWS_ENDPOINT_URL"], scheme="http",
        access_key=os.environ["AWS_ACCESS_KEY_ID"], secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
    )  # fmt: skip
    found = ds.dataset(f"{bucket}/lake/users", filesystem=s3, format="parquet").to_table().sort_by("offset")
    expected = list(log_of(made).read(0))
    assert found.column("offset").to_pylist() == [r.offset for r in expected]
    assert found.column("value").to_pylist() == [r.value for r in expected]
    _, errors = run(f"s3://{bucket}/topics", "users", "--to", to, code=2)
    assert errors[0] == f"error: `--to`: `{to}` is not empty: it contains an earlier export"
    run(f"s3://{bucket}/topics", "users", "--to", to, "--overwrite", "--latest")
    assert len(names(store)) == 2


def test_store_faults_change_nothing_in_an_export(
    big: MadeLog, store: S3Store, bucket: str, local_s3: LocalS3Process
) -> None:
    local_s3.set_faults(
        Fault(r"^POST .*uploads", status=503),
        Fault(r"^PUT .*lake.*partNumber", status=DROP, skip=1),
        Fault(r"^PUT .*lake.*partNumber", status=503, skip=2, times=2),
        Fault(r"^POST .*lake.*uploadId", status=DROP, applied=True),
        Fault(r"^POST .*lake.*uploadId", status=503, skip=1),
        Fault(r"^PUT .*_export.json", status=DROP, applied=True),
        Fault(r"^PUT .*_exporting.json", status=DROP, applied=True),
    )
    run(f"s3://{bucket}/topics", "users", "--to", f"s3://{bucket}/lake/users", "--rows-per-file", "5000")
    local_s3.set_faults()
    found = names(store)
    assert len(found) == 3
    tables = [pq.read_table(io.BytesIO(store.get(f"lake/users/{name}").data)) for name in found[1:]]
    offsets = [offset for table in tables for offset in table.column("offset").to_pylist()]
    assert offsets == list(range(BIG))


def test_a_killed_export_publishes_nothing_and_can_be_replaced(
    big: MadeLog, store: S3Store, bucket: str, local_s3: LocalS3Process
) -> None:
    to = ("--to", f"s3://{bucket}/lake/users", "--rows-per-file", "6000")
    local_s3.set_faults(Fault(r"^POST .*lake.*uploadId", status=503, times=-1))  # nothing is completed
    killed = subprocess.Popen(
        command(f"s3://{bucket}/topics", "users", *to), stderr=subprocess.DEVNULL, env=dict(os.environ)
    )
    deadline = time.monotonic() + 60
    while len(list(store.list_uploads("lake/users/"))) < 2:
        assert time.monotonic() < deadline
        assert killed.poll() is None
        time.sleep(0.05)
    assert names(store) == ["_exporting.json"]
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert names(store) == ["_exporting.json"]
    local_s3.set_faults()
    _, errors = run(f"s3://{bucket}/topics", "users", *to, code=2)
    assert re.search(r"is in use: another export is writing there, or was killed", errors[0])
    run(f"s3://{bucket}/topics", "users", *to, "--overwrite")
    assert len(names(store)) == 3
    assert list(store.list_uploads("lake/users/")) == []


SCHEMA = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "small", "type": "int"},
        {"name": "yes", "type": "boolean"},
        {"name": "half", "type": "float"},
        {"name": "real", "type": "double"},
        {"name": "raw", "type": "bytes"},
        {"name": "text", "type": ["null", "string"]},
        {"name": "four", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {"name": "suit", "type": {"type": "enum", "name": "Suit", "symbols": ["S", "H"]}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "us", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "by", "type": {"type": "map", "values": "long"}},
        {"name": "in", "type": ["null", {"type": "record", "name": "In", "fields": [{"name": "x", "type": "int"}]}]},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}
UUID_TEXT = "00000000-0000-0000-0000-0000000000ab"


def value(number: int) -> dict[str, Any]:
    return {
        "id": number, "small": -number, "yes": number % 2 == 0, "half": 0.5, "real": number / 4, "raw": bytes([number]),
        "text": None if number % 2 else f"t{number}", "four": b"four", "suit": "SH"[number % 2],
        "day": date(2026, 1, 1 + number), "ms": datetime(2026, 1, 1, 12, 0, number, 5000, UTC),
        "us": datetime(2026, 1, 1, 12, 0, number, 7, UTC), "local": datetime(2026, 1, 1, 12, 0, number, 7),  # noqa: DTZ001 - a time without a zone is the case
        "sum": Decimal(number) / 4 * 100 // 1 / 100, "tags": ["a"] * number, "by": {"k": number},
        "in": None if number % 2 else {"x": number}, "uuid": UUID_TEXT,
    }  # fmt: skip


def encoded(row: dict[str, Any]) -> bytes:
    out = io.BytesIO(b"\0\0\0\0\1")
    out.seek(5)
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), row)
    return out.getvalue()


@pytest.mark.spark
def test_stock_spark_reads_what_pyarrow_reads(spark: SparkSession, tmp_path: Path) -> None:
    made = MadeLog()
    made.store.put("topics/_schemas/1.avsc", json.dumps(SCHEMA).encode(), Create())
    values = [value(number) for number in range(4)]
    batch = [Record(o, 1000 + o, CREATE_TIME, b"k%d" % o, encoded(row), (("h", b"1"),)) for o, row in enumerate(values)]
    made.append([*batch, Record(4, 1004, CREATE_TIME, b"k1", None)])
    exported(made, Folder(tmp_path / "out"), value_format=Format.AVRO, key_format=Format.STRING, rows_per_file=2)
    expected = pq.read_table(tmp_path / "out").sort_by("offset").to_pylist()
    frame = spark.read.parquet(str(tmp_path / "out")).orderBy("offset")
    assert frame.columns == list(expected[0])
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    found = [row.asDict(recursive=True) for row in frame.collect()]
    spark.conf.unset("spark.sql.session.timeZone")
    for ours, theirs in zip(expected, found, strict=True):
        assert {k: v for k, v in theirs.items() if k not in {"value", "timestamp"}} == {
            k: v for k, v in ours.items() if k not in {"value", "timestamp"}
        }
        if ours["value"] is None:
            assert theirs["value"] is None
            continue
        assert ours["value"].pop("by") == list(theirs["value"].pop("by").items())
        for name in ("ms", "us"):
            assert ours["value"].pop(name).timestamp() == theirs["value"].pop(name).timestamp()
        assert theirs["value"] == ours["value"]
    assert [row["value"] and row["value"]["sum"] for row in found] == [v["sum"] for v in values] + [None]


@pytest.mark.spark
def test_stock_spark_reads_raw_inferred_and_empty_exports(spark: SparkSession, tmp_path: Path) -> None:
    made = MadeLog()
    texts = [b'{"a": 1, "b": {"c": [1, null]}}', b'{"a": 2.5, "d": {}, "n": null}', None, b"5"]
    made.append([Record(o, o, CREATE_TIME, b"%d" % o, text) for o, text in enumerate(texts[:3])])
    for name, asked in (
        ("raw", {}),
        ("typed", {"value_format": Format.JSON, "key_format": Format.JSON}),
        ("latest", {"latest": True}),
    ):
        exported(made, Folder(tmp_path / name), **asked)
    raw = spark.read.parquet(str(tmp_path / "raw")).orderBy("offset").collect()
    assert [None if row["value"] is None else bytes(row["value"]) for row in raw] == texts[:3]
    typed = spark.read.parquet(str(tmp_path / "typed")).orderBy("offset").collect()
    assert [row["key"] for row in typed] == [0, 1, 2]
    assert [row["value"] and row["value"]["a"] for row in typed] == [1.0, 2.5, None]
    assert typed[1]["value"]["d"] == "{}"
    assert typed[0]["value"]["b"]["c"] == [1, None]
    assert spark.read.parquet(str(tmp_path / "latest")).count() == 2
