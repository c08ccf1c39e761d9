"""`keyfold sink status`, `pause`, `flush` and the others, over a socket, against a sink that records its calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from keyfold.errors import ConfigError
from keyfold_sink.cli.client import SinkAddress, SinkClient
from keyfold_sink.cli.control import _lines, _undurable
from keyfold_sink.cli.status_text import is_well, status_lines
from keyfold_sink.status import RunState
from tests.support.command_here import Ended, run_here
from tests.support.fake_service import NOW_MS, FakeService, make_options, partition, serving, task, worker

TOKEN = "a-token"


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def url(service: FakeService) -> Iterator[str]:
    with serving(service) as server:
        yield server.addresses[0]


def sink(url: str, *words: str, token: str | None = None) -> Ended:
    environment = {} if token is None else {"KEYFOLD_SINK_TOKEN": token}
    return run_here(environment, "sink", words[0], "--url", url, *words[1:])


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (("pause",), "pause"),
        (("resume",), "resume"),
        (("stop",), "stop"),
        (("flush",), "flush"),
        (("restart",), ("restart", True, False)),
        (("restart", "--only-failed"), ("restart", True, True)),
        (("restart", "--no-tasks"), ("restart", False, False)),
        (("restart", "--task", "1"), ("restart task", 1)),
    ],
)
def test_each_command_is_one_request(url: str, service: FakeService, words: tuple[str, ...], call: object) -> None:
    ended = sink(url, *words)
    assert ended == Ended(0, f"users: {words[0]} requested; all workers follow within seconds\n", "")
    assert service.calls == [call]


def test_a_stop_can_be_waited_for(url: str, service: FakeService) -> None:
    assert sink(url, "stop", "--wait", "60") == Ended(0, "users: STOPPED\n", "")


def test_a_wait_ends_with_what_is_missing(url: str, service: FakeService) -> None:
    ended = sink(url, "pause", "--wait", "0")
    assert ended.code == 1
    assert "error: not done within 0 s: task 0 is RUNNING, task 1 is RUNNING\n" in ended.err
    assert service.calls == ["pause"]


def test_a_flush_waits_for_what_was_read_and_no_longer(url: str, service: FakeService) -> None:
    ended = sink(url, "flush", "--wait", "0")
    assert (ended.code, ended.out) == (1, "")
    assert "not durable yet: users-0, users-1" in ended.err
    with SinkClient(SinkAddress(url)) as client:
        assert _undurable(client, {("users", 0): 90, ("users", 7): 100}) == ""


def test_status_is_a_row_per_topic_or_partition(url: str) -> None:
    assert sink(url, "status").out.splitlines() == [
        "users: RUNNING, 2 of 2 tasks working on 1 worker, 2 partitions",
        "",
        "TOPIC  PARTITIONS  STATE    LAG  BUFFERED  NEXT ROLL  LAST COMMIT",
        "users           2  RUNNING   20         -  -          -",
    ]
    rows = sink(url, "status", "--partitions").out.splitlines()[2:]
    assert rows == [
        "PARTITION  LOG END  STATE    LAG  BUFFERED  NEXT ROLL  LAST COMMIT",
        "users-0         90  RUNNING   10         -  -          -",
        "users-1         90  RUNNING   10         -  -          -",
    ]


def test_status_as_json_is_one_document(url: str) -> None:
    found = json.loads(sink(url, "status", "--json").out)
    assert found["status"]["connector"]["state"] == "RUNNING"
    assert [part["lag"] for part in found["partitions"]] == [10, 10]


def test_a_status_with_a_failure_says_why_and_has_the_exit_code_1(url: str, service: FakeService) -> None:
    bad = partition(1, state=RunState.FAILED, error="records are lost", blocked_ms=NOW_MS - 5000)
    service._workers = (worker(0, task(0), task(1, RunState.FAILED, trace="boom", partitions=(bad,))),)
    ended = sink(url, "status")
    assert ended.code == 1
    assert "users: RUNNING, 1 of 2 tasks working" in ended.out
    assert "task 1 (host0:8083): FAILED: boom" in ended.out
    assert re.search(r"^users-1: FAILED, blocked for .*: records are lost$", ended.out, re.MULTILINE)


def test_a_paused_or_stopped_sink_is_well(url: str, service: FakeService) -> None:
    service.state = RunState.STOPPED
    assert sink(url, "status") == Ended(0, "users: STOPPED, no tasks, 0 partitions\n", "")


def test_times_are_relative_and_a_watched_json_is_one_line(url: str, service: FakeService) -> None:
    busy = partition(0, buffered_records=5, roll_due_ms=NOW_MS + 90_000, committed_ms=NOW_MS - 12_000)
    service._workers = (worker(0, task(0, partitions=(busy,))),)
    with SinkClient(SinkAddress(url)) as client:
        found, partitions = client.status(), client.partitions()
    assert list(status_lines(found, partitions, NOW_MS))[-1] == (
        "users           1  RUNNING   10         5  in 90 s    12 s ago"
    )
    assert is_well(found, partitions)
    (line,) = _lines(found, partitions, NOW_MS, each=False, as_json=True)
    assert json.loads(line)["partitions"][0]["next_roll_ms"] == NOW_MS + 90_000


def test_offsets_are_shown_and_moved_forward(url: str, service: FakeService) -> None:
    assert sink(url, "offsets").out.splitlines() == ["PARTITION  LOG END", "users-0         90", "users-1         90"]
    refused = sink(url, "offsets", "--move", "users-1=100")
    assert refused.code == 1
    assert "Stop the connector" in refused.err or "not stopped" in refused.err.lower() or "STOPPED" in refused.err
    service.state = RunState.STOPPED
    moved = sink(url, "offsets", "--move", "users-1=100", "--move", "users-0=91")
    assert moved.out.splitlines()[1:] == ["PARTITION  LOG END", "users-0         91", "users-1        100"]
    assert json.loads(sink(url, "offsets", "--json").out)["offsets"][1]["offset"] == {"kafka_offset": 100}


@pytest.mark.parametrize(
    "words",
    [
        ("offsets", "--move", "users=1"),
        ("offsets", "--move", "users-1=x"),
        ("offsets", "--move", "users-1=1", "--move", "users-1=2"),
        ("restart", "--task", "1", "--only-failed"),
    ],
)
def test_a_wrong_command_line_sends_nothing(url: str, service: FakeService, words: tuple[str, ...]) -> None:
    assert sink(url, *words).code == 2
    assert service.calls == []


def test_an_unknown_task_is_refused(url: str) -> None:
    ended = sink(url, "restart", "--task", "9")
    assert ended.code == 1
    assert "Task users-9 not found" in ended.err


def test_a_token_comes_from_the_environment_or_the_configuration(tmp_path: Path) -> None:
    with serving(FakeService(make_options(**{"rest.token": TOKEN}))) as server:
        url = server.addresses[0].replace("127.0.0.1", "localhost")
        without = sink(url, "status")
        assert without.code == 1
        assert "hint: give CONFIG, which has rest.token, or set KEYFOLD_SINK_TOKEN" in without.err
        assert sink(url, "status", token=TOKEN).code == 0
        config = tmp_path / "users.json"
        config.write_text(json.dumps({"name": "users", "listeners": url, "rest.token": "${env:T}", "x": "${env:NO}"}))
        assert run_here({"T": TOKEN}, "sink", "status", str(config)).code == 0


def test_a_configuration_of_another_sink_is_refused(url: str, service: FakeService, tmp_path: Path) -> None:
    config = tmp_path / "orders.json"
    config.write_text(json.dumps({"name": "orders", "listeners": url}))
    ended = run_here({}, "sink", "pause", str(config))
    assert ended.code == 1
    assert f"error: {url}: Connector orders not found; this worker runs connector users" in ended.err
    assert service.calls == []


def test_no_sink_answers() -> None:
    ended = sink("http://127.0.0.1:1", "status", "--watch")
    assert ended.code == 1
    assert "error: no sink answers at http://127.0.0.1:1:" in ended.err
    assert "hint: start one with `keyfold sink run CONFIG`" in ended.err


@pytest.mark.parametrize("url", ["nonsense", "ftp://host", "http://[", "http://host:x"])
def test_an_address_that_is_none_is_an_error(url: str) -> None:
    ended = sink(url, "status")
    assert ended.code in {1, 2}
    assert ended.err.startswith("error: ")


class _Other(BaseHTTPRequestHandler):
    """A web server that is no sink."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/connectors" else 404)
        self.end_headers()
        self.wfile.write(b"<html>hello\x1b[2J</html>")

    def log_message(self, *_words: object) -> None:
        """Be silent."""


