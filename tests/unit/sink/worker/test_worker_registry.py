"""Workers that start, stop, sleep or share a name by mistake, and their objects in the bucket."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfold.errors import AccessDenied, KeyfoldError, StoreUnavailable
from keyfold.log import catalog
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Call, Chaos, Fault, FaultKind, FaultyStore
from keyfold_sink.status import UNKNOWN, RunState, TaskStatus, WorkerStatus
from keyfold_sink.worker.desired_state import DesiredStateDocument, sink_folder
from keyfold_sink.worker.worker_registry import WorkerRegistry
from tests.support.clocks import BOTH_WAYS, HOUR_MS, SkewedClock

FOLDER = sink_folder("topics", "users")


@dataclass
class World:
    """A bucket, and one time for all workers; the store may have another time of day."""

    clock: ManualClock = field(default_factory=ManualClock)
    store_clock: SkewedClock = field(init=False)
    store: MemoryStore = field(init=False)

    def __post_init__(self) -> None:
        self.store_clock = SkewedClock(self.clock)
        self.store = MemoryStore(clock=self.store_clock)

    def worker(self, name: str, seed: int | None = None) -> Worker:
        return Worker(self, name, int.from_bytes(name.encode()) if seed is None else seed)

    def objects(self) -> list[str]:
        return [info.key.removeprefix(FOLDER) for info in self.store.list(FOLDER)]


class Worker:
    """A worker that only takes part in the worker registry."""

    def __init__(self, world: World, name: str, seed: int) -> None:
        self.faulty = FaultyStore(world.store)
        random = Random(seed)
        self.document = DesiredStateDocument(self.faulty, FOLDER, world.clock, random)
        self.registry = WorkerRegistry(self.faulty, FOLDER, self.document, name, clock=world.clock, random=random)
        self.tasks: tuple[TaskStatus, ...] = (TaskStatus(0, RunState.RUNNING),)

    def status(self) -> WorkerStatus:
        return WorkerStatus(self.registry.worker_id, self.registry.slot, 1, "0.1", 0, self.tasks)

    def turn(self) -> None:
        self.registry.update(self.status)

    def sees(self) -> dict[str, int]:
        return {worker.worker_id: worker.slot for worker in self.registry.others(fresh=True)}


def test_workers_see_each_other_with_distinct_slots() -> None:
    world = World()
    a, b, c = (world.worker(name) for name in "abc")
    for worker in (a, b, c):
        worker.turn()
    world.clock.advance(2000)
    for worker in (a, b, c):
        worker.turn()
    assert a.sees() == {"b": 1, "c": 2}
    assert c.sees() == {"a": 0, "b": 1}
    assert a.registry.slot == 0


def test_a_worker_that_leaves_removes_its_object() -> None:
    world = World()
    a, b = world.worker("a"), world.worker("b")
    a.turn()
    b.turn()
    a.registry.leave()
    assert world.objects() == ["orders.json", "workers/b.json"]
    assert b.sees() == {}
    assert world.worker("c").document.refresh().slots == {"b": 1}


def test_a_killed_worker_is_removed_with_its_object_after_90_seconds() -> None:
    world = World()
    a, b = world.worker("a"), world.worker("b")
    a.turn()
    b.turn()
    for _ in range(30):
        world.clock.advance(3000)
        b.turn()
    assert b.sees() == {"a": 0}
    for _ in range(12):
        world.clock.advance(3000)
        b.turn()
    assert b.sees() == {}
    assert world.objects() == ["orders.json", "workers/b.json"]
    c = world.worker("c")
    c.turn()
    assert c.registry.slot == 0, "the free slot is taken again"


def test_objects_of_replaced_pods_do_not_accumulate() -> None:
    world = World()
    for number in range(30):
        world.worker(f"pod-{number}").turn()
        world.clock.advance(100_000)
    assert len(world.objects()) == 2
    assert len(world.worker("x").document.refresh().slots) <= 2


def test_a_suspended_worker_returns_after_it_was_removed() -> None:
    world = World()
    a, b = world.worker("a"), world.worker("b")
    a.turn()
    for _ in range(40):
        world.clock.advance(5000)
        b.turn()
    assert b.sees() == {}
    a.document.refresh()
    a.turn()
    world.clock.advance(6000)
    a.turn()
    assert a.registry.slot != UNKNOWN
    assert b.sees() == {"a": a.registry.slot}


@pytest.mark.parametrize("by_ms", BOTH_WAYS)
def test_a_worker_that_writes_is_alive_although_the_stores_clock_jumps(by_ms: int) -> None:
    """A status written before a jump forward looks an hour old, and must not free its worker's slot."""
    world = World()
    a, b = world.worker("a"), world.worker("b")
    for _ in range(40):
        world.clock.advance(3000)
        a.turn()
        b.turn()
        assert a.sees() == {"b": 1}
    world.store_clock.jump(by_ms)
    for _ in range(40):
        assert a.sees() == {"b": 1}
        assert b.sees() == {"a": 0}
        world.clock.advance(3000)
        a.turn()
        b.turn()
    assert world.objects() == ["orders.json", "workers/a.json", "workers/b.json"]


