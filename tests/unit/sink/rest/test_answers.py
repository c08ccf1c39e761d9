"""Responses of the REST API beyond Connect's examples: states, partitions, refusals, errors."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from keyfold.config.config_file import resolve
from keyfold.errors import AccessDenied, StoreUnavailable
from keyfold.runtime import event_log
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.rest.server import make_app
from keyfold_sink.status import PartitionStatus, RunState
from tests.support.fake_service import (
    CONFIG,
    NOW_MS,
    FakeService,
    make_backend,
    make_options,
    partition,
    task,
    worker,
)


def asking(service: FakeService) -> TestClient:
    return TestClient(make_app(make_backend(service), token=None), base_url="http://localhost")


def status(service: FakeService) -> Any:
    return asking(service).get("/connectors/users/status").json()


# States


def test_tasks_of_all_workers_are_numbered_by_slot() -> None:
    service = FakeService(make_options(), worker(1), worker(0), worker(4))
    found = status(service)
    assert [one["id"] for one in found["tasks"]] == [0, 1, 2, 3, 8, 9]
    assert [one["worker_id"] for one in found["tasks"]][:3] == ["host0:8083", "host0:8083", "host1:8083"]
    assert found["connector"]["worker_id"] == "host0:8083"


def test_a_worker_without_a_slot_shows_partitions_but_no_task_ids() -> None:
    service = FakeService(make_options(), worker(-1))
    assert status(service)["tasks"] == []
    assert status(FakeService(make_options(), worker(-1), worker(2)))["connector"]["worker_id"] == "host2:8083"
    rows = asking(service).get("/connectors/users/partitions").json()["partitions"]
    assert [row["task"] for row in rows] == [None, None]


@pytest.mark.parametrize(
    ("target", "states", "expected"),
    [
        (RunState.RUNNING, [RunState.RUNNING, RunState.FAILED], "RUNNING"),
        (RunState.RUNNING, [RunState.FAILED, RunState.FAILED], "FAILED"),
        (RunState.RUNNING, [RunState.RESTARTING, RunState.FAILED], "RESTARTING"),
        (RunState.RUNNING, [RunState.PAUSED, RunState.PAUSED], "PAUSED"),
        (RunState.RUNNING, [RunState.UNASSIGNED, RunState.UNASSIGNED], "UNASSIGNED"),
        (RunState.RUNNING, [RunState.UNASSIGNED, RunState.FAILED], "FAILED"),
        (RunState.PAUSED, [RunState.RUNNING, RunState.FAILED], "PAUSED"),
    ],
)
def test_a_connector_has_the_desired_state_if_a_task_works(
    target: RunState, states: list[RunState], expected: str
) -> None:
    traces = {RunState.FAILED: "the bucket is gone"}
    tasks = [task(number, state, trace=traces.get(state, "")) for number, state in enumerate(states)]
    service = FakeService(make_options(), worker(0, *tasks))
    service.state = target
    connector = status(service)["connector"]
    assert connector["state"] == expected
    assert ("the bucket is gone" in connector.get("trace", "")) is (expected == "FAILED")


def test_a_stopped_connector_has_no_tasks() -> None:
    service = FakeService()
    asking(service).put("/connectors/users/stop")
    found = status(service)
    assert (found["connector"]["state"], found["tasks"]) == ("STOPPED", [])


def test_a_task_without_a_report_is_not_running() -> None:
    silent = task(0, reported_ms=NOW_MS - 3_600_000)
    found = status(FakeService(make_options(), worker(0, silent, task(1))))
    assert [one["state"] for one in found["tasks"]] == ["UNASSIGNED", "RUNNING"]
    assert "has not reported for 3600 s" in found["tasks"][0]["trace"]


def test_a_task_that_flushes_revoked_partitions_is_running() -> None:
    busy = task(0, reported_ms=NOW_MS - 30_000)
    assert status(FakeService(make_options(), worker(0, busy)))["tasks"][0]["state"] == "RUNNING"


def still(number: int, seconds: int = 300, **more: Any) -> PartitionStatus:
    return partition(number, error="SlowDown", blocked_ms=NOW_MS - seconds * 1000, **more)


@pytest.mark.parametrize(
    ("partitions", "state", "words"),
    [
        ([still(0)], "UNASSIGNED", "users-0 has made no progress for 300 s: SlowDown"),
        ([still(0), still(1)], "UNASSIGNED", "users-1 has made no progress"),
        (
            [still(0), partition(1, next_offset=100)],
            "UNASSIGNED",
            "users-0 has made no progress",
        ),  # the other has nothing to do
        ([still(0, end_offset=-1)], "UNASSIGNED", "users-0 has made no progress"),
        ([still(number) for number in range(9)], "UNASSIGNED", "and 6 more partitions"),
        ([still(0), partition(1)], "RUNNING", "users-0 has made no progress for 300 s: SlowDown"),
        ([still(0, seconds=20)], "RUNNING", None),
        ([still(0, next_offset=100)], "RUNNING", None),
        ([], "RUNNING", None),
    ],
)
def test_a_task_without_progress_is_not_running(
    partitions: list[PartitionStatus], state: str, words: str | None
) -> None:
    found = status(FakeService(make_options(), worker(0, task(0, partitions=tuple(partitions)))))["tasks"][0]
    assert found["state"] == state
    assert (words in found["trace"]) if words else "trace" not in found


def test_a_running_tasks_obstacle_is_its_trace() -> None:
    found = status(FakeService(make_options(), worker(0, task(0, trace="reading is paused: memory is full"))))
    assert found["tasks"][0] == {
        "id": 0,
        "state": "RUNNING",
        "worker_id": "host0:8083",
        "trace": "reading is paused: memory is full",
    }


def test_reasons_of_many_failed_tasks_are_listed_once_and_limited() -> None:
    tasks = [task(number, RunState.FAILED, trace=f"reason {number % 5}") for number in range(40)]
    trace = status(FakeService(make_options(**{"tasks.max": "40"}), worker(0, *tasks)))["connector"]["trace"]
    assert trace.count("reason") == 3
    assert "(and 2 more)" in trace


def test_an_unknown_task_is_not_found() -> None:
    asked = asking(FakeService())
    for response in (
        asked.get("/connectors/users/tasks/7/status"),
        asked.post("/connectors/users/tasks/7/restart"),
        asked.get("/connectors/other/tasks/0/status"),
    ):
        assert response.status_code == 404
        assert response.json()["error_code"] == 404


# Partitions


def test_a_partition_has_its_offsets_and_lag() -> None:
    waiting = {"buffered_records": 5, "roll_due_ms": NOW_MS + 6, "committed_ms": NOW_MS - 9}
    known = partition(0, **waiting, error="SlowDown", error_ms=NOW_MS - 8, blocked_ms=NOW_MS - 7)
    service = FakeService(make_options(), worker(3, task(1, partitions=(known,))))
    assert asking(service).get("/connectors/users/partitions").json() == {
        "partitions": [
            {
                "topic": "users",
                "partition": 0,
                "state": "RUNNING",
                "next_offset": 90,
                "position": 95,
                "end_offset": 100,
                "lag": 10,
                "oldest_record_age_ms": 4000,
                "buffered_records": 5,
                "next_roll_ms": NOW_MS + 6,
                "last_commit_ms": NOW_MS - 9,
                "error": "SlowDown",
                "error_ms": NOW_MS - 8,
                "blocked_since_ms": NOW_MS - 7,
                "worker_id": "host3:8083",
                "task": 7,
            }
        ]
    }


def test_unknown_facts_of_a_partition_are_null() -> None:
    unknown = {"next_offset": -1, "position": -1, "end_offset": -1, "oldest_record_ms": -1}
    service = FakeService(make_options(), worker(0, task(0, partitions=(partition(0, **unknown),))))
    (row,) = asking(service).get("/connectors/users/partitions").json()["partitions"]
    known = {name for name, value in row.items() if value is not None}
    assert known == {"topic", "partition", "state", "worker_id", "task"}


def test_a_record_from_the_future_has_no_negative_age() -> None:
    service = FakeService(make_options(), worker(0, task(0, partitions=(partition(0, oldest_record_ms=NOW_MS + 5),))))
    assert asking(service).get("/connectors/users/partitions").json()["partitions"][0]["oldest_record_age_ms"] == 0


def test_a_partition_that_moves_is_listed_once_by_its_present_task() -> None:
    old = task(0, partitions=(partition(0, next_offset=90),))
    new = task(0, partitions=(partition(0, next_offset=95),))
    waiting = task(1, partitions=(partition(0, next_offset=-1, state=RunState.UNASSIGNED),))
    service = FakeService(make_options(), worker(0, old), worker(1, new, waiting))
    (row,) = asking(service).get("/connectors/users/partitions").json()["partitions"]
    assert (row["next_offset"], row["worker_id"]) == (95, "host1:8083")


def test_unassigned_partitions_are_listed_on_request() -> None:
    service = FakeService()
    service.ends[("users", 7)] = 42
    rows = asking(service).get("/connectors/users/partitions?unassigned=true").json()["partitions"]
    assert [(row["partition"], row["state"], row["next_offset"]) for row in rows] == [
        (0, "RUNNING", 90),
        (1, "RUNNING", 90),
        (7, "UNASSIGNED", 42),
    ]


# The configuration


def test_no_response_contains_a_secret() -> None:
    secrets = {
        "aws.access.key.id": "id",
        "aws.secret.access.key": "s3cret-1",
        "rest.token": "s3cret-2",
        "consumer.override.sasl.password": "s3cret-3",
        "store.url": "http://me:s3cret-4@127.0.0.1:1",
    }
    service = FakeService(make_options(**secrets))
    asked = TestClient(make_app(make_backend(service), token=None), base_url="http://localhost")
    paths = ("", "/config", "/tasks", "/tasks-config", "/status")
    answers = [asked.get(f"/connectors/users{path}").text for path in paths]
    answers.append(asked.get("/connectors?expand=info&expand=status").text)
    assert not any("s3cret" in answer for answer in answers)
    assert all("[hidden]" in answer for answer in answers[:4])


def test_the_running_configuration_may_be_put_as_shown_or_as_written() -> None:
    written = {**CONFIG, "rest.token": "s3cret", "flush.size": "3000"}
    asked = asking(FakeService(make_options(**written)))
    for config in (written, asked.get("/connectors/users/config").json(), {**written, "flush.size": 3000}):
        assert asked.put("/connectors/users/config", json=config).status_code == 200
        assert asked.post("/connectors", json={"name": "users", "config": config}).status_code == 200
        assert asked.post("/connectors", json={"name": " users ", "config": config}).status_code == 200
        assert asked.patch("/connectors/users/config", json={"flush.size": "3000"}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("POST", "/connectors", {"name": "users", "config": {**CONFIG, "flush.size": "1"}}, 409),
        ("POST", "/connectors", {"name": "users", "config": {}}, 409),
        ("POST", "/connectors", {"name": "orders", "config": CONFIG | {"name": "orders"}}, 405),
        ("POST", "/connectors", {"config": {}}, 405),
        ("POST", "/connectors", {"name": "orders", "config": CONFIG}, 400),
        ("POST", "/connectors", {"name": "users"}, 400),
        ("PUT", "/connectors/users/config", {**CONFIG, "flush.size": "1"}, 405),
        ("PUT", "/connectors/users/config", {**CONFIG, "nonsense": "1"}, 405),
        ("PUT", "/connectors/users/config", {**CONFIG, "name": "orders"}, 400),
        ("PUT", "/connectors/users/config", {**CONFIG, "flush.size": {"a": 1}}, 400),
        ("PUT", "/connectors/users/config", {**CONFIG, "flush.size": None}, 400),
        ("PUT", "/connectors/orders/config", CONFIG, 404),
        ("PATCH", "/connectors/users/config", {"flush.size": "1"}, 405),
        ("PATCH", "/connectors/users/config", {"topics": None}, 405),
        ("DELETE", "/connectors/users", None, 405),
        ("DELETE", "/connectors/orders", None, 404),
    ],
)
def test_a_change_of_the_configuration_is_refused_with_the_reason(
    method: str, path: str, body: object, expected: int
) -> None:
    service = FakeService()
    response = asking(service).request(method, path, json=body)
    assert (response.status_code, response.json()["error_code"]) == (expected, expected)
    if expected in {405, 409} and "orders" not in str(body) and body != {"config": {}}:
        assert "the file that it was started with" in response.json()["message"]
    assert ("allow" in response.headers) is (expected == 405)
    assert service.calls == []


# Errors


def test_unknown_paths_and_methods_are_answered_in_the_error_shape() -> None:
    asked = asking(FakeService())
    nowhere, wrong_method = asked.get("/nowhere"), asked.delete("/connectors/users/config")
    assert (nowhere.status_code, nowhere.json()["error_code"]) == (404, 404)
    assert (wrong_method.status_code, wrong_method.json()["error_code"]) == (405, 405)
    assert wrong_method.headers["allow"] == "GET, HEAD, PATCH, PUT"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b"[]", b'"x"', b"\xff", b'{"name": 3}', b"[" * 100_000, b'{"name": ' + b"9" * 5000]
)
def test_an_unreadable_body_is_a_bad_request(content: bytes) -> None:
    response = asking(FakeService()).post("/connectors", content=content, headers={"Content-Type": "application/json"})
    assert (response.status_code, response.json()["error_code"]) == (400, 400)


def test_a_configuration_with_too_many_keys_is_refused() -> None:
    config = {f"k{number}": "" for number in range(50_000)}
    for path in ("/connectors/users/config", "/connector-plugins/KeyfoldSink/config/validate"):
        response = asking(FakeService()).put(path, json=config)
        assert response.status_code == 400
        assert "keys" in response.json()["message"]


def test_half_a_surrogate_pair_is_a_bad_request() -> None:
    body = b'{"offsets": [{"partition": {"kafka_topic": "\\ud800", "kafka_partition": "\\ud800"}}]}'
    response = asking(FakeService()).patch(
        "/connectors/users/offsets", content=body, headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 400


def test_a_message_never_repeats_a_value_of_the_request() -> None:
    response = asking(FakeService()).put("/connectors/users/config", json={"rest.token": ["s3cret"]})
    assert response.status_code == 400
    assert "s3cret" not in response.text


def test_a_store_that_does_not_answer_gives_503_with_retry_after() -> None:
    service = FakeService()
    service.failure = StoreUnavailable("topics/_sinks/users/orders.json", "no answer")
    for method, path in (("PUT", "/connectors/users/pause"), ("GET", "/connectors/users/status")):
        response = asking(service).request(method, path)
        assert (response.status_code, response.json()["error_code"]) == (503, 503)
        assert "no answer" in response.json()["message"]
        assert response.headers["retry-after"] == "5"
    assert asking(service).get("/health").status_code == 200


def test_a_store_that_refuses_gives_500_with_a_hint() -> None:
    service = FakeService()
    service.failure = AccessDenied("topics/_sinks/users/orders.json", "access denied", hint="allow s3:PutObject")
    response = asking(service).put("/connectors/users/stop")
    assert response.status_code == 500
    assert "allow s3:PutObject" in response.json()["message"]


def test_an_unexpected_error_is_logged_and_not_shown() -> None:
    service = FakeService()
    service.failure = ZeroDivisionError("with s3cret inside")
    with capture_logs() as logged:
        response = asking(service).get("/connectors/users/status")
    assert (response.status_code, response.json()["error_code"]) == (500, 500)
    assert "s3cret" not in response.text
    assert "Traceback" not in response.text
    assert [line["kind"] for line in logged] == ["ZeroDivisionError"]
    assert logged[0]["exc_info"] is service.failure


# Health


def test_a_worker_that_is_not_ready_says_why() -> None:
    service = FakeService()
    service.unready = "task 1 has failed: the bucket is gone"
    response = asking(service).get("/health/ready")
    assert response.status_code == 503
    assert response.json() == {"error_code": 503, "status": "not ready", "message": service.unready}
    assert asking(service).get("/health/live").status_code == 200
    assert asking(service).get("/health").status_code == 200


def test_a_worker_that_hangs_is_not_alive() -> None:
    service = FakeService()
    service.alive = False
    assert asking(service).get("/health/live").status_code == 503
    response = asking(service).get("/health")
    assert (response.status_code, response.json()["status"]) == (500, "unhealthy")


def test_metrics_are_passed_on_unchanged() -> None:
    response = asking(FakeService()).get("/metrics")
    assert response.content == b"up 1\n"
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


# Plugins and loggers


def test_converters_are_listed_on_request() -> None:
    found = asking(FakeService()).get("/connector-plugins?connectorsOnly=false").json()
    assert {one["type"] for one in found} == {"sink", "converter"}
    assert "org.apache.kafka.connect.json.JsonConverter" in {one["class"] for one in found}


def test_a_plugin_is_also_known_by_the_class_that_the_configuration_names() -> None:
    service = FakeService(make_options(**{"connector.class": "io.confluent.connect.s3.S3SinkConnector"}))
    for name in ("io.confluent.connect.s3.S3SinkConnector", "S3SinkConnector", "S3Sink", "KeyfoldSink"):
        path = f"/connector-plugins/{name}/config/validate"
        assert asking(service).put(path, json={"name": "x"}).json()["error_count"] == 0
    assert asking(service).get("/connector-plugins/HdfsSink/config").status_code == 404


def test_a_class_that_does_not_fit_the_path_is_a_bad_request() -> None:
    response = asking(FakeService()).put(
        "/connector-plugins/KeyfoldSink/config/validate", json={"connector.class": "org.example.HdfsSinkConnector"}
    )
    assert response.status_code == 400
    assert "does not match" in response.json()["message"]


@pytest.mark.parametrize("value", ["${file:/etc/shadow:root}", "${env:HOME}", "x-${file:/dev/zero:a}-y"])
def test_a_validation_does_not_reveal_which_files_and_variables_exist(value: str) -> None:
    response = asking(FakeService()).put("/connector-plugins/KeyfoldSink/config/validate", json={"topics": value})
    assert response.status_code == 400
    assert "REST does not resolve it" in response.json()["message"]


def test_placeholders_of_the_running_configuration_are_validated() -> None:
    values = resolve({**CONFIG, "topics": "${env:TOPIC}"}, {"TOPIC": "users"})
    service = FakeService(SinkOptions.parse(values))
    response = asking(service).put(
        "/connector-plugins/KeyfoldSink/config/validate", json=asking(service).get("/connectors/users/config").json()
    )
    assert response.status_code == 200


@pytest.fixture
def _quiet() -> Iterator[None]:
    known = logging.getLogger("keyfold.rest.levels")
    yield
    known.setLevel(logging.NOTSET)


@pytest.mark.usefixtures("_quiet")
def test_a_level_is_set_here_and_passed_to_the_tasks() -> None:
    service = FakeService()
    asked = asking(service)
    child = event_log.get_logger("keyfold.rest.levels.child")
    response = asked.put("/admin/loggers/keyfold.rest.levels", json={"level": "warn"})
    assert "keyfold.rest.levels" in response.json()
    assert service.calls == [("level", "keyfold.rest.levels", "WARN")]
    assert logging.getLogger("keyfold.rest.levels.child").getEffectiveLevel() == logging.WARNING
    assert asked.get("/admin/loggers/keyfold.rest.levels").json() == {"level": "WARN", "last_modified": NOW_MS}
    del child


@pytest.mark.parametrize(
    ("logger", "body", "expected"),
    [
        ("root", {"level": "LOUD"}, 404),
        ("root", {}, 400),
        ("root", {"level": 3}, 400),
        ("a..b", {"level": "INFO"}, 404),
        ("a%00b", {"level": "INFO"}, 404),
        ("x" * 500, {"level": "INFO"}, 404),
    ],
)
def test_an_invalid_level_or_logger_is_refused(logger: str, body: object, expected: int) -> None:
    service = FakeService()
    assert asking(service).put(f"/admin/loggers/{logger}", json=body).status_code == expected
    assert service.calls == []


def test_a_logger_without_a_level_is_not_found() -> None:
    assert asking(FakeService()).get("/admin/loggers/nobody.asked.for.this").status_code == 404


def test_setting_a_level_for_the_whole_cluster_is_refused() -> None:
    service = FakeService()
    response = asking(service).put("/admin/loggers/root?scope=cluster", json={"level": "INFO"})
    assert response.status_code == 400
    assert service.calls == []
