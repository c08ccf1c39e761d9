"""The probe accepts stores with correct conditional writes and detects each kind of wrong store."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from random import Random
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest

from keyfold.errors import (
    AccessDenied,
    AlreadyExists,
    BucketMissing,
    ConditionsIgnored,
    ConditionUndecided,
    StoreError,
    StoreUnavailable,
)
from keyfold.runtime.buffers import Bytes
from keyfold.runtime.clock import Clock, ManualClock
from keyfold.store import probe as probing
from keyfold.store.api import Blob, Create, ObjectStore, PutMode, PutResult, Update
from keyfold.store.memory import MemoryStore
from keyfold.store.s3 import S3Store
from keyfold.store.wrappers.faults import Chaos, Fault, FaultKind, FaultyStore, SimulatedCrash, every_fault
from tests.support.moto import LocalS3Process
from tests.support.versitygw import Versitygw


def probe(store: ObjectStore, topics_dir: str, random: Random, clock: Clock | None = None, *, rounds: int = 2) -> None:
    """Run the probe in a process whose waits take no time."""
    probing.probe(store, topics_dir, clock or ManualClock(), random, rounds=rounds)


class Broken(MemoryStore):
    """A store with a defect; `overwrite` is the write that must not happen."""

    def overwrite(self, key: str, data: Bytes) -> PutResult:
        with self._lock:
            return self._write(key, bytes(data))

    def is_there(self, key: str) -> bool:
        return key in self._objects


class IgnoresAll(Broken):
    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        return self.overwrite(key, data)


class IgnoresIfNoneMatch(Broken):
    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        return self.overwrite(key, data) if isinstance(mode, Create) else super().put(key, data, mode)


class IgnoresIfMatch(Broken):
    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        return self.overwrite(key, data) if isinstance(mode, Update) else super().put(key, data, mode)


class IfMatchMeansExists(Broken):
    """A store whose updates accept any ETag."""

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        if isinstance(mode, Update) and self.is_there(key):
            return self.overwrite(key, data)
        return super().put(key, data, mode)


class UpdateCreates(Broken):
    """A store whose updates create a missing object."""

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        if isinstance(mode, Update) and not self.is_there(key):
            return self.overwrite(key, data)
        return super().put(key, data, mode)


class Inverted(Broken):
    """A store that inverts `If-None-Match: *`, as one gateway did."""

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        if isinstance(mode, Create) and not self.is_there(key):
            raise AlreadyExists(key, "inverted")
        return self.overwrite(key, data)


class RefusesAndWrites(Broken):
    """A store that answers 412 and writes nevertheless."""

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        try:
            return super().put(key, data, mode)
        except StoreError:
            self.overwrite(key, data)
            raise


class NeverUpdates(Broken):
    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        return super().put(key, data, Update("another") if isinstance(mode, Update) else mode)


class OtherEtags(Broken):
    """A store whose reads return another ETag than its writes, so that no commit could follow a read."""

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        blob = super().get(key, max_bytes)
        return Blob(blob.data, "W/" + blob.etag, blob.last_modified_ms, blob.date_ms)


class ChecksFirstWritesLater(Broken):
    """A store that checks, then writes, so that two concurrent writes both win. The barrier makes them meet."""

    def __init__(self, mode: type[Create | Update]) -> None:
        super().__init__()
        self._mode = mode
        self._meet = Barrier(2)

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        if not isinstance(mode, self._mode):
            return super().put(key, data, mode)
        with self._lock:
            self._check(key, mode)
        try:
            self._meet.wait(0.2)
        except BrokenBarrierError:
            self._meet.reset()
        return self.overwrite(key, data)


BROKEN = [
    IgnoresAll,
    IgnoresIfNoneMatch,
    IgnoresIfMatch,
    IfMatchMeansExists,
    UpdateCreates,
    Inverted,
    RefusesAndWrites,
    NeverUpdates,
    OtherEtags,
]
CRASHES = {FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER, FaultKind.CRASH_LATE}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_store_that_ignores_conditions_is_detected(kind: type[Broken]) -> None:
    store = kind()
    with pytest.raises(ConditionsIgnored) as raised:
        probe(store, "topics", Random(1), rounds=0)
    assert raised.value.key.startswith("topics/_probe/")
    assert raised.value.hint is not None
    assert list(store.list("")) == []


@pytest.mark.parametrize("mode", [Create, Update])
def test_a_store_whose_check_and_write_are_not_atomic_is_detected(mode: type[Create | Update]) -> None:
    store = ChecksFirstWritesLater(mode)
    with pytest.raises(ConditionsIgnored, match="not atomic"):
        probe(store, "", Random(1))
    assert list(store.list("")) == []


@pytest.mark.parametrize("topics_dir", ["topics", "", "a/b=c"])
def test_a_correct_store_passes_and_is_left_clean(topics_dir: str) -> None:
    inner = MemoryStore()
    store = FaultyStore(inner)
    probe(store, topics_dir, Random(1))
    assert list(inner.list("")) == []
    folder = f"{topics_dir}/_probe/" if topics_dir else "_probe/"
    assert all(call.key.startswith(folder) for call in store.calls)
    assert all(call.operation in {"put", "get", "delete"} for call in store.calls)


def test_concurrent_probes_do_not_disturb_each_other() -> None:
    inner = MemoryStore()
    stores = [FaultyStore(inner) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: probe(stores[number], "t", Random(number), rounds=1), range(8)))
    assert list(inner.list("")) == []


def test_a_leftover_object_of_the_same_seed_is_skipped() -> None:
    inner = MemoryStore()
    store = FaultyStore(
        inner, [Fault(lambda call: call.operation == "put" and call.number > 1, FaultKind.CRASH_BEFORE)]
    )
    with pytest.raises(SimulatedCrash):
        probe(store, "t", Random(1), rounds=0)
    assert len(list(inner.list(""))) == 1
    probe(inner, "t", Random(1), rounds=0)


def test_the_right_to_delete_is_not_needed() -> None:
    class NoDelete(MemoryStore):
        def delete(self, key: str) -> None:
            raise AccessDenied(key, "no")

    probe(NoDelete(), "t", Random(1))


@pytest.mark.parametrize("error", [AccessDenied, BucketMissing, StoreUnavailable])
def test_errors_of_the_bucket_are_raised_unchanged(error: type[StoreError]) -> None:
    class Refusing(MemoryStore):
        def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
            raise error(key, "refused")

    with pytest.raises(error, match="refused"):
        probe(Refusing(), "t", Random(1))


def test_an_undecided_write_is_repeated() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner, chaos=Chaos(Random(3), 0.3, (FaultKind.CONFLICT,)))
    probe(store, "t", Random(1))
    always = FaultyStore(inner, [Fault(lambda call: call.operation == "put", FaultKind.CONFLICT, times=1000)])
    with pytest.raises(ConditionUndecided):
        probe(always, "t", Random(1))


def test_a_single_refused_or_unanswered_request_does_not_fail_a_probe() -> None:
    clean = FaultyStore(MemoryStore())
    probe(clean, "t", Random(1), rounds=1)
    faults = [fault for fault in every_fault(clean.calls) if fault.kind not in CRASHES]
    assert {fault.kind for fault in faults} == {
        FaultKind.UNAVAILABLE,
        FaultKind.LOST_ANSWER,
        FaultKind.LATE,
        FaultKind.CONFLICT,
    }
    for fault in faults:
        inner = MemoryStore()
        store = FaultyStore(inner, [fault])
        probe(store, "t", Random(1), rounds=1)
        failed = store.calls[int(str(fault.at)) - 1]
        assert failed.operation == "delete" or fault.kind is FaultKind.LATE or list(inner.list("")) == []


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(20))
def test_a_fifth_of_all_requests_may_fail(seed: int) -> None:
    probe(FaultyStore(MemoryStore(), chaos=Chaos(Random(seed), 0.2)), "t", Random(seed))
    for kind in BROKEN:
        with pytest.raises(ConditionsIgnored):
            probe(FaultyStore(kind(), chaos=Chaos(Random(seed), 0.2)), "t", Random(seed))


def test_an_unreachable_store_is_reported_after_the_time_limit() -> None:
    clock = ManualClock()
    begun_s = clock.monotonic_s()
    store = FaultyStore(
        MemoryStore(), [Fault(lambda call: call.operation == "put", FaultKind.UNAVAILABLE, times=10**6)]
    )
    with pytest.raises(StoreUnavailable):
        probing.probe(store, "t", clock, Random(1), retry_timeout_s=30)
    assert 10 < clock.monotonic_s() - begun_s <= 30


@pytest.mark.parametrize("kind", BROKEN)
def test_no_fault_makes_a_wrong_store_pass(kind: type[Broken]) -> None:
    """Each request of a detecting probe fails once, in each way, and the defect is still detected."""
    clean = FaultyStore(kind())
    with pytest.raises(ConditionsIgnored):
        probe(clean, "t", Random(1), rounds=0)
    for fault in every_fault(clean.calls):
        if fault.kind not in CRASHES:
            with pytest.raises(ConditionsIgnored):
                probe(FaultyStore(kind(), [fault]), "t", Random(1), rounds=0)


@pytest.mark.parametrize("mode", [Create, Update])
def test_two_winners_of_a_race_fail_the_store_although_a_third_write_was_not_answered(
    mode: type[Create | Update],
) -> None:
    """The store does it once: another race, because of the missing answer, would find nothing."""

    class Once(Broken):
        racing: str = ""

        def put(self, key: str, data: Bytes, mode_of_this: PutMode) -> PutResult:
            is_race = len(data) > 1000 and isinstance(mode_of_this, mode)
            if not is_race or self.racing not in {"", key}:
                return super().put(key, data, mode_of_this)
            self.racing = key
            if data[0] % 4 == 3:
                raise StoreUnavailable(key, "503")
            return self.overwrite(key, data)

    with pytest.raises(ConditionsIgnored, match="not atomic"):
        probe(Once(), "t", Random(1), rounds=1)


def test_a_race_with_a_missing_answer_is_run_again() -> None:
    """The answer of one of the two possible winners is missing, so the result is unknown."""
    lost = [Fault(lambda call: call.operation == "put" and call.number > 10, FaultKind.LOST_ANSWER)]
    store = FaultyStore(MemoryStore(), lost)
    probe(store, "t", Random(1), rounds=1)
    clean = FaultyStore(MemoryStore())
    probe(clean, "t", Random(1), rounds=1)
    assert len(store.calls) > len(clean.calls)


def test_a_crash_in_a_probe_propagates() -> None:
    clean = FaultyStore(MemoryStore())
    probe(clean, "t", Random(1), rounds=0)
    for fault in every_fault(clean.calls):
        if fault.kind in CRASHES:
            with pytest.raises(SimulatedCrash, match=fault.kind.value):
                probe(FaultyStore(MemoryStore(), [fault]), "t", Random(1), rounds=0)


@pytest.fixture
def moto_store(local_s3: LocalS3Process, bucket: str) -> Iterator[S3Store]:
    store = S3Store(bucket, endpoint_url=local_s3.url, access_key_id="k", secret_access_key="s")
    yield store
    store.close()


def test_moto_behind_a_lock_passes(moto_store: S3Store) -> None:
    probe(moto_store, "topics", Random(1))
    assert list(moto_store.list("")) == []


def test_a_missing_bucket_is_named(local_s3: LocalS3Process) -> None:
    store = S3Store("nobody-made-this", endpoint_url=local_s3.url, access_key_id="k", secret_access_key="s")
    with pytest.raises(BucketMissing, match="nobody-made-this"):
        probe(store, "topics", Random(1))
    store.close()


@pytest.mark.real
def test_versitygw_passes_and_refuses_a_wrong_secret(versitygw: Versitygw) -> None:
    bucket = versitygw.create_bucket("probed")
    for secret, passes in (("testsecret", True), ("wrong", False)):
        store = S3Store(bucket, endpoint_url=versitygw.url, access_key_id="testkey", secret_access_key=secret)
        if passes:
            probe(store, "topics", Random(1))
            assert list(store.list("")) == []
        else:
            with pytest.raises(AccessDenied, match="s3:PutObject"):
                probe(store, "topics", Random(1))
        store.close()


@pytest.mark.timeout(20)
def test_a_process_that_ends_during_a_race_does_not_wait_for_unstarted_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submit, calls = ThreadPoolExecutor.submit, count()

    def ending(self: ThreadPoolExecutor, *arguments: Any) -> Any:
        if next(calls) == 2:
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")
        return submit(self, *arguments)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", ending)
    with pytest.raises(RuntimeError, match="interpreter shutdown"):
        probe(MemoryStore(), "topics", Random(1))
