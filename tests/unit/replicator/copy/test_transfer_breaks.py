"""Objects on their way to a replica: whole or not at all, and the right bytes, whatever breaks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from random import Random

import pytest

from keyfold.errors import (
    AccessDenied,
    Corrupt,
    KeyfoldError,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
)
from keyfold.log.objects import PART_BYTES
from keyfold.runtime.buffers import Bytes
from keyfold.runtime.clock import ManualClock, SystemClock
from keyfold.runtime.retry import Backoff, RetryPolicy
from keyfold.store.api import Blob, ObjectStore, PutMode, PutResult
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.counting import CountedStore
from keyfold.store.wrappers.faults import Call, Fault, FaultKind, FaultyStore, SimulatedCrash, every_fault
from keyfold_replicator.copy.jobs import CopyJob, CopyMethod, CopyResult, TransferStopped
from keyfold_replicator.copy.transfer import Transfer
from tests.support.tiers import Sharded
from tests.support.transfers import BIG, MIB, THERE, copy, is_there, made, transfer


@pytest.fixture
def source() -> MemoryStore:
    return MemoryStore("source", ManualClock())


@pytest.fixture
def target() -> MemoryStore:
    return MemoryStore("target", ManualClock())


# Damage


class Damaged(FaultyStore):
    """A store that answers damaged bytes, the first `times` times."""

    def __init__(self, inner: ObjectStore, damage: Callable[[bytes], bytes], times: int) -> None:
        super().__init__(inner)
        self._damage = damage
        self._left = times

    def _seen(self, data: bytes) -> bytes:
        if not self._left:
            return data
        self._left -= 1
        return self._damage(data)

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        blob = super().get(key, max_bytes)
        return Blob(self._seen(blob.data), blob.etag, blob.last_modified_ms, blob.date_ms)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._seen(super().get_range(key, start, length))


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("size_bytes", [1000, BIG])
def test_a_bit_flipped_in_transit_is_fetched_again(source: MemoryStore, target: MemoryStore, size_bytes: int) -> None:
    job = made(source, "a.avro", size_bytes)
    copy(Damaged(source, flipped, 1), target, job)
    assert is_there(target, job)
    assert list(target.list_uploads("")) == []


@pytest.mark.parametrize("size_bytes", [1000, BIG])
def test_a_bit_flipped_at_the_source_never_becomes_visible(
    source: MemoryStore, target: MemoryStore, size_bytes: int
) -> None:
    job = made(source, "a.avro", size_bytes)
    with pytest.raises(Corrupt, match="does not have the SHA-256 of the manifest") as raised:
        copy(Damaged(source, flipped, 1_000), target, job)
    assert raised.value.host == "memory://source"
    assert f"topics/users/partition=0/{job.name}" in str(raised.value)
    assert list(target.list("")) == []
    assert list(target.list_uploads("")) == []


@pytest.mark.parametrize("size_bytes", [1000, BIG])
@pytest.mark.parametrize("by", [-1, 1])
def test_an_object_of_wrong_size_never_becomes_visible(
    source: MemoryStore, target: MemoryStore, size_bytes: int, by: int
) -> None:
    job = made(source, "a.avro", size_bytes)
    wrong = CopyJob(job.place, job.name, job.size_bytes + by, job.sha256)
    with pytest.raises(Corrupt):
        copy(source, target, wrong)
    assert list(target.list("")) == []
    assert list(target.list_uploads("")) == []


class LosesBytes(MemoryStore):
    """A target that reports a digest error for what came damaged, as S3 does, some times."""

    def __init__(self, times: int) -> None:
        super().__init__("target", ManualClock())
        self.left = times

    def _refuse(self, key: str) -> None:
        if self.left:
            self.left -= 1
            raise StoreUnavailable(key, "answered 400 BadDigest", code="BadDigest")

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        self._refuse(key)
        return super().put(key, data, mode)

    def write_part(self, key: str, upload_id: str, part: Bytes, number: int) -> None:
        self._refuse(key)
        super().write_part(key, upload_id, part, number)


@pytest.mark.parametrize("size_bytes", [1000, BIG])
def test_bytes_damaged_in_transit_are_sent_again(source: MemoryStore, size_bytes: int) -> None:
    target = LosesBytes(2)
    job = made(source, "a.avro", size_bytes)
    copy(source, target, job)
    assert is_there(target, job)


# Breaking off


@pytest.mark.parametrize("size_bytes", [1000, BIG])
def test_any_failure_of_any_call_leaves_the_object_whole_or_absent(size_bytes: int, sharded: Sharded) -> None:
    """Each call of either side, in each way in which it can fail; then another process does it again."""
    for side in ("source", "target"):
        source = MemoryStore("source", ManualClock())
        job = made(source, "a.avro", size_bytes)
        clean = FaultyStore(source), FaultyStore(MemoryStore("target", ManualClock()))
        copy(*clean, job)
        calls = clean[side == "target"].calls
        faults = list(every_fault(calls))
        assert len(faults) > (1 if side == "source" else 6)
        for fault in sharded(faults):
            target = MemoryStore("target", ManualClock())
            stores = [FaultyStore(source), FaultyStore(target)]
            stores[side == "target"].add(fault)
            died = False
            try:
                copy(stores[0], stores[1], job)
            except SimulatedCrash:
                died = True
            assert died == (fault.kind.value.startswith("crash")), fault
            assert died or is_there(target, job)
            is_there(target, job)  # or absent
            again = CountedStore(target)
            if not is_there(target, job):
                copy(source, again, job)
            assert is_there(target, job)
            for store in stores:
                store.land()
            assert is_there(target, job)


def test_parts_sent_before_a_process_died_are_not_sent_again(source: MemoryStore, target: MemoryStore) -> None:
    job = made(source, "a.avro", 10 * PART_BYTES + 5)
    for writes in (3, 2, 4):  # parts 1-3, 4-5, 6-9; then the rest
        dying = FaultyStore(target, [Fault(_nth_write(writes + 1), FaultKind.CRASH_BEFORE)])
        with pytest.raises(SimulatedCrash):
            copy(source, dying, job)
        assert not is_there(target, job)
    counted = CountedStore(target)
    [result] = copy(source, counted, job)
    assert result == CopyResult(job, CopyMethod.SENT, PART_BYTES + 5)
    assert counted.bytes_written == PART_BYTES + 5
    assert is_there(target, job)
    assert list(target.list_uploads("")) == []


def _nth_write(number: int) -> Callable[[Call], bool]:
    seen = 0

    def hits(call: Call) -> bool:
        nonlocal seen
        seen += call.operation == "upload.write"
        return call.operation == "upload.write" and seen == number

    return hits


def test_a_damaged_part_of_another_process_is_sent_again(source: MemoryStore, target: MemoryStore) -> None:
    job = made(source, "a.avro", BIG)
    data = source.get(job.key).data
    left = target.start_upload(THERE.key(job.name))
    left.write(flipped(data[:PART_BYTES]))
    left.write(data[PART_BYTES : 2 * PART_BYTES])
    [result] = copy(source, target, job)
    assert result.sent_bytes == BIG - PART_BYTES
    assert is_there(target, job)


def test_parts_with_other_boundaries_are_sent_again(source: MemoryStore, target: MemoryStore) -> None:
    job = made(source, "a.avro", BIG)
    data = source.get(job.key).data
    left = target.start_upload(THERE.key(job.name))
    for start in range(0, BIG, 6 * MIB):
        left.write(data[start : start + 6 * MIB])
    [result] = copy(source, target, job)
    assert result.sent_bytes == BIG
    assert is_there(target, job)
    assert list(target.list_uploads("")) == []


def test_an_upload_aborted_by_another_process_is_started_again(source: MemoryStore, target: MemoryStore) -> None:
    job = made(source, "a.avro", BIG)
    rival = FaultyStore(target)

    def on_call(call: Call) -> None:
        if call.operation == "upload.write" and sum(c.operation == "upload.write" for c in rival.calls) == 2:
            for info in list(target.list_uploads("")):
                target.abort_upload(info.key, info.upload_id)

    rival.on_call = on_call
    copy(source, rival, job)
    assert is_there(target, job)


def test_an_object_that_a_rival_finished_first_counts_as_copied(source: MemoryStore, target: MemoryStore) -> None:
    job = made(source, "a.avro", BIG)
    slow = FaultyStore(target)

    def on_call(call: Call) -> None:
        if call.operation == "upload.complete":
            slow.on_call = None
            copy(source, target, job)  # it takes up our parts, and its `complete` comes before ours

    slow.on_call = on_call
    assert [r.job for r in copy(source, slow, job)] == [job]
    assert is_there(target, job)
    assert list(target.list_uploads("")) == []


def test_two_concurrent_replicators_leave_one_whole_object(source: MemoryStore, target: MemoryStore) -> None:
    jobs = [made(source, f"{n}.avro", 3 * PART_BYTES) for n in range(4)]
    errors: list[BaseException] = []

    def replicate() -> None:
        try:
            copy(source, target, *jobs, threads=3)
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    rivals = [threading.Thread(target=replicate) for _ in range(3)]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join()
    # One may be thrown out of an upload again and again; it then says so, and its next round finds the object.
    assert all(isinstance(error, StoreError) for error in errors)
    assert len(errors) < 3
    assert all(is_there(target, job) for job in jobs)


class Gate:
    """Holds calls of a store until it is opened."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, call: Call) -> None:
        if call.operation == self.operation:
            self.reached.set()
            assert self.open.wait(60)


