"""One log or one unit inside a task, and the executor that does everything in this process (`work.Executor`).

An error of one log becomes an answer here, so that it fails its own partition and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from keyfold.runtime.retry import RetryPolicy
from keyfold.runtime.throttle import BudgetPacer, ThrottleLost
from keyfold.store.api import ObjectStore
from keyfold.store.wrappers.counting import CountedStore
from keyfold_compactor.decide.single_stage import single_stage_units
from keyfold_compactor.decide.work import LogJob, MapAnswer, MaskKey, Traffic, UnitAnswer, UnitJob, reason
from keyfold_compactor.execute.executor import Done
from keyfold_compactor.execute.large_map_threads import map_large
from keyfold_compactor.execute.mapping import READ_THREADS, map_log
from keyfold_compactor.execute.parallel import (
    MAPS_IN_PARALLEL,
    UNITS_IN_PARALLEL,
    ThrottleWaits,
    is_small_log,
    is_small_unit,
    some_in_parallel,
)
from keyfold_compactor.execute.rewrite import rewrite_unit

T = TypeVar("T")
R = TypeVar("R")


def run_map(
    job: LogJob, store: ObjectStore, retry: RetryPolicy, *, threads: int = READ_THREADS
) -> tuple[MapAnswer, dict[MaskKey, bytes]]:
    """Map one log inside a task; return its answer, and the masks that its units will need."""
    counted = CountedStore(store)
    masks: dict[MaskKey, bytes] = {}
    stats = {}
    try:
        for at, segment_stats, mask in map_log(job, counted, retry, threads=threads):
            stats[at] = segment_stats
            if mask is not None:
                masks[job.number, at] = mask
    except ThrottleLost:
        raise
    except Exception as error:  # noqa: BLE001 - whatever is wrong with one log must not fail the others
        return MapAnswer(job.number, error=reason(error), traffic=_traffic(counted)), {}
    ordered = tuple(stats[at] for at in range(len(job.entries)))
    return MapAnswer(job.number, ordered, traffic=_traffic(counted)), masks


def run_unit(unit: UnitJob, masks: Mapping[MaskKey, bytes], store: ObjectStore, retry: RetryPolicy) -> UnitAnswer:
    """Do one unit inside a task."""
    counted = CountedStore(store)
    try:
        entry = rewrite_unit(unit, masks, counted, retry)
    except ThrottleLost:
        raise
    except Exception as error:  # noqa: BLE001 - whatever is wrong with one log must not fail the others
        return UnitAnswer(unit.log, unit.group, error=reason(error), traffic=_traffic(counted))
    return UnitAnswer(unit.log, unit.group, entry, traffic=_traffic(counted))


def run_log(
    job: LogJob, store: ObjectStore, retry: RetryPolicy, *, threads: int = READ_THREADS
) -> tuple[MapAnswer, dict[MaskKey, bytes]]:
    """Map one log inside a task. If the job allows that, do its units too, and return no masks."""
    answer, masks = run_map(job, store, retry, threads=threads)
    units = single_stage_units(job, answer)
    if units is None:
        return answer, masks
    made = tuple(run_unit(unit, masks, store, retry) for unit in units)
    return replace(answer, made=made), {}


def _traffic(counted: CountedStore) -> Traffic:
    return Traffic(counted.bytes_read, counted.bytes_written)


def _nobody(_count: int) -> None:
    """Report progress to nobody."""


class LocalExecutor:
    """Do everything in this process: `slots` large logs or units at a time, and more small ones.

    With one slot it does one after another, in order: the reference for tests. `is_single_stage`: clean logs in one
    stage if their jobs allow it. A log whose indexes exceed `map_bytes` is mapped in steps that need less memory.
    `pacer` is the store's, and tells how long work waited for the byte rate. `notice_large` is called once, when logs
    with more than `notice_bytes` stored bytes were mapped.
    """

    def __init__(
        self,
        store: ObjectStore,
        retry: RetryPolicy,
        *,
        slots: int = 1,
        is_single_stage: bool = False,
        map_bytes: int | None = None,
        pacer: BudgetPacer | None = None,
        notice_bytes: int | None = None,
        notice_large: Callable[[int], None] = _nobody,
    ) -> None:
        self.slots = slots
        self._store = store
        self._retry = retry
        self._run = run_log if is_single_stage else run_map
        self._map_bytes = map_bytes
        self._pacer = pacer
        self._notice_bytes = notice_bytes
        self._notice_large = notice_large
        self._mapped_bytes = 0
        self._masks: dict[MaskKey, bytes] = {}

    def map_logs(self, jobs: Iterable[LogJob], done: Done = _nobody) -> list[MapAnswer]:
        """See `Executor.map_logs`."""
        self._masks.clear()
        jobs = list(jobs)
        self._notice(jobs)
        waits = ThrottleWaits(self._pacer)
        answers: list[MapAnswer] = []
        for answer, masks in self._mapped(jobs):
            self._masks.update(masks)
            answers.append(waits.added_to(answer))
            done(1)
        return answers

    def rewrite(self, portions: Sequence[Sequence[UnitJob]], done: Done = _nobody) -> list[UnitAnswer]:
        """See `Executor.rewrite`."""
        units = [unit for portion in portions for unit in portion]
        waits = ThrottleWaits(self._pacer)
        answers: list[UnitAnswer] = []
        for answer in self._in_parallel(self._rewritten, units, is_small_unit, UNITS_IN_PARALLEL):
            answers.append(waits.added_to(answer))
            done(1)
        return answers

    def forget(self) -> None:
        """See `Executor.forget`."""
        self._masks.clear()

    def _mapped(self, jobs: Sequence[LogJob]) -> Iterator[tuple[MapAnswer, dict[MaskKey, bytes]]]:
        whole = [job for job in jobs if not self._is_large(job)]
        threads = UNITS_IN_PARALLEL if any(job.single_stage for job in whole) else MAPS_IN_PARALLEL
        yield from self._in_parallel(self._map, whole, is_small_log, threads)
        for job in jobs:
            if self._is_large(job):
                yield self._map_large(job)

    def _is_large(self, job: LogJob) -> bool:
        return self._map_bytes is not None and job.index_bytes > self._map_bytes

    def _map(self, job: LogJob) -> tuple[MapAnswer, dict[MaskKey, bytes]]:
        return self._run(job, self._store, self._retry, threads=1 if self.slots == 1 else READ_THREADS)

    def _map_large(self, job: LogJob) -> tuple[MapAnswer, dict[MaskKey, bytes]]:
        assert self._map_bytes is not None
        counted = CountedStore(self._store)
        try:
            stats, masks = map_large(job, counted, self._retry, threads=self.slots, map_bytes=self._map_bytes)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one log must not fail the others
            return MapAnswer(job.number, error=reason(error), traffic=_traffic(counted)), {}
        return MapAnswer(job.number, stats, traffic=_traffic(counted)), masks

    def _rewritten(self, unit: UnitJob) -> UnitAnswer:
        return run_unit(unit, self._masks, self._store, self._retry)

    def _in_parallel(
        self, work: Callable[[T], R], items: Sequence[T], is_small: Callable[[T], bool], threads: int
    ) -> Iterator[R]:
        threads = 1 if self.slots == 1 else max(threads, self.slots)
        return some_in_parallel(work, items, is_small, threads, large_thread_count=self.slots)

    def _notice(self, jobs: Sequence[LogJob]) -> None:
        before, self._mapped_bytes = self._mapped_bytes, self._mapped_bytes + sum(job.size_bytes for job in jobs)
        if self._notice_bytes is not None and before <= self._notice_bytes < self._mapped_bytes:
            self._notice_large(self._mapped_bytes)
