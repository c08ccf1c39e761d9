"""An export: pin every partition, look at the data where that is needed, write, publish.

Partitions are pinned one after another before anything is written, and read several at a time. Where one's objects
are collected meanwhile it is begun again from a new version; where types were taken from the data, all of them are,
because new data may have another type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from threading import Event
from typing import Final, Self, TypeVar

from keyfold.export.files import PartitionFiles
from keyfold.export.request import ExportRequest
from keyfold.export.rows import FormatMismatches, RowConverter
from keyfold.export.source import ExportedVersionGone, ExportRange, batches, lost, pin
from keyfold.export.summary import ExportedPartition, about, footer, summary_text
from keyfold.export.target import ExportTarget, StagedFile, claim_text, part_name
from keyfold.formats.avro_schema import Type
from keyfold.formats.column_type import column_for, survey_for, surveyed_type
from keyfold.formats.format import RecordPart
from keyfold.formats.handlers import TypeSurvey
from keyfold.formats.schema_archive import SchemaArchive
from keyfold.read.log import Log
from keyfold.runtime.clock import Clock
from keyfold.runtime.json_types import JsonObject

TRIES: Final = 5

T = TypeVar("T")
R = TypeVar("R")

Progress = Callable[[int], None]
"""Takes the number of records that were read."""


class _Stopped(Exception):
    """Another partition has failed."""


def new_run(random: Random) -> str:
    """A name that no other export has."""
    return f"{random.getrandbits(32):08x}"


def export(
    log: Log,
    target: ExportTarget,
    request: ExportRequest,
    *,
    run: str,
    clock: Clock,
    progress: Progress = lambda _: None,
) -> list[ExportedPartition]:
    """Export a topic, publish it in `target`, and return what was exported, by partition.

    Raise `ConfigError` if the target cannot be used or a reader's schema is needed, `RecordFormatMismatch` if a record
    does not fit, `SnapshotLost`, and what reading a log raises. Then nothing is published.
    """
    whole = about(log.topic, run, request)
    target.claim(claim_text({**whole, "began_at": clock.now_ms()}), overwrite=request.overwrite)
    done: list[ExportedPartition] = []
    is_publishing = False
    try:
        with _Work(log, target, request, run, progress) as work:
            rows, done = work.all()
        is_publishing = True
        text = summary_text(whole, clock.now_ms(), rows.schema, done)
        target.publish([file.staged for each in done for file in each.files], text)
    except BaseException:
        if not is_publishing:
            target.abandon()
        raise
    return done


class _Work:
    """The partitions of one export, read by several threads."""

    def __init__(self, log: Log, target: ExportTarget, request: ExportRequest, run: str, progress: Progress) -> None:
        self._log = log
        self._target = target
        self._request = request
        self._run = run
        self._progress = progress
        self._schemas = SchemaArchive(log.store, log.topics_dir)
        self._pool = ThreadPoolExecutor(request.parallel, thread_name_prefix="export")
        self._stop = Event()
        self._files: list[PartitionFiles] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()
        if kind is not None:
            self._discard()

    def _discard(self) -> None:
        for files in self._files:
            files.discard()
        self._files.clear()

    def all(self) -> tuple[RowConverter, list[ExportedPartition]]:
        """Write all partitions. Raises the first error of any of them, when all have stopped."""
        for _ in range(TRIES):
            pins = self._each(lambda number: pin(self._log, number, self._request), self._request.partitions)
            try:
                readers, is_surveyed = self._readers(pins)
                rows = self._rows(readers)
                return rows, self._each(partial(self._partition, rows, alone=not is_surveyed), pins)
            except ExportedVersionGone:
                self._discard()
        raise lost(pins[0], TRIES)

    def _each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        def guarded(item: T) -> R:
            if self._stop.is_set():
                raise _Stopped
            try:
                return work(item)
            except BaseException:
                self._stop.set()
                raise

        futures = [self._pool.submit(guarded, item) for item in items]
        errors = [error for future in futures if (error := future.exception()) is not None]
        self._stop.clear()
        for error in errors:
            if not isinstance(error, _Stopped):
                raise error
        return [future.result() for future in futures]

    def _readers(self, pins: Sequence[ExportRange]) -> tuple[dict[RecordPart, Type | None], bool]:
        """The types of keys and values, and whether they were taken from the data."""
        request = self._request
        readers = {RecordPart.KEY: request.key_reader, RecordPart.VALUE: request.value_reader}
        kinds = {RecordPart.KEY: request.key_format, RecordPart.VALUE: request.value_format}
        wanted = [part for part in RecordPart if survey_for(part, kinds[part], readers[part]) is not None]
        if not wanted:
            return readers, False

        def look(pinned: ExportRange) -> dict[RecordPart, TypeSurvey]:
            surveys = {part: survey_for(part, kinds[part], None) for part in wanted}
            found = {part: survey for part, survey in surveys.items() if survey is not None}
            for batch in batches(self._log, pinned, request):
                self._check_stop()
                for part, survey in found.items():
                    survey.add(batch.column(part.value), batch.column("headers"))
            return found

        looks = self._each(look, pins)
        for part in wanted:
            readers[part] = surveyed_type([found[part] for found in looks], self._schemas, part)
        return readers, True

    def _rows(self, readers: dict[RecordPart, Type | None]) -> RowConverter:
        request = self._request
        key = column_for(RecordPart.KEY, request.key_format, self._schemas, readers[RecordPart.KEY])
        value = column_for(RecordPart.VALUE, request.value_format, self._schemas, readers[RecordPart.VALUE])
        return RowConverter(key, value, request.on_error)

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise _Stopped

    def _partition(self, rows: RowConverter, pinned: ExportRange, *, alone: bool) -> ExportedPartition:
        """Write one partition; where it is begun again alone, from the version of then."""
        for _ in range(TRIES):
            files, mismatches = self._new_files(rows, pinned), FormatMismatches()
            try:
                for batch in batches(self._log, pinned, self._request):
                    self._check_stop()
                    for table in rows.tables(pinned.place, batch, mismatches):
                        files.write(table)
                    self._progress(len(batch))
                return ExportedPartition(pinned, tuple(files.finish()), mismatches)
            except ExportedVersionGone:
                if not alone:
                    raise
                files.discard()
                self._files.remove(files)
                pinned = pin(self._log, pinned.place.partition, self._request)
        raise lost(pinned, TRIES)

    def _new_files(self, rows: RowConverter, pinned: ExportRange) -> PartitionFiles:
        partition = pinned.place.partition

        def stage(first_offset: int) -> StagedFile:
            return self._target.stage(part_name(partition, first_offset, self._run))

        metadata: JsonObject = footer(about(self._log.topic, self._run, self._request), pinned)
        files = PartitionFiles(
            rows.schema,
            stage,
            rows_per_file=self._request.rows_per_file,
            row_group_bytes=self._request.row_group_bytes,
            metadata=metadata,
        )
        self._files.append(files)
        return files
