"""The Spark data source `keyfold`, batch and stream.

    from keyfold.spark import register
    register(spark)
    spark.read.format("keyfold").option("url", "s3://bucket/topics").option("topic", "users").load()
    spark.readStream.format("keyfold")...

What it does is decided in the modules beside this one, which know nothing of Spark; here they are put into Spark's
classes. Spark pickles these and calls them in Python processes of its own:

    driver      a process for each `load` plans a batch (reader, pushFilters, partitions); one for each stream lives as
                long as the query (initialOffset, latestOffset, partitions)
    executors   `read` of an input partition, in workers that are used again, so a store is opened once in each

Spark 4.0 has data sources; 4.1 adds filters; 4.2 adds the start and the limit of a stream's next batch. Before 4.2 a
stream only knows where it is from what it was asked before: its first batch, after a restart too, goes to the end of
the log, whatever the limits are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from keyfold.errors import ConfigError
from keyfold.log.manifest import Manifest
from keyfold.read.log import Log
from keyfold.runtime.json_types import JsonObject
from keyfold.spark.source.admission import Amount
from keyfold.spark.source.batch import plan_batch
from keyfold.spark.source.columns import ddl, schema_for
from keyfold.spark.source.filters import EVERYTHING, FilterBounds, scope_of
from keyfold.spark.source.offsets import StreamOffset
from keyfold.spark.source.options import SourceOptions
from keyfold.spark.source.plan import SpanSlice
from keyfold.spark.source.read import ReadSettings, read_slices
from keyfold.spark.source.stream import UNLIMITED, SourceStream
from keyfold.spark.source.topic import SourceTopic
from keyfold.store.api import ObjectStore, StoreLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
except ImportError as error:
    from pyspark import __version__ as _found

    raise ConfigError(
        "pyspark",
        f"version {_found} has no Python data sources; the format `keyfold` requires Spark 4.0 or newer",
        hint="`keyfold.spark.dataframe.read_log` also works with Spark 3.5",
    ) from error

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_ADMISSION: Final = True
except ImportError:  # Spark 4.0 and 4.1
    HAS_ADMISSION = False  # type: ignore[misc]  # the other branch's

FORMAT: Final = "keyfold"
PUSH_DOWN: Final = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Make `format("keyfold")` known to a session, and let it push filters down where the session does not say."""
    spark.dataSource.register(KeyfoldDataSource)
    if PUSH_DOWN not in spark.conf.getAll:
        spark.conf.set(PUSH_DOWN, "true")


@cache
def _opened(location: StoreLocation, process_id: int) -> ObjectStore:
    """The store of a location, once in each process: workers are forked, and connections must not be."""
    assert process_id == os.getpid()
    return location.open()


def _store(location: StoreLocation) -> ObjectStore:
    return _opened(location, os.getpid())


@dataclass(frozen=True)
class LogPartition(InputPartition):
    """What one task reads."""

    slices: tuple[SpanSlice, ...]

    def __init__(self, slices: tuple[SpanSlice, ...]) -> None:
        object.__setattr__(self, "slices", slices)


@dataclass(frozen=True)
class _Task:
    """How tasks read: pickled with the reader, so everything in it is plain."""

    location: StoreLocation
    reading: ReadSettings

    def read(self, partition: object) -> Iterator[pa.RecordBatch]:
        """The records of an input partition; of none, where Spark makes one up for a plan without tasks."""
        if not isinstance(partition, LogPartition):
            return iter(())
        store = _store(self.location)
        log = Log(store, self.reading.topics_dir, self.reading.topic)

        def load(number: int) -> Manifest:
            return log.manifest(number)

        return read_slices(store, load, self.reading, partition.slices)


class _PushFilters:
    """`DataSourceReader.pushFilters` when it is called; Spark's own when only its existence is checked.

    Spark refuses a source that can push filters down while its setting `spark.sql.python.filterPushdown.enabled` is
    off, which is its default. Without that setting this source reads as well, only more.
    """

    def __init__(self, reader: KeyfoldReader) -> None:
        self._reader = reader
        self.__func__ = getattr(DataSourceReader, "pushFilters", None)

    def __call__(self, filters: list[object]) -> Iterable[object]:
        self._reader.scope = scope_of(filters)
        return filters  # Spark applies them again: what is pushed down only says what need not be read


