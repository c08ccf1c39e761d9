"""A log that is small beside its batch is cleaned by the task that maps it: the same result, in one stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from keyfold.log.names import Place
from keyfold.runtime.clock import ManualClock
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import FaultyStore
from keyfold_compactor.decide.work import LogJob, MapAnswer, UnitAnswer, UnitJob
from keyfold_compactor.execute.executor import Done
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.execute.run import Run, RunSettings
from keyfold_compactor.report.report import PartitionOutcome, PartitionReport, RunReport
from tests.support.cleaning import EAGER, SMALL, Sink, load, read_all, record, retry_policy

PLACES = [Place("topics", "users", number) for number in range(3)]


class Stages:
    """An executor that says what it was asked for."""

    def __init__(self, store: MemoryStore | FaultyStore, *, is_single_stage: bool, slots: int = 1) -> None:
        self._inner = LocalExecutor(store, retry_policy(ManualClock(), Random(7)), is_single_stage=is_single_stage)
        self.slots = slots
        self.allowed: list[bool] = []
        self.dealt: list[UnitJob] = []

    def map_logs(self, jobs: Sequence[LogJob], done: Done) -> list[MapAnswer]:
        self.allowed += [job.single_stage is not None for job in jobs]
        return self._inner.map_logs(jobs, done)

    def rewrite(self, portions: Sequence[Sequence[UnitJob]], done: Done) -> list[UnitAnswer]:
        self.dealt += [unit for portion in portions for unit in portion]
        return self._inner.rewrite(portions, done)

    def forget(self) -> None:
        self._inner.forget()


def filled(records: Sequence[int] = (40, 40, 40)) -> MemoryStore:
    store = MemoryStore("test", ManualClock())
    for place, count in zip(PLACES, records, strict=True):
        sink = Sink.open(store, place)
        for half in range(2):
            offsets = range(half * count // 2, (half + 1) * count // 2)
            sink.append([record(o, b"k%d" % (o // 2), None if o % 7 == 3 else b"v%d" % o) for o in offsets])
    return store


def run(
    store: MemoryStore | FaultyStore, executor: Stages, *, segment_bytes: int = EAGER.segment_bytes, **changes: int
) -> RunReport:
    settings = RunSettings(
        settings_of=lambda _topic, _manifest: replace(EAGER, encoding=SMALL, segment_bytes=segment_bytes),
        threads=1,
        retry_timeout_s=2.0,
        **changes,  # type: ignore[arg-type]  # fields by name, of any type
    )
    return Run(store, settings, lambda _: executor, clock=ManualClock(), random=Random(1)).clean(PLACES)


def counted(report: PartitionReport) -> dict[str, object]:
    """What a report says but for times and traffic: an index that is read twice counts twice."""
    left_out = {"seconds", "bytes_read", "bytes_written", "after", "throttle_wait_s"}
    return {name: value for name, value in report.document().items() if name not in left_out}


def test_a_single_stage_leaves_the_same_log_as_two() -> None:
    store, other = filled(), filled()
    two, one = Stages(store, is_single_stage=False), Stages(other, is_single_stage=True)
    first, second = run(store, two), run(other, one)
    assert [counted(p) for p in first.partitions] == [counted(p) for p in second.partitions]
    assert one.allowed == [True] * 3
    assert {unit.place for unit in two.dealt} == set(PLACES)
    assert one.dealt == []
    for place in PLACES:
        assert read_all(other, place=place) == read_all(store, place=place)
        entries = [load(s, place).segments for s in (store, other)]
        assert [e.checksum for e in entries[0]] == [e.checksum for e in entries[1]]
        assert [e.index_checksum for e in entries[0]] == [e.index_checksum for e in entries[1]]


def test_a_log_that_dominates_its_batch_is_split_into_units() -> None:
    store = filled((4_000, 40, 40))
    executor = Stages(store, is_single_stage=True, slots=2)
    assert run(store, executor, shares=1, unit_bytes_min=1).exit_code == 0
    assert executor.allowed == [False, True, True]
    assert {unit.place for unit in executor.dealt} == {PLACES[0]}


def test_a_pass_in_parts_is_distributed_by_the_driver() -> None:
    store = filled()
    executor = Stages(store, is_single_stage=True)
    report = run(store, executor, segment_bytes=1, pass_bytes=1)
    assert report.exit_code == 0
    assert executor.allowed == [True] * 3
    assert {unit.place for unit in executor.dealt} == set(PLACES)
    for place in PLACES:
        assert [r.offset for r in read_all(store, place=place)] == list(range(1, 40, 2))


def test_a_failed_unit_in_a_single_stage_fails_only_its_partition() -> None:
    store = filled()
    victim = load(store, PLACES[1]).segments[-1]
    store.delete(PLACES[1].key(victim.name))
    before = read_all(store, place=PLACES[0])
    report = run(store, Stages(store, is_single_stage=True))
    found = {p.place: p for p in report.partitions}
    assert [found[place].outcome for place in PLACES] == [
        PartitionOutcome.CLEANED,
        PartitionOutcome.FAILED,
        PartitionOutcome.CLEANED,
    ]
    assert victim.name in found[PLACES[1]].why
    assert load(store, PLACES[1]).segments[-1].name == victim.name
    assert len(read_all(store, place=PLACES[0])) < len(before)
