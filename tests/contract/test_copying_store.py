"""The contract of stores that copy server-side or resume uploads.

moto does not say the sum of a part that it has copied, so it copies nothing by itself; what is asked of it then is to
leave nothing behind.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from keyfold.errors import AlreadyExists, ObjectNotFound, UploadLost
from keyfold.store.api import MIN_PART_BYTES, CopyingStore, Create, ObjectStore, ResumingStore
from keyfold.store.memory import MemoryStore
from keyfold.store.s3 import S3Store
from keyfold.store.wrappers.counting import CountedStore
from keyfold.store.wrappers.faults import FaultyStore


class Pair:
    """Two buckets of one server."""

    def __init__(self, source: ObjectStore, target: Any, *, copies: bool) -> None:
        self.source = source
        self.target = target
        self.copies = copies


SERVERS = ["memory", "faulty", "counted", "s3", pytest.param("versitygw", marks=pytest.mark.real)]
COMPARES_ETAGS = [server for server in SERVERS if server != "s3"]
"""moto completes an upload whatever ETags it is told."""


@pytest.fixture(params=SERVERS, scope="module")
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    if request.param in {"s3", "versitygw"}:
        server = request.getfixturevalue("_local_s3" if request.param == "s3" else "versitygw")
        stores = [
            S3Store(
                server.create_bucket(f"copies-{uuid.uuid4().hex[:12]}"),
                endpoint_url=server.url,
                access_key_id="testkey",
                secret_access_key="testsecret",
            )
            for _ in range(2)
        ]
        yield Pair(*stores, copies=request.param == "versitygw")
        for store in stores:
            store.close()
        return
    wrap: Callable[[ObjectStore], ObjectStore] = {
        "memory": lambda store: store,
        "faulty": FaultyStore,
        "counted": CountedStore,
    }[request.param]
    yield Pair(wrap(MemoryStore("a", server="s")), wrap(MemoryStore("b", server="s")), copies=True)


@pytest.fixture
def folder() -> str:
    return f"dir-{uuid.uuid4().hex[:12]}/"


# Copies


def test_a_copys_checksum_is_known_before_the_object_is_visible(pair: Pair, folder: str) -> None:
    data = os.urandom(6_000_000)
    pair.source.put(folder + "a b=1%", data, Create())
    can: bool = isinstance(pair.target, CopyingStore)
    assert can
    assert pair.target.copies_from(pair.source)
    copied = pair.target.start_copy(pair.source, folder + "a b=1%", folder + "ü", len(data))
    with pytest.raises(ObjectNotFound):
        pair.target.head(folder + "ü")
    if not pair.copies:
        assert copied is None
        assert list(pair.target.list_uploads(folder)) == []
        return
    assert copied is not None
    assert copied.sha256 == hashlib.sha256(data).digest()
    result = copied.complete()
    blob = pair.target.get(folder + "ü")
    assert (blob.data, blob.etag) == (data, result.etag)
    assert list(pair.target.list_uploads(folder)) == []


def test_a_copy_never_overwrites(pair: Pair, folder: str) -> None:
    pair.source.put(folder + "a", b"new", Create())
    pair.target.put(folder + "a", b"old", Create())
    copied = pair.target.start_copy(pair.source, folder + "a", folder + "a", 3)
    if copied is not None:
        with pytest.raises(AlreadyExists):
            copied.complete()
        copied.abort()
    assert pair.target.get(folder + "a").data == b"old"
    assert list(pair.target.list_uploads(folder)) == []


def test_an_abandoned_copy_leaves_nothing(pair: Pair, folder: str) -> None:
    pair.source.put(folder + "a", b"new", Create())
    copied = pair.target.start_copy(pair.source, folder + "a", folder + "a", 3)
    if copied is not None:
        copied.abort()
    assert list(pair.target.list(folder)) == []
    assert list(pair.target.list_uploads(folder)) == []


def test_copying_a_missing_object_is_not_found(pair: Pair, folder: str) -> None:
    with pytest.raises(ObjectNotFound) as raised:
        pair.target.start_copy(pair.source, folder + "absent", folder + "a", 3)
    assert raised.value.key == folder + "absent"
    assert list(pair.target.list_uploads(folder)) == []


def opened(port: int = 9, secret: str = "s", bucket: str = "b") -> S3Store:
    url = f"http://127.0.0.1:{port}"
    return S3Store(bucket, endpoint_url=url, access_key_id="k", secret_access_key=secret)


def test_a_store_copies_only_from_stores_with_its_endpoint_and_credentials() -> None:
    here, there, others = opened(), opened(bucket="b2"), [opened(secret="t"), opened(port=10)]
    strangers: list[ObjectStore] = [*others, MemoryStore()]
    assert here.copies_from(there)
    assert here.copies_from(FaultyStore(CountedStore(there)))
    assert FaultyStore(CountedStore(here)).copies_from(there)
    assert not any(here.copies_from(other) for other in strangers)
    assert not any(MemoryStore().copies_from(other) for other in (*strangers, here))
    for store in (here, there, *others):
        store.close()


# Uploads that go on


PARTS = [os.urandom(MIN_PART_BYTES), os.urandom(MIN_PART_BYTES), b"the end"]


def test_an_upload_resumes_where_it_stopped(pair: Pair, folder: str) -> None:
    can: bool = isinstance(pair.target, ResumingStore)
    assert can
    begun = pair.target.start_upload(folder + "a b=1%")
    begun.write(PARTS[0])
    resumed = pair.target.resume_upload(folder + "a b=1%")
    assert resumed is not None
    assert resumed.keep(PARTS[0])
    for part in PARTS[1:]:
        assert not resumed.keep(part)
        resumed.write(part)
    result = resumed.complete()
    blob = pair.target.get(folder + "a b=1%")
    assert (blob.data, blob.etag) == (b"".join(PARTS), result.etag)
    assert list(pair.target.list_uploads(folder)) == []


def test_uploaded_parts_with_different_bytes_are_not_reused(pair: Pair, folder: str) -> None:
    begun = pair.target.start_upload(folder + "a")
    begun.write(PARTS[0])
    begun.write(PARTS[0])
    resumed = pair.target.resume_upload(folder + "a")
    assert resumed is not None
    assert not resumed.keep(PARTS[0][:-1])
    assert resumed.keep(PARTS[0])
    assert not resumed.keep(PARTS[1])
    resumed.write(PARTS[1])
    resumed.complete()
    assert pair.target.get(folder + "a").data == PARTS[0] + PARTS[1]


def test_an_upload_that_was_never_started_is_not_resumed(pair: Pair, folder: str) -> None:
    assert pair.target.resume_upload(folder + "a") is None
    pair.target.start_upload(folder + "ab").write(PARTS[0])
    assert pair.target.resume_upload(folder + "a") is None
    pair.target.start_upload(folder + "a")  # without a part
    assert pair.target.resume_upload(folder + "a") is None
    for row in list(pair.target.list_uploads(folder)):
        pair.target.abort_upload(row.key, row.upload_id)


def test_the_upload_with_the_most_parts_is_resumed(pair: Pair, folder: str) -> None:
    for count in (1, 2, 1):
        begun = pair.target.start_upload(folder + "a")
        for part in PARTS[:count]:
            begun.write(part)
    resumed = pair.target.resume_upload(folder + "a")
    assert resumed is not None
    assert resumed.keep(PARTS[0])
    assert resumed.keep(PARTS[1])
    resumed.complete()
    assert pair.target.get(folder + "a").data == PARTS[0] + PARTS[1]
    for row in list(pair.target.list_uploads(folder)):
        pair.target.abort_upload(row.key, row.upload_id)


def test_resuming_an_abandoned_copy_is_harmless(pair: Pair, folder: str) -> None:
    pair.source.put(folder + "a", PARTS[0], Create())
    copied = pair.target.start_copy(pair.source, folder + "a", folder + "a", MIN_PART_BYTES)
    resumed = pair.target.resume_upload(folder + "a")
    if resumed is not None:  # what it can do without harm is to keep the part that is the object
        assert resumed.keep(PARTS[0])
        resumed.complete()
        assert pair.target.get(folder + "a").data == PARTS[0]
    elif copied is not None:
        copied.complete()


@pytest.mark.parametrize("pair", COMPARES_ETAGS, indirect=True)
def test_an_upload_completes_only_with_its_own_parts(pair: Pair, folder: str) -> None:
    """The name only ever holds the bytes sent by the process that completed the upload."""
    begun = pair.target.start_upload(folder + "a")
    begun.write(PARTS[0])
    resumed = pair.target.resume_upload(folder + "a")
    assert resumed is not None
    assert not resumed.keep(PARTS[1])
    resumed.write(PARTS[1])
    with pytest.raises(UploadLost):
        begun.complete()
    resumed.complete()
    assert pair.target.get(folder + "a").data == PARTS[1]
