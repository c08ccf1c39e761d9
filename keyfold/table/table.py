"""One version of a table: its data files, the rows that are hidden in them, and the versions of the log that it shows.

All of it is read from the table's metadata, so a table whose files another tool has rewritten is read like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    read_manifest_list,
)
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.types import IntegerType, LongType, PrimitiveType, StringType

from keyfold.errors import ConfigError, KeyfoldError
from keyfold.log.arrow_numbers import Ints
from keyfold.read.position import Anchor
from keyfold.runtime.arrow_types import column_of, nulls, values_of
from keyfold.table.catalog import LoadedTable
from keyfold.table.conform import conform, places
from keyfold.table.file_io import ObjectFiles, ObjectReader
from keyfold.table.types import arrow_schema

FILE_PATH_ID: Final = 2147483546
POSITION_ID: Final = 2147483545
"""Field ids of the columns of a position delete file (Iceberg's specification, "Reserved Field IDs")."""

PARTITION_ID: Final = 1
OFFSET_ID: Final = 2
"""Field ids of the first two columns. Every table of keyfold has them."""

STATE: Final = "keyfold.partition."
"""Prefix of the snapshot properties that name the shown version of each partition."""

_ANY_PARTITION: Final = range(2**31)
_NO_ROWS: Final[Ints] = np.zeros(0, np.int64)

Flags = npt.NDArray[np.bool_]


class NotKeyfoldsTable(KeyfoldError):
    """The table was not made by `keyfold table sync`, or another tool has written rows into it."""


@dataclass(frozen=True, slots=True)
class ShownVersion:
    """The version of a partition that a snapshot shows: where to go on, and what a reader there has seen."""

    next_offset: int
    anchor: Anchor

    def text(self) -> str:
        """Return the property's value."""
        anchor = self.anchor
        return (
            f"log={anchor.log_id} version={anchor.version} next_offset={self.next_offset} pass={anchor.last_pass_epoch}"
        )

    @staticmethod
    def parse(text: str) -> ShownVersion:
        """Read the value of `text`. Raises `ValueError`."""
        found = dict(part.split("=", 1) for part in text.split())
        next_offset = int(found["next_offset"])
        anchor = Anchor(found["log"], int(found["version"]), int(found["pass"]), next_offset)
        return ShownVersion(next_offset, anchor)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A data file, and the delete files that hide rows of it."""

    entry: ManifestEntry
    hidden_by: tuple[ManifestEntry, ...] = ()

    @property
    def file(self) -> DataFile:
        """The data file."""
        return self.entry.data_file

    @property
    def partitions(self) -> range:
        """The partitions that its rows may be of."""
        low, high = ((bounds or {}).get(PARTITION_ID) for bounds in (self.file.lower_bounds, self.file.upper_bounds))
        if low is None or high is None:  # another tool wrote the file without bounds
            return _ANY_PARTITION
        return range(_int(IntegerType(), low), _int(IntegerType(), high) + 1)

    @property
    def first_offset(self) -> int:
        """A lower bound of its offsets."""
        low = (self.file.lower_bounds or {}).get(OFFSET_ID)
        return 0 if low is None else _int(LongType(), low)


def _int(kind: PrimitiveType, bound: bytes) -> int:
    number: Any = from_bytes(kind, bound)
    return int(number)


class TableVersion:
    """A table as of one metadata file."""

    def __init__(self, files: ObjectFiles, loaded: LoadedTable) -> None:
        if loaded.metadata.format_version != 2:
            raise NotKeyfoldsTable(
                f"the table has format version {loaded.metadata.format_version}; keyfold reads and writes version 2"
            )
        self.files = files
        self.loaded = loaded
        self._hidden: dict[str, Ints] = {}

    @property
    def schema(self) -> Schema:
        """The current schema."""
        return self.loaded.metadata.schema()

    @property
    def snapshot(self) -> Snapshot | None:
        """The current snapshot; None for a new table."""
        return self.loaded.metadata.current_snapshot()

    @cached_property
    def shown(self) -> dict[int, ShownVersion]:
        """The versions that the current snapshot shows, by partition.

        Raises `NotKeyfoldsTable` if another tool has changed rows. One that has only rewritten files is fine.
        """
        snapshots = {each.snapshot_id: each for each in self.loaded.metadata.snapshots}
        snapshot = self.snapshot
        while snapshot is not None:
            summary = snapshot.summary
            found = summary.additional_properties if summary is not None else {}
            states = {name.removeprefix(STATE): text for name, text in found.items() if name.startswith(STATE)}
            if states:
                return {int(number): ShownVersion.parse(text) for number, text in states.items()}
            if summary is None or summary.operation is not Operation.REPLACE:
                raise NotKeyfoldsTable(
                    f"another tool has changed rows of the table in snapshot {snapshot.snapshot_id}",
                    hint="rebuild the table with --rebuild, and let only keyfold write into it",
                )
            parent = snapshot.parent_snapshot_id
            if parent is not None and parent not in snapshots:
                raise NotKeyfoldsTable(
                    "the snapshot that says which versions of the log the table shows has expired",
                    hint="rebuild the table with --rebuild",
                )
            snapshot = None if parent is None else snapshots[parent]
        return {}

    @cached_property
    def manifests(self) -> tuple[ManifestFile, ...]:
        """The manifests of the current snapshot."""
        return () if self.snapshot is None else manifests_of(self.snapshot, self.files)

    @cached_property
    def entries(self) -> Mapping[str, tuple[ManifestEntry, ...]]:
        """The live entries of each manifest, by the manifest's path.

        A manifest never changes. So those that the version before had too are not read again.
        """
        known = self.files.manifest_entries
        self.files.manifest_entries = {
            each.manifest_path: known.get(each.manifest_path) or tuple(each.fetch_manifest_entry(self.files))
            for each in self.manifests
        }
        return self.files.manifest_entries

    @cached_property
    def data_files(self) -> tuple[TableFile, ...]:
        """The data files, with what hides rows of them. Raises `NotKeyfoldsTable` for equality deletes."""
        by_path: dict[str, list[ManifestEntry]] = {}
        for entry in self._of(ManifestContent.DELETES):
            if entry.data_file.content is not DataFileContent.POSITION_DELETES:
                raise NotKeyfoldsTable(
                    f"`{entry.data_file.file_path}` deletes rows by value: another tool writes into the table",
                    hint="rebuild the table with --rebuild, and let only keyfold write into it",
                )
            for path in self._hides(entry):
                by_path.setdefault(path, []).append(entry)
        return tuple(
            TableFile(
                entry, tuple(each for each in by_path.get(entry.data_file.file_path, ()) if _reaches(each, entry))
            )
            for entry in self._of(ManifestContent.DATA)
        )

    def _of(self, content: ManifestContent) -> Iterator[ManifestEntry]:
        for manifest in self.manifests:
            if manifest.content is content:
                yield from self.entries[manifest.manifest_path]

    def _hides(self, entry: ManifestEntry) -> list[str]:
        """Return the data files of which a delete file hides rows. keyfold's name one file each, in their bounds."""
        path = scope_of(entry.data_file)
        return [path] if path is not None else list(self._positions(entry))

    def _positions(self, entry: ManifestEntry) -> dict[str, Ints]:
        """Read the positions that a delete file hides, by data file."""
        scope = scope_of(entry.data_file)
        with self._opened(entry.data_file) as parquet:
            table = parquet.read(columns=["pos"] if scope is not None else ["file_path", "pos"])
        if scope is not None:
            return {scope: table.column("pos").to_numpy().astype(np.int64)}
        paths = table.column("file_path").combine_chunks().dictionary_encode()
        positions = table.column("pos").to_numpy().astype(np.int64)
        codes = paths.indices.to_numpy()
        return {path: positions[codes == code] for code, path in enumerate(values_of(paths.dictionary))}

    def hidden(self, file: TableFile) -> Ints:
        """Return the positions of the hidden rows of a data file, ascending."""
        path = file.file.file_path
        if path not in self._hidden:
            found = [self._positions(entry).get(path, _NO_ROWS) for entry in file.hidden_by]
            self._hidden[path] = united(_NO_ROWS, *found)
        return self._hidden[path]

    def is_visible(self, file: TableFile, first: int, count: int) -> Flags:
        """Return for each of `count` rows from position `first` whether it is visible."""
        hidden = self.hidden(file)
        flags = np.ones(count, np.bool_)
        flags[hidden[(hidden >= first) & (hidden < first + count)] - first] = False
        return flags

    def rows(self, file: TableFile, field_ids: Sequence[int]) -> Iterator[tuple[int, pa.Table]]:
        """Yield the columns with these ids, one row group after another, each with the position of its first row.

        Hidden rows are included. A column that the file does not have is left out.
        """
        wanted = [arrow_schema(Schema(self.schema.find_field(number))).field(0) for number in field_ids]
        with self._opened(file.file) as parquet:
            found = list(parquet.schema_arrow)
            names = [found[at].name for at in places(found, wanted) if at is not None]
            first = 0
            for group in range(parquet.num_row_groups):
                table = parquet.read_row_group(group, columns=names)
                yield first, table
                first += table.num_rows

    def visible(self, file: TableFile) -> Iterator[pa.Table]:
        """Yield the visible rows of a data file with the columns of the current schema, by row groups."""
        fields = arrow_schema(self.schema)
        for first, table in self.rows(file, [field.field_id for field in self.schema.fields]):
            found = table.filter(column_of(self.is_visible(file, first, table.num_rows)))
            arrays = [
                nulls(found.num_rows, field.type)
                if at is None
                else conform(found.column(at).combine_chunks(), field.type)
                for field, at in zip(fields, places(list(found.schema), list(fields)), strict=True)
            ]
            yield pa.Table.from_arrays(arrays, schema=fields)

    def _opened(self, file: DataFile) -> pq.ParquetFile:
        if file.file_format.value.lower() != "parquet":
            raise ConfigError("--to", f"`{file.file_path}` is {file.file_format.value}; keyfold reads Parquet only")
        reader = ObjectReader(self.files.store, self.files.key(file.file_path), file.file_size_in_bytes)
        return pq.ParquetFile(pa.PythonFile(reader, mode="r"), pre_buffer=True)


def united(*values: Ints) -> Ints:
    """Return all values, ascending and each once. numpy's `unique` hashes them, which takes ten times as long."""
    ascending = np.sort(np.concatenate(values))
    is_first = np.ones(len(ascending), np.bool_)
    is_first[1:] = ascending[1:] != ascending[:-1]
    return ascending[is_first]


def manifests_of(snapshot: Snapshot, files: ObjectFiles) -> tuple[ManifestFile, ...]:
    """Return the manifests of a snapshot, without pyiceberg's cache, which all tables of a process share."""
    return tuple(read_manifest_list(files.new_input(snapshot.manifest_list)))


def scope_of(file: DataFile) -> str | None:
    """Return the only data file that a delete file is about; None if its bounds do not say so."""
    low = (file.lower_bounds or {}).get(FILE_PATH_ID)
    high = (file.upper_bounds or {}).get(FILE_PATH_ID)
    return str(from_bytes(StringType(), low)) if low is not None and low == high else None


def _reaches(deletes: ManifestEntry, data: ManifestEntry) -> bool:
    """Return whether a delete file is about a data file that is as old as it, or older."""
    return (deletes.sequence_number or 0) >= (data.sequence_number or 0)
