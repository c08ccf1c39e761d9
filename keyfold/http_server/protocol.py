"""Time limits for clients, and limits on connections.

uvicorn waits without limit for a client that connects and sends nothing, sends half a request, or does not read its
response. Here a client has `ServerLimits.request_s` to send a whole request, from the start of the connection or the
last response. The response must have been sent within `ServerLimits.answer_s`.

Connections are limited in total and for each peer. When a connection exceeds a limit, a connection that has not sent a
whole request is closed, never one that is being answered: `gives_way` chooses it. So any number of idle connections
cannot make a probe fail.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits on the server's resources for clients."""

    request_s: float = 15.0
    """Time for a client to send a whole request."""
    answer_s: float = 120.0
    """Time for the server to answer a request and for the client to read the response."""
    connections_max: int = 256
    """Maximum number of open connections."""
    peer_connections_max: int = 128
    """Maximum number of open connections from one address."""


class Connection(Protocol):
    """A connection: its peer's address, and since when it waits for a request (None while a request is answered)."""

    peer: str
    waiting_since_s: float | None


C = TypeVar("C", bound=Connection)


def gives_way(connections: Collection[C], newest: C, connections_max: int, peer_max: int) -> C | None:
    """Return the connection to close after `newest` has arrived, None if no limit is exceeded.

    The connection to close belongs to the peer of `newest` if that peer has too many, else to the peer with the most
    connections. It is the one that has waited longest for a request. If all others are being answered, it is `newest`.
    """
    counts = Counter(one.peer for one in connections)
    if counts[newest.peer] > peer_max:
        peer = newest.peer
    elif len(connections) > connections_max:
        peer = max(counts, key=lambda each: counts[each])
    else:
        return None
    of_peer = ((one.waiting_since_s, one) for one in connections if one.peer == peer)
    waiting = [(since_s, one) for since_s, one in of_peer if since_s is not None]
    return min(waiting, key=lambda pair: pair[0], default=(0.0, newest))[1]


class DeadlineProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with deadlines and connection limits."""

    def __init__(self, limits: ServerLimits, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        self._is_lost = False
        self.peer = ""
        self.waiting_since_s: float | None = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Accept a connection; if that exceeds a limit, close the one that `gives_way` chooses."""
        super().connection_made(transport)
        self.peer = self.client[0] if self.client else ""
        self.waiting_since_s = self.loop.time()
        self._within(self._limits.request_s)
        held = [one for one in self.connections if isinstance(one, DeadlineProtocol) and not one._is_lost]  # noqa: SLF001 - of the same class
        too_many = gives_way(held, self, self._limits.connections_max, self._limits.peer_connections_max)
        if too_many is not None:
            too_many._give_up()  # noqa: SLF001 - its own class

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline."""
        self._is_lost = True
        self._forget()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process received bytes; the deadline of the response begins at the last byte of the request."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Start the deadline of the next request, which may have arrived already."""
        self.waiting_since_s = self.loop.time()
        self._within(self._limits.request_s)
        super().on_response_complete()
        self._look()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP with an error in the common JSON shape."""
        body = json.dumps({"error_code": 400, "message": msg}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _look(self) -> None:
        is_whole = self.conn.their_state in {h11.DONE, h11.MUST_CLOSE} and self.conn.our_state is not h11.DONE
        if is_whole and self.waiting_since_s is not None:
            self.waiting_since_s = None
            self._within(self._limits.answer_s)

    def _within(self, seconds: float) -> None:
        self._forget()
        if not self._is_lost:  # a closing connection may wait for its client to read
            self._deadline = self.loop.call_later(seconds, self._give_up)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._forget()
        self._is_lost = True
        self.transport.abort()
