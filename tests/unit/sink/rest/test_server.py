"""The server: its listeners, its end, and misbehaving clients."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import requests
from structlog.testing import capture_logs

from keyfold.errors import ConfigError
from keyfold.http_server.protocol import ServerLimits, gives_way
from keyfold.runtime.sockets import listening
from keyfold_sink.config.option_groups import REST
from keyfold_sink.status import WorkerStatus
from keyfold_sink.worker.worker_registry import worker_id
from tests.support.fake_service import CONFIG, FakeService, make_options, metrics, serving
from tests.support.proof import wait_for

TOKEN = {"rest.token": "t0p-s3cret"}


def get(url: str, **more: Any) -> requests.Response:
    return requests.get(url, timeout=60, **more)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


class Stuck(FakeService):
    """A service that blocks, as if the store did not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()
        self.released = threading.Event()

    def workers(self) -> Sequence[WorkerStatus]:
        self.asked.set()
        self.released.wait(60)
        return super().workers()


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    service = Stuck()
    yield service
    service.released.set()


def test_the_server_answers_on_every_listener_also_ipv6() -> None:
    options = make_options(listeners="http://127.0.0.1:0,http://[::1]:0,HTTP://localhost:0/")
    with serving(FakeService(options)) as server:
        assert len({port_of(address) for address in server.addresses}) == 3
        assert server.addresses[1].startswith("http://[::1]:")
        for address in server.addresses:
            assert get(f"{address}/connectors").json() == ["users"]


def test_no_listener_means_no_server() -> None:
    with serving(FakeService(make_options(listeners=""))) as server:
        assert server.addresses == ()


def test_two_workers_on_one_host_each_answer_for_themselves() -> None:
    with serving(FakeService()) as one, serving(FakeService(make_options(name="orders"))) as other:
        assert get(f"{one.addresses[0]}/connectors").json() == ["users"]
        assert get(f"{other.addresses[0]}/connectors").json() == ["orders"]


def test_a_default_port_in_use_is_an_error_with_a_hint() -> None:
    options = make_options()
    by_default = options.model_validate({key: value for key, value in CONFIG.items() if key != "listeners"})
    with socket.socket() as holder:
        try:
            holder.bind(("127.0.0.1", 8083))
            holder.listen()
        except OSError:
            pass  # another process has it, which has the same effect
        with pytest.raises(ConfigError) as caught, listening(by_default.listeners, REST):
            pass
    assert caught.value.key == "listeners"
    assert "http://127.0.0.1:8083" in caught.value.message
    assert "port 0" in str(caught.value.hint)


def test_a_worker_with_port_0_reports_its_actual_port() -> None:
    with capture_logs() as logged, serving(FakeService()) as one, serving(FakeService()) as other:
        assert get(f"{other.addresses[0]}/health").ok
    said = [line["addresses"] for line in logged if "addresses" in line]
    assert said == [[one.addresses[0]], [other.addresses[0]]]


def test_a_configured_port_in_use_is_an_error_that_names_the_key() -> None:
    with serving(FakeService()) as server:
        options = make_options(listeners=server.addresses[0])
        with pytest.raises(ConfigError, match="port 0") as caught, listening(options.listeners, REST):
            pass
    assert caught.value.key == "listeners"


def test_an_address_of_another_machine_is_an_error_with_a_hint() -> None:
    options = make_options(listeners="http://192.0.2.1:0", **TOKEN)
    with pytest.raises(ConfigError, match="use an address of this machine"), listening(options.listeners, REST):
        pass


def test_a_listener_that_fails_closes_those_before_it() -> None:
    with serving(FakeService()) as server:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            free = probe.getsockname()[1]
        options = make_options(listeners=f"http://127.0.0.1:{free},{server.addresses[0]}")
        with pytest.raises(ConfigError), listening(options.listeners, REST):
            pass
        with listening(make_options(listeners=f"http://127.0.0.1:{free}").listeners, REST):
            pass


def test_a_worker_is_named_by_its_key_or_host_and_port() -> None:
    with listening(make_options().listeners, REST) as sockets:
        assert worker_id(make_options(), sockets.port) == f"{socket.gethostname()}:{sockets.port}"
        assert worker_id(make_options(**{"worker.id": "w-7"}), sockets.port) == "w-7"
        advertised = {"rest.advertised.host.name": "sink-0.sinks", "rest.advertised.port": "80"}
        assert worker_id(make_options(**advertised), sockets.port) == "sink-0.sinks:80"
    with listening(make_options(listeners="").listeners, REST) as none:
        assert worker_id(make_options(), none.port) == f"{socket.gethostname()}:{os.getpid()}"


