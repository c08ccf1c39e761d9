"""The seam of the throttle: who moves bytes asks first.

A store that was given a pacer calls `acquire` before each chunk of an object's bytes that really goes out or comes in:
not when a body is read for its checksum or its signature, and once more when a request is repeated, because the bytes
then move once more. Requests and listings are not counted, only bodies of objects and parts.
"""

from __future__ import annotations

from typing import Final, Protocol

CHUNK_BYTES: Final = 64 * 1024


class Pacer(Protocol):
    """A budget of bytes. One pacer may be shared by the threads of a process."""

    def acquire(self, n_bytes: int) -> None:
        """Return when `n_bytes` (at most `CHUNK_BYTES`) may be moved. Blocks; must not raise."""
