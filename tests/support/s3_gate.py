"""A proxy before an S3 server: it counts requests, can be shut, and fails a chosen request.

    with Gate(server.url) as gate:
        store = S3Location(bucket, endpoint_url=gate.url, ...).open()
        gate.arm(7, process.kill)                    before the 7th request from now on is passed on, and it is not
        gate.arm(7, process.kill, is_late=True)      after it was carried out, before it is answered
        with gate.shut(): ...                        nobody gets through, and who is under way is cut off
        gate.time.jump(-3600)                        the server behind seems to have a clock that went back an hour

So a process can be killed between any two calls of a real store, whatever that store is. Requests are passed on as they
are, with the `Host` that the client has signed, so the server behind judges credentials and checksums as if nobody
were in between. With `access_key_id` the gate itself refuses everybody else: moto takes any credentials.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from keyfold_demo.served import CuttingServer, Served
from tests.support.clocks import ServerTime

HOP_BY_HOP = {"connection", "keep-alive", "proxy-connection", "expect", "transfer-encoding"}
DENIED = b'<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>a stranger</Message></Error>'


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: `number` counts from 1; `key` is the object's, without its bucket; `status` 0: not answered."""

    number: int
    method: str
    bucket: str
    key: str
    query: str
    sent_bytes: int
    answer_bytes: int
    status: int

    @property
    def creates(self) -> bool:
        """Whether it made an object visible, or sent a whole one at least."""
        return self.method == "PUT" and not self.query and bool(self.key)


@dataclass(frozen=True, slots=True)
class _Strike:
    at: int
    act: Callable[[], object]
    is_late: bool


class Gate(Served):
    """One door. Thread-safe."""

    def __init__(self, upstream_url: str, *, access_key_id: str | None = None) -> None:
        self._upstream = upstream_url
        self._access_key_id = access_key_id
        self._lock = threading.Lock()
        self._strike: _Strike | None = None
        self._count = 0
        self._asked: list[Asked] = []
        self.is_shut = False
        self.time = ServerTime()
        super().__init__(_Server(self), "gate")

    @property
    def url(self) -> str:
        """Where clients knock."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def upstream(self) -> str:
        """Host and port of the server behind."""
        return urlsplit(self._upstream).netloc

    def move(self, upstream_url: str) -> None:
        """The server behind is another one from now on, or the same at another port."""
        self._upstream = upstream_url

    @property
    def asked(self) -> list[Asked]:
        """All requests that were passed on, or refused, up to now."""
        with self._lock:
            return list(self._asked)

    def reset(self) -> None:
        """Forget what was asked, and strike no more."""
        with self._lock:
            self._asked, self._strike, self._count = [], None, 0

    def sent(self) -> Counter[str]:
        """How often each object was sent in one piece since `reset`, whatever the answer was."""
        return Counter(a.key for a in self.asked if a.creates)

    def arm(self, at: int, act: Callable[[], object], *, is_late: bool = False) -> None:
        """At the request that is the `at`-th from now on: call `act`, and give no answer."""
        with self._lock:
            self._strike = _Strike(self._count + at, act, is_late)

    @property
    def is_armed(self) -> bool:
        """Whether the strike is still to come."""
        with self._lock:
            return self._strike is not None

    def disarm(self) -> None:
        """No strike after all."""
        with self._lock:
            self._strike = None

    @contextlib.contextmanager
    def shut(self) -> Iterator[None]:
        """Refuse every request within this context."""
        self.is_shut = True
        self._server.hang_up()
        try:
            yield
        finally:
            self.is_shut = False

    def pass_on(self, handler: _Handler, body: bytes) -> None:
        """One request: refuse, strike, or ask the server behind and answer with its words."""
        with self._lock:
            self._count += 1
            number, strike = self._count, self._strike
            struck = strike if strike is not None and number >= strike.at else None
            if struck is not None:
                self._strike = None
        if self.is_shut or (struck is not None and not struck.is_late):
            if struck is not None:
                struck.act()
            self._note(handler, number, body, 0, 0)
            handler.close_connection = True
            return
        if self._access_key_id is not None and not handler.is_signed_by(self._access_key_id):
            self._note(handler, number, body, 0, 403)
            handler.answer(403, [("Content-Type", "application/xml")], DENIED)
            return
        found = handler.ask(self.upstream, body)
        if found is None:
            self._note(handler, number, body, 0, 0)
            handler.close_connection = True
            return
        status, headers, data = found
        self._note(handler, number, body, len(data), status)
        if struck is not None:
            struck.act()
            handler.close_connection = True
            return
        handler.answer(status, self.time.headers(headers), self.time.body(data))

    def _note(self, handler: _Handler, number: int, body: bytes, answer_bytes: int, status: int) -> None:
        path, _, query = handler.path.partition("?")
        bucket, _, key = unquote(path).lstrip("/").partition("/")
        row = Asked(number, handler.command, bucket, key, query, len(body), answer_bytes, status)
        with self._lock:
            self._asked.append(row)


class _Server(CuttingServer, ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request, client_address) -> None:  # type: ignore[no-untyped-def]  # the signature of socketserver
        """A client that goes away is no news."""


class _Handler(BaseHTTPRequestHandler):
    disable_nagle_algorithm = True
    protocol_version = "HTTP/1.1"
    server: _Server
    _behind: http.client.HTTPConnection | None = None

    def is_signed_by(self, access_key_id: str) -> bool:
        """Whether the request names this key."""
        return f"Credential={access_key_id}/" in (self.headers.get("Authorization") or "")

    def ask(self, upstream: str, body: bytes) -> tuple[int, list[tuple[str, str]], bytes] | None:
        """The server's answer; None where it gives none."""
        if self._behind is None or f"{self._behind.host}:{self._behind.port}" != upstream:
            self._close_behind()
            self._behind = http.client.HTTPConnection(upstream, timeout=60)
        try:
            self._behind.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in HOP_BY_HOP:
                    self._behind.putheader(name, value)
            self._behind.endheaders(body or None)
            answer = self._behind.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException):
            self._close_behind()
            return None
        return answer.status, answer.getheaders(), data

    def answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        """Pass an answer on, with the `Date` that it has."""
        self.send_response_only(status)
        length = str(len(data))
        for name, value in headers:
            if name.lower() == "content-length":
                length = value if self.command == "HEAD" else length
            elif name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        if len(body) < length:
            self.close_connection = True
            return
        self.server.gate.pass_on(self, body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - http.server's names

    def finish(self) -> None:
        """The connection is over."""
        self._close_behind()
        super().finish()

    def _close_behind(self) -> None:
        if self._behind is not None:
            self._behind.close()
            self._behind = None

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        pass
