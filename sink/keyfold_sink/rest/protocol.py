"""Patience with clients, and its end.

uvicorn waits for ever for a client that connects and says nothing, sends half a request, or does not read its answer.
Here a connection has `RestLimits.request_s` to send a whole request, counted from its beginning or from the last
answer, and `RestLimits.answer_s` to have been answered.

Connections are limited, in all and for each peer. When one too many arrives, a connection that has not sent a whole
request gives way, never one that is being answered: `gives_way` says which. So idle connections cannot keep a probe
out, however many there are.
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
class RestLimits:
    """What a client may take of the server."""

    request_s: float = 15.0
    """A whole request must arrive within this time."""
    answer_s: float = 120.0
    """A request must have been answered within this time, and the client have read the answer."""
    connections_max: int = 256
    """At most this number of connections is open."""
    peer_connections_max: int = 128
    """At most this number of connections from one address is open."""


class Connection(Protocol):
    """What is known of a connection: its peer's address, and since when a request is awaited (None: one is there)."""

    peer: str
    waiting_since_s: float | None


C = TypeVar("C", bound=Connection)


def gives_way(connections: Collection[C], newest: C, connections_max: int, peer_max: int) -> C | None:
    """Return the connection to be closed after `newest` has arrived, None while there is room.

    It belongs to the newest one's peer where that has too many, else to the peer that has most, and has waited longest
    for a request. Where all others are being answered, the newest one itself gives way.
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


class PatientProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with deadlines."""

    def __init__(self, limits: RestLimits, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        self._is_lost = False
        self.peer = ""
        self.waiting_since_s: float | None = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Let a client in; where that is one too many, close the connection that `gives_way`."""
        super().connection_made(transport)
        self.peer = self.client[0] if self.client else ""
        self.waiting_since_s = self.loop.time()
        self._within(self._limits.request_s)
        held = [one for one in self.connections if isinstance(one, PatientProtocol) and not one._is_lost]  # noqa: SLF001
        too_many = gives_way(held, self, self._limits.connections_max, self._limits.peer_connections_max)
        if too_many is not None:
            too_many._give_up()  # noqa: SLF001 - its own class

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._is_lost = True
        self._forget()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came; a whole request has a deadline of its own, from its last byte on."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """The next request has as long as the first; it may be here already."""
        self.waiting_since_s = self.loop.time()
        self._within(self._limits.request_s)
        super().on_response_complete()
        self._look()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is told so in the shape that every error has."""
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
        if not self._is_lost:  # one that is closing may wait for its client to read
            self._deadline = self.loop.call_later(seconds, self._give_up)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._forget()
        self._is_lost = True
        self.transport.abort()
