"""What Prometheus finds at each service when all that can happen has happened: every sample's name, with its labels.

The registries of the code are scraped, so an alert or a panel that names what is not there cannot pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from keyfold.metrics.metric import Metric, Sample, Samples
from keyfold.metrics.prometheus import BUILD_INFO, MetricsCollector, WithoutProcess
from keyfold.runtime.clock import ManualClock
from keyfold.table import metrics as table_metrics
from keyfold.table.sync import SyncResult
from keyfold_compactor.report import metric_names as compactor_names
from keyfold_replicator.status import metric_names as replica_names
from keyfold_server import metrics as server_metrics
from keyfold_sink.metrics.collector import SinkMetrics
from keyfold_sink.metrics.meter import BAR
from keyfold_sink.metrics.names import METRICS as SINK_METRICS
from keyfold_sink.status import PartitionStatus, RunState, TaskStatus

TARGET_LABELS: Final = frozenset({"namespace", "job", "instance", "pod"})
"""What Prometheus adds to what it scrapes, in Kubernetes."""

SERVICES: Final = ("sink", "compactor", "replica", "table", "serve")

DECLARED: Final = (
    *SINK_METRICS,
    *compactor_names.METRICS,
    *replica_names.METRICS,
    *table_metrics.METRICS,
    *server_metrics.METRICS,
    BUILD_INFO,
)
"""Every metric of keyfold."""

EXPOSITIONS: Final = Path(__file__).parents[1] / "unit/metrics/exposition"
"""The text of each service's scrape; `python -m tests.support.served_metrics` writes it after an intended change."""


@cache
def served(service: str) -> dict[str, frozenset[str]]:
    """Sample names of one service as they are scraped, each with the labels of its own."""
    return {
        sample.name: frozenset(sample.labels)
        for family in text_string_to_metric_families(generate_latest(_registry(service)).decode())
        for sample in family.samples
    }


def exposition(service: str) -> str:
    """What one service answers to a scrape, without its process's figures: the same text at every call."""
    return generate_latest(WithoutProcess(_registry(service))).decode()


def _registry(service: str) -> CollectorRegistry:
    registries = {"sink": _sink, "compactor": _compactor, "replica": _replica, "table": _table, "serve": _server}
    return registries[service]()


def all_served() -> dict[str, frozenset[str]]:
    """Those of all services, and `up`, which Prometheus makes itself."""
    return {"up": frozenset(), **{name: labels for service in SERVICES for name, labels in served(service).items()}}


class _Everything(MetricsCollector):
    """Declared metrics through the collector that serves them, each with one sample."""

    def samples(self) -> Samples:
        return {m: [Sample(tuple("x" for _ in m.labels), 1.0)] for m in self._metrics}


def _compactor() -> CollectorRegistry:
    return _Everything(compactor_names.METRICS, "compactor", "1").registry


def _replica() -> CollectorRegistry:
    return _Everything(replica_names.METRICS, "replicator", "1").registry


def _table() -> CollectorRegistry:
    meter = table_metrics.TableMeter("users", "s3://lake/users", 2 * 10**12, "1")
    meter.synced(SyncResult((), None), 0.5, 2 * 10**12 + 500)
    return meter.registry


def _server() -> CollectorRegistry:
    meter = server_metrics.ServerMeter(lambda: 1, lambda: 8, "1")
    meter.count("/", 200, 0.02)
    return meter.registry


def _sink() -> CollectorRegistry:
    clock = ManualClock()
    metrics = SinkMetrics(
        connector="users",
        connector_class="io.Sink",
        version="1",
        clock=clock,
        state=lambda: RunState.RUNNING,
        place=lambda: (0, 1),
    )
    now_ms = clock.now_ms()
    values = {key: 1.0 for metric in SINK_METRICS for key in _keys(metric)}
    partitions = (
        PartitionStatus("t", 0, RunState.RUNNING, 5, 8, 12, now_ms - 9, now_ms - 8, "slow", now_ms, now_ms - 1),
        PartitionStatus("t", 1, RunState.FAILED, error="bad", error_ms=now_ms),
    )
    running = TaskStatus(0, RunState.RUNNING, "", 11, now_ms, now_ms, partitions, values)
    failed = TaskStatus(1, RunState.FAILED, "no right", 12, now_ms, now_ms)
    for _ in range(2):
        metrics.observe([running, failed], {"crashed": 1})
        clock.advance(1_000)
    return metrics.registry


def _keys(metric: Metric) -> Iterator[str]:
    """How a task says it in its report (`TaskStatus.values`)."""
    own = ["x" for _ in metric.own_labels]
    if metric.kind != "histogram":
        yield BAR.join([metric.name, *own])
        return
    yield BAR.join([f"{metric.name}_bucket", *own, "+Inf"])
    yield BAR.join([f"{metric.name}_sum", *own])


def unserved() -> Iterable[str]:
    """Declared metrics of which the scrapes above have no sample: there must be none."""
    declared = {metric.name for metric in DECLARED}
    found = {name.removesuffix(part) for name in all_served() for part in ("_bucket", "_sum", "_count", "")}
    return sorted(declared - found)


if __name__ == "__main__":
    for each in SERVICES:
        (EXPOSITIONS / f"{each}.txt").write_text(exposition(each), encoding="utf-8")
