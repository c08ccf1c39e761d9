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
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BinaryType, IntegerType, LongType, NestedField, StringType, TimestamptzType

from keyfold.errors import FirstCopyUnfinished, LogNotFound, ObjectNotFound, SnapshotLost, UploadLost
from keyfold.export.request import OnError
from keyfold.export.rows import HEADERS, FormatMismatches, RowConverter
from keyfold.formats.format import Format, RecordPart
from keyfold.formats.handlers import TypeSurvey
from keyfold.formats.schema_archive import SchemaArchive
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.read.latest import chosen_batches
from keyfold.read.log import Log
from keyfold.read.ordered import newer
from keyfold.read.position import anchor_of
from keyfold.read.segment_reader import SegmentRead
from keyfold.runtime.arrow_types import ArrowArray, nulls
from keyfold.runtime.clock import Clock
from keyfold.runtime.json_types import JsonObject
from keyfold.table.catalog import LoadedTable, TableCatalog, TableMoved
from keyfold.table.columns import (
    TableColumn,
    TextPaths,
    WrittenTypes,
    require_same_texts,
    written_types,
)
from keyfold.table.commit import Change, commit
from keyfold.table.conform import conform
from keyfold.table.data_files import FileWriter
from keyfold.table.difference import Difference, PartitionRows, Way, difference
from keyfold.table.file_io import ObjectFiles
from keyfold.table.request import TableRequest, require_same, text_paths, text_properties
from keyfold.table.table import OFFSET_ID, PARTITION_ID, ShownVersion, TableVersion, scope_of
from keyfold.table.types import FieldIds, arrow_schema, grown

TRIES: Final = 5
HELD_BYTES: Final = 64 * 1024 * 1024
"""Records of a partition up to this size are read once, and held between looking at their types and writing them."""

_KEY_ID: Final = 4
_KEY_BYTES_ID: Final = 5
_WHOLE: Final = SegmentRead.of(0, 2**63 - 1, None, None)


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
    """What a sync did. `snapshot_id` is None if nothing was to be done."""

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


class _Replaced(Exception):
    """Objects of a pinned version have been deleted; a newer version exists."""

    def __init__(self, place: Place) -> None:
        super().__init__(str(place))
        self.place = place


def sync(
    log: Log,
    catalog: TableCatalog,
    files: ObjectFiles,
    location: str,
    request: TableRequest,
    *,
    clock: Clock,
    random: Random,
    progress: Callable[[int], None] = lambda _: None,
    announce: Callable[[str], None] = lambda _: None,
) -> SyncResult:
    """Bring a table up to the newest version of each partition of a topic, and create it if it does not exist.

    `progress` gets numbers of rows that were written; `announce` gets a sentence before rows of a partition are made
    again. Raises `ConfigError`, `NoIcebergType`, `RecordFormatMismatch`, `NotKeyfoldsTable`, `SnapshotLost`, and what
    reading a log raises. Then nothing is visible.
    """
    for attempt in range(TRIES):
        is_last = attempt == TRIES - 1
        try:
            loaded = catalog.load() or _created(log, catalog, location, request)
            require_same(loaded.metadata.properties, request, log.topic, catalog.name)
            work = _Work(log, catalog, TableVersion(files, loaded), request, clock, random, progress, announce)
            return work.done()
        except (TableMoved, UploadLost):
            if is_last:
                raise
        except _Replaced as error:
            if is_last:
                raise _lost(error.place) from error
    raise AssertionError("the last try returns or raises")


