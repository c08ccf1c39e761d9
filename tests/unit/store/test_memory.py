"""The reference store, beyond the common contract: behaviour that other tests rely on."""

from __future__ import annotations

import pytest

from keyfold.errors import PreconditionFailed, StoreError, UploadLost
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import MIN_PART_BYTES, Create, Update
from keyfold.store.memory import MemoryStore


def test_no_two_writes_share_an_etag() -> None:
    store = MemoryStore()
    first = store.put("a", b"same", Create())
    second = store.put("a", b"same", Update(first.etag))
    assert first.etag != second.etag
    with pytest.raises(PreconditionFailed):
        store.put("a", b"same", Update(first.etag))


def test_etags_of_equal_bytes_may_be_equal_as_on_s3() -> None:
    store = MemoryStore(content_etags=True)
    first = store.put("a", b"same", Create())
    assert first.etag == '"51037a4a37730f52c8732586d3aaa316"'
    other = store.put("a", b"other", Update(first.etag))
    again = store.put("a", b"same", Update(other.etag))
    assert again.etag == first.etag
    store.put("a", b"by one who slept through both", Update(first.etag))


def test_times_are_those_of_the_clock() -> None:
    clock = ManualClock(1_000)
    store = MemoryStore(clock=clock)
    assert store.put("a", b"", Create()).date_ms == 1_000
    upload = store.start_upload("b")
    clock.advance(500)
    blob = store.get("a")
    assert (blob.last_modified_ms, blob.date_ms) == (1_000, 1_500)
    upload.write(b"x")
    assert next(store.list_uploads("")).started_ms == 1_000
    assert upload.complete().date_ms == 1_500
    assert store.head("b").last_modified_ms == 1_500


def test_parts_that_are_too_short_are_refused_as_by_s3() -> None:
    upload = MemoryStore().start_upload("a")
    upload.write(bytes(MIN_PART_BYTES - 1))
    with pytest.raises(StoreError, match="part 1"):
        upload.write(b"next")
    small = MemoryStore(min_part_bytes=2).start_upload("a")
    small.write(b"ab")
    small.write(b"c")


def test_a_listing_is_a_snapshot() -> None:
    store = MemoryStore()
    for name in "abc":
        store.put(name, b"", Create())
    rows = store.list("")
    assert next(rows).key == "a"
    store.delete("b")
    store.put("d", b"", Create())
    assert [row.key for row in rows] == ["b", "c"]


def test_a_completed_upload_whose_object_was_deleted_is_lost() -> None:
    store = MemoryStore()
    upload = store.start_upload("a")
    upload.write(b"x")
    upload.complete()
    store.delete("a")
    with pytest.raises(UploadLost):
        upload.complete()


def test_an_upload_is_aborted_only_under_its_own_key() -> None:
    store = MemoryStore()
    upload = store.start_upload("a")
    store.abort_upload("b", upload.upload_id)
    assert len(list(store.list_uploads(""))) == 1


def test_messages_name_the_store() -> None:
    store = MemoryStore("archive")
    assert store.url == "memory://archive"
    with pytest.raises(StoreError, match="memory://archive"):
        store.get("a")
