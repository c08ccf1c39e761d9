"""Objects on their way to a replica: whole or not at all, the right bytes, once, whatever breaks."""

from __future__ import annotations

import hashlib
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from random import Random

import pytest

from keyfold.backoff import Backoff
from keyfold.clock import ManualClock, SystemClock
from keyfold.errors import (
    AccessDenied,
    Corrupt,
    KeyfoldError,
    ObjectNotFound,
    ReplicaDiverged,
    StoreError,
    StoreUnavailable,
)
from keyfold.log.commit import Patience
from keyfold.log.names import Place
from keyfold.log.objects import PART_BYTES, NameTaken
from keyfold.store.api import Blob, Bytes, Create, ObjectInfo, ObjectStore, PutMode, PutResult
from keyfold.store.counted import CountedStore
from keyfold.store.faulty import Call, Fault, FaultyStore, Kind, SimulatedCrash, every_fault
from keyfold.store.memory import MemoryStore
from keyfold.store.pace import CHUNK_BYTES
from keyfold_compactor.replica.carry import LARGE_BYTES
from keyfold_compactor.replica.transfer import CopyJob, CopyResult, Transfer, TransferStopped, Way

PLACE = Place("topics", "users", 0)
THERE = Place("copy/of", "users", 0)
MIB = 1 << 20
BIG = 20 * MIB + 3


def patience(patience_s: float = 60.0) -> Patience:
    return Patience(ManualClock(), Random(1), Backoff(), patience_s)


def made(store: ObjectStore, name: str, size_bytes: int, *, place: Place = PLACE, seed: int = 0) -> CopyJob:
    """An object at the source, and the job that copies it."""
    data = Random(f"{name} {seed}").randbytes(size_bytes)
    store.put(place.key(name), data, Create())
    return CopyJob(place, name, size_bytes, hashlib.sha256(data).digest())


def transfer(source: ObjectStore, target: ObjectStore, *, threads: int = 1, **options: object) -> Transfer:
    return Transfer(source, target, topics_dir="copy/of", patience=patience(), threads=threads, **options)  # type: ignore[arg-type]


def copy(source: ObjectStore, target: ObjectStore, *jobs: CopyJob, threads: int = 1) -> list[CopyResult]:
    with transfer(source, target, threads=threads) as carrying:
        return list(carrying.copy(jobs))


def is_there(target: ObjectStore, job: CopyJob) -> bool:
    """Whether the object is at the replica; with other bytes it must never be."""
    key = Place("copy/of", job.place.topic, job.place.partition).key(job.name)
    try:
        data = target.get(key).data
    except ObjectNotFound:
        return False
    assert len(data) == job.size_bytes
    assert hashlib.sha256(data).digest() == job.sha256
    return True


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
    assert copy(counted, there, job) == [CopyResult(job, Way.SENT, 1000)]
    assert is_there(target, job)
    assert (dict(counted.calls), dict(there.calls)) == ({"get": 1}, {"put": 1})


def test_a_large_object_is_sent_in_parts(source: MemoryStore, target: MemoryStore) -> None:
    job = made(source, "a.avro", BIG)
    counted, there = CountedStore(source), CountedStore(target)
    assert copy(counted, there, job) == [CopyResult(job, Way.SENT, BIG)]
    assert is_there(target, job)
    assert dict(counted.calls) == {"get_range": 3}
    assert dict(there.calls) == {"resume_upload": 1, "start_upload": 1, "upload.write": 3, "upload.complete": 1}
    assert (counted.bytes_read, there.bytes_written) == (BIG, BIG)
    assert list(target.list_uploads("")) == []


@pytest.mark.parametrize("size_bytes", [0, 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, LARGE_BYTES])
def test_sizes_at_the_edges(source: MemoryStore, target: MemoryStore, size_bytes: int) -> None:
    job = made(source, "_index/a.parquet", size_bytes)
    copy(source, target, job)
    assert is_there(target, job)


def test_thousands_of_small_ones_by_many_threads(source: MemoryStore, target: MemoryStore) -> None:
    places = [Place("topics", "users", partition) for partition in range(5)]
    jobs = {place: [made(source, f"{n}.avro", 50 + n % 7, place=place) for n in range(600)] for place in places}
    found: list[CopyResult] = []
    with transfer(source, target, threads=8) as carrying:

        def one(place: Place) -> None:
            found.extend(carrying.copy(jobs[place]))

        rounds = [threading.Thread(target=one, args=(place,)) for place in places]
        for thread in rounds:
            thread.start()
        for thread in rounds:
            thread.join()
    assert len({(r.job.place, r.job.name) for r in found}) == 3000
    assert all(is_there(target, job) for these in jobs.values() for job in these)


