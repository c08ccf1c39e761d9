"""Reading objects from S3: in one request, or, with a pacer, in pieces that are paid for before they are requested.

A store sends an answer as fast as the network and the buffers on the way take it, however slowly the client reads. So
a read is paced by its requests: each asks for one piece, as soon as the pacer allows that piece. All pieces of a read
come from one version of the object. The size of a whole object is asked for first.

A body that breaks off is asked for again here, since boto3 does not do that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from keyfold.errors import ObjectNotFound, StoreError, StoreUnavailable
from keyfold.store.api import require_size
from keyfold.store.pace import CHUNK_BYTES
from keyfold.store.s3_errors import FAILURES

if TYPE_CHECKING:
    from keyfold.store.s3 import S3Store

Answer = dict[str, Any]


def read_whole(store: S3Store, key: str, max_bytes: int | None, **arguments: Any) -> tuple[Answer, bytes]:
    """The object's bytes, and the answer that the first of them came with. Raises `ObjectTooLarge`."""
    if store.pacer is None:
        return _read(store, key, 0, max_bytes, **arguments)
    try:
        head = store.request("head_object", "s3:GetObject", key, **arguments)
    except ObjectNotFound:
        # Only an answer with a body says whether the object or the bucket is missing.
        return _read(store, key, 0, max_bytes, **arguments)
    size_bytes = int(field_of(head, "ContentLength", key))
    require_size(key, size_bytes, max_bytes)
    if size_bytes <= store.pacer.piece_bytes:
        return _read(store, key, size_bytes, max_bytes, **arguments)
    answers, pieces = zip(*_pieces(store, key, 0, size_bytes, etag_of(head, key), **arguments), strict=True)
    return answers[0], b"".join(pieces)


def read_range(store: S3Store, key: str, start: int, length: int) -> bytes:
    """`length` bytes from `start`; at least one."""
    return b"".join([data for _, data in _pieces(store, key, start, start + length, None)])


def field_of(answer: Answer, name: str, key: str) -> Any:
    """A field of an answer. Raises `StoreError` where it is missing."""
    if not (value := answer.get(name)) and value != 0:
        raise StoreError(key, f"the store answered without {name}; keyfold cannot use such a store")
    return value


def etag_of(answer: Answer, key: str) -> str:
    """The ETag of an answer. Raises `StoreError` where it is missing."""
    return str(field_of(answer, "ETag", key))


def _pieces(
    store: S3Store, key: str, start: int, end: int, etag: str | None, **arguments: Any
) -> Iterator[tuple[Answer, bytes]]:
    piece_bytes = end - start if store.pacer is None else store.pacer.piece_bytes
    while start < end:
        length = min(piece_bytes, end - start)
        answer, data = _read(store, key, length, None, Range=f"bytes={start}-{start + length - 1}", **arguments)
        if "ContentRange" not in answer and (start or len(data) != length):
            raise StoreError(key, f"asked for bytes {start} to {start + length}, but the store sent the whole object")
        if len(data) != length:
            raise StoreError(key, f"asked for {length} bytes from {start}, but the store sent {len(data)}")
        found = etag_of(answer, key)
        if etag is not None and found != etag:
            raise StoreUnavailable(key, "the object was replaced while it was read")
        etag = found
        yield answer, data
        start += length


def _read(
    store: S3Store, key: str, expected_bytes: int, max_bytes: int | None, **arguments: Any
) -> tuple[Answer, bytes]:
    """One request, paid for beforehand where its bytes are known; a body that breaks off is asked for again.

    A body of more than `max_bytes` is not read: its connection is closed.
    """
    for attempts_left in reversed(range(store.location.read_attempts)):
        if store.pacer is not None and expected_bytes:
            store.pacer.acquire(expected_bytes)
        answer = store.request("get_object", "s3:GetObject", key, **arguments)
        body = answer["Body"]
        try:
            length = int(field_of(answer, "ContentLength", key))
            require_size(key, length, max_bytes)
            return answer, _drain(store, body, length, expected_bytes)
        except FAILURES as error:
            if not attempts_left:
                raise store.failure(error, key, "s3:GetObject") from error
        finally:
            body.close()
    raise AssertionError("at least one attempt")


def _drain(store: S3Store, body: Any, length: int, paid_bytes: int) -> bytes:
    """The body of an answer. What is more than was paid for (a store that ignores ranges) is paced as it is read."""
    if store.pacer is None or length <= paid_bytes:
        return bytes(body.read())
    chunks = [body.read(paid_bytes)] if paid_bytes else []
    left = length - sum(map(len, chunks))
    while left > 0:
        want = min(left, CHUNK_BYTES, store.pacer.piece_bytes)
        store.pacer.acquire(want)
        chunks.append(body.read(want))
        # An empty read before the end makes boto3 raise, so this loop ends.
        left -= len(chunks[-1])
    body.read(CHUNK_BYTES)  # empty: now boto3 compares length and checksum
    return b"".join(chunks)
