"""Access to the REST API: tokens, host names, origins, and limits of a request."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import pytest
from httpx2 import Response
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from keyfold.errors import ConfigError
from keyfold.http_server.errors import answer
from keyfold.http_server.guard import BODY_BYTES_MAX, IN_FLIGHT_MAX, Guard
from keyfold.runtime.listeners import is_loopback, parse_listeners
from keyfold_sink.config.option_groups import REST
from keyfold_sink.rest.server import make_app
from tests.support.fake_service import FakeService, make_backend, make_options

TOKEN = "t0p-s3cret"
OPEN = ("/health", "/health/live", "/health/ready", "/metrics")
CLOSED = ("/", "/connectors", "/connectors/users/status", "/connectors/users/config", "/openapi.json", "/nothing")


def client(*, token: str | None = None, base_url: str = "http://127.0.0.1:8083", **more: Any) -> TestClient:
    app = make_app(make_backend(FakeService(make_options(**more))), token=token, own_hosts=["sink-0.sinks"])
    return TestClient(app, base_url=base_url)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def is_refusal(response: Response, status: int) -> bool:
    found = response.json()
    return (
        response.status_code == status and found.keys() == {"error_code", "message"} and found["error_code"] == status
    )


# Tokens


@pytest.mark.parametrize("path", OPEN)
def test_health_readiness_and_metrics_need_no_token(path: str) -> None:
    assert client(token=TOKEN, base_url="http://10.0.0.7").get(path).status_code == 200


@pytest.mark.parametrize("path", CLOSED)
@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN.upper()}",
        f"Bearer {TOKEN} {TOKEN}",
        f"Digest {TOKEN}",
        TOKEN,
        "Bearer t\u00f6ken",
        basic("anyone", "wrong"),
        basic(TOKEN, ""),
        "Basic !!!",
        "Basic " + base64.b64encode(TOKEN.encode()).decode(),
    ],
)
def test_all_other_paths_need_the_token(path: str, authorization: str | None) -> None:
    headers = {} if authorization is None else {b"Authorization": authorization.encode("latin-1")}
    response = client(token=TOKEN).get(path, headers=headers)
    assert is_refusal(response, 401)
    assert response.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    "authorization", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Bearer   {TOKEN} ", basic("x", TOKEN), basic("", TOKEN)]
)
def test_the_token_opens_all_paths(authorization: str) -> None:
    asked = client(token=TOKEN, base_url="http://10.0.0.7")
    for path in CLOSED[:-1]:
        assert asked.get(path, headers={"Authorization": authorization}).status_code == 200


@pytest.mark.parametrize("path", ["/connectors/users/pause", "/connectors/users/stop", "/connectors/users/flush"])
def test_nothing_is_changed_without_the_token(path: str) -> None:
    service = FakeService()
    asked = TestClient(make_app(make_backend(service), token=TOKEN), base_url="http://127.0.0.1")
    for method in ("GET", "PUT", "POST", "DELETE", "PATCH"):
        assert is_refusal(asked.request(method, path), 401)
    assert service.calls == []


@pytest.mark.parametrize(
    "path", ["/health/", "//health", "/health/../connectors", "/%68ealth", "/metrics%2F", "/metrics/x"]
)
def test_no_spelling_of_an_open_path_opens_a_guarded_one(path: str) -> None:
    response = client(token=TOKEN).get(path)
    assert response.status_code == 401 or response.json().get("status") == "healthy"


# Listeners and tokens


@pytest.mark.parametrize(
    "listeners",
    ["http://0.0.0.0:0", "http://[::]:0", "http://10.0.0.7:8083", "http://:8083", "http://sink.example:8083"],
)
def test_a_public_address_requires_a_token_at_startup(listeners: str) -> None:
    for value in (listeners, f"http://127.0.0.1:0,{listeners}"):
        with pytest.raises(ConfigError, match="other machines can reach") as caught:
            make_options(listeners=value)
        assert caught.value.key == "rest.token"
        assert make_options(listeners=value, **{"rest.token": TOKEN}).listeners


@pytest.mark.parametrize(
    "listeners", ["http://127.0.0.1:0", "http://127.8.9.1:1", "http://[::1]:0", "http://localhost:0", ""]
)
def test_loopback_needs_no_token(listeners: str) -> None:
    assert make_options(listeners=listeners).rest_token is None


@pytest.mark.parametrize("token", ["", " ", "two words", "t\u00f6ken", "line\nbreak"])
def test_a_token_that_does_not_fit_into_a_header_is_an_error(token: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_options(**{"rest.token": token})
    assert caught.value.key == "rest.token"
    assert not token.strip() or token not in str(caught.value)


@pytest.mark.parametrize(
    ("listeners", "words"),
    [
        ("127.0.0.1:8083", "is not a valid listener"),
        ("http://127.0.0.1", "is not a valid listener"),
        ("http://127.0.0.1:8083/path", "is not a valid listener"),
        ("http://user@127.0.0.1:8083", "is not a valid listener"),
        ("https://127.0.0.1:8083", "https is not supported"),
        ("ftp://127.0.0.1:8083", "the protocol 'ftp' is not supported"),
        ("http://127.0.0.1:70000", "70000 is not a valid port"),
        ("http://[127.0.0.1]:1", "is not a valid IPv6 address"),
        ("http://127.0.0.1:1,http://127.0.0.1:1", "twice"),
    ],
)
def test_an_invalid_listener_is_an_error_with_the_reason(listeners: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        make_options(listeners=listeners)
    assert caught.value.key == "listeners"


def test_listeners_are_read_as_connect_writes_them() -> None:
    found = parse_listeners(["HTTP://localhost:8080", " http://[::1]:9/ ", "http://:8083"], REST)
    assert [str(listener) for listener in found] == ["http://localhost:8080", "http://[::1]:9", "http://0.0.0.0:8083"]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.255.0.3", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("LOCALHOST.", True),
        ("app.localhost", True),
        ("0.0.0.0", False),  # noqa: S104 - a host to judge
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
        ("2130706433", False),
    ],
)
def test_loopback_addresses_are_recognised(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


# Browsers


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8083", "127.0.0.1.evil.example", "10.0.0.7:8083", "[::", "", "user@evil.example"],
)
def test_a_page_whose_name_points_to_loopback_is_refused(host: str) -> None:
    for path in (*OPEN, *CLOSED):
        assert is_refusal(client().get(path, headers={"Host": host}), 403)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8083", "localhost", "localhost:1", "[::1]:8083", "sink-0.sinks:8083", "SINK-0.sinks"]
)
def test_own_host_names_are_answered(host: str) -> None:
    assert client().get("/connectors", headers={"Host": host}).status_code == 200


def test_any_host_name_is_accepted_with_a_token() -> None:
    asked = client(token=TOKEN)
    assert asked.get("/", headers={"Host": "sinks.example", "Authorization": f"Bearer {TOKEN}"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "http://127.0.0.1:3000"},
        {"Origin": "http://localhost:8083"},
        {"Origin": "file://"},
        {"Origin": "http://["},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
@pytest.mark.parametrize("token", [None, TOKEN])
def test_requests_from_foreign_pages_are_refused_and_change_nothing(headers: dict[str, str], token: str | None) -> None:
    service = FakeService()
    asked = TestClient(make_app(make_backend(service), token=token), base_url="http://127.0.0.1:8083")
    more = {} if token is None else {"Authorization": f"Bearer {token}"}
    for method, path in (("POST", "/connectors/users/restart"), ("PUT", "/connectors/users/stop"), ("GET", "/metrics")):
        assert is_refusal(asked.request(method, path, headers={**headers, **more}), 403)
    assert service.calls == []


def test_the_own_origin_and_requests_without_an_origin_are_accepted() -> None:
    assert client().get("/", headers={"Origin": "http://127.0.0.1:8083"}).status_code == 200
    assert client().get("/", headers={"Sec-Fetch-Site": "none"}).status_code == 200
    assert client().get("/", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_no_response_allows_foreign_pages_to_read_it() -> None:
    response = client().options("/connectors", headers={"Access-Control-Request-Method": "PUT"})
    assert is_refusal(response, 405)
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_a_host_that_is_no_address_is_refused() -> None:
    assert is_refusal(client().get("/connectors", headers={"Host": "[::1"}), 403)


# Requests at once, and answers that break off

A_REQUEST: Scope = {"type": "http", "method": "GET", "path": "/connectors", "raw_path": b"/connectors", "headers": []}


async def nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


def test_a_request_above_the_limit_is_refused_until_others_have_ended() -> None:
    async def statuses() -> tuple[int, list[int]]:
        may_end, found = asyncio.Event(), list[int]()

        async def waits(scope: Scope, receive: Receive, send: Send) -> None:
            await may_end.wait()
            await answer(200, "")(scope, receive, send)

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                found.append(message["status"])

        guard = Guard(waits, token=None, names=REST)
        waiting = [asyncio.create_task(guard(A_REQUEST, nothing, send)) for _ in range(IN_FLIGHT_MAX)]
        await asyncio.sleep(0)  # each task has begun
        await guard(A_REQUEST, nothing, send)
        refused = found.pop()
        may_end.set()
        await asyncio.gather(*waiting)
        await guard(A_REQUEST, nothing, send)
        return refused, found

    assert asyncio.run(statuses()) == (503, [200] * (IN_FLIGHT_MAX + 1))


def test_an_answer_that_has_begun_is_not_followed_by_another() -> None:
    sent: list[Message] = []

    async def breaks_off(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise OSError("gone")

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(Guard(breaks_off, token=None, names=REST)(A_REQUEST, nothing, send))
    assert [message["type"] for message in sent] == ["http.response.start"]


def test_a_long_message_is_shortened() -> None:
    assert bytes(answer(400, "x" * 100_000).body).endswith(b'xxx..."}')


# Sizes and forms


def test_an_oversized_body_is_refused_by_its_declared_length_and_by_its_bytes() -> None:
    json = {"Content-Type": "application/json"}
    assert is_refusal(client().post("/connectors", content=b" " * (BODY_BYTES_MAX + 1), headers=json), 413)

    def pieces() -> Iterator[bytes]:
        for _ in range(20):
            yield b" " * (BODY_BYTES_MAX // 10)

    assert is_refusal(client().post("/connectors", content=pieces(), headers=json), 413)


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_a_body_without_the_json_content_type_is_refused(content_type: str) -> None:
    for method, path in (("POST", "/connectors"), ("PUT", "/connectors/users/config"), ("PUT", "/admin/loggers/root")):
        response = client().request(method, path, content=b"{}", headers={"Content-Type": content_type})
        assert is_refusal(response, 415)


def test_a_trailing_slash_makes_no_difference() -> None:
    assert client().get("/connectors/").json() == ["users"]
    assert client().get("/connectors/users/status/").status_code == 200


@pytest.mark.parametrize("name", ["a/b", "a b", "50%", "%2F", "\u00fc\u4e2d", "a?b", "a#b", "..", "a+b", "a;b"])
def test_any_connector_name_is_reachable_percent_encoded(name: str) -> None:
    from urllib.parse import quote

    asked = client(name=name)
    path = f"/connectors/{quote(name, safe='')}".replace("/..", "/%2E%2E")
    assert asked.get(f"{path}/status").json()["name"] == name
    assert asked.put(f"{path}/config", json=asked.get(f"{path}/config").json()).status_code == 200
