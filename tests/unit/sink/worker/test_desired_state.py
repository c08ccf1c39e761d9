"""Desired state: written once whatever the store answers, followed by all workers, applied once by each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfold.errors import KeyfoldError, StoreUnavailable
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import Create, ObjectStore, Update
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Call, Fault, FaultKind, FaultyStore
from keyfold_sink.status import RunState
from keyfold_sink.worker import desired_state
from keyfold_sink.worker.desired_state import (
    Change,
    DesiredState,
    DesiredStateDocument,
    DesiredStateUnreadable,
    PendingWork,
    Restart,
    RestartScope,
    decode,
    encode,
    sink_folder,
    to_do,
)

FOLDER = sink_folder("topics", "users")
KEY = f"{FOLDER}orders.json"


def document(store: ObjectStore, seed: int = 0, clock: ManualClock | None = None) -> DesiredStateDocument:
    return DesiredStateDocument(store, FOLDER, clock or ManualClock(), Random(seed))


def memory() -> MemoryStore:
    return MemoryStore(clock=ManualClock(), content_etags=True)


def is_put(call: Call) -> bool:
    return call.operation == "put"


# What is written


def test_a_sink_without_a_desired_state_runs() -> None:
    assert document(memory()).refresh() == DesiredState(0, RunState.RUNNING)


def test_a_change_is_seen_by_every_worker() -> None:
    store = memory()
    first, second = document(store, 1), document(store, 2)
    first.change(desired_state.target(RunState.PAUSED))
    assert second.refresh().state is RunState.PAUSED
    second.change(desired_state.target(RunState.RUNNING))
    assert first.refresh().state is RunState.RUNNING
    assert first.refresh().version == 2


def test_requesting_the_present_state_writes_nothing() -> None:
    store = memory()
    first = document(store)
    before = first.change(desired_state.target(RunState.PAUSED))
    assert first.change(desired_state.target(RunState.PAUSED)) == before


def test_a_desired_state_is_json_and_keeps_fields_of_a_newer_version() -> None:
    asked = DesiredState(
        version=7,
        state=RunState.STOPPED,
        state_since=3,
        flushes=2,
        restarts=(Restart(1, RestartScope.ALL), Restart(2, RestartScope.ONE, "pod-1:8083", 3)),
        slots={"pod-1:8083": 0, "pod-2:8083": 1},
        changes=("a", "b"),
        unknown={"newer": [1, 2]},
    )
    assert decode(encode(asked), KEY) == asked


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'"RUNNING"', b"\xff", encode(DesiredState()).replace(b'"RUNNING"', b'"FAILED"')]
)
def test_an_unreadable_desired_state_is_refused_and_the_last_known_one_holds(data: bytes) -> None:
    store = memory()
    mine = document(store)
    mine.change(desired_state.target(RunState.PAUSED))
    store.put(KEY, data, Update(store.get(KEY).etag))
    with pytest.raises(DesiredStateUnreadable, match="orders"):
        mine.refresh()
    assert mine.known is not None
    assert mine.known.state is RunState.PAUSED


@pytest.mark.parametrize("name", ["users", "a/b", "..", "größe 1", "%2F"])
def test_any_sink_name_is_one_folder(name: str) -> None:
    folder = sink_folder("topics", name)
    assert folder.startswith("topics/_sinks/")
    assert folder.count("/") == 3
    assert "/../" not in folder


def test_the_folder_is_at_the_top_without_a_topics_dir() -> None:
    assert sink_folder("", "users") == "_sinks/users/"


# Answers that are lost


@pytest.mark.parametrize("kind", [FaultKind.LOST_ANSWER, FaultKind.UNAVAILABLE, FaultKind.LATE, FaultKind.CONFLICT])
@pytest.mark.parametrize("first", [True, False])
def test_a_change_without_an_answer_is_made_once(kind: FaultKind, *, first: bool) -> None:
    store = memory()
    if not first:
        document(store, 9).change(desired_state.flush)
    faulty = FaultyStore(store, [Fault(is_put, kind, lands_after=2)])
    document(faulty, 1).change(desired_state.flush)
    assert document(store).refresh().flushes == (1 if first else 2)


def test_a_change_whose_answer_was_lost_is_not_repeated_over_later_changes() -> None:
    """The first worker pauses without an answer and the second one resumes; the first must not pause again."""
    store = memory()
    second = document(store, 2)
    second.change(desired_state.flush)  # there is an object
    puts: list[Call] = []

    def resume_between(call: Call) -> None:
        puts.extend([call] * (call.operation == "put"))
        if len(puts) == 2:
            second.change(desired_state.target(RunState.RUNNING))

    faulty = FaultyStore(store, [Fault(is_put, FaultKind.LOST_ANSWER)], on_call=resume_between)
    document(faulty, 1).change(desired_state.target(RunState.PAUSED))
    assert [call.operation for call in faulty.calls] == ["get", "put", "put", "get"]
    assert document(store).refresh().state is RunState.RUNNING


def test_an_unreachable_store_is_reported_and_the_known_state_is_kept() -> None:
    faulty = FaultyStore(memory())
    mine = document(faulty)
    mine.change(desired_state.target(RunState.PAUSED))
    faulty.add(Fault(lambda _call: True, FaultKind.UNAVAILABLE, times=10_000))
    with pytest.raises(StoreUnavailable):
        mine.refresh()
    with pytest.raises(StoreUnavailable):
        mine.change(desired_state.target(RunState.RUNNING))
    assert mine.known is not None
    assert mine.known.state is RunState.PAUSED


def test_a_change_without_an_answer_for_too_long_may_have_been_made() -> None:
    faulty = FaultyStore(memory(), [Fault(is_put, FaultKind.LOST_ANSWER, times=10_000)])
    with pytest.raises(StoreUnavailable, match="the request may still take effect"):
        document(faulty).change(desired_state.flush)


def test_a_deleted_desired_state_is_restored() -> None:
    store = memory()
    mine = document(store)
    mine.change(desired_state.target(RunState.PAUSED))
    store.delete(KEY)
    assert mine.refresh().state is RunState.PAUSED
    assert document(store, 5).refresh().state is RunState.PAUSED


def test_a_desired_state_of_an_older_version_is_replaced() -> None:
    store = memory()
    mine = document(store)
    mine.change(desired_state.flush)
    old = store.get(KEY).data
    mine.change(desired_state.target(RunState.STOPPED))
    store.put(KEY, old, Update(store.get(KEY).etag))
    assert mine.refresh().state is RunState.STOPPED
    assert document(store, 5).refresh().state is RunState.STOPPED


def test_concurrent_changes_of_two_workers_are_both_made() -> None:
    store = memory()
    books = [document(store, seed) for seed in range(8)]

    def flush_often(mine: DesiredStateDocument) -> None:
        for _ in range(10):
            mine.change(desired_state.flush)

    threads = [threading.Thread(target=flush_often, args=(mine,)) for mine in books]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert document(store).refresh().flushes == 80


def test_an_older_answer_does_not_replace_a_newer_known_state() -> None:
    mine = document(memory())
    mine.change(desired_state.flush)
    mine._learn(DesiredState())  # a look of another thread that began before
    assert mine.known is not None
    assert mine.known.version == 1


# What is to be done


def test_requests_made_before_a_worker_started_are_not_applied() -> None:
    now = DesiredState(5, flushes=3, restarts=(Restart(1, RestartScope.ALL),))
    assert to_do(now, now, "a") == PendingWork(RunState.RUNNING, flush=False, restarts=())


def test_a_restart_of_one_task_concerns_only_its_worker() -> None:
    asked = desired_state.restart(RestartScope.ONE, "b", 1)(DesiredState(1))
    assert to_do(DesiredState(1), asked, "a").restarts == ()
    assert to_do(DesiredState(1), asked, "b").restarts == (Restart(1, RestartScope.ONE, "b", 1),)


def test_restarts_dropped_from_the_list_become_a_full_restart() -> None:
    now = DesiredState()
    for _ in range(100):
        now = desired_state.restart(RestartScope.ONE, "b", 1)(now)
    assert len(now.restarts) == 64
    assert to_do(DesiredState(), now, "a").restarts == (Restart(100, RestartScope.ALL),)


def test_slots_are_the_lowest_free_ones() -> None:
    now = DesiredState()
    for worker in "abc":
        now = desired_state.take_slot(worker)(now)
    assert now.slots == {"a": 0, "b": 1, "c": 2}
    now = desired_state.take_slot("d")(desired_state.free_slots(["b", "x"])(now))
    assert now.slots == {"a": 0, "c": 2, "d": 1}
    assert desired_state.take_slot("d")(now) is now
    assert desired_state.free_slots(["x"])(now) is now


# Interleavings


@dataclass
class ReadingWorker:
    """A worker that reads the state now and then, and counts what it applies."""

    document: DesiredStateDocument
    name: str
    done: DesiredState | None = None
    flushes: int = 0
    restarts: list[int] = field(default_factory=list)

    def look(self) -> None:
        try:
            self.document.refresh()
        except KeyfoldError:
            return
        finally:
            self.apply()

    def apply(self) -> None:
        newest = self.document.known
        if newest is None or (self.done is not None and newest.version <= self.done.version):
            return
        todo = to_do(self.done or newest, newest, self.name)
        self.flushes += todo.flush
        self.restarts += [asked.number for asked in todo.restarts]
        self.done = newest


CHANGES: dict[str, Change] = {
    "pause": desired_state.target(RunState.PAUSED),
    "resume": desired_state.target(RunState.RUNNING),
    "stop": desired_state.target(RunState.STOPPED),
    "flush": desired_state.flush,
    "restart all": desired_state.restart(RestartScope.ALL),
    "restart one": desired_state.restart(RestartScope.ONE, "worker 1", 0),
}
KINDS = (FaultKind.LOST_ANSWER, FaultKind.UNAVAILABLE, FaultKind.LATE, FaultKind.CONFLICT)
WHAT = st.tuples(st.integers(0, 2), st.sampled_from(["look", *CHANGES]))
STEPS = st.tuples(
    WHAT,
    st.sampled_from([None, *KINDS]),
    st.integers(1, 6),
    st.lists(st.none() | WHAT, max_size=4),  # what others do before each of its calls
)


class Workers:
    """Three workers over one store, each with its own faults."""

    def __init__(self, store: MemoryStore) -> None:
        self.faulties = [FaultyStore(store) for _ in range(3)]
        self.workers = [
            ReadingWorker(document(faulty, seed), f"worker {seed}") for seed, faulty in enumerate(self.faulties)
        ]
        self.asked: list[str] = []

    def act(self, at: int, what: str) -> None:
        worker = self.workers[at]
        if what == "look":
            worker.look()
        else:
            worker.document.change(CHANGES[what])  # one fault is always overcome
            self.asked.append(what)
            worker.apply()

    def interrupted(self, at: int, what: str, between: list[tuple[int, str] | None]) -> None:
        """Let one worker act, and the others before each of its calls."""
        waiting = list(between)

        def others(_call: Call) -> None:
            act = waiting.pop(0) if waiting else None
            if act is not None and act[0] != at:
                self.act(*act)

        self.faulties[at].on_call = others
        self.act(at, what)
        self.faulties[at].on_call = None


@pytest.mark.sharded
@settings(max_examples=200, deadline=None)
@given(st.lists(STEPS, max_size=20), st.booleans())
def test_every_worker_reaches_the_newest_state_and_applies_each_request_once(
    steps: list[tuple[tuple[int, str], FaultKind | None, int, list[tuple[int, str] | None]]],
    content_etags: bool,
) -> None:
    store = MemoryStore(clock=ManualClock(), content_etags=content_etags)
    store.put(KEY, encode(DesiredState()), Create())
    workers = Workers(store)
    for worker in workers.workers:
        worker.look()
    for (at, what), kind, lands_after, between in steps:
        if kind is not None:
            workers.faulties[at].add(Fault(is_put, kind, lands_after=lands_after))
        workers.interrupted(at, what, between)
    for faulty in workers.faulties:
        faulty.land()
    for worker in workers.workers:
        worker.look()
    newest = document(store).refresh()
    assert newest.flushes == workers.asked.count("flush")
    assert newest.restart_number == workers.asked.count("restart all") + workers.asked.count("restart one")
    for worker in workers.workers:
        assert worker.done == newest
        assert worker.flushes <= newest.flushes
        assert (worker.flushes > 0) == (newest.flushes > 0)
        mine = [r.number for r in newest.restarts if r.scope is RestartScope.ALL or r.worker_id == worker.name]
        assert worker.restarts == mine
    if not any(between for *_, between in steps):
        states = [what for what in workers.asked if what in {"pause", "resume", "stop"}]
        wanted = {"pause": RunState.PAUSED, "resume": RunState.RUNNING, "stop": RunState.STOPPED}
        assert newest.state is (wanted[states[-1]] if states else RunState.RUNNING)


def test_a_change_has_no_state_of_its_own() -> None:
    """A change may be applied again to a newer state, so it must not keep results of the first time."""
    change: Callable[[DesiredState], DesiredState] = desired_state.restart(RestartScope.ALL)
    first = change(DesiredState())
    assert change(first).restart_number == 2
    assert first.restart_number == 1
