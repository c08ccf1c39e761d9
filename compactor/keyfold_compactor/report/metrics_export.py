"""Export metrics as configured: serve them while the process lives, push them at the end of a single run.

prometheus_client is imported only if one of the two is configured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from keyfold.replicas.after_run import MetricsRegistry
from keyfold.runtime.clock import Clock
from keyfold.runtime.health import Probed
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.report import NoRunObserver, RunObserver


@contextlib.contextmanager
def measuring(
    options: CompactOptions, clock: Clock, *, is_once: bool, checked: Probed | None = None
) -> Iterator[RunObserver]:
    """Yield the observer of runs. Raise `ConfigError` if metrics cannot be served as configured.

    `checked` answers the probes, if metrics are served. Metrics are also pushed after a run that failed as a whole.
    """
    is_pushed = is_once and bool(options.metrics_push_url)
    if not options.metrics_port and not is_pushed:
        yield NoRunObserver()
        return
    from keyfold.runtime.metrics_server import serving
    from keyfold_compactor.report.metrics_push import push
    from keyfold_compactor.report.run_meter import RunMeter

    meter = RunMeter(clock)
    with contextlib.ExitStack() as stack:
        if options.metrics_port:
            stack.enter_context(serving(meter.registry, options.metrics_host, options.metrics_port, checked))
        try:
            yield meter
        finally:
            if is_pushed:
                push(meter.registry, options.metrics_push_url, options.name)


def metrics_registry(observer: RunObserver) -> MetricsRegistry | None:
    """Return the registry of the observer of runs, for metrics that are exported with its own; None without one."""
    if isinstance(observer, NoRunObserver):
        return None
    from keyfold_compactor.report.run_meter import RunMeter

    assert isinstance(observer, RunMeter)
    return observer.registry
