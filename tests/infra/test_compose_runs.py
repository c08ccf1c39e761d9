"""What the laptop stack runs, without docker: its scripts and services, with its configurations, as processes.

Kafka is the tests' own, the S3 server the very one. Hosts come from the environment, as in compose.yaml; ports that are
served are free ones here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
import yaml

from keyfold_demo.children import free_port
from tests.support.kafka import KafkaBroker
from tests.support.versitygw import Versitygw

pytestmark = [pytest.mark.real, pytest.mark.kafka, pytest.mark.spark]

COMPOSE = Path(__file__).parents[2] / "infra" / "compose"
SERVICES = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
RECORDS = 2000
PATIENCE_S = 180


@pytest.fixture(scope="module")
def store() -> Iterator[Versitygw]:
    """A server of our own: the stack's buckets have fixed names."""
    environment = SERVICES["s3"]["environment"]
    with Versitygw(
        access_key_id=environment["ROOT_ACCESS_KEY"], secret_access_key=environment["ROOT_SECRET_KEY"]
    ) as running:
        yield running


@pytest.fixture
def ran(broker: KafkaBroker, store: Versitygw) -> Callable[..., str]:
    def run(service: str, *words: str) -> str:
        answer = subprocess.run(
            words, env=environment(service, broker, store), capture_output=True, text=True, check=False, timeout=300
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout

    return run


def environment(service: str, broker: KafkaBroker, store: Versitygw) -> dict[str, str]:
    """What compose.yaml gives the service, but for the hosts, on top of what every process here needs."""
    there = {"AWS_ENDPOINT_URL": store.url, "BOOTSTRAP_SERVERS": broker.bootstrap_servers}
    given = {name: there.get(name, value) for name, value in SERVICES[service]["environment"].items()}
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, **given, "PATH": programs}


def with_free_ports(name: str, folder: Path) -> tuple[Path, int]:
    """The configuration as it is in the stack, served on one free port of loopback."""
    document = json.loads((COMPOSE / "config" / f"{name}.json").read_text())
    port = free_port()
    if name == "sink":
        document["config"]["listeners"] = f"http://127.0.0.1:{port}"
    else:
        document |= {"metrics.host": "127.0.0.1", "metrics.port": str(port)}
    written = folder / f"{name}.json"
    written.write_text(json.dumps(document))
    return written, port


def test_records_go_through_sink_compactor_and_replicator(
    broker: KafkaBroker, store: Versitygw, ran: Callable[..., str], tmp_path: Path
) -> None:
    script = [sys.executable, str(COMPOSE / "setup.py")]
    ran("setup", *script)
    ran("setup", *script)  # `up` again finds all of it there
    ran("produce", sys.executable, str(COMPOSE / "produce.py"), str(RECORDS))

    config, port = with_free_ports("sink", tmp_path)
    sink = subprocess.Popen(
        ["keyfold", "sink", "run", str(config)], env=environment("sink", broker, store), stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: sum(next_offsets(ran)) == RECORDS)
        assert asked(port, "/health/live") == 200
        assert asked(port, "/metrics") == 200
        assert asked(port, "/connectors/users/status") == 401
        assert asked(port, "/connectors/users/status", token=SERVICES["sink"]["environment"]["REST_TOKEN"]) == 200
    finally:
        sink.send_signal(signal.SIGTERM)
        assert sink.wait(60) == 0

    config, _ = with_free_ports("compact", tmp_path)
    words = SERVICES["compactor"]["command"]
    report = json.loads(
        ran("compactor", *(str(config) if word.startswith("/etc") else word for word in words), "--once", "--json")
    )
    assert {each["outcome"] for each in report["partitions"]} == {"cleaned"}

    config, _ = with_free_ports("replica", tmp_path)
    ran("replica", "keyfold", "replica", "run", str(config), "--once")
    ran("replica", "keyfold", "replica", "status", "s3://log/topics", "dr", "--check")
    ran("replica", "keyfold", "log", "verify", "s3://log/topics", "users")
    ran("replica", "keyfold", "log", "verify", "s3://log-dr/topics", "users")
    latest = ran("replica", "keyfold", "log", "cat", "s3://log/topics", "users", "--latest", "--json")
    assert latest == ran("replica", "keyfold", "log", "cat", "s3://log-dr/topics", "users", "--latest", "--json")
    assert 150 < len(latest.splitlines()) <= 200


def next_offsets(ran: Callable[..., str]) -> list[int]:
    listed = ran("replica", "keyfold", "log", "list", "s3://log/topics", "--json")
    return [json.loads(line)["next_offset"] for line in listed.splitlines()]


def asked(port: int, path: str, *, token: str = "") -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urlopen(Request(f"http://127.0.0.1:{port}{path}", headers=headers), timeout=10) as answer:
            return int(answer.status)
    except URLError as error:
        return int(getattr(error, "code", 0))


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(1)