def test_another_web_server_is_no_sink() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Other)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        ended = sink(f"http://127.0.0.1:{server.server_port}", "pause")
    finally:
        server.shutdown()
        server.server_close()
    assert ended.code == 1
    assert "is not the REST API of a sink: it answered 200 <html>hello" in ended.err
    assert "\x1b" not in ended.err


@pytest.mark.parametrize(
    ("listeners", "url"),
    [
        (None, "http://127.0.0.1:8083"),
        ("http://0.0.0.0:8084", "http://127.0.0.1:8084"),
        ("http://:8085", "http://127.0.0.1:8085"),
        ("http://[::]:8086", "http://[::1]:8086"),
        ("http://10.0.0.7:1,http://localhost:2", "http://localhost:2"),
        ("http://127.0.0.1:0,http://sink:9", "http://sink:9"),
    ],
)
def test_the_address_is_a_listener_of_the_configuration(tmp_path: Path, listeners: str | None, url: str) -> None:
    config = tmp_path / "users.properties"
    config.write_text("name=users\n" + ("" if listeners is None else f"listeners={listeners}\n"))
    found = SinkAddress.find(config, None, {})
    assert (found.url, found.token, found.name) == (url, None, "users")


@pytest.mark.parametrize("listeners", ["", "http://127.0.0.1:0"])
def test_a_configuration_without_a_port_needs_a_url(tmp_path: Path, listeners: str) -> None:
    config = tmp_path / "users.properties"
    config.write_text(f"name=users\nlisteners={listeners}\n")
    with pytest.raises(ConfigError, match="names no port"):
        SinkAddress.find(config, None, {})
    assert SinkAddress.find(config, "http://127.0.0.1:9/", {}).url == "http://127.0.0.1:9"


def test_a_proxy_is_not_used_for_loopback(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with SinkClient(SinkAddress(url)) as client:
        assert client.name == "users"
