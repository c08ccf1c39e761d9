"""The sink's metrics compared with produced records and objects in the bucket, with a real broker and processes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from keyfold.metrics.metric import Metric
from keyfold_sink.metrics import connect_names, names
from keyfold_sink.metrics.names import BY_NAME
from tests.support.kafka import KafkaBroker, produce_all, synthetic
from tests.support.moto import Fault, LocalS3Process
from tests.support.proof import SOON_MISSED, Rig, SinkProcess, wait_for

pytestmark = pytest.mark.kafka

MakeTopic = Callable[..., str]
PARTITIONS = 4
RECORDS = 10_000


@pytest.fixture
def rig(broker: KafkaBroker, local_s3: LocalS3Process, bucket: str, tmp_path: Path) -> Rig:
    return Rig(broker, local_s3, bucket, tmp_path)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Scrapes:
    """The metrics of one worker as Prometheus sees them; no counter may fall between two scrapes."""

    url: str
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = field(default_factory=dict)

    def now(self) -> None:
        with urllib.request.urlopen(self.url, timeout=60) as answer:
            text = answer.read().decode()
        fresh = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        for key, count in self.found.items():
            metric = BY_NAME.get(key[0].removesuffix("_bucket").removesuffix("_count").removesuffix("_sum"))
            if metric is not None and metric.adds_up:
                assert fresh.get(key, -1.0) >= count, f"{key} fell from {count}"
        self.found = fresh

    def total(self, metric: Metric, **labels: str) -> float:
        """Return the sum over all tasks."""
        return sum(
            v for (name, own), v in self.found.items() if name == metric.name and labels.items() <= dict(own).items()
        )

    def each(self, metric: Metric) -> list[float]:
        return [v for (name, _), v in self.found.items() if name == metric.name]

    def until(self, what: Callable[[], bool], timeout_s: float = 60, why: str = "") -> None:
        def scraped() -> bool:
            with contextlib.suppress(OSError):  # it has not begun to listen
                self.now()
            return what()

        wait_for(scraped, timeout_s, why)


def task_pids(sink: SinkProcess) -> list[int]:
    children = Path(f"/proc/{sink.process.pid}/task/{sink.process.pid}/children").read_text().split()
    return [int(pid) for pid in children]


@pytest.fixture
def started(rig: Rig, topic: MakeTopic) -> Iterator[tuple[str, SinkProcess, Scrapes]]:
    """Yield a worker of two tasks that has all partitions of an empty topic."""
    name = topic(PARTITIONS, config={"retention.ms": "-1"})
    port = free_port()
    config = rig.config(
        name, tasks_max=2, metrics_port=port, segment_ms=500, listeners="http://127.0.0.1:0", **SOON_MISSED
    )
    with rig.start(config) as sink:
        scrapes = Scrapes(f"http://127.0.0.1:{port}/metrics")

        def settled() -> bool:
            running = scrapes.total(names.BY_STATE, state="RUNNING") == PARTITIONS
            return (
                running
                and scrapes.each(connect_names.PARTITIONS) == [2.0, 2.0]
                and scrapes.total(connect_names.REBALANCING) == 0
            )

        scrapes.until(settled, why="both tasks have claimed")
        yield name, sink, scrapes


def test_metrics_match_the_produced_records_and_the_bucket(rig: Rig, started: tuple[str, SinkProcess, Scrapes]) -> None:
    name, sink, scrapes = started
    rows = synthetic(RECORDS, key_count=1_000, base_timestamp_ms=int(time.time() * 1000))
    assert produce_all(rig.broker.bootstrap_servers, name, rows) == RECORDS
    scrapes.until(lambda: scrapes.total(names.COMMITTED) == RECORDS, why="all is committed")
    scrapes.until(lambda: scrapes.total(names.LAG) == 0)

    assert scrapes.total(connect_names.READ) == scrapes.total(connect_names.SENT) == RECORDS
    assert scrapes.total(connect_names.ACTIVE) == 0
    assert all(rate > 0 for rate in scrapes.each(connect_names.READ_RATE))
    assert scrapes.each(connect_names.TASK_STATUS) == [1.0, 1.0]
    assert scrapes.total(connect_names.TASKS_RUNNING) == 2
    assert scrapes.total(connect_names.STATUS, status="running") == 1
    assert PARTITIONS <= scrapes.total(names.CLAIMS) <= 2 * PARTITIONS, "who came first may have had all of them"
    assert scrapes.total(names.STORE_ERRORS, code="SlowDown") == 0
    scrapes.until(lambda: scrapes.total(connect_names.OFFSETS_COMMITTED) >= 2)

    store = rig.store()
    objects = [row for row in store.list(f"topics/{name}/") if not row.key.endswith("_manifest.avro")]
    store.close()  # type: ignore[attr-defined]  # the store is in S3
    indexes = [row.size_bytes for row in objects if "/_index/" in row.key]
    assert scrapes.total(names.OBJECTS) == len(objects)
    assert scrapes.total(names.OBJECT_BYTES) == sum(row.size_bytes for row in objects)
    assert scrapes.total(names.OBJECT_BYTES, kind="index") == sum(indexes)
    assert scrapes.total(names.SENT_BYTES) > scrapes.total(names.OBJECT_BYTES), "manifests, too"
    assert scrapes.total(names.REQUESTS, operation="create") >= len(objects)
    assert scrapes.total(names.COMMITS) == len(objects) / 2

    assert sink.end() == 0
    assert rig.prove(name, PARTITIONS) == RECORDS


@pytest.mark.full
def test_a_requested_restart_loses_no_count_and_rest_serves_the_same_metrics(
    rig: Rig, started: tuple[str, SinkProcess, Scrapes]
) -> None:
    name, sink, scrapes = started
    address = re.search(r'"addresses": \["([^"]+)"', sink.said)
    assert address is not None
    produced = 0
    for starts in (4, 6):
        rows = synthetic(RECORDS, key_count=1_000, seed=starts)
        produced += produce_all(rig.broker.bootstrap_servers, name, rows)
        restart = f"{address[1]}/connectors/{name}/restart?includeTasks=true"
        with urllib.request.urlopen(urllib.request.Request(restart, method="POST"), timeout=60) as answer:
            assert answer.status == 202
        # Those of before flush first; who is restarted before it has joined has not started.
        scrapes.until(lambda starts=starts: scrapes.total(connect_names.TASK_STARTED) == starts)  # type: ignore[misc]  # mypy does not infer a lambda with a default
        scrapes.until(lambda produced=produced: scrapes.total(names.COMMITTED) >= produced)  # type: ignore[misc]  # mypy does not infer a lambda with a default
    assert scrapes.total(names.COMMITTED) == produced, "each once, whichever task it was"
    assert scrapes.total(names.REPLACED) == 0
    assert scrapes.total(connect_names.TASK_STARTS) == 6
    rest = Scrapes(f"{address[1]}/metrics")

    def are_the_same() -> bool:  # metrics of recent batches come and go between two scrapes
        rest.now()
        return {name for name, _ in rest.found} == {name for name, _ in scrapes.found}

    scrapes.until(are_the_same)
    assert rest.total(names.COMMITTED) == produced
    assert sink.end() == 0
    assert rig.prove(name, PARTITIONS) == produced


@pytest.mark.full
def test_counters_continue_when_a_task_is_killed_and_store_errors_are_counted_by_code(
    rig: Rig, local_s3: LocalS3Process, started: tuple[str, SinkProcess, Scrapes]
) -> None:
    name, sink, scrapes = started
    servers = rig.broker.bootstrap_servers
    assert produce_all(servers, name, synthetic(RECORDS, key_count=1_000)) == RECORDS
    scrapes.until(lambda: scrapes.total(names.COMMITTED) == RECORDS)
    victim = task_pids(sink)[0]
    os.kill(victim, signal.SIGKILL)
    scrapes.until(lambda: scrapes.total(names.REPLACED, cause="crashed") == 1)
    scrapes.until(lambda: scrapes.total(connect_names.TASK_STARTS) == 3)
    assert scrapes.total(names.COMMITTED) == RECORDS, "what the dead one had counted is kept"

    assert produce_all(servers, name, synthetic(RECORDS, key_count=1_000, seed=1)) == RECORDS
    scrapes.until(lambda: scrapes.total(names.COMMITTED) == 2 * RECORDS, 120, "the other has taken over")
    assert scrapes.total(connect_names.READ) >= 2 * RECORDS, "the last record of each log is read again"

    # The client sends an index once, so the sink has to repeat it. Parts of a segment the client may repeat by itself.
    local_s3.set_faults(Fault(rf"^PUT .*topics/{name}/.*/_index/", status=503, times=10))
    assert produce_all(servers, name, synthetic(1_000, key_count=10, seed=2, partition=0)) == 1_000
    scrapes.until(lambda: scrapes.total(names.COMMITTED) == 2 * RECORDS + 1_000, 120)
    assert scrapes.total(names.STORE_ERRORS, code="SlowDown") == 10
    assert scrapes.total(connect_names.RETRIES) > 0
    assert sink.end() == 0
    assert rig.prove(name, PARTITIONS) == 2 * RECORDS + 1_000
