"""What runs the work of a pass: Spark, or the threads of this process (`compactor.engine`).

Both are factories of executors (`execute.executor`). Plan, claims, limits, byte rate, commits and reports are the same:
only where maps and rewrites run differs. The local engine needs neither Java nor pyspark, starts at once, and uses the
processors of this process, so it is for small logs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import SystemRandom
from types import TracebackType
from typing import Final, Protocol, Self

import structlog

from keyfold.errors import ConfigError
from keyfold.runtime.clock import Clock
from keyfold.runtime.retry import RetryPolicy
from keyfold.runtime.text import size_text
from keyfold.runtime.throttle import BudgetPacer, TokenBucket
from keyfold_compactor.execute.executor import Executor
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.progress import RunProgress

log = structlog.get_logger(__name__)

SPARK_IS_FASTER_BYTES: Final = 4 * 1024**3
"""Stored bytes of a run from which Spark is faster on the same two processors, its start included (decision 28)."""


class CompactorEngine(Protocol):
    """A factory of executors, and a context that ends what they started."""

    def __enter__(self) -> Self:
        """Return the engine. Nothing is started until an executor is needed."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """End what the executors started."""

    def __call__(self) -> Executor:
        """Return the executor of a run."""

    def check_alive(self) -> None:
        """Check, between runs, what the executors started."""


class LocalEngine:
    """An executor for each run, on the threads of this process."""

    def __init__(self, options: CompactOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Do nothing: the threads of a step end with it."""

    def __call__(self) -> Executor:
        """Return a new executor, which says at most once that Spark would be faster."""
        from keyfold_compactor.execute.local import LocalExecutor  # pyarrow, which an idle run does not need

        options, rate = self._options, self._options.io_max_bytes_per_second
        pacer = None if rate is None else BudgetPacer(TokenBucket(rate, self._clock), self._clock, rate)
        return LocalExecutor(
            options.location().open(pacer),
            RetryPolicy(self._clock, SystemRandom()),
            slots=processor_count(),
            is_single_stage=True,
            map_bytes=options.map_bytes,
            pacer=pacer,
            notice_bytes=SPARK_IS_FASTER_BYTES,
            notice_large=_notice_large,
        )

    def check_alive(self) -> None:
        """Do nothing: there is no other process that could have died."""


def check_engine(options: CompactOptions) -> None:
    """Raise `ConfigError` if the configuration names Spark, and pyspark is missing or of an unsupported version."""
    if options.engine == "spark":
        from keyfold_compactor.spark.versions import check_pyspark, found_pyspark

        check_pyspark(found_pyspark())


def open_engine(
    options: CompactOptions, clock: Clock, *, progress: RunProgress, say: Callable[[str], None]
) -> CompactorEngine:
    """Return the engine that the configuration names. `progress` and `say` hear of Spark's start."""
    if options.engine == "local":
        if options.spark:
            log.info("the local engine does not use settings of Spark", settings=sorted(options.spark))
        return LocalEngine(options, clock)
    from keyfold_compactor.spark.keeper import SparkKeeper

    return SparkKeeper(options, progress=progress, say=say)


def engine_values(engine: str | None, spark_values: dict[str, str]) -> dict[str, str]:
    """Return the command line's choice as keys of the configuration. Raise `ConfigError` if it contradicts itself."""
    if engine == "local" and spark_values:
        raise ConfigError(
            "compactor.engine",
            f"--engine local does not start Spark, so {', '.join(sorted(spark_values))} has no effect",
            hint="omit --master and --conf, or use --engine spark",
        )
    return spark_values if engine is None else {**spark_values, "compactor.engine": engine}


def processor_count() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def _notice_large(size_bytes: int) -> None:
    log.warning(
        "spark would be faster: set compactor.engine to spark",
        logs=size_text(size_bytes),
        faster_from=size_text(SPARK_IS_FASTER_BYTES),
    )
