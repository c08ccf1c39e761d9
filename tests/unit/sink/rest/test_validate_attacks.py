"""Attacks through `config/validate`: sending credentials elsewhere, reading files, freezing the worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from keyfold.config.config_file import Resolved
from keyfold_sink.config.client_construction_check import construction_mistakes
from keyfold_sink.config.connect_definitions import ConnectDefinitions
from keyfold_sink.rest.backend import Backend
from keyfold_sink.rest.server import make_app
from tests.support.fake_service import CONFIG, FakeService, make_options, metrics
from tests.support.sink_world import World

VALIDATE = "/connector-plugins/KeyfoldSink/config/validate"
SECRET = "hunter22-of-oauth"
CLIENT_SECRET = "consumer.override.sasl.oauthbearer.client.secret"


class _Recording(BaseHTTPRequestHandler):
    """A token endpoint that keeps the requests that it receives."""

    seen: list[str]

    def do_POST(self) -> None:
        self.seen.append(str(self.headers))
        self.send_response(401)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the overridden name
        pass


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[str]]]:
    """Yield the URL of a foreign HTTP server, and the headers of the requests that reached it."""
    seen: list[str] = []
    server = HTTPServer(("127.0.0.1", 0), type("Handler", (_Recording,), {"seen": seen}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/token", seen
    server.shutdown()
    server.server_close()
    thread.join()


def asking(**running: str) -> TestClient:
    options = make_options(**running)
    backend = Backend(
        service=FakeService(options), definitions=ConnectDefinitions(options), metrics=metrics, clock=World().clock
    )
    return TestClient(make_app(backend, token=None), base_url="http://localhost")


def errors(answer: dict[str, Any]) -> dict[str, list[str]]:
    return {one["value"]["name"]: one["value"]["errors"] for one in answer["configs"] if one["value"]["errors"]}


def oauth(url: str, secret: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "consumer.override.sasl.oauthbearer.method": "oidc",
        "consumer.override.sasl.oauthbearer.client.id": "sink",
        "consumer.override.sasl.oauthbearer.token.endpoint.url": url,
        CLIENT_SECRET: secret,
    }


@pytest.mark.parametrize("shown", ["${env:OAUTH_SECRET}", "[hidden]", "of-the-caller"])
def test_a_foreign_token_endpoint_receives_nothing(endpoint: tuple[str, list[str]], shown: str) -> None:
    """The request repeats the running configuration's secret beside an address of the caller's choice."""
    url, seen = endpoint
    written = "${env:OAUTH_SECRET}" if shown.startswith("$") else SECRET
    secret = Resolved(SECRET, written) if shown.startswith("$") else SECRET
    client = asking(**oauth("https://login.example.com/token", secret))
    answer = client.put(VALIDATE, json={**CONFIG, **oauth(url, shown)})
    assert answer.status_code == 200
    assert SECRET not in answer.text
    answer = client.put(VALIDATE, json={**CONFIG, **oauth(url, shown), "flush.size": "many"})
    assert set(errors(answer.json())) == {"flush.size"}
    assert not seen


def test_the_running_configuration_is_valid_with_its_placeholders() -> None:
    running = oauth("http://127.0.0.1:1/token", Resolved(SECRET, "${env:OAUTH_SECRET}"))
    running["flush.size"] = Resolved("7", "${env:FLUSH_SIZE}")
    client = asking(**running)
    config = client.get("/connectors/users/config").json()
    assert config["flush.size"] == "${env:FLUSH_SIZE}"
    assert client.put(VALIDATE, json=config).json()["error_count"] == 0
    assert client.put(VALIDATE, json={**config, "bootstrap.servers": "other:9092"}).json()["error_count"] == 0


def test_existing_and_missing_files_get_the_same_response(tmp_path: Path) -> None:
    there = tmp_path / "there.pem"
    there.write_text("no certificate")
    client = asking()
    answers = []
    for path in (there, tmp_path / "missing.pem"):
        body = {**CONFIG, "security.protocol": "SSL", "ssl.ca.location": str(path)}
        answers.append(client.put(VALIDATE, json=body).text.replace(str(path), "PATH"))
    assert answers[0] == answers[1]


# The reading end of a pipe that nobody writes to, as `/proc/self/fd/13` may be one of the worker's own.
_FREEZE = textwrap.dedent(
    """
    import json, os, sys
    from tests.unit.sink.rest.test_validate_attacks import CONFIG, VALIDATE, asking
    reading, _writing = os.pipe()
    body = {**CONFIG, "security.protocol": "SSL", sys.argv[1]: f"/proc/self/fd/{reading}"}
    print(asking().put(VALIDATE, json=body).status_code)
    """
)


@pytest.mark.parametrize("key", ["ssl.ca.location", "consumer.override.ssl.keystore.location"])
def test_a_pipe_in_place_of_a_file_does_not_freeze_the_worker(key: str) -> None:
    """A frozen process would take no signal, so the worker runs in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _FREEZE, key], capture_output=True, text=True, timeout=60, check=True, cwd=os.curdir
    )
    assert done.stdout.strip() == "200"


def test_a_pipe_in_the_operators_own_file_is_an_error_that_names_the_key(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.pem"
    os.mkfifo(pipe)
    values = {"security.protocol": "SSL", "ssl.ca.location": str(pipe), "admin.override.client.id": "a"}
    (mistake,) = construction_mistakes(values, deadline_s=3)
    assert mistake.key == "ssl.ca.location"
    assert "within 3 s" in mistake.message


def test_examining_the_operators_own_file_sends_no_credentials(endpoint: tuple[str, list[str]]) -> None:
    url, seen = endpoint
    assert list(construction_mistakes(oauth(url, SECRET))) == []
    assert not seen


@pytest.mark.parametrize("depth", [200, 900, 980, 100_000])
def test_a_body_of_any_depth_is_refused(depth: int) -> None:
    content = '{"topics":' + "[" * depth + "]" * depth + "}"
    answer = asking().put(VALIDATE, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400


@pytest.mark.parametrize(
    "body",
    [
        {"topics": "\ud800"},
        {"\udfff": "x"},
        {"name": "users", "flush.size": "\ud800"},
        {"connector.class": "\ud800"},
        {"value.converter": "\ud800"},
    ],
)
def test_half_a_surrogate_pair_is_refused(body: dict[str, str]) -> None:
    content = json.dumps({**CONFIG, **body})
    answer = asking().put(VALIDATE, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert "UTF-8" in answer.json()["message"] or "unicode" in answer.json()["message"]
