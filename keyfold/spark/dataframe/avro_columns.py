"""Avro keys and values: each record's own writer schema, archived beside the log, and one reader schema for the column.

    jvm      one `from_avro` for each archived schema, chosen by the schema id before the data; needs spark-avro
    tasks    keyfold's own decoder in Python tasks, for a session without it, and if values that do not fit become null
             (`keyfold.spark.dataframe.avro_tasks`)

Without a reader schema the newest is taken: of the schemas by which the last value of each partition was written the
one with the highest id. That reads one block of each partition, in the driver.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from uuid import UUID

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from keyfold.errors import ConfigError, ObjectNotFound
from keyfold.formats.confluent_framing import GUID_BYTES, ID_BYTES, is_bytes_alone, read_frame
from keyfold.formats.decoder import reader_type
from keyfold.formats.errors import FormatMismatch, SchemaKey
from keyfold.formats.format import RecordPart
from keyfold.formats.schema_archive import ArchivedSchemaUnusable, SchemaArchive
from keyfold.formats.schema_bounds import SchemaTooLarge, require_bounded
from keyfold.log.index import read_index
from keyfold.log.manifest import SegmentEntry
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.read.fetch import read_segment
from keyfold.read.log import Log
from keyfold.spark.dataframe.avro_tasks import typed_by_tasks
from keyfold.spark.dataframe.paths import AVRO_FUNCTIONS
from keyfold.spark.dataframe.value_formats import Typing, mismatch
from keyfold.spark.jvm import has_class

LOADS_AT_ONCE: Final = 16


def typed_avro(frame: DataFrame, log: Log, typings: Sequence[Typing], partitions: Sequence[int]) -> DataFrame:
    """The same rows with Avro columns read. Raises `ConfigError`, `StoreError`, `Corrupt`."""
    archive = SchemaArchive(log.store, log.topics_dir)
    readers = {typing: _reader(typing, log, archive, partitions) for typing in typings}
    # What does not fit is a struct of nulls for a permissive `from_avro`, which a record may have been.
    if has_class(frame.sparkSession, AVRO_FUNCTIONS) and all(typing.raises for typing in typings):
        writers = _texts(archive)
        columns: dict[str, Column] = {
            typing.column: _from_avro(typing, log.topic, writers, reader) for typing, reader in readers.items()
        }
        return frame.withColumns(columns)
    return typed_by_tasks(frame, log, readers)


def _reader(typing: Typing, log: Log, archive: SchemaArchive, partitions: Sequence[int]) -> str:
    """The text of the reader schema."""
    given = typing.reader_schema
    if given is not None:
        return _checked(typing, json.dumps(given) if isinstance(given, Mapping) else given)
    part = RecordPart(typing.column)
    keys = [key for partition in partitions for key in _last_schema(log, partition, part)]
    ids = [key for key in keys if isinstance(key, int)]
    if not keys:
        return '"bytes"'  # there is nothing to read
    if not ids and len(set(keys)) > 1:
        raise ConfigError(
            typing.schema_option, f"is required: GUIDs do not show which schema is the newest ({sorted(set(keys))})"
        )
    try:
        return _bounded(archive, max(ids) if ids else keys[0])
    except FormatMismatch as error:
        raise ConfigError(typing.schema_option, f"is required: the last {part} {error.message}") from error
    except ArchivedSchemaUnusable as error:
        message = f"is required: the newest schema of the {part.value}s cannot be used: {error.message}"
        raise ConfigError(typing.schema_option, message) from error


def _checked(typing: Typing, text: object) -> str:
    if not isinstance(text, str):
        raise ConfigError(
            typing.schema_option, "must be an Avro schema for avro, as JSON text or as a parsed JSON value"
        )
    try:
        reader_type(text)
    except ValueError as error:
        raise ConfigError(typing.schema_option, str(error)) from error
    return text


def _last_schema(log: Log, partition: int, part: RecordPart) -> Iterator[SchemaKey]:
    """The schema of a partition's last key or value; nothing if it has none."""
    place = log.place(partition)
    while True:
        try:
            record = _last_record(log, place, part)
            break
        except ObjectNotFound as error:
            if error.key.removeprefix(place.folder) in log.manifest(partition).object_names():
                raise
    data = None if record is None else record.value if part is RecordPart.VALUE else record.key
    if record is None or data is None:
        return
    try:
        yield read_frame(data, record.headers, part.schema_header)[0]
    except FormatMismatch as error:
        where = f"the last {part} of {place}, at offset {record.offset}, {error.message}"
        raise ConfigError(f"{part}_format", f"is avro, but {where}") from error


