"""JSON objects of the bucket that hold anything: each is an error of keyfold by name, and never another one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
from isal.isal_zlib import crc32

from keyfold.errors import KeyfoldError, ObjectTooLarge
from keyfold.formats.schema_archive import _same_json
from keyfold.log.codec import open_codec
from keyfold.log.names import Place
from keyfold.log.replica_first_copy import FirstCopy
from keyfold.read.position import Anchor
from keyfold.replicas.documents import enablement_of
from keyfold.restore.errors import RestoreRefused
from keyfold.restore.journal import Journal, PartitionPlan, RestorePlan
from keyfold.restore.lease import Lease
from keyfold.restore.window import Window, WindowDamaged
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import Create
from keyfold.store.cas_document import CasDocument
from keyfold.store.documents import DOCUMENT_BYTES_MAX, DocumentUnreadable, load_json
from keyfold.store.memory import MemoryStore
from keyfold_replicator.state.states import PartitionState, SyncState
from keyfold_replicator.status.status import _body
from keyfold_replicator.status.status_report import report_of
from keyfold_sink.status import dump, load_worker
from keyfold_sink.worker.desired_state import DesiredStateUnreadable, decode
from tests.support.fake_service import worker

ANCHOR = Anchor("0" * 32, 3, 2, 9)
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
def test_invalid_first_copy_markers_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        FirstCopy.of_bytes(data)


@pytest.mark.parametrize("data", DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_invalid_replica_documents_are_refused_by_name(data: bytes) -> None:
    with pytest.raises((DocumentUnreadable, ObjectTooLarge)):
        CasDocument(store_with("r.json", data), "r.json", ManualClock(), Random(1)).read()
    assert report_of(data, "topics") is None
    with pytest.raises(DocumentUnreadable):
        enablement_of(_body(data), "_replica.json")


@pytest.mark.parametrize("data", DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_invalid_desired_states_of_a_sink_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(DesiredStateUnreadable):
        decode(data, "orders.json")


@pytest.mark.parametrize("data", DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_an_invalid_archived_schema_counts_as_a_different_one(data: bytes) -> None:
    assert not _same_json(data, '{"type":"record"}')


@pytest.mark.parametrize("data", DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_invalid_objects_of_a_restore_are_refused_by_name(data: bytes) -> None:
    store = store_with("j/plan.json", data)
    with pytest.raises((RestoreRefused, ObjectTooLarge)):
        Journal(store, "j/", RetryPolicy(ManualClock(), Random(1))).load_plan()
    with pytest.raises(WindowDamaged):
        Window.decode(data)
    with pytest.raises((RestoreRefused, ObjectTooLarge)):
        Lease(store, "j/plan.json", holder="h", clock=ManualClock(), random=Random(1)).acquire()


OTHER_KINDS: list[object] = [[], {}, "x", None, True, 1.5, 10**400]


def bent(document: Any) -> Iterator[tuple[str, Any]]:
    """The document with a value of another kind in place of each of its values; and the field that is bent."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        for other in OTHER_KINDS:
            # Text may be any; where a float is expected a whole number is one, too.
            is_same = type(other) is type(value) or (isinstance(value, float) and isinstance(other, int | float))
            if not is_same or other == 10**400:
                yield str(key), replaced(document, key, other)
        if isinstance(value, dict | list):
            for name, inner in bent(value):
                yield f"{key}.{name}", replaced(document, key, inner)


def replaced(document: Any, key: Any, value: object) -> Any:
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[key] = value
    return copy


PLAN = RestorePlan("topics/users", "users@x", {}, {0: PartitionPlan(ANCHOR, 0, 9), 1: PartitionPlan(ANCHOR, 0, 9, 5)})
STATUS = load_worker(dump(worker()))


def test_each_field_of_a_workers_status_has_its_type() -> None:
    for where, document in bent(json.loads(dump(STATUS))):
        if where.rpartition(".")[2] != "values" or not isinstance(document, dict):
            with pytest.raises(ValueError):
                load_worker(json.dumps(document).encode())


def test_a_status_with_fields_of_a_newer_version_is_readable() -> None:
    document = json.loads(dump(STATUS))
    document["later"] = document["tasks"][0]["later"] = [1]
    assert load_worker(json.dumps(document).encode()) == STATUS


def test_each_field_of_a_plan_has_its_type() -> None:
    for where, document in bent(json.loads(PLAN.encode())):
        if where == "partitions.0.to_offset" and document["partitions"]["0"]["to_offset"] is None:
            continue
        if where == "partitions.1.to_offset" and document["partitions"]["1"]["to_offset"] is None:
            continue
        store = store_with("j/plan.json", json.dumps(document).encode())
        with pytest.raises(RestoreRefused, match=r"j/plan\.json"):
            Journal(store, "j/", RetryPolicy(ManualClock(), Random(1))).load_plan()


def test_the_error_of_a_plan_names_the_field() -> None:
    document = json.loads(PLAN.encode())
    document["partitions"]["1"]["start"] = [0]
    store = store_with("j/plan.json", json.dumps(document).encode())
    with pytest.raises(RestoreRefused, match=r"j/plan\.json.*`partitions\.1\.start`: Input should be a valid integer"):
        Journal(store, "j/", RetryPolicy(ManualClock(), Random(1))).load_plan()


def test_each_field_of_a_windows_header_has_its_type() -> None:
    line, _, payload = Window(0, 5, 0, 9, np.array([1, 2, 8]), 1, False, ANCHOR).encode().partition(b"\n")
    for _, document in bent(json.loads(line)):
        if document["anchor"] is not None:
            with pytest.raises(WindowDamaged):
                Window.decode(json.dumps(document).encode() + b"\n" + payload)


def test_each_field_of_a_replicas_status_has_its_type() -> None:
    state = PartitionState(Place("topics", "users", 0), SyncState.WAITING, message="later", attempts=3)
    document = state.as_json()
    for key, value in document.items():
        for other in OTHER_KINDS:
            if type(other) is not type(value):
                found = {**document, key: other}
                reported = {"holder": "h", "written_at_ms": 1, "running": True, "partitions": [found]}
                assert report_of(json.dumps(reported).encode(), "topics") is None, (key, other)


def test_an_endless_lease_is_refused() -> None:
    lease = {"epoch": 1, "holder": "x", "lease_s": 10**400, "free": False}
    store = store_with("lease.json", json.dumps(lease).encode())
    with pytest.raises(KeyfoldError, match="does not contain the lease"):
        Lease(store, "lease.json", holder="h", clock=ManualClock(), random=Random(1)).acquire()


@pytest.mark.parametrize("count", [0, 1, -1, 10**12, None, "3", True])
def test_a_window_is_decompressed_only_up_to_its_declared_size(count: object) -> None:
    payload = open_codec("zstandard").compress(bytes(80_000_000))
    header = {"format": 1, "number": 0, "base": 0, "position": 0, "next_position": 0, "count": count, "run": 0}
    line = json.dumps({**header, "finished": False, "anchor": None, "crc32": crc32(payload)}).encode()
    with pytest.raises(WindowDamaged):
        Window.decode(line + b"\n" + payload)


def test_documents_written_by_keyfold_are_readable() -> None:
    assert load_json(b'{"a": [1, 2.5, "\xc3\xa4", null]}') == {"a": [1, 2.5, "ä", None]}
