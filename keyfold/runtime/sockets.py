"""Bind the listening sockets of a server.

A port in use is an error, as in Kafka Connect, also the default port: a caller of the default port must not reach
another server than the one that was just started. A second server on a host needs port 0 or a port of its own.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from keyfold.errors import ConfigError
from keyfold.runtime.listeners import Listener, SettingNames, host_in_url, is_loopback, parse_listeners

_BACKLOG: Final = 128


@dataclass(frozen=True, slots=True)
class Sockets:
    """The listening sockets of a server; empty if it has no listeners."""

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
def listening(listeners: Iterable[str], names: SettingNames) -> Iterator[Sockets]:
    """Listen on all listeners until the context ends. Raise `ConfigError` if one of them cannot be bound."""
    with contextlib.ExitStack() as stack:
        yield Sockets(tuple(stack.enter_context(_listen(one, names)) for one in parse_listeners(listeners, names)))


def _listen(listener: Listener, names: SettingNames) -> socket.socket:
    try:
        return _bind(listener)
    except (OSError, UnicodeError) as error:
        raise _cannot_listen(listener, names.listeners, error) from error


def _bind(listener: Listener) -> socket.socket:
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


def _cannot_listen(listener: Listener, key: str, error: OSError | UnicodeError) -> ConfigError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    hint = "use an address of this machine, such as 127.0.0.1"
    if isinstance(error, OSError) and error.errno in {errno.EADDRINUSE, errno.EACCES}:
        free = Listener(listener.host, 0)
        hint = f"choose another port, or port 0 for any free port (`{key}`: {free}), which is then logged"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        hint = f"another process on this host uses the port; {hint}"
    return ConfigError(key, f"cannot listen on {listener}: {why}", hint=hint)
