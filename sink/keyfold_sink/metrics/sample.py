"""One sample of a metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keyfold_sink.metrics.metric import Metric


@dataclass(frozen=True, slots=True)
class Sample:
    """A value with its labels in the order of `Metric.labels`; a bucket's labels end with its bound.

    `part` is the suffix of the metric's name: `_bucket` or `_sum` of a histogram.
    """

    labels: tuple[str, ...]
    value: float
    part: str = ""


Samples = Mapping[Metric, Sequence[Sample]]
