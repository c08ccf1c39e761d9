"""Requests and responses of Connect's documentation by Kafka and Confluent, sent to the sink.

The connector of those pages is `hdfs-sink-connector` with two tasks; here it is a sink of that name. What differs on
purpose stands in docs/rest.md.
"""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from keyfold_sink.config.options import SinkOptions
from keyfold_sink.rest.server import make_app
from keyfold_sink.status import RunState
from tests.support.fake_service import FakeService, make_backend, task, worker

NAME = "hdfs-sink-connector"
TRACE = "org.apache.kafka.common.errors.RecordTooLargeException\n"
CONFIG = {
    "name": NAME,
    "bootstrap.servers": "broker:9092",
    "tasks.max": "10",
    "topics": "test-topic",
    "s3.bucket.name": "log",
    "flush.size": "100",
}
INFO = {
    "name": NAME,
    "config": CONFIG,
    "tasks": [{"connector": NAME, "task": 0}, {"connector": NAME, "task": 1}],
    "type": "sink",
}
STATUS = {
    "name": NAME,
    "connector": {"state": "RUNNING", "worker_id": "fakehost:8083"},
    "tasks": [
        {"id": 0, "state": "RUNNING", "worker_id": "fakehost:8083"},
        {"id": 1, "state": "FAILED", "worker_id": "fakehost:8083", "trace": TRACE},
    ],
    "type": "sink",
}


@pytest.fixture
def service() -> FakeService:
    failed = task(1, RunState.FAILED, trace=TRACE)
    return FakeService(SinkOptions.parse(CONFIG), worker(0, task(0), failed, worker_id="fakehost:8083"))


@pytest.fixture
def client(service: FakeService) -> TestClient:
    return TestClient(make_app(make_backend(service), token=None), base_url="http://localhost:8083")


def get(client: TestClient, path: str) -> Any:
    response = client.get(path, headers={"Accept": "application/json"})
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    return response.json()


def test_the_root_tells_version_commit_and_cluster(client: TestClient) -> None:
    found = get(client, "/")
    assert set(found) == {"version", "commit", "kafka_cluster_id"}
    assert found["kafka_cluster_id"] == "I4ZmrWqfT2e-upky_4fdPA"


def test_connectors_are_a_list_of_names(client: TestClient) -> None:
    assert get(client, "/connectors") == [NAME]


def test_expand_gives_status_and_info_by_name(client: TestClient) -> None:
    assert get(client, "/connectors?expand=status&expand=info") == {NAME: {"status": STATUS, "info": INFO}}
    assert get(client, "/connectors?expand=status") == {NAME: {"status": STATUS}}
    assert get(client, "/connectors?expand=info") == {NAME: {"info": INFO}}


def test_an_unknown_expansion_is_ignored(client: TestClient) -> None:
    assert get(client, "/connectors?expand=nonsense") == {NAME: {}}


def test_a_connector_has_name_config_tasks_and_type(client: TestClient) -> None:
    assert get(client, f"/connectors/{NAME}") == INFO


def test_a_configuration_is_a_flat_map_of_strings(client: TestClient) -> None:
    assert get(client, f"/connectors/{NAME}/config") == CONFIG


def test_the_status_has_the_connector_and_each_task(client: TestClient) -> None:
    assert get(client, f"/connectors/{NAME}/status") == STATUS


def test_tasks_have_ids_and_configurations(client: TestClient) -> None:
    tasks = get(client, f"/connectors/{NAME}/tasks")
    assert [task["id"] for task in tasks] == [{"connector": NAME, "task": 0}, {"connector": NAME, "task": 1}]
    assert all(task["config"] == CONFIG for task in tasks)


def test_the_configuration_of_tasks_is_keyed_by_connector_and_task(client: TestClient) -> None:
    assert get(client, f"/connectors/{NAME}/tasks-config") == {f"{NAME}-0": CONFIG, f"{NAME}-1": CONFIG}


def test_the_status_of_a_task(client: TestClient) -> None:
    assert get(client, f"/connectors/{NAME}/tasks/1/status") == STATUS["tasks"][1]  # type: ignore[index]  # it is there, or the test fails


def test_active_topics_are_keyed_by_the_connectors_name(client: TestClient) -> None:
    assert get(client, f"/connectors/{NAME}/topics") == {NAME: {"topics": ["orders", "users"]}}


@pytest.mark.parametrize("what", ["pause", "resume", "stop", "topics/reset"])
def test_pause_resume_stop_and_reset_of_topics_are_accepted_without_a_body(client: TestClient, what: str) -> None:
    response = client.put(f"/connectors/{NAME}/{what}")
    assert (response.status_code, response.content) == (202, b"")


def test_a_plain_restart_has_no_content(client: TestClient, service: FakeService) -> None:
    response = client.post(f"/connectors/{NAME}/restart")
    assert (response.status_code, response.content) == (204, b"")
    assert service.calls == [("restart", False, False)]


