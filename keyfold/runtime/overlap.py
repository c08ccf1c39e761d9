"""Overlap work with I/O: fetch ranges ahead of their turn, and send finished data in the background.

A task that fetches, works and sends in sequence uses a third of a processor if the bucket is some milliseconds away. So
small ranges, of which there are hundreds if most blocks lose everything, are fetched several at a time, and large ones
one at a time. Finished data is handed to another thread. This costs a task `FETCH_BYTES` and one part of its upload in
memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Self

from keyfold.runtime.buffers import Bytes, Fetch

FETCH_BYTES: Final = 4 << 20
"""Limit of what is fetched ahead, and of one range, unless a single block is larger."""
FETCH_THREADS: Final = 4
SEND_BYTES: Final = 1024 * 1024
"""How much is handed to the other thread at once, because finished blocks are small."""


class FetchAhead:
    """Return the given ranges in their order, and fetch the next ones while one is used.

    The object reads `ranges` when the first range is requested.
    """

    def __init__(self, fetch: Fetch, ranges: Iterable[tuple[int, int]]) -> None:
        self._fetch = fetch
        self._told = ranges
        self._ranges: deque[tuple[int, int]] | None = None
        self._pool = ThreadPoolExecutor(FETCH_THREADS, "keyfold-fetch")
        self._coming: deque[tuple[tuple[int, int], Future[Bytes]]] = deque()
        self._coming_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)  # waits: a store must not be used when its task is over

    def __call__(self, start: int, length: int) -> Bytes:
        """Return the bytes of the next range. Raise what fetching it raised."""
        if self._ranges is None:
            self._ranges = deque(self._told)
        self._submit(self._ranges)
        wanted, coming = self._coming.popleft()
        assert wanted == (start, length), f"{start, length} is fetched in the place of {wanted}"
        data = coming.result()
        self._coming_bytes -= length
        self._submit(self._ranges)
        return data

    def _submit(self, ranges: deque[tuple[int, int]]) -> None:
        """Request the next ranges within the limit: one large range, or several small ones."""
        while ranges and len(self._coming) < FETCH_THREADS:
            wanted = ranges[0]
            if self._coming and self._coming_bytes + wanted[1] > FETCH_BYTES:
                return
            self._coming.append((wanted, self._pool.submit(self._fetch, *ranges.popleft())))
            self._coming_bytes += wanted[1]


class SendBehind:
    """Hand pieces to `send` in another thread, about `SEND_BYTES` at once, after the previous ones are sent.

    Errors of `send` are raised by the next `write` or by `flush`; nothing is sent after that.
    """

    def __init__(self, send: Callable[[list[Bytes]], None]) -> None:
        self._send = send
        self._pool = ThreadPoolExecutor(1, "keyfold-send")
        self._under_way: Future[None] | None = None
        self._held: list[Bytes] = []
        self._held_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def write(self, pieces: Iterable[Bytes]) -> None:
        """Accept the next pieces."""
        for piece in pieces:
            self._held.append(piece)
            self._held_bytes += len(piece)
        if self._held_bytes >= SEND_BYTES:
            self._hand_over()

    def flush(self) -> None:
        """Return when `send` has accepted everything that was written."""
        self._hand_over()
        self._wait()

    def _hand_over(self) -> None:
        self._wait()
        held, self._held, self._held_bytes = self._held, [], 0
        self._under_way = self._pool.submit(self._send, held)

    def _wait(self) -> None:
        if self._under_way is not None:
            self._under_way.result()
