"""Throttled requests: each byte of a body is reserved exactly once, when it is transferred, in small pieces."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO

import pytest
from botocore.httpchecksum import AwsChunkedWrapper, Crc32Checksum

from keyfold.errors import ObjectNotFound, StoreUnavailable
from keyfold.store.api import MIN_PART_BYTES, Create, Update
from keyfold.store.pacing import CHUNK_BYTES, PacedBody, Pacer
from keyfold.store.s3 import S3Location, S3Store
from tests.support.moto import Fault, LocalS3Process
from tests.support.s3_gate import Gate
from tests.support.scripted_s3 import Answer, scripted_server
from tests.support.wire_meter import WireMeter


@dataclass
class CountingPacer:
    asked: list[int] = field(default_factory=list)
    piece_bytes: int = CHUNK_BYTES
    owed: int = 0

    def acquire(self, n_bytes: int) -> None:
        self.asked.append(n_bytes)

    def owe(self, n_bytes: int) -> None:
        self.owed += n_bytes

    def take(self) -> int:
        assert all(0 < n_bytes <= self.piece_bytes for n_bytes in self.asked)
        total = sum(self.asked)
        self.asked.clear()
        return total


class TokenBucket:
    """A bucket with `rate` bytes a second and at most one chunk ahead, on its own time, so that no test waits for it.

    `ahead_max` is the most by which what really went over the wire (as `moved` says) ran ahead of what was allowed.
    """

    piece_bytes = CHUNK_BYTES

    def __init__(self, rate: int, moved: Callable[[], int]) -> None:
        self.rate, self.moved = rate, moved
        self.now_s, self.allowed, self.ahead_max = 0.0, 0, 0
        self.grants: list[tuple[float, int]] = []

    def acquire(self, n_bytes: int) -> None:
        self.ahead_max = max(self.ahead_max, self.moved() - self.allowed)
        self.now_s += n_bytes / self.rate
        self.allowed += n_bytes
        self.grants.append((self.now_s, n_bytes))

    def owe(self, n_bytes: int) -> None:
        """Ignore owed bytes: this bucket is about bodies."""

    def burst_max(self, window_s: float) -> int:
        """Return the most bytes that were granted within any `window_s`."""
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
def test_bytes_are_reserved_once(opened: Callable[[Pacer], S3Store], size: int, kind: Callable[[bytes], bytes]) -> None:
    pacer, data = CountingPacer(), os.urandom(size)
    store = opened(pacer)
    store.put("k", kind(data), Create())
    assert pacer.take() == size
    assert store.get("k").data == data
    assert pacer.take() == size
    assert store.get_range("k", size // 3, size // 2) == data[size // 3 : size // 3 + size // 2]
    assert pacer.take() == size // 2


def test_parts_are_reserved_once(opened: Callable[[Pacer], S3Store]) -> None:
    pacer, parts = CountingPacer(), [os.urandom(MIN_PART_BYTES + 7), b"end"]
    store = opened(pacer)
    upload = store.start_upload("k")
    for part in parts:
        upload.write(part)
        assert pacer.take() == len(part)
    upload.complete()
    assert pacer.take() == 0
    assert store.get("k").data == b"".join(parts)


def test_retransmitted_bytes_are_reserved_again(opened: Callable[[Pacer], S3Store], local_s3: LocalS3Process) -> None:
    pacer, part = CountingPacer(), os.urandom(200_000)
    store = opened(pacer)
    upload = store.start_upload("k")
    local_s3.set_faults(Fault("^PUT .*partNumber", status=503))
    upload.write(part)
    assert pacer.take() == 2 * len(part)
    upload.complete()
    assert store.get("k").data == part


def test_requests_without_a_body_reserve_nothing(opened: Callable[[Pacer], S3Store]) -> None:
    pacer = CountingPacer()
    store = opened(pacer)
    list(store.list(""))
    list(store.list_folders(""))
    list(store.list_uploads(""))
    store.start_upload("k").abort()
    store.delete("k")
    assert pacer.take() == 0


def test_all_bytes_on_the_wire_are_counted(local_s3: LocalS3Process, bucket: str) -> None:
    """Headers are counted within a twentieth, as the additions of client and server are not visible."""
    pacer, data = CountingPacer(), os.urandom(100_000)
    with WireMeter(local_s3.port) as meter:
        store = S3Store(bucket, endpoint_url=meter.url, access_key_id="k", secret_access_key="s", pacer=pacer)
        for number in range(50):
            store.put(f"folder/some-object-with-a-long-name-{number}", b"", Create())
        for _ in range(5):
            assert len(list(store.list(""))) == 50
        with pytest.raises(ObjectNotFound):
            store.get("missing")
        store.put("k", data, Create())
        assert store.get("k").data == data
        store.delete("k")
        store.close()
        passed = meter.sent_bytes + meter.received_bytes
    assert sum(pacer.asked) == 2 * len(data)
    assert pacer.owed == pytest.approx(passed - 2 * len(data), rel=0.05)


def test_ten_megabytes_are_transferred_at_a_steady_rate(local_s3: LocalS3Process, bucket: str) -> None:
    """At 2 MB/s no quarter of a megabyte is sent at once, and the bytes on the wire never exceed the grants."""
    data = os.urandom(10_000_000)
    headers = 4_096  # of one request, or of one answer
    with WireMeter(local_s3.port) as meter:
        out = TokenBucket(2_000_000, lambda: meter.sent_bytes)
        store = S3Store(bucket, endpoint_url=meter.url, access_key_id="k", secret_access_key="s", pacer=out)
        store.put("k", data, Create())
        store.close()
        assert out.allowed == len(data)
        assert out.burst_max(0.1) <= 2_000_000 * 0.1 + CHUNK_BYTES <= 256 * 1024 + 10_000
        assert max(n_bytes for _, n_bytes in out.grants) <= CHUNK_BYTES
        assert out.now_s == pytest.approx(5.0)
        assert out.ahead_max <= headers

        for is_whole in (True, False):
            before = meter.received_bytes
            inwards = TokenBucket(2_000_000, lambda: meter.received_bytes - before)  # noqa: B023 - used up in this turn
            store = S3Store(bucket, endpoint_url=meter.url, access_key_id="k", secret_access_key="s", pacer=inwards)
            assert (store.get("k").data if is_whole else store.get_range("k", 0, len(data))) == data
            store.close()
            assert inwards.allowed == len(data)
            assert inwards.burst_max(0.1) <= 2_000_000 * 0.1 + CHUNK_BYTES
            assert inwards.now_s == pytest.approx(5.0)
            # The store sends what it is asked for at once, so it must not be asked for what is not paid for.
            assert inwards.ahead_max <= headers * len(inwards.grants)
            assert headers * len(inwards.grants) < len(data) / 10


def test_a_piece_is_one_request_and_one_reservation(local_s3: LocalS3Process, bucket: str) -> None:
    data = os.urandom(1_000_000)
    pacer = CountingPacer(piece_bytes=300_000)
    with Gate(local_s3.url) as gate:
        store = S3Store(bucket, endpoint_url=gate.url, access_key_id="k", secret_access_key="s", pacer=pacer)
        store.put("k", data, Create())
        assert max(pacer.asked) <= CHUNK_BYTES, "what goes out needs no larger pieces"
        pacer.take()
        gate.reset()
        assert store.get_range("k", 100, 700_000) == data[100:700_100]
        assert (pacer.asked, len(gate.asked)) == ([300_000, 300_000, 100_000], 3)
        pacer.take()
        gate.reset()
        assert store.get("k").data == data
        assert pacer.asked == [300_000, 300_000, 300_000, 100_000]
        assert [asked.method for asked in gate.asked] == ["HEAD", "GET", "GET", "GET", "GET"]
        pacer.take()
        pacer.piece_bytes = 10_000
        store.put("small", data[:20_000], Create())
        assert max(pacer.asked) == 10_000
        store.close()


def test_a_read_returns_one_version_of_the_object(opened: Callable[[Pacer], S3Store]) -> None:
    writer, pacer = opened(CountingPacer()), CountingPacer()
    written = writer.put("k", b"1" * 200_000, Create())

    class Replacing(CountingPacer):
        def acquire(self, n_bytes: int) -> None:
            super().acquire(n_bytes)
            if len(self.asked) == 2:
                writer.put("k", b"2" * 200_000, Update(written.etag))

    with pytest.raises(StoreUnavailable, match="replaced"):
        opened(Replacing()).get("k")
    assert opened(pacer).get("k").data == b"2" * 200_000


def test_an_object_that_grew_after_its_size_was_read_is_paced_completely(opened: Callable[[Pacer], S3Store]) -> None:
    writer, grown = opened(CountingPacer()), os.urandom(200_000)
    written = writer.put("k", b"small", Create())

    class Replacing(CountingPacer):
        def acquire(self, n_bytes: int) -> None:
            super().acquire(n_bytes)
            if len(self.asked) == 1:
                writer.put("k", grown, Update(written.etag))

    pacer = Replacing()
    assert opened(pacer).get("k").data == grown
    assert pacer.take() == len(grown)


def test_a_broken_body_is_reserved_again() -> None:
    data, pacer = os.urandom(1_000), CountingPacer()
    headers = {"ETag": '"e"', "Content-Range": "bytes 0-999/5000"}
    with scripted_server() as server:
        server.answers = [Answer(206, data, headers, cut=300), Answer(206, data, headers)]
        store = S3Store("bkt", endpoint_url=server.url, access_key_id="k", secret_access_key="s", pacer=pacer)
        assert store.get_range("k", 0, 1_000) == data
        store.close()
    assert pacer.take() == 2_000


def test_a_missing_object_reserves_nothing(opened: Callable[[Pacer], S3Store]) -> None:
    pacer = CountingPacer()
    with pytest.raises(ObjectNotFound):
        opened(pacer).get("k")
    assert pacer.take() == 0


def test_chunked_bodies_are_paced_with_their_framing() -> None:
    """Over TLS boto3 sends a body in chunks with its checksum at the end, and the framing must stay intact."""
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
