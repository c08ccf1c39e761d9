"""The local engine: the reference's result with many threads, and logs that are mapped in steps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest

from keyfold.log.names import Place
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.throttle import BudgetPacer, TokenBucket
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Call, Fault, FaultKind, FaultyStore
from keyfold_compactor.decide.settings import Encoding
from keyfold_compactor.execute import large_map_threads
from keyfold_compactor.execute.executor import Executor
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.execute.run import Run, RunSettings
from keyfold_compactor.report.report import PartitionOutcome, RunReport
from tests.support.cleaning import EAGER, Sink, load, object_names, read_all, retry_policy
from tests.support.shapes import Expected, again, shapes

SHAPES = {name: batches for name, batches in shapes().items() if name != "values of 20 MB"}
ENCODING = Encoding("zstandard", 1, 4096, part_bytes=6 << 20)


def same(executor: Executor, _due_bytes: int) -> Executor:
    return executor


def cleaned(store: MemoryStore | FaultyStore, clock: ManualClock, executor: Executor, places: list[Place]) -> RunReport:
    settings = RunSettings(settings_of=lambda *_: replace(EAGER, encoding=ENCODING))
    return Run(store, settings, partial(same, executor), clock=clock, random=Random(1)).clean(places)


def filled(clock: ManualClock) -> tuple[MemoryStore, dict[Place, Expected]]:
    store = MemoryStore(clock=clock)
    expected: dict[Place, Expected] = {}
    for number, batches in enumerate(SHAPES.values()):
        place = Place("topics", "users", number)
        sink = Sink.open(store, place, clock=clock, seed=number)
        expected[place] = Expected()
        for batch in [*batches, again(batches)]:
            sink.append(batch, codec="zstandard", block_bytes=65_536)
            expected[place].append(batch)
    return store, expected


@pytest.mark.sharded
@pytest.mark.parametrize("map_bytes", [None, 1], ids=["whole", "in steps"])
@pytest.mark.parametrize("is_single_stage", [False, True])
def test_two_passes_in_threads_leave_the_dicts_records(
    map_bytes: int | None, is_single_stage: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    clock = ManualClock()
    store, expected = filled(clock)
    executor = LocalExecutor(
        store, retry_policy(clock, Random(1)), slots=4, is_single_stage=is_single_stage, map_bytes=map_bytes
    )
    for _ in range(2):
        report = cleaned(store, clock, executor, list(expected))
        assert report.exit_code == 0, report.document()
        for place, records in expected.items():
            assert read_all(store, place=place) == records.clean(), place
    assert list(tmp_path.iterdir()) == [], "no file is left between steps"


def test_a_log_whose_map_in_steps_fails_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the folder is full, not the bucket."""
    clock = ManualClock()
    store, expected = filled(clock)
    places = list(expected)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(large_map_threads._BucketFiles, "add", full)
    before = {place: object_names(store, place) for place in places}
    report = cleaned(store, clock, LocalExecutor(store, retry_policy(clock, Random(1)), slots=2, map_bytes=1), places)
    assert {p.outcome for p in report.partitions} == {PartitionOutcome.FAILED}
    assert "No space left" in report.partitions[0].why
    for place in places:
        assert object_names(store, place) == before[place]
        assert load(store, place).compactor.lease_until_ms == 0


def test_a_unit_that_fails_fails_its_partition_alone() -> None:
    clock = ManualClock()
    store, expected = filled(clock)
    places = list(expected)
    lost = places[list(SHAPES).index("one key in half of the records")]
    key = lost.key(load(store, lost).segments[0].name)
    faulty = FaultyStore(store, [Fault(lambda call: call.key == key, FaultKind.UNAVAILABLE, times=1_000_000)])
    executor = LocalExecutor(faulty, retry_policy(clock, Random(1)), slots=3, is_single_stage=True)
    report = cleaned(store, clock, executor, places)
    assert {p.place for p in report.failed} == {lost}
    places.remove(lost)
    for place in places:
        assert read_all(store, place=place) == expected[place].clean(), place


def test_waits_for_the_byte_rate_are_in_the_report() -> None:
    clock = ManualClock()
    store, expected = filled(clock)
    pacer = BudgetPacer(TokenBucket(1e6, clock), clock, 1e6)
    pacer.wait_s = 5.0  # of an earlier run

    def wait(call: Call) -> None:
        pacer.wait_s += 0.25

    executor = LocalExecutor(FaultyStore(store, on_call=wait), retry_policy(clock, Random(1)), slots=2, pacer=pacer)
    report = cleaned(store, clock, executor, list(expected)[:1])
    (part,) = report.partitions
    assert part.traffic.wait_s == pacer.wait_s - 5.0 > 0


def test_a_large_run_is_noticed_once_from_all_of_its_batches() -> None:
    clock = ManualClock()
    store, expected = filled(clock)
    places = list(expected)
    sizes = [sum(s.size_bytes for s in load(store, place).segments) for place in places[:3]]
    noticed: list[int] = []
    executor = LocalExecutor(
        store, retry_policy(clock, Random(1)), notice_bytes=sizes[0], notice_large=noticed.append, slots=2
    )
    for place in places[:3]:
        cleaned(store, clock, executor, [place])
    assert noticed == [sizes[0] + sizes[1]]
