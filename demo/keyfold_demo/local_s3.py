"""S3 on this machine: moto behind one lock, with faults on request.

moto checks a condition and writes in two steps, so two writers can both win. Here one request at a time runs in it,
which makes its conditional writes atomic. A request's body is read to its end before the lock is taken: a paused client
holds up nobody, and one that is killed half-way has written nothing (moto alone would store the half).

    with LocalS3() as s3: ...              in a thread of this process; all in one process share their buckets
    with LocalS3Process() as s3: ...       in a process of its own: `python -m keyfold_demo.local_s3 --port N`

Both have `url`, `create_bucket`, `client` and `set_faults` (see `keyfold_demo.faults`). Data lives in memory. moto
accepts any credentials and ignores checksums: it is evidence for neither.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import traceback
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any, Final, Self

import click
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import ThreadedWSGIServer

from keyfold.errors import KeyfoldError
from keyfold_demo.children import death_with_parent, end
from keyfold_demo.faults import CODES, DROP, PASS, Fault, FaultPlan, faults_from_json, faults_to_json
from keyfold_demo.s3_endpoint import S3Endpoint
from keyfold_demo.served import CuttingServer, Served

_CONTROL_PATH: Final = "/_keyfold/faults"  # `_` begins no bucket's name
_OWN_HEADERS: Final = {"date", "server", "connection", "content-length", "transfer-encoding"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


# moto keeps its buckets in the process, whatever server asks for them: so one lock a process, not one a server.
_moto_lock: Final = threading.Lock()
_moto_app: Final = DomainDispatcherApplication(create_backend_app)
# moto lists the folders of its package twice for each request, which is a quarter of the work that a request is.
_moto_app.get_backend_for_host = lru_cache(maxsize=64)(_moto_app.get_backend_for_host)  # type: ignore[method-assign]  # a faster one in its place


class Application:
    """Turns a WSGI environment into an `Answer`, or None: hang up."""

    def __init__(self) -> None:
        self.plan = FaultPlan()

    def answer(self, environ: dict[str, Any]) -> Answer | None:
        """Read the body, ask the plan, run moto."""
        body = _read_body(environ)
        if body is None:
            return None
        if environ["PATH_INFO"] == _CONTROL_PATH:
            return self._control(environ["REQUEST_METHOD"], body)
        fault = self.plan.pick(f"{environ['REQUEST_METHOD']} {environ['REQUEST_URI']}")
        if fault is not None and fault.slow_ms:
            threading.Event().wait(fault.slow_ms / 1000)
        if fault is None or fault.status == PASS:
            return _run_moto(environ)
        if fault.late_ms:
            later = threading.Timer(fault.late_ms / 1000, _run_moto, (environ,))
            later.daemon = True
            later.start()
        elif fault.applied:
            _run_moto(environ)
        return None if fault.status == DROP else _error(fault.status)

    def _control(self, method: str, body: bytes) -> Answer:
        """PUT sets the plan, GET tells how often its faults have struck."""
        if method == "PUT":
            plan = json.loads(body)
            self.plan = FaultPlan(faults_from_json(plan["faults"]), plan["seed"])
        return Answer(200, (("Content-Type", "application/json"),), json.dumps(self.plan.struck).encode())


def _read_body(environ: dict[str, Any]) -> bytes | None:
    """The whole body, put back for moto; None where the client went away before its end."""
    stream = environ["wsgi.input"]
    if environ.get("wsgi.input_terminated"):
        try:
            body: bytes = stream.read()
        except OSError:
            return None
        environ["CONTENT_LENGTH"] = str(len(body))
        environ.pop("HTTP_TRANSFER_ENCODING", None)
    else:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = stream.read(length) if length else b""
        if len(body) < length:
            return None
    environ["wsgi.input"] = io.BytesIO(body)
    environ["wsgi.input_terminated"] = True
    return body


def _run_moto(environ: dict[str, Any]) -> Answer:
    got: dict[str, Any] = {}

    def start_response(status: str, headers: list[tuple[str, str]], _exc_info: object = None) -> None:
        got.update(status=int(status.split(" ", 1)[0]), headers=headers)

    try:
        with _moto_lock:
            chunks = _moto_app(environ, start_response)
            try:
                body = b"".join(chunks)
            finally:
                getattr(chunks, "close", lambda: None)()
    except Exception:  # noqa: BLE001 - a server answers; what went wrong in moto is printed for whoever looks
        traceback.print_exc()
        return _error(500)
    return Answer(got["status"], tuple(got["headers"]), body)


def _error(status: int) -> Answer:
    body = f'<?xml version="1.0"?><Error><Code>{CODES[status]}</Code><Message>on request</Message></Error>'
    return Answer(status, (("Content-Type", "application/xml"),), body.encode())


class _Handler(MotoRequestHandler):
    """Keeps connections open, which werkzeug's own does not, and can hang up without a word."""

    disable_nagle_algorithm = True
    protocol_version = "HTTP/1.1"
    server: _Server

    def run_wsgi(self) -> None:
        if self.headers.get("Expect", "").lower().strip() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        answer = self.server.application.answer(self.make_environ())
        if answer is None:
            self.close_connection = True
            return
        self.send_response(answer.status)  # with the real Date
        length = str(len(answer.body))
        for name, value in answer.headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            if name.lower() not in _OWN_HEADERS:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Say nothing: there are thousands of requests."""


class _Server(CuttingServer, ThreadedWSGIServer):
    """moto, as the handler asks it."""

    def __init__(self, port: int) -> None:
        self.application = Application()
        super().__init__("127.0.0.1", port, _no_wsgi, handler=_Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - socketserver's signature
        """A client that goes away is no news."""
        if not isinstance(sys.exc_info()[1], OSError):
            traceback.print_exc()


def _no_wsgi(_environ: object, _start_response: object) -> Iterable[bytes]:
    raise AssertionError("the handler asks the application itself")


class _MotoEndpoint(S3Endpoint):
    """What both kinds of server offer to a test beside."""

    def set_faults(self, *faults: Fault, seed: int = 0) -> None:
        """From the next request on, these and no others; none at all clears."""
        self._ask("PUT", json.dumps({"seed": seed, "faults": faults_to_json(faults)}).encode())

    def struck(self) -> list[int]:
        """How often each fault has struck since `set_faults`."""
        return [int(count) for count in self._ask("GET", None)]

    def _ask(self, method: str, body: bytes | None) -> list[Any]:
        request = urllib.request.Request(self.url + _CONTROL_PATH, data=body, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            rows: list[Any] = json.loads(answer.read())
            return rows


class LocalS3(Served, _MotoEndpoint):
    """A server in a thread of this process."""

    _server: _Server

    def __init__(self, port: int = 0) -> None:
        server = _Server(port)
        Served.__init__(self, server, "local-s3")
        _MotoEndpoint.__init__(self, server.port)


class LocalS3Process(_MotoEndpoint):
    """A server in a process of its own: for Spark workers, for sinks that are killed, and for a test of its death."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(port)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [*death_with_parent(), sys.executable, "-m", "keyfold_demo.local_s3", "--port", str(self.port)]
        # New session: Ctrl-C is for whoever started it.
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode()
        if not line.startswith("http://"):
            end(self._process)
            self._process.stdout.close()
            raise KeyfoldError(f"the local store did not start: exit code {self._process.returncode}")
        self.port = int(line.strip().rsplit(":", 1)[1])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            end(self._process, retry_timeout_s=5)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    @property
    def pid(self) -> int:
        """Process id of the server."""
        if self._process is None:
            raise KeyfoldError("the local store is not running")
        return self._process.pid


@click.command()
@click.option("--port", type=int, default=0, help="0: a free one.")
@click.option("--bucket", multiple=True, help="Make this bucket at the start; may be repeated.")
def main(port: int, bucket: tuple[str, ...]) -> None:
    """Serve S3 on 127.0.0.1 until killed; the first line of output is the URL."""
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    with LocalS3(port) as server:
        for name in bucket:
            server.create_bucket(name)
        click.echo(server.url)
        threading.Event().wait()


if __name__ == "__main__":
    main()
