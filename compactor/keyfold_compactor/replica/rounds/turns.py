"""How many rounds speak with the stores at once. One that waits for its copies gives its turn to others.

So a few partitions with much to copy, within a small byte budget, do not keep all others from being looked at.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """`count` turns. Thread-safe."""

    def __init__(self, count: int) -> None:
        self._free = threading.BoundedSemaphore(count)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for a turn, and have it."""
        with self._free:
            yield

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """Without the turn that one has; it is waited for at the end."""
        self._free.release()
        try:
            yield
        finally:
            self._free.acquire()
