"""Every store call of a replication round, on either side, failing in every way that it can fail.

For each fault: each version that the replica ever had is one that its source had, of objects that were there; the next
process finishes the work, sends nothing that has arrived, and leaves nothing behind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import pytest

from keyfold.log.names import parse_name
from keyfold.store.wrappers.faults import Call, Fault, FaultKind, SimulatedCrash, every_fault, kinds_of
from tests.support.cleaning import EAGER, PLACE, load, object_names, record
from tests.support.replica_oracle import REPLICA_PLACE, differences
from tests.support.replica_pair import Pair, Process
from tests.support.tiers import Sharded

BATCHES = [
    [record(0, "a", "1"), record(1, "b", "2"), record(2, None, "x")],
    [record(3, "a", None), record(4, "c", "3"), record(5, "d", "4")],
    [record(6, "b", "5"), record(7, "c", None), record(8, "e", "6")],
    [record(9, "gone", None)],
]
LAZY = replace(EAGER, file_delete_delay_ms=10**9)
"""What is replaced stays: a replica that is slow can still copy it."""


def append(pair: Pair, start: int, end: int) -> None:
    for batch in BATCHES[start:end]:
        pair.append(batch)


def first(pair: Pair) -> None:
    append(pair, 0, 4)


def more(pair: Pair) -> None:
    append(pair, 0, 2)
    pair.process().once()
    append(pair, 2, 4)


def cleaned(pair: Pair) -> None:
    append(pair, 0, 4)
    pair.process().once()
    pair.compact(LAZY)


def purged(pair: Pair) -> None:
    """And what the replica unlinks before is due for deletion now."""
    cleaned(pair)
    pair.process().once()
    pair.compact(LAZY)
    pair.advance(600_000)


def overtaken(pair: Pair) -> None:
    """The source has already deleted what the replica's newest version names."""
    cleaned(pair)
    pair.compact(EAGER)
    append_more(pair)
    pair.compact(EAGER)


def append_more(pair: Pair) -> None:
    pair.append([record(10, "a", "again"), record(11, "d", None)])


def littered(pair: Pair) -> None:
    """Objects of a version that never came to be lie about."""
    append(pair, 0, 4)
    objects: list[Call] = []

    def is_fifth(call: Call) -> bool:
        if call.operation == "put" and parse_name(call.key.removeprefix(REPLICA_PLACE.folder)) is not None:
            objects.append(call)
        return len(objects) == 5

    with pytest.raises(SimulatedCrash):
        pair.process(replica_faults=[Fault(is_fifth, FaultKind.CRASH_BEFORE)]).once()
    assert object_names(pair.replica, REPLICA_PLACE)
    pair.compact(EAGER)
    pair.compact(EAGER)


@cache
def prepared(prepare: Callable[[Pair], None]) -> Pair:
    with Pair.new() as pair:
        pair.source.in_force = [EAGER]
        prepare(pair)
        pair.unbroken()
    pair.replica.sent.clear()
    return pair


@dataclass(frozen=True)
class Case:
    """What has happened before the round, and how the round is made."""

    prepare: Callable[[Pair], None]
    pin_min_bytes: int = 1 << 60

    def pair(self) -> Pair:
        return prepared(self.prepare).twin()

    def process(self, pair: Pair, source: list[Fault] | None = None, replica: list[Fault] | None = None) -> Process:
        return pair.process(source or [], replica or [], pin_min_bytes=self.pin_min_bytes)


CASES = {
    "first": Case(first),
    "first, pinned": Case(first, pin_min_bytes=0),
    "more": Case(more),
    "cleaned": Case(cleaned),
    "cleaned, pinned": Case(cleaned, pin_min_bytes=0),
    "purged": Case(purged),
    "overtaken": Case(overtaken),
    "littered": Case(littered),
}
PINNED = ("first, pinned", "cleaned, pinned")
SIDES = ("source", "replica")
FAULTS_IN_A_ROW = 8


