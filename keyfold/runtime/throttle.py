"""The byte rate of a whole run: one token bucket in the driver, which all tasks ask over a small TCP service.

    bucket      lets bytes through at a rate (`keyfold.runtime.rate_limit`)
    service     tells clients that know the run's random token how long to wait
    client      a task's `Pacer`: takes a slice of the budget at a time, or a piece that moves at once, and returns the
                unused rest when it closes

The rate holds in every second, not only on average: no second has more than 1.3 times the rate, for up to eight tasks
and rates from 200 kB/s on. The excess is what idle time leaves, one piece, and in each task the rest of a slice and the
head of a request: together at most 0.3 seconds' worth.

A client that loses its connection refuses every further byte. The task fails and Spark runs it again; it never
continues unthrottled.

    wire        client -> 32 bytes token; service -> 1 byte (1: welcome)
                client -> int64 bytes wanted (negative: given back, no answer); service -> int64 microseconds to wait
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, Self

from keyfold.errors import KeyfoldError
from keyfold.runtime.clock import Clock, SystemClock
from keyfold.runtime.rate_limit import RateLimit

# Duration of a slice and of a piece at the full rate. A task asks the driver for one slice at a time. It is long enough
# that there are at most a hundred requests per second, and short because each task may keep the rest of one. A piece
# moves at once. Both, and what idle time leaves (`BURST_S`), come on top of the rate in the worst second.
SLICE_S: Final = 0.01
SLICE_BYTES_MAX: Final = 4 * 1024 * 1024
PIECE_S: Final = 0.05
# The heads of a request and its answer have about 1.5 kB: they would be too large a share of a smaller range.
PIECE_BYTES_MIN: Final = 16 * 1024
PIECE_BYTES_MAX: Final = 64 * 1024 * 1024
ACCEPT_AGAIN_S: Final = 0.05
# A rate of one byte per year would need longer waits than a clock can sleep.
WAIT_MAX_S: Final = 86_400.0 * 365
_WELCOME: Final = b"\x01"
_NUMBER: Final = struct.Struct(">q")
_CONNECT_TIMEOUT_S: Final = 10.0
_ANSWER_TIMEOUT_S: Final = 60.0


class ThrottleLost(KeyfoldError):
    """The driver's throttle cannot be reached, so this task must not move another byte."""


class TokenBucket:
    """A budget of `rate` bytes per second. `reserve` never blocks: it returns how long to wait. Thread-safe."""

    def __init__(self, rate: float, clock: Clock) -> None:
        self.rate = rate
        self.granted_bytes = 0
        self._limit = RateLimit(clock)
        self._lock = threading.Lock()

    def reserve(self, n_bytes: int) -> float:
        """Take `n_bytes` from the budget; return the seconds until they may be moved. Negative bytes are returned."""
        with self._lock:
            self.granted_bytes += n_bytes
            return self._limit.reserve(n_bytes / self.rate)


class Budget(Protocol):
    """A source of bytes: the bucket itself in one process, a client of its service elsewhere."""

    def reserve(self, n_bytes: int) -> float:
        """Return the seconds to wait for `n_bytes`; negative bytes are returned to the budget."""


def slice_bytes(rate: float) -> int:
    """Return how many bytes a task asks for at once."""
    return max(1, int(min(SLICE_BYTES_MAX, rate * SLICE_S)))


def piece_bytes(rate: float) -> int:
    """Return how many bytes a task may move at once."""
    return max(PIECE_BYTES_MIN, int(min(PIECE_BYTES_MAX, rate * PIECE_S)))


def paced(rate: float | None, clock: Clock) -> BudgetPacer | None:
    """Return a pacer with a budget of its own, of `rate` bytes a second; None if there is no rate."""
    return None if rate is None else BudgetPacer(TokenBucket(rate, clock), clock, rate)