def test_closing_stops_copies_in_flight_and_keeps_their_parts(source: MemoryStore, target: MemoryStore) -> None:
    job = made(source, "a.avro", 10 * PART_BYTES)
    gate = Gate("upload.write")
    copying = transfer(source, FaultyStore(target, on_call=gate))
    errors: list[BaseException] = []

    def run() -> None:
        try:
            list(copying.copy([job]))
        except KeyfoldError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert gate.reached.wait(60)
    closing = threading.Thread(target=copying.close)
    closing.start()
    while not copying._stopping.is_set():
        pass
    gate.open.set()
    closing.join(60)
    thread.join(60)
    assert [type(error) for error in errors] == [TransferStopped]
    assert not is_there(target, job)
    assert len(list(target.list_uploads(""))) == 1
    [result] = copy(source, target, job)
    assert 0 < result.sent_bytes < job.size_bytes
    with pytest.raises(TransferStopped):
        list(copying.copy([job]))


def test_abandoning_the_iterator_stops_the_remaining_copies(source: MemoryStore, target: MemoryStore) -> None:
    jobs = [made(source, f"{n}.avro", 10) for n in range(500)]
    with transfer(source, target, threads=2) as copying:
        results = copying.copy(jobs)
        next(results)
        assert isinstance(results, Iterator)
        results.close()
        assert sum(1 for _ in target.list("")) < 10
        assert len(list(copying.copy(jobs[400:]))) == 100