def test_a_killed_worker_is_removed_in_time_although_the_stores_clock_went_back() -> None:
    world = World()
    a, b = world.worker("a"), world.worker("b")
    a.turn()
    b.turn()
    world.clock.advance(6000)
    b.turn()
    world.store_clock.jump(-HOUR_MS)
    for _ in range(45):
        world.clock.advance(3000)
        b.turn()
    assert b.sees() == {}
    assert world.objects() == ["orders.json", "workers/b.json"]


def test_the_age_of_a_workers_status_grows_although_the_stores_clock_went_back() -> None:
    """A caller that waits for all tasks to end must not wait an hour for a dead worker."""
    world = World()
    a, b = world.worker("a"), world.worker("b")
    a.turn()
    b.turn()
    assert b.sees() == {"a": 0}
    world.store_clock.jump(-HOUR_MS)
    world.clock.advance(45_000)
    assert b.sees() == {"a": 0}
    assert 43_000 <= b.registry.silent_ms("a") <= 47_000


def test_a_restarted_container_takes_over_its_entry() -> None:
    world = World()
    first = world.worker("pod-1", seed=1)
    first.turn()
    again = world.worker("pod-1", seed=2)
    again.turn()
    assert again.registry.worker_id == "pod-1"
    assert again.registry.slot == 0
    assert world.objects() == ["orders.json", "workers/pod-1.json"]


def test_two_processes_with_the_same_id_are_both_listed() -> None:
    world = World()
    first, second = world.worker("pod-1", seed=1), world.worker("pod-1", seed=2)
    first.turn()
    second.turn()
    for _ in range(10):
        world.clock.advance(31_000)
        first.turn()
        second.turn()
    assert second.registry.worker_id == "pod-1"
    assert first.registry.worker_id.startswith("pod-1~")
    assert first.sees().keys() == {"pod-1"}
    assert second.sees().keys() == {first.registry.worker_id}
    assert first.registry.slot != second.registry.slot


def writes(faulty: FaultyStore) -> int:
    return sum(call.operation == "put" and "workers/" in call.key for call in faulty.calls)


def test_a_changed_status_is_written_at_a_limited_rate() -> None:
    world = World()
    a = world.worker("a")
    a.turn()
    a.turn()
    before = writes(a.faulty)
    for second in range(100):
        world.clock.advance(1000)
        a.turn()
        if second % 10 == 0:
            a.tasks = (TaskStatus(0, RunState.RUNNING, reported_ms=second),)  # a time alone is no change
    assert writes(a.faulty) - before == 3
    before = writes(a.faulty)
    for second in range(100):
        world.clock.advance(1000)
        a.tasks = (TaskStatus(0, RunState.RUNNING, values={"records": second}),)
        a.turn()
    assert writes(a.faulty) - before == 20


def test_important_changes_are_written_within_a_second() -> None:
    world = World()
    a, b = world.worker("a"), world.worker("b")
    a.turn()
    a.turn()
    world.clock.advance(1000)
    a.tasks = (TaskStatus(0, RunState.FAILED, "why"),)
    a.turn()
    (seen,) = b.registry.others(fresh=True)
    assert seen.tasks[0].state is RunState.FAILED


@pytest.mark.parametrize("kind", [FaultKind.LOST_ANSWER, FaultKind.LATE, FaultKind.UNAVAILABLE])
def test_a_lost_answer_is_recovered_in_the_next_round(kind: FaultKind) -> None:
    world = World()
    a, b = world.worker("a"), world.worker("b")
    a.turn()

    def is_status(call: Call) -> bool:
        return call.operation == "put" and "workers/" in call.key

    a.faulty.add(Fault(is_status, kind, lands_after=1))
    a.tasks = ()
    world.clock.advance(10_000)
    with pytest.raises(StoreUnavailable):
        a.turn()
    a.turn()
    assert a.registry.worker_id == "a"
    assert b.registry.others(fresh=True)[0].tasks == ()


@pytest.mark.parametrize("kind", [FaultKind.LOST_ANSWER, FaultKind.LATE, FaultKind.UNAVAILABLE])
def test_a_deletion_without_an_answer_is_repeated(kind: FaultKind) -> None:
    """The deletion concerns a leaving worker and a killed one; it is repeated."""
    world = World()
    a, b, c = (world.worker(name) for name in "abc")
    for worker in (a, b, c):
        worker.turn()
    a.faulty.add(Fault(lambda call: call.operation == "delete", kind))
    b.faulty.add(Fault(lambda call: call.operation == "delete", kind))
    with pytest.raises(StoreUnavailable):
        a.registry.leave()
    for _ in range(60):
        world.clock.advance(3000)
        with contextlib.suppress(StoreUnavailable):
            b.turn()
    b.faulty.land()
    assert b.sees() == {}
    assert world.objects() == ["orders.json", "workers/b.json"]
    assert b.document.refresh().slots == {"b": 1}


