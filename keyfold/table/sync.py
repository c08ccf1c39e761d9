"""A sync: one snapshot that shows the newest version of each partition.

    pin          the newest manifest of each partition
    compare      which records to add and which rows to hide (`keyfold.table.difference`)
    types        what the new records need of the schema
    write        data files, and for each data file with newly hidden rows all its hidden positions
    commit       one snapshot; if another commit came first, all of it is done again

Partitions whose version the table shows already are left alone. A killed sync leaves files that no snapshot names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Final, TypeVar

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import BinaryType, IntegerType, LongType, NestedField, StringType, TimestamptzType

from keyfold.errors import FirstCopyUnfinished, LogNotFound, ObjectNotFound, SnapshotLost, UploadLost
from keyfold.export.rows import FormatMismatches
from keyfold.formats.format import Format
from keyfold.formats.schema_archive import SchemaArchive
from keyfold.log.arrow_numbers import Ints
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.read.log import Log
from keyfold.read.position import anchor_of
from keyfold.runtime.clock import Clock
from keyfold.runtime.json_types import JsonObject
from keyfold.runtime.text import count_text
from keyfold.table.catalog import CatalogFailed, LoadedTable, TableCatalog
from keyfold.table.columns import TextPath
from keyfold.table.commit import Change, commit, commit_spec
from keyfold.table.data_files import FileWriter
from keyfold.table.difference import Difference, PartitionRows, Way, difference
from keyfold.table.file_io import TableMoved
from keyfold.table.open import OpenedTable
from keyfold.table.partitioning import has_columns, parse_columns, partition_spec
from keyfold.table.request import TableRequest, path_properties, require_same
from keyfold.table.rows import ChosenRecords, HeldMemory, TableRows, VersionReplaced, replaced
from keyfold.table.table import OFFSET_ID, PARTITION_ID, ShownVersion, TableVersion, scope_of, united

T = TypeVar("T")

TRIES: Final = 5
_PAUSE_S: Final = 0.5
_KEY_ID: Final = 4


@dataclass(frozen=True, slots=True)
class SyncedPartition:
    """What a sync did to one partition. `files` are the data files that it added."""

    place: Place
    shown: ShownVersion
    way: Way
    added: int
    hidden: int
    files: int
    mismatches: FormatMismatches


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What a sync did, or would do. `snapshot_id` is None if it wrote nothing."""

    partitions: Sequence[SyncedPartition]
    snapshot_id: int | None

    def as_json(self) -> JsonObject:
        """For `--json`."""
        return {
            "snapshot_id": self.snapshot_id,
            "partitions": [
                {
                    "topic": each.place.topic,
                    "partition": each.place.partition,
                    "log_id": each.shown.anchor.log_id,
                    "version": each.shown.anchor.version,
                    "next_offset": each.shown.next_offset,
                    "way": each.way.value,
                    "added": each.added,
                    "hidden": each.hidden,
                    "files": each.files,
                    "skipped": each.mismatches.skipped,
                    "nulled": each.mismatches.nulled,
                    "mismatches": each.mismatches.examples,
                }
                for each in self.partitions
            ],
        }

    def lines(self, name: str) -> Iterator[str]:
        """Yield what was done, as text. `name` is the table's."""
        for each in self.partitions:
            rows = f"{count_text(each.added, 'row')} added, {each.hidden:,} hidden, by {each.way}"
            yield f"{each.place}: version {each.shown.anchor.version}, up to offset {each.shown.next_offset:,}; {rows}"
            yield from (f"  {example}" for example in each.mismatches.examples)
        if not self.partitions:
            yield f"{name} is up to date"
        elif self.snapshot_id is None:
            yield f"{name}: nothing was written"
        else:
            yield f"{name}: snapshot {self.snapshot_id}"


