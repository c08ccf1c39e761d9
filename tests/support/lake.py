"""The engines that docs/table.md names, for tables on a local S3. Each returns the same rows of a table's version.

Engines    DuckDB, pyiceberg, Polars and ClickHouse in this process
spark      Spark with Iceberg's jar, in a process of its own (`tests.support.table_spark`)
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyiceberg.table import StaticTable

from keyfold.table.catalog import LoadedTable
from keyfold_demo.s3_endpoint import REGION, S3Endpoint
from tests.support.root import ROOT

EXTENSIONS = ("avro", "httpfs", "iceberg")
SPARK_PYTHON = ROOT / ".cache" / "spark-3.5.9" / "bin" / "python"

Row = tuple[int, int, bytes, int]
"""Partition, offset, key, and the value's field `id`."""

ReadRows = Callable[[LoadedTable], list[Row]]


def settings(s3: S3Endpoint) -> dict[str, str]:
    """Return what pyiceberg needs to reach the store."""
    return {
        "s3.endpoint": s3.url,
        "s3.access-key-id": s3.access_key_id,
        "s3.secret-access-key": s3.secret_access_key,
        "s3.region": REGION,
    }


def duckdb_secret(s3: S3Endpoint) -> dict[str, object]:
    """Return the parameters of the secret that docs/table.md creates."""
    endpoint = s3.url.removeprefix("http://")
    keys = {"key": s3.access_key_id, "secret": s3.secret_access_key, "region": REGION}
    return {**keys, "endpoint": endpoint, "use_ssl": False}


def polars_options(s3: S3Endpoint) -> dict[str, str]:
    """Return the storage options of Polars."""
    return {
        "aws_endpoint_url": s3.url,
        "aws_access_key_id": s3.access_key_id,
        "aws_secret_access_key": s3.secret_access_key,
        "aws_region": REGION,
        "aws_allow_http": "true",
    }


def duckdb_on(s3: S3Endpoint) -> duckdb.DuckDBPyConnection:
    """Return a connection that reads tables on the store. The extensions must be installed."""
    connection = duckdb.connect()
    for name in EXTENSIONS:
        connection.load_extension(name)
    connection.execute(
        "CREATE SECRET (TYPE s3, PROVIDER config, KEY_ID $key, SECRET $secret, REGION $region, ENDPOINT $endpoint, "
        "URL_STYLE 'path', USE_SSL $use_ssl)",
        duckdb_secret(s3),
    )
    return connection


def install_extensions(home: Path) -> None:
    """Install what DuckDB would download, from packages, below `home`, which HOME must name."""
    assert os.environ["HOME"] == str(home)
    for name in EXTENSIONS:
        (path,) = Path(str(import_module(f"duckdb_extension_{name}").__file__)).parent.rglob("*.duckdb_extension")
        duckdb.connect().install_extension(str(path))


class Engines:
    """Readers of tables on one store."""

    def __init__(self, s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
        self._s3 = s3
        monkeypatch.setenv("HOME", str(home))
        install_extensions(home)
        self._duckdb = duckdb_on(s3)

    @property
    def all(self) -> Mapping[str, ReadRows]:
        """The readers by name."""
        return {
            "DuckDB": self.duckdb,
            "pyiceberg": self.pyiceberg,
            "Polars": self.polars,
            "ClickHouse": self.clickhouse,
        }

    def duckdb(self, loaded: LoadedTable) -> list[Row]:
        """Read with DuckDB."""
        query = 'SELECT partition, "offset", key, value.id FROM iceberg_scan($1)'
        found = self._duckdb.execute(query, [loaded.location]).fetchall()
        return [(number, offset, bytes(key), each) for number, offset, key, each in found]

    def pyiceberg(self, loaded: LoadedTable) -> list[Row]:
        """Read with pyiceberg."""
        found = self._static(loaded).scan(selected_fields=("partition", "offset", "key", "value.id")).to_arrow()
        return [(row["partition"], row["offset"], row["key"], row["value"]["id"]) for row in found.to_pylist()]

    def polars(self, loaded: LoadedTable) -> list[Row]:
        """Read with Polars."""
        import polars as pl

        frame = pl.scan_iceberg(self._static(loaded), storage_options=polars_options(self._s3)).collect()
        return frame.select("partition", "offset", "key", pl.col("value").struct.field("id")).rows()

    def clickhouse(self, loaded: LoadedTable) -> list[Row]:
        """Read with ClickHouse, at the version by its metadata file."""
        import chdb

        bucket, _, folder = loaded.metadata.location.removeprefix("s3://").partition("/")
        where = f"'{self._s3.url}/{bucket}/{folder}/', '{self._s3.access_key_id}', '{self._s3.secret_access_key}'"
        file = loaded.location.removeprefix(f"{loaded.metadata.location}/")
        columns = "partition, toString(offset), hex(key), toString(tupleElement(assumeNotNull(value), 'id'))"
        table = f"icebergS3({where}, SETTINGS iceberg_metadata_file_path = '{file}')"
        query: Any = chdb.query  # it has no types
        found = query(f"SELECT {columns} FROM {table}", "JSONCompact")  # noqa: S608 - names of ours
        rows = json.loads(str(found))["data"]
        return [(number, int(offset), bytes.fromhex(key), int(each)) for number, offset, key, each in rows]

    def _static(self, loaded: LoadedTable) -> StaticTable:
        return StaticTable.from_metadata(loaded.location, settings(self._s3))


class SparkReader:
    """Spark with Iceberg's jar, in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def read(self, loaded: LoadedTable) -> list[Row]:
        """Read a version of a table."""
        return [(number, offset, bytes.fromhex(key), each) for number, offset, key, each in self._ask(loaded.location)]

    def run(self, code: str) -> list[tuple[bytes, int]]:
        """Run code with `spark`, and return its `state`."""
        return [(bytes.fromhex(key), number) for key, number in self._ask(json.dumps(code))]

    def _ask(self, line: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self._log.read_text()[-4000:]
        return json.loads(answer)


@contextmanager
def spark(s3: S3Endpoint, folder: Path) -> Iterator[SparkReader]:
    """Yield a reader that asks Spark, which runs until the end of the block."""
    assert SPARK_PYTHON.exists(), f"{SPARK_PYTHON} is missing: make .cache/spark-3.5.9/.installed"
    command = [str(SPARK_PYTHON), "-m", "tests.support.table_spark", str(folder)]
    with (folder / "spark.log").open("w") as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env=_environment(s3),
            cwd=ROOT,
        )
    try:
        yield SparkReader(process, folder / "spark.log")
    finally:
        process.kill()
        process.wait()


def _environment(s3: S3Endpoint) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if name != "SPARK_HOME"}, **s3.environment}
