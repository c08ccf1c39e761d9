"""The compactor's liveness: every stage and step of a run, every loop and every count of a task is a sign of life.

The settings say how long it may report nothing. Two signs of life are at most as far apart as the pause between two
runs, or as one stage of Spark whose tasks all end together: a part of a pass, or a batch, at the configured rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from keyfold.runtime.health import Vitals
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.progress import Progress
from keyfold_compactor.report.report import Replicate, Replicated, RunReport, Watch

SLOWEST_BYTES_PER_SECOND: Final = 8 * 1024 * 1024
"""The minimum speed of a stage without a configured rate. A slower one counts as dead."""
BESIDE_S: Final = 600.0
"""Time for work that moves few bytes: starting Spark and its executors, and retries of requests."""


def quiet_max_s(options: CompactOptions) -> float:
    """Return how long a working compactor may make no progress."""
    rate = options.io_max_bytes_per_second or SLOWEST_BYTES_PER_SECOND
    stage_bytes = 2 * max(options.batch_bytes, options.pass_max_bytes)
    return BESIDE_S + options.backoff_ms / 1000 + stage_bytes / rate


class VitalProgress:
    """A `Progress` that reports each step as a sign of life."""

    def __init__(self, inner: Progress, vitals: Vitals) -> None:
        self._inner = inner
        self._vitals = vitals

    def begin(self, stage: str, total: int) -> None:
        """See `Progress.begin`."""
        self._vitals.moved()
        self._inner.begin(stage, total)

    def step(self, count: int = 1) -> None:
        """See `Progress.step`."""
        self._vitals.moved()
        if count:
            self._inner.step(count)


class VitalWatch:
    """A `Watch` that reports how runs end. Failed partitions do not count: the report covers them."""

    def __init__(self, inner: Watch, vitals: Vitals) -> None:
        self._inner = inner
        self._vitals = vitals

    def begin(self, report: RunReport) -> None:
        """See `Watch.begin`."""
        self._vitals.begun()
        self._inner.begin(report)

    def end(self, report: RunReport) -> None:
        """See `Watch.end`."""
        self._vitals.turned(f"Spark: {report.executor_error}" if report.executor_error else "")
        self._inner.end(report)

    def fail(self) -> None:
        """See `Watch.fail`."""
        self._vitals.turned("see the compactor's log")
        self._inner.fail()


def vital(replicate: Replicate, vitals: Vitals) -> Replicate:
    """Wrap replication so that it reports a sign of life whenever it asks whether to stop, several times a second."""

    def replicating(should_stop: Callable[[], bool]) -> Sequence[Replicated]:
        def moving() -> bool:
            vitals.moved()
            return should_stop()

        return replicate(moving)

    return replicating
