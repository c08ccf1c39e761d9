"""What every service's endpoint reports besides its own metrics: its build, and the process that serves."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from keyfold.metrics.prometheus import MetricsCollector, WithoutProcess
from keyfold.runtime.clock import ManualClock
from keyfold_compactor.report.run_meter import RunMeter
from keyfold_replicator.status.metrics import ReplicaMeter
from keyfold_sink.metrics.collector import SinkMetrics
from keyfold_sink.status import RunState


def sink_metrics() -> MetricsCollector:
    return SinkMetrics(
        connector="users",
        connector_class="io.Sink",
        version=version("keyfold"),
        clock=ManualClock(),
        state=lambda: RunState.RUNNING,
        place=lambda: (0, 1),
    )


def run_meter() -> MetricsCollector:
    return RunMeter(ManualClock())


each_service = pytest.mark.parametrize(
    ("service", "made"), [("sink", sink_metrics), ("compactor", run_meter), ("replicator", ReplicaMeter)]
)

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@each_service
def test_every_endpoint_names_its_service_and_version(service: str, made: Callable[[], MetricsCollector]) -> None:
    found = parsed(made().text()[0].decode())
    assert found["keyfold_build_info", (("service", service), ("version", version("keyfold")))] == 1


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="figures of a process need /proc")
@each_service
def test_every_endpoint_reports_the_process_that_serves(service: str, made: Callable[[], MetricsCollector]) -> None:
    del service
    found = parsed(made().text()[0].decode())
    assert found["process_resident_memory_bytes", ()] > 0
    assert found["process_cpu_seconds_total", ()] >= 0
    assert found["process_open_fds", ()] <= found["process_max_fds", ()]
    assert found["process_start_time_seconds", ()] > 0


def test_a_scrape_can_ask_for_the_build_and_the_process_by_name() -> None:
    names = ["keyfold_build_info", "process_start_time_seconds"]
    found = parsed(generate_latest(run_meter().registry.restricted_registry(names)).decode())
    assert {name for name, _ in found} <= {*names}
    assert "keyfold_build_info" in {name for name, _ in found}


def test_rounds_of_replicas_in_a_compactor_add_no_second_process() -> None:
    meter = run_meter()
    meter.registry.register(ReplicaMeter())
    text = meter.text()[0].decode()
    assert text.count("# HELP keyfold_build_info ") == 1
    assert text.count("# HELP process_cpu_seconds_total ") <= 1


def test_what_outlives_the_process_has_no_figures_of_it() -> None:
    found = parsed(generate_latest(WithoutProcess(run_meter().registry)).decode())
    names = {name for name, _ in found}
    assert "keyfold_build_info" in names
    assert not [name for name in names if name.startswith("process_")]
