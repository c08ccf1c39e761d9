"""The throttle's seam: each byte of a body is asked for exactly once, when it moves, in small pieces."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO

import pytest
from botocore.httpchecksum import AwsChunkedWrapper, Crc32Checksum

from keyfold.store.api import MIN_PART_BYTES, Create
from keyfold.store.pace import CHUNK_BYTES, PacedBody, Pacer
from keyfold.store.s3 import S3Location, S3Store
from tests.support.moto import Fault, LocalS3Process


@dataclass
class CountingPacer:
    asked: list[int] = field(default_factory=list)

    def acquire(self, n_bytes: int) -> None:
        self.asked.append(n_bytes)

    def take(self) -> int:
        assert all(0 < n_bytes <= CHUNK_BYTES for n_bytes in self.asked)
        total = sum(self.asked)
        self.asked.clear()
        return total


class TokenBucket:
    """`rate` bytes a second and at most one chunk ahead; time is its own, so no test waits for it or depends on it.

    `ahead_max` is the most by which what really went over the wire (as `moved` says) ran ahead of what was allowed.
    """

    def __init__(self, rate: int, moved: Callable[[], int]) -> None:
        self.rate, self.moved = rate, moved
        self.now_s, self.allowed, self.ahead_max = 0.0, 0, 0
        self.grants: list[tuple[float, int]] = []

    def acquire(self, n_bytes: int) -> None:
        self.ahead_max = max(self.ahead_max, self.moved() - self.allowed)
        self.now_s += n_bytes / self.rate
        self.allowed += n_bytes
        self.grants.append((self.now_s, n_bytes))

    def burst_max(self, window_s: float) -> int:
        """The most bytes that were granted within any `window_s`."""
        best = first = total = 0
        for at, n_bytes in self.grants:
            total += n_bytes
            while self.grants[first][0] < at - window_s:
                total -= self.grants[first][1]
                first += 1
            best = max(best, total)
        return best


@pytest.fixture
def opened(local_s3: LocalS3Process, bucket: str) -> Iterator[Callable[[Pacer], S3Store]]:
    stores: list[S3Store] = []

    def make(pacer: Pacer) -> S3Store:
        location = S3Location(bucket, endpoint_url=local_s3.url, access_key_id="k", secret_access_key="s")
        stores.append(location.open(pacer))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3_000_001])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_are_asked_for_once(
    opened: Callable[[Pacer], S3Store], size: int, kind: Callable[[bytes], bytes]
) -> None:
    pacer, data = CountingPacer(), os.urandom(size)
    store = opened(pacer)
    store.put("k", kind(data), Create())
    assert pacer.take() == size
    assert store.get("k").data == data
    assert pacer.take() == size
    assert store.get_range("k", size // 3, size // 2) == data[size // 3 : size // 3 + size // 2]
    assert pacer.take() == size // 2


def test_parts_are_asked_for_once(opened: Callable[[Pacer], S3Store]) -> None:
    pacer, parts = CountingPacer(), [os.urandom(MIN_PART_BYTES + 7), b"end"]
    store = opened(pacer)
    upload = store.start_upload("k")
    for part in parts:
        upload.write(part)
        assert pacer.take() == len(part)
    upload.complete()
    assert pacer.take() == 0
    assert store.get("k").data == b"".join(parts)


def test_what_moves_again_is_asked_for_again(opened: Callable[[Pacer], S3Store], local_s3: LocalS3Process) -> None:
    pacer, part = CountingPacer(), os.urandom(200_000)
    store = opened(pacer)
    upload = store.start_upload("k")
    local_s3.set_faults(Fault("^PUT .*partNumber", status=503))
    upload.write(part)
    assert pacer.take() == 2 * len(part)
    upload.complete()
    assert store.get("k").data == part


def test_requests_without_a_body_are_free(opened: Callable[[Pacer], S3Store]) -> None:
    pacer = CountingPacer()
    store = opened(pacer)
    list(store.list(""))
    list(store.list_folders(""))
    list(store.list_uploads(""))
    store.start_upload("k").abort()
    store.delete("k")
    assert pacer.take() == 0


class Relay:
    """A proxy that counts the bytes of requests that really pass it."""

    def __init__(self, port: int) -> None:
        self.sent = 0
        self._target = ("127.0.0.1", port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            threading.Thread(target=self._pump, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, False), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, outwards: bool) -> None:
        with source, target:
            try:
                while data := source.recv(CHUNK_BYTES):
                    self.sent += len(data) if outwards else 0
                    target.sendall(data)
                target.shutdown(socket.SHUT_WR)
            except OSError:
                return


def test_ten_megabytes_are_smooth(local_s3: LocalS3Process, bucket: str) -> None:
    """At 2 MB/s no quarter of a megabyte goes at once, and what passes on the wire never runs ahead of the grants."""
    relay = Relay(local_s3.port)
    data = os.urandom(10_000_000)
    out = TokenBucket(2_000_000, lambda: relay.sent)
    store = S3Store(bucket, endpoint_url=relay.url, access_key_id="k", secret_access_key="s", pacer=out)
    store.put("k", data, Create())
    store.close()
    assert out.allowed == len(data)
    assert out.burst_max(0.1) <= 2_000_000 * 0.1 + CHUNK_BYTES <= 256 * 1024 + 10_000
    assert max(n_bytes for _, n_bytes in out.grants) <= CHUNK_BYTES
    assert out.now_s == pytest.approx(5.0)
    headers = 4_096  # of this request
    assert out.ahead_max <= headers

    inwards = TokenBucket(2_000_000, lambda: 0)
    store = S3Store(bucket, endpoint_url=relay.url, access_key_id="k", secret_access_key="s", pacer=inwards)
    assert store.get("k").data == data
    store.close()
    relay.close()
    assert inwards.allowed == len(data)
    assert inwards.burst_max(0.1) <= 2_000_000 * 0.1 + CHUNK_BYTES
    assert inwards.now_s == pytest.approx(5.0)


def test_framed_bodies_are_paced_as_they_are_framed() -> None:
    """Over TLS boto3 frames a body and puts its checksum behind it: the frame must come out whole."""
    data = os.urandom(2_500_000)

    def framed() -> AwsChunkedWrapper:
        return AwsChunkedWrapper(BytesIO(data), checksum_cls=Crc32Checksum, checksum_name="x-amz-checksum-crc32")

    pacer = CountingPacer()
    body = PacedBody(framed(), pacer)
    whole = framed().read()
    assert b"".join(bytes(chunk) for chunk in body) == whole
    assert pacer.take() == len(whole)
    body.seek(0)
    assert b"".join(bytes(chunk) for chunk in body) == whole