class BudgetPacer:
    """A `keyfold.store.pacing.Pacer` over a budget, shared by the threads of one task; `wait_s` is its total wait."""

    def __init__(self, budget: Budget, clock: Clock, rate: float) -> None:
        self.piece_bytes = piece_bytes(rate)
        self._slice_bytes = slice_bytes(rate)
        self._budget = budget
        self._clock = clock
        self._left = 0
        self._lock = threading.Lock()
        self._owed = 0
        self._owed_lock = threading.Lock()  # a lock of its own: `_lock` is held while a thread waits for its bytes
        self.wait_s = 0.0
        self.paced_bytes = 0

    def acquire(self, n_bytes: int) -> None:
        """Return when `n_bytes` may be moved."""
        with self._lock:
            n_bytes += self._take_owed()
            if n_bytes > self._left:
                # Reserve it at once: tasks that got halves of pieces in turn would move all pieces at the same time.
                wanted = max(self._slice_bytes, n_bytes - self._left)
                wait_s = self._budget.reserve(wanted)
                if wait_s > 0:
                    self._clock.sleep(wait_s)
                    self.wait_s += wait_s
                self._left += wanted
            self._left -= n_bytes
            self.paced_bytes += n_bytes

    def owe(self, n_bytes: int) -> None:
        """See `keyfold.store.pacing.Pacer.owe`."""
        with self._owed_lock:
            self._owed += n_bytes

    def give_back(self) -> None:
        """Return unused bytes to the budget. If more is owed, others wait for the difference."""
        with self._lock:
            owed = self._take_owed()
            self.paced_bytes += owed
            if self._left != owed:
                self._budget.reserve(owed - self._left)
            self._left = 0

    def _take_owed(self) -> int:
        with self._owed_lock:
            owed, self._owed = self._owed, 0
            return owed


@dataclass(frozen=True, slots=True)
class ThrottleAddress:
    """Where the service listens, its token, and the rate (bytes per second)."""

    host: str
    port: int
    token: bytes = field(repr=False)
    rate: float

    def connect(self) -> ThrottleClient:
        """Return a client. Raise `ThrottleLost`."""
        return ThrottleClient(self)


class ThrottleClient:
    """A budget at the other end of a connection; one per task attempt."""

    def __init__(self, address: ThrottleAddress) -> None:
        self._address = address
        try:
            self._socket = socket.create_connection((address.host, address.port), timeout=_CONNECT_TIMEOUT_S)
        except OSError as error:
            raise self._lost(error) from error
        self._socket.settimeout(_ANSWER_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket.sendall(address.token)
            _read_exactly(self._socket, len(_WELCOME))
        except OSError as error:
            self._socket.close()
            raise self._lost(error) from error

    def reserve(self, n_bytes: int) -> float:
        """See `Budget.reserve`. Raises `ThrottleLost`, and ever after: the socket stays closed."""
        try:
            self._socket.sendall(_NUMBER.pack(n_bytes))
            if n_bytes < 0:
                return 0.0
            (wait_us,) = _NUMBER.unpack(_read_exactly(self._socket, _NUMBER.size))
        except OSError as error:
            self._socket.close()
            raise self._lost(error) from error
        return float(wait_us) / 1e6

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _lost(self, error: OSError) -> ThrottleLost:
        return ThrottleLost(
            f"the throttle at {self._address.host}:{self._address.port} does not answer ({error})",
            hint="executors must reach the driver's address; the task stopped so as not to exceed the byte rate",
        )


class ThrottleService:
    """The driver's end: one bucket, and one thread per connected task. Listens on `bind`; tasks connect to `host`."""

    def __init__(
        self, rate: float, *, host: str = "127.0.0.1", bind: str | None = None, clock: Clock | None = None
    ) -> None:
        self.bucket = TokenBucket(rate, SystemClock() if clock is None else clock)
        self._token = secrets.token_bytes(32)
        self._listener = socket.create_server((bind or host, 0))
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        self.address = ThrottleAddress(host, self._listener.getsockname()[1], self._token, rate)
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the service. Clients that are still connected get an error at their next request."""
        with self._lock:
            self._closing.set()
            connections = list(self._connections)
        for connection in (self._listener, *connections):
            with contextlib.suppress(OSError):  # not connected any more
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        for thread in self._threads:
            thread.join(timeout=5)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True, name="keyfold-throttle")
        self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._closing.wait(ACCEPT_AGAIN_S):
                    return
                continue  # a client has gone, or no file handle is left: other clients still wait
            with self._lock:
                if self._closing.is_set():
                    connection.close()
                    return
                self._connections.add(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(_CONNECT_TIMEOUT_S)
            if not hmac.compare_digest(_read_exactly(connection, len(self._token)), self._token):
                return
            connection.settimeout(None)
            connection.sendall(_WELCOME)
            while True:
                (wanted,) = _NUMBER.unpack(_read_exactly(connection, _NUMBER.size))
                wait_s = self.bucket.reserve(wanted)
                if wanted >= 0:
                    connection.sendall(_NUMBER.pack(int(min(wait_s, WAIT_MAX_S) * 1e6)))
        except OSError:
            return  # the task ended
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()


def _read_exactly(connection: socket.socket, n_bytes: int) -> bytes:
    data = b""
    while len(data) < n_bytes:
        part = connection.recv(n_bytes - len(data))
        if not part:
            raise ConnectionError("connection closed")
        data += part
    return data
