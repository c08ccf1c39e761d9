"""The faulty store has exactly the configured faults."""

from __future__ import annotations

from random import Random

import pytest

from keyfold.errors import (
    AlreadyExists,
    ConditionUndecided,
    ObjectNotFound,
    PreconditionFailed,
    StoreUnavailable,
    UploadLost,
)
from keyfold.store.api import Create, ObjectStore, Update
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import (
    Call,
    Chaos,
    Fault,
    FaultKind,
    FaultyStore,
    SimulatedCrash,
    every_fault,
    kinds_of,
)


def faulty(*faults: Fault, chaos: Chaos | None = None) -> tuple[MemoryStore, FaultyStore]:
    inner = MemoryStore(min_part_bytes=1)
    return inner, FaultyStore(inner, faults, chaos=chaos)


def is_there(store: ObjectStore, key: str) -> bool:
    return any(row.key == key for row in store.list(key))


def test_calls_are_numbered_and_logged() -> None:
    _, store = faulty()
    result = store.put("a", b"1", Create())
    store.get("a")
    upload = store.start_upload("b")
    upload.write(b"x")
    upload.complete()
    list(store.list(""))
    assert store.calls == [
        Call(1, "put", "a", Create()),
        Call(2, "get", "a"),
        Call(3, "start_upload", "b"),
        Call(4, "upload.write", "b"),
        Call(5, "upload.complete", "b"),
        Call(6, "list", ""),
    ]
    store.put("a", b"2", Update(result.etag))
    assert store.calls[-1].mode == Update(result.etag)


@pytest.mark.parametrize(
    ("kind", "raised", "lands", "lands_later"),
    [
        (FaultKind.CRASH_BEFORE, SimulatedCrash, False, False),
        (FaultKind.CRASH_AFTER, SimulatedCrash, True, True),
        (FaultKind.CRASH_LATE, SimulatedCrash, False, True),
        (FaultKind.UNAVAILABLE, StoreUnavailable, False, False),
        (FaultKind.LOST_ANSWER, StoreUnavailable, True, True),
        (FaultKind.LATE, StoreUnavailable, False, True),
        (FaultKind.CONFLICT, ConditionUndecided, False, False),
    ],
)
def test_each_fault_kind_has_its_effect(
    kind: FaultKind, raised: type[BaseException], lands: bool, lands_later: bool
) -> None:
    inner, store = faulty(Fault(1, kind))
    with pytest.raises(raised):
        store.put("a", b"1", Create())
    assert is_there(inner, "a") is lands
    store.land()
    assert is_there(inner, "a") is lands_later
    assert not store.held


def test_a_dead_process_does_nothing_more() -> None:
    inner, store = faulty(Fault(2, FaultKind.CRASH_BEFORE))
    upload = store.start_upload("b")
    with pytest.raises(SimulatedCrash):
        store.put("a", b"1", Create())
    for call in (lambda: store.delete("x"), lambda: upload.write(b"x"), upload.abort, lambda: list(store.list(""))):
        with pytest.raises(SimulatedCrash):
            call()
    assert store.crashed
    assert len(store.calls) == 2
    assert len(list(inner.list_uploads(""))) == 1


def test_a_crash_is_not_an_exception() -> None:
    assert not issubclass(SimulatedCrash, Exception)


def test_a_late_request_lands_before_the_given_call() -> None:
    inner, store = faulty(Fault(1, FaultKind.LATE, lands_after=2))
    with pytest.raises(StoreUnavailable):
        store.put("a", b"1", Create())
    with pytest.raises(ObjectNotFound):
        store.get("a")
    assert [call.key for call in store.held] == ["a"]
    assert store.get("a").data == b"1"
    assert is_there(inner, "a")


def test_a_refused_late_request_changes_nothing() -> None:
    inner, store = faulty(Fault(1, FaultKind.LATE))
    with pytest.raises(StoreUnavailable):
        store.put("a", b"same bytes", Create())
    store.put("a", b"same bytes", Create())
    landed = store.land()
    assert [type(row.error) for row in landed] == [AlreadyExists]
    assert inner.get("a").data == b"same bytes"


def test_a_late_request_lands_with_its_original_bytes() -> None:
    inner, store = faulty(Fault(1, FaultKind.LATE))
    buffer = bytearray(b"then")
    with pytest.raises(StoreUnavailable):
        store.put("a", buffer, Create())
    buffer[:] = b"now!"
    store.land()
    assert inner.get("a").data == b"then"


def test_a_lost_answer_may_have_been_a_refusal() -> None:
    inner, store = faulty(Fault(1, FaultKind.LOST_ANSWER))
    inner.put("a", b"0", Create())
    with pytest.raises(StoreUnavailable):
        store.put("a", b"1", Create())
    assert inner.get("a").data == b"0"


def test_a_predicate_chooses_calls_up_to_a_number_of_times() -> None:
    _, store = faulty(Fault(lambda call: call.key.endswith("manifest"), FaultKind.UNAVAILABLE, times=2))
    store.put("a", b"", Create())
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            store.put("manifest", b"", Create())
    store.put("manifest", b"", Create())