def test_a_restart_of_failed_tasks_returns_the_resulting_status(client: TestClient, service: FakeService) -> None:
    response = client.post(f"/connectors/{NAME}/restart?includeTasks=true&onlyFailed=true")
    assert response.status_code == 202
    found = response.json()
    assert found["connector"]["state"] == "RUNNING"
    assert [task["state"] for task in found["tasks"]] == ["RUNNING", "RESTARTING"]
    assert service.calls == [("restart", True, True)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("includeTasks=true", ["RESTARTING", "RESTARTING", "RESTARTING"]),
        ("onlyFailed=true", ["RUNNING", "RUNNING", "FAILED"]),
        ("includeTasks=true&onlyFailed=false", ["RESTARTING", "RESTARTING", "RESTARTING"]),
    ],
)
def test_flags_of_a_restart_choose_what_is_restarted(client: TestClient, query: str, expected: list[str]) -> None:
    found = client.post(f"/connectors/{NAME}/restart?{query}").json()
    assert [found["connector"]["state"], *(task["state"] for task in found["tasks"])] == expected


def test_a_restart_of_a_task_has_no_content(client: TestClient, service: FakeService) -> None:
    response = client.post(f"/connectors/{NAME}/tasks/1/restart")
    assert (response.status_code, response.content) == (204, b"")
    assert service.calls == [("restart task", 1)]


def test_offsets_are_lists_of_partition_and_offset(client: TestClient, service: FakeService) -> None:
    service.ends = {("test-topic", 3): 1000}
    assert get(client, f"/connectors/{NAME}/offsets") == {
        "offsets": [
            {"partition": {"kafka_topic": "test-topic", "kafka_partition": 3}, "offset": {"kafka_offset": 1000}},
        ]
    }


def test_offsets_of_a_stopped_connector_are_altered(client: TestClient, service: FakeService) -> None:
    service.ends = {("test-topic", 3): 1000}
    client.put(f"/connectors/{NAME}/stop")
    body = {
        "offsets": [
            {"partition": {"kafka_topic": "test-topic", "kafka_partition": 3}, "offset": {"kafka_offset": 1200}},
        ]
    }
    response = client.patch(f"/connectors/{NAME}/offsets", json=body)
    assert response.status_code == 200
    assert response.json() == {"message": "The offsets for this connector have been altered successfully"}
    assert service.ends == {("test-topic", 3): 1200}


def test_an_error_has_a_code_and_a_message(client: TestClient) -> None:
    response = client.get("/connectors/no-such-connector")
    assert response.status_code == 404
    found = response.json()
    assert set(found) == {"error_code", "message"}
    assert found["error_code"] == 404
    assert found["message"].startswith("Connector no-such-connector not found")


def test_plugins_have_class_type_and_version(client: TestClient) -> None:
    (found,) = get(client, "/connector-plugins")
    assert set(found) == {"class", "type", "version"}
    assert found["type"] == "sink"


def test_a_plugins_keys_are_listed_by_any_of_its_names(client: TestClient) -> None:
    long = get(client, "/connector-plugins")[0]["class"]
    short = long.rpartition(".")[2]
    found = [
        get(client, f"/connector-plugins/{name}/config") for name in (long, short, short.removesuffix("Connector"))
    ]
    assert found[0] == found[1] == found[2]
    assert set(found[0][0]) >= {"name", "type", "required", "default_value", "importance", "documentation", "order"}


def test_a_configuration_is_validated_key_by_key(client: TestClient) -> None:
    body = {"connector.class": "keyfold_sink.KeyfoldSinkConnector", "tasks.max": 1, "topics": "test-topic"}
    response = client.put("/connector-plugins/KeyfoldSinkConnector/config/validate", json=body)
    assert response.status_code == 200
    found = response.json()
    assert set(found) == {"name", "error_count", "groups", "configs"}
    assert found["error_count"] == 1
    assert {key for one in found["configs"] for key in one} == {"definition", "value"}
    assert set(found["configs"][0]["value"]) == {"name", "value", "recommended_values", "errors", "visible"}


def test_a_healthy_worker_answers_in_connects_words(client: TestClient) -> None:
    assert get(client, "/health") == {
        "status": "healthy",
        "message": "Worker has completed startup and is ready to handle requests.",
    }


def test_loggers_have_a_level_and_when_it_was_changed(client: TestClient) -> None:
    response = client.put("/admin/loggers/keyfold.examples", json={"level": "TRACE"})
    assert response.status_code == 200
    assert response.json() == ["keyfold.examples"]
    assert get(client, "/admin/loggers/keyfold.examples") == {"level": "TRACE", "last_modified": 1_700_000_000_000}
    assert get(client, "/admin/loggers")["keyfold.examples"]["level"] == "TRACE"
    assert get(client, "/admin/loggers")["root"].keys() == {"level", "last_modified"}
