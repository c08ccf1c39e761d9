"""A running sink over a real broker, controlled by a third-party client of Connect; and keyfold's own endpoints."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from kafka_connect import KafkaConnect
from prometheus_client.parser import text_string_to_metric_families

from tests.support.kafka import KafkaBroker, produce_all, synthetic
from tests.support.moto import Fault, LocalS3Process
from tests.support.proof import Rig, SinkProcess, wait_for

pytestmark = pytest.mark.kafka

MakeTopic = Callable[..., str]
TOKEN = "t0p-s3cret"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
HOUR_MS = 3_600_000


@pytest.fixture
def rig(broker: KafkaBroker, local_s3: LocalS3Process, bucket: str, tmp_path: Path) -> Rig:
    return Rig(broker, local_s3, bucket, tmp_path)


def guarded(config: Path) -> Path:
    """Return the same configuration with two listeners and a token."""
    listeners = "http://127.0.0.1:0,http://127.0.0.1:0"
    values = {**json.loads(config.read_text()), "listeners": listeners, "rest.token": TOKEN}
    config.write_text(json.dumps(values))
    return config


def addresses(worker: SinkProcess) -> list[str]:
    worker.until('"addresses"')
    found = re.search(r'"addresses": (\[[^\]]*\])', worker.said)
    assert found is not None
    return list(json.loads(found[1]))


def get(url: str, **more: Any) -> requests.Response:
    return requests.get(url, timeout=60, **more)


def test_a_connect_client_runs_a_sink_from_start_to_end(rig: Rig, topic: MakeTopic) -> None:
    name = topic(partitions=2, config={"retention.ms": "-1"})
    with rig.start(guarded(rig.config(name, segment_ms=HOUR_MS, tasks_max=2))) as worker:
        url, other_url = addresses(worker)
        client = KafkaConnect(url=url, auth=f"anyone:{TOKEN}")
        assert client.list_connectors() == [name]
        wait_for(lambda: get(f"{url}/health/ready").ok, 120, "it is ready")
        # A task that has no partition yet is not assigned, also of a worker that is ready.
        wait_for(lambda: _states(client, name) == ["RUNNING"] * 3, 120, "both tasks run")
        assert TOKEN not in json.dumps(client.get_connector(name))
        client.update_connector(name, client.get_connector_config(name))

        produce_all(rig.broker.bootstrap_servers, name, synthetic(1000, key_count=50))
        _flush_and_look(url, name, 1000)
        client.pause_connector(name)
        wait_for(lambda: _states(client, name) == ["PAUSED"] * 3, 120, "it is paused")
        client.resume_connector(name)
        wait_for(lambda: _states(client, name) == ["RUNNING"] * 3, 120, "it runs again")
        before = _tasks(worker)
        assert client.restart_connector(name, include_tasks=True)["connector"]["state"] == "RESTARTING"
        wait_for(lambda: len(_tasks(worker) - before) == 2, 120, "two other processes")
        wait_for(lambda: _states(client, name) == ["RUNNING"] * 3, 120, "they run")
        # A task that is told to leave its group while that is rebalanced may need all the time that it has for leaving.
        wait_for(lambda: _tasks_at_work(url, name) == {0, 1}, 120, "each has a partition")
        client.stop_connector(name)
        wait_for(lambda: _states(client, name) == ["STOPPED"], 120, "it is stopped")
        assert get(f"{url}/health/ready").ok
        assert client.list_connector_topics(name) == {name: {"topics": [name]}}
        _without_the_token(url, other_url)
        assert worker.end() == 0
    assert rig.prove(name, 2) == 1000


def _states(client: KafkaConnect, name: str) -> list[str]:
    found = client.get_connector_status(name)
    return [found["connector"]["state"], *(task["state"] for task in found["tasks"])]


def _partitions(url: str, name: str) -> list[dict[str, Any]]:
    return list(get(f"{url}/connectors/{name}/partitions", headers=BEARER).json()["partitions"])


def _tasks_at_work(url: str, name: str) -> set[int]:
    return {row["task"] for row in _partitions(url, name) if row["state"] == "RUNNING"}


def _flush_and_look(url: str, name: str, records: int) -> None:
    """Nothing is due for an hour; a requested flush makes the records durable immediately."""

    def total(field: str) -> int:
        return sum(row[field] or 0 for row in _partitions(url, name))

    wait_for(lambda: total("position") == records, 120, "all is read")
    assert 0 < total("lag") == records - total("next_offset")  # a rebalance may have flushed some
    assert total("oldest_record_age_ms") > 0
    assert requests.post(f"{url}/connectors/{name}/flush", headers=BEARER, timeout=60).status_code == 202
    wait_for(lambda: total("next_offset") == records, 120, "all is durable")
    assert (total("lag"), total("oldest_record_age_ms")) == (0, 0)


def _tasks(worker: SinkProcess) -> set[int]:
    pid = worker.process.pid
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def _without_the_token(url: str, other_url: str) -> None:
    for address in (url, other_url):
        for path in ("/", "/connectors", "/openapi.json"):
            assert get(address + path).status_code == 401
        families = {family.name for family in text_string_to_metric_families(get(f"{address}/metrics").text)}
        assert len(families) > 10
        assert get(f"{address}/health").json()["status"] == "healthy"


@pytest.mark.full
def test_revoked_rights_are_awaited_and_reported(rig: Rig, topic: MakeTopic, local_s3: LocalS3Process) -> None:
    """A bucket refuses everything, as with expired credentials: a starting task waits too."""
    name = topic(config={"retention.ms": "-1"})
    config = rig.config(name, segment_ms=200, listeners="http://127.0.0.1:0")
    with rig.start(config) as worker:
        (url,) = addresses(worker)

        def task() -> dict[str, Any]:
            found = get(f"{url}/connectors/{name}/status").json()
            return {"trace": "", **(found["tasks"] or [{"state": ""}])[0]}

        wait_for(lambda: task()["state"] == "RUNNING", 120, "it runs")
        produce_all(rig.broker.bootstrap_servers, name, synthetic(100, key_count=50, partition=0))
        worker.until('"next_offset": 100')
        local_s3.set_faults(Fault(f"/{rig.bucket}/", status=403, times=-1))
        produce_all(rig.broker.bootstrap_servers, name, synthetic(100, key_count=50, partition=0))
        wait_for(lambda: task()["state"] == "UNASSIGNED", 120, "it does not claim to run")
        assert "s3:PutObject" in task()["trace"]
        (pid,) = _tasks(worker)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: _tasks(worker) not in ({pid}, set()), 120, "another process has its place")
        wait_for(lambda: "403" in task()["trace"] and task()["state"] == "UNASSIGNED", 120, "it waits, too")
        local_s3.set_faults()
        wait_for(lambda: task()["state"] == "RUNNING", 60, "it goes on by itself")
        worker.until('"next_offset": 200', 60)
        assert worker.end() == 0
    assert rig.prove(name) == 200
