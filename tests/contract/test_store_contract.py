"""What every store has to do, asked of every store.

The commit protocol stands on these promises alone, so an implementation is done when this suite says so. The in-memory
store, the wrappers over it, S3 on moto behind a lock, and (with `-m real`) S3 on versitygw.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from keyfold.errors import (
    AlreadyExists,
    ConditionUndecided,
    ObjectNotFound,
    ObjectTooLarge,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
    UploadLost,
)
from keyfold.runtime.clock import SystemClock
from keyfold.store.api import MIN_PART_BYTES, STORE_TIME_RESOLUTION_MS, Create, ObjectStore, Update
from keyfold.store.location import BACKENDS
from keyfold.store.memory import MemoryStore
from keyfold.store.s3 import S3Store
from keyfold.store.wrappers.counting import CountedStore
from keyfold.store.wrappers.faults import FaultyStore
from keyfold_sink.metrics.meter import TaskMeter
from keyfold_sink.metrics.metered_store import MeteredStore


def s3_at(fixture: str) -> Callable[[pytest.FixtureRequest], ObjectStore]:
    """Return a maker of a store on the server of a fixture."""

    def make(request: pytest.FixtureRequest) -> ObjectStore:
        server = request.getfixturevalue(fixture)
        bucket = server.create_bucket(f"contract-{uuid.uuid4().hex[:12]}")
        return S3Store(bucket, endpoint_url=server.url, access_key_id="testkey", secret_access_key="testsecret")

    return make


STORES: dict[str, Callable[[pytest.FixtureRequest], ObjectStore]] = {
    "memory": lambda _: MemoryStore(),
    "faulty": lambda _: FaultyStore(MemoryStore()),
    "counted": lambda _: CountedStore(MemoryStore()),
    "metered": lambda _: MeteredStore(MemoryStore(), TaskMeter(SystemClock())),
    "s3": s3_at("_local_s3"),
    "versitygw": s3_at("versitygw"),
}
"""How to make each store. A new store is one more row."""


@pytest.fixture(
    params=[name if name != "versitygw" else pytest.param(name, marks=pytest.mark.real) for name in STORES],
    scope="module",
)
def shared_store(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    store = STORES[request.param](request)
    yield store
    if isinstance(store, S3Store):
        store.close()


def test_every_backend_is_in_this_suite() -> None:
    assert set(BACKENDS) <= {"s3", "s3a", "s3n", *STORES}, "add the store of the new scheme to STORES"


@pytest.fixture
def store(shared_store: ObjectStore) -> ObjectStore:
    return shared_store


@pytest.fixture
def folder() -> str:
    """A prefix that no other test uses."""
    return f"dir-{uuid.uuid4().hex[:12]}/"


# Reading what was written


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 1000], ids=["empty", "one byte", "250 KiB"])
def test_a_get_returns_what_was_put(store: ObjectStore, folder: str, data: bytes) -> None:
    result = store.put(folder + "a", data, Create())
    blob = store.get(folder + "a")
    assert blob.data == data
    assert blob.etag == result.etag
    info = store.head(folder + "a")
    assert (info.key, info.size_bytes, info.etag) == (folder + "a", len(data), result.etag)


@pytest.mark.parametrize("size_bytes", [0, 1, 250_000])
def test_a_get_is_limited_to_the_bytes_that_the_caller_accepts(
    store: ObjectStore, folder: str, size_bytes: int
) -> None:
    store.put(folder + "a", bytes(size_bytes), Create())
    assert len(store.get(folder + "a", size_bytes).data) == size_bytes
    if size_bytes:
        with pytest.raises(ObjectTooLarge, match=f"a`: has {size_bytes} bytes; the limit .* {size_bytes - 1}"):
            store.get(folder + "a", size_bytes - 1)
    assert len(store.get(folder + "a").data) == size_bytes, "the store goes on"
    with pytest.raises(ObjectNotFound):
        store.get(folder + "b", 0)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_bytes_is_stored(store: ObjectStore, folder: str, kind: Callable[[bytes], bytes]) -> None:
    store.put(folder + "a", kind(b"some bytes"), Create())
    assert store.get(folder + "a").data == b"some bytes"


def test_changes_to_a_buffer_after_a_put_are_not_stored(store: ObjectStore, folder: str) -> None:
    buffer = bytearray(b"before")
    store.put(folder + "a", buffer, Create())
    buffer[:] = b"after!"
    assert store.get(folder + "a").data == b"before"


@pytest.mark.parametrize(
    "name", ["100%", "a%2Fb", "partition=0/x", "ünï/çödé", "a b", "a+b", "%5Fschemas/x=1&y=2", "'q'", "a:b@c", "~"]
)
def test_names_are_stored_unchanged(store: ObjectStore, folder: str, name: str) -> None:
    result = store.put(folder + name, name.encode(), Create())
    assert store.get(folder + name).data == name.encode()
    assert [(row.key, row.etag) for row in store.list(folder)] == [(folder + name, result.etag)]
    with pytest.raises(AlreadyExists):
        store.put(folder + name, b"", Create())
    store.delete(folder + name)
    assert list(store.list(folder)) == []


def test_reading_a_missing_object_is_not_found(store: ObjectStore, folder: str) -> None:
    for read in (store.get, store.head, lambda key: store.get_range(key, 0, 1), lambda key: store.get_range(key, 0, 0)):
        with pytest.raises(ObjectNotFound) as raised:
            read(folder + "absent")
        assert raised.value.key == folder + "absent"


def test_ranges_are_exact(store: ObjectStore, folder: str) -> None:
    data = os.urandom(200_000)
    store.put(folder + "a", data, Create())
    for start, length in [(0, 1), (0, 200_000), (199_999, 1), (65_535, 65_538), (7, 0), (200_000, 0)]:
        assert store.get_range(folder + "a", start, length) == data[start : start + length]


@pytest.mark.parametrize(("start", "length"), [(0, 11), (9, 2), (10, 1), (500, 1), (11, 0)])
def test_a_range_past_the_end_is_an_error(store: ObjectStore, folder: str, start: int, length: int) -> None:
    store.put(folder + "a", b"0123456789", Create())
    with pytest.raises(StoreError) as raised:
        store.get_range(folder + "a", start, length)
    assert not isinstance(raised.value, ObjectNotFound)
    assert not raised.value.retriable


def test_a_negative_range_is_the_callers_mistake(store: ObjectStore, folder: str) -> None:
    with pytest.raises(ValueError, match="invalid range"):
        store.get_range(folder + "a", -1, 1)


# Conditions


def test_a_name_is_created_once(store: ObjectStore, folder: str) -> None:
    store.put(folder + "a", b"first", Create())
    with pytest.raises(AlreadyExists):
        store.put(folder + "a", b"second", Create())
    with pytest.raises(AlreadyExists):
        store.put(folder + "a", b"first", Create())
    assert store.get(folder + "a").data == b"first"


def test_an_update_replaces_the_version_that_it_names(store: ObjectStore, folder: str) -> None:
    first = store.put(folder + "a", b"1", Create())
    second = store.put(folder + "a", b"2", Update(first.etag))
    assert second.etag != first.etag
    assert store.get(folder + "a").data == b"2"
    with pytest.raises(PreconditionFailed):
        store.put(folder + "a", b"3", Update(first.etag))
    assert store.get(folder + "a").etag == second.etag


def test_an_update_takes_the_etag_of_get_head_and_list(store: ObjectStore, folder: str) -> None:
    key = folder + "a"
    store.put(key, b"0", Create())
    store.put(key, b"1", Update(store.get(key).etag))
    store.put(key, b"2", Update(store.head(key).etag))
    store.put(key, b"3", Update(next(iter(store.list(key))).etag))
    assert store.get(key).data == b"3"


def test_updating_a_deleted_object_is_not_found(store: ObjectStore, folder: str) -> None:
    with pytest.raises(ObjectNotFound):
        store.put(folder + "a", b"1", Update('"0123456789abcdef"'))
    result = store.put(folder + "a", b"1", Create())
    store.delete(folder + "a")
    with pytest.raises(ObjectNotFound):
        store.put(folder + "a", b"2", Update(result.etag))
    assert list(store.list(folder)) == []


def test_a_deleted_name_can_be_created_again(store: ObjectStore, folder: str) -> None:
    store.put(folder + "a", b"1", Create())
    store.delete(folder + "a")
    store.put(folder + "a", b"2", Create())
    assert store.get(folder + "a").data == b"2"


def test_deleting_is_idempotent(store: ObjectStore, folder: str) -> None:
    store.delete(folder + "a")
    store.put(folder + "a", b"1", Create())
    store.delete(folder + "a")
    store.delete(folder + "a")
    with pytest.raises(ObjectNotFound):
        store.head(folder + "a")


def _in_threads(count: int, run: Callable[[int], bool]) -> list[bool]:
    start = Barrier(count)

    def racer(number: int) -> bool:
        start.wait()
        return run(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(racer, range(count)))


def test_exactly_one_of_many_concurrent_creates_wins(store: ObjectStore, folder: str) -> None:
    for turn in range(5):
        key = f"{folder}{turn}"

        def create(number: int, key: str = key) -> bool:
            try:
                store.put(key, b"%d" % number, Create())
            except AlreadyExists:
                return False
            return True

        won = _in_threads(8, create)
        assert won.count(True) == 1
        assert store.get(key).data == b"%d" % won.index(True)


def test_no_increment_is_lost(store: ObjectStore, folder: str) -> None:
    key, threads, each = folder + "counter", 8, 10
    store.put(key, b"0", Create())

    def count(number: int) -> bool:
        for turn in range(each):
            while True:
                blob = store.get(key)
                value = int(blob.data.split()[0]) + 1
                try:
                    store.put(key, b"%d by %d in turn %d" % (value, number, turn), Update(blob.etag))
                except (PreconditionFailed, ConditionUndecided):
                    continue
                break
        return True

    assert all(_in_threads(threads, count))
    assert int(store.get(key).data.split()[0]) == threads * each


# Time


def test_modification_times_come_from_the_store_and_never_go_back(store: ObjectStore, folder: str) -> None:
    created = store.put(folder + "a", b"1", Create())
    blob = store.get(folder + "a")
    assert blob.date_ms >= created.date_ms
    assert blob.date_ms >= blob.last_modified_ms
    assert abs(created.date_ms - blob.last_modified_ms) < STORE_TIME_RESOLUTION_MS
    assert blob.last_modified_ms == store.head(folder + "a").last_modified_ms
    assert blob.last_modified_ms == next(store.list(folder)).last_modified_ms
    updated = store.put(folder + "a", b"2", Update(created.etag))
    assert blob.date_ms - updated.date_ms < STORE_TIME_RESOLUTION_MS


# Listings


def test_listings_are_ordered_and_can_start_after_a_key(store: ObjectStore, folder: str) -> None:
    # No `o` next to `o/x`: a store over a file system cannot have both.
    names = ["A", "a-b", "a.b", "a/b", "a0", "b/c/d", "c", "ä", "\uffee", "\U0001f600"]
    for name in reversed(names):
        store.put(folder + name, name.encode(), Create())
    in_order = sorted((folder + name for name in names), key=str.encode)
    assert [row.key for row in store.list(folder)] == in_order
    assert [row.key for row in store.list(folder, start_after=folder + "a/b")] == in_order[4:]
    assert [row.key for row in store.list(folder, start_after=folder + "a/a")] == in_order[3:]
    assert [row.key for row in store.list(folder, start_after=folder + "\U0001f600")] == []
    assert [row.key for row in store.list(folder + "a")] == in_order[1:5]
    assert [row.size_bytes for row in store.list(folder + "b")] == [5]
    assert list(store.list(folder + "nothing")) == []


def test_a_listing_has_more_than_one_page(store: ObjectStore, folder: str) -> None:
    names = [f"{folder}{number:05d}" for number in range(1_105)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.put(name, b"", Create()), names))
    assert [row.key for row in store.list(folder)] == names
    assert [row.key for row in store.list(folder, start_after=names[1_050])] == names[1_051:]


def test_folders_are_listed_one_level_deep(store: ObjectStore, folder: str) -> None:
    for name in ["x", "b/1", "b/2/3", "a/1", "partition=10/s", "partition=2/s", "%5Fschemas/p", "_index/i"]:
        store.put(folder + name, b"", Create())
    folders = ["%5Fschemas", "_index", "a", "b", "partition=10", "partition=2"]
    assert list(store.list_folders(folder)) == folders
    assert list(store.list_folders(folder + "b/")) == ["2"]
    assert list(store.list_folders(folder + "x/")) == []
    assert folder[:-1] in list(store.list_folders(""))


# Uploads in parts


def test_an_upload_is_visible_only_when_it_is_complete(store: ObjectStore, folder: str) -> None:
    key, parts = folder + "big=1%", [os.urandom(MIN_PART_BYTES), os.urandom(MIN_PART_BYTES + 1), b"the end"]
    upload = store.start_upload(key)
    for part in parts:
        upload.write(part)
    with pytest.raises(ObjectNotFound):
        store.get(key)
    assert list(store.list(folder)) == []
    assert [row.key for row in store.list_uploads(folder)] == [key]
    result = upload.complete()
    blob = store.get(key)
    assert blob.data == b"".join(parts)
    assert blob.etag == result.etag
    assert blob.last_modified_ms - result.date_ms < STORE_TIME_RESOLUTION_MS
    assert list(store.list_uploads(folder)) == []


def test_an_upload_of_one_small_part(store: ObjectStore, folder: str) -> None:
    upload = store.start_upload(folder + "a")
    upload.write(b"small")
    upload.complete()
    assert store.get(folder + "a").data == b"small"


def test_completing_an_upload_is_idempotent(store: ObjectStore, folder: str) -> None:
    upload = store.start_upload(folder + "a")
    upload.write(b"small")
    first = upload.complete()
    # A store may also say that the name is taken, which it is, by this upload.
    with contextlib.suppress(AlreadyExists):
        assert upload.complete().etag == first.etag
    assert store.get(folder + "a").data == b"small"


def test_an_upload_never_overwrites(store: ObjectStore, folder: str) -> None:
    upload = store.start_upload(folder + "a")
    upload.write(b"late")
    store.put(folder + "a", b"first", Create())
    with pytest.raises(AlreadyExists):
        upload.complete()
    assert store.get(folder + "a").data == b"first"


def test_an_aborted_upload_is_gone(store: ObjectStore, folder: str, request: pytest.FixtureRequest) -> None:
    # moto breaks down over an upload that it does not know any more (a KeyError, so 500).
    gone = (UploadLost, StoreUnavailable) if request.node.callspec.id == "s3" else UploadLost
    upload = store.start_upload(folder + "a")
    upload.write(b"part")
    upload.abort()
    assert list(store.list_uploads(folder)) == []
    with pytest.raises(gone):
        upload.complete()
    with pytest.raises(gone):
        upload.write(b"another")
    with pytest.raises(ObjectNotFound):
        store.get(folder + "a")


def test_uploads_are_listed_and_aborted_by_their_id(store: ObjectStore, folder: str) -> None:
    for name in ["a", "b", "b"]:
        store.start_upload(folder + name).write(b"part")
    rows = list(store.list_uploads(folder))
    assert [row.key for row in rows] == [folder + "a", folder + "b", folder + "b"]
    assert len({row.upload_id for row in rows}) == 3
    assert [row.key for row in store.list_uploads(folder + "b")] == [folder + "b"] * 2
    for row in rows:
        store.abort_upload(row.key, row.upload_id)
        store.abort_upload(row.key, row.upload_id)
    assert list(store.list_uploads(folder)) == []


def test_an_upload_without_parts_is_an_error(store: ObjectStore, folder: str) -> None:
    upload = store.start_upload(folder + "a")
    with pytest.raises(StoreError):
        upload.complete()
    upload.abort()
    assert list(store.list(folder)) == []
