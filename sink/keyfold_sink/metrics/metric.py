"""What a metric is, and how the names of Connect's and of the sink's own are made.

A metric has a *scope*, which gives it its first labels: a task's come from its reports and are told apart by
`connector` and `task`; a partition's by `connector`, `topic` and `partition`; a connector's by `connector`; a worker's
are its own. The metrics themselves are in `keyfold_sink.metrics.names`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal


class Scope(Enum):
    """Whose metric it is."""

    TASK = "task"
    PARTITION = "partition"
    CONNECTOR = "connector"
    WORKER = "worker"

    @property
    def labels(self) -> tuple[str, ...]:
        """What comes with that. No member's value: Python 3.11.2, Debian 12's, makes an object of an empty tuple."""
        return _LABELS[self]


_LABELS: Final = {
    Scope.TASK: ("connector", "task"),
    Scope.PARTITION: ("connector", "topic", "partition"),
    Scope.CONNECTOR: ("connector",),
    Scope.WORKER: (),
}


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `connect` is the MBean's type and attribute of the same meaning, or empty.

    `adds_up` says that the value only grows and goes on when a task is replaced; Connect has such gauges, too.
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
        """All labels, in the order in which values are given."""
        return (*self.scope.labels, *self.own_labels)


def of_bean(bean: str, attribute: str, scope: Scope, text: str, rises: str, *, adds_up: bool = False) -> Metric:
    """A figure of Connect's, under the name that the exporter makes of it."""
    name = f"kafka_connect_{bean}_{attribute}".replace("-", "_")
    is_counter = attribute.endswith("-total")
    kind: Literal["counter", "gauge"] = "counter" if is_counter else "gauge"
    return Metric(name, kind, scope, text, rises, f"{bean} {attribute}", adds_up=adds_up or is_counter)


def of_sink_task(attribute: str, text: str, rises: str) -> Metric:
    """Of `sink-task-metrics`."""
    return of_bean("sink-task-metrics", attribute, Scope.TASK, text, rises)


def of_task(attribute: str, text: str, rises: str) -> Metric:
    """Of `connector-task-metrics`."""
    return of_bean("connector-task-metrics", attribute, Scope.TASK, text, rises)


def of_errors(attribute: str, text: str, rises: str, *, adds_up: bool = True) -> Metric:
    """Of `task-error-metrics`; they only grow, though the exporter makes gauges of them."""
    return of_bean("task-error-metrics", attribute, Scope.TASK, text, rises, adds_up=adds_up)


def of_worker(attribute: str, text: str, rises: str, scope: Scope = Scope.WORKER) -> Metric:
    """Of `connect-worker-metrics`."""
    return of_bean("connect-worker-metrics", attribute, scope, text, rises)


def of_rebalance(attribute: str, text: str, rises: str) -> Metric:
    """Of `connect-worker-rebalance-metrics`."""
    return of_bean("connect-worker-rebalance-metrics", attribute, Scope.WORKER, text, rises)


def info(bean: str, attribute: str, scope: Scope, text: str, rises: str) -> Metric:
    """A word of Connect's: 1, with the word as a label."""
    name = f"kafka_connect_{bean}_{attribute}".replace("-", "_")
    label = attribute.replace("-", "_")
    return Metric(name, "gauge", scope, text, rises, f"{bean} {attribute}", (label,))


def gauge(name: str, text: str, rises: str, scope: Scope = Scope.TASK, labels: tuple[str, ...] = ()) -> Metric:
    """How something of the sink's own stands."""
    return Metric(f"keyfold_sink_{name}", "gauge", scope, text, rises, own_labels=labels)


def counter(name: str, text: str, rises: str, labels: tuple[str, ...] = ()) -> Metric:
    """How often something happened."""
    return Metric(f"keyfold_sink_{name}_total", "counter", Scope.TASK, text, rises, own_labels=labels, adds_up=True)


def histogram(name: str, text: str, rises: str, labels: tuple[str, ...] = ()) -> Metric:
    """How long something took."""
    return Metric(f"keyfold_sink_{name}", "histogram", Scope.TASK, text, rises, own_labels=labels, adds_up=True)