@cache
def calls_of(name: str) -> tuple[tuple[Call, ...], tuple[Call, ...]]:
    """What a round asks of each side when all goes well."""
    case = CASES[name]
    with case.pair() as pair:
        process = case.process(pair)
        summary = process.once()
        assert summary.is_in_sync, summary
        pair.check()
    return tuple(process.source.calls), tuple(process.replica.calls)


def params(kinds: frozenset[FaultKind] = frozenset(FaultKind)) -> list[object]:
    """A parameter for each fault of each case."""
    return [
        pytest.param(name, side, fault, id=f"{name}-{side}-{fault.at}-{fault.kind.value}")
        for name in CASES
        for side, calls in zip(SIDES, calls_of(name), strict=True)
        if side == "source" or name not in PINNED  # a pin changes nothing at the replica
        for fault in every_fault(calls)
        if fault.kind in kinds
    ]


def broken_round(pair: Pair, name: str, side: str, fault: Fault) -> Process:
    faults = [[fault] if at == side else [] for at in SIDES]
    process = CASES[name].process(pair, *faults)
    with contextlib.suppress(SimulatedCrash):
        process.once()
    pair.unbroken()
    return process


def check_sent(pair: Pair, name: str, side: str, fault: Fault) -> None:
    """Each object went out once; one whose answer was lost, or that is still on its way, may go out again."""
    assert isinstance(fault.at, int)
    call = calls_of(name)[SIDES.index(side)][fault.at - 1]
    is_unknown = fault.kind in {FaultKind.LOST_ANSWER, FaultKind.LATE, FaultKind.CRASH_LATE}
    again = call.key.removeprefix(REPLICA_PLACE.folder) if side == "replica" and is_unknown else ""
    twice = {sent: count for sent, count in pair.replica.sent.items() if count > 1 + (sent == again)}
    assert not twice, f"sent more than once: {twice}"


@pytest.mark.sharded
@pytest.mark.parametrize(("name", "side", "fault"), params())
def test_a_fault_at_any_call_of_a_round_leaves_a_state_of_the_source_and_the_next_process_finishes(
    name: str, side: str, fault: Fault
) -> None:
    with CASES[name].pair() as pair:
        process = broken_round(pair, name, side, fault)
        process.land()
        pair.settle()
        check_sent(pair, name, side, fault)


@pytest.mark.sharded
@pytest.mark.parametrize(("name", "side", "fault"), params(frozenset({FaultKind.LATE, FaultKind.CRASH_LATE})))
def test_a_replicators_request_landing_after_the_next_process_finished_changes_nothing(
    name: str, side: str, fault: Fault
) -> None:
    with CASES[name].pair() as pair:
        process = broken_round(pair, name, side, fault)
        pair.settle()
        process.land()
        pair.unbroken()
        pair.settle()


@pytest.mark.parametrize("name", ["first, pinned", "cleaned", "purged", "littered"])
def test_a_process_recovers_from_faults_by_itself(name: str, sharded: Sharded) -> None:
    """No new process: the same one, once the store answers again. Its round may fail, its next ones do not."""
    patient = {FaultKind.UNAVAILABLE, FaultKind.LOST_ANSWER, FaultKind.CONFLICT}
    cases = [
        (side, call, kind)
        for side, calls in zip(SIDES, calls_of(name), strict=True)
        for call in calls
        for kind in kinds_of(call.operation)
        if kind in patient
    ]
    for side, call, kind in sharded(cases):
        with CASES[name].pair() as pair:
            process = broken_round(pair, name, side, Fault(like(call), kind, times=FAULTS_IN_A_ROW))
            for _ in range(FAULTS_IN_A_ROW + 1):  # topics are listed once a round, other calls repeated in it
                pair.advance(120_000)
                summary = process.once()
                if summary.is_in_sync and not process.store(side)._plans[0].left:
                    break
            assert summary.is_in_sync, (side, call, kind, summary)
            pair.check()


