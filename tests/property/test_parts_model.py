"""Passes cut into parts, stopped between them and cut off within them: a dict, the invariants of marks, a slow reader.

A part may be as small as one segment. What a pass without parts leaves, one with parts leaves as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from keyfold.log.record import Record
from keyfold.runtime.clock import ManualClock
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Call, Fault, FaultKind, FaultyStore, SimulatedCrash
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.report.report import PartitionOutcome
from tests.property.test_min_garbage_model import check
from tests.support.cleaning import EAGER, PLACE, clean, last_per_key, load, memory_log, new_run, read_all, record
from tests.support.slow_reader import Reader, read_on

KEYS = [None, b"a", b"b", b"c", b"d"]


def batch(offset: int, random: Random) -> list[Record]:
    return [
        record(offset + i, random.choice(KEYS), None if random.random() < 0.4 else "v" * random.randrange(60))
        for i in range(random.randrange(1, 7))
    ]


def stop_at(call: int) -> Callable[[], bool]:
    """Says yes from the `call`-th question on."""
    asked = 0

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        return asked >= call

    return should_stop


@pytest.mark.sharded
@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(0, 2**32))
def test_a_pass_in_parts_keeps_every_guarantee_wherever_it_stops(data: st.DataObject, seed: int) -> None:
    clock = ManualClock()
    random = Random(seed)
    store, sink = memory_log(clock=clock)
    appended: list[Record] = []
    had_min_garbage = False
    reader = Reader.begin(load(store))
    steps = st.lists(st.sampled_from(["append", "append", "pass", "wait", "read"]), min_size=6, max_size=24)
    for step in data.draw(steps):
        if step == "wait":
            clock.advance(random.randrange(10, 4_000))
        elif step == "read":
            reader = read_on(store, reader, appended, random)
        elif step == "append":
            records = batch(sink.session.refresh().next_offset, random)
            sink.append(records)
            appended += records
        else:
            had_min_garbage |= some_pass(store, clock, random)
            # A pass that ended between two parts leaves the marks to the next one.
            check(store, appended, may_be_unmarked=True)
            head = [r for r in appended if r.offset >= load(store).first_dirty_offset]
            assert had_min_garbage or [r for r in read_all(store) if r.offset >= load(store).first_dirty_offset] == head
    if appended:
        for number in range(3):
            clock.advance(100_000)
            clean(store, EAGER, clock=clock, seed=number, pass_bytes=1)
        assert read_all(store) == [r for r in last_per_key(appended) if not r.is_tombstone]


def crash(random: Random) -> Fault:
    """The process ends before one of its requests, or right after one that writes has landed."""
    if random.random() < 0.5:
        return Fault(random.randrange(1, 40), FaultKind.CRASH_BEFORE)
    left = random.randrange(1, 14)

    def is_hit(call: Call) -> bool:
        nonlocal left
        left -= call.operation == "put"
        return left == 0 and call.operation == "put"

    return Fault(is_hit, FaultKind.CRASH_AFTER)


def some_pass(store: MemoryStore, clock: ManualClock, random: Random) -> bool:
    """A pass in parts, which may be stopped between two of them, or end with the process at any store call.

    Gives whether it had a minimum of garbage.
    """
    topic = TopicSettings(
        min_cleanable_dirty_ratio=0.0,
        delete_retention_ms=random.choice([0, 0, 2_000]),
        min_compaction_lag_ms=random.choice([0, 0, 1_000]),
        file_delete_delay_ms=0,
        segment_bytes=random.choice([1, 600, 10_000]),
        segment_min_garbage_ratio=random.choice([0.0, 0.0, 0.4, 0.9]),
    )
    pass_bytes = random.choice([1, 1, 1_000, 3_000])
    crashes = random.random() < 0.4
    faulty = FaultyStore(store, (crash(random),)) if crashes else store
    run = new_run(faulty, topic, clock=clock, seed=random.getrandbits(32), pass_bytes=pass_bytes)
    try:
        report = run.clean([PLACE], stop_at(random.choice([2, 3, 4, 1_000])))
    except SimulatedCrash:
        event("crashed")
        clock.advance(60_001)  # the lease of the dead one
        return topic.segment_min_garbage_ratio > 0
    assert report.exit_code == 0, report.failed[0].why
    for part in report.partitions:
        event(f"parts: {min(part.parts, 3)}, stopped: {part.parts_committed < part.parts}")
    return topic.segment_min_garbage_ratio > 0


@pytest.mark.sharded
@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_parts_leave_the_same_log_as_a_whole_pass(seed: int) -> None:
    found: list[tuple[list[Record], int, list[int]]] = []
    for pass_bytes in (1 << 40, 1, 2_000):
        random = Random(seed)
        clock = ManualClock()
        store, sink = memory_log(clock=clock)
        for _ in range(random.randrange(2, 12)):
            sink.append(batch(sink.session.refresh().next_offset, random))
        topic = TopicSettings(
            min_cleanable_dirty_ratio=0.0, delete_retention_ms=1_000, file_delete_delay_ms=0, segment_bytes=600
        )
        for number in range(3):
            report = clean(store, topic, clock=clock, seed=number, pass_bytes=pass_bytes)
            assert report.exit_code == 0
            assert all(p.outcome is not PartitionOutcome.FAILED for p in report.partitions)
            clock.advance(2_000)
        manifest = load(store)
        assert not any(s.unmarked_tombstone_count for s in manifest.segments)
        found.append((read_all(store), manifest.first_dirty_offset, [s.base_offset for s in manifest.segments]))
    assert found[0] == found[1] == found[2]


def test_a_fenced_part_reports_a_lost_claim_and_keeps_what_was_committed() -> None:
    clock = ManualClock()
    store, _ = memory_log(*[[record(2 * i, "a", "1"), record(2 * i + 1, f"k{i}", "2")] for i in range(6)], clock=clock)
    apart = replace(EAGER, segment_bytes=1)
    versions: list[int] = []

    def overtake() -> bool:
        versions.append(load(store).version)
        if len(versions) == 3:  # asked before the batch, then after each part
            clock.advance(60_001)
            clean(store, apart, clock=clock, seed=99)
        return False

    report = new_run(store, apart, clock=clock, pass_bytes=1).clean([PLACE], overtake)
    (part,) = report.partitions
    assert part.outcome is PartitionOutcome.LOST
    assert (part.parts, part.parts_committed) == (5, 2)
    assert [r.key for r in read_all(store)] == [b"k0", b"k1", b"k2", b"k3", b"k4", b"a", b"k5"]
