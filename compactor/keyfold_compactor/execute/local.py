"""One log or one unit inside a task, and the executor that does everything in this process (`work.Executor`).

An error of one log becomes an answer here, so that it fails its own partition and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from keyfold.runtime.retry import RetryPolicy
from keyfold.runtime.throttle import ThrottleLost
from keyfold.store.api import ObjectStore
from keyfold.store.wrappers.counting import CountedStore
from keyfold_compactor.decide.single_stage import single_stage_units
from keyfold_compactor.decide.work import LogJob, MapAnswer, MaskKey, Traffic, UnitAnswer, UnitJob, reason
from keyfold_compactor.execute.executor import Done
from keyfold_compactor.execute.mapping import READ_THREADS, map_log
from keyfold_compactor.execute.rewrite import rewrite_unit


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
    """Do everything in this process, one log and one unit after another, for tests and as the reference.

    `is_single_stage`: clean logs in one stage if their jobs allow it.
    """

    slots = 1

    def __init__(self, store: ObjectStore, retry: RetryPolicy, *, is_single_stage: bool = False) -> None:
        self._store = store
        self._retry = retry
        self._run = run_log if is_single_stage else run_map
        self._masks: dict[MaskKey, bytes] = {}

    def map_logs(self, jobs: Iterable[LogJob], done: Done = _nobody) -> list[MapAnswer]:
        """See `Executor.map_logs`."""
        self._masks.clear()
        answers: list[MapAnswer] = []
        for job in jobs:
            answer, masks = self._run(job, self._store, self._retry, threads=1)
            self._masks.update(masks)
            answers.append(answer)
            done(1)
        return answers

    def rewrite(self, portions: Sequence[Sequence[UnitJob]], done: Done = _nobody) -> list[UnitAnswer]:
        """See `Executor.rewrite`."""
        answers: list[UnitAnswer] = []
        for unit in (unit for portion in portions for unit in portion):
            answers.append(run_unit(unit, self._masks, self._store, self._retry))
            done(1)
        return answers

    def forget(self) -> None:
        """See `Executor.forget`."""
        self._masks.clear()
