"""Objects that are read whole and are larger than keyfold makes them: refused by their size, before a byte is read."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from keyfold.errors import Corrupt, KeyfoldError, ObjectTooLarge
from keyfold.formats.schema_archive import ArchivedSchemaUnusable, SchemaArchive, SchemaConflict
from keyfold.log.index import read_index
from keyfold.log.names import FIRST_COPY_NAME, schema_key
from keyfold.log.partition_log import PartitionLog
from keyfold.read.fetch import read_segment
from keyfold.restore.journal import Journal
from keyfold.restore.lease import Lease
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import Blob, Create, require_size
from keyfold.store.cas_document import CasDocument
from keyfold.store.memory import MemoryStore
from keyfold.store.pacing import Pacer
from keyfold.store.s3 import S3Store
from keyfold.verify.partition import verify_partition
from keyfold_replicator.status.status_report import load_report
from keyfold_sink.worker.desired_state import DesiredStateDocument
from tests.support.logs import PLACE, MadeLog, records

TERABYTE = 10**12


class Bloated(MemoryStore):
    """Every object has a terabyte. A whole read is impossible, and a bounded read is refused."""

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        require_size(key, TERABYTE, max_bytes)
        raise AssertionError(f"`{key}` was read whole, whatever its size")


def load(store: MemoryStore) -> object:
    return PartitionLog(store, PLACE, clock=ManualClock(), random=Random(1)).load()


def first_copy(store: MemoryStore) -> object:
    store.put(PLACE.key(FIRST_COPY_NAME), b"{}", Create())
    log = PartitionLog(store, PLACE, clock=ManualClock(), random=Random(1))
    return log._marker(log.listed())


def keep(store: MemoryStore) -> object:
    store.put(schema_key("topics", 7), b"{}", Create())
    SchemaArchive(store, "topics").add(7, '"string"', "http://registry")
    return "kept"


ENTRY = MadeLog().append(records("a=1 b=2"))


READERS: dict[str, tuple[Callable[[MemoryStore], object], type[KeyfoldError]]] = {
    "manifest": (load, Corrupt),
    "marker of a first copy": (first_copy, ObjectTooLarge),
    "kept schema": (lambda store: SchemaArchive(store, "topics").text(7), ArchivedSchemaUnusable),
    "kept schema of a sink": (keep, SchemaConflict),
    "orders": (lambda store: DesiredStateDocument(store, "s/", ManualClock(), Random(1)).refresh(), ObjectTooLarge),
    "registration": (lambda store: CasDocument(store, "r", ManualClock(), Random(1)).read(), ObjectTooLarge),
    "lease": (
        lambda store: Lease(store, "l", holder="h", clock=ManualClock(), random=Random(1)).acquire(), ObjectTooLarge
    ),
    "index": (lambda store: read_index(store, PLACE, ENTRY), Corrupt),
    "segment": (lambda store: list(read_segment(store, PLACE, ENTRY, 0, 2)), Corrupt),
    "plan": (lambda store: Journal(store, "j/", RetryPolicy(ManualClock(), Random(1))).load_plan(), ObjectTooLarge),
}  # fmt: skip


@pytest.mark.parametrize("what", READERS)
def test_a_terabyte_object_is_refused_by_its_size(what: str) -> None:
    reader, error = READERS[what]
    with pytest.raises(error):
        reader(Bloated())


def test_a_terabyte_status_is_treated_as_missing() -> None:
    assert load_report(Bloated(), "topics", "far") is None


class BloatedIndex(MemoryStore):
    """Each index has a terabyte."""

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        if key.endswith(".parquet"):
            require_size(key, TERABYTE, max_bytes)
        return super().get(key, max_bytes)


def test_verify_reports_a_terabyte_index_and_reads_the_segment() -> None:
    made = MadeLog(store=BloatedIndex())
    made.append(records("a=1 b=2"))
    report = verify_partition(made.store, PLACE, clock=ManualClock(), random=Random(1))
    assert [str(found.kind.value) for found in report.damage] == ["index-damaged"]
    assert "1000000000000 bytes" in str(report.damage[0])
    assert report.records == 2


class Free:
    """A pacer that holds up nothing."""

    piece_bytes = 1024

    def acquire(self, n_bytes: int) -> None:
        """At once."""

    def owe(self, n_bytes: int) -> None:
        """Nobody pays."""


class Body:
    """The body of an answer, which must not be read."""

    closed = False

    def read(self, *_: int) -> bytes:
        raise AssertionError("the body was read")

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("pacer", [None, Free()])
def test_s3_compares_the_length_before_it_reads_the_body(pacer: Pacer | None, monkeypatch: pytest.MonkeyPatch) -> None:
    body = Body()
    store = S3Store("b", endpoint_url="http://127.0.0.1:1", access_key_id="k", secret_access_key="s", pacer=pacer)
    asked: list[str] = []

    def request(name: str, *_: object, **__: object) -> dict[str, Any]:
        asked.append(name)
        return {"ContentLength": TERABYTE, "ETag": '"e"', "Body": body}

    monkeypatch.setattr(store, "request", request)
    with pytest.raises(ObjectTooLarge, match=f"`k`: has {TERABYTE} bytes; the limit for this kind of object is 1000"):
        store.get("k", 1000)
    assert asked == (["get_object"] if pacer is None else ["head_object"])
    assert body.closed == (pacer is None)
    store.close()
