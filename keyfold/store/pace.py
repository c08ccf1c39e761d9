"""The seam of the throttle: who moves bytes asks first.

A store that was given a pacer calls `acquire` before bytes of an object move: before each piece of a body that goes
out, and before each request for bytes that come in, because a store sends what it was asked for at once. A body that is
read for its checksum or its signature is not counted; a request that is repeated is counted once more, because the
bytes then move once more.

The heads of requests and answers, listings and errors are few bytes, or their size is known too late to ask for them.
The store calls `owe` when they move, and the next bytes of an object wait for them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any, Final, Protocol

from keyfold.store.api import Bytes

CHUNK_BYTES: Final = 64 * 1024
"""The most that goes to the socket at once."""

_FRAME_BYTES: Final = 19
"""What a head has besides its headers and its path: version, status or method, ends of lines."""


class Pacer(Protocol):
    """A budget of bytes. One pacer may be shared by the threads of a process."""

    @property
    def piece_bytes(self) -> int:
        """The most bytes that may be acquired at once: they may move in one go, so they are few for the rate."""

    def acquire(self, n_bytes: int) -> None:
        """Return when `n_bytes` (at most `piece_bytes`) may be moved. Blocks; must not raise."""

    def owe(self, n_bytes: int) -> None:
        """Count bytes that move without having been asked for. Never blocks: the next `acquire` waits for them."""


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
        while chunk := self._body.read(min(CHUNK_BYTES, self._pacer.piece_bytes)):
            self._pacer.acquire(len(chunk))
            yield chunk

    def seek(self, offset: int, whence: int = 0) -> None:
        """Begin again, for boto3 before it repeats a request."""
        if hasattr(self._body, "seek"):
            self._body.seek(offset, whence)


def head_bytes(headers: Mapping[str, str], first_line: str = "") -> int:
    """About how many bytes the head of a request or of an answer has on the wire."""
    return len(first_line) + _FRAME_BYTES + sum(len(name) + len(value) + 4 for name, value in headers.items())
