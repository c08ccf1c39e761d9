"""Metrics over HTTP, for Prometheus to scrape: `http://<metrics.host>:<metrics.port>/metrics`.

Beside them, where somebody can be probed, `/health/live` and `/health/ready`: 200 or 503, and JSON that says why. Each
request has a thread of its own, so a probe waits for no scrape.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, start_http_server

from keyfold.errors import ConfigError
from keyfold.health import Checked, Health

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

# The port may be right and the address be none of this machine's.
_WRONG_HOST: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


@contextlib.contextmanager
def serving(registry: CollectorRegistry, host: str, port: int, checked: Checked | None = None) -> Iterator[int]:
    """Serve until the context ends; gives the port. Raises `ConfigError` where nobody can listen there."""
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, UnicodeError) as error:
        raise _cannot_listen(host, port, error) from error
    metrics = server.get_app()
    if checked is not None and metrics is not None:
        server.set_app(_with_health(metrics, checked))
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _with_health(metrics: WSGIApplication, checked: Checked) -> WSGIApplication:
    """Answers to probes; every other path shows metrics."""
    probes: dict[str, tuple[str, Callable[[], Health]]] = {
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


def _cannot_listen(host: str, port: int, error: OSError | UnicodeError) -> ConfigError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    message = f"cannot listen on {host}:{port}: {why}"
    if isinstance(error, UnicodeError | socket.gaierror) or error.errno in _WRONG_HOST:
        hint = "give an address of this machine, 127.0.0.1 or 0.0.0.0 for one"
        return ConfigError("metrics.host", message, hint=hint)
    hint = "another process serves there: choose a free port, or 0 to serve no metrics"
    if error.errno != errno.EADDRINUSE:
        hint = "choose another port, or 0 to serve no metrics"
    return ConfigError("metrics.port", message, hint=hint)
