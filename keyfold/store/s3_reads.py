"""Reads of S3 objects: in one request, or, with a pacer, in pieces that are acquired before they are requested.

A store sends an answer as fast as the network and its buffers accept it, even if the client reads slowly. So a read is
paced by its requests: each requests one piece as soon as the pacer allows it. All pieces of a read come from one
version of the object. The size of a whole object is requested first.

A body that breaks off is requested again here, because boto3 does not do that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from keyfold.errors import ObjectNotFound, StoreError, StoreUnavailable
from keyfold.store.api import require_size
from keyfold.store.pacing import CHUNK_BYTES
from keyfold.store.s3_answers import S3Answer, etag_of, field_of
from keyfold.store.s3_errors import FAILURES
from keyfold.store.s3_requests import S3Requests


def read_whole(store: S3Requests, key: str, max_bytes: int | None, **arguments: object) -> tuple[S3Answer, bytes]:
    """Return the answer of the first request, and the object's bytes. Raises `ObjectTooLarge`."""
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


def read_range(store: S3Requests, key: str, start: int, length: int) -> bytes:
    """Return `length` bytes from `start`; `length` is at least 1."""
    return b"".join([data for _, data in _pieces(store, key, start, start + length, None)])


def _pieces(
    store: S3Requests, key: str, start: int, end: int, etag: str | None, **arguments: object
) -> Iterator[tuple[S3Answer, bytes]]:
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
    store: S3Requests, key: str, expected_bytes: int, max_bytes: int | None, **arguments: object
) -> tuple[S3Answer, bytes]:
    """Send one request, with its bytes acquired first if they are known; retry a body that breaks off.

    A body of more than `max_bytes` is not read: its connection is closed.
    """
    for attempts_left in reversed(range(store.read_attempts)):
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


def _drain(store: S3Requests, body: Any, length: int, paid_bytes: int) -> bytes:
    """Read the body of an answer. Bytes beyond the acquired ones (the store ignored a range) are paced as they come."""
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
    body.read(CHUNK_BYTES)  # empty read: boto3 now compares length and checksum
    return b"".join(chunks)
