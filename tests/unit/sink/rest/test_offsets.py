"""Altering offsets: Connect's error messages, and only forward moves."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from keyfold.http_server.errors import RequestRefused
from keyfold_sink.rest.offsets import parse
from keyfold_sink.rest.server import make_app
from keyfold_sink.status import RunState
from tests.support.fake_service import FakeService, make_backend

PATH = "/connectors/users/offsets"


@pytest.fixture
def service() -> FakeService:
    found = FakeService()
    found.state = RunState.STOPPED
    return found


@pytest.fixture
def client(service: FakeService) -> TestClient:
    return TestClient(make_app(make_backend(service), token=None), base_url="http://localhost")


def entry(partition: Any = 0, offset: Any = 95, topic: Any = "users") -> dict[str, Any]:
    return {"partition": {"kafka_topic": topic, "kafka_partition": partition}, "offset": {"kafka_offset": offset}}


def test_several_partitions_move_in_one_request_and_numbers_may_be_strings(
    client: TestClient, service: FakeService
) -> None:
    response = client.patch(PATH, json={"offsets": [entry("0", "95"), entry(1, 99)]})
    assert response.status_code == 200
    assert service.calls == [("alter", {("users", 0): 95, ("users", 1): 99})]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "Partitions / offsets need to be provided for an alter offsets request"),
        ({"offsets": None}, "Partitions / offsets need to be provided"),
        ({"offsets": []}, "Partitions / offsets need to be provided"),
        ({"offsets": [{}]}, "The partition for a sink connector offset cannot be null or missing"),
        ({"offsets": [{"partition": None, "offset": None}]}, "cannot be null or missing"),
        ({"offsets": [{"partition": {}, "offset": None}]}, "must contain the keys 'kafka_topic' and 'kafka_partition'"),
        ({"offsets": [{"partition": {"kafka_topic": "users"}}]}, "must contain the keys"),
        ({"offsets": [{"partition": 7}]}, "must contain the keys"),
        (
            {"offsets": [entry("not a number")]},
            "'not a number'. Partition values for sink connectors need to be integers",
        ),
        ({"offsets": [entry(1.5)]}, "need to be integers"),
        ({"offsets": [entry(True)]}, "need to be integers"),
        ({"offsets": [entry(None)]}, "need to be integers"),
        ({"offsets": [entry(2**31)]}, "need to be integers"),
        (
            {"offsets": [entry(0, "not a number")]},
            "'not a number'. Offset values for sink connectors need to be integers",
        ),
        ({"offsets": [entry(0, 2**63)]}, "need to be integers"),
        ({"offsets": [entry(0, " 95")]}, "need to be integers"),
        ({"offsets": [entry(0, "٩٥")]}, "need to be integers"),
        ({"offsets": [entry(0, -1)]}, "negative"),
        ({"offsets": [entry(0, 95, 7)]}, "must be a string"),
        ({"offsets": [{**entry(), "offset": {}}]}, "should either be null or contain the key 'kafka_offset'"),
        ({"offsets": [{**entry(), "offset": 95}]}, "should either be null or contain the key 'kafka_offset'"),
        ({"offsets": [{**entry(), "offset": None}]}, "cannot be reset"),
        ({"offsets": [{"partition": entry()["partition"]}]}, "cannot be reset"),
        ({"offsets": [entry(0, 95), entry("0", 96)]}, "listed twice with different offsets"),
        ({"offsets": [entry(0, 10)]}, "below the log's end"),
        ({"offsets": "users"}, "body.offsets"),
    ],
)
def test_invalid_offsets_are_refused_in_connects_words_and_nothing_moves(
    client: TestClient, service: FakeService, body: Any, words: str
) -> None:
    before = dict(service.ends)
    response = client.patch(PATH, json=body)
    assert (response.status_code, response.json()["error_code"]) == (400, 400)
    assert words in response.json()["message"]
    assert service.ends == before


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.PAUSED])
@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
def test_a_connector_that_is_not_stopped_says_how_to_stop_it(
    client: TestClient, service: FakeService, state: RunState, method: str
) -> None:
    service.state = state
    response = client.request(method, PATH, json={"offsets": [entry()]})
    assert response.status_code == 400
    assert "Connectors must be in the STOPPED state before their offsets can be modified" in response.json()["message"]
    assert "'PUT' request to the '/connectors/users/stop' endpoint" in response.json()["message"]
    assert service.calls == []


def test_a_reset_is_refused_also_when_stopped(client: TestClient, service: FakeService) -> None:
    response = client.delete(PATH)
    assert response.status_code == 400
    assert "holds each offset once" in response.json()["message"]
    assert service.calls == []


def test_a_repeated_offset_counts_once(client: TestClient, service: FakeService) -> None:
    assert client.patch(PATH, json={"offsets": [entry(0, 95), entry("0", "95")]}).status_code == 200
    assert service.calls == [("alter", {("users", 0): 95})]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
halves = st.fixed_dictionaries(
    {},
    optional={
        "partition": anything
        | st.fixed_dictionaries({}, optional={"kafka_topic": anything, "kafka_partition": anything}),
        "offset": anything | st.fixed_dictionaries({}, optional={"kafka_offset": anything}),
    },
)


@given(st.lists(halves, max_size=3))
def test_any_request_is_applied_or_refused(entries: list[dict[str, Any]]) -> None:
    with contextlib.suppress(RequestRefused):
        found = parse(entries)
        assert all(isinstance(topic, str) and 0 <= offset < 2**63 for (topic, _), offset in found.items())
