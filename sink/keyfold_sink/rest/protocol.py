"""Patience with clients, and its end.

uvicorn waits for ever for a client that connects and says nothing, sends half a request, or does not read its answer.
Here a connection has `REQUEST_S` to send a whole request, counted from its beginning or from the last answer, and
`ANSWER_S` to have been answered. A connection beyond `CONNECTIONS_MAX` is closed at once; probes come back.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S: Final = 15.0
ANSWER_S: Final = 120.0
CONNECTIONS_MAX: Final = 256


class PatientProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with deadlines."""

    request_s: float = REQUEST_S
    answer_s: float = ANSWER_S
    connections_max: int = CONNECTIONS_MAX

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._waits_for_answer = False
        self._is_lost = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Let a client in, or not."""
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            transport.abort()
            return
        self._within(self.request_s)

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
        self._waits_for_answer = False
        self._within(self.request_s)
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
        if is_whole and not self._waits_for_answer:
            self._waits_for_answer = True
            self._within(self.answer_s)

    def _within(self, seconds: float) -> None:
        self._forget()
        if not self._is_lost:  # one that is closing may wait for its client to read
            self._deadline = self.loop.call_later(seconds, self._give_up)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        self.transport.abort()
