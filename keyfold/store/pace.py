"""The seam of the throttle: who moves bytes asks first.

A store that was given a pacer calls `acquire` before each chunk of an object's bytes that really goes out or comes in:
not when a body is read for its checksum or its signature, and once more when a request is repeated, because the bytes
then move once more. Requests and listings are not counted, only bodies of objects and parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import Any, Final, Protocol

from keyfold.store.api import Bytes

CHUNK_BYTES: Final = 64 * 1024


class Pacer(Protocol):
    """A budget of bytes. One pacer may be shared by the threads of a process."""

    def acquire(self, n_bytes: int) -> None:
        """Return when `n_bytes` (at most `CHUNK_BYTES`) may be moved. Blocks; must not raise."""


class PacedBody:
    """A request's body on its way to the socket: chunks, each after the pacer said yes.

    `body` is what boto3 prepared: bytes, a file over them, or (over TLS) a file that frames them with a trailing
    checksum. This is an iterable and not a file on purpose: that is what urllib3 sends chunk by chunk as it is.
    """

    def __init__(self, body: Any, pacer: Pacer) -> None:
        self._body = body
        self._pacer = pacer

    def __iter__(self) -> Iterator[Bytes]:
        if not hasattr(self._body, "read"):
            self._body = BytesIO(self._body)
        while chunk := self._body.read(CHUNK_BYTES):
            self._pacer.acquire(len(chunk))
            yield chunk

    def seek(self, offset: int, whence: int = 0) -> None:
        """Begin again, for boto3 before it repeats a request."""
        if hasattr(self._body, "seek"):
            self._body.seek(offset, whence)
