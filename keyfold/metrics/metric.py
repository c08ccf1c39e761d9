"""Metrics as values: the declaration of a metric, and its samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

MetricKind = Literal["counter", "gauge", "histogram", "unknown"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `help` stands alone: it names subject and unit. `rises` says what a rising value means.

    The labels of `subject` say what is measured, such as a topic and a partition; `own_labels` follow them.
    `equivalent` is the metric of the system `equivalent_in` with the same meaning, or empty.
    """

    name: str
    kind: MetricKind
    help: str
    rises: str
    subject: tuple[str, ...] = ()
    own_labels: tuple[str, ...] = ()
    equivalent: str = ""
    equivalent_in: str = ""
    is_growing_gauge: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels, in the order of a sample's values."""
        return (*self.subject, *self.own_labels)

    @property
    def adds_up(self) -> bool:
        """Whether the value only grows, and continues when a process is replaced. Some systems have such gauges."""
        return self.is_growing_gauge or self.kind in {"counter", "histogram"}

    @property
    def full_help(self) -> str:
        """The help text as Prometheus shows it, with the name in the other system."""
        return f"{self.help} In {self.equivalent_in}: {self.equivalent}." if self.equivalent else self.help


@dataclass(frozen=True, slots=True)
class Sample:
    """A value with its labels in the order of `Metric.labels`; a bucket's labels end with its bound.

    A label with an empty value is left out. `part` is the suffix of the metric's name: `_bucket` or `_sum` of a
    histogram.
    """

    labels: tuple[str, ...]
    value: float
    part: str = ""


Samples = Mapping[Metric, Sequence[Sample]]
"""Metrics with their samples; a metric without a known value has none."""

Labelled = Mapping[tuple[str, ...], float]
"""Values of one metric by the values of its labels."""

MetricValues = Mapping[Metric, float | Labelled | None]
"""Metrics with their values. None: no value is known yet."""


def samples_of(values: MetricValues) -> Samples:
    """Return the samples for values."""
    return {metric: _samples(value) for metric, value in values.items()}


def _samples(value: float | Labelled | None) -> list[Sample]:
    if value is None:
        return []
    labelled = value if isinstance(value, Mapping) else {(): value}
    return [Sample(labels, figure) for labels, figure in labelled.items()]
