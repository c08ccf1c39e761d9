"""A rewritten segment is uploaded in parts while it is made, and each of its store calls fails in every way.

Parts are a few hundred bytes here. Whatever fails: readers' log stays what it was, the next run finishes the work, and
neither objects nor unfinished uploads are left behind.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from keyfold.runtime.clock import ManualClock
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Call, Fault, FaultKind, FaultyStore, SimulatedCrash, every_fault
from keyfold_compactor.decide.settings import Encoding
from keyfold_compactor.execute import local
from keyfold_compactor.execute.rewrite import OVERLAP_BYTES_MIN, rewrite_unit
from keyfold_compactor.report.report import PartitionOutcome, RunReport
from tests.support.cleaning import (
    EAGER,
    PLACE,
    Sink,
    clean,
    last_per_key,
    latest,
    load,
    object_names,
    read_all,
    record,
)

PART_BYTES = 300
UNITS = 2
"""Segments that the pass writes."""
PARTED = replace(EAGER, encoding=Encoding("null", 1, 128, part_bytes=PART_BYTES))
BATCHES = [
    [record(n, f"key-{n % 7}", f"{n}" * 20) for n in range(10)],
    [record(n, f"key-{n % 5}" if n % 3 else None, f"{n}" * 20) for n in range(10, 20)],
    [record(n, f"key-{n % 9}", None if n % 4 == 0 else f"{n}" * 10) for n in range(20, 30)],
]
APPENDED = [r for batch in BATCHES for r in batch]


def prepared() -> tuple[MemoryStore, ManualClock]:
    clock = ManualClock()
    store = MemoryStore("parts", clock, min_part_bytes=PART_BYTES)
    sink = Sink.open(store, clock=clock)
    for batch in BATCHES:
        sink.append(batch)
    return store, clock


def run(store: MemoryStore | FaultyStore, clock: ManualClock, seed: int = 1) -> RunReport:
    return clean(store, clock=clock, seed=seed, collect_orphans=True, settings_of=lambda _topic, _manifest: PARTED)


def finish(store: MemoryStore, clock: ManualClock) -> None:
    """Run another process after the lease, and assert that the log has exactly the live records."""
    for seed in range(2, 6):
        clock.advance(120_000)
        report = run(store, clock, seed)
        assert report.exit_code == 0, report.document()
    assert read_all(store) == [r for r in last_per_key(APPENDED) if not r.is_tombstone]
    assert object_names(store) == load(store).object_names()
    assert list(store.list_uploads("")) == []


def calls() -> list[Call]:
    store, clock = prepared()
    faulty = FaultyStore(store)
    assert run(faulty, clock).exit_code == 0
    return faulty.calls


MOVING = {"get", "get_range", "put", "start_upload", "upload.write", "upload.complete"}
UPLOAD_CALLS = [call for call in calls() if call.operation in MOVING and call.key != PLACE.manifest_key]
CASES = [pytest.param(fault, id=f"{fault.at}-{fault.kind.value}") for fault in every_fault(UPLOAD_CALLS)]


def test_the_cases_upload_in_many_parts() -> None:
    count = Counter(call.operation for call in UPLOAD_CALLS)
    assert count["start_upload"] == count["upload.complete"] == UNITS
    assert count["upload.write"] >= 3 * UNITS
    assert count["upload.abort"] == 0


@pytest.mark.parametrize("overlap_bytes_min", [OVERLAP_BYTES_MIN, 0], ids=["one after another", "overlapped"])
@pytest.mark.sharded
@pytest.mark.parametrize("fault", CASES)
def test_a_fault_at_any_call_leaves_the_log_sound_and_the_next_run_finishes(
    fault: Fault, overlap_bytes_min: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "rewrite_unit", partial(rewrite_unit, overlap_bytes_min=overlap_bytes_min))
    store, clock = prepared()
    faulty = FaultyStore(store, [fault])
    with contextlib.suppress(SimulatedCrash):
        report = run(faulty, clock)
        assert report.exit_code == 0, "one fault that is not a crash is got over in the same run"
        assert read_all(store) == last_per_key(APPENDED)
    assert latest(read_all(store)) == latest(APPENDED)
    faulty.land()
    assert latest(read_all(store)) == latest(APPENDED)
    finish(store, clock)


@pytest.mark.sharded
@pytest.mark.parametrize("fault", [c for c in CASES if "late" in str(c.id)])
def test_a_request_that_lands_after_the_next_run_changes_nothing(fault: Fault) -> None:
    store, clock = prepared()
    faulty = FaultyStore(store, [fault])
    with contextlib.suppress(SimulatedCrash):
        run(faulty, clock)
    clock.advance(120_000)
    run(store, clock, seed=2)
    faulty.land()
    assert latest(read_all(store)) == latest(APPENDED)
    finish(store, clock)


@pytest.mark.parametrize("operation", ["start_upload", "upload.write", "upload.complete"])
@pytest.mark.parametrize("kind", [FaultKind.UNAVAILABLE, FaultKind.LOST_ANSWER])
def test_an_unreachable_store_fails_the_partition_and_leaves_only_garbage_that_gc_finds(
    operation: str, kind: FaultKind
) -> None:
    store, clock = prepared()
    before = read_all(store)
    faulty = FaultyStore(store, [Fault(lambda call: call.operation == operation, kind, times=10**6)])
    (report,) = run(faulty, clock).partitions
    assert report.outcome is PartitionOutcome.FAILED
    assert read_all(store) == before
    aborts = sum(call.operation == "upload.abort" for call in faulty.calls)
    assert aborts == (UNITS if operation == "upload.write" else 0), (
        "parts go at once, but not where the object may yet come to be"
    )
    if operation == "upload.write":
        assert list(store.list_uploads("")) == []
    finish(store, clock)


def test_a_lost_upload_is_repeated_under_another_name() -> None:
    store, clock = prepared()

    def lose(call: Call) -> None:
        if call.operation == "upload.complete" and not lost:
            lost.append(call.key)
            for upload in list(store.list_uploads("")):
                store.abort_upload(upload.key, upload.upload_id)

    lost: list[str] = []
    assert run(FaultyStore(store, on_call=lose), clock).exit_code == 0
    assert read_all(store) == last_per_key(APPENDED)
    assert lost[0] not in {PLACE.key(name) for name in load(store).object_names()}
    finish(store, clock)


def test_a_store_that_loses_every_upload_is_not_retried_for_ever() -> None:
    store, clock = prepared()
    faulty = FaultyStore(
        store, [Fault(lambda call: call.operation == "upload.complete", FaultKind.CONFLICT, times=10**6)]
    )
    (report,) = run(faulty, clock).partitions
    assert report.outcome is PartitionOutcome.FAILED
    assert sum(call.operation == "start_upload" for call in faulty.calls) == 2 * UNITS
    finish(store, clock)


def test_a_killed_compactors_parts_are_removed_by_the_next_claim() -> None:
    store, clock = prepared()
    kill = Fault(lambda call: call.operation == "upload.complete", FaultKind.CRASH_BEFORE)
    with contextlib.suppress(SimulatedCrash):
        run(FaultyStore(store, [kill]), clock)
    (left,) = store.list_uploads(PLACE.folder)
    clock.advance(120_000)
    (report,) = run(store, clock, seed=2).partitions
    assert report.garbage.uploads == (left.key.removeprefix(PLACE.folder),)
    assert list(store.list_uploads("")) == []


def test_a_paused_compactor_whose_parts_were_deleted_cannot_commit() -> None:
    """The compactor sleeps before it completes; another one takes over, cleans and deletes the garbage; it wakes."""
    store, clock = prepared()

    def overtake(call: Call) -> None:
        if call.operation == "upload.complete" and not overtaken:
            overtaken.append(call)
            clock.advance(120_000)
            assert run(store, clock, seed=2).exit_code == 0

    overtaken: list[Call] = []
    (report,) = run(FaultyStore(store, on_call=overtake), clock).partitions
    assert report.outcome is PartitionOutcome.LOST
    finish(store, clock)
