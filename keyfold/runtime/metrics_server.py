"""Metrics over HTTP, for Prometheus to scrape: `http://<metrics.host>:<metrics.port>/metrics`.

If the process can be probed, the server also answers `/health/live` and `/health/ready` with 200 or 503 and the reason
as JSON. Each connection has its own thread, so a probe does not wait for a scrape. Connections are limited in number
and in time; a new connection replaces the oldest, so that idle connections cannot keep a probe out.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from keyfold.errors import ConfigError
from keyfold.runtime.health import ProbeAnswer, Probed

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

# The port may be right although the address does not belong to this machine.
_WRONG_HOST: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
_CONNECTIONS_MAX: Final = 64
_SILENCE_S: Final = 15.0


@contextlib.contextmanager
def serving(
    registry: CollectorRegistry,
    host: str,
    port: int,
    checked: Probed | None = None,
    *,
    keys: tuple[str, str] = ("metrics.host", "metrics.port"),
) -> Iterator[int]:
    """Serve until the context ends; yield the port.

    Raises `ConfigError` if the address cannot be used. It names one of `keys`, the options for host and port.
    """
    # Probes exist from the start: a page of metrics in their place would report a healthy process.
    metrics = make_wsgi_app(registry)
    app = metrics if checked is None else _with_health(metrics, checked)
    try:
        server = _server(host, port, app)
    except (OSError, UnicodeError) as error:
        raise _cannot_listen(host, port, error, keys) from error
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Quiet(WSGIRequestHandler):
    """A handler that does not log requests and does not wait for silent clients."""

    timeout = _SILENCE_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of whom it overrides
        """Log nothing."""


class _Limited(ThreadingMixIn, WSGIServer):
    """A server with one thread per connection and at most `_CONNECTIONS_MAX`: a new connection ends the oldest."""

    daemon_threads = True  # a scraper that went away must not keep the process
    request_queue_size = 128  # with the default of 5 a probe in a burst waits a second for TCP to try again

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._lock = threading.Lock()
        self._open: dict[socket.socket, None] = {}  # in the order of their arrival
        super().__init__(*arguments, **named)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in its own thread."""
        with self._lock:
            self._open[request] = None
            oldest = next(iter(self._open)) if len(self._open) > _CONNECTIONS_MAX else None
            if oldest is not None:
                del self._open[oldest]
        if oldest is not None:
            with contextlib.suppress(OSError):  # it may have ended meanwhile
                oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that has been served."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnected or timed out; report other errors like the base class."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _server(host: str, port: int, app: WSGIApplication) -> WSGIServer:
    """Return a server that listens. Raises `OSError`, and `UnicodeError` for an invalid host name."""

    class Server(_Limited):
        """A server for IPv4 or IPv6, depending on the host."""

        address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]

    return make_server(host, port, app, Server, _Quiet)


def _with_health(metrics: WSGIApplication, checked: Probed) -> WSGIApplication:
    """Answer probes; every other path returns metrics."""
    probes: dict[str, tuple[str, Callable[[], ProbeAnswer]]] = {
        "/health/live": ("alive", checked.live),
        "/health/ready": ("ready", checked.ready),
    }

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        found = probes.get(environ["PATH_INFO"])
        if found is None or environ["REQUEST_METHOD"] != "GET":
            return metrics(environ, start_response)
        status, ask = found
        health = ask()
        code = HTTPStatus.OK if health.is_good else HTTPStatus.SERVICE_UNAVAILABLE
        body: dict[str, object] = {} if health.is_good else {"error_code": int(code)}
        body |= {"status": status if health.is_good else f"not {status}", "message": health.why}
        start_response(f"{int(code)} {code.phrase}", [("Content-Type", "application/json")])
        return [json.dumps(body).encode()]

    return app


def _cannot_listen(host: str, port: int, error: OSError | UnicodeError, keys: tuple[str, str]) -> ConfigError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    message = f"cannot listen on {host}:{port}: {why}"
    if isinstance(error, UnicodeError | socket.gaierror) or error.errno in _WRONG_HOST:
        hint = "use an address of this machine, for example 127.0.0.1 or 0.0.0.0"
        return ConfigError(keys[0], message, hint=hint)
    hint = "another process uses this port: choose a free port, or 0 to disable metrics"
    if error.errno != errno.EADDRINUSE:
        hint = "choose another port, or 0 to disable metrics"
    return ConfigError(keys[1], message, hint=hint)
