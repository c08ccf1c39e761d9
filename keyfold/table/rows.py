"""Rows of a table from records of the log: their types first, then the rows themselves.

ChosenRecords    the records of one partition that become rows, read once or twice
TableRows        what a table and some records need of each other: types, a schema that has them, rows
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from threading import Lock
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from keyfold.errors import ObjectNotFound
from keyfold.export.request import OnError
from keyfold.export.rows import HEADERS, FormatMismatches, RowConverter
from keyfold.formats.format import RecordPart
from keyfold.formats.handlers import TypeSurvey
from keyfold.formats.schema_archive import SchemaArchive
from keyfold.log.names import Place
from keyfold.read.latest import Chosen, chosen_batches
from keyfold.read.log import Log
from keyfold.read.ordered import newer
from keyfold.read.segment_reader import SegmentRead
from keyfold.runtime.arrow_types import ArrowArray, nulls
from keyfold.table.columns import TableColumn, TextPath, TextPaths, WrittenTypes, require_same_texts, written_types
from keyfold.table.conform import conform
from keyfold.table.request import TableRequest, hollow_paths, text_paths
from keyfold.table.table import TableVersion
from keyfold.table.types import FieldIds, arrow_schema, grown, has_values

HELD_BYTES: Final = 256 * 1024 * 1024
"""Records up to this size are read once, and held between looking at their types and writing them."""

_WHOLE: Final = SegmentRead.of(0, 2**63 - 1, None, None)


class VersionReplaced(Exception):
    """Objects of a pinned version have been deleted; a newer version exists."""

    def __init__(self, place: Place) -> None:
        super().__init__(str(place))
        self.place = place


def replaced(log: Log, place: Place, error: ObjectNotFound) -> VersionReplaced:
    """Return the error for a missing object. Raises `Corrupt` if the newest version needs it too."""
    newer(place, partial(log.manifest, place.partition), error)
    return VersionReplaced(place)


class HeldMemory:
    """Memory for held records, shared by all partitions. Thread-safe."""

    def __init__(self, limit_bytes: int = HELD_BYTES) -> None:
        self._left_bytes = limit_bytes
        self._lock = Lock()

    def reserve(self, size_bytes: int) -> bool:
        """Reserve bytes. Return False, and reserve nothing, if there are not enough left."""
        with self._lock:
            if size_bytes > self._left_bytes:
                return False
            self._left_bytes -= size_bytes
            return True

    def give_back(self, size_bytes: int) -> None:
        """Return reserved bytes."""
        with self._lock:
            self._left_bytes += size_bytes


class ChosenRecords:
    """Some records of one partition, which can be read again and again. They are held while there is memory."""

    def __init__(
        self,
        log: Log,
        place: Place,
        chosen: Chosen,
        memory: HeldMemory,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Call `progress` with 0 for each batch that is read."""
        self.place = place
        self._progress = progress
        self._log = log
        self._chosen = chosen
        self._memory = memory
        self._held: list[pa.RecordBatch] | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the records in the order of their offsets. Raises `VersionReplaced`."""
        if self._held is not None:
            yield from self._held
            return
        held: list[pa.RecordBatch] = []
        is_held = True
        try:
            for batch in chosen_batches(self._log.store, self.place, self._chosen, _WHOLE):
                self._progress(0)
                yield batch
                if is_held and self._memory.reserve(batch.nbytes):
                    held.append(batch)
                elif is_held:
                    is_held = False
                    self._free(held)
        except ObjectNotFound as error:
            raise replaced(self._log, self.place, error) from error
        self._held = held if is_held else None

    def forget(self) -> None:
        """Release the held records; they can still be read again from the log."""
        held, self._held = self._held or [], None
        self._free(held)

    def _free(self, held: list[pa.RecordBatch]) -> None:
        self._memory.give_back(sum(batch.nbytes for batch in held))
        held.clear()


class TableRows:
    """The rows of some records, for one version of a table. Reads all records that have no type of their own.

    `schema` has what the records need, and `texts` the places that are JSON text then. `hollow` places have no column
    yet, because their lists and records have all been empty; those that get one now are `outgrown`: earlier rows are
    null there. Raises `NoIcebergType`, and `ConfigError` if a reader's schema is needed.
    """

    def __init__(
        self, version: TableVersion, request: TableRequest, schemas: SchemaArchive, records: Iterable[ChosenRecords]
    ) -> None:
        self._request = request
        self._schemas = schemas
        self.texts = text_paths(version.loaded.metadata.properties)
        self.hollow = self.outgrown = frozenset[TextPath]()
        self._types = self._surveyed(records)
        self.schema = self._grown(version)
        self._fields = arrow_schema(self.schema)
        key, value = self._column(RecordPart.KEY), self._column(RecordPart.VALUE)
        self._converter = RowConverter(key, value, request.on_error, key_bytes=request.has_key_bytes)

    def _surveyed(self, records: Iterable[ChosenRecords]) -> dict[RecordPart, WrittenTypes]:
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
            part: written_types(each, surveys.get(part), self._schemas, self.texts) for part, each in wanted.items()
        }

    def _grown(self, version: TableVersion) -> Schema:
        """Return the schema that the new records need, and note which places are text."""
        schema = version.schema
        ids = FieldIds(version.loaded.metadata.last_column_id)
        known = frozenset(_paths(arrow_schema(schema)))
        texts: TextPaths = frozenset(path for each in self._types.values() for path in each.texts)
        require_same_texts(texts, self.texts, known)
        self.texts |= texts
        hollow, found = hollow_paths(version.loaded.metadata.properties), set[TextPath]()
        for part, each in self._types.items():
            for kind in each.arrow(part):
                schema = grown(schema, {part.value: kind}, ids)
                found |= set(_hollow(kind, (part.value,)))
        typed = frozenset(_paths(arrow_schema(schema)))
        self.outgrown = hollow & typed
        self.hollow = (hollow | found) - typed
        if self._request.headers:
            schema = grown(schema, {"headers": HEADERS}, ids)
        if self._request.on_error is OnError.NULL:
            schema = grown(schema, dict.fromkeys(("key_error", "value_error"), pa.string()), ids)
        return schema

    def _column(self, part: RecordPart) -> TableColumn:
        at = self._fields.get_field_index(part.value)
        kind = pa.null() if at < 0 else self._fields.field(at).type
        return TableColumn(self._request.part(part), self._types[part], self._schemas, kind)

    def tables(self, records: ChosenRecords, mismatches: FormatMismatches) -> Iterator[pa.Table]:
        """Yield the rows of records, with the columns of the schema. Raises `RecordFormatMismatch`."""
        for batch in records:
            for table in self._converter.tables(records.place, batch, mismatches):
                yield _as_table(table, self._fields)
        records.forget()


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


def _hollow(kind: pa.DataType, at: TextPath) -> Iterator[TextPath]:
    """Yield the places whose values are not all null, and for which Iceberg has no type all the same."""
    if not has_values(kind):
        if not pa.types.is_null(kind):
            yield at
        return
    for inner, path in _inside(kind, at):
        yield from _hollow(inner, path)


def _paths(fields: pa.Schema) -> Iterator[TextPath]:
    for field in fields:
        yield from _paths_of(field.type, (field.name,))


def _paths_of(kind: pa.DataType, at: tuple[str, ...]) -> Iterator[TextPath]:
    yield at
    for inner, path in _inside(kind, at):
        yield from _paths_of(inner, path)


def _inside(kind: pa.DataType, at: TextPath) -> Iterator[tuple[pa.DataType, TextPath]]:
    """Yield the types directly inside a type, with their places."""
    if pa.types.is_struct(kind):
        yield from ((field.type, (*at, field.name)) for field in kind)
    elif pa.types.is_list(kind):
        yield kind.value_type, (*at, "[]")
    elif pa.types.is_map(kind):
        yield kind.item_type, (*at, "{}")