def sync(
    log: Log,
    table: OpenedTable,
    request: TableRequest,
    *,
    clock: Clock,
    random: Random,
    dry_run: bool = False,
    progress: Callable[[int], None] = lambda _: None,
    announce: Callable[[str], None] = lambda _: None,
) -> SyncResult:
    """Bring a table up to the newest version of each partition of a topic, and create it if it does not exist.

    `dry_run` writes nothing and returns what a sync would do now. `progress` gets numbers of rows that were written,
    and 0 whenever records were read; `announce` gets a sentence before it rebuilds the rows of a partition. Raises
    `ConfigError`, `NoIcebergType`, `RecordFormatMismatch`, `NotKeyfoldsTable`, `SnapshotLost`, and what reading a log
    raises; then nothing is visible. After `CatalogFailed` the whole snapshot may be visible.
    """
    for attempt in range(TRIES):
        is_last = attempt == TRIES - 1
        try:
            loaded = table.catalog.load() or _new_table(log, table, request, dry_run=dry_run)
            require_same(loaded.metadata.properties, request, log.topic, table.catalog.name)
            version = TableVersion(table.files, loaded)
            work = _Work(log, table.catalog, version, request, clock, random, progress, announce)
            return work.planned() if dry_run else work.done()
        except (CatalogFailed, TableMoved, UploadLost) as error:
            if is_last:
                raise
            if isinstance(error, CatalogFailed):  # if it did commit, the next attempt finds nothing to do
                clock.sleep(random.uniform(0, _PAUSE_S * 2**attempt))
        except _Outgrown as error:
            announce(f"all rows are rebuilt, because `{'.'.join(error.path)}` was empty in all records so far")
            request = replace(request, rebuild=True)
        except VersionReplaced as error:
            if is_last:
                raise _lost(error.place) from error
    raise AssertionError("the last try returns or raises")


def _new_table(log: Log, table: OpenedTable, request: TableRequest, *, dry_run: bool) -> LoadedTable:
    log.partitions()  # a topic that does not exist gets no table
    schema, columns = base_schema(request), parse_columns(request.partition_by)
    # A table by columns that only the records have is partitioned when it gets its first rows.
    spec = partition_spec(columns, schema) if has_columns(columns, schema) else UNPARTITIONED_PARTITION_SPEC
    properties = {**request.properties(log.topic), "format-version": "2", "write.parquet.compression-codec": "zstd"}
    if dry_run:
        return LoadedTable(new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, table.location, properties), "")
    return table.catalog.create(table.location, schema, spec, properties)


def base_schema(request: TableRequest) -> Schema:
    """Return the columns of a table whose values have not been seen yet."""
    fields = [
        NestedField(PARTITION_ID, "partition", IntegerType(), required=True),
        NestedField(OFFSET_ID, "offset", LongType(), required=True),
        NestedField(3, "timestamp", TimestamptzType(), required=False),
    ]
    if request.key_format in _FIXED_TYPES:
        fields.append(NestedField(_KEY_ID, "key", _FIXED_TYPES[request.key_format], required=False))
    if request.has_key_bytes:
        fields.append(NestedField(len(fields) + 1, "key_bytes", BinaryType(), required=False))
    return Schema(*fields)


_FIXED_TYPES: Final = {Format.BYTES: BinaryType(), Format.STRING: StringType()}


class _Outgrown(Exception):
    """A place that had no column gets one, and rows that are in the table already have a value for it."""

    def __init__(self, path: TextPath) -> None:
        super().__init__(path)
        self.path = path


