"""docs/table.md: every engine that the page names returns the latest state, from a folder and through a catalog."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import StaticTable

from keyfold.formats.format import Format
from keyfold.log.names import Place
from keyfold.read.log import Log
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import ObjectStore
from keyfold.store.s3 import S3Location
from keyfold.table.catalog import FolderCatalog, NamedCatalog, TableCatalog
from keyfold.table.file_io import ObjectFiles
from keyfold.table.maintain import merge
from keyfold.table.open import OpenedTable
from keyfold.table.request import TableRequest
from keyfold.table.sync import sync
from tests.support.lake import duckdb_secret, install_extensions, polars_options, settings
from tests.support.logs import MadeLog, record
from tests.support.moto import ACCESS_KEY_ID, SECRET_ACCESS_KEY, LocalS3Process
from tests.support.root import ROOT

PAGE = ROOT / "docs" / "table.md"
# Spark's block follows a sentence; `tests/soak/test_table_soak.py` runs it.
BLOCKS = re.findall(r"^### (\w+)\n\n```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
REQUEST = TableRequest(key_format=Format.STRING, value_format=Format.JSON)
PARTITIONS = 3


class Lake:
    """A topic of three partitions in a bucket, which grows and is compacted, and its table."""

    def __init__(self, location: S3Location, store: ObjectStore) -> None:
        clock = SystemClock()
        self.bucket = location.bucket
        self.store = store
        self.made = [
            MadeLog(store=store, place=Place("topics", "users", number), clock=clock, random=Random(number))
            for number in range(PARTITIONS)
        ]
        self.log = Log(store, "topics", "users")
        self.files = ObjectFiles(store, RetryPolicy(clock, Random(1)))
        self.location = f"s3://{self.bucket}/tables/users"
        self._random = Random(5)

    def grow(self, number: int) -> None:
        """A segment for each partition; each has a field that no one before it had."""
        for made in self.made:
            start = made.manifest.next_offset if number else 0
            made.append([self._record(offset, number) for offset in range(start, start + 100)])
        if number % 2:
            self.made[0].compact()

    def _record(self, offset: int, number: int) -> Any:
        is_deleted = self._random.random() < 0.1
        value = {"id": offset, f"only_{number}": self._random.random(), "tags": ["x"] * self._random.randrange(3)}
        return record(offset, f"k{self._random.randrange(150)}", None if is_deleted else json.dumps(value))

    def sync(self, catalog: TableCatalog) -> None:
        table = OpenedTable(catalog, self.files, self.location)
        sync(self.log, table, REQUEST, clock=SystemClock(), random=self._random)

    def merge(self, catalog: TableCatalog) -> None:
        assert (
            merge(
                OpenedTable(catalog, self.files, self.location), clock=SystemClock(), random=self._random, files_max=2
            )
            is not None
        )

    def latest(self) -> list[tuple[str, int]]:
        """The specification: key and id of each row."""
        found = [record for number in range(PARTITIONS) for record in self.log.latest(number)]
        return sorted((each.key.decode(), json.loads(each.value)["id"]) for each in found if each.key and each.value)


@pytest.fixture
def lake(
    location: S3Location, local_s3: LocalS3Process, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Lake]:
    for name, value in local_s3.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    install_extensions(tmp_path)
    with closing(location.open()) as store:
        yield Lake(location, store)


def states(lake: Lake, s3: LocalS3Process, **names: Any) -> dict[str, list[tuple[str, int]]]:
    """Run the page's examples, and return what each engine sees."""
    names |= {
        "json": json,
        "properties": settings(s3),
        "s3": duckdb_secret(s3),
        "storage_options": polars_options(s3),
        "http_url": f"{s3.url}/{lake.bucket}/tables/users/",
        "key_id": ACCESS_KEY_ID,
        "secret": SECRET_ACCESS_KEY,
    }
    found = {}
    for engine, block in BLOCKS:
        code = block.replace("s3://lake/tables/users", lake.location)
        exec(compile(code, f"{PAGE.name}, {engine}", "exec"), names)  # noqa: S102 - an example of this page
        found[engine] = sorted((key, number) for key, number in names.pop("state"))
    return found


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:Iceberg scan planning", "ignore:\\n?'\\(default_\\)region'")
def test_every_engine_sees_the_latest_state_after_each_sync(lake: Lake, local_s3: LocalS3Process) -> None:
    catalog = FolderCatalog(lake.files, lake.location)
    for number in range(4):
        lake.grow(number)
        lake.sync(catalog)
        if number == 2:
            lake.merge(catalog)
        wanted = lake.latest()
        assert len(wanted) > 100
        found = states(lake, local_s3)
        assert found == dict.fromkeys(("DuckDB", "pyiceberg", "Polars", "ClickHouse"), wanted)


def sql_catalog(s3: LocalS3Process, folder: Path) -> Catalog:
    return load_catalog("prod", type="sql", uri=f"sqlite:///{folder}/catalog.db", **settings(s3))


def glue_catalog(s3: LocalS3Process, _: Path) -> Catalog:
    found = {name.replace("s3.", "glue."): value for name, value in settings(s3).items()}
    return load_catalog("prod", type="glue", **found, **settings(s3))


@pytest.mark.full
@pytest.mark.parametrize("make_catalog", [sql_catalog, glue_catalog])
def test_a_catalog_shows_the_latest_state_after_each_sync(
    lake: Lake, local_s3: LocalS3Process, tmp_path: Path, make_catalog: Callable[[LocalS3Process, Path], Catalog]
) -> None:
    catalog = make_catalog(local_s3, tmp_path)
    catalog.create_namespace("shop")
    named = NamedCatalog(catalog, "shop.users")
    for number in range(3):
        lake.grow(number)
        lake.sync(named)
        if number == 1:
            lake.merge(named)
        found = catalog.load_table("shop.users").scan().to_arrow().to_pylist()
        assert sorted((row["key"], row["value"]["id"]) for row in found) == lake.latest()


@pytest.mark.full
def test_bounds_let_engines_skip_files(lake: Lake, local_s3: LocalS3Process) -> None:
    catalog = FolderCatalog(lake.files, lake.location)
    for number in range(3):
        lake.grow(number)
        lake.sync(catalog)
    table = StaticTable.from_metadata(lake.location, settings(local_s3))
    assert len(list(table.scan().plan_files())) == 9
    assert len(list(table.scan(row_filter="partition = 1").plan_files())) == 3
    assert len(list(table.scan(row_filter="offset >= 200").plan_files())) == 3
    rows = table.scan(row_filter="partition = 1 and offset >= 200").to_arrow()
    assert set(rows["partition"].to_pylist()) == {1}
    assert {offset for offset in rows["offset"].to_pylist() if offset is not None} <= set(range(200, 300))