def _last_record(log: Log, place: Place, part: RecordPart) -> Record | None:
    for entry in reversed(log.manifest(place.partition).segments):
        lacking = entry.keyless_count if part is RecordPart.KEY else entry.tombstone_count
        if lacking < entry.record_count:
            record = _last_of(log, place, entry, part)
            if record is not None:
                return record
    return None


def _last_of(log: Log, place: Place, entry: SegmentEntry, part: RecordPart) -> Record | None:
    rows = read_index(log.store, place, entry, columns=("offset", "key", "is_tombstone")).rows
    for row in reversed(range(rows.num_rows)):
        has = rows["key"][row].is_valid if part is RecordPart.KEY else not rows["is_tombstone"][row].as_py()
        if has:
            offset = rows["offset"][row].as_py()
            record = next(read_segment(log.store, place, entry, offset, offset + 1))
            if part is RecordPart.KEY or record.value is not None:
                return record
    return None


def _texts(archive: SchemaArchive) -> dict[SchemaKey, str | ArchivedSchemaUnusable]:
    """Return all schemas of the archive: which of them a record names is known when it is read.

    A schema that cannot be used is no reason to refuse records of others, so what is wrong stands in its place.
    """

    def text(key: SchemaKey) -> str | ArchivedSchemaUnusable:
        try:
            return _bounded(archive, key)
        except ArchivedSchemaUnusable as error:
            return error

    keys = archive.keys()
    with ThreadPoolExecutor(LOADS_AT_ONCE) as pool:
        return dict(zip(keys, pool.map(text, keys), strict=True))


def _bounded(archive: SchemaArchive, key: SchemaKey) -> str:
    """Return a schema's text for Spark, which writes out every name.

    Raise `FormatMismatch` or `ArchivedSchemaUnusable`.
    """
    try:
        require_bounded(archive.schema(key))
    except SchemaTooLarge as error:
        raise ArchivedSchemaUnusable(archive.name(key), f"is not a schema that can be read: {error}") from error
    return archive.text(key)


def _from_avro(
    typing: Typing, topic: str, writers: Mapping[SchemaKey, str | ArchivedSchemaUnusable], reader: str
) -> Column:
    from pyspark.sql.avro.functions import from_avro

    stored = fn.col(typing.column)
    name = RecordPart(typing.column).schema_header
    named = fn.filter("headers", lambda h: (h["name"] == name) & h["value"].isNotNull())
    in_header = fn.when(fn.size(named) > 0, named[0]["value"])
    first = fn.substring(stored, 1, 1)
    in_data = fn.when(first == fn.unhex(fn.lit("01")), fn.substring(stored, 1, GUID_BYTES)).otherwise(
        fn.substring(stored, 1, ID_BYTES)
    )
    head = fn.coalesce(in_header, in_data)
    body = fn.when(in_header.isNotNull(), stored).otherwise(fn.expr(_rest_of(typing.column)))
    options: dict[str, str] = {"avroSchema": reader, "mode": typing.mode}
    told = fn.concat(fn.lit("begins with "), fn.hex(head), fn.lit(", which is not the id of a kept schema"))
    column = fn.when(stored.isNull(), None)
    for key, text in writers.items():
        if isinstance(text, ArchivedSchemaUnusable):
            read = mismatch(typing, topic, fn.lit(f"names schema {key}, which cannot be used: {text.message}"))
        else:
            read = from_avro(_with_length(body) if is_bytes_alone(json.loads(text)) else body, text, options)
        column = column.when(head == fn.unhex(fn.lit(_prefix(key).hex())), read)
    return column.otherwise(mismatch(typing, topic, told))


def _with_length(body: Column) -> Column:
    """Bytes behind their length, where `from_avro` wants one: a number in five groups of seven bits, the last first."""
    doubled = fn.length(body).cast("long") * 2  # a positive number in Avro's zigzag
    groups = [fn.shiftright(doubled, 7 * place).bitwiseAND(fn.lit(0x7F)) for place in range(5)]
    octets = [group.bitwiseOR(fn.lit(0x80)) for group in groups[:-1]] + groups[-1:]
    return fn.concat(*(fn.unhex(fn.lpad(fn.hex(octet), 2, "0")) for octet in octets), body)


def _rest_of(column: str) -> str:
    begin = f"if(substring({column}, 1, 1) = X'01', {GUID_BYTES + 1}, {ID_BYTES + 1})"
    return f"substring({column}, {begin}, length({column}))"


def _prefix(key: SchemaKey) -> bytes:
    """What stands before the data, or in the header, for a schema."""
    return b"\0" + key.to_bytes(4) if isinstance(key, int) else b"\1" + UUID(key).bytes
