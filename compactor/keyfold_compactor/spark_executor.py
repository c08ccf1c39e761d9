"""The executor on Spark: maps in one stage, units in the next, masks shuffled in between and nothing else.

    map        logs are dealt to tasks by the bytes of their indexes. A log whose indexes exceed `map_bytes` is mapped
               by many tasks (`keyfold_compactor.spark_map`); the result is the same
    rewrite    units are dealt to tasks by the bytes that they move; each task gets the masks of its segments from the
               cached map, by a shuffle of bits

Only figures and names of finished segments come to the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from pyspark import RDD, Broadcast, SparkContext, StorageLevel
from pyspark.sql import SparkSession

from keyfold_compactor import plan
from keyfold_compactor.spark_map import map_large
from keyfold_compactor.spark_tasks import Mapped, Mask, SegmentFound, TaskEnvironment, map_task, unit_task
from keyfold_compactor.work import LogJob, MapAnswer, Traffic, UnitAnswer, UnitJob

MAP_TASKS_PER_SLOT: Final = 4
# A log costs this much whatever its size: requests, set-up of the map.
LOG_COST_BYTES: Final = 256 * 1024


class SparkExecutor:
    """See `keyfold_compactor.work.Executor`."""

    def __init__(self, spark: SparkSession, environment: TaskEnvironment, *, map_bytes: int) -> None:
        self._context: SparkContext = spark.sparkContext
        self._environment = environment
        self._map_bytes = map_bytes
        self._mapped: list[RDD[Any]] = []
        self._below: list[RDD[Any]] = []
        self._shared: list[Broadcast[Any]] = []

    @property
    def slots(self) -> int:
        """Tasks that run at once."""
        return max(1, int(self._context.defaultParallelism))

    def map_logs(self, jobs: Sequence[LogJob]) -> list[MapAnswer]:
        """See `Executor.map_logs`."""
        self.forget()  # masks are known by a log's number in its batch: those of a batch that failed must not be seen
        small = [j for j in jobs if j.index_bytes <= self._map_bytes]
        large = [j for j in jobs if j.index_bytes > self._map_bytes]
        if small:
            self._context.setJobDescription(f"map {len(small)} logs")
            self._keep(self._map_small(small))
        for job in large:
            self._context.setJobDescription(f"map {job.place} in {self.slots} tasks or more")
            shared = self._context.broadcast(job)
            self._shared.append(shared)
            found, below = map_large(self._context, self._environment, shared, self._map_bytes, self.slots)
            self._below.append(below)
            self._keep(found)
        figures = [figure for rdd in self._mapped for figure in rdd.filter(_is_figure).collect()]
        for rdd in self._below:
            rdd.unpersist()
        self._below.clear()
        return _answers(jobs, figures)

    def rewrite(self, hands: Sequence[Sequence[UnitJob]]) -> Iterator[UnitAnswer]:
        """See `Executor.rewrite`."""
        if hands:
            self._context.setJobDescription(f"rewrite {sum(map(len, hands))} segments")
            yield from self._parts(hands).mapPartitions(partial(unit_task, self._environment)).collect()

    def forget(self) -> None:
        """See `Executor.forget`."""
        mapped, self._mapped = self._mapped + self._below, []
        shared, self._shared = self._shared, []
        self._below = []
        for rdd in mapped:
            rdd.unpersist()
        for value in shared:
            value.destroy()  # each holds a file in the driver, and a loop runs for months

    def _keep(self, rdd: RDD[Any]) -> None:
        self._mapped.append(rdd.persist(StorageLevel.MEMORY_AND_DISK))

    def _map_small(self, jobs: list[LogJob]) -> RDD[Any]:
        costs = [job.index_bytes + LOG_COST_BYTES for job in jobs]
        hands = [[jobs[at] for at in hand] for hand in plan.deal(costs, self.slots * MAP_TASKS_PER_SLOT)]
        return self._context.parallelize(hands, len(hands)).mapPartitions(partial(map_task, self._environment))

    def _parts(self, hands: Sequence[Sequence[UnitJob]]) -> RDD[Any]:
        """Units and their masks, by the number of the hand that they belong to."""
        units = self._context.parallelize([(n, list(hand)) for n, hand in enumerate(hands)], len(hands))
        hand_of = {key: number for number, hand in enumerate(hands) for unit in hand for key in unit.mask_keys()}
        parts: list[RDD[Any]] = [units]
        if hand_of:
            wanted = self._context.broadcast(hand_of)
            self._shared.append(wanted)
            parts += [rdd.mapPartitions(partial(_masks_for, wanted)) for rdd in self._mapped]
        return self._context.union(parts).partitionBy(len(hands), _same)


def _masks_for(wanted: Any, mapped: Iterator[Mapped]) -> Iterator[tuple[int, Mask]]:
    hand_of = wanted.value
    for item in mapped:
        if isinstance(item, Mask) and item.key in hand_of:
            yield hand_of[item.key], item


def _is_figure(item: Mapped) -> bool:
    return not isinstance(item, Mask)


def _same(key: int) -> int:
    return key


def _answers(jobs: Sequence[LogJob], figures: Sequence[MapAnswer | SegmentFound]) -> list[MapAnswer]:
    """Answers as they came, and those of large logs put together from their segments."""
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
