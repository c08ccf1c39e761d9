"""One sink or reader that is measured from its first record on, for the benchmark of a sink beside a pass.

CPU is that of the whole process, the client's threads included. The sink runs in a fresh process:
`python -m tests.bench._sink_child CONFIG COUNT`.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any

from keyfold.log.record import RecordColumns
from keyfold.log.segment import SegmentWriter
from keyfold.runtime import event_log
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.process_memory import tune_process
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.kafka.consumer import open_consumer
from keyfold_sink.task import run as task
from tests.support.kafka import KafkaBroker


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class CpuFromFirstRecord:
    """Looks at the clock when the first records come out of a consumer."""

    def __init__(self) -> None:
        self.begun: tuple[float, float] | None = None

    def wrap(self, consume: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def wrapped(count: int, timeout: float) -> list[Any]:
            messages = consume(count, timeout)
            if messages and self.begun is None:
                self.begun = (cpu_s(), time.monotonic())
            return messages

        return wrapped

    def result(self, count: int) -> dict[str, float]:
        assert self.begun is not None
        cpu, wall = cpu_s() - self.begun[0], time.monotonic() - self.begun[1]
        return {"cpu_us": cpu / count * 1e6, "per_s": count / wall}


class WrappedConsumer:
    """The sink's consumer, with a look at the clock."""

    def __init__(self, inner: Any, meter: CpuFromFirstRecord) -> None:
        self._inner = inner
        self.consume = meter.wrap(inner.consume)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def child_sink(config_json: str, count_text: str) -> dict[str, float]:
    tune_process()
    event_log.configure(json=True, level="warning")
    _warm_up()
    meter = CpuFromFirstRecord()

    def metered(*arguments: Any) -> Any:
        return WrappedConsumer(open_consumer(*arguments), meter)

    task.open_consumer = metered  # type: ignore[assignment, attr-defined]  # measured in its place
    options, stop = SinkOptions.parse(json.loads(config_json)), threading.Event()
    task.run_task(options, stop=stop, until_caught_up=True, clock=SystemClock(), random=Random())
    return meter.result(int(count_text))


def _warm_up() -> None:
    """Steady state: libraries load parts of themselves at their first use, which takes half a second of CPU."""
    writer = SegmentWriter(sync_marker=bytes(16))
    n = 1000
    writer.append(RecordColumns(range(n), [1] * n, [1] * n, [b"k"] * n, [b"v" * 100] * n, [None] * n, [0] * n))
    writer.finish()


def ask(config: dict[str, str], count: int) -> dict[str, float]:
    """Run the sink of `config` until it has caught up with `count` records: `cpu_us` a record, and records `per_s`."""
    command = [sys.executable, "-m", "tests.bench._sink_child", json.dumps(config), str(count)]
    # This module has imported Arrow before `tune_process` can say which pool it should take.
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=600, env=environment)
    found: dict[str, float] = json.loads(answer.stdout)
    return found


def base_config(broker: KafkaBroker, store: Any, name: str, topic: str) -> dict[str, str]:
    return {
        "name": name,
        "bootstrap.servers": broker.bootstrap_servers,
        "topics": topic,
        "s3.bucket.name": "bench",
        "topics.dir": name,
        "store.url": store.url,
        "s3.region": store.environment["AWS_REGION"],
        "aws.access.key.id": store.environment["AWS_ACCESS_KEY_ID"],
        "aws.secret.access.key": store.environment["AWS_SECRET_ACCESS_KEY"],
    }


if __name__ == "__main__":
    print(json.dumps(child_sink(*sys.argv[1:])))
