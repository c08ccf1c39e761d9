"""Define a metric with the name that Connect's metrics have, or with one of the sink's own.

The subject of a metric determines its first labels. Metrics of a task have `connector` and `task`, those of a partition
`connector`, `topic` and `partition`, those of a connector `connector`, and those of a worker none. The metrics are in
`connect_names` and `names`.
"""

from __future__ import annotations

from typing import Final, Literal

from keyfold.metrics.metric import Metric

CONNECT: Final = "Kafka Connect"

TASK: Final = ("connector", "task")
PARTITION: Final = ("connector", "topic", "partition")
CONNECTOR: Final = ("connector",)
WORKER: Final[tuple[str, ...]] = ()


def of_bean(
    bean: str, attribute: str, subject: tuple[str, ...], text: str, rises: str, *, is_growing_gauge: bool = False
) -> Metric:
    """Define a metric of Connect, with the name that the JMX exporter gives it."""
    name = f"kafka_connect_{bean}_{attribute}".replace("-", "_")
    kind: Literal["counter", "gauge"] = "counter" if attribute.endswith("-total") else "gauge"
    return Metric(
        name,
        kind,
        text,
        rises,
        subject,
        equivalent=f"{bean} {attribute}",
        equivalent_in=CONNECT,
        is_growing_gauge=is_growing_gauge,
    )


def of_sink_task(attribute: str, text: str, rises: str) -> Metric:
    """Define a metric of `sink-task-metrics`."""
    return of_bean("sink-task-metrics", attribute, TASK, text, rises)


def of_task(attribute: str, text: str, rises: str) -> Metric:
    """Define a metric of `connector-task-metrics`."""
    return of_bean("connector-task-metrics", attribute, TASK, text, rises)


def of_errors(attribute: str, text: str, rises: str, *, is_growing_gauge: bool = True) -> Metric:
    """Define a metric of `task-error-metrics`. They only grow, although the exporter makes gauges of them."""
    return of_bean("task-error-metrics", attribute, TASK, text, rises, is_growing_gauge=is_growing_gauge)


def of_worker(attribute: str, text: str, rises: str, subject: tuple[str, ...] = WORKER) -> Metric:
    """Define a metric of `connect-worker-metrics`."""
    return of_bean("connect-worker-metrics", attribute, subject, text, rises)


def of_rebalance(attribute: str, text: str, rises: str) -> Metric:
    """Define a metric of `connect-worker-rebalance-metrics`."""
    return of_bean("connect-worker-rebalance-metrics", attribute, WORKER, text, rises)


def info(bean: str, attribute: str, subject: tuple[str, ...], text: str, rises: str) -> Metric:
    """Define a text attribute of Connect as a metric: its value is 1, and the text is a label."""
    name = f"kafka_connect_{bean}_{attribute}".replace("-", "_")
    own_labels = (attribute.replace("-", "_"),)
    return Metric(
        name, "gauge", text, rises, subject, own_labels, equivalent=f"{bean} {attribute}", equivalent_in=CONNECT
    )


def gauge(name: str, text: str, rises: str, subject: tuple[str, ...] = TASK, labels: tuple[str, ...] = ()) -> Metric:
    """Define a gauge of the sink's own."""
    return Metric(f"keyfold_sink_{name}", "gauge", text, rises, subject, labels)


def counter(name: str, text: str, rises: str, labels: tuple[str, ...] = ()) -> Metric:
    """Define a counter of the sink's own."""
    return Metric(f"keyfold_sink_{name}_total", "counter", text, rises, TASK, labels)


def histogram(name: str, text: str, rises: str, labels: tuple[str, ...] = ()) -> Metric:
    """Define a histogram of durations of the sink's own."""
    return Metric(f"keyfold_sink_{name}", "histogram", text, rises, TASK, labels)
