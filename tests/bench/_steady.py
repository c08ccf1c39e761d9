"""A sink in steady state: records per second and CPU per record while all of its tasks read.

A sink is paused at its start until each task has its partitions, so joining and claiming are over when reading begins.
The figures are slopes over the samples in which every task has read something and will read more. CPU is that of the
sink's processes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import Request, urlopen

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from tests.bench._processes import children, ticks

_METRICS: Final = "kafka_connect_sink_task_metrics_"
_SAMPLE_S: Final = 0.2
_SETTLED: Final = 10
_LEAST: Final = 10


@dataclass(frozen=True, slots=True)
class Sample:
    """CPU so far, and the records that each task has read."""

    at_s: float
    cpu_s: float
    read: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Steady:
    """Figures of a window of this length."""

    cpu_us: float
    per_s: float
    window_s: float


def steady(config: Path, url: str, name: str, tasks: int, count: int, environment: Mapping[str, str]) -> Steady:
    """Run a sink, whose REST API is at `url`, until it has read `count` records. Raises where it fails."""
    command = [sys.executable, "-m", "keyfold_sink", "run", str(config), "--json"]
    with subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL) as process:
        try:
            _until(process, lambda: _put(f"{url}/connectors/{name}/pause"))
            assigned: list[Mapping[str, float]] = []
            _until(process, lambda: _is_settled(assigned, _by_task(url, "partition_count"), tasks))
            _put(f"{url}/connectors/{name}/resume")
            samples = list(_samples(process, url, count))
        finally:
            process.terminate()
    if process.returncode != 0:
        raise RuntimeError(f"the sink ended with {process.returncode}")
    return slopes(window(samples))


def window(samples: Sequence[Sample]) -> list[Sample]:
    """The samples in which each task has read something and will read more."""
    last = samples[-1].read
    return [each for each in samples if all(0 < count < last[task] for task, count in each.read.items())]


def slopes(samples: Sequence[Sample]) -> Steady:
    """Records per second, and CPU per record."""
    if len(samples) < _LEAST:
        raise RuntimeError(f"{len(samples)} samples in which all tasks read are too few: use more records")
    at_s, cpu_s = (np.array([getattr(each, name) for each in samples]) for name in ("at_s", "cpu_s"))
    read = np.array([sum(each.read.values()) for each in samples])
    per_s, cpu_per_s = np.polyfit(at_s, read, 1)[0], np.polyfit(at_s, cpu_s, 1)[0]
    return Steady(cpu_per_s / per_s * 1e6, per_s, at_s[-1] - at_s[0])


def _samples(process: subprocess.Popen[bytes], url: str, count: int) -> Iterator[Sample]:
    read: Mapping[str, float] = {}
    while process.poll() is None and sum(read.values()) < count:
        read = _by_task(url, "sink_record_read_total")
        used = sum(ticks(pid) for pid in (process.pid, *children(process.pid)))
        yield Sample(time.monotonic(), used / os.sysconf("SC_CLK_TCK"), read)
        time.sleep(_SAMPLE_S)


def _until(process: subprocess.Popen[bytes], is_so: Callable[[], bool]) -> None:
    while process.poll() is None:
        with contextlib.suppress(URLError, ConnectionError):
            if is_so():
                return
        time.sleep(_SAMPLE_S)


def _is_settled(seen: list[Mapping[str, float]], assigned: Mapping[str, float], tasks: int) -> bool:
    """Whether each task has had the same partitions for a while."""
    seen.append(assigned)
    return sum(count > 0 for count in assigned.values()) == tasks and seen[-_SETTLED:] == [assigned] * _SETTLED


def _put(url: str) -> bool:
    with urlopen(Request(url, method="PUT"), timeout=5):
        return True


def _by_task(url: str, metric: str) -> dict[str, float]:
    with urlopen(f"{url}/metrics", timeout=5) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    found = (sample for family in families for sample in family.samples)
    return {sample.labels["task"]: sample.value for sample in found if sample.name == _METRICS + metric}
