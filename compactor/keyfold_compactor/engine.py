"""What runs the work of a pass: Spark, or the threads of this process (`compactor.engine`).

Both are factories of executors (`execute.executor`). Plan, claims, limits, byte rate, commits and reports are the same:
only where maps and rewrites run differs. The local engine needs neither Java nor pyspark, starts at once, and uses the
processors of this process, so it is for small logs. By default a run with little work uses it, and any other run uses
Spark, which is started by the first of these.
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
from keyfold.runtime.process_memory import tune_process
from keyfold.runtime.retry import RetryPolicy
from keyfold.runtime.text import size_text
from keyfold.runtime.throttle import paced
from keyfold_compactor.execute.executor import Executor
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.progress import RunProgress

log = structlog.get_logger(__name__)

SPARK_IS_FASTER_BYTES: Final = 4 * 1024**3
"""Stored bytes of a run from which Spark is faster on the same two processors, its start included (decision 28)."""

LOCAL_MAX_BYTES: Final = 256 * 1024**2
"""Work of a run (`decide.batching.work_bytes`) that needs no Spark: two processors do it while Spark starts."""


class CompactorEngine(Protocol):
    """A factory of executors, and a context that ends what they started."""

    def __enter__(self) -> Self:
        """Return the engine. Nothing is started until an executor is needed."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """End what the executors started."""

    def __call__(self, due_bytes: int, /) -> Executor:
        """Return the executor of a run that has this much to do."""

    def check_alive(self) -> None:
        """Check, between runs, what the executors started."""


class LocalEngine:
    """An executor for each run, on the threads of this process."""

    def __init__(self, options: CompactOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock

    def __enter__(self) -> Self:
        """Tune the memory of this process, whose threads do the work."""
        tune_process()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Do nothing: the threads of a step end with it."""

    def __call__(self, due_bytes: int) -> Executor:  # noqa: ARG002 - this process does any amount of work
        """Return a new executor, which says at most once that Spark would be faster."""
        from keyfold_compactor.execute.local import LocalExecutor  # pyarrow, which an idle run does not need

        options = self._options
        pacer = paced(options.io_max_bytes_per_second, self._clock)
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


class AutoEngine:
    """The local engine for a run with little work, and Spark for any other."""

    def __init__(self, local: CompactorEngine, spark: CompactorEngine) -> None:
        self._local = local
        self._spark = spark

    def __enter__(self) -> Self:
        """Enter both engines. Spark is not started by that."""
        self._local.__enter__()
        self._spark.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """End Spark, if a run has started it."""
        self._spark.__exit__(kind, error, trace)
        self._local.__exit__(kind, error, trace)

    def __call__(self, due_bytes: int) -> Executor:
        """Return this process' executor for at most `LOCAL_MAX_BYTES` of work, and Spark's for more."""
        engine = self._local if due_bytes <= LOCAL_MAX_BYTES else self._spark
        return engine(due_bytes)

    def check_alive(self) -> None:
        """Check Spark, if a run has started it."""
        self._spark.check_alive()


def check_engine(options: CompactOptions) -> None:
    """Raise `ConfigError` if the engine needs Spark, and pyspark is missing or of an unsupported version.

    `auto` does without a missing one, but a version that would fail in the first large run is refused at once.
    """
    if options.engine == "local":
        return
    from keyfold_compactor.spark.versions import check_pyspark, found_pyspark

    found = found_pyspark()
    if found is not None or options.engine == "spark":
        check_pyspark(found)


def open_engine(
    options: CompactOptions, clock: Clock, *, progress: RunProgress, say: Callable[[str], None]
) -> CompactorEngine:
    """Return the engine that the configuration names. `progress` and `say` hear of Spark's start."""
    local = LocalEngine(options, clock)
    if options.engine == "local":
        if options.spark:
            log.info("the local engine does not use settings of Spark", settings=sorted(options.spark))
        return local
    from keyfold_compactor.spark.versions import found_pyspark

    if found_pyspark() is None:
        log.info("pyspark is not installed; this process does all work")
        return local
    from keyfold_compactor.spark.keeper import SparkKeeper

    spark = SparkKeeper(options, progress=progress, say=say)
    # Under spark-submit an application that never makes a session fails on some clusters (YARN), and Spark has started.
    return spark if options.engine == "spark" or "PYSPARK_GATEWAY_PORT" in os.environ else AutoEngine(local, spark)


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
        "spark would be faster: set compactor.engine to auto, and install keyfold[spark]",
        logs=size_text(size_bytes),
        faster_from=size_text(SPARK_IS_FASTER_BYTES),
    )
