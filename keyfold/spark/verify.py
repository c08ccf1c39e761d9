"""Verify large logs with Spark: the same checks as `keyfold.verify.partition`, spread over tasks by bytes. One job.

    driver     lists folders, reads manifests (`verify_round`), deals segments to tasks
    tasks      check their segments; give one row for each result, and one row of 17 bytes for each record (hash of its
               key, offset, flags), none of whose values leaves the task
    shuffle    rows by hash, so that all records of a key meet
    tasks      find the suspects among them; results pass through
    driver     collects results and suspects, which are few and bounded, and tells

No step collects keys or records to the driver. A partition whose log moved on meanwhile is verified again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ConfigDict, TypeAdapter
from pyspark.sql import SparkSession

from keyfold.errors import KeyfoldError, ObjectNotFound, is_of_one_partition
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.runtime.arrow_types import ArrowArray, arrow_schema, values_of
from keyfold.runtime.clock import Clock
from keyfold.spark.tasks import location_of, opened
from keyfold.store.api import ObjectStore, StoreLocation
from keyfold.verify.findings import VerifyReport, unverified
from keyfold.verify.key_hashes import ROW, HashedRows
from keyfold.verify.key_rules import Promises, Suspected, add_replaced, suspects_of
from keyfold.verify.round import Round, SegmentJob, SegmentResult, VerifiedVersionGone, check_segment

TASK_BYTES: Final = 128 * 1024 * 1024
ROWS_A_TASK: Final = 4_000_000
"""Rows whose suspects one task looks for at a time; more go to its disk."""

_ROUNDS_MAX: Final = 5
_SCHEMA: Final = "log int, hash long, offset long, flags short, result binary"
_ARROW: Final = arrow_schema(
    [
        pa.field("log", pa.int32()),
        pa.field("hash", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("flags", pa.int16()),
        pa.field("result", pa.binary()),
    ]
)
_BATCH_ROWS: Final = 200_000

_Answer = tuple[SegmentResult | None, Suspected | None]
"""What a task found: about a segment, or about keys; neither where the log has moved on."""

_ANSWER: Final[TypeAdapter[_Answer]] = TypeAdapter(
    _Answer, config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
)


@dataclass(frozen=True, slots=True)
class _Replaced:
    """A replaced index to read."""

    place: Place
    log_start: int
    name: str


_Job = tuple[int, SegmentJob | _Replaced]
"""Which log it is of, and what to do."""


@dataclass(slots=True)
class _Gathered:
    """What the tasks gave for one log."""

    results: list[SegmentResult] = field(default_factory=list)
    suspected: Suspected = field(default_factory=Suspected)
    has_moved: bool = False


def verify_on_spark(
    store: ObjectStore, places: Sequence[Place], *, clock: Clock, random: Random, spark: SparkSession | None = None
) -> Iterator[VerifyReport]:
    """Reports in the order of `places`, all after one job of Spark (and another for logs that moved on meanwhile).

    `spark` is the session to use; None takes the one that runs, or starts one with Spark's own configuration. Raises
    `ConfigError` where tasks cannot open the store, and what `verify_partition` raises; but of several partitions one
    that cannot be judged gets a report that says so.
    """
    location = location_of(store)
    session = spark or SparkSession.builder.appName("keyfold log verify").getOrCreate()
    reports: dict[Place, VerifyReport] = {}
    for _ in range(_ROUNDS_MAX):
        logs = [PartitionLog(store, p, clock=clock, random=random) for p in places if p not in reports]
        if not logs:
            break
        reports |= _round(session, location, logs, is_alone=len(places) == 1)
    for place in places:
        if place not in reports:
            raise ObjectNotFound(place.folder, f"the log was replaced {_ROUNDS_MAX} times while it was verified",
                                 hint="raise file.delete.delay.ms, or stop the compactor while you verify")  # fmt: skip
        yield reports[place]


def _round(
    spark: SparkSession, location: StoreLocation, logs: Iterable[PartitionLog], *, is_alone: bool
) -> dict[Place, VerifyReport]:
    """Reports of those logs that did not move on meanwhile."""
    begun = [_begin(log, is_alone=is_alone) for log in logs]
    reports = {report.place: report for report in begun if isinstance(report, VerifyReport)}
    rounds = [one for one in begun if isinstance(one, Round)]
    for one, gathered in zip(rounds, _run(spark, location, rounds), strict=True):
        with suppress(VerifiedVersionGone, ObjectNotFound):
            if not gathered.has_moved:
                reports[one.place] = one.report(gathered.results, gathered.suspected)
    return reports


def _begin(log: PartitionLog, *, is_alone: bool) -> Round | VerifyReport:
    while True:
        try:
            return Round.begin(log)
        except VerifiedVersionGone:
            continue
        except KeyfoldError as error:
            if is_alone or not is_of_one_partition(error):
                raise
            return unverified(log.place, error)


def _run(spark: SparkSession, location: StoreLocation, rounds: Sequence[Round]) -> list[_Gathered]:
    """One job over all logs."""
    tasks = _deal(rounds)
    promises = [begun.promises for begun in rounds]
    gathered = [_Gathered() for _ in rounds]
    if not tasks:
        return gathered
    expected = sum(begun.expected_rows for begun in rounds)
    slots = spark.sparkContext.defaultParallelism if _has_context(spark) else len(tasks)
    groups = max(1, min(slots, len(tasks)), -(-expected // ROWS_A_TASK))
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    rows = numbers.mapInArrow(_checker(location, tasks), _SCHEMA)
    found = rows.repartition(groups, "log", "hash").mapInArrow(_suspector(promises, expected // groups), _SCHEMA)
    for row in found.select("log", "result").collect():
        _take(gathered[row["log"]], row["result"])
    for one in gathered:
        one.results.sort(key=lambda result: result.entry.base_offset)
    return gathered


def _has_context(spark: SparkSession) -> bool:
    return hasattr(spark, "_jsparkSession")


def _take(gathered: _Gathered, answer: bytes) -> None:
    result, suspected = _ANSWER.validate_json(answer)
    if suspected is not None:
        gathered.suspected.join(suspected)
    elif result is not None:
        gathered.results.append(result)
    else:
        gathered.has_moved = True


def _deal(rounds: Sequence[Round]) -> list[list[_Job]]:
    """Jobs to tasks, neighbours together, about `TASK_BYTES` a task."""
    tasks: list[list[_Job]] = []
    held = TASK_BYTES
    for number, begun in enumerate(rounds):
        manifest = begun.manifest
        jobs: list[SegmentJob | _Replaced] = [*begun.jobs]
        jobs += [_Replaced(begun.place, manifest.log_start_offset, name) for name in begun.replaced]
        for job in jobs:
            if held >= TASK_BYTES:
                tasks.append([])
                held = 0
            tasks[-1].append((number, job))
            held += job.size_bytes if isinstance(job, SegmentJob) else TASK_BYTES // 32
    return tasks


Batches = Iterable[pa.RecordBatch]


def _checker(location: StoreLocation, tasks: Sequence[Sequence[_Job]]) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """The first stage: a task's number becomes the rows and results of its jobs."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in values_of(batch.column(0)):
                with opened(location) as store:
                    for log, job in tasks[number]:
                        yield from _check(store, log, job)

    return run


