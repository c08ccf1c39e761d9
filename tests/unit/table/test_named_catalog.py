"""A table in a catalog of pyiceberg: what the catalog refuses is an error of keyfold."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import UnauthorizedError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

from keyfold.errors import ConfigError, KeyfoldError
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.retry import RetryPolicy
from keyfold.table.catalog import CatalogFailed, CatalogRefused, LoadedTable, NamedCatalog
from keyfold.table.file_io import TableMoved
from keyfold.table.open import existing_table
from keyfold.table.request import TableRequest
from keyfold.table.sync import base_schema


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    made = SqlCatalog("prod", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    made.create_namespace("shop")
    return made


def created(named: NamedCatalog, folder: Path) -> LoadedTable:
    schema = base_schema(TableRequest())
    return named.create(f"file://{folder}/users", schema, UNPARTITIONED_PARTITION_SPEC, {"format-version": "2"})


def test_a_table_is_created_loaded_and_dropped(catalog: SqlCatalog, tmp_path: Path) -> None:
    named = NamedCatalog(catalog, "shop.users")
    assert named.name == "prod.shop.users"
    assert named.load() is None
    made = created(named, tmp_path)
    assert named.load() == made
    named.drop()
    assert named.load() is None


def test_a_table_that_another_process_created_first_is_loaded_again(catalog: SqlCatalog, tmp_path: Path) -> None:
    created(NamedCatalog(catalog, "shop.users"), tmp_path)
    with pytest.raises(TableMoved, match=r"`prod\.shop\.users` was created by another process"):
        created(NamedCatalog(catalog, "shop.users"), tmp_path)


def test_a_namespace_that_does_not_exist_is_named(catalog: SqlCatalog, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`prod\.nosuch\.users` is in a namespace that does not exist"):
        created(NamedCatalog(catalog, "nosuch.users"), tmp_path)


def test_a_commit_on_a_table_that_was_dropped_is_refused(catalog: SqlCatalog, tmp_path: Path) -> None:
    named = NamedCatalog(catalog, "shop.users")
    made = created(named, tmp_path)
    named.drop()
    with pytest.raises(TableMoved, match="was dropped"):
        named.commit(made, (), ())


@pytest.mark.parametrize(
    ("raised", "error", "says"),
    [
        (ConnectionError("refused"), CatalogFailed, "the catalog failed: ConnectionError: refused"),
        (UnauthorizedError("401"), CatalogRefused, "does not accept the credentials: 401"),
        (ValueError("no such thing"), CatalogFailed, "the catalog failed: ValueError: no such thing"),
    ],
)
def test_what_a_catalog_raises_is_an_error_of_keyfold(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, raised: Exception, error: type[KeyfoldError], says: str
) -> None:
    def fail(*_: object) -> None:
        raise raised

    monkeypatch.setattr(catalog, "load_table", fail)
    with pytest.raises(error, match=says) as found:
        NamedCatalog(catalog, "shop.users").load()
    assert found.value.retriable is (error is CatalogFailed)


def test_a_catalog_that_is_not_configured_is_named() -> None:
    with pytest.raises(ConfigError, match=r"catalog `nosuch` is not configured.*PYICEBERG_CATALOG__NOSUCH__URI"):
        NamedCatalog.of("nosuch.shop.users")


def test_a_table_of_a_catalog_that_must_exist_is_missed(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keyfold.table.catalog.load_catalog", lambda _: catalog)
    with pytest.raises(KeyfoldError, match=r"there is no table `prod\.shop\.users`"):
        existing_table(
            "prod.shop.users", lambda _: pytest.fail("no bucket is needed"), RetryPolicy(ManualClock(), Random(1))
        )
