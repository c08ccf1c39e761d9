"""Metrics as Prometheus collects them.

A service derives its collector from `MetricsCollector`, which turns samples into families of Prometheus' client.
`keyfold.runtime.metrics_server` serves the collector's registry.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from keyfold.metrics.metric import Metric, Sample, Samples


class MetricsCollector(Collector):
    """Declared metrics with a registry of their own; `registry.register` adds other collectors to it."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics
        self.registry = CollectorRegistry()
        self.registry.register(self)

    @abstractmethod
    def samples(self) -> Samples:
        """Return the samples of all metrics. Called by any thread."""

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """Return the metrics text and its content type; `accept` is the request's header of that name."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def describe(self) -> Iterable[Family]:
        """Return the names without computing values, so that `?name[]=` of a scrape finds them."""
        return [_family(metric, ()) for metric in self._metrics]

    def collect(self) -> Iterable[Family]:
        """Return every metric in Prometheus' form."""
        return [_family(metric, found) for metric, found in self.samples().items()]


def _family(metric: Metric, samples: Sequence[Sample]) -> Family:
    suffix = "_total" if metric.kind == "counter" else ""
    name = metric.name.removesuffix(suffix)
    family = Family(name, metric.full_help, metric.kind)
    for sample in samples:
        labels = metric.labels if sample.part != "_bucket" else (*metric.labels, "le")
        given = {label: value for label, value in zip(labels, sample.labels, strict=True) if value}
        family.add_sample(name + suffix + sample.part, given, sample.value)
        if given.get("le") == "+Inf":
            rest = {label: value for label, value in given.items() if label != "le"}
            family.add_sample(name + "_count", rest, sample.value)
    return family
