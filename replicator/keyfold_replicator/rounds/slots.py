"""Limit how many rounds talk to the stores at once. A round that waits for its copies gives up its slot.

So a few partitions with much to copy, within a small byte rate, do not keep all others from being checked.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class RoundSlots:
    """A semaphore of `count` slots. Thread-safe."""

    def __init__(self, count: int) -> None:
        self._free = threading.BoundedSemaphore(count)

    @contextmanager
    def held_slot(self) -> Iterator[None]:
        """Wait for a slot, and hold it."""
        with self._free:
            yield

    @contextmanager
    def released_slot(self) -> Iterator[None]:
        """Give up the caller's slot, and wait for one again at the end."""
        self._free.release()
        try:
            yield
        finally:
            self._free.acquire()