def test_the_server_ends_despite_idle_clients_and_frees_its_port() -> None:
    with serving(FakeService()) as server:
        port = port_of(server.addresses[0])
        idle = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        idle.request("GET", "/health")
        idle.getresponse().read()
        silent = socket.create_connection(("127.0.0.1", port))
    idle.close()
    silent.close()
    with listening(make_options(listeners=f"http://127.0.0.1:{port}").listeners, REST):
        pass


def test_the_server_ends_although_a_request_waits_for_the_store(stuck: Stuck) -> None:
    answers: list[requests.Response] = []

    def ask(url: str) -> None:
        answers.append(get(url))

    with serving(stuck) as server:
        asker = threading.Thread(target=ask, args=(f"{server.addresses[0]}/connectors/users/status",))
        asker.start()
        assert stuck.asked.wait(60)
    asker.join(60)
    assert [answer.status_code for answer in answers] == [503]
    assert "shutting down" in answers[0].json()["message"]


def _ask_in_vain(url: str) -> None:
    with contextlib.suppress(requests.RequestException):
        get(url)


def test_probes_and_metrics_are_answered_while_other_requests_wait_for_the_store(stuck: Stuck) -> None:
    with serving(stuck) as server:
        (address,) = server.addresses
        askers = [
            threading.Thread(target=_ask_in_vain, args=(f"{address}/connectors/users/status",)) for _ in range(50)
        ]
        for asker in askers:
            asker.start()
        assert stuck.asked.wait(60)
        for path in ("/health", "/health/live", "/health/ready", "/metrics"):
            assert get(address + path).ok
        assert all(asker.is_alive() for asker in askers), "a request that waits for the store was answered"
        stuck.released.set()
        for asker in askers:
            asker.join(60)


def test_the_server_leaves_signals_and_the_callers_thread_alone() -> None:
    import signal

    threads = set(threading.enumerate())
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with serving(FakeService()):
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert not any(thread.name == "keyfold-http" for thread in set(threading.enumerate()) - threads)


def test_requests_are_not_logged_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), serving(FakeService()) as server:
        get(f"{server.addresses[0]}/connectors")
    assert [record for record in caplog.records if record.name == "uvicorn.access"] == []


def test_responses_do_not_name_the_server_software() -> None:
    with serving(FakeService()) as server:
        assert "server" not in get(f"{server.addresses[0]}/").headers


