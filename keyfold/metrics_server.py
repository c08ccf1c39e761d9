"""Metrics over HTTP, for Prometheus to scrape: `http://<metrics.host>:<metrics.port>/metrics`."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server

from keyfold.errors import ConfigError

# The port may be right and the address be none of this machine's.
_WRONG_HOST: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


@contextlib.contextmanager
def serving(registry: CollectorRegistry, host: str, port: int) -> Iterator[int]:
    """Serve until the context ends; gives the port. Raises `ConfigError` where nobody can listen there."""
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, UnicodeError) as error:
        raise _cannot_listen(host, port, error) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


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