def test_one_call_with_many_objects_does_not_keep_another_waiting(source: MemoryStore, target: MemoryStore) -> None:
    many = [made(source, f"{n}.avro", 10) for n in range(500)]
    other = made(source, "x.avro", 10, place=Place("topics", "users", 1))
    with transfer(source, target, threads=2) as carrying:
        long = carrying.copy(many)
        next(long)
        assert [r.job for r in carrying.copy([other])] == [other]
        assert sum(1 for _ in target.list("copy/of/users/partition=0/")) < 20
        assert len(list(long)) == 499


# What is there already


def test_what_was_created_meanwhile_is_not_an_error(source: MemoryStore, target: MemoryStore) -> None:
    job = made(source, "a.avro", 1000)
    copy(source, target, job)
    assert [r.job for r in copy(source, target, job)] == [job]


def test_a_large_object_that_is_there_is_not_sent(source: MemoryStore, target: MemoryStore) -> None:
    job = made(source, "a.avro", LARGE_BYTES)
    copy(source, target, job)
    counted, there = CountedStore(source), CountedStore(target)
    assert copy(counted, there, job) == [CopyResult(job, Way.WAS_THERE, 0)]
    assert (dict(counted.calls), dict(there.calls)) == ({}, {"head": 1})


@pytest.mark.parametrize("size_bytes", [1000, BIG, LARGE_BYTES])
def test_something_else_under_the_name_is_told(source: MemoryStore, target: MemoryStore, size_bytes: int) -> None:
    job = made(source, "a.avro", size_bytes)
    target.put(THERE.key("a.avro"), b"something else", Create())
    with pytest.raises(ReplicaDiverged, match="holds 14 bytes") as raised:
        copy(source, target, job)
    assert raised.value.host == "memory://target"
    assert target.get(THERE.key("a.avro")).data == b"something else"
    assert list(target.list_uploads("")) == []


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

    def get(self, key: str) -> Blob:
        blob = super().get(key)
        return Blob(self._seen(blob.data), blob.etag, blob.last_modified_ms, blob.date_ms)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._seen(super().get_range(key, start, length))


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("size_bytes", [1000, BIG])
def test_a_flipped_bit_on_the_way_is_fetched_again(source: MemoryStore, target: MemoryStore, size_bytes: int) -> None:
    job = made(source, "a.avro", size_bytes)
    copy(Damaged(source, flipped, 1), target, job)
    assert is_there(target, job)
    assert list(target.list_uploads("")) == []


@pytest.mark.parametrize("size_bytes", [1000, BIG])
def test_a_flipped_bit_at_the_source_is_never_visible(
    source: MemoryStore, target: MemoryStore, size_bytes: int
) -> None:
    job = made(source, "a.avro", size_bytes)
    with pytest.raises(Corrupt, match="another SHA-256") as raised:
        copy(Damaged(source, flipped, 1_000), target, job)
    assert raised.value.host == "memory://source"
    assert "topics/users/partition=0/a.avro" in str(raised.value)
    assert list(target.list("")) == []
    assert list(target.list_uploads("")) == []


