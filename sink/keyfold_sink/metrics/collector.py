"""A worker's metrics as Prometheus collects them.

The supervisor passes reports to `SinkMetrics` (`heard`, `observe`). The REST API at `/metrics`, or a port of its own,
serves the metrics, on any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

from keyfold.metrics.metric import Samples
from keyfold.metrics.prometheus import MetricsCollector
from keyfold.runtime.clock import Clock
from keyfold.runtime.metrics_server import serving
from keyfold_sink.metrics.names import METRICS
from keyfold_sink.metrics.worker_figures import Ledger, View
from keyfold_sink.status import RunState, TaskStatus


class SinkMetrics(MetricsCollector):
    """The metrics of this worker's tasks, as a collector of Prometheus' client. Thread-safe.

    `state` returns the desired state (`SinkControl.target`). `place` returns the id of the worker's first task (its
    slot times `tasks.max`) and the newest version of the desired state that it has carried out. Neither call blocks.
    """

    def __init__(
        self,
        *,
        connector: str,
        connector_class: str,
        version: str,
        clock: Clock,
        state: Callable[[], RunState],
        place: Callable[[], tuple[int, int]],
        all_partitions: bool = False,
    ) -> None:
        self._connector = connector
        self._connector_class = connector_class
        self._version = version
        self._clock = clock
        self._state = state
        self._place = place
        self._all_partitions = all_partitions
        self._lock = threading.Lock()
        self._ledger = Ledger(clock)
        super().__init__(METRICS, "sink", version)

    def on_status(self, status: TaskStatus) -> None:
        """Process a task's report at once, because its last report arrives just before another process replaces it."""
        with self._lock:
            self._ledger.observe(status)

    def observe(self, tasks: Iterable[TaskStatus], replaced: Mapping[str, int]) -> None:
        """Process the supervisor's statuses of all tasks, once per round; a task that is missing was stopped.

        `replaced` is the number of tasks replaced without a request, by cause.
        """
        with self._lock:
            self._ledger.only(tasks, replaced)

    def samples(self) -> Samples:
        """See `MetricsCollector.samples`."""
        first_task_id, orders_version = self._place()
        view = View(
            connector=self._connector,
            connector_class=self._connector_class,
            version=self._version,
            state=self._state(),
            first_task_id=first_task_id,
            orders_version=orders_version,
            now_ms=self._clock.now_ms(),
            all_partitions=self._all_partitions,
        )
        with self._lock:
            return self._ledger.samples(view)


def own_port(metrics: SinkMetrics, host: str, port: int) -> AbstractContextManager[object]:
    """Serve the metrics on a port of their own until the context ends; port 0 serves none. Raise `ConfigError`."""
    return serving(metrics.registry, host, port) if port else nullcontext()