def _created(log: Log, catalog: TableCatalog, location: str, request: TableRequest) -> LoadedTable:
    log.partitions()  # a topic that does not exist gets no table
    spec = PartitionSpec(PartitionField(PARTITION_ID, 1000, IdentityTransform(), "partition"))
    properties = {**request.properties(log.topic), "format-version": "2", "write.parquet.compression-codec": "zstd"}
    return catalog.create(location, base_schema(request), spec, properties)


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
        self._schemas = SchemaArchive(log.store, log.topics_dir)
        self._commit_id = f"{random.getrandbits(64):016x}"
        self._texts = text_paths(version.loaded.metadata.properties)

    def done(self) -> SyncResult:
        """Sync, and return what was done."""
        shown = {} if self._request.rebuild else dict(self._version.shown)
        due = {number: pin for number, pin in self._pins() if not _is_shown(shown.get(number), pin)}
        if not due:
            return SyncResult((), None)
        found = {number: self._difference(number, pin, shown.get(number)) for number, pin in due.items()}
        records = {number: _Records(self._log, self._place(number), each) for number, each in found.items()}
        types = self._types(records.values())
        schema = self._grown(types)
        rows = self._rows(types, schema)
        writer = FileWriter(self._version.files, self._version.loaded.metadata, schema, self._commit_id)
        done: list[SyncedPartition] = []
        added: list[DataFile] = []
        hidden: dict[str, np.ndarray] = {}
        for number, each in found.items():
            mismatches = FormatMismatches()
            files = writer.data(number, self._tables(number, records[number], rows, schema, mismatches))
            added += files
            hidden.update(each.hidden)
            shown[number] = ShownVersion(due[number].next_offset, anchor_of(due[number]))
            counts = sum(file.record_count for file in files), sum(map(len, each.hidden.values()))
            done.append(SyncedPartition(self._place(number), shown[number], each.way, *counts, len(files), mismatches))
        deletes, removed = self._hide(writer, hidden)
        change = Change(
            Operation.OVERWRITE if removed or deletes else Operation.APPEND,
            shown,
            [*added, *deletes],
            removed,
            None if schema is self._version.schema else schema,
            text_properties(self._texts),
        )
        loaded = commit(
            self._catalog,
            self._version,
            change,
            commit_id=self._commit_id,
            now_ms=self._clock.now_ms(),
            random=self._random,
        )
        return SyncResult(done, loaded.metadata.current_snapshot_id)

    def _pins(self) -> Iterator[tuple[int, Manifest]]:
        for number in self._log.partitions():
            with suppress(LogNotFound, FirstCopyUnfinished):  # a folder without a log
                yield number, self._log.manifest(number)

    def _place(self, number: int) -> Place:
        return self._log.place(number)

    def _difference(self, number: int, manifest: Manifest, shown: ShownVersion | None) -> Difference:
        key_id = _KEY_ID if self._request.key_format in _FIXED_TYPES else None
        if self._request.has_key_bytes:
            key_id = self._version.schema.find_field("key_bytes").field_id
        # A rebuild replaces all files, whatever another tool has made of them.
        known = () if self._request.rebuild else self._version.data_files
        files = [file for file in known if number in file.partitions]
        rows = PartitionRows(self._version, number, files, key_id)
        try:
            found = difference(self._log.store, self._place(number), manifest, shown, rows)
        except ObjectNotFound as error:
            raise self._replaced(number, error) from error
        if found.way is Way.ALL_ROWS and (files or self._request.rebuild):
            why = found.reason or "it was asked for"
            self._announce(f"{self._place(number)}: all rows are made again, because {why}")
        return found

    def _replaced(self, number: int, error: ObjectNotFound) -> _Replaced:
        newer(self._place(number), lambda: self._log.manifest(number), error)
        return _Replaced(self._place(number))

    def _types(self, records: Iterable[_Records]) -> dict[RecordPart, WrittenTypes]:
        """Return the types of the new keys and values."""
        wanted = {part: self._request.part(part) for part in RecordPart}
        surveys: dict[RecordPart, TypeSurvey] = {}
        for part, each in wanted.items():
            survey = each.survey()
            if survey is not None:
                surveys[part] = survey
        if surveys:
            for found in records:
                for batch in found:
                    for part, survey in surveys.items():
                        survey.add(batch.column(part.value), batch.column("headers"))
        return {
            part: written_types(each, surveys.get(part), self._schemas, self._texts) for part, each in wanted.items()
        }

    def _grown(self, types: Mapping[RecordPart, WrittenTypes]) -> Schema:
        """Return the schema that the new records need, and note which places are text."""
        schema = self._version.schema
        ids = FieldIds(self._version.loaded.metadata.last_column_id)
        known = frozenset(_paths(arrow_schema(schema)))
        texts: TextPaths = frozenset(path for each in types.values() for path in each.texts)
        require_same_texts(texts, self._texts, known)
        self._texts |= texts
        for part, each in types.items():
            for kind in each.arrow(part):
                schema = grown(schema, {part.value: kind}, ids)
        if self._request.headers:
            schema = grown(schema, {"headers": HEADERS}, ids)
        if self._request.on_error is OnError.NULL:
            schema = grown(schema, dict.fromkeys(("key_error", "value_error"), pa.string()), ids)
        return schema

    def _rows(self, types: Mapping[RecordPart, WrittenTypes], schema: Schema) -> RowConverter:
        fields = arrow_schema(schema)

        def column(part: RecordPart) -> TableColumn:
            at = fields.get_field_index(part.value)
            kind = pa.null() if at < 0 else fields.field(at).type
            return TableColumn(self._request.part(part), types[part], self._schemas, kind)

        key, value = column(RecordPart.KEY), column(RecordPart.VALUE)
        return RowConverter(key, value, self._request.on_error, key_bytes=self._request.has_key_bytes)

    def _tables(
        self, number: int, records: _Records, rows: RowConverter, schema: Schema, mismatches: FormatMismatches
    ) -> Iterator[pa.Table]:
        """Yield the rows to add, with the table's columns."""
        fields = arrow_schema(schema)
        try:
            for batch in records:
                for table in rows.tables(self._place(number), batch, mismatches):
                    yield _as_table(table, fields)
                    self._progress(table.num_rows)
        except ObjectNotFound as error:
            raise self._replaced(number, error) from error

    def _hide(self, writer: FileWriter, hidden: Mapping[str, np.ndarray]) -> tuple[list[DataFile], frozenset[str]]:
        """Write what hides rows, and return it with the locations of what it replaces."""
        if self._request.rebuild:
            return [], frozenset(each.data_file.file_path for found in self._version.entries.values() for each in found)
        deletes: list[DataFile] = []
        removed: set[str] = set()
        for file in self._version.data_files:
            path = file.file.file_path
            if path not in hidden:
                continue
            positions = np.union1d(self._version.hidden(file), hidden[path])
            removed |= {entry.data_file.file_path for entry in file.hidden_by if scope_of(entry.data_file) == path}
            if len(positions) == file.file.record_count:
                removed.add(path)
            else:
                deletes.append(writer.hidden(len(deletes), file.file.partition, path, positions))
        return deletes, frozenset(removed)


