"""Copies to a replica: requests and bytes sent, existing objects, errors, and memory."""

from __future__ import annotations

import hashlib
import threading
import tracemalloc
from random import Random

import pytest

from keyfold.errors import (
    AccessDenied,
    Corrupt,
    ObjectNotFound,
    ReplicaDiverged,
    StoreUnavailable,
)
from keyfold.log.names import Place
from keyfold.log.objects import PART_BYTES, NameTaken
from keyfold.runtime.buffers import Bytes
from keyfold.runtime.clock import ManualClock, SystemClock
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import Create, ObjectInfo, PutMode, PutResult
from keyfold.store.memory import MemoryStore
from keyfold.store.pacing import CHUNK_BYTES
from keyfold.store.wrappers.counting import CountedStore
from keyfold.store.wrappers.faults import Fault, FaultKind, FaultyStore, SimulatedCrash, every_fault
from keyfold_replicator.copy.copy_object import LARGE_BYTES
from keyfold_replicator.copy.jobs import CopyJob, CopyMethod, CopyResult
from keyfold_replicator.copy.transfer import Transfer
from tests.support.transfers import (
    BIG,
    MIB,
    PLACE,
    THERE,
    copy,
    is_there,
    made,
    named,
    one_server,
    retry_policy,
    transfer,
)


@pytest.fixture
def source() -> MemoryStore:
    return MemoryStore("source", ManualClock())


@pytest.fixture
def target() -> MemoryStore:
    return MemoryStore("target", ManualClock())


# What is sent


def test_a_small_object_takes_one_get_and_one_put(source: MemoryStore, target: MemoryStore) -> None:
    job = made(source, "a.avro", 1000)
    counted, there = CountedStore(source), CountedStore(target)
    assert copy(counted, there, job) == [CopyResult(job, CopyMethod.SENT, 1000)]
    assert is_there(target, job)
    assert (dict(counted.calls), dict(there.calls)) == ({"get": 1}, {"put": 1})


def test_a_large_object_is_sent_in_parts(source: MemoryStore, target: MemoryStore) -> None:
    job = made(source, "a.avro", BIG)
    counted, there = CountedStore(source), CountedStore(target)
    assert copy(counted, there, job) == [CopyResult(job, CopyMethod.SENT, BIG)]
    assert is_there(target, job)
    assert dict(counted.calls) == {"get_range": 3}
    assert dict(there.calls) == {"resume_upload": 1, "start_upload": 1, "upload.write": 3, "upload.complete": 1}
    assert (counted.bytes_read, there.bytes_written) == (BIG, BIG)
    assert list(target.list_uploads("")) == []


@pytest.mark.parametrize("size_bytes", [0, 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, LARGE_BYTES])
def test_objects_at_the_size_limits_are_copied(source: MemoryStore, target: MemoryStore, size_bytes: int) -> None:
    job = made(source, "_index/a.parquet", size_bytes)
    copy(source, target, job)
    assert is_there(target, job)


def test_thousands_of_small_objects_are_copied_by_many_threads(source: MemoryStore, target: MemoryStore) -> None:
    places = [Place("topics", "users", partition) for partition in range(5)]
    jobs = {place: [made(source, f"{n}.avro", 50 + n % 7, place=place) for n in range(600)] for place in places}
    found: list[CopyResult] = []
    with transfer(source, target, threads=8) as copying:

        def one(place: Place) -> None:
            found.extend(copying.copy(jobs[place]))

        rounds = [threading.Thread(target=one, args=(place,)) for place in places]
        for thread in rounds:
            thread.start()
        for thread in rounds:
            thread.join()
    assert len({(r.job.place, r.job.name) for r in found}) == 3000
    assert all(is_there(target, job) for these in jobs.values() for job in these)


def test_a_call_with_many_objects_does_not_delay_another(source: MemoryStore, target: MemoryStore) -> None:
    many = [made(source, f"{n}.avro", 10) for n in range(500)]
    other = made(source, "x.avro", 10, place=Place("topics", "users", 1))
    with transfer(source, target, threads=2) as copying:
        long = copying.copy(many)
        next(long)
        assert [r.job for r in copying.copy([other])] == [other]
        assert sum(1 for _ in target.list("copy/of/users/partition=0/")) < 20
        assert len(list(long)) == 499


# What is there already


def test_an_object_created_meanwhile_is_not_an_error(source: MemoryStore, target: MemoryStore) -> None:
    job = made(source, "a.avro", 1000)
    copy(source, target, job)
    assert [r.job for r in copy(source, target, job)] == [job]


def test_an_existing_large_object_is_not_sent(source: MemoryStore, target: MemoryStore) -> None:
    job = made(source, "a.avro", LARGE_BYTES)
    copy(source, target, job)
    counted, there = CountedStore(source), CountedStore(target)
    assert copy(counted, there, job) == [CopyResult(job, CopyMethod.WAS_THERE, 0)]
    assert (dict(counted.calls), dict(there.calls)) == ({}, {"head": 1})


