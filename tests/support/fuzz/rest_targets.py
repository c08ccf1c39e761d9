"""Requests to the sink's REST API, without a socket: each has an answer, and none is the worker's own fault."""

from __future__ import annotations

import json
import logging
from functools import cache
from typing import Any, Final

import structlog
from starlette.testclient import TestClient

from keyfold.runtime.clock import ManualClock
from keyfold_sink.config.connect_definitions import ConnectDefinitions
from keyfold_sink.rest.backend import Backend
from keyfold_sink.rest.server import make_app
from keyfold_sink.status import RunState
from tests.support.fake_service import CONFIG, NOW_MS, FakeService, make_options, metrics
from tests.support.fuzz.mutate import any_bytes, json_document, pack, parts_by, text_line, unpack
from tests.support.fuzz.target import Target

_TARGET_MAX: Final = 60_000
_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")


def request_seeds() -> list[bytes]:
    """A request of each kind that has a body, and some that have none."""
    partition = {"kafka_topic": "users", "kafka_partition": 0}
    offsets = {"offsets": [{"partition": partition, "offset": {"kafka_offset": 95}}]}
    plugin = "/connector-plugins/KeyfoldSink/config/validate"
    requests: list[tuple[str, str, Any]] = [
        ("PUT", "/connectors/users/config", CONFIG), ("PATCH", "/connectors/users/config", {"tasks.max": "3"}),
        ("POST", "/connectors", {"name": "users", "config": CONFIG, "initial_state": "PAUSED"}),
        ("PATCH", "/connectors/users/offsets", offsets), ("PUT", plugin, {**CONFIG, "connector.class": "KeyfoldSink"}),
        ("PUT", "/admin/loggers/keyfold.fuzz", {"level": "DEBUG"}),
        ("GET", "/connectors?expand=status&expand=info", None), ("GET", "/connectors/users/tasks/0/status", None),
        ("POST", "/connectors/users/restart?includeTasks=true&onlyFailed=false", None),
    ]  # fmt: skip
    return [pack(bytes([_METHODS.index(method)]), path.encode(), b"" if body is None else json.dumps(body).encode())
            for method, path, body in requests]  # fmt: skip


@cache
def _client() -> TestClient:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    service = FakeService(make_options())
    service.state = RunState.STOPPED  # else nobody may alter offsets
    backend = Backend(service, ConnectDefinitions(service.options), metrics, ManualClock(NOW_MS))
    return TestClient(make_app(backend, token=None), base_url="http://localhost")


def send(data: bytes) -> None:
    """Send a request, and look at the answer."""
    method, path, body = unpack(data, 3)
    verb = _METHODS[method[0] % len(_METHODS)] if method else "GET"
    # What is no ASCII, no path, or too long for a head, an HTTP server refuses before, and a client does not send.
    target = "/" + path.decode("ascii", "ignore").lstrip("/")
    target = "".join(character for character in target if character.isprintable())[:_TARGET_MAX]
    answer = _client().request(verb, target, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code < 500, f"{verb} {target}: {answer.status_code} {answer.text[:500]}"
    if answer.status_code >= 400 and verb != "HEAD":
        assert set(answer.json()) == {"error_code", "message"}


_REST: Final = "keyfold_sink.rest"
_SERVER: Final = "keyfold.http_server"

REST_TARGETS: Final = (
    Target("rest", request_seeds, send,
           (f"{_REST}.connectors", f"{_REST}.offsets", f"{_REST}.plugins", f"{_REST}.loggers", f"{_REST}.backend",
            f"{_SERVER}.errors", f"{_SERVER}.guard"),
           (parts_by(any_bytes, text_line, json_document), parts_by(text_line, text_line, json_document)), ()),
)  # fmt: skip
