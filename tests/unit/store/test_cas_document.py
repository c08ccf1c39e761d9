"""Objects changed by compare-and-swap: each change is made once, whatever the store answers and others write."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

import pytest

from keyfold.errors import ConditionUndecided, StoreUnavailable
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import Create, ObjectStore, Update
from keyfold.store.cas_document import CasDocument, DocumentBody, document_retry, swap
from keyfold.store.documents import DocumentUnreadable
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Call, Fault, FaultKind, FaultyStore
from tests.support.untyped import untyped

KEY = "topics/_documents/one.json"


def document(store: ObjectStore, seed: int = 1) -> CasDocument:
    return CasDocument(store, KEY, ManualClock(), Random(seed))


def memory() -> MemoryStore:
    return MemoryStore(clock=ManualClock())


def add(name: str) -> Callable[[DocumentBody | None], DocumentBody]:
    return lambda body: {**(body or {}), "names": [*untyped((body or {}).get("names", ())), name]}


def is_put(call: Call) -> bool:
    return call.operation == "put"


def test_a_document_is_json_with_its_version_and_change_ids() -> None:
    store = memory()
    document(store).change(add("a"))
    found = document(store, 2).change(add("b"))
    assert (found.version, found.body) == (2, {"names": ["a", "b"]})
    stored = json.loads(store.get(KEY).data)
    assert list(stored) == ["version", "names", "changes"]
    assert stored == {"version": 2, "names": ["a", "b"], "changes": list(found.changes)}
    assert document(store).read() == found


def test_unknown_fields_are_preserved() -> None:
    store = memory()
    store.put(KEY, json.dumps({"version": 7, "newer": {"x": [1]}, "changes": ["c"]}).encode(), Create())
    document(store).change(add("a"))
    stored = json.loads(store.get(KEY).data)
    assert (stored["version"], stored["newer"], stored["names"]) == (8, {"x": [1]}, ["a"])
    assert stored["changes"][0] == "c"


def test_a_change_without_effect_is_not_written() -> None:
    store = memory()
    assert document(store).change(lambda _: None).body is None
    document(store).change(add("a"))
    before = store.get(KEY).etag
    assert document(store).change(lambda body: body).version == 1
    assert document(store).change(lambda _: None).version == 1
    assert store.get(KEY).etag == before


@pytest.mark.parametrize("kind", [FaultKind.LOST_ANSWER, FaultKind.UNAVAILABLE, FaultKind.LATE, FaultKind.CONFLICT])
@pytest.mark.parametrize("exists", [True, False])
def test_a_write_without_an_answer_is_made_once(kind: FaultKind, *, exists: bool) -> None:
    store = memory()
    if exists:
        document(store).change(add("a"))
    document(FaultyStore(store, [Fault(is_put, kind, lands_after=2)]), 2).change(add("b"))
    assert document(store).read().body == {"names": ["a", "b"] if exists else ["b"]}


def test_a_change_that_landed_without_an_answer_is_not_made_again_after_others_wrote() -> None:
    store = memory()
    puts: list[Call] = []

    def others(call: Call) -> None:
        puts.extend([call] * is_put(call))
        if len(puts) == 2 and is_put(call):
            document(store, 9).change(add("b"))

    document(FaultyStore(store, [Fault(is_put, FaultKind.LOST_ANSWER)], on_call=others)).change(add("a"))
    assert document(store).read().body == {"names": ["a", "b"]}


def test_an_undecided_write_is_reported_as_possibly_made() -> None:
    away = FaultyStore(memory(), [Fault(is_put, FaultKind.CONFLICT, times=10_000)])
    with pytest.raises(StoreUnavailable, match="no certain answer") as raised:
        document(away).change(add("a"))
    assert "may still take effect" in str(raised.value.hint)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"version": 1}', b'{"version": "x", "changes": []}'])
def test_an_unrelated_object_is_not_read_as_a_document(data: bytes) -> None:
    store = memory()
    store.put(KEY, data, Create())
    with pytest.raises(DocumentUnreadable):
        document(store).read()


def test_a_removed_document_is_created_again() -> None:
    store = memory()
    document(store).change(add("a"))
    document(store).remove()
    assert document(store).read().body is None
    assert document(store).change(add("b")).version == 1


# swap


def test_a_swap_is_refused_if_another_version_or_no_object_is_there() -> None:
    store = memory()
    first = swap(store, KEY, b"1", "")
    assert first == store.get(KEY).etag
    assert swap(store, KEY, b"2", "") is None
    second = swap(store, KEY, b"2", first)
    assert second is not None
    assert swap(store, KEY, b"3", first) is None
    store.delete(KEY)
    assert swap(store, KEY, b"3", second) is None


def test_a_swap_is_sent_once_without_a_retry_policy_and_repeated_unchanged_with_one() -> None:
    clock = ManualClock()
    once = FaultyStore(memory(), [Fault(is_put, FaultKind.CONFLICT)])
    with pytest.raises(ConditionUndecided):
        swap(once, KEY, b"1", "")
    etag = swap(once, KEY, b"1", "", document_retry(clock, Random(1)))
    late = FaultyStore(once, [Fault(is_put, FaultKind.LOST_ANSWER)])
    assert swap(late, KEY, b"2", etag or "", RetryPolicy(clock, Random(2))) is None
    assert once.get(KEY).data == b"2", "the refusal was about the attempt that had landed"
    assert [call.mode for call in late.calls] == [Update(etag or "")] * 2