def _check(store: ObjectStore, log: int, job: SegmentJob | _Replaced) -> Iterator[pa.RecordBatch]:
    with HashedRows(0) as rows:
        try:
            if isinstance(job, _Replaced):
                add_replaced(store, job.place, job.log_start, job.name, rows)
            else:
                result = check_segment(store, job, lambda _: None, rows.add)
                # A report does not ask for fields that this version does not know, and they may be of any type.
                yield _answer_batch(log, (replace(result, entry=replace(result.entry, unknown={})), None))
        except ObjectNotFound:
            yield _answer_batch(log, (None, None))
        for held in rows.drain():
            for start in range(0, len(held), _BATCH_ROWS):
                yield _rows_batch(log, held[start : start + _BATCH_ROWS])


def _answer_batch(log: int, answer: _Answer) -> pa.RecordBatch:
    # Its hash spreads answers over the tasks of the next stage. They are JSON: reading them runs no code in the driver.
    text = _ANSWER.dump_json(answer)
    row: list[list[int | bytes]] = [[log], [hash(text[:200]) >> 1], [0], [0], [text]]
    return pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(row, _ARROW, strict=True)], schema=_ARROW)


def _rows_batch(log: int, rows: npt.NDArray[np.void]) -> pa.RecordBatch:
    count = len(rows)
    columns: list[ArrowArray] = [
        pa.array(np.full(count, log, np.int32)),
        pa.array(np.ascontiguousarray(rows["hash"]).view(np.int64)),
        pa.array(rows["offset"].astype(np.int64)),
        pa.array(rows["flags"].astype(np.int16)),
        pa.nulls(count, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW)


def _suspector(promises: Sequence[Promises], expected: int) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """The second stage: rows become suspects, results pass through."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        by_log: dict[int, HashedRows] = {}
        try:
            for batch in batches:
                is_row = batch.column("result").is_null()
                yield batch.filter(pc.invert(is_row))
                _collect(by_log, batch.filter(is_row), expected)
            for log, rows in by_log.items():
                yield _answer_batch(log, (None, suspects_of(rows, promises[log])))
        finally:
            for rows in by_log.values():
                rows.__exit__()

    return run


def _collect(by_log: dict[int, HashedRows], batch: pa.RecordBatch, expected: int) -> None:
    logs = batch.column("log").to_numpy()
    for log in np.unique(logs).tolist():
        here = logs == log
        rows = np.empty(int(here.sum()), ROW)
        rows["hash"] = batch.column("hash").to_numpy()[here].astype(np.int64).view(np.uint64)
        rows["offset"] = batch.column("offset").to_numpy()[here]
        rows["flags"] = batch.column("flags").to_numpy()[here]
        by_log.setdefault(log, HashedRows(expected * 2)).add_rows(rows)