class _Records:
    """The records to add to one partition, which can be read again and again. Few records are held."""

    def __init__(self, log: Log, place: Place, found: Difference) -> None:
        self._log = log
        self._place = place
        self._found = found
        self._held: list[pa.RecordBatch] | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._held is not None:
            yield from self._held
            return
        held: list[pa.RecordBatch] | None = []
        held_bytes = 0
        for batch in chosen_batches(self._log.store, self._place, self._found.added, _WHOLE):
            yield batch
            held_bytes += batch.nbytes
            held = [*held, batch] if held is not None and held_bytes <= HELD_BYTES else None
        self._held = held


def _is_shown(shown: ShownVersion | None, manifest: Manifest) -> bool:
    return shown is not None and (shown.anchor.log_id, shown.anchor.version) == (manifest.log_id, manifest.version)


def _as_table(table: pa.Table, fields: pa.Schema) -> pa.Table:
    """Return the columns of a table for exported rows; see `keyfold.export.rows`."""
    arrays = [
        _column(table.column(field.name).combine_chunks(), field.type)
        if field.name in table.column_names
        else nulls(table.num_rows, field.type)
        for field in fields
    ]
    return pa.Table.from_arrays(arrays, schema=fields)


def _column(array: ArrowArray, kind: pa.DataType) -> ArrowArray:
    if not pa.types.is_timestamp(array.type):
        return conform(array, kind)
    known = pc.and_(pc.greater_equal(array, _FIRST_TIME), pc.less_equal(array, _LAST_TIME))
    return conform(pc.if_else(known, array, pa.scalar(None, array.type)), kind)  # -1 is Kafka's "no timestamp"


_FIRST_TIME: Final = pa.scalar(0, pa.timestamp("ms", "UTC"))
_LAST_TIME: Final = pa.scalar((2**63 - 1) // 1000, pa.timestamp("ms", "UTC"))


def _paths(fields: pa.Schema) -> Iterator[tuple[str, ...]]:
    for field in fields:
        yield from _paths_of(field.type, (field.name,))


def _paths_of(kind: pa.DataType, at: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield at
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _paths_of(field.type, (*at, field.name))
    elif pa.types.is_list(kind):
        yield from _paths_of(kind.value_type, (*at, "[]"))
    elif pa.types.is_map(kind):
        yield from _paths_of(kind.item_type, (*at, "{}"))


def _lost(place: Place) -> SnapshotLost:
    return SnapshotLost(
        place.topic,
        place.partition,
        f"a version was replaced and deleted before it was synchronised, {TRIES} times in a row",
        hint="file.delete.delay.ms must be longer than a sync takes",
    )
