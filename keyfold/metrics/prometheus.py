"""Metrics as Prometheus collects them.

A service derives its collector from `MetricsCollector`, which turns samples into families of Prometheus' client.
`keyfold.runtime.metrics_server` serves the collector's registry. The registry also has two things that every service
reports: its build, and figures of the process that answers the scrape.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from keyfold.metrics.metric import Metric, Sample, Samples

BUILD_INFO: Final = Metric(
    "keyfold_build_info",
    "gauge",
    "1 for the process that serves these metrics, with its service and its version of keyfold as labels.",
    "-",
    own_labels=("service", "version"),
)

PROCESS_PREFIX: Final = "process_"
"""Begins the names of the figures of a process. They have the names that Prometheus gives them in every program."""


class MetricsCollector(Collector):
    """Declared metrics with a registry of their own; `registry.register` adds other collectors to it.

    `service` and `installed` are the labels of `BUILD_INFO`: such as `sink`, and the version of keyfold.
    """

    def __init__(self, metrics: Sequence[Metric], service: str, installed: str | None = None) -> None:
        self._metrics = metrics
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self.registry.register(_Build(service, version("keyfold") if installed is None else installed))
        self.registry.register(_Process(registry=None))

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


class WithoutProcess(Collector):
    """A registry without the figures of the process, for metrics that are read after the process has ended."""

    def __init__(self, registry: Collector) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Family]:
        """Return the metrics of the registry that do not describe a process."""
        return [family for family in self._registry.collect() if not family.name.startswith(PROCESS_PREFIX)]


class _Build(Collector):
    """`BUILD_INFO`, which never changes."""

    def __init__(self, service: str, installed: str) -> None:
        self._family = _family(BUILD_INFO, [Sample((service, installed), 1.0)])

    def describe(self) -> Iterable[Family]:
        """See `MetricsCollector.describe`."""
        return self.collect()

    def collect(self) -> Iterable[Family]:
        """Return the metric in Prometheus' form."""
        return [self._family]


class _Process(ProcessCollector):
    """Figures of this process, from /proc; none on systems without /proc."""

    def describe(self) -> Iterable[Family]:
        """See `MetricsCollector.describe`."""
        return self.collect()


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
