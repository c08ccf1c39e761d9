"""Sockets that listen, made before anything is served: by their ports a worker is named.

A port that is taken is an error, as in Kafka Connect, also where it is the default: a caller of the default port must
not reach another sink than the one that was just started. A second worker on a host asks for port 0, or its own port.
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
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.rest.addresses import KEY, Listener, host_in_url, is_loopback, parse_listeners

_BACKLOG: Final = 128


@dataclass(frozen=True, slots=True)
class Sockets:
    """What a worker listens on; none where REST is off."""

    listening: tuple[socket.socket, ...]

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where clients reach it, such as `http://127.0.0.1:8083`."""
        return tuple(f"http://{host_in_url(host)}:{port}" for host, port in map(_name, self.listening))

    @property
    def port(self) -> int | None:
        """The first one's port."""
        return _name(self.listening[0])[1] if self.listening else None


@contextlib.contextmanager
def listening(options: SinkOptions) -> Iterator[Sockets]:
    """Listen as `listeners` says, until the context ends. Raises `ConfigError` where that cannot be."""
    with contextlib.ExitStack() as stack:
        yield Sockets(tuple(stack.enter_context(_listen(one)) for one in parse_listeners(options.listeners)))


def worker_id(options: SinkOptions, sockets: Sockets) -> str:
    """What the worker is known by: `worker.id`, else host:port of its REST API, else host:process."""
    if options.worker_id is not None:
        return options.worker_id
    host = options.rest_advertised_host_name or socket.gethostname()
    return f"{host}:{options.rest_advertised_port or sockets.port or os.getpid()}"


def _listen(listener: Listener) -> socket.socket:
    try:
        return _bind(listener)
    except (OSError, UnicodeError) as error:
        raise _cannot_listen(listener, error) from error


def _bind(listener: Listener) -> socket.socket:
    """Listen on the first address of the host that can be had, IPv4 before IPv6."""
    places = socket.getaddrinfo(listener.host, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    failure: OSError | None = None
    for family, _, _, _, address in sorted(places, key=lambda place: place[0] != socket.AF_INET):
        if listener.is_loopback and not is_loopback(str(address[0])):
            # No token was asked for, so no resolver may turn the name into an address that others reach.
            raise OSError(errno.EADDRNOTAVAIL, f"the name stands for {address[0]}, which is not loopback")
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen(_BACKLOG)  # only now another one is told that the port is taken
        except OSError as error:
            made.close()
            failure = failure or error
        else:
            made.setblocking(False)
            return made
    raise failure or OSError(errno.EADDRNOTAVAIL, "the name has no address")


def _name(made: socket.socket) -> tuple[str, int]:
    host, port = made.getsockname()[:2]
    return host, port


def _cannot_listen(listener: Listener, error: OSError | UnicodeError) -> ConfigError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    hint = "give an address of this machine, 127.0.0.1 for one, or leave `listeners` empty to have no REST API"
    if isinstance(error, OSError) and error.errno in {errno.EADDRINUSE, errno.EACCES}:
        free = Listener(listener.host, 0)
        hint = f"choose another port, or port 0 for any that is free (`{KEY}`: {free}), which the worker then logs"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        hint = f"another worker or program on this host has it: {hint}"
    return ConfigError(KEY, f"cannot listen on {listener}: {why}", hint=hint)