class _Work:
    """One attempt of a sync."""

    def __init__(
        self,
        log: Log,
        catalog: TableCatalog,
        version: TableVersion,
        request: TableRequest,
        clock: Clock,
        random: Random,
        progress: Callable[[int], None],
        announce: Callable[[str], None],
    ) -> None:
        self._log = log
        self._catalog = catalog
        self._version = version
        self._request = request
        self._clock = clock
        self._random = random
        self._progress = progress
        self._announce = announce
        self._commit_id = f"{random.getrandbits(64):016x}"

    def planned(self) -> SyncResult:
        """Return what a sync would do. Records that do not fit are not known yet; a type that does not fit raises."""
        shown, due = self._due()
        found = self._differences(shown, due)
        rows = self._table_rows(self._records(found).values())
        self._wanted_spec(rows.schema, found.values())
        done = [
            SyncedPartition(
                self._place(number),
                _shown(due[number]),
                each.way,
                each.added_count,
                sum(map(len, each.hidden.values())),
                0,
                FormatMismatches(),
            )
            for number, each in found.items()
        ]
        return SyncResult(done, None)

    def done(self) -> SyncResult:
        """Sync, and return what was done."""
        shown, due = self._due()
        if not due:
            return SyncResult((), None)
        found = self._differences(shown, due)
        records = self._records(found)
        rows = self._table_rows(records.values())
        self._partition(rows.schema, found.values())
        writer = FileWriter(self._version.files, self._version.loaded.metadata, rows.schema, self._commit_id)
        written = self._each(
            found, lambda number: self._write(writer, rows, records[number], found[number], due[number])
        )
        shown |= {number: _shown(manifest) for number, manifest in due.items()}
        added = [file for files, _ in written.values() for file in files]
        deletes, removed = self._hide(writer, _joined([each.hidden for each in found.values()]))
        change = Change(
            Operation.OVERWRITE if removed or deletes else Operation.APPEND,
            shown,
            [*added, *deletes],
            removed,
            None if rows.schema == self._version.schema else rows.schema,
            path_properties(self._version.loaded.metadata.properties, rows.texts, rows.hollow),
        )
        loaded = commit(
            self._catalog,
            self._version,
            change,
            commit_id=self._commit_id,
            now_ms=self._clock.now_ms(),
            random=self._random,
        )
        return SyncResult([done for _, done in written.values()], loaded.metadata.current_snapshot_id)

    def _wanted_spec(self, schema: Schema, found: Iterable[Difference]) -> PartitionSpec | None:
        """Return the partition spec of a table that gets its first rows; None if it has one. Raises `ConfigError`."""
        metadata = self._version.loaded.metadata
        columns = parse_columns(self._request.partition_by)
        if not metadata.spec().is_unpartitioned() or not any(each.added_count for each in found):
            return None
        return partition_spec(columns, schema, metadata.default_spec_id + 1)

    def _partition(self, schema: Schema, found: Iterable[Difference]) -> None:
        """Partition a table before it gets its first rows, if that could not be done when it was created."""
        spec = self._wanted_spec(schema, found)
        if spec is not None:
            loaded = commit_spec(self._catalog, self._version, schema, spec)
            self._version = TableVersion(self._version.files, loaded)

    def _write(
        self, writer: FileWriter, rows: TableRows, records: ChosenRecords, found: Difference, manifest: Manifest
    ) -> tuple[list[DataFile], SyncedPartition]:
        """Write the added rows of one partition."""
        mismatches = FormatMismatches()
        place = records.place
        files = writer.data(place.partition, self._counted(rows.tables(records, mismatches)))
        counts = sum(file.record_count for file in files), sum(map(len, found.hidden.values()))
        return files, SyncedPartition(place, _shown(manifest), found.way, *counts, len(files), mismatches)

    def _each(self, numbers: Iterable[int], work: Callable[[int], T]) -> dict[int, T]:
        """Do the work for each partition, several at a time. Raises the first error, when all have ended."""
        with ThreadPoolExecutor(self._request.parallel, thread_name_prefix="table") as pool:
            futures = {number: pool.submit(work, number) for number in numbers}
        return {number: future.result() for number, future in futures.items()}

    def _due(self) -> tuple[dict[int, ShownVersion], dict[int, Manifest]]:
        """Return what the table shows, and the newest versions that it does not show."""
        shown = {} if self._request.rebuild else dict(self._version.shown)
        return shown, {number: pin for number, pin in self._pins() if not _is_shown(shown.get(number), pin)}

    def _differences(self, shown: Mapping[int, ShownVersion], due: Mapping[int, Manifest]) -> dict[int, Difference]:
        return self._each(due, lambda number: self._difference(number, due[number], shown.get(number)))

    def _records(self, found: Mapping[int, Difference]) -> dict[int, ChosenRecords]:
        memory = HeldMemory()
        return {
            number: ChosenRecords(self._log, self._place(number), each.added, memory, self._progress)
            for number, each in found.items()
        }

    def _table_rows(self, records: Iterable[ChosenRecords]) -> TableRows:
        archive = SchemaArchive(self._log.store, self._log.topics_dir)
        rows = TableRows(self._version, self._request, archive, records)
        if rows.outgrown and not self._request.rebuild:
            raise _Outgrown(min(rows.outgrown))
        return rows

    def _pins(self) -> Iterator[tuple[int, Manifest]]:
        for number in self._log.partitions():
            with suppress(LogNotFound, FirstCopyUnfinished):  # a folder without a log
                yield number, self._log.manifest(number)

    def _place(self, number: int) -> Place:
        return self._log.place(number)

    def _difference(self, number: int, manifest: Manifest, shown: ShownVersion | None) -> Difference:
        key_id = self._version.schema.find_field(self._request.key_column).field_id
        # A rebuild replaces all files, whatever another tool has made of them.
        known = () if self._request.rebuild else self._version.data_files
        files = [file for file in known if number in file.partitions]
        rows = PartitionRows(self._version, number, files, key_id)
        try:
            found = difference(self._log.store, self._place(number), manifest, shown, rows)
        except ObjectNotFound as error:
            raise replaced(self._log, self._place(number), error) from error
        if found.way is Way.ALL_ROWS and (files or self._request.rebuild):
            why = found.reason or "it was asked for"
            self._announce(f"{self._place(number)}: all rows are rebuilt, because {why}")
        return found

    def _counted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for table in tables:
            yield table
            self._progress(table.num_rows)

    def _hide(self, writer: FileWriter, hidden: Mapping[str, Ints]) -> tuple[list[DataFile], frozenset[str]]:
        """Write what hides rows, and return it with the locations of what it replaces."""
        if self._request.rebuild:
            return [], frozenset(each.data_file.file_path for found in self._version.entries.values() for each in found)
        deletes: list[DataFile] = []
        removed: set[str] = set()
        for file in self._version.data_files:
            path = file.file.file_path
            if path not in hidden:
                continue
            positions = united(self._version.hidden(file), hidden[path])
            removed |= {entry.data_file.file_path for entry in file.hidden_by if scope_of(entry.data_file) == path}
            if len(positions) == file.file.record_count:
                removed.add(path)
            else:
                deletes.append(writer.hidden(len(deletes), file.file, positions))
        return deletes, frozenset(removed)


def _joined(hidden: Iterable[Mapping[str, Ints]]) -> dict[str, Ints]:
    """Return the positions to hide of each file. Another tool may have put rows of several partitions into one."""
    found: dict[str, Ints] = {}
    for each in hidden:
        for path, positions in each.items():
            found[path] = united(found[path], positions) if path in found else positions
    return found


def _shown(manifest: Manifest) -> ShownVersion:
    return ShownVersion(manifest.next_offset, anchor_of(manifest))


def _is_shown(shown: ShownVersion | None, manifest: Manifest) -> bool:
    return shown is not None and (shown.anchor.log_id, shown.anchor.version) == (manifest.log_id, manifest.version)


def _lost(place: Place) -> SnapshotLost:
    return SnapshotLost(
        place.topic,
        place.partition,
        f"a version was replaced and deleted before it was synchronised, {TRIES} times in a row",
        hint="file.delete.delay.ms must be longer than a sync takes",
    )
