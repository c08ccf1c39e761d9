"""Two workers with two tasks each, over a real broker: requests reach both, hung tasks are replaced, offsets move."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from urllib.error import HTTPError

import pytest

from keyfold.log.names import Place
from keyfold.read.log import Log
from keyfold.runtime.clock import SystemClock
from keyfold.store.api import ObjectStore
from keyfold.verify.partition import verify_partition
from keyfold_sink.kafka.source import ASKED_REASON
from tests.support.kafka import KafkaBroker, produce_all, synthetic
from tests.support.moto import LocalS3Process
from tests.support.proof import TOPICS_DIR, Flow, Rig, SinkProcess, read_segments, read_topic, wait_for

pytestmark = pytest.mark.kafka

MakeTopic = Callable[..., str]
PARTITIONS = 4
ADDRESS = re.compile(r'"addresses": \["([^"]+)"')


@pytest.fixture
def rig(broker: KafkaBroker, local_s3: LocalS3Process, bucket: str, tmp_path: Path) -> Rig:
    return Rig(broker, local_s3, bucket, tmp_path)


class Client:
    """A worker's REST API."""

    def __init__(self, worker: SinkProcess, name: str) -> None:
        worker.until('"addresses"')
        found = ADDRESS.search(worker.said)
        assert found is not None, worker.said
        self.worker = worker
        self._base = f"{found[1]}/connectors/{name}"
        self._root = found[1]

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Return the response as JSON; raise Connect's error unchanged."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
        except HTTPError as error:
            with error:
                return json.loads(error.read())
        return json.loads(text) if text else None

    def states(self) -> dict[int, str]:
        """Return the state by task id, over all workers."""
        return {task["id"]: task["state"] for task in self.ask("GET", "/status")["tasks"]}

    def offsets(self) -> dict[int, int]:
        """Return the end of each partition's log."""
        rows = self.ask("GET", "/offsets")["offsets"]
        return {row["partition"]["kafka_partition"]: row["offset"]["kafka_offset"] for row in rows}

    def metric(self, name: str) -> float:
        """Return the sum over a metric's samples."""
        with urllib.request.urlopen(f"{self._root}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def task_pids(self) -> list[int]:
        """Return the processes of the worker's tasks."""
        pid = self.worker.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def until_states(clients: list[Client], state: str, tasks: int, timeout_s: float = 120) -> float:
    """Wait until each worker reports this state of all tasks; return the seconds that it took."""
    begun_s = time.monotonic()
    expected = dict.fromkeys(range(tasks), state)

    def agree() -> bool:
        return all(client.states() == expected for client in clients)

    wait_for(agree, timeout_s, f"{tasks} tasks {state}: {[client.states() for client in clients]}")
    return time.monotonic() - begun_s


def shared(rig: Rig) -> list[str]:
    """Return the objects that the workers of all sinks share in the bucket."""
    with open_store(rig) as store:
        return [info.key for info in store.list("topics/_sinks/")]


@contextmanager
def open_store(rig: Rig) -> Iterator[ObjectStore]:
    store = rig.store()
    try:
        yield store
    finally:
        store.close()  # type: ignore[attr-defined]  # the store is in S3


def keys(**others: object) -> dict[str, object]:
    return {
        "tasks_max": 2,
        "listeners": "http://127.0.0.1:0",
        "segment_ms": 300,
        "offset_flush_timeout_ms": 3000,
        **others,
    }


def _landed(rig: Rig, topic: str, client: Client) -> dict[int, int]:
    """Return the ends of the logs once the records before a pause are committed, and every worker knows of it."""
    found = [_ends(rig, topic)]

    def is_still() -> bool:
        time.sleep(1)
        found.append(_ends(rig, topic))
        return found[-1] == found[-2] == client.offsets()

    wait_for(is_still, 60, "what was read before the pause is committed")
    return found[-1]


def _ends(rig: Rig, topic: str) -> dict[int, int]:
    with open_store(rig) as store:
        log = Log(store, "topics", topic)
        return {number: log.manifest(number).next_offset for number in log.partitions()}


@pytest.mark.full
def test_requests_reach_every_worker_a_hanging_task_is_replaced_and_offsets_are_altered(
    rig: Rig, topic: MakeTopic
) -> None:
    name = topic(partitions=PARTITIONS, config={"retention.ms": "-1"})
    config = rig.config(name, **keys(task_hang_timeout_ms=20_000))
    with rig.start(config) as a, rig.start(config) as b:
        one, two = clients = [Client(a, name), Client(b, name)]
        until_states(clients, "RUNNING", 4)
        with Flow(rig, name):
            assert one.ask("PUT", "/pause") is None
            print("paused after", until_states(clients, "PAUSED", 4))
            before = _landed(rig, name, two)
            time.sleep(2)
            assert _ends(rig, name) == two.offsets() == before, "a paused sink must not move"
            two.ask("PUT", "/resume")
            print("running after", until_states(clients, "RUNNING", 4))
            wait_for(lambda: sum(one.offsets().values()) > sum(before.values()), 60, "data moves again")
            _freeze_a_task(one)
            until_states(clients, "RUNNING", 4)
        _alter_offsets(rig, name, one, two)
        assert (a.end(), b.end()) == (0, 0)
    assert shared(rig) == [f"topics/_sinks/{name}/orders.json"]


def _freeze_a_task(one: Client) -> None:
    """The worker replaces it. It may have replaced some before: a busy machine has been seen to start tasks that
    said nothing for as long as they may be silent here."""
    hung = 'keyfold_sink_tasks_replaced_total{cause="hung"'
    before = one.metric(hung)
    frozen = one.task_pids()[0]
    os.kill(frozen, signal.SIGSTOP)
    wait_for(lambda: frozen not in one.task_pids(), 60, "the task that was frozen is gone")
    wait_for(lambda: one.metric(hung) > before, 60, "it is counted as hung")


def _alter_offsets(rig: Rig, name: str, one: Client, two: Client) -> None:
    """Stop, skip records of one partition, resume: all others are in the log, and these are its gap."""
    refused = one.ask("PATCH", "/offsets", _patch(name, 0, 1))
    assert refused["error_code"] == 400
    two.ask("PUT", "/stop")
    print("stopped after", until_states([one, two], "STOPPED", 0))
    produce_all(rig.broker.bootstrap_servers, name, synthetic(1000, key_count=50, partition=0))
    ends = {number: len(read_topic(rig.broker.bootstrap_servers, name, number)) for number in range(PARTITIONS)}
    began = one.offsets()
    for offset in (began[0] - 1, ends[0] + 1):
        assert one.ask("PATCH", "/offsets", _patch(name, 0, offset))["error_code"] == 400
    wanted = _patch(name, 0, began[0] + 400)
    wait_for(lambda: "error_code" not in one.ask("PATCH", "/offsets", wanted), 60, "the offset is altered")
    assert one.offsets()[0] == began[0] + 400
    one.ask("PUT", "/resume")
    wait_for(lambda: two.offsets() == ends, 120, f"{ends}")
    _verify(rig, name, range(began[0], began[0] + 400))


def _patch(name: str, partition: int, offset: int) -> dict[str, object]:
    where = {"kafka_topic": name, "kafka_partition": partition}
    return {"offsets": [{"partition": where, "offset": {"kafka_offset": offset}}]}


def _verify(rig: Rig, name: str, skipped: range) -> None:
    with open_store(rig) as store:
        for number in range(PARTITIONS):
            left_out = skipped if number == 0 else range(0)
            expected = [r for r in read_topic(rig.broker.bootstrap_servers, name, number) if r.offset not in left_out]
            assert read_segments(store, name, number) == expected
            report = verify_partition(store, Place(TOPICS_DIR, name, number), clock=SystemClock(), random=Random(0))
            assert [finding for finding in report.findings if finding.kind.is_damage] == []
    gaps = rig.manifest(name).gaps
    assert [(gap.from_offset, gap.to_offset, gap.reason) for gap in gaps] == [
        (skipped.start, skipped.stop, ASKED_REASON)
    ]


@pytest.mark.full
def test_a_worker_that_starts_while_the_sink_is_paused_reads_nothing_and_one_whose_supervisor_dies_ends(
    rig: Rig, topic: MakeTopic
) -> None:
    name = topic(config={"retention.ms": "-1"})
    config = rig.config(name, **keys(tasks_max=1))
    with rig.start(config) as first:
        one = Client(first, name)
        until_states([one], "RUNNING", 1)
        one.ask("PUT", "/pause")
        until_states([one], "PAUSED", 1)
        task = one.task_pids()[0]
        first.process.kill()  # alone: nobody tells its task
        wait_for(lambda: not Path(f"/proc/{task}").exists(), 60, "the task ends by itself")
    produce_all(rig.broker.bootstrap_servers, name, synthetic(1000, key_count=10))
    with rig.start(config) as second:
        two = Client(second, name)
        wait_for(lambda: "PAUSED" in two.states().values(), 60, "it starts paused")
        time.sleep(2)
        assert sum(two.offsets().values()) == 0
        two.ask("PUT", "/resume")
        wait_for(lambda: sum(two.offsets().values()) == 1000, 60, "all is there")
        assert second.end() == 0
    assert rig.prove(name) == 1000


def test_a_failed_task_is_reported_and_ends_a_worker_without_a_rest_api(rig: Rig, topic: MakeTopic) -> None:
    """The configured bucket does not exist."""
    name = topic()
    missing = {"s3.bucket.name": "no-such-bucket"}
    said = rig.run(_with(rig.config(name), missing), code=1)
    assert "no-such-bucket" in said


def _with(config: Path, changes: dict[str, str]) -> Path:
    config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))
    return config


@pytest.mark.full
def test_several_tasks_until_caught_up_open_no_port_and_leave_nothing_behind(rig: Rig, topic: MakeTopic) -> None:
    name = topic(partitions=PARTITIONS, config={"retention.ms": "-1"})
    produce_all(rig.broker.bootstrap_servers, name, synthetic(5000, key_count=100))
    said = rig.run(rig.config(name, **keys()), "--until-caught-up")
    assert "addresses" not in said
    assert rig.prove(name, PARTITIONS) == 5000
    assert shared(rig) == []