# More ways to break


def test_an_object_deleted_at_the_source_during_its_copy_is_reported(source: MemoryStore, target: MemoryStore) -> None:
    job = made(source, "a.avro", 6 * PART_BYTES)

    def on_call(call: Call) -> None:
        if call.operation == "upload.write":
            source.delete(job.key)

    with pytest.raises(ObjectNotFound) as raised:
        copy(source, FaultyStore(target, on_call=on_call), job)
    assert raised.value.key == job.key
    assert list(target.list("")) == []
    assert list(target.list_uploads("")) == []


def test_an_upload_that_cannot_be_listed_is_started_again(source: MemoryStore) -> None:
    class Forbids(MemoryStore):
        def resume_upload(self, key: str) -> None:
            raise AccessDenied(key, "s3:ListMultipartUploadParts answered 403")

    job, target = made(source, "a.avro", BIG), Forbids("target", ManualClock())
    assert [r.sent_bytes for r in copy(source, target, job)] == [BIG]
    assert is_there(target, job)


def test_server_side_copies_that_keep_failing_are_abandoned() -> None:
    class Fails(MemoryStore):
        def start_copy(self, source: ObjectStore, source_key: str, key: str, size_bytes: int) -> None:
            raise AccessDenied(key, "s3:GetObject answered 403")

    source, target = MemoryStore("a", ManualClock(), server="s"), Fails("b", ManualClock(), server="s")
    jobs = [made(source, f"{n}.avro", 2 * MIB) for n in range(8)]
    there = CountedStore(target)
    assert [r.way for r in copy(source, there, *jobs)] == [CopyMethod.SENT] * 8
    assert there.calls["start_copy"] == 3


def test_waiting_for_an_unavailable_store_ends_on_close(source: MemoryStore, target: MemoryStore) -> None:
    job = made(source, "a.avro", 10)
    gate = threading.Event()
    away = FaultyStore(target, [Fault(lambda _call: True, FaultKind.UNAVAILABLE, times=10**9)])
    away.on_call = lambda _call: gate.set()
    slow = RetryPolicy(SystemClock(), Random(1), Backoff(30_000, 60_000), 3600)
    copying = Transfer(source, away, topics_dir="copy/of", retry=slow)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            list(copying.copy([job]))
        except KeyfoldError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert gate.wait(60)
    copying.close()
    thread.join(60)
    assert [type(error) for error in errors] == [TransferStopped]
