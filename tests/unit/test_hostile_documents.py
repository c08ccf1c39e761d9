"""JSON objects of the bucket that hold anything: each is an error of keyfold by name, and never another one."""

from __future__ import annotations

import json
from random import Random

import pytest
from isal.isal_zlib import crc32

from keyfold.clock import ManualClock
from keyfold.errors import KeyfoldError
from keyfold.log.codec import open_codec
from keyfold.log.first_copy import FirstCopy
from keyfold.restore.errors import RestoreRefused
from keyfold.restore.journal import Journal
from keyfold.restore.lease import Lease
from keyfold.restore.window import Window, WindowDamaged
from keyfold.retry import Patience
from keyfold.store.api import Create
from keyfold.store.documents import DOCUMENT_BYTES_MAX, load_json
from keyfold.store.memory import MemoryStore
from keyfold_compactor.replica.desk.documents import DocumentUnreadable, enablement_of
from keyfold_compactor.replica.desk.swapped import SwappedObject
from keyfold_compactor.replica.seen.reported import reported_of
from keyfold_compactor.replica.seen.status import _body
from keyfold_sink.convert.kept import _same_json
from keyfold_sink.running.orders import OrdersUnreadable, decode

DEEP = b"[" * 100_000
DOCUMENTS = [
    b"",
    b"\xff\xfe",
    b"null",
    b"[]",
    b"7",
    b'"text"',
    b"{}",
    DEEP,
    b'{"a":' * 100_000,
    b"9" * 10_000,
    b'{"version": 1e999}',
    b'{"version": Infinity, "changes": []}',
    b'{"version": 1, "changes": 7}',
    b'{"version": [], "changes": []}',
    b" " * (DOCUMENT_BYTES_MAX + 1),
]


def store_with(key: str, data: bytes) -> MemoryStore:
    store = MemoryStore()
    store.put(key, data, Create())
    return store


@pytest.mark.parametrize("data", DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_markers_of_first_copies_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        FirstCopy.of_bytes(data)


@pytest.mark.parametrize("data", DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_documents_of_replicas_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(DocumentUnreadable):
        SwappedObject(store_with("r.json", data), "r.json", ManualClock(), Random(1)).read()
    assert reported_of(data, "topics") is None
    with pytest.raises(DocumentUnreadable):
        enablement_of(_body(data), "_replica.json")


@pytest.mark.parametrize("data", DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_orders_of_a_sink_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(OrdersUnreadable):
        decode(data, "orders.json")


@pytest.mark.parametrize("data", DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_a_kept_schema_that_is_no_schema_is_another_one(data: bytes) -> None:
    assert not _same_json(data, '{"type":"record"}')


@pytest.mark.parametrize("data", DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_the_objects_of_a_restore_are_refused_by_name(data: bytes) -> None:
    store = store_with("j/plan.json", data)
    with pytest.raises(RestoreRefused):
        Journal(store, "j/", Patience(ManualClock(), Random(1))).load_plan()
    with pytest.raises(WindowDamaged):
        Window.decode(data)
    with pytest.raises(RestoreRefused):
        Lease(store, "j/plan.json", holder="h", clock=ManualClock(), random=Random(1)).take()


def test_a_lease_that_lasts_for_ever_is_refused() -> None:
    lease = {"epoch": 1, "holder": "x", "lease_s": 10**400, "free": False}
    store = store_with("lease.json", json.dumps(lease).encode())
    with pytest.raises(KeyfoldError, match="does not hold the lease"):
        Lease(store, "lease.json", holder="h", clock=ManualClock(), random=Random(1)).take()


@pytest.mark.parametrize("count", [0, 1, -1, 10**12, None, "3", True])
def test_a_window_is_unpacked_only_as_far_as_it_says(count: object) -> None:
    payload = open_codec("zstandard").compress(bytes(80_000_000))
    header = {"format": 1, "number": 0, "base": 0, "position": 0, "next_position": 0, "count": count, "run": 0}
    line = json.dumps({**header, "finished": False, "anchor": None, "crc32": crc32(payload)}).encode()
    with pytest.raises(WindowDamaged):
        Window.decode(line + b"\n" + payload)


def test_what_keyfold_writes_is_read() -> None:
    assert load_json(b'{"a": [1, 2.5, "\xc3\xa4", null]}') == {"a": [1, 2.5, "ä", None]}
