"""Where the current metadata of a table is: in a folder of the table's bucket, or in a catalog.

A `FolderCatalog` names metadata files by number, as Iceberg's Hadoop tables do:

    metadata/v1.metadata.json, v2.metadata.json, ...    each created once; the highest number is the table
    metadata/version-hint.text                          a number that is not too high, for readers by path

A commit creates the next number, so of two commits on the same version one is refused. The hint is written afterwards
and may lag behind. Loading the table looks for higher numbers, as Iceberg's readers by path do.

A `NamedCatalog` is any catalog that pyiceberg knows (REST, SQL, Glue, Hive), and compares and swaps there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Final, Protocol

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    OAuthError,
    TableAlreadyExistsError,
    UnauthorizedError,
    ValidationError,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromByteStream
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata
from pyiceberg.typedef import Properties

from keyfold.errors import AlreadyExists, ConfigError, KeyfoldError, ObjectNotFound, StoreError
from keyfold.store.api import Create
from keyfold.store.cas_document import swap
from keyfold.table.file_io import METADATA_BYTES_MAX, ObjectFiles, TableMoved

_PASSED_ON: Final = (
    CommitFailedException,
    KeyfoldError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
_REFUSED: Final = (UnauthorizedError, ForbiddenError, OAuthError)
_HINT: Final = "version-hint.text"
_HINT_BYTES_MAX: Final = 64
_HINT_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """A table at one moment. `location` names its metadata file."""

    metadata: TableMetadata
    location: str


class CatalogFailed(KeyfoldError):
    """A catalog did not answer, or its answer was an error. What it was asked for may have been done all the same."""

    retriable = True


class CatalogRefused(KeyfoldError):
    """A catalog does not accept the credentials."""


class TableCatalog(Protocol):
    """One table's place in a catalog."""

    @property
    def name(self) -> str:
        """The table's name, for messages."""

    def load(self) -> LoadedTable | None:
        """Load the table; None if it does not exist."""

    def create(self, location: str, schema: Schema, spec: PartitionSpec, properties: Properties) -> LoadedTable:
        """Create an empty table with its files below `location`. Raises `TableMoved` if it exists."""

    def commit(
        self, base: LoadedTable, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> LoadedTable:
        """Apply updates to the table. Raises `TableMoved` if it does not fulfil the requirements any more."""

    def drop(self) -> None:
        """Forget the table. Its files stay."""


class FolderCatalog:
    """A table that is a folder, without any other service. See `TableCatalog`."""

    def __init__(self, files: ObjectFiles, location: str) -> None:
        self._files = files
        self._location = location

    @property
    def name(self) -> str:
        """See `TableCatalog`."""
        return self._location

    def load(self) -> LoadedTable | None:
        """See `TableCatalog`."""
        number = self._newest()
        if number == 0:
            return None
        location = self._path(number)
        data = self._files.store.get(self._files.key(location), METADATA_BYTES_MAX).data
        return LoadedTable(_parsed(data, location), location)

    def create(self, location: str, schema: Schema, spec: PartitionSpec, properties: Properties) -> LoadedTable:
        """See `TableCatalog`."""
        made = new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, location, dict(properties))
        return self._written(1, made)

    def commit(
        self, base: LoadedTable, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> LoadedTable:
        """See `TableCatalog`."""
        updated = update_table_metadata(
            base.metadata, updates, enforce_validation=True, metadata_location=base.location
        )
        del requirements  # the next number is free only while `base` is the newest version
        return self._written(self._number(base.location) + 1, updated)

    def drop(self) -> None:
        """See `TableCatalog`. The hint goes first, so that no reader finds a version whose successor is gone."""
        self._files.store.delete(self._files.key(self._path_of(_HINT)))
        for number in sorted(self._listed(), reverse=True):
            self._files.store.delete(self._files.key(self._path(number)))

    def _written(self, number: int, metadata: TableMetadata) -> LoadedTable:
        location, data = self._path(number), metadata.model_dump_json().encode()
        key, store = self._files.key(location), self._files.store
        try:
            self._files.retry.repeat(lambda: store.put(key, data, Create()))
        except AlreadyExists as error:
            if store.get(key, METADATA_BYTES_MAX).data != data:  # ours, if the answer to an earlier attempt was lost
                raise TableMoved(f"`{self._location}` was changed by another commit: `{location}` exists") from error
        if not self._hint(number) and not self._is_followed(number, metadata):
            # The number was free only because garbage collection has deleted that version.
            raise TableMoved(f"`{self._location}` was changed by other commits since it was loaded")
        return LoadedTable(metadata, location)

    def _hint(self, number: int) -> bool:
        """Point the hint to a version; one that lags behind misleads nobody. Return False if it is beyond already."""
        key = self._files.key(self._path_of(_HINT))
        for _ in range(_HINT_TRIES):
            known, etag = self._hinted()
            if known > number:
                return False
            try:
                if known == number or swap(self._files.store, key, b"%d" % number, etag):
                    break
            except StoreError as error:
                if not error.retriable:
                    raise
        return True

    def _is_followed(self, number: int, metadata: TableMetadata) -> bool:
        """Return whether the next version was made from this one."""
        try:
            data = self._files.store.get(self._files.key(self._path(number + 1)), METADATA_BYTES_MAX).data
        except ObjectNotFound:
            return False
        after = _parsed(data, self._path(number + 1))
        return metadata.current_snapshot_id in {each.snapshot_id for each in after.snapshots}

    def _hinted(self) -> tuple[int, str]:
        try:
            blob = self._files.store.get(self._files.key(self._path_of(_HINT)), _HINT_BYTES_MAX)
        except ObjectNotFound:
            return 0, ""
        text = blob.data.decode(errors="replace").strip()
        return (int(text) if text.isdecimal() else 0), blob.etag

    def _newest(self) -> int:
        """Return the highest number: from the hint, or from a listing, upwards until one is missing."""
        number, _ = self._hinted()
        if number == 0 or not self._exists(number):
            number = max(self._listed(), default=0)
            if number == 0:
                return 0
        while self._exists(number + 1):
            number += 1
        return number

    def _listed(self) -> list[int]:
        """Return the numbers of all metadata files."""
        folder = self._files.key(self._path_of(""))
        numbers = (_number_in(info.key.removeprefix(folder)) for info in self._files.store.list(folder))
        return [number for number in numbers if number]

    def _exists(self, number: int) -> bool:
        return self._files.new_input(self._path(number)).exists()

    def _path(self, number: int) -> str:
        return self._path_of(f"v{number}.metadata.json")

    def _path_of(self, name: str) -> str:
        return f"{self._location}/metadata/{name}"

    def _number(self, location: str) -> int:
        return _number_in(location.rpartition("/")[2])


def _number_in(name: str) -> int:
    """Return the number in the name of a metadata file; 0 for any other name."""
    number = name.removeprefix("v").removesuffix(".metadata.json")
    return int(number) if number.isdecimal() and name == f"v{number}.metadata.json" else 0


def _parsed(data: bytes, location: str) -> TableMetadata:
    try:
        return FromByteStream.table_metadata(BytesIO(data))
    except (ValueError, ValidationError) as error:
        raise StoreError(location, f"is not the metadata of a table: {error}") from error


class NamedCatalog:
    """A table in a catalog that pyiceberg knows. See `TableCatalog`.

    The catalog's settings come from pyiceberg's usual sources: `~/.pyiceberg.yaml` and `PYICEBERG_CATALOG__...`.
    """

    def __init__(self, catalog: Catalog, identifier: str) -> None:
        self._catalog = catalog
        self._identifier = identifier

    @staticmethod
    def of(name: str) -> NamedCatalog:
        """Open the catalog of `CATALOG.NAMESPACE.TABLE`."""
        catalog, _, identifier = name.partition(".")
        with _catalog_errors(name):
            try:
                return NamedCatalog(load_catalog(catalog), identifier)
            except (ValueError, NotInstalledError) as error:
                hint = f"use ~/.pyiceberg.yaml, or variables such as PYICEBERG_CATALOG__{catalog.upper()}__URI"
                raise ConfigError("--to", f"catalog `{catalog}` is not configured: {error}", hint=hint) from error

    @property
    def name(self) -> str:
        """See `TableCatalog`."""
        return f"{self._catalog.name}.{self._identifier}"

    def load(self) -> LoadedTable | None:
        """See `TableCatalog`."""
        table = self._loaded()
        return None if table is None else LoadedTable(table.metadata, table.metadata_location)

    def _loaded(self) -> Table | None:
        try:
            with _catalog_errors(self.name):
                return self._catalog.load_table(self._identifier)
        except NoSuchTableError:
            return None

    def create(self, location: str, schema: Schema, spec: PartitionSpec, properties: Properties) -> LoadedTable:
        """See `TableCatalog`."""
        try:
            with _catalog_errors(self.name):
                table = self._catalog.create_table(self._identifier, schema, location, spec, properties=properties)
        except TableAlreadyExistsError as error:
            raise TableMoved(f"`{self.name}` was created by another process") from error
        except NoSuchNamespaceError as error:
            raise ConfigError("--to", f"`{self.name}` is in a namespace that does not exist") from error
        return LoadedTable(table.metadata, table.metadata_location)

    def commit(
        self, base: LoadedTable, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> LoadedTable:
        """See `TableCatalog`."""
        table = self._loaded()
        if table is None:
            raise TableMoved(f"`{self.name}` was dropped")
        del base
        try:
            with _catalog_errors(self.name):
                done = self._catalog.commit_table(table, requirements, updates)
        except CommitFailedException as error:
            raise TableMoved(f"`{self.name}` was changed by another commit: {error}") from error
        return LoadedTable(done.metadata, done.metadata_location)

    def drop(self) -> None:
        """See `TableCatalog`."""
        with _catalog_errors(self.name):
            self._catalog.drop_table(self._identifier)


@contextmanager
def _catalog_errors(name: str) -> Iterator[None]:
    """Raise errors of keyfold for what a catalog's client raises, which depends on the catalog."""
    try:
        yield
    except _PASSED_ON:
        raise
    except _REFUSED as error:
        raise CatalogRefused(f"`{name}`: the catalog does not accept the credentials: {error}") from error
    except Exception as error:
        raise CatalogFailed(f"`{name}`: the catalog failed: {type(error).__name__}: {error}") from error