@pytest.mark.parametrize("begin", [b"", b"GET / HT", b"PUT /connectors/users/config HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_client_that_does_not_finish_its_request_is_cut_off(begin: bytes) -> None:
    with connected(FakeService(), ServerLimits(request_s=0.3)) as raw:
        raw.settimeout(60)
        raw.sendall(begin)
        assert ends(raw)


def test_a_client_that_sends_its_body_too_slowly_is_cut_off() -> None:
    head = b"POST /connectors HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
    with connected(FakeService(), ServerLimits(request_s=0.4)) as raw:
        raw.settimeout(60)
        raw.sendall(head)
        with pytest.raises(OSError):  # noqa: PT012 - the worker cuts it off long before the body is whole
            for _ in range(999):
                raw.sendall(b" ")
                time.sleep(0.05)


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"])
def test_a_client_that_does_not_read_its_answer_is_cut_off(more: bytes) -> None:
    asked = threading.Event()

    def large(accept: str = "") -> tuple[bytes, str]:
        asked.set()
        return b"# " + b"x" * 30_000_000, metrics(accept)[1]

    with (
        serving(FakeService(), ServerLimits(request_s=1.0, answer_s=0.5), large) as server,
        socket.create_connection(("127.0.0.1", port_of(server.addresses[0]))) as raw,
    ):
        raw.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + more + b"\r\n")
        assert asked.wait(60)
        wait_for(lambda: not server._uvicorn.server_state.connections, 60, "the connection to be closed", 0.01)
        raw.settimeout(60)
        assert ends(raw, at_most=29_000_000)


@contextlib.contextmanager
def connected(service: FakeService, limits: ServerLimits | None = None) -> Iterator[socket.socket]:
    """Yield a connection to a server of this service."""
    with (
        serving(service, limits) as server,
        socket.create_connection(("127.0.0.1", port_of(server.addresses[0]))) as raw,
    ):
        yield raw


def ends(raw: socket.socket, at_most: int = 1_000_000) -> bool:
    """Return whether the other end closes before it has sent this many bytes."""
    seen = 0
    try:
        while piece := raw.recv(65536):
            seen += len(piece)
    except ConnectionResetError:
        pass
    return seen < at_most


def test_probes_are_answered_despite_many_idle_connections() -> None:
    """Three hundred silent connections once used up all connections, and every probe failed."""
    with serving(FakeService()) as server, contextlib.ExitStack() as held:
        address = ("127.0.0.1", port_of(server.addresses[0]))
        for _ in range(300):
            held.enter_context(socket.create_connection(address))
        for _ in range(20):
            assert get(f"{server.addresses[0]}/health/live").ok


def test_the_longest_idle_connection_is_closed_first() -> None:
    with serving(FakeService(), ServerLimits(connections_max=3)) as server, contextlib.ExitStack() as held:
        address = ("127.0.0.1", port_of(server.addresses[0]))
        connections = [held.enter_context(socket.create_connection(address)) for _ in range(4)]
        connections[0].settimeout(60)
        assert ends(connections[0])
        for one in connections[1:]:
            one.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            one.settimeout(60)
            assert one.recv(65536).startswith(b"HTTP/1.1 200")


@dataclass
class Known:
    """A connection as `gives_way` sees it."""

    peer: str
    waiting_since_s: float | None


def test_the_peer_with_most_connections_loses_one_that_is_not_being_answered() -> None:
    kubelet, answered = Known("10.0.0.1", 1.0), Known("10.0.0.9", None)
    crowd = [Known("10.0.0.9", float(second)) for second in (4, 3, 5)]
    held = [kubelet, answered, *crowd]
    assert gives_way(held, crowd[-1], 5, 4) is None
    assert gives_way(held, kubelet, 4, 4) is crowd[1], "the peer that has most"
    assert gives_way(held, crowd[-1], 9, 3) is crowd[1], "the peer that has too many"
    busy = [Known("10.0.0.9", None) for _ in range(3)]
    assert gives_way([*busy, kubelet], kubelet, 3, 3) is kubelet, "nobody else waits"


def test_a_connection_serves_many_requests_also_pipelined() -> None:
    with serving(FakeService()) as server, socket.create_connection(("127.0.0.1", port_of(server.addresses[0]))) as raw:
        raw.settimeout(60)
        raw.sendall(b"GET /connectors HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5)
        seen = b""
        while seen.count(b'["users"]') < 5:
            seen += raw.recv(65536)
        assert seen.count(b"HTTP/1.1 200") == 5


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\n\r\n",  # without Host
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 400_000 + b"\r\n\r\n",
    ],
)
def test_bytes_that_are_not_http_are_answered_in_the_error_shape(nonsense: bytes) -> None:
    with serving(FakeService()) as server, socket.create_connection(("127.0.0.1", port_of(server.addresses[0]))) as raw:
        raw.settimeout(60)
        answer = b""
        with contextlib.suppress(OSError):  # it may have closed before it was told all, and its answer be lost
            raw.sendall(nonsense)
            raw.shutdown(socket.SHUT_WR)
            while piece := raw.recv(65536):
                answer += piece
        if answer:
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400")
            assert json.loads(body)["error_code"] == 400


def test_a_body_that_is_too_large_ends_the_connection_with_an_answer() -> None:
    with serving(FakeService()) as server:
        connection = http.client.HTTPConnection("127.0.0.1", port_of(server.addresses[0]), timeout=60)
        connection.putrequest("POST", "/connectors")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(10**9))
        connection.endheaders()
        response = connection.getresponse()
        assert response.status == 413
        assert json.loads(response.read())["error_code"] == 413
        connection.close()


@pytest.mark.parametrize("name", ["localhost", "sink.localhost"])
def test_a_loopback_name_that_resolves_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    place = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_named: [place])
    with (
        pytest.raises(ConfigError, match=r"resolves to 192\.0\.2\.1"),
        listening(make_options(listeners=f"http://{name}:0").listeners, REST),
    ):
        pass


def test_a_pipelined_request_has_its_own_time_limit(stuck: Stuck) -> None:
    with connected(stuck, ServerLimits(request_s=1.0)) as raw:
        raw.settimeout(60)
        raw.sendall(
            b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /connectors/users HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        assert stuck.asked.wait(60)
        time.sleep(1.5)
        stuck.released.set()
        seen = b""
        while seen.count(b"HTTP/1.1 200") < 2:
            piece = raw.recv(65536)
            assert piece, "it was cut off"
            seen += piece


def test_head_is_get_without_the_body() -> None:
    with serving(FakeService()) as server:
        (address,) = server.addresses
        for path in ("/health", "/connectors", "/metrics", "/nothing"):
            head, whole = requests.head(address + path, timeout=60), get(address + path)
            assert (head.status_code, head.content) == (whole.status_code, b"")
            assert head.headers["content-length"] == str(len(whole.content))
        assert requests.head(f"{address}/connectors/users/pause", timeout=60).status_code == 405
