"""The metrics of `keyfold serve`: their table, and their values in this process."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from threading import Lock
from typing import Final

from keyfold.metrics.metric import Metric, Sample, Samples
from keyfold.metrics.prometheus import MetricsCollector

REQUESTS: Final = Metric(
    "keyfold_serve_requests_total",
    "counter",
    "Requests that the server has answered, by endpoint and HTTP status.",
    "with the status 503: the store does not answer, or too many requests are in progress; with 500: see the log",
    own_labels=("endpoint", "status"),
)
SECONDS: Final = Metric(
    "keyfold_serve_request_seconds",
    "histogram",
    "Seconds that the server took to answer a request, by endpoint.",
    "the store is slow, or directories of keys are made again and again: give the server more memory for them",
    own_labels=("endpoint",),
)
TOPICS: Final = Metric(
    "keyfold_serve_topics", "gauge", "Topics whose directories of keys the server has in memory.", "-"
)
DIRECTORY_BYTES: Final = Metric(
    "keyfold_serve_directory_bytes",
    "gauge",
    "Bytes of memory that the server's directories of keys take.",
    "to the limit: topics are forgotten and read again",
)
METRICS: Final = (REQUESTS, SECONDS, TOPICS, DIRECTORY_BYTES)

_BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ServerMeter(MetricsCollector):
    """Counts requests. `topics` and `memory_bytes` are asked when somebody looks. Thread-safe."""

    def __init__(
        self, topics: Callable[[], int], memory_bytes: Callable[[], int], installed: str | None = None
    ) -> None:
        self._topics = topics
        self._memory_bytes = memory_bytes
        self._lock = Lock()
        self._requests: Counter[tuple[str, str]] = Counter()
        self._seconds: dict[str, float] = {}
        self._within: dict[str, list[int]] = {}
        super().__init__(METRICS, "server", installed)

    def count(self, endpoint: str, status: int, took_s: float) -> None:
        """Count one answer. `endpoint` is a route, such as `/topics/{topic}/keys/{key}`."""
        with self._lock:
            self._requests[endpoint, str(status)] += 1
            self._seconds[endpoint] = self._seconds.get(endpoint, 0.0) + took_s
            within = self._within.setdefault(endpoint, [0] * (len(_BOUNDS_S) + 1))
            within[bisect_left(_BOUNDS_S, took_s)] += 1

    def samples(self) -> Samples:
        """See `MetricsCollector.samples`."""
        with self._lock:
            requests = [Sample(labels, float(count)) for labels, count in self._requests.items()]
            seconds = [each for endpoint in self._within for each in self._histogram(endpoint)]
        return {
            REQUESTS: requests,
            SECONDS: seconds,
            TOPICS: [Sample((), float(self._topics()))],
            DIRECTORY_BYTES: [Sample((), float(self._memory_bytes()))],
        }

    def _histogram(self, endpoint: str) -> list[Sample]:
        bounds, total, found = [*map(str, _BOUNDS_S), "+Inf"], 0, []
        for bound, count in zip(bounds, self._within[endpoint], strict=True):
            total += count
            found.append(Sample((endpoint, bound), float(total), "_bucket"))
        return [*found, Sample((endpoint,), self._seconds[endpoint], "_sum")]
