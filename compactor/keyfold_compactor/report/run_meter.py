"""The compactor's metrics over all runs of a process, as Prometheus collects them.

`RunMeter` observes the runs of a job (`report.RunObserver`) and can be asked at any moment, from any thread. Its values
cover the runs that have ended, and the current one as far as it got. It keeps a few numbers and the log states of the
last run, however many runs there were.
"""

from __future__ import annotations

import threading

from keyfold.metrics.metric import MetricValues, Samples, samples_of
from keyfold.metrics.prometheus import MetricsCollector
from keyfold.runtime.clock import Clock
from keyfold_compactor.report.metric_names import METRICS
from keyfold_compactor.report.metrics import History
from keyfold_compactor.report.report import RunReport


class RunMeter(MetricsCollector):
    """Keep the metrics over all runs of a process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._history = History(begun_s=clock.monotonic_s())
        self._under_way: RunReport | None = None
        super().__init__(METRICS, "compactor")

    def run_started(self, report: RunReport) -> None:
        """See `RunObserver.run_started`."""
        with self._lock:
            self._history = self._history.begun(self._clock.monotonic_s())
            self._under_way = report

    def run_ended(self, report: RunReport) -> None:
        """See `RunObserver.run_ended`."""
        with self._lock:
            self._under_way = None
            self._history = self._history.ended(report.so_far(), self._clock.now_ms())

    def run_failed(self) -> None:
        """See `RunObserver.run_failed`."""
        with self._lock:
            report, self._under_way = self._under_way, None
            self._history = self._history.failed(None if report is None else report.so_far())

    def samples(self) -> Samples:
        """See `MetricsCollector.samples`."""
        return samples_of(self.values())

    def values(self) -> MetricValues:
        """Return all metrics."""
        with self._lock:
            history = self._history
            if self._under_way is not None:
                history = history.with_run(self._under_way.so_far())
            return history.values(self._clock.monotonic_s())
