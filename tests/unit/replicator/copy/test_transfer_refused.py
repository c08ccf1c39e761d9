"""A store refuses a request during a copy: the object is sent another way, or again from scratch."""

from __future__ import annotations

import pytest

from keyfold.errors import AccessDenied, StoreError
from keyfold.log.objects import PART_BYTES
from keyfold.runtime.clock import ManualClock
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.counting import CountedStore
from keyfold.store.wrappers.faults import Call, FaultyStore
from keyfold_replicator.copy.jobs import CopyMethod
from tests.support.transfers import BIG, MIB, THERE, copy, is_there, made, one_server


class Refuses(FaultyStore):
    """Refuses requests of an existing upload (or of every server-side copy)."""

    def __init__(self, inner: MemoryStore, operation: str, error: type[StoreError] = StoreError) -> None:
        super().__init__(inner)
        self._error = error
        self._operation = operation
        self.on_call = self._refuse
        self.is_over = False

    def _refuse(self, call: Call) -> None:
        if call.operation == "start_upload":
            self.is_over = True  # another upload: this one is taken
        if call.operation == self._operation and not self.is_over:
            raise self._error(call.key, "answered 400 InvalidRequest")


def test_a_refused_server_side_copy_is_sent_instead_and_later_not_tried() -> None:
    source, target = one_server()
    jobs = [made(source, f"{n}.avro", 2 * MIB) for n in range(8)]
    there = CountedStore(Refuses(target, "upload.complete"))
    assert [r.way for r in copy(source, there, *jobs)] == [CopyMethod.SENT] * 8
    assert all(is_there(target, job) for job in jobs)
    assert list(target.list_uploads("")) == []
    assert there.calls["start_copy"] == 3


@pytest.mark.parametrize("operation", ["upload.write", "upload.complete"])
def test_an_upload_that_the_store_refuses_to_resume_is_started_again(operation: str) -> None:
    source, target = MemoryStore("source", ManualClock()), MemoryStore("target", ManualClock())
    job = made(source, "a.avro", BIG)
    left = target.start_upload(THERE.key(job.name))
    left.write(source.get(job.key).data[:PART_BYTES])
    [result] = copy(source, Refuses(target, operation), job)
    assert result.sent_bytes == BIG
    assert is_there(target, job)
    assert list(target.list_uploads("")) == []


def test_a_missing_permission_is_reported_and_the_upload_stays() -> None:
    source, target = MemoryStore("source", ManualClock()), MemoryStore("target", ManualClock())
    job = made(source, "a.avro", BIG)
    left = target.start_upload(THERE.key(job.name))
    left.write(source.get(job.key).data[:PART_BYTES])
    with pytest.raises(AccessDenied):
        copy(source, Refuses(target, "upload.write", AccessDenied), job)
    assert [info.upload_id for info in target.list_uploads("")] == [left.upload_id]
