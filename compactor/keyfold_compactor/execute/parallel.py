"""Several logs or units at a time in one process, and the time that they waited for the byte rate.

Small logs and units mostly wait for the bucket, and several of them run at a time. A large one keeps a processor busy
and needs memory: as many of them run at a time as the caller has processors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, TypeVar

from keyfold.runtime.throttle import BudgetPacer
from keyfold_compactor.decide.work import LogJob, MapAnswer, UnitAnswer, UnitJob

Answer = TypeVar("Answer", MapAnswer, UnitAnswer)
T = TypeVar("T")
R = TypeVar("R")

# A log with a smaller index, or a unit with less to read, waits for the bucket rather than for a processor.
SMALL_INDEX_BYTES: Final = 1024 * 1024
SMALL_UNIT_BYTES: Final = 4 * 1024 * 1024
MAPS_IN_PARALLEL: Final = 4  # each reads with threads of its own
UNITS_IN_PARALLEL: Final = 8


def some_in_parallel(
    work: Callable[[T], R],
    items: Sequence[T],
    is_small: Callable[[T], bool],
    thread_count: int,
    *,
    large_thread_count: int = 1,
) -> Iterator[R]:
    """Yield the results of the large items, and then of the small ones, `thread_count` of these at a time.

    A small item mostly waits for the bucket, so a task with thousands of them would be idle most of the time. An error
    of the work ends everything.
    """
    yield from _in_threads(work, [item for item in items if not is_small(item)], large_thread_count)
    yield from _in_threads(work, [item for item in items if is_small(item)], thread_count)


def _in_threads(work: Callable[[T], R], items: Sequence[T], thread_count: int) -> Iterator[R]:
    if len(items) < 2 or thread_count < 2:
        yield from map(work, items)
        return
    pool = ThreadPoolExecutor(min(thread_count, len(items)), "keyfold-task")
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(cancel_futures=True)


def is_small_log(job: LogJob) -> bool:
    """Return whether the map of a log, and its cleaning if that is in one stage, mostly waits for the bucket."""
    return job.index_bytes < SMALL_INDEX_BYTES and (job.single_stage is None or job.size_bytes < SMALL_UNIT_BYTES)


def is_small_unit(unit: UnitJob) -> bool:
    """Return whether a unit mostly waits for the bucket."""
    return unit.source_bytes < SMALL_UNIT_BYTES


class ThrottleWaits:
    """Distribute a task's throttle wait over its answers. In parallel work only the sum is known."""

    def __init__(self, pacer: BudgetPacer | None) -> None:
        self._pacer = pacer
        self._told_s = pacer.wait_s if pacer else 0.0

    def added_to(self, answer: Answer) -> Answer:
        """Return the answer with the time that its task has waited since the last answer."""
        wait_s = self._pacer.wait_s if self._pacer else 0.0
        told_s, self._told_s = self._told_s, wait_s
        return replace(answer, traffic=replace(answer.traffic, wait_s=wait_s - told_s))
