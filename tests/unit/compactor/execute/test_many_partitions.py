"""Many logs in one run, a huge one among them, and several runs over the same logs at once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from keyfold.log.names import Place
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.throttle import ThrottleLost
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.counting import CountedStore
from keyfold_compactor.decide.plan import distribute
from keyfold_compactor.decide.work import LogJob, MapAnswer, UnitAnswer, UnitJob
from keyfold_compactor.execute.executor import Done
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.execute.parallel import some_in_parallel
from keyfold_compactor.execute.run import Run, RunSettings
from keyfold_compactor.report.report import PartitionOutcome, RunReport
from tests.support.cleaning import EAGER, SMALL, Sink, last_per_key, load, read_all, record, retry_policy

HUGE = Place("topics", "users", 0)
SETTINGS = replace(EAGER, segment_bytes=4_000, encoding=SMALL)
MIB = 1 << 20
LOST_CLAIM_REQUESTS = 6
"""A look, a try, and what it takes to see who has won and to give a lease back."""


def places(count: int) -> list[Place]:
    return [Place("topics", "users", partition) for partition in range(1, count + 1)]


def fill(store: MemoryStore, place: Place, segments: int = 1, records: int = 10) -> None:
    """Every key twice, one after the other: half of each segment is garbage."""
    sink = Sink.open(store, place, clock=SystemClock())
    for base in range(0, segments * records, records):
        sink.append([record(n, f"k{n // 2}", "v" * 200) for n in range(base, base + records)])


@dataclass
class Watched(LocalExecutor):
    """Notes what it is asked for, and what the smaller logs have committed by then."""

    store: MemoryStore
    small: Sequence[Place] = ()
    slots: int = 4
    mapped: list[list[Place]] = field(default_factory=list)
    portions: list[list[list[UnitJob]]] = field(default_factory=list)
    clean_before: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.store, retry_policy(SystemClock(), Random(1)), slots=self.slots)

    def map_logs(self, jobs: Iterable[LogJob], done: Done = lambda _: None) -> list[MapAnswer]:
        jobs = list(jobs)
        self.mapped.append([j.place for j in jobs])
        return super().map_logs(jobs, done)

    def rewrite(self, portions: Sequence[Sequence[UnitJob]], done: Done = lambda _: None) -> list[UnitAnswer]:
        self.portions.append([list(portion) for portion in portions])
        manifests = [load(self.store, place) for place in self.small]
        self.clean_before.append(sum(m.first_dirty_offset == m.next_offset for m in manifests))
        return super().rewrite(portions, done)


def new_run(store: MemoryStore | CountedStore, executor: LocalExecutor, seed: int = 1, **changes: int) -> Run:
    settings = RunSettings(
        settings_of=lambda *_: SETTINGS,
        holder=f"run-{seed}",
        retry_timeout_s=5.0,
        threads=4,
        **changes,  # type: ignore[arg-type]  # fields by name, of any type
    )
    return Run(store, settings, lambda _: executor, clock=SystemClock(), random=Random(seed))


def with_a_huge_one(count: int) -> tuple[MemoryStore, Watched]:
    store = MemoryStore()
    fill(store, HUGE, segments=40)
    for place in places(count):
        fill(store, place)
    return store, Watched(store, places(count))


def test_small_logs_do_not_wait_for_one_that_fills_a_batch() -> None:
    store, executor = with_a_huge_one(30)
    report = new_run(store, executor, batch_bytes=30_000).clean([HUGE, *places(30)])
    assert report.exit_code == 0
    assert executor.mapped[-1] == [HUGE]
    assert sorted(p.partition for batch in executor.mapped[:-1] for p in batch) == list(range(1, 31))
    assert executor.clean_before[-1] == 30
    assert load(store, HUGE).first_dirty_offset == load(store, HUGE).next_offset


def test_small_logs_of_a_batch_wait_for_the_first_part_of_a_larger_one_and_no_longer() -> None:
    store, executor = with_a_huge_one(30)
    report = new_run(store, executor, pass_bytes=20_000, shares=1).clean([HUGE, *places(30)])
    assert report.exit_code == 0
    assert len(executor.mapped) == 1
    assert len(executor.portions) > 3
    assert executor.clean_before[0] == 0
    assert set(executor.clean_before[1:]) == {30}


def test_the_tasks_of_a_batch_move_about_the_same_bytes_though_one_log_is_huge() -> None:
    store, executor = with_a_huge_one(100)
    run = new_run(store, executor, shares=1, task_bytes_min=1)  # so little is one task a slot otherwise
    assert run.clean([HUGE, *places(100)]).exit_code == 0
    (portions,) = executor.portions
    moved = [[_moved_bytes(unit) for unit in portion] for portion in portions]
    loads = [sum(portion) for portion in moved]
    assert len(portions) == 16
    assert {unit.log for portion in portions for unit in portion} == set(range(101))
    assert max(loads) - min(loads) <= max(map(max, moved))
    assert max(loads) <= 1.15 * sum(loads) / len(loads)


def _moved_bytes(unit: UnitJob) -> int:
    return sum(
        s.entry.size_bytes + s.entry.size_bytes * s.kept_count // s.entry.record_count + 2 * s.entry.index_size_bytes
        for s in unit.sources
    )


def test_bins_differ_by_no_more_than_a_small_log_where_there_are_thousands() -> None:
    """One log of 10 GiB in units of 128 MiB among five thousand of 1 MiB."""
    costs = [128 * MIB] * 80 + [MIB] * 5_000
    for tasks in (8, 16, 100):
        loads = [sum(costs[at] for at in portion) for portion in distribute(costs, tasks)]
        assert len(loads) == tasks
        assert max(loads) - min(loads) <= (128 * MIB if tasks > 80 else MIB)


def test_a_task_runs_large_items_singly_and_small_ones_concurrently() -> None:
    lock, barrier = threading.Lock(), threading.Barrier(4, timeout=60)
    busy: list[int] = []
    seen: list[tuple[int, int]] = []

    def work(item: int) -> int:
        with lock:
            busy.append(item)
            seen.append((item, len(busy)))
        if item < 100:
            barrier.wait()  # ends only with four of them side by side
        with lock:
            busy.remove(item)
        return -item

    items = [100, 1, 2, 300, 3, 4, 5, 6, 7, 8]
    assert list(some_in_parallel(work, items, lambda item: item < 100, 4)) == [
        -100,
        -300,
        -1,
        -2,
        -3,
        -4,
        -5,
        -6,
        -7,
        -8,
    ]
    assert seen[:2] == [(100, 1), (300, 1)]
    assert max(count for _, count in seen) == 4


def test_an_ended_task_starts_no_further_item() -> None:
    begun: list[int] = []
    before = set(threading.enumerate())

    def work(item: int) -> int:
        begun.append(item)
        if item == 3:
            raise ThrottleLost("gone")
        threading.Event().wait(0.01)
        return item

    with pytest.raises(ThrottleLost, match="gone"):
        list(some_in_parallel(work, range(1, 1_000), lambda _: True, 2))
    assert len(begun) < 100
    results = some_in_parallel(work, range(10, 1_000), lambda _: True, 2)
    assert next(results) == 10
    results.close()  # type: ignore[attr-defined]  # the store is in S3
    assert len(begun) < 200
    assert not any(t.name.startswith("keyfold-task") for t in set(threading.enumerate()) - before)


@dataclass
class Rival:
    """One of several runs at once, each with a store of its own that counts."""

    store: CountedStore
    seed: int
    changes: dict[str, int]
    report: RunReport | None = None
    error: BaseException | None = None

    def run(self, places: Sequence[Place], barrier: threading.Barrier) -> None:
        executor = LocalExecutor(self.store, retry_policy(SystemClock(), Random(self.seed)))
        barrier.wait()
        try:
            self.report = new_run(self.store, executor, self.seed, **self.changes).clean(places)
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.error = error


def at_once(store: MemoryStore, places: Sequence[Place], count: int, **changes: int) -> list[Rival]:
    rivals = [Rival(CountedStore(store), seed, changes) for seed in range(count)]
    barrier = threading.Barrier(count)
    threads = [threading.Thread(target=r.run, args=(places, barrier)) for r in rivals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [r.error for r in rivals] == [None] * count
    return rivals


@pytest.mark.sharded
@pytest.mark.parametrize("batch_logs", [500, 10])
def test_concurrent_runs_share_a_hundred_logs_and_clean_none_twice(batch_logs: int) -> None:
    store, found = MemoryStore(), places(100)
    for place in found:
        fill(store, place)
    rivals = at_once(store, found, 4, batch_logs=batch_logs)
    reports = [r.report for r in rivals if r.report is not None]
    assert [r.exit_code for r in reports] == [0] * 4
    cleaned = Counter(p.place for r in reports for p in r.partitions if p.outcome is PartitionOutcome.CLEANED)
    assert cleaned == Counter(found)
    for place in found:
        manifest = load(store, place)
        assert manifest.compactor.lease_until_ms == 0
        left = read_all(store, manifest, place)
        assert left == last_per_key([record(n, f"k{n // 2}", "v" * 200) for n in range(10)])
    alone = MemoryStore()
    for place in found:
        fill(alone, place)
    (single,) = at_once(alone, found, 1)
    spent = sum(sum(r.store.calls.values()) for r in rivals) - sum(single.store.calls.values())
    assert spent <= 3 * len(found) * LOST_CLAIM_REQUESTS
