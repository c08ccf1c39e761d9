"""Opening a table by its name: a folder `s3://bucket/prefix`, or `CATALOG.NAMESPACE.TABLE`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from keyfold.errors import ConfigError, KeyfoldError
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import ObjectStore
from keyfold.store.location import parse_url
from keyfold.table.catalog import FolderCatalog, LoadedTable, NamedCatalog, TableCatalog
from keyfold.table.file_io import ObjectFiles

_PARTS_MIN = 3

OpenStore = Callable[[str], tuple[ObjectStore, str]]
"""URL -> store of its bucket, and the folder in it."""


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """A table that may not exist yet: its catalog, its bucket, and where its files are."""

    catalog: TableCatalog
    files: ObjectFiles
    location: str

    @property
    def prefix(self) -> str:
        """The folder of the files in their bucket, without a slash at its end."""
        return self.files.key(self.location)


def existing_table(name: str, open_store: OpenStore, retry: RetryPolicy) -> tuple[OpenedTable, LoadedTable]:
    """Open a table, and load it. Raises `KeyfoldError` if it does not exist, and what `open_table` raises."""
    opened = open_table(name, None, open_store, retry, must_exist=True)
    loaded = opened.catalog.load()
    if loaded is None:
        raise _missing(name)
    return opened, loaded


def _missing(name: str) -> KeyfoldError:
    return KeyfoldError(f"there is no table `{name}`", hint="`keyfold table sync` creates one")


def open_table(
    name: str, location: str | None, open_store: OpenStore, retry: RetryPolicy, *, must_exist: bool = False
) -> OpenedTable:
    """Open a table. `location` is where a table of a catalog is created. Raises `ConfigError`."""
    if "://" in name:
        if location is not None:
            raise ConfigError("--location", "a table that is a folder is where --to says", hint="omit --location")
        _, prefix = parse_url(name, key="--to")
        if not prefix:
            raise ConfigError("--to", f"`{name}` is a whole bucket", hint="name a folder: s3://bucket/tables/users")
        store, _ = open_store(name)
        files = ObjectFiles(store, retry)
        where = f"{store.url}/{prefix}"
        return OpenedTable(FolderCatalog(files, where), files, where)
    if len(name.split(".")) < _PARTS_MIN:
        raise ConfigError("--to", f"`{name}` is neither s3://BUCKET/FOLDER nor CATALOG.NAMESPACE.TABLE")
    catalog = NamedCatalog.of(name)
    loaded = catalog.load()
    home = location if loaded is None else loaded.metadata.location
    if home is None and must_exist:
        raise _missing(name)
    if home is None:
        raise ConfigError(
            "--location",
            f"table `{name}` does not exist yet",
            hint="say where its files belong: s3://bucket/tables/users",
        )
    parse_url(home, key="--location")
    store, _ = open_store(home)
    return OpenedTable(catalog, ObjectFiles(store, retry), home.rstrip("/"))