class KeyfoldReader(DataSourceReader):
    """A batch."""

    def __init__(self, options: SourceOptions, location: StoreLocation, schema: pa.Schema) -> None:
        self._options = options
        self._location = location
        self._schema = schema
        self.scope: FilterBounds = EVERYTHING

    @property
    def pushFilters(self) -> Any:  # noqa: N802 - Spark's name
        """See `_PushFilters`."""
        return _PushFilters(self)

    def partitions(self) -> list[InputPartition]:
        """The tasks. Spark asks once for each execution."""
        topic = _topic(self._options, _store(self._location))
        return [LogPartition(slices) for slices in plan_batch(topic, self._options, self.scope)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task."""
        reading = _reading(self._options, self._schema, self.scope)
        return _Task(self._location, reading).read(partition)


class _StreamReader(DataSourceStreamReader):
    """What streams of all versions of Spark do."""

    def __init__(self, options: SourceOptions, location: StoreLocation, schema: pa.Schema) -> None:
        self._options = options
        self._task = _Task(location, _reading(options, schema, EVERYTHING))
        self._stream: SourceStream | None = None
        self._last: StreamOffset | None = None

    def __getstate__(self) -> JsonObject:
        # Executors get a copy, and need neither manifests nor connections.
        return {**self.__dict__, "_stream": None, "_last": None}

    @property
    def stream(self) -> SourceStream:
        """The stream, begun when it is first asked: Spark makes readers that it only ships."""
        if self._stream is None:
            self._stream = SourceStream(_topic(self._options, _store(self._task.location)), self._options)
        return self._stream

    def initialOffset(self) -> JsonObject:  # noqa: N802 - Spark's name
        """Where a new stream begins."""
        self._last = self.stream.initial()
        return self._last.document()

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        """The tasks of a batch."""
        begin, self._last = self._read(start), self._read(end)
        return [LogPartition(slices) for slices in self.stream.plan(begin, self._last)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task."""
        return self._task.read(partition)

    def commit(self, end: dict[str, object]) -> None:
        """Nothing is to be done: a log keeps nothing of its readers."""

    def _read(self, document: Mapping[str, object]) -> StreamOffset:
        return StreamOffset.read(document, self._options.topic)


class PlainStreamReader(_StreamReader):
    """A stream of Spark 4.0 and 4.1."""

    def latestOffset(self) -> JsonObject:  # type: ignore[override]  # noqa: N802 - this Spark's
        """Return the end of the next batch. Spark does not say where the last batch ended, so the reader keeps it."""
        stream = self.stream
        self._last = stream.newest() if self._last is None else stream.latest(self._last, stream.limit)
        return self._last.document()


STREAM_READER: type[_StreamReader] = PlainStreamReader

if HAS_ADMISSION:

    class AdmittingStreamReader(_StreamReader, SupportsTriggerAvailableNow):
        """A stream, since Spark 4.2."""

        def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> JsonObject:  # noqa: N802 - Spark's name
            """The end of the next batch."""
            self._last = self._read(start)
            return self.stream.latest(self._last, _amount(limit, self.stream.limit)).document()

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
            """What the options say. Spark takes one kind of limit; the other is remembered here."""
            limit = self.stream.limit
            if limit.records is not None:
                return ReadMaxRows(limit.records)
            return ReadAllAvailable() if limit.size_bytes is None else ReadMaxBytes(limit.size_bytes)

        def reportLatestOffset(self) -> JsonObject | None:  # noqa: N802 - Spark's name
            """The end of the logs, for Spark's progress reports."""
            found = self.stream.report(self._last)
            return None if found is None else found.document()

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
            """Fix the current end: this run reads nothing beyond it."""
            self.stream.prepare_available_now()

    def _amount(limit: ReadLimit, own: Amount) -> Amount:
        if isinstance(limit, ReadMaxRows):
            return Amount(limit.max_rows, own.size_bytes)
        if isinstance(limit, ReadMaxBytes):
            return Amount(own.records, limit.max_bytes)
        return UNLIMITED

    STREAM_READER = AdmittingStreamReader


class KeyfoldDataSource(DataSource):
    """`format("keyfold")`."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> str:
        """The columns, as the options choose them. Raises `ConfigError` for what is wrong with the options."""
        return ddl(self._options().column_names)

    def reader(self, schema: StructType) -> KeyfoldReader:
        """A batch."""
        options = self._options().require_batch()
        return KeyfoldReader(options, self.location(options), schema_for(schema))

    def streamReader(self, schema: StructType) -> _StreamReader:  # noqa: N802 - Spark's name
        """A stream."""
        options = self._options().require_stream()
        return STREAM_READER(options, self.location(options), schema_for(schema))

    def location(self, options: SourceOptions) -> StoreLocation:
        """Where the log is, as tasks open it: endpoint and region as this process resolves them.

        Executors must not go to another bucket's host; keys that the options do not say they find by themselves.
        """
        return options.location().resolved()

    def _options(self) -> SourceOptions:
        return SourceOptions.read(dict(self.options.items()))


def _topic(options: SourceOptions, store: ObjectStore) -> SourceTopic:
    return SourceTopic(store, options.topics_dir, options.topic, options.partitions)


def _reading(options: SourceOptions, schema: pa.Schema, scope: FilterBounds) -> ReadSettings:
    return ReadSettings(options.topics_dir, options.topic, schema, scope.selection, options.fail_on_data_loss)
