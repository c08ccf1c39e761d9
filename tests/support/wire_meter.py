"""A TCP proxy before a server: how many bytes pass, in which direction, and how many in the worst second.

    with WireMeter(s3.port) as meter:
        ... clients use meter.url ...
    most_within(meter.moves, 1.0)

A byte counts when the proxy has it: an answer counts as the server gives it away, however slowly the client reads. The
proxy's buffers are those of the system, as those of any load balancer are.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple, Self

RECV_BYTES = 64 * 1024


class Move(NamedTuple):
    """Bytes that passed at one moment (in seconds)."""

    at_s: float
    n_bytes: int


def most_within(moves: Iterable[Move], window_s: float) -> int:
    """The most bytes within any window of this length. `moves` are in the order of time."""
    inside: list[Move] = []
    first = total = best = 0
    for move in moves:
        inside.append(move)
        total += move.n_bytes
        while inside[first].at_s <= move.at_s - window_s:
            total -= inside[first].n_bytes
            first += 1
        best = max(best, total)
    return best


class WireMeter:
    """The proxy, in threads of this process. `sent_bytes` are those of requests, `received_bytes` those of answers."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._lock = threading.Lock()
        self._moves: list[Move] = []
        self.sent_bytes = 0
        self.received_bytes = 0
        self._open: set[socket.socket] = set()
        self._server = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True, name="wire-meter").start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            connections = [self._server, *self._open]
        for connection in connections:
            with contextlib.suppress(OSError):  # closed already
                connection.shutdown(socket.SHUT_RDWR)
        self._server.close()

    @property
    def moves(self) -> list[Move]:
        """All that has passed up to now, both directions together."""
        with self._lock:
            return list(self._moves)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open |= {near, far}
            threading.Thread(target=self._pump, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, False), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(RECV_BYTES):
                with self._lock:
                    self._moves.append(Move(time.monotonic(), len(data)))
                    if is_request:
                        self.sent_bytes += len(data)
                    else:
                        self.received_bytes += len(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        with self._lock:
            self._open.discard(source)
        if is_request:
            return
        for end in (source, target):  # the answers are over, and with them the connection
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
