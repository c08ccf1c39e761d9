"""The compactor's liveness: every stage and step of a run, every loop and every count of a task is a sign of life.

The settings say how long it may report nothing. Two signs of life are at most as far apart as the pause between two
runs, or as one stage of Spark whose tasks all end together: a part of a pass, or a batch, at the configured rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from keyfold.replicas.after_run import AfterRunResult, AfterRunStep
from keyfold.runtime.health import Liveness
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.progress import RunProgress
from keyfold_compactor.report.report import RunObserver, RunReport

SLOWEST_BYTES_PER_SECOND: Final = 8 * 1024 * 1024
"""The minimum speed of a stage without a configured rate. A slower one counts as dead."""
BESIDE_S: Final = 600.0
"""Time for work that moves few bytes: starting Spark and its executors, and retries of requests."""


def quiet_max_s(options: CompactOptions) -> float:
    """Return how long a working compactor may make no progress."""
    rate = options.io_max_bytes_per_second or SLOWEST_BYTES_PER_SECOND
    stage_bytes = 2 * max(options.batch_bytes, options.pass_max_bytes)
    return BESIDE_S + options.backoff_ms / 1000 + stage_bytes / rate


class LivenessProgress:
    """A `RunProgress` that reports each step as a sign of life."""

    def __init__(self, inner: RunProgress, liveness: Liveness) -> None:
        self._inner = inner
        self._liveness = liveness

    def begin_stage(self, stage: str, total: int) -> None:
        """See `RunProgress.begin_stage`."""
        self._liveness.moved()
        self._inner.begin_stage(stage, total)

    def advance(self, count: int = 1) -> None:
        """See `RunProgress.advance`."""
        self._liveness.moved()
        if count:
            self._inner.advance(count)


class LivenessObserver:
    """A `RunObserver` that reports how runs end. Failed partitions do not count: the report covers them."""

    def __init__(self, inner: RunObserver, liveness: Liveness) -> None:
        self._inner = inner
        self._liveness = liveness

    def run_started(self, report: RunReport) -> None:
        """See `RunObserver.run_started`."""
        self._liveness.begun()
        self._inner.run_started(report)

    def run_ended(self, report: RunReport) -> None:
        """See `RunObserver.run_ended`."""
        self._liveness.turned(f"Spark: {report.executor_error}" if report.executor_error else "")
        self._inner.run_ended(report)

    def run_failed(self) -> None:
        """See `RunObserver.run_failed`."""
        self._liveness.turned("see the compactor's log")
        self._inner.run_failed()


def with_liveness(step: AfterRunStep, liveness: Liveness) -> AfterRunStep:
    """Wrap what follows a run so that it reports a sign of life whenever it asks whether to stop."""

    def watched(should_stop: Callable[[], bool]) -> Sequence[AfterRunResult]:
        def moving() -> bool:
            liveness.moved()
            return should_stop()

        return step(moving)

    return watched
