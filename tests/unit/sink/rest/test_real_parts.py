"""The REST API over the real service and definitions, on a bucket in memory: no request causes an internal error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from keyfold.config.option_fields import entries
from keyfold_sink.config.connect_definitions import ConnectDefinitions
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.rest.backend import Backend
from keyfold_sink.rest.server import make_app
from tests.support.fake_service import CONFIG, FakeService, metrics
from tests.support.sink_world import Worker, World

KEYS = sorted(entry.key for entry in entries(SinkOptions) if not entry.is_prefix)
VALIDATE = "/connector-plugins/KeyfoldSink/config/validate"


def asking(service: Any, world: World | None = None) -> TestClient:
    clock = (world or World()).clock
    backend = Backend(service=service, definitions=ConnectDefinitions(service.options), metrics=metrics, clock=clock)
    return TestClient(make_app(backend, token=None), base_url="http://localhost")


CLIENT = asking(FakeService())


def test_every_key_has_a_definition_in_connects_shape() -> None:
    found = CLIENT.get("/connector-plugins/KeyfoldSink/config").json()
    assert {"name", "topics", "flush.size", "rest.token", "listeners"} <= {one["name"] for one in found}
    for one in found:
        assert one["type"] in {"BOOLEAN", "STRING", "INT", "SHORT", "LONG", "DOUBLE", "LIST", "CLASS", "PASSWORD"}
        assert one["importance"] in {"HIGH", "MEDIUM", "LOW"}
        assert one["width"] in {"NONE", "SHORT", "MEDIUM", "LONG"}
        assert one["default_value"] is None or isinstance(one["default_value"], str)


def test_the_running_configuration_is_valid_and_each_mistake_is_reported_at_its_key() -> None:
    assert CLIENT.put(VALIDATE, json=CONFIG).json()["error_count"] == 0
    found = CLIENT.put(VALIDATE, json={**CONFIG, "flush.size": "many", "nonsense": "1"}).json()
    wrong = {one["value"]["name"] for one in found["configs"] if one["value"]["errors"]}
    assert wrong == {"flush.size", "nonsense"}
    assert found["error_count"] == 2


values = st.text(max_size=20) | st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
keys = (
    st.sampled_from(KEYS)
    | st.sampled_from(KEYS).map(lambda key: f"topic.users.{key}")
    | st.sampled_from(("consumer.override.", "producer.override.", "transforms.", "s3.")).flatmap(
        lambda prefix: st.text(max_size=10).map(prefix.__add__)
    )
    | st.text(max_size=10)
)


@given(st.dictionaries(keys, values, max_size=6))
@pytest.mark.sharded
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
def test_no_configuration_causes_an_internal_error(config: dict[str, Any]) -> None:
    for given_config in (config, {**CONFIG, **config}):
        response = CLIENT.put(VALIDATE, json=given_config)
        assert response.status_code in {200, 400}, response.text
        response = CLIENT.put("/connectors/users/config", json=given_config)
        assert response.status_code in {200, 400, 405}, response.text


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> TestClient:
    worker = Worker(world, "a")
    worker.turn()
    return asking(worker.service, world)


def test_a_change_of_state_goes_through_the_bucket_and_appears_in_the_status(client: TestClient) -> None:
    name = client.get("/connectors").json()[0]
    for path, expected in (("pause", "PAUSED"), ("stop", "STOPPED"), ("resume", "UNASSIGNED")):
        assert client.put(f"/connectors/{name}/{path}").status_code == 202
        assert client.get(f"/connectors/{name}/status").json()["connector"]["state"] == expected
    assert client.post(f"/connectors/{name}/flush").status_code == 202
    assert client.post(f"/connectors/{name}/restart?includeTasks=true").status_code == 202
    assert client.post(f"/connectors/{name}/tasks/0/restart").status_code == 404


topics = st.text(max_size=8) | st.sampled_from(("users", "orders", "_x", "..", "a/b"))
offsets = st.lists(
    st.fixed_dictionaries(
        {
            "partition": st.fixed_dictionaries(
                {"kafka_topic": topics, "kafka_partition": st.integers(-3, 2**31) | st.text(max_size=3)}
            ),
            "offset": st.none() | st.fixed_dictionaries({"kafka_offset": st.integers(-3, 2**63)}),
        }
    ),
    max_size=3,
)


@given(offsets)
@pytest.mark.sharded
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
def test_any_offsets_are_altered_or_refused(entries: list[Mapping[str, Any]]) -> None:
    world = World()
    worker = Worker(world, "a")
    worker.turn()
    asked = asking(worker.service, world)
    name = asked.get("/connectors").json()[0]
    asked.put(f"/connectors/{name}/stop")
    worker.turn()
    response = asked.patch(f"/connectors/{name}/offsets", json={"offsets": entries})
    assert response.status_code in {200, 400}, response.text
