"""Spark for one process: started when first needed, kept for later runs, and replaced when it has died.

What happens when Spark dies depends on who started it. If this process did, the next run that needs Spark starts a new
session. If Spark was there before (spark-submit, a notebook), its master, resources and supervisor are elsewhere. Then
the process ends with an error, and its supervisor starts it again. In both cases the run has released its partitions,
and no commit is half done, because the driver commits only finished segments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

import structlog

from keyfold.errors import KeyfoldError
from keyfold_compactor.execute.executor import Executor
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.progress import STARTING_SPARK, NoProgress, RunProgress
from keyfold_compactor.spark.jvm_output import echo_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)


class SparkLost(KeyfoldError):
    """The Spark session that this process was given has ended."""


class SparkKeeper:
    """An executor factory that checks Spark between runs. Spark and the throttle end with the context."""

    def __init__(
        self,
        options: CompactOptions,
        *,
        progress: RunProgress | None = None,
        say: Callable[[str], None] = echo_error,
    ) -> None:
        """`progress` is told when Spark starts. `say` gets the lines of Spark's JVM, without its start-up noise."""
        self._options = options
        self._progress = progress or NoProgress()
        self._say = say
        self._stack = contextlib.ExitStack()
        self._session: SparkSession | None = None
        self._executor: Executor | None = None
        self._is_given = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def __call__(self, due_bytes: int) -> Executor:  # noqa: ARG002 - Spark does any amount of work
        """Return the executor. Raise `ConfigError` for an unsupported Spark, and whatever Spark raises."""
        self.check_alive()
        if self._executor is None:
            self._progress.begin_stage(STARTING_SPARK, 0)
            self._executor = self._start()
        return self._executor

    def check_alive(self) -> None:
        """Discard a Spark session of ours that has died. Raise `SparkLost` for one that was given."""
        if self._session is None:
            return
        from keyfold_compactor.spark.session import is_alive

        if is_alive(self._session):
            return
        if self._is_given:
            raise SparkLost(
                "the Spark session that this process was given has ended",
                hint="restart the compactor the way it was started (spark-submit, a notebook); its next run continues",
            )
        log.warning("spark has died; the next run that needs it starts a new session")
        self._end()

    def _end(self) -> None:
        stack, self._stack = self._stack, contextlib.ExitStack()
        self._session = self._executor = None
        stack.close()

    def _start(self) -> Executor:
        # Importing pyspark takes a second, which a run with nothing to do can save.
        from keyfold.runtime.throttle import ThrottleService
        from keyfold_compactor.spark.executor import SparkExecutor
        from keyfold_compactor.spark.session import driver_addresses, is_given, spark_session
        from keyfold_compactor.spark.tasks import TaskEnvironment

        options = self._options
        self._is_given = is_given()
        settings = {f"spark.{key}": value for key, value in options.spark.items()}
        with contextlib.ExitStack() as stack:
            session = stack.enter_context(spark_session(options.name, settings, self._say))
            throttle = None
            if options.io_max_bytes_per_second is not None:
                host, bind = driver_addresses(session)
                service = ThrottleService(options.io_max_bytes_per_second, host=host, bind=bind)
                throttle = stack.enter_context(service).address
            environment = TaskEnvironment(options.location().resolved(), throttle, retry_timeout_s=60.0)
            executor = SparkExecutor(session, environment, map_bytes=options.map_bytes)
            self._stack = stack.pop_all()
        self._session = session
        return executor
