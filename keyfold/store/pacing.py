"""The interface of the byte-rate limit: a store asks before it transfers bytes.

A store with a pacer calls `acquire` before it transfers bytes of an object: before each piece of a body that it sends,
and before each request for bytes, because a store sends the whole answer immediately. Reading a body for its checksum
or signature does not count. A retried request counts again, because its bytes are transferred again.

Headers of requests and answers, listings and errors are small, or their size is known too late to ask first. The store
calls `owe` when it transfers them, and the next bytes of an object wait for them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any, Final, Protocol

from keyfold.runtime.buffers import Bytes

CHUNK_BYTES: Final = 64 * 1024
"""Maximum number of bytes written to the socket at once."""

_FRAME_BYTES: Final = 19
"""Bytes of a head besides its headers and its path: version, status or method, line ends."""


class Pacer(Protocol):
    """A budget of bytes. One pacer may be shared by the threads of a process."""

    @property
    def piece_bytes(self) -> int:
        """Maximum number of bytes per `acquire`. They may be transferred at once, so they are few for the rate."""

    def acquire(self, n_bytes: int) -> None:
        """Return when `n_bytes` (at most `piece_bytes`) may be transferred. Blocks; must not raise."""

    def owe(self, n_bytes: int) -> None:
        """Count bytes that are transferred without `acquire`. Never blocks: the next `acquire` waits for them."""


class PacedBody:
    """A request's body as chunks that wait for the pacer on their way to the socket.

    `body` is what boto3 prepared: bytes, a file over them, or (over TLS) a file that frames them with a trailing
    checksum. The class is iterable and not a file on purpose: urllib3 sends an iterable chunk by chunk, unchanged.
    """

    def __init__(self, body: Any, pacer: Pacer) -> None:
        self._body = body
        self._pacer = pacer

    def __iter__(self) -> Iterator[Bytes]:
        if not hasattr(self._body, "read"):
            self._body = BytesIO(self._body)
        while chunk := self._body.read(min(CHUNK_BYTES, self._pacer.piece_bytes)):
            self._pacer.acquire(len(chunk))
            yield chunk

    def seek(self, offset: int, whence: int = 0) -> None:
        """Start again, for boto3 before it retries a request."""
        if hasattr(self._body, "seek"):
            self._body.seek(offset, whence)


def head_bytes(headers: Mapping[str, str], first_line: str = "") -> int:
    """Return the approximate bytes of the head of a request or an answer on the wire."""
    return len(first_line) + _FRAME_BYTES + sum(len(name) + len(value) + 4 for name, value in headers.items())
