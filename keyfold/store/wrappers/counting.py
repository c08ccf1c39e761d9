"""A store that counts requests, which cost money, and bytes, which cost time.

Operations have the names of `keyfold.store.wrappers.base`. A call is counted when it is made (a listing once, for any
number of pages), its bytes when they have been transferred. A copy inside the store transfers no bytes.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

from keyfold.store.api import ObjectStore, PutMode
from keyfold.store.wrappers.base import FullStoreWrapper

T = TypeVar("T")


class CountedStore(FullStoreWrapper):
    """An `ObjectStore` that counts and delegates every call. Thread-safe."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._calls: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def calls(self) -> Counter[str]:
        """Calls so far, by operation."""
        with self._lock:
            return self._calls.copy()

    @property
    def bytes_moved(self) -> Counter[str]:
        """Bytes of bodies so far, by operation."""
        with self._lock:
            return self._bytes.copy()

    @property
    def bytes_read(self) -> int:
        """Received bytes of bodies."""
        moved = self.bytes_moved
        return moved["get"] + moved["get_range"]

    @property
    def bytes_written(self) -> int:
        """Sent bytes of bodies, including those of refused requests."""
        moved = self.bytes_moved
        return moved["put"] + moved["upload.write"]

    def reset(self) -> None:
        """Reset all counts to zero."""
        with self._lock:
            self._calls.clear()
            self._bytes.clear()

    def count(self, operation: str) -> None:
        """Count one call."""
        with self._lock:
            self._calls[operation] += 1

    def perform(self, operation: str, key: str, send: Callable[[], T], mode: PutMode | None = None) -> T:
        """See `StoreWrapper.perform`."""
        self.count(operation)
        return super().perform(operation, key, send, mode)

    def listing(self, operation: str, prefix: str, rows: Callable[[], Iterator[T]]) -> Iterator[T]:
        """See `StoreWrapper.listing`."""
        self.count(operation)
        return super().listing(operation, prefix, rows)

    def sent(self, operation: str, size_bytes: int) -> None:
        """See `StoreWrapper.sent`."""
        with self._lock:
            self._bytes[operation] += size_bytes

    def received(self, operation: str, size_bytes: int) -> None:
        """See `StoreWrapper.received`."""
        with self._lock:
            self._bytes[operation] += size_bytes
