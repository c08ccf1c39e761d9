"""The description of a metric, and the names of Connect's metrics and of the sink's own.

The *scope* of a metric determines its first labels. Metrics of a task have `connector` and `task`, those of a partition
`connector`, `topic` and `partition`, those of a connector `connector`, and those of a worker none. The metrics are in
`keyfold_sink.metrics.names`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal


class Scope(Enum):
    """The subject of a metric."""

    TASK = "task"
    PARTITION = "partition"
    CONNECTOR = "connector"
    WORKER = "worker"

    @property
    def labels(self) -> tuple[str, ...]:
        """The first labels. Not the members' values: Python 3.11.2 (Debian 12) turns an empty tuple into an object."""
        return _LABELS[self]


_LABELS: Final = {
    Scope.TASK: ("connector", "task"),
    Scope.PARTITION: ("connector", "topic", "partition"),
    Scope.CONNECTOR: ("connector",),
    Scope.WORKER: (),
}


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `connect` is Connect's MBean type and attribute with the same meaning, or empty.

    `adds_up` says that the value only grows, and continues when a task is replaced. Connect also has such gauges.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram", "unknown"]
    scope: Scope
    help: str
    rises: str
    connect: str = ""
    own_labels: tuple[str, ...] = ()
    adds_up: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels, in the order of a sample's values."""
        return (*self.scope.labels, *self.own_labels)


def of_bean(bean: str, attribute: str, scope: Scope, text: str, rises: str, *, adds_up: bool = False) -> Metric:
    """Define a metric of Connect, with the name that the JMX exporter gives it."""
    name = f"kafka_connect_{bean}_{attribute}".replace("-", "_")
    is_counter = attribute.endswith("-total")
    kind: Literal["counter", "gauge"] = "counter" if is_counter else "gauge"
    return Metric(name, kind, scope, text, rises, f"{bean} {attribute}", adds_up=adds_up or is_counter)


def of_sink_task(attribute: str, text: str, rises: str) -> Metric:
    """Define a metric of `sink-task-metrics`."""
    return of_bean("sink-task-metrics", attribute, Scope.TASK, text, rises)


def of_task(attribute: str, text: str, rises: str) -> Metric:
    """Define a metric of `connector-task-metrics`."""
    return of_bean("connector-task-metrics", attribute, Scope.TASK, text, rises)


def of_errors(attribute: str, text: str, rises: str, *, adds_up: bool = True) -> Metric:
    """Define a metric of `task-error-metrics`. They only grow, although the exporter makes gauges of them."""
    return of_bean("task-error-metrics", attribute, Scope.TASK, text, rises, adds_up=adds_up)


def of_worker(attribute: str, text: str, rises: str, scope: Scope = Scope.WORKER) -> Metric:
    """Define a metric of `connect-worker-metrics`."""
    return of_bean("connect-worker-metrics", attribute, scope, text, rises)


def of_rebalance(attribute: str, text: str, rises: str) -> Metric:
    """Define a metric of `connect-worker-rebalance-metrics`."""
    return of_bean("connect-worker-rebalance-metrics", attribute, Scope.WORKER, text, rises)


def info(bean: str, attribute: str, scope: Scope, text: str, rises: str) -> Metric:
    """Define a text attribute of Connect as a metric: its value is 1, and the text is a label."""
    name = f"kafka_connect_{bean}_{attribute}".replace("-", "_")
    label = attribute.replace("-", "_")
    return Metric(name, "gauge", scope, text, rises, f"{bean} {attribute}", (label,))


def gauge(name: str, text: str, rises: str, scope: Scope = Scope.TASK, labels: tuple[str, ...] = ()) -> Metric:
    """Define a gauge of the sink's own."""
    return Metric(f"keyfold_sink_{name}", "gauge", scope, text, rises, own_labels=labels)


def counter(name: str, text: str, rises: str, labels: tuple[str, ...] = ()) -> Metric:
    """Define a counter of the sink's own."""
    return Metric(f"keyfold_sink_{name}_total", "counter", Scope.TASK, text, rises, own_labels=labels, adds_up=True)


def histogram(name: str, text: str, rises: str, labels: tuple[str, ...] = ()) -> Metric:
    """Define a histogram of durations of the sink's own."""
    return Metric(f"keyfold_sink_{name}", "histogram", Scope.TASK, text, rises, own_labels=labels, adds_up=True)
