"""Requests and bytes are counted as they happen."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from keyfold.errors import AlreadyExists, ObjectNotFound
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.counting import CountedStore


def test_calls_and_bytes_are_counted_by_kind() -> None:
    store = CountedStore(MemoryStore(min_part_bytes=1))
    store.put("a", b"12345", Create())
    with pytest.raises(AlreadyExists):
        store.put("a", memoryview(b"123"), Create())
    with pytest.raises(ObjectNotFound):
        store.get("absent")
    store.get("a")
    store.get_range("a", 1, 2)
    store.head("a")
    upload = store.start_upload("b")
    upload.write(b"1234")
    upload.write(b"5")
    upload.complete()
    store.start_upload("c").abort()
    list(store.list(""))
    list(store.list_folders(""))
    list(store.list_uploads(""))
    store.abort_upload("c", "unknown")
    store.delete("a")
    assert store.calls == {
        "put": 2, "get": 2, "get_range": 1, "head": 1, "start_upload": 2, "upload.write": 2, "upload.complete": 1,
        "upload.abort": 1, "list": 1, "list_folders": 1, "list_uploads": 1, "abort_upload": 1, "delete": 1,
    }  # fmt: skip
    assert store.bytes_moved == {"put": 8, "get": 5, "get_range": 2, "upload.write": 5}
    assert (store.bytes_read, store.bytes_written) == (7, 13)
    store.reset()
    assert not store.calls
    assert not store.bytes_moved


def test_no_count_is_lost_between_threads() -> None:
    store = CountedStore(MemoryStore())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.put(f"{number}", b"xy", Create()), range(500)))
    assert (store.calls["put"], store.bytes_written) == (500, 1000)
