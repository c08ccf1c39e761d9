"""Bind the listening sockets before anything is served, because the worker's id contains the port.

A port in use is an error, as in Kafka Connect, also the default port: a caller of the default port must not reach
another sink than the one that was just started. A second worker on a host needs port 0 or a port of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from keyfold.errors import ConfigError
from keyfold_sink.config.listeners import KEY, RestListener, host_in_url, is_loopback, parse_listeners
from keyfold_sink.config.options import SinkOptions

_BACKLOG: Final = 128


@dataclass(frozen=True, slots=True)
class Sockets:
    """The listening sockets of a worker; empty if the REST API is off."""

    listening: tuple[socket.socket, ...]

    @property
    def addresses(self) -> tuple[str, ...]:
        """URLs for clients, such as `http://127.0.0.1:8083`."""
        return tuple(f"http://{host_in_url(host)}:{port}" for host, port in map(_name, self.listening))

    @property
    def port(self) -> int | None:
        """The port of the first socket."""
        return _name(self.listening[0])[1] if self.listening else None


@contextlib.contextmanager
def listening(options: SinkOptions) -> Iterator[Sockets]:
    """Listen on all `listeners` until the context ends. Raise `ConfigError` if a listener cannot be bound."""
    with contextlib.ExitStack() as stack:
        yield Sockets(tuple(stack.enter_context(_listen(one)) for one in parse_listeners(options.listeners)))


def worker_id(options: SinkOptions, sockets: Sockets) -> str:
    """Return the worker's id: `worker.id`, else host:port of its REST API, else host:process."""
    if options.worker_id is not None:
        return options.worker_id
    host = options.rest_advertised_host_name or socket.gethostname()
    return f"{host}:{options.rest_advertised_port or sockets.port or os.getpid()}"


def _listen(listener: RestListener) -> socket.socket:
    try:
        return _bind(listener)
    except (OSError, UnicodeError) as error:
        raise _cannot_listen(listener, error) from error


def _bind(listener: RestListener) -> socket.socket:
    """Listen on the first address of the host that can be bound, IPv4 before IPv6."""
    places = socket.getaddrinfo(listener.host, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    failure: OSError | None = None
    for family, _, _, _, address in sorted(places, key=lambda place: place[0] != socket.AF_INET):
        if listener.is_loopback and not is_loopback(str(address[0])):
            # No token was required, so the resolver must not turn the name into an address that others can reach.
            raise OSError(errno.EADDRNOTAVAIL, f"the name resolves to {address[0]}, which is not loopback")
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen(_BACKLOG)  # only now do other processes fail with "address in use"
        except OSError as error:
            made.close()
            failure = failure or error
        else:
            made.setblocking(False)
            return made
    raise failure or OSError(errno.EADDRNOTAVAIL, "the name does not resolve to an address")


def _name(made: socket.socket) -> tuple[str, int]:
    host, port = made.getsockname()[:2]
    return host, port


def _cannot_listen(listener: RestListener, error: OSError | UnicodeError) -> ConfigError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    hint = "use an address of this machine, such as 127.0.0.1, or leave `listeners` empty to turn the REST API off"
    if isinstance(error, OSError) and error.errno in {errno.EADDRINUSE, errno.EACCES}:
        free = RestListener(listener.host, 0)
        hint = f"choose another port, or port 0 for any free port (`{KEY}`: {free}), which the worker logs"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        hint = f"another process on this host uses the port; {hint}"
    return ConfigError(KEY, f"cannot listen on {listener}: {why}", hint=hint)
