"""The code that runs inside Spark's Python workers, and the values between stages. It does not import Spark.

A worker process runs one task at a time and is reused. So the store (two boto3 clients) is opened once per process. The
throttle's connection belongs to one task attempt, and is installed and removed around it.

Spark's daemon collects garbage after every task of a reused worker, which costs 20 ms of CPU with all our modules
loaded. So the first task of a worker freezes the objects that are loaded by then, which leaves 1 ms.
It sets the worker's memory allocators too.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from random import SystemRandom
from typing import Final, NamedTuple, Protocol

from keyfold.runtime.clock import SystemClock
from keyfold.runtime.process_memory import tune_process
from keyfold.runtime.retry import Backoff, RetryPolicy
from keyfold.runtime.throttle import BudgetPacer, ThrottleAddress, ThrottleLost
from keyfold.store.api import ObjectStore
from keyfold.store.pacing import Pacer
from keyfold_compactor.decide.plan import SegmentStats
from keyfold_compactor.decide.work import LogJob, MapAnswer, MaskKey, Traffic, UnitAnswer, UnitJob
from keyfold_compactor.execute.local import run_log, run_unit
from keyfold_compactor.execute.parallel import (
    MAPS_IN_PARALLEL,
    UNITS_IN_PARALLEL,
    ThrottleWaits,
    is_small_log,
    is_small_unit,
    some_in_parallel,
)


class StoreSource(Protocol):
    """A description of the bucket from which a task opens its own store (a `StoreLocation`)."""

    def open(self, pacer: Pacer | None = None) -> ObjectStore:
        """Open a store whose bytes the pacer paces."""


class Mask(NamedTuple):
    """A segment's mask, between the map and the unit that rewrites the segment."""

    key: MaskKey
    bits: bytes


class TaskUnits(NamedTuple):
    """The units of one task, and those of their masks that went through the driver."""

    units: list[UnitJob]
    masks: dict[MaskKey, bytes]


class SegmentFound(NamedTuple):
    """One segment's part of a map by many tasks; `stats` is None if it failed."""

    log: int
    position: int
    stats: SegmentStats | None
    error: str
    traffic: Traffic


Mapped = Mask | MapAnswer | SegmentFound


class _SwitchedPacer:
    """The pacer of a store that outlives tasks: it delegates to the pacer of the current task."""

    def __init__(self) -> None:
        self.current: Pacer | None = None

    @property
    def piece_bytes(self) -> int:
        return self._now().piece_bytes

    def acquire(self, n_bytes: int) -> None:
        self._now().acquire(n_bytes)

    def owe(self, n_bytes: int) -> None:
        if self.current is not None:  # the answer to a task that is over
            self.current.owe(n_bytes)

    def _now(self) -> Pacer:
        if self.current is None:
            raise ThrottleLost("no task is running in this worker, so no bytes may be moved")
        return self.current


# Spark sets it in workers that it keeps.
_REUSED: Final = "SPARK_REUSE_WORKER"

_STORES: dict[tuple[StoreSource, bool], tuple[ObjectStore, _SwitchedPacer]] = {}


@dataclass(frozen=True, slots=True)
class TaskEnvironment:
    """What every task needs: the bucket, the throttle, and how long to retry."""

    source: StoreSource
    throttle: ThrottleAddress | None
    retry_timeout_s: float

    def retry_policy(self) -> RetryPolicy:
        """Return a retry policy with real time and with randomness of this attempt alone, so that names are unique."""
        return RetryPolicy(SystemClock(), SystemRandom(), Backoff(), self.retry_timeout_s)

    @contextlib.contextmanager
    def open(self) -> Iterator[tuple[ObjectStore, BudgetPacer | None]]:
        """Open the store for one task; yield it with its pacer, which measures how long the task waited."""
        cached = _STORES.get((self.source, self.throttle is not None))
        if cached is None:
            switch = _SwitchedPacer()
            cached = (self.source.open(switch if self.throttle else None), switch)
            _STORES[self.source, self.throttle is not None] = cached
            if _REUSED in os.environ:
                gc.freeze()
                tune_process()
        store, switch = cached
        if self.throttle is None:
            yield store, None
            return
        client = self.throttle.connect()
        pacer = BudgetPacer(client, SystemClock(), self.throttle.rate)
        switch.current = pacer
        try:
            yield store, pacer
            pacer.give_back()
        finally:
            switch.current = None
            client.close()


class Counter(Protocol):
    """Counts progress in tasks: a Spark accumulator."""

    def add(self, term: int) -> None:
        """Add `count` finished items."""


def map_task(environment: TaskEnvironment, done: Counter, portions: Iterable[list[LogJob]]) -> Iterator[Mapped]:
    """Map whole logs, or clean them in one stage if allowed: large ones in sequence, small ones in parallel."""
    jobs = [job for portion in portions for job in portion]
    thread_count = UNITS_IN_PARALLEL if any(job.single_stage for job in jobs) else MAPS_IN_PARALLEL
    with environment.open() as (store, pacer):
        waits = ThrottleWaits(pacer)
        work = partial(_mapped, store, environment)
        for answer, masks in some_in_parallel(work, jobs, is_small_log, thread_count):
            done.add(1)
            yield waits.added_to(answer)
            for key, bits in masks.items():
                yield Mask(key, bits)


def unit_task(
    environment: TaskEnvironment, done: Counter, parts: Iterable[tuple[int, Mask | TaskUnits]]
) -> Iterator[UnitAnswer]:
    """Do the units of one portion, large ones in sequence. Their masks arrive with them, in any order."""
    masks: dict[MaskKey, bytes] = {}
    units: list[UnitJob] = []
    for _, part in parts:
        if isinstance(part, Mask):
            masks[part.key] = part.bits
        else:
            units.extend(part.units)
            masks.update(part.masks)
    if not units:
        return
    with environment.open() as (store, pacer):
        waits = ThrottleWaits(pacer)
        work = partial(_done_unit, masks, store, environment)
        for answer in some_in_parallel(work, units, is_small_unit, UNITS_IN_PARALLEL):
            done.add(1)
            yield waits.added_to(answer)


def _mapped(store: ObjectStore, environment: TaskEnvironment, job: LogJob) -> tuple[MapAnswer, dict[MaskKey, bytes]]:
    return run_log(job, store, environment.retry_policy())


def _done_unit(
    masks: dict[MaskKey, bytes], store: ObjectStore, environment: TaskEnvironment, unit: UnitJob
) -> UnitAnswer:
    return run_unit(unit, masks, store, environment.retry_policy())
