"""The door before an S3 server: what other tests take for granted of it."""

from __future__ import annotations

import pytest

from keyfold.errors import AccessDenied, AlreadyExists, StoreUnavailable
from keyfold.store.api import Create, Update
from keyfold.store.s3 import S3Location
from tests.conftest import fresh
from tests.support.moto import REGION, LocalS3Process
from tests.support.s3_gate import Gate
from tests.support.versitygw import Versitygw


def location(url: str, bucket: str, key_id: str = "testkey", secret: str = "testsecret") -> S3Location:
    return S3Location(bucket, region=REGION, endpoint_url=url, access_key_id=key_id, secret_access_key=secret)


def check(gate: Gate, place: S3Location) -> None:
    store = place.open()
    try:
        first = store.put("a/b c+d=e", b"x" * 100_000, Create())
        with pytest.raises(AlreadyExists):
            store.put("a/b c+d=e", b"y", Create())
        store.put("a/b c+d=e", b"z" * 200, Update(first.etag))
        assert store.get("a/b c+d=e").data == b"z" * 200
        assert store.get_range("a/b c+d=e", 10, 5) == b"zzzzz"
        assert store.head("a/b c+d=e").size_bytes == 200
        upload = store.start_upload("a/large")
        upload.write(b"1" * 5_300_000)
        upload.write(b"2")
        upload.complete()
        assert [info.key for info in store.list("a/")] == ["a/b c+d=e", "a/large"]
        store.delete("a/large")
        assert gate.sent() == {"a/b c+d=e": 3}
    finally:
        store.close()


def test_a_gate_before_moto_only_decides_which_requests_pass(local_s3: LocalS3Process, bucket: str) -> None:
    with Gate(local_s3.url, access_key_id="testkey") as gate:
        check(gate, location(gate.url, bucket))
        stranger = location(gate.url, bucket, "other").open()
        with pytest.raises(AccessDenied):
            stranger.get("a/b c+d=e")
        stranger.close()


@pytest.mark.real
def test_a_gate_before_versitygw_keeps_signatures() -> None:
    with Versitygw(access_key_id="second", secret_access_key="secret2") as server, Gate(server.url) as gate:
        bucket = server.create_bucket(fresh("gate"))
        check(gate, location(gate.url, bucket, "second", "secret2"))
        stranger = location(gate.url, bucket, "second", "wrong").open()
        with pytest.raises(AccessDenied):
            stranger.get("a/b c+d=e")
        stranger.close()


def test_a_gate_fails_the_chosen_request(local_s3: LocalS3Process, bucket: str) -> None:
    with Gate(local_s3.url) as gate:
        store = location(gate.url, bucket).open()
        struck: list[str] = []
        gate.arm(2, lambda: struck.append("before"))
        store.put("one", b"1", Create())
        assert gate.is_armed
        with pytest.raises(StoreUnavailable):
            store.put("two", b"2", Create())
        assert struck == ["before"]
        gate.arm(1, lambda: struck.append("after"), is_late=True)
        with pytest.raises(StoreUnavailable):
            store.put("three", b"3", Create())
        assert struck == ["before", "after"]
        assert [info.key for info in store.list("")] == ["one", "three"]
        with gate.shut(), pytest.raises(StoreUnavailable):
            store.put("four", b"4", Create())
        store.put("four", b"4", Create())
        store.close()
