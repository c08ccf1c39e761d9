"""The byte budget of a whole run: one bucket in the driver, asked by all tasks over a small TCP service.

    bucket      lets bytes through at a rate (`keyfold.rate_limit`).
    service     answers "wait so long" to whoever knows the run's random token.
    client      a task's `Pacer`: takes a slice of the budget at a time, or a piece that moves in one go, and gives back
                what is left when it closes.

The rate is kept in every second, and not only on average: no second has more than 1.3 times the rate, for up to eight
tasks and from 200 kB/s on. On top of the rate there are what idle time leaves, one piece, and in each task the rest of
a slice and the head of a request: 0.3 of a second at most.

A client whose connection is lost refuses every further byte: the task fails and Spark runs it again. It never goes on
unthrottled.

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
from dataclasses import dataclass, field
from typing import Final, Protocol, Self

from keyfold.clock import Clock, SystemClock
from keyfold.errors import KeyfoldError
from keyfold.rate_limit import RateLimit

# How long a slice and a piece last at the whole rate. A slice is what a task asks the driver for: long enough for a
# hundred questions a second at most, short because each task may sit on the rest of one. A piece moves in one go.
# Both, and what idle time leaves (`BURST_S`), are on top of the rate in the worst second.
SLICE_S: Final = 0.01
SLICE_BYTES_MAX: Final = 4 * 1024 * 1024
PIECE_S: Final = 0.05
# The heads of a request and its answer have about 1.5 kB: in a smaller range they would be too large a part.
PIECE_BYTES_MIN: Final = 16 * 1024
PIECE_BYTES_MAX: Final = 64 * 1024 * 1024
ACCEPT_AGAIN_S: Final = 0.05
# A rate of a byte a year asks for waits that no clock can sleep.
WAIT_MAX_S: Final = 86_400.0 * 365
_WELCOME: Final = b"\x01"
_NUMBER: Final = struct.Struct(">q")
_CONNECT_TIMEOUT_S: Final = 10.0
_ANSWER_TIMEOUT_S: Final = 60.0


class ThrottleLost(KeyfoldError):
    """The driver's throttle cannot be reached: this task must not move another byte."""


class TokenBucket:
    """Bytes at `rate` per second. `reserve` never blocks: it says how long the caller has to wait. Thread-safe."""

    def __init__(self, rate: float, clock: Clock) -> None:
        self.rate = rate
        self.granted_bytes = 0
        self._limit = RateLimit(clock)
        self._lock = threading.Lock()

    def reserve(self, n_bytes: int) -> float:
        """Take `n_bytes` out of the budget; seconds until they may be moved. Negative bytes are given back."""
        with self._lock:
            self.granted_bytes += n_bytes
            return self._limit.reserve(n_bytes / self.rate)


class Budget(Protocol):
    """Whoever hands out bytes: the bucket itself in one process, a client of its service elsewhere."""

    def reserve(self, n_bytes: int) -> float:
        """Seconds to wait for `n_bytes`; negative bytes are given back."""


def slice_bytes(rate: float) -> int:
    """How much a task asks for at once."""
    return max(1, int(min(SLICE_BYTES_MAX, rate * SLICE_S)))


def piece_bytes(rate: float) -> int:
    """How much a task may move in one go."""
    return max(PIECE_BYTES_MIN, int(min(PIECE_BYTES_MAX, rate * PIECE_S)))


class BudgetPacer:
    """A `keyfold.store.pace.Pacer` over a budget, shared by the threads of one task; `wait_s` is its throttle wait."""

    def __init__(self, budget: Budget, clock: Clock, rate: float) -> None:
        self.piece_bytes = piece_bytes(rate)
        self._slice_bytes = slice_bytes(rate)
        self._budget = budget
        self._clock = clock
        self._left = 0
        self._lock = threading.Lock()
        self._owed = 0
        self._owed_lock = threading.Lock()  # the other one is held while a thread waits for its bytes
        self.wait_s = 0.0
        self.paced_bytes = 0

    def acquire(self, n_bytes: int) -> None:
        """Return when `n_bytes` may be moved."""
        with self._lock:
            n_bytes += self._take_owed()
            if n_bytes > self._left:
                # Asked for at once: tasks that got halves of pieces in turn would move all of the pieces together.
                wanted = max(self._slice_bytes, n_bytes - self._left)
                wait_s = self._budget.reserve(wanted)
                if wait_s > 0:
                    self._clock.sleep(wait_s)
                    self.wait_s += wait_s
                self._left += wanted
            self._left -= n_bytes
            self.paced_bytes += n_bytes

    def owe(self, n_bytes: int) -> None:
        """See `keyfold.store.pace.Pacer.owe`."""
        with self._owed_lock:
            self._owed += n_bytes

    def give_back(self) -> None:
        """Return what was taken and not used. Where more is owed, others wait for that."""
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
    """Where the service listens, its token, and the rate (bytes a second): what a task needs to know."""

    host: str
    port: int
    token: bytes = field(repr=False)
    rate: float

    def connect(self) -> ThrottleClient:
        """A client. Raises `ThrottleLost`."""
        return ThrottleClient(self)


class ThrottleClient:
    """A budget at the other end of a connection. One per task attempt."""

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
    """The driver's end: one bucket, one thread per connected task. Listens at `bind`, which tasks know as `host`."""

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
        """Stop: clients that are still there get an error at their next request."""
        with self._lock:
            self._closing.set()
            connections = list(self._connections)
        for connection in (self._listener, *connections):
            with contextlib.suppress(OSError):  # not connected any more
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        for thread in self._threads:
            thread.join(timeout=5)

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True, name="keyfold-throttle")  # type: ignore[arg-type]
        self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._closing.wait(ACCEPT_AGAIN_S):
                    return
                continue  # a client that went away, or no file handle is left: others wait for us
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
