"""Third-party clients of Connect's REST API, and a command line for it, against the sink's, over a socket."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import requests
from click.testing import CliRunner
from kafka_connect import KafkaConnect
from kafka_connect.cli import cli as kc
from kafka_connect_api.errors import ConnectApiException, GenericNotFound, GenericUnauthorized
from kafka_connect_api.kafka_connect_api import Api, Cluster

from keyfold_sink.status import RunState
from tests.support.fake_service import CONFIG, FakeService, make_options, serving, task, worker


@pytest.fixture
def service() -> FakeService:
    return FakeService(make_options(), worker(0, task(0), task(1, RunState.FAILED, trace="boom")))


@pytest.fixture
def url(service: FakeService) -> Iterator[str]:
    with serving(service) as server:
        yield server.addresses[0]


def test_kafka_connect_py_reads_a_connector(url: str) -> None:
    client = KafkaConnect(url=url)
    assert set(client.get_cluster_info()) == {"version", "commit", "kafka_cluster_id"}
    assert client.list_connectors() == ["users"]
    assert client.list_connectors(expand="status", pattern="us.*", state="running").keys() == {"users"}
    assert client.list_connectors(pattern="nobody") == []
    assert client.get_connector("users")["type"] == "sink"
    assert client.get_connector_config("users") == CONFIG
    assert [one["state"] for one in client.get_connector_status("users")["tasks"]] == ["RUNNING", "FAILED"]
    assert [one["id"]["task"] for one in client.list_connector_tasks("users")] == [0, 1]
    assert client.get_connector_task_status("users", 1)["trace"] == "boom"
    assert client.list_connector_topics("users") == {"users": {"topics": ["orders", "users"]}}


def test_kafka_connect_py_runs_a_connector(url: str, service: FakeService) -> None:
    client = KafkaConnect(url=url)
    client.pause_connector("users")
    assert client.get_connector_status("users")["connector"]["state"] == "PAUSED"
    client.resume_all_connectors(pattern="u.*")
    client.stop_connector("users")
    client.restart_connector("users")
    assert client.restart_connector("users", include_tasks=True, only_failed=True)["name"] == "users"
    client.restart_connector_task("users", 1)
    client.reset_connector_topics("users")
    assert service.calls == [
        "pause",
        "resume",
        "stop",
        ("restart", False, False),
        ("restart", True, True),
        ("restart task", 1),
    ]


def test_kafka_connect_py_may_put_only_the_running_configuration(url: str) -> None:
    client = KafkaConnect(url=url)
    assert client.create_connector({"name": "users", "config": CONFIG})["name"] == "users"
    assert client.update_connector("users", CONFIG)["config"] == CONFIG
    for attempt in (
        lambda: client.update_connector("users", {**CONFIG, "flush.size": "7"}),
        lambda: client.delete_connector("users"),
        lambda: client.create_connector({"name": "others", "config": {}}),
    ):
        with pytest.raises(requests.HTTPError, match="405"):
            attempt()  # type: ignore[no-untyped-call]  # the library does not annotate it


def test_kafka_connect_py_lists_plugins_and_validates(url: str) -> None:
    client = KafkaConnect(url=url)
    (plugin,) = client.list_connector_plugins()
    assert client.validate_connector_config(plugin["class"], {"name": "x"})["error_count"] == 0
    assert client.validate_connector_config("KeyfoldSinkConnector", {})["error_count"] == 1


def test_kafka_connect_api_works_with_connectors_and_tasks_as_objects(url: str, service: FakeService) -> None:
    cluster = Cluster(Api(url=url))
    assert cluster.kafka_cluster == "I4ZmrWqfT2e-upky_4fdPA"
    connector = cluster.connectors["users"]
    assert connector.exists()  # it asks with a slash at the end
    assert connector.state == "RUNNING"
    assert [one.state for one in connector.tasks] == ["RUNNING", "FAILED"]
    connector.cycle_connector()
    connector.restart()
    connector.config = CONFIG
    assert service.calls == ["pause", ("restart task", 0), ("restart task", 1), "resume", ("restart", False, False)]


def test_kafka_connect_api_sets_log_levels(url: str, service: FakeService) -> None:
    cluster = Cluster(Api(url=url))
    requests.put(f"{url}/admin/loggers/keyfold.clients", json={"level": "INFO"}, timeout=60)
    assert cluster.set_logger_log_level("keyfold.clients", "CRITICAL") == ["keyfold.clients"]
    assert cluster.loggers["keyfold.clients"]["level"] == "FATAL"
    assert service.calls == [("level", "keyfold.clients", "INFO"), ("level", "keyfold.clients", "FATAL")]


def test_kafka_connect_api_reads_errors(url: str) -> None:
    api = Api(url=url)
    with pytest.raises(GenericNotFound):
        api.get("/connectors/nobody")
    with pytest.raises(ConnectApiException):
        api.delete_raw("/connectors/users")


def test_clients_with_basic_authentication_send_the_token_as_password() -> None:
    service = FakeService(make_options(**{"rest.token": "t0p-s3cret"}))
    with serving(service) as server:
        (url,) = server.addresses
        assert KafkaConnect(url=url, auth="anyone:t0p-s3cret").list_connectors() == ["users"]
        assert list(Cluster(Api(url=url, username="anyone", password="t0p-s3cret")).connectors) == ["users"]
        with pytest.raises(requests.HTTPError, match="401"):
            KafkaConnect(url=url, auth="anyone:wrong").list_connectors()
        with pytest.raises(GenericUnauthorized):
            Cluster(Api(url=url)).get()


def test_the_command_kc_shows_and_runs_a_connector(url: str, service: FakeService) -> None:
    def run(*words: str) -> str:
        done = CliRunner().invoke(kc, ["--url", url, *words])
        assert done.exit_code == 0, done.output
        return done.output

    assert "users" in run("list")
    assert json.loads(run("status", "users"))["connector"]["state"] == "RUNNING"
    assert json.loads(run("config", "users")) == CONFIG
    assert json.loads(run("task-status", "users", "1"))["trace"] == "boom"
    assert "orders" in run("list-topics", "users")
    assert "KeyfoldSinkConnector" in run("list-plugins")
    for words in (("pause", "users"), ("resume", "users"), ("restart", "users"), ("restart-task", "users", "1")):
        run(*words)
    assert service.calls == ["pause", "resume", ("restart", False, False), ("restart task", 1)]