def test_a_fault_that_a_call_cannot_have_is_refused() -> None:
    _, store = faulty(Fault(1, FaultKind.CONFLICT))
    with pytest.raises(ValueError, match="fault `conflict` does not apply to "):
        store.get("a")


def test_another_process_can_act_between_calls() -> None:
    inner = MemoryStore()

    def other(call: Call) -> None:
        if call.number == 1:
            inner.put("a", b"theirs", Create())

    store = FaultyStore(inner, on_call=other)
    with pytest.raises(AlreadyExists):
        store.put("a", b"mine", Create())


# Uploads


def test_a_part_whose_answer_was_lost_is_in_the_object_once() -> None:
    inner, store = faulty(Fault(2, FaultKind.LOST_ANSWER), Fault(4, FaultKind.UNAVAILABLE))
    upload = store.start_upload("a")
    for part in (b"one", b"two"):
        with pytest.raises(StoreUnavailable):
            upload.write(part)
        upload.write(part)
    upload.write(b"two")
    upload.complete()
    assert inner.get("a").data == b"onetwotwo"


def test_sending_another_part_after_an_unknown_result_is_refused() -> None:
    _, store = faulty(Fault(2, FaultKind.LOST_ANSWER))
    upload = store.start_upload("a")
    with pytest.raises(StoreUnavailable):
        upload.write(b"one")
    with pytest.raises(ValueError, match="same part"):
        upload.write(b"two")


@pytest.mark.parametrize("kind", [FaultKind.LOST_ANSWER, FaultKind.LATE, FaultKind.UNAVAILABLE])
def test_completing_can_be_repeated(kind: FaultKind) -> None:
    inner, store = faulty(Fault(3, kind))
    upload = store.start_upload("a")
    upload.write(b"one")
    with pytest.raises(StoreUnavailable):
        upload.complete()
    assert upload.complete().etag == inner.get("a").etag
    store.land()
    assert inner.get("a").data == b"one"


def test_a_conflict_discards_the_parts_of_an_upload() -> None:
    _, store = faulty(Fault(3, FaultKind.CONFLICT))
    upload = store.start_upload("a")
    upload.write(b"one")
    with pytest.raises(UploadLost):
        upload.complete()


def test_a_late_start_leaves_an_orphaned_upload() -> None:
    inner, store = faulty(Fault(1, FaultKind.LATE))
    with pytest.raises(StoreUnavailable):
        store.start_upload("a")
    assert list(inner.list_uploads("")) == []
    store.land()
    assert [row.key for row in inner.list_uploads("")] == ["a"]


# Enumeration


def put_get_delete(store: ObjectStore) -> None:
    store.put("a", b"1", Create())
    store.get("a")
    store.delete("a")


def test_every_call_can_have_each_of_its_faults() -> None:
    _, clean = faulty()
    put_get_delete(clean)
    faults = list(every_fault(clean.calls))
    assert [(fault.at, fault.kind) for fault in faults] == [
        (number, kind) for number, operation in enumerate(["put", "get", "delete"], 1) for kind in kinds_of(operation)
    ]
    for fault in faults:
        inner, store = faulty(fault)
        with pytest.raises((SimulatedCrash, StoreUnavailable, ConditionUndecided), match=fault.kind.value):
            put_get_delete(store)
        store.land()
        assert is_there(inner, "a") is (
            fault.at == 2
            or (
                fault.at == 1
                and fault.kind in {FaultKind.CRASH_AFTER, FaultKind.CRASH_LATE, FaultKind.LATE, FaultKind.LOST_ANSWER}
            )
            or (fault.at == 3 and fault.kind in {FaultKind.CRASH_BEFORE, FaultKind.UNAVAILABLE})
        )


def increment(store: ObjectStore, name: str) -> None:
    """Count up until the own mark is in the object: repeat unknown results, and read before writing again."""
    while True:
        try:
            blob = store.get("counter")
            marks = blob.data.split()
            if name.encode() in marks:
                return
            store.put("counter", b" ".join([*marks, name.encode()]), Update(blob.etag))
        except (StoreUnavailable, ConditionUndecided):
            continue
        except PreconditionFailed:
            continue
        return


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(20))
def test_random_faults_never_corrupt_a_conditional_counter(seed: int) -> None:
    inner = MemoryStore()
    inner.put("counter", b"", Create())
    stores = [FaultyStore(inner, chaos=Chaos(Random(seed * 10 + number), 0.4)) for number in range(3)]
    names = [f"{turn}-{number}" for turn in range(10) for number in range(3)]
    for turn in range(10):
        for number, store in enumerate(stores):
            increment(store, f"{turn}-{number}")
    for store in stores:
        store.land()
    assert inner.get("counter").data.decode().split() == names


def test_the_same_seed_gives_the_same_faults() -> None:
    def story(seed: int) -> list[str]:
        _, store = faulty(chaos=Chaos(Random(seed), 0.5))
        said = []
        for number in range(50):
            try:
                store.put(f"{number}", b"", Create())
            except (StoreUnavailable, ConditionUndecided) as error:
                said.append(str(error))
        return [*said, *map(str, store.landed)]

    assert story(1) == story(1)
    assert story(1) != story(2)
    assert {kind.value for kind in Chaos(Random(0), 1).kinds} == {"unavailable", "lost answer", "late", "conflict"}