@pytest.mark.parametrize("size_bytes", [1000, BIG, LARGE_BYTES])
def test_a_different_object_under_the_name_is_reported(
    source: MemoryStore, target: MemoryStore, size_bytes: int
) -> None:
    job = made(source, "a.avro", size_bytes)
    target.put(THERE.key(named("a.avro")), b"something else", Create())
    with pytest.raises(ReplicaDiverged, match="holds 14 bytes") as raised:
        copy(source, target, job)
    assert raised.value.host == "memory://target"
    assert target.get(THERE.key(named("a.avro"))).data == b"something else"
    assert list(target.list_uploads("")) == []


# Errors


def test_an_object_missing_at_the_source_is_reported_first(source: MemoryStore, target: MemoryStore) -> None:
    gone = [made(source, f"{name}.avro", size) for name, size in [("small", 10), ("big", BIG)]]
    for job in gone:
        source.delete(job.key)
        with pytest.raises(ObjectNotFound) as raised:
            copy(source, target, job)
        assert raised.value.key == job.key
        assert raised.value.host == "memory://source"
    broken = made(source, "broken.avro", 10)
    wrong = CopyJob(PLACE, named("broken.avro"), 10, b"")
    with pytest.raises(ObjectNotFound):
        copy(source, target, wrong, gone[0], threads=2)
    assert not is_there(target, broken)
    assert list(target.list_uploads("")) == []


def test_successful_results_are_returned_before_the_error(source: MemoryStore, target: MemoryStore) -> None:
    jobs = [made(source, f"{n}.avro", 10) for n in range(10)]
    source.delete(jobs[5].key)
    found: list[CopyJob] = []
    with transfer(source, target) as copying, pytest.raises(ObjectNotFound):
        found.extend(result.job for result in copying.copy(jobs))
    assert found == jobs[:5]
    assert not is_there(target, jobs[6])
    assert [r.job for r in copy(source, target, *jobs[6:])] == jobs[6:]


def test_a_denied_target_is_reported_with_its_host(source: MemoryStore) -> None:
    class Denied(MemoryStore):
        def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
            raise AccessDenied(key, "s3:PutObject answered 403 AccessDenied", code="AccessDenied")

    job = made(source, "a.avro", 10)
    with pytest.raises(AccessDenied) as raised:
        copy(source, Denied("denied", ManualClock()), job)
    assert (raised.value.host, raised.value.code) == ("memory://denied", "AccessDenied")


def test_an_unavailable_store_is_reported_after_retries(source: MemoryStore, target: MemoryStore) -> None:
    jobs = [made(source, f"{n}.avro", 10) for n in range(100)]
    away = FaultyStore(target, [Fault(lambda _call: True, FaultKind.UNAVAILABLE, times=10**9)])
    with pytest.raises(StoreUnavailable) as raised:
        copy(source, away, *jobs)
    assert raised.value.host == "memory://target"
    assert len({call.key for call in away.calls}) == 1, "the others are not tried in vain"


# Inside a store


def test_a_store_copies_server_side_if_both_ends_are_its_own() -> None:
    source, target = one_server()
    jobs = [made(source, "small.avro", 1000), made(source, "large.avro", BIG)]
    counted, there = CountedStore(source), CountedStore(target)
    small, large = copy(counted, there, *jobs)
    assert (small.way, large.way) == (CopyMethod.SENT, CopyMethod.COPIED_BY_STORE)
    assert large.sent_bytes == 0
    assert all(is_there(target, job) for job in jobs)
    assert (counted.bytes_read, there.bytes_written) == (1000, 1000)
    assert dict(there.calls) == {"put": 1, "start_copy": 1, "upload.complete": 1}


def test_two_folders_of_one_bucket_can_be_copied(source: MemoryStore) -> None:
    job = made(source, "large.avro", BIG)
    assert [r.way for r in copy(source, source, job)] == [CopyMethod.COPIED_BY_STORE]
    assert is_there(source, job)


def test_a_copy_with_a_wrong_checksum_is_not_made_visible() -> None:
    source, target = one_server()
    job = made(source, "a.avro", BIG)
    wrong = CopyJob(job.place, job.name, job.size_bytes, bytes(32))
    with pytest.raises(Corrupt):
        copy(source, target, wrong)
    assert list(target.list("")) == []
    assert list(target.list_uploads("")) == []


def test_an_object_missing_at_the_source_fails_a_server_side_copy() -> None:
    source, target = one_server()
    job = made(source, "a.avro", BIG)
    source.delete(job.key)
    with pytest.raises(ObjectNotFound) as raised:
        copy(source, target, job)
    assert raised.value.key == job.key


def test_any_failure_of_a_server_side_copy_leaves_the_object_whole_or_absent() -> None:
    source, target = one_server()
    job = made(source, "a.avro", 3 * MIB)
    clean = FaultyStore(target)
    copy(source, clean, job)
    for fault in every_fault(clean.calls):
        target = MemoryStore("b", ManualClock(), server="s")
        faulty = FaultyStore(target, [fault])
        try:
            copy(source, faulty, job)
        except SimulatedCrash:
            assert fault.kind.value.startswith("crash")
        else:
            assert is_there(target, job)
        if not is_there(target, job):
            copy(source, target, job)
        faulty.land()
        assert is_there(target, job)


