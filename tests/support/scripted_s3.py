"""An S3 server that is a script: each request takes the next answer of a list, the last one again and again.

So a test also sees exactly which requests were sent, how often, and with which headers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DATE = "Fri, 20 Nov 2026 12:00:05 GMT"


@dataclass
class Answer:
    """`cut` sends that many bytes of the body and closes; None for `status` closes without an answer."""

    status: int | None = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    date: str | None = DATE


@dataclass
class Asked:
    method: str
    path: str
    headers: Message
    body: bytes


class ScriptedServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[Asked] = []
        super().__init__(("127.0.0.1", 0), ScriptedHandler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class ScriptedHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptedServer

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append(Asked(self.command, self.path, self.headers, body))
        answers = self.server.answers
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer.status is None:
            self.close_connection = True
            return
        self.send_response_only(answer.status)
        if answer.date is not None:
            self.send_header("Date", answer.date)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body if answer.cut is None else answer.body[: answer.cut])
        if answer.cut is not None:
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - http.server's names

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        pass


@contextmanager
def scripted_server() -> Iterator[ScriptedServer]:
    """One that runs, in a thread."""
    server = ScriptedServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