def like(call: Call) -> Callable[[Call], bool]:
    return lambda other: (other.operation, other.key) == (call.operation, call.key) and other.number >= call.number


def finish(pair: Pair, name: str) -> None:
    assert CASES[name].process(pair).once().is_in_sync


def go_on(pair: Pair) -> None:
    if load(pair.source).next_offset == 10:
        append_more(pair)
    pair.compact(EAGER)
    pair.compact(EAGER)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", CASES)
def test_a_second_replicator_at_any_call_of_a_round_harms_nothing(name: str, side: str, sharded: Sharded) -> None:
    """The first one pauses at a call, a second one does the whole work, then the first one wakes."""
    for number in sharded(range(1, len(calls_of(name)[SIDES.index(side)]) + 1)):
        with CASES[name].pair() as pair:
            process = CASES[name].process(pair)
            process.before(side, number, partial(finish, pair, name))
            process.once()
            pair.unbroken()
            pair.settle()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", ["first", "cleaned, pinned", "overtaken"])
def test_a_source_cleaned_at_any_call_of_a_round_is_planned_again(name: str, side: str, sharded: Sharded) -> None:
    """Passes and deletions as fast as possible: objects are deleted while the round copies them."""
    for number in sharded(range(1, len(calls_of(name)[SIDES.index(side)]) + 1)):
        with CASES[name].pair() as pair:
            process = CASES[name].process(pair)
            process.before(side, number, partial(go_on, pair))
            process.once()
            pair.unbroken()
            pair.settle()


@pytest.mark.parametrize("side", SIDES)
def test_with_one_side_unavailable_nothing_is_lost_and_the_process_resumes_later(side: str) -> None:
    with CASES["cleaned"].pair() as pair:
        away = Fault(lambda _call: True, FaultKind.UNAVAILABLE, times=10**6)
        process = CASES["cleaned"].process(pair)
        for _ in range(3):
            store = process.store(side)
            store.add(away)
            summary = process.once()
            assert not summary.is_in_sync
            pair.unbroken()
            store._plans.clear()
            pair.compact(EAGER)
        summary = process.once()
        assert summary.is_in_sync
        pair.check()


def test_a_tombstone_waits_for_the_replica_and_is_then_removed() -> None:
    with CASES["cleaned"].pair() as pair:
        for _ in range(3):
            pair.compact(EAGER)
        # The replica has had the log up to 10: those tombstones go.
        assert load(pair.source).purged_to == 9
        append_more(pair)
        for _ in range(3):
            pair.compact(EAGER)
        assert load(pair.source).purged_to == 9, "the tombstone at 11 has not been received"
        pair.settle()
        for _ in range(3):
            pair.compact(EAGER)
        assert load(pair.source).purged_to == 11
        pair.settle()


def test_an_idle_round_costs_one_request_to_the_source() -> None:
    with CASES["purged"].pair() as pair:
        pair.settle()
        before = load(pair.source).version, pair.manifest.version
        process = pair.process(collect_ms=10**9)
        process.once()
        process.source.calls.clear()
        process.replica.calls.clear()
        assert process.once().is_in_sync
        assert (load(pair.source).version, pair.manifest.version) == before
        assert [c.operation for c in process.source.calls if c.key == PLACE.manifest_key] == ["head"]
        assert process.replica.calls == []


def test_the_cases_do_the_work_that_they_are_named_after() -> None:
    sent = {name: sum(c.operation == "put" for c in calls_of(name)[1]) for name in CASES}
    assert sent["first"] >= 8 + 1
    assert sent["more"] >= 4 + 1
    assert sent["cleaned"] >= 2 + 1
    deleted = {name: sum(c.operation == "delete" for c in calls_of(name)[1]) for name in CASES}
    assert deleted["purged"] > 0
    assert deleted["littered"] > 0
    assert sum(c.operation == "put" for c in calls_of("first, pinned")[0]) == 2
    for case in CASES.values():
        with case.pair() as pair:
            assert not pair.replica.history or differences(load(pair.source), pair.manifest)
