"""The executor on Spark: maps in one stage, units in the next.

    map        logs are distributed over tasks by the bytes of their indexes. A log whose indexes exceed `map_bytes` is
               mapped by many tasks (`large_map_tasks`), with the same result. A log that may be cleaned in one stage is
               cleaned by the task that maps it, and counts with all its bytes
    rewrite    units are distributed over tasks by the bytes that they move; each task gets the masks of its segments

A mask has one bit per record. So the masks of a batch are small, and go through the driver: with a shuffle the stages
of two gigabytes would take three times as long. Masks of logs with more records than `MASKS_MAX_BYTES` has bits stay
with the executors and are shuffled. Apart from that the driver gets only figures and the names of finished segments.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from pyspark import RDD, Accumulator, Broadcast, SparkContext, StorageLevel
from pyspark.sql import SparkSession

from keyfold_compactor.decide import plan
from keyfold_compactor.decide.work import LogJob, MapAnswer, MaskKey, Traffic, UnitAnswer, UnitJob
from keyfold_compactor.execute.executor import Done
from keyfold_compactor.spark.large_map_tasks import map_large
from keyfold_compactor.spark.tasks import Mapped, Mask, SegmentFound, TaskEnvironment, TaskUnits, map_task, unit_task

MAP_TASK_BYTES_MIN: Final = 32 * 1024 * 1024
# The driver's memory for the masks of one batch. Spark's own limit for results is 1 GiB.
MASKS_MAX_BYTES: Final = 64 * 1024 * 1024
WATCH_S: Final = 0.5


class SparkExecutor:
    """See `keyfold_compactor.execute.executor.Executor`."""

    def __init__(
        self,
        spark: SparkSession,
        environment: TaskEnvironment,
        *,
        map_bytes: int,
        masks_bytes: int = MASKS_MAX_BYTES,
    ) -> None:
        self._context: SparkContext = spark.sparkContext
        self._environment = environment
        self._map_bytes = map_bytes
        self._masks_bytes = masks_bytes
        self._masks: dict[MaskKey, bytes] = {}
        self._mapped: list[RDD[Any]] = []
        self._shared: list[Broadcast[Any]] = []
        self._counter: Accumulator[int] = self._context.accumulator(0)  # only one: pyspark never forgets an accumulator

    @property
    def slots(self) -> int:
        """Number of tasks that run at once."""
        return max(1, int(self._context.defaultParallelism))

    def map_logs(self, jobs: Sequence[LogJob], done: Done) -> list[MapAnswer]:
        """See `Executor.map_logs`."""
        self.forget()  # masks have a log's number in its batch as key: do not mix in those of a failed batch
        in_driver = _kept_in_driver(jobs, self._masks_bytes)
        small = [j for j in jobs if j.index_bytes <= self._map_bytes]
        large = [j for j in jobs if j.index_bytes > self._map_bytes]
        figures: list[MapAnswer | SegmentFound] = []
        for through_driver in (True, False):
            chosen = [j for j in small if (j.number in in_driver) == through_driver]
            if chosen:
                self._context.setJobDescription(f"map {len(chosen)} logs")
                with self._watched(done, len(chosen)):
                    figures += self._collected(self._map_small(chosen), through_driver=through_driver)
        for job in large:
            self._context.setJobDescription(f"map {job.place} in {self.slots} tasks or more")
            shared = self._context.broadcast(job)
            self._shared.append(shared)
            found, below = map_large(
                self._context, self._environment, self._counter, shared, self._map_bytes, self.slots
            )
            try:
                with self._watched(done, 0):  # its tasks count pieces of one step
                    figures += self._collected(found, through_driver=job.number in in_driver)
            finally:
                below.unpersist()
            done(1)
        return _answers(jobs, figures)

    def rewrite(self, portions: Sequence[Sequence[UnitJob]], done: Done) -> list[UnitAnswer]:
        """See `Executor.rewrite`."""
        if not portions:
            return []
        count = sum(map(len, portions))
        self._context.setJobDescription(f"rewrite {count} segments")
        with self._watched(done, count):
            task = partial(unit_task, self._environment, self._counter)
            answers: list[UnitAnswer] = self._parts(portions).mapPartitions(task).collect()
            return answers

    def forget(self) -> None:
        """See `Executor.forget`."""
        mapped, self._mapped = self._mapped, []
        shared, self._shared = self._shared, []
        self._masks = {}
        for rdd in mapped:
            rdd.unpersist()
        for value in shared:
            value.destroy()  # each holds a file in the driver, and a loop runs for months

    def _collected(self, rdd: RDD[Any], *, through_driver: bool) -> list[MapAnswer | SegmentFound]:
        """Collect the figures of a map. Its masks are kept here or in the executors."""
        if not through_driver:
            self._mapped.append(rdd.persist(StorageLevel.MEMORY_AND_DISK))
            figures: list[MapAnswer | SegmentFound] = rdd.filter(_is_figure).collect()
            return figures
        found: list[Mapped] = rdd.collect()
        self._masks.update((item.key, item.bits) for item in found if isinstance(item, Mask))
        return [item for item in found if not isinstance(item, Mask)]

    @contextlib.contextmanager
    def _watched(self, done: Done, total: int) -> Iterator[None]:
        """Report to `done` what tasks have counted while they run, and the rest after success.

        This is progress, not an exact figure: a task that runs twice counts twice, and Spark may deliver a count late.
        Counts beyond `total` are reported as 0, as a sign of life.
        """
        told = 0
        before = self._counter.value
        over = threading.Event()

        def watch() -> None:
            nonlocal told
            last = before
            while not over.wait(WATCH_S):
                if self._counter.value == last:
                    continue
                last = self._counter.value
                seen = min(last - before, total)
                done(seen - told)
                told = seen

        watcher = threading.Thread(target=watch, name="keyfold-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
        done(total - told)

    def _map_small(self, jobs: list[LogJob]) -> RDD[Any]:
        whole = [job for job in jobs if job.single_stage is not None]
        only_map = [job for job in jobs if job.single_stage is None]
        portions = [
            *self._portions(
                whole, [j.size_bytes + j.index_bytes + plan.LOG_COST_BYTES for j in whole], plan.TASK_BYTES_MIN
            ),
            *self._portions(only_map, [j.index_bytes + plan.LOG_COST_BYTES for j in only_map], MAP_TASK_BYTES_MIN),
        ]
        return self._context.parallelize(portions, len(portions)).mapPartitions(
            partial(map_task, self._environment, self._counter)
        )

    def _portions(self, jobs: list[LogJob], costs: list[int], least_bytes: int) -> list[list[LogJob]]:
        if not jobs:
            return []
        tasks = plan.tasks_for(costs, self.slots, least_bytes=least_bytes)
        return [[jobs[at] for at in portion] for portion in plan.distribute(costs, tasks)]

    def _parts(self, portions: Sequence[Sequence[UnitJob]]) -> RDD[Any]:
        """Return units and their masks, by the number of their portion."""
        portion_of = {
            key: number for number, portion in enumerate(portions) for unit in portion for key in unit.mask_keys()
        }
        masks: list[dict[MaskKey, bytes]] = [{} for _ in portions]
        for key in portion_of.keys() & self._masks.keys():
            masks[portion_of[key]][key] = self._masks[key]
        numbered = [(n, TaskUnits(list(portion), masks[n])) for n, portion in enumerate(portions)]
        units = self._context.parallelize(numbered, len(portions))
        shuffled = portion_of.keys() - self._masks.keys()
        if not shuffled:
            return units
        wanted = self._context.broadcast({key: portion_of[key] for key in shuffled})
        self._shared.append(wanted)
        parts = [units, *(rdd.mapPartitions(partial(_masks_for, wanted)) for rdd in self._mapped)]
        return self._context.union(parts).partitionBy(len(portions), _same)


def _kept_in_driver(jobs: Sequence[LogJob], masks_bytes: int) -> frozenset[int]:
    """Return the numbers of the logs whose masks go through the driver: the smallest ones, as many as fit."""
    numbers: set[int] = set()
    for count, number in sorted((sum(e.record_count for e in job.entries), job.number) for job in jobs):
        masks_bytes -= count // 8 + 1
        if masks_bytes < 0:
            break
        numbers.add(number)
    return frozenset(numbers)


def _masks_for(wanted: Broadcast[dict[MaskKey, int]], mapped: Iterator[Mapped]) -> Iterator[tuple[int, Mask]]:
    portion_of = wanted.value
    for item in mapped:
        if isinstance(item, Mask) and item.key in portion_of:
            yield portion_of[item.key], item


def _is_figure(item: Mapped) -> bool:
    return not isinstance(item, Mask)


def _same(key: int) -> int:
    return key


def _answers(jobs: Sequence[LogJob], figures: Sequence[MapAnswer | SegmentFound]) -> list[MapAnswer]:
    """Return the answers, with those of large logs combined from their segments."""
    answers = [f for f in figures if isinstance(f, MapAnswer)]
    parts: dict[int, list[SegmentFound]] = {}
    for found in figures:
        if isinstance(found, SegmentFound):
            parts.setdefault(found.log, []).append(found)
    by_number = {job.number: job for job in jobs}
    for number, found_parts in parts.items():
        traffic = sum((p.traffic for p in found_parts), Traffic())
        errors = [p.error for p in found_parts if p.error]
        stats = {p.position: p.stats for p in found_parts if p.stats is not None}
        if errors:
            answers.append(MapAnswer(number, error=errors[0], traffic=traffic))
            continue
        ordered = tuple(stats[at] for at in range(len(by_number[number].entries)))
        answers.append(MapAnswer(number, ordered, traffic=traffic))
    return answers