def test_a_store_that_cannot_copy_is_tried_once() -> None:
    class Shy(MemoryStore):
        def start_copy(self, *_arguments: object) -> None:
            return None

    source, target = MemoryStore("a", ManualClock(), server="s"), Shy("b", ManualClock(), server="s")
    jobs = [made(source, f"{n}.avro", 2 * MIB) for n in range(5)]
    there = CountedStore(target)
    assert [r.way for r in copy(source, there, *jobs)] == [CopyMethod.SENT] * 5
    assert there.calls["start_copy"] == 1


# Bounds


class Endless(MemoryStore):
    """A source of one object that is made while it is read."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__("endless", ManualClock())
        self.size_bytes = size_bytes

    def piece(self, start: int, length: int) -> bytes:
        return bytes([start // PART_BYTES % 251]) * length

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.piece(start, length)

    def job(self, name: str) -> CopyJob:
        digest = hashlib.sha256()
        for start in range(0, self.size_bytes, PART_BYTES):
            digest.update(self.piece(start, min(PART_BYTES, self.size_bytes - start)))
        return CopyJob(PLACE, named(name), self.size_bytes, digest.digest())


class Drain(MemoryStore):
    """Keeps the sum of each upload alone."""

    def __init__(self) -> None:
        super().__init__("drain", ManualClock())
        self.sums: dict[str, hashlib._Hash] = {}
        self.whole: dict[str, bytes] = {}

    def write_part(self, key: str, upload_id: str, part: Bytes, number: int) -> None:
        self.sums.setdefault(upload_id, hashlib.sha256()).update(part)

    def complete_upload(self, key: str, upload_id: str, sums: object) -> PutResult:
        self.whole[key] = self.sums[upload_id].digest()
        return PutResult("-", 0)

    def head(self, key: str) -> ObjectInfo:
        raise ObjectNotFound(key, "not there")


@pytest.mark.parametrize(("objects", "threads", "limit_bytes"), [(1, 1, 32 * MIB), (6, 6, 96 * MIB)])
def test_memory_grows_neither_with_size_nor_number_of_objects(objects: int, threads: int, limit_bytes: int) -> None:
    source, target = Endless(96 * MIB), Drain()
    jobs = [source.job(f"{n}.avro") for n in range(objects)]
    tracemalloc.start()
    try:
        with Transfer(
            source, target, topics_dir="copy/of", retry=retry_policy(), threads=threads, memory_bytes=limit_bytes
        ) as copying:
            assert len(list(copying.copy(jobs))) == objects
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < limit_bytes + 4 * MIB
    assert set(target.whole.values()) == {jobs[0].sha256}


def test_each_byte_is_throttled_once(source: MemoryStore, target: MemoryStore) -> None:
    class Pacer:
        piece_bytes = CHUNK_BYTES

        def __init__(self) -> None:
            self.asked: list[int] = []

        def acquire(self, n_bytes: int) -> None:
            self.asked.append(n_bytes)

        def owe(self, n_bytes: int) -> None:
            """Heads are not what is counted here."""

    jobs = [made(source, "a.avro", 100_000), made(source, "b.avro", BIG)]
    pacer = Pacer()
    with transfer(source, target, pacer=pacer) as copying:
        list(copying.copy(jobs))
    assert max(pacer.asked) <= CHUNK_BYTES
    assert sum(pacer.asked) == 100_000 + BIG


# Schemas


def test_archived_schemas_are_copied_once_and_never_replaced(source: MemoryStore, target: MemoryStore) -> None:
    for schema in (1, 2, "a-guid"):
        source.put(f"topics/_schemas/{schema}.avsc", f'"{schema}"'.encode(), Create())
    with transfer(source, target) as copying:
        assert copying.copy_schemas("topics", [1, 2, "a-guid", 77]) == 3
        assert copying.copy_schemas("topics", [1]) == 1
        assert target.get("copy/of/_schemas/a-guid.avsc").data == b'"a-guid"'
        source.put("topics/_schemas/3.avsc", b'"3"', Create())
        target.put("copy/of/_schemas/3.avsc", b'"4"', Create())
        with pytest.raises(NameTaken, match="another schema") as raised:
            copying.copy_schemas("topics", [3])
    assert raised.value.host == "memory://target"


def test_a_copy_needs_no_real_time() -> None:
    """`SystemClock` works as well: nothing here sleeps but between tries."""
    source, target = MemoryStore("a"), MemoryStore("b")
    job = made(source, "a.avro", 10)
    with Transfer(source, target, topics_dir="copy/of", retry=RetryPolicy(SystemClock(), Random(2))) as copying:
        assert len(list(copying.copy([job]))) == 1
