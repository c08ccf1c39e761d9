"""Thirty syncs of a table beside a writer and a cleaner, killed at random: by path, and through a catalog."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from keyfold.table.catalog import FolderCatalog, NamedCatalog, TableCatalog
from keyfold.table.file_io import ObjectFiles
from tests.support.lake import duckdb_of, rows_of, settings
from tests.support.moto import LocalS3Process
from tests.support.table_storm import MakeCatalog, storm

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

SEED = int(os.environ.get("KEYFOLD_SEED", "1"))
SYNCS = int(os.environ.get("KEYFOLD_SYNCS", "30"))


@pytest.mark.parametrize("kind", ["folder", "catalog"])
def test_a_table_is_right_after_each_of_thirty_syncs(
    kind: str, local_s3: LocalS3Process, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    connection = duckdb_of(local_s3, monkeypatch, tmp_path)
    make_catalog: MakeCatalog = FolderCatalog
    if kind == "catalog":
        uri = f"sqlite:///{tmp_path}/catalog.db"
        SqlCatalog("prod", uri=uri, **settings(local_s3)).create_namespace("shop")

        def named(_files: ObjectFiles, _location: str) -> TableCatalog:
            return NamedCatalog(SqlCatalog("prod", uri=uri, **settings(local_s3)), "shop.users")

        make_catalog = named
    deaths = storm(
        local_s3.location(bucket), make_catalog, syncs=SYNCS, seed=SEED, read=lambda loaded: rows_of(connection, loaded)
    )
    print(f"{deaths} deaths")
    assert deaths
