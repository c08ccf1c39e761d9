"""DuckDB and pyiceberg for tables on the local S3."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import duckdb
import pytest

from keyfold.table.catalog import LoadedTable
from tests.support.moto import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, LocalS3Process

EXTENSIONS = ("avro", "httpfs", "iceberg")


def settings(s3: LocalS3Process) -> dict[str, str]:
    """Return what pyiceberg needs to reach the store."""
    return {
        "s3.endpoint": s3.url,
        "s3.access-key-id": ACCESS_KEY_ID,
        "s3.secret-access-key": SECRET_ACCESS_KEY,
        "s3.region": REGION,
    }


def duckdb_secret(s3: LocalS3Process) -> dict[str, object]:
    """Return the parameters of the secret that docs/table.md creates."""
    endpoint = s3.url.removeprefix("http://")
    keys = {"key": ACCESS_KEY_ID, "secret": SECRET_ACCESS_KEY, "region": REGION}
    return {**keys, "endpoint": endpoint, "use_ssl": False}


def install_extensions(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Install what DuckDB would download, from packages, below `home`."""
    monkeypatch.setenv("HOME", str(home))
    for name in EXTENSIONS:
        (path,) = Path(str(import_module(f"duckdb_extension_{name}").__file__)).parent.rglob("*.duckdb_extension")
        duckdb.connect().install_extension(str(path))


def duckdb_of(s3: LocalS3Process, monkeypatch: pytest.MonkeyPatch, home: Path) -> duckdb.DuckDBPyConnection:
    """Return a connection that reads tables on the store."""
    install_extensions(monkeypatch, home)
    connection = duckdb.connect()
    for name in EXTENSIONS:
        connection.load_extension(name)
    connection.execute(
        "CREATE SECRET (TYPE s3, PROVIDER config, KEY_ID $key, SECRET $secret, REGION $region, ENDPOINT $endpoint, "
        "URL_STYLE 'path', USE_SSL $use_ssl)",
        duckdb_secret(s3),
    )
    return connection


def rows_of(connection: duckdb.DuckDBPyConnection, loaded: LoadedTable) -> list[tuple[int, int, bytes, int]]:
    """Return partition, offset, key and the value's field `id` of the rows that DuckDB reads at a version."""
    query = 'SELECT partition, "offset", key, value.id FROM iceberg_scan($1)'
    found = connection.execute(query, [loaded.location]).fetchall()
    return [(number, offset, bytes(key), each) for number, offset, key, each in found]
