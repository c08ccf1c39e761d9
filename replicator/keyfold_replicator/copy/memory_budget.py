"""A memory budget for threads: a thread waits until its reservation fits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class CopyMemoryBudget:
    """A budget of `limit_bytes`. A thread that wants more than the whole budget gets it alone. Thread-safe."""

    def __init__(self, limit_bytes: int, stopping: threading.Event) -> None:
        self._limit_bytes = limit_bytes
        self._stopping = stopping
        self._free = threading.Condition()
        self._reserved_bytes = 0
        self.peak_bytes = 0

    @contextmanager
    def reserved(self, n_bytes: int) -> Iterator[None]:
        """Hold `n_bytes` of the budget; do not wait once `stopping` is set."""
        with self._free:
            self._free.wait_for(lambda: self._fits(n_bytes) or self._stopping.is_set())
            self._reserved_bytes += n_bytes
            self.peak_bytes = max(self.peak_bytes, self._reserved_bytes)
        try:
            yield
        finally:
            with self._free:
                self._reserved_bytes -= n_bytes
                self._free.notify_all()

    def wake(self) -> None:
        """Wake waiting threads so that they see `stopping`."""
        with self._free:
            self._free.notify_all()

    def _fits(self, n_bytes: int) -> bool:
        return not self._reserved_bytes or self._reserved_bytes + n_bytes <= self._limit_bytes
