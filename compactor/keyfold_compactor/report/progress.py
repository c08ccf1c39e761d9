"""Progress of a run: stages, and steps within a stage. Without a terminal, progress and runs are events of the log."""

from __future__ import annotations

import threading
from typing import Final, Protocol

import structlog

from keyfold.runtime.clock import Clock
from keyfold_compactor.report.report import RunObserver, RunReport

FIRST_STAGE: Final = "reading manifests"
"""The first stage of every run."""

STARTING_SPARK: Final = "starting Spark"
"""The stage in which the executor starts. It has no steps."""

LOG_EVERY_S: Final = 10.0

log = structlog.get_logger(__name__)


class RunProgress(Protocol):
    """An observer of a run's progress."""

    def begin_stage(self, stage: str, total: int) -> None:
        """A stage with `total` steps starts; 0 for a stage whose steps cannot be counted."""

    def advance(self, count: int = 1) -> None:
        """`count` steps of the stage are done."""


class LoggedProgress:
    """Log the start of Spark, and an event at most every `LOG_EVERY_S`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._said_s = clock.monotonic_s()
        self._stage = ""
        self._total = self._done = 0

    def begin_stage(self, stage: str, total: int) -> None:
        """See `RunProgress.begin_stage`."""
        with self._lock:
            self._stage, self._total, self._done = stage, total, 0
            if stage == FIRST_STAGE:  # the pause between two runs does not count as work
                self._said_s = self._clock.monotonic_s()
            if stage == STARTING_SPARK:
                log.info("starting spark")
            self._say()

    def advance(self, count: int = 1) -> None:
        """See `RunProgress.advance`. May be called by many threads."""
        with self._lock:
            self._done += count
            self._say()

    def _say(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._said_s >= LOG_EVERY_S:
            self._said_s = now_s
            log.info("progress", stage=self._stage, done=self._done, total=self._total)


class NoProgress:
    """An observer that does nothing."""

    def begin_stage(self, stage: str, total: int) -> None:
        """See `RunProgress.begin_stage`."""

    def advance(self, count: int = 1) -> None:
        """See `RunProgress.advance`."""


class LoggedRuns:
    """A `RunObserver` that logs the start and the result of every run, also of one with nothing to do."""

    def __init__(self, inner: RunObserver) -> None:
        self._inner = inner

    def run_started(self, report: RunReport) -> None:
        """See `RunObserver.run_started`."""
        log.info("run started")
        self._inner.run_started(report)

    def run_ended(self, report: RunReport) -> None:
        """See `RunObserver.run_ended`."""
        parts = report.partitions
        log.info(
            "run ended",
            seconds=round(report.seconds, 3),
            partitions=len(parts) + report.quiet_partitions,
            cleaned=sum(part.outcome.value == "cleaned" for part in parts),
            failed=len(report.failed),
            records_removed=sum(part.removed + part.expired.records for part in parts),
            bytes_freed=sum(part.before.bytes - part.after.bytes for part in parts),
        )
        self._inner.run_ended(report)

    def run_failed(self) -> None:
        """See `RunObserver.run_failed`. The error itself is the command's, or that of the loop's warning."""
        log.error("run failed")
        self._inner.run_failed()