@pytest.mark.parametrize("size_bytes", [1000, BIG])
@pytest.mark.parametrize("by", [-1, 1])
def test_an_object_of_another_size_is_never_visible(
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
def test_bytes_that_came_damaged_are_sent_again(source: MemoryStore, size_bytes: int) -> None:
    target = LosesBytes(2)
    job = made(source, "a.avro", size_bytes)
    copy(source, target, job)
    assert is_there(target, job)


# Errors


def test_what_the_source_has_not_any_more_is_told_before_all_else(source: MemoryStore, target: MemoryStore) -> None:
    gone = [made(source, f"{name}.avro", size) for name, size in [("small", 10), ("big", BIG)]]
    for job in gone:
        source.delete(job.key)
        with pytest.raises(ObjectNotFound) as raised:
            copy(source, target, job)
        assert raised.value.key == job.key
        assert raised.value.host == "memory://source"
    broken = made(source, "broken.avro", 10)
    wrong = CopyJob(PLACE, "broken.avro", 10, b"")
    with pytest.raises(ObjectNotFound):
        copy(source, target, wrong, gone[0], threads=2)
    assert not is_there(target, broken)
    assert list(target.list_uploads("")) == []


def test_what_went_well_is_given_out_before_the_error(source: MemoryStore, target: MemoryStore) -> None:
    jobs = [made(source, f"{n}.avro", 10) for n in range(10)]
    source.delete(jobs[5].key)
    found: list[CopyJob] = []
    with transfer(source, target) as carrying, pytest.raises(ObjectNotFound):
        found.extend(result.job for result in carrying.copy(jobs))
    assert found == jobs[:5]
    assert not is_there(target, jobs[6])
    assert [r.job for r in copy(source, target, *jobs[6:])] == jobs[6:]


def test_a_denied_target_is_told_with_its_host(source: MemoryStore) -> None:
    class Denied(MemoryStore):
        def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
            raise AccessDenied(key, "s3:PutObject answered 403 AccessDenied", code="AccessDenied")

    job = made(source, "a.avro", 10)
    with pytest.raises(AccessDenied) as raised:
        copy(source, Denied("denied", ManualClock()), job)
    assert (raised.value.host, raised.value.code) == ("memory://denied", "AccessDenied")


def test_a_store_that_stays_away_is_told_after_patience(source: MemoryStore, target: MemoryStore) -> None:
    jobs = [made(source, f"{n}.avro", 10) for n in range(100)]
    away = FaultyStore(target, [Fault(lambda _call: True, Kind.UNAVAILABLE, times=10**9)])
    with pytest.raises(StoreUnavailable) as raised:
        copy(source, away, *jobs)
    assert raised.value.host == "memory://target"
    assert len({call.key for call in away.calls}) == 1, "the others are not tried in vain"


# Breaking off


@pytest.mark.parametrize("size_bytes", [1000, BIG])
def test_any_failure_of_any_call_ends_with_the_object_whole_or_absent(size_bytes: int) -> None:
    """Each call of either side, in each way in which it can fail; then another process does it again."""
    for side in ("source", "target"):
        source = MemoryStore("source", ManualClock())
        job = made(source, "a.avro", size_bytes)
        clean = FaultyStore(source), FaultyStore(MemoryStore("target", ManualClock()))
        copy(*clean, job)
        calls = clean[side == "target"].calls
        faults = list(every_fault(calls))
        assert len(faults) > (1 if side == "source" else 6)
        for fault in faults:
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


def test_a_process_that_died_does_not_send_its_parts_twice(source: MemoryStore, target: MemoryStore) -> None:
    job = made(source, "a.avro", 10 * PART_BYTES + 5)
    for writes in (3, 2, 4):  # parts 1-3, 4-5, 6-9; then the rest
        dying = FaultyStore(target, [Fault(_nth_write(writes + 1), Kind.CRASH_BEFORE)])
        with pytest.raises(SimulatedCrash):
            copy(source, dying, job)
        assert not is_there(target, job)
    counted = CountedStore(target)
    [result] = copy(source, counted, job)
    assert result == CopyResult(job, Way.SENT, PART_BYTES + 5)
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


def test_a_part_of_another_processs_that_is_damaged_is_sent_again(source: MemoryStore, target: MemoryStore) -> None:
    job = made(source, "a.avro", BIG)
    data = source.get(job.key).data
    left = target.start_upload(THERE.key(job.name))
    left.write(flipped(data[:PART_BYTES]))
    left.write(data[PART_BYTES : 2 * PART_BYTES])
    [result] = copy(source, target, job)
    assert result.sent_bytes == BIG - PART_BYTES
    assert is_there(target, job)


def test_parts_that_were_cut_in_another_way_are_sent_again(source: MemoryStore, target: MemoryStore) -> None:
    job = made(source, "a.avro", BIG)
    data = source.get(job.key).data
    left = target.start_upload(THERE.key(job.name))
    for start in range(0, BIG, 6 * MIB):
        left.write(data[start : start + 6 * MIB])
    [result] = copy(source, target, job)
    assert result.sent_bytes == BIG
    assert is_there(target, job)
    assert list(target.list_uploads("")) == []


def test_an_upload_that_somebody_else_ends_is_begun_anew(source: MemoryStore, target: MemoryStore) -> None:
    job = made(source, "a.avro", BIG)
    rival = FaultyStore(target)

    def on_call(call: Call) -> None:
        if call.operation == "upload.write" and sum(c.operation == "upload.write" for c in rival.calls) == 2:
            for info in list(target.list_uploads("")):
                target.abort_upload(info.key, info.upload_id)

    rival.on_call = on_call
    copy(source, rival, job)
    assert is_there(target, job)


def test_an_object_that_a_rival_finishes_first_is_taken_as_there(source: MemoryStore, target: MemoryStore) -> None:
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


def test_two_replicators_at_once_leave_one_whole_object(source: MemoryStore, target: MemoryStore) -> None:
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
            assert self.open.wait(10)


def test_closing_stops_what_is_under_way_and_keeps_its_parts(source: MemoryStore, target: MemoryStore) -> None:
    job = made(source, "a.avro", 10 * PART_BYTES)
    gate = Gate("upload.write")
    carrying = transfer(source, FaultyStore(target, on_call=gate))
    errors: list[BaseException] = []

    def run() -> None:
        try:
            list(carrying.copy([job]))
        except KeyfoldError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert gate.reached.wait(10)
    closing = threading.Thread(target=carrying.close)
    closing.start()
    while not carrying._stopping.is_set():
        pass
    gate.open.set()
    closing.join(10)
    thread.join(10)
    assert [type(error) for error in errors] == [TransferStopped]
    assert not is_there(target, job)
    assert len(list(target.list_uploads(""))) == 1
    [result] = copy(source, target, job)
    assert 0 < result.sent_bytes < job.size_bytes
    with pytest.raises(TransferStopped):
        list(carrying.copy([job]))


def test_giving_up_the_iterator_stops_the_rest(source: MemoryStore, target: MemoryStore) -> None:
    jobs = [made(source, f"{n}.avro", 10) for n in range(500)]
    with transfer(source, target, threads=2) as carrying:
        results = carrying.copy(jobs)
        next(results)
        assert isinstance(results, Iterator)
        results.close()  # type: ignore[attr-defined]
        assert sum(1 for _ in target.list("")) < 10
        assert len(list(carrying.copy(jobs[400:]))) == 100


# Inside a store


def one_server() -> tuple[MemoryStore, MemoryStore]:
    return MemoryStore("a", ManualClock(), server="s"), MemoryStore("b", ManualClock(), server="s")


def test_a_store_copies_by_itself_where_both_ends_are_its_own() -> None:
    source, target = one_server()
    jobs = [made(source, "small.avro", 1000), made(source, "large.avro", BIG)]
    counted, there = CountedStore(source), CountedStore(target)
    small, large = copy(counted, there, *jobs)
    assert (small.way, large.way) == (Way.SENT, Way.COPIED_BY_STORE)
    assert large.sent_bytes == 0
    assert all(is_there(target, job) for job in jobs)
    assert (counted.bytes_read, there.bytes_written) == (1000, 1000)
    assert dict(there.calls) == {"put": 1, "start_copy": 1, "upload.complete": 1}


def test_two_directories_of_one_bucket(source: MemoryStore) -> None:
    job = made(source, "large.avro", BIG)
    assert [r.way for r in copy(source, source, job)] == [Way.COPIED_BY_STORE]
    assert is_there(source, job)


def test_a_sum_that_differs_is_not_made_visible() -> None:
    source, target = one_server()
    job = made(source, "a.avro", BIG)
    wrong = CopyJob(job.place, job.name, job.size_bytes, bytes(32))
    with pytest.raises(Corrupt):
        copy(source, target, wrong)
    assert list(target.list("")) == []
    assert list(target.list_uploads("")) == []


def test_what_the_source_has_not_any_more_inside_a_store() -> None:
    source, target = one_server()
    job = made(source, "a.avro", BIG)
    source.delete(job.key)
    with pytest.raises(ObjectNotFound) as raised:
        copy(source, target, job)
    assert raised.value.key == job.key


def test_any_failure_inside_a_store_ends_with_the_object_whole_or_absent() -> None:
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


def test_a_store_that_cannot_copy_after_all_is_asked_once() -> None:
    class Shy(MemoryStore):
        def start_copy(self, *_arguments: object) -> None:
            return None

    source, target = MemoryStore("a", ManualClock(), server="s"), Shy("b", ManualClock(), server="s")
    jobs = [made(source, f"{n}.avro", 2 * MIB) for n in range(5)]
    there = CountedStore(target)
    assert [r.way for r in copy(source, there, *jobs)] == [Way.SENT] * 5
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
        return CopyJob(PLACE, name, self.size_bytes, digest.digest())


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
def test_memory_follows_neither_size_nor_number(objects: int, threads: int, limit_bytes: int) -> None:
    source, target = Endless(96 * MIB), Drain()
    jobs = [source.job(f"{n}.avro") for n in range(objects)]
    tracemalloc.start()
    try:
        with Transfer(
            source, target, topics_dir="copy/of", patience=patience(), threads=threads, memory_bytes=limit_bytes
        ) as carrying:
            assert len(list(carrying.copy(jobs))) == objects
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < limit_bytes + 4 * MIB
    assert set(target.whole.values()) == {jobs[0].sha256}


def test_each_byte_is_paced_once(source: MemoryStore, target: MemoryStore) -> None:
    class Pacer:
        def __init__(self) -> None:
            self.asked: list[int] = []

        def acquire(self, n_bytes: int) -> None:
            self.asked.append(n_bytes)

    jobs = [made(source, "a.avro", 100_000), made(source, "b.avro", BIG)]
    pacer = Pacer()
    with transfer(source, target, pacer=pacer) as carrying:
        list(carrying.copy(jobs))
    assert max(pacer.asked) <= CHUNK_BYTES
    assert sum(pacer.asked) == 100_000 + BIG


# Schemas


def test_kept_schemas_are_copied_once_and_never_replaced(source: MemoryStore, target: MemoryStore) -> None:
    for schema in (1, 2, "a-guid"):
        source.put(f"topics/_schemas/{schema}.avsc", f'"{schema}"'.encode(), Create())
    with transfer(source, target) as carrying:
        assert carrying.copy_schemas("topics", [1, 2, "a-guid", 77]) == 3
        assert carrying.copy_schemas("topics", [1]) == 1
        assert target.get("copy/of/_schemas/a-guid.avsc").data == b'"a-guid"'
        source.put("topics/_schemas/3.avsc", b'"3"', Create())
        target.put("copy/of/_schemas/3.avsc", b'"4"', Create())
        with pytest.raises(NameTaken, match="another schema") as raised:
            carrying.copy_schemas("topics", [3])
    assert raised.value.host == "memory://target"


def test_real_time_is_not_needed() -> None:
    """`SystemClock` works as well: nothing here sleeps but between tries."""
    source, target = MemoryStore("a"), MemoryStore("b")
    job = made(source, "a.avro", 10)
    with Transfer(source, target, topics_dir="copy/of", patience=Patience(SystemClock(), Random(2))) as carrying:
        assert len(list(carrying.copy([job]))) == 1


# More ways to break


def test_the_source_drops_an_object_while_it_is_copied(source: MemoryStore, target: MemoryStore) -> None:
    job = made(source, "a.avro", 6 * PART_BYTES)

    def on_call(call: Call) -> None:
        if call.operation == "upload.write":
            source.delete(job.key)

    with pytest.raises(ObjectNotFound) as raised:
        copy(source, FaultyStore(target, on_call=on_call), job)
    assert raised.value.key == job.key
    assert list(target.list("")) == []
    assert list(target.list_uploads("")) == []


def test_an_upload_that_cannot_be_looked_up_is_begun_anew(source: MemoryStore) -> None:
    class Forbids(MemoryStore):
        def resume_upload(self, key: str) -> None:
            raise AccessDenied(key, "s3:ListMultipartUploadParts answered 403")

    job, target = made(source, "a.avro", BIG), Forbids("target", ManualClock())
    assert [r.sent_bytes for r in copy(source, target, job)] == [BIG]
    assert is_there(target, job)


def test_a_store_that_fails_to_copy_again_and_again_is_not_asked_for_ever() -> None:
    class Fails(MemoryStore):
        def start_copy(self, source: ObjectStore, source_key: str, key: str, size_bytes: int) -> None:
            raise AccessDenied(key, "s3:GetObject answered 403")

    source, target = MemoryStore("a", ManualClock(), server="s"), Fails("b", ManualClock(), server="s")
    jobs = [made(source, f"{n}.avro", 2 * MIB) for n in range(8)]
    there = CountedStore(target)
    assert [r.way for r in copy(source, there, *jobs)] == [Way.SENT] * 8
    assert there.calls["start_copy"] == 3


def test_waiting_for_a_store_that_is_away_ends_when_it_is_closed(source: MemoryStore, target: MemoryStore) -> None:
    job = made(source, "a.avro", 10)
    gate = threading.Event()
    away = FaultyStore(target, [Fault(lambda _call: True, Kind.UNAVAILABLE, times=10**9)])
    away.on_call = lambda _call: gate.set()
    slow = Patience(SystemClock(), Random(1), Backoff(30_000, 60_000), 3600)
    carrying = Transfer(source, away, topics_dir="copy/of", patience=slow)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            list(carrying.copy([job]))
        except KeyfoldError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert gate.wait(10)
    carrying.close()
    thread.join(10)
    assert [type(error) for error in errors] == [TransferStopped]
