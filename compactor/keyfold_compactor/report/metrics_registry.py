"""The metrics of this process as a Prometheus collector.

`Served` turns declared metrics and a function that returns their values into a collector. `Meter` is the compactor's.
It observes the runs of a job (`report.RunObserver`) and can be asked at any moment, from any thread. Its values cover
the runs that have ended, and the current one as far as it got. It keeps a few numbers and the log states of the last
run, however many runs there were.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from keyfold.runtime.clock import Clock
from keyfold_compactor.report.metric_names import METRICS, Metric
from keyfold_compactor.report.metrics import History, Labelled, Values
from keyfold_compactor.report.report import RunReport


class Served(Collector):
    """Metrics with a registry of their own; `registry.register` adds other collectors to it."""

    def __init__(self, metrics: tuple[Metric, ...]) -> None:
        self._metrics = metrics
        self.registry = CollectorRegistry()
        self.registry.register(self)

    @abstractmethod
    def values(self) -> Values:
        """Return all metrics. Called by any thread."""

    def describe(self) -> Iterable[Family]:
        """Return the names without computing values, so that `?name[]=` of a scrape finds them."""
        return [_family(metric, None) for metric in self._metrics]

    def collect(self) -> Iterable[Family]:
        """Return every metric in Prometheus' form; a metric without a value has no sample."""
        return [_family(metric, value) for metric, value in self.values().items()]


class Meter(Served):
    """Keep the metrics over all runs of a process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._history = History(begun_s=clock.monotonic_s())
        self._under_way: RunReport | None = None
        super().__init__(METRICS)

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

    def values(self) -> Values:
        """Return all metrics."""
        with self._lock:
            history = self._history
            if self._under_way is not None:
                history = history.with_run(self._under_way.so_far())
            return history.values(self._clock.monotonic_s())


def _family(metric: Metric, value: float | Labelled | None) -> Family:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, _help(metric), labels=metric.labels)
    samples = value if isinstance(value, Mapping) else {} if value is None else {(): value}
    for labels, figure in samples.items():
        family.add_metric(labels, figure)
    return family


def _help(metric: Metric) -> str:
    return f"{metric.help} Kafka: {metric.kafka_name}" if metric.kafka_name else metric.help