def test_a_worker_that_returned_recovers_from_a_late_deletion() -> None:
    """A pod leaves and returns under its name, and only then the deletion of its first object lands."""
    world = World()
    first, b = world.worker("pod-1", seed=1), world.worker("b")
    first.turn()
    b.turn()
    first.faulty.add(Fault(lambda call: call.operation == "delete", FaultKind.LATE))
    with pytest.raises(StoreUnavailable):
        first.registry.leave()
    again = world.worker("pod-1", seed=2)
    again.turn()
    first.faulty.land()
    assert b.sees() == {}
    for _ in range(12):
        world.clock.advance(3000)
        b.turn()
        again.turn()
    assert b.sees() == {"pod-1": again.registry.slot}
    assert again.sees() == {"b": b.registry.slot}
    assert again.registry.slot not in {UNKNOWN, b.registry.slot}


def test_other_workers_keep_their_last_known_status_during_an_outage() -> None:
    world = World()
    a, b = world.worker("a"), world.worker("b")
    a.turn()
    b.turn()
    assert a.sees() == {"b": 1}
    a.faulty.add(Fault(lambda _call: True, FaultKind.UNAVAILABLE, times=1000))
    world.clock.advance(3_600_000)
    with pytest.raises(StoreUnavailable):
        a.registry.others()
    assert [worker.worker_id for worker in a.registry.known_others()] == ["b"]


def test_unchanged_statuses_are_not_fetched_again() -> None:
    world = World()
    a, b = world.worker("a"), world.worker("b")
    b.turn()
    a.sees()
    before = len(a.faulty.calls)
    a.sees()
    assert [call.operation for call in a.faulty.calls[before:]] == ["get", "list"]
    a.registry.others()
    assert len(a.faulty.calls) == before + 2, "within a second nothing is asked"


def test_an_unreadable_status_does_not_hide_the_others() -> None:
    world = World()
    a, b, c = (world.worker(name) for name in "abc")
    for worker in (b, c):
        worker.turn()
    key = f"{FOLDER}workers/b.json"
    world.store.delete(key)
    world.store.put(key, b'{"status": {"newer": 1}}', Create())
    assert a.sees() == {"c": 1}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([200, 5000, 40_000])), max_size=60),
    st.integers(0, 10_000),
    st.sampled_from([0.0, 0.1, 0.3]),
)
def test_every_surviving_worker_is_seen_by_all_with_its_own_slot(
    turns: list[tuple[int, int]], seed: int, rate: float
) -> None:
    world = World()
    workers = [world.worker(f"pod-{number}", seed=seed + number) for number in range(4)]
    for number, worker in enumerate(workers):
        worker.faulty._chaos = Chaos(Random(seed + 100 + number), rate)
    for at, wait_ms in turns:
        world.clock.advance(wait_ms)
        try:
            workers[at].document.refresh()
            workers[at].turn()
        except KeyfoldError:
            continue
    for worker in workers:
        worker.faulty._chaos = None
        worker.faulty.land()
    living = workers[:3]
    for _ in range(40):
        world.clock.advance(4000)
        for worker in living:
            worker.document.refresh()
            worker.turn()
    slots = {worker.registry.worker_id: worker.registry.slot for worker in living}
    assert sorted(slots) == ["pod-0", "pod-1", "pod-2"]
    assert len(set(slots.values())) == 3
    for worker in living:
        assert worker.sees() == {name: slot for name, slot in slots.items() if name != worker.registry.worker_id}
    assert len(world.objects()) == 4


class NoDeleting(MemoryStore):
    """A bucket in which this sink may delete nothing."""

    def delete(self, key: str) -> None:
        raise AccessDenied(key, "s3:DeleteObject is not allowed")


def test_a_missing_right_to_delete_blocks_nothing() -> None:
    world = World()
    world.store = NoDeleting(clock=world.clock)
    a, b = world.worker("a"), world.worker("b")
    a.turn()
    b.turn()
    for _ in range(40):
        world.clock.advance(5000)
        b.turn()
    assert b.sees() == {}
    c = world.worker("c")
    c.turn()
    assert c.registry.slot == 0
    with pytest.raises(AccessDenied):
        b.registry.leave()
    assert c.document.refresh().slots == {"c": 0}


def test_objects_of_workers_are_not_taken_for_a_topics_log() -> None:
    """Listing, verification and gc find logs by the folders of topics."""
    world = World()
    a = world.worker("a")
    a.turn()
    assert world.objects()
    assert list(catalog.places(world.store, "topics")) == []
    assert catalog.topics(world.store, "topics") == []
