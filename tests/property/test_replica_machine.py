"""A log and its replica: anything that can happen to either, in any order.

`tests.property.test_log_machine` makes things happen to the source. Beside that, processes replicate, die at any call
on either side, wake up as zombies, fight, meet a source that is cleaned under them, or a side that is away; readers
read the replica. `tests.support.replica_oracle` judges every version of both logs that lands.
`tests.support.machines` says how deep the soak goes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from keyfold.log import edits_replica
from keyfold.log.edits import Edit
from keyfold.log.manifest import Manifest, stamped
from keyfold.read.log import Log
from keyfold.runtime.clock import NEVER_MS
from keyfold.store.wrappers.faults import Fault, FaultKind, FaultyStore, SimulatedCrash
from keyfold_replicator.state.states import SyncState
from tests.property import lives
from tests.property.test_log_machine import CHOICES, ROWS, LogMachine, Reader, Rows
from tests.support.log_machine import OneFault
from tests.support.machines import as_asked, finds_what_is_wrong, run_machine, shows
from tests.support.replica_oracle import NAME, REPLICA_PLACE, ReplicaStore, SourceStore
from tests.support.replica_pair import ENABLED, NOT_ENABLED, Pair, Process
from tests.support.tiers import Sharded

SIDES = st.sampled_from(["source", "replica"])
CALLS = st.integers(1, 25)
AWAY = Fault(lambda _call: True, FaultKind.UNAVAILABLE, times=1 << 40)
PINS = st.sampled_from([0, 1_000, 1 << 60])
NO_HOLD_ENDS = 1 << 60


class ReplicaMachine(LogMachine):
    """A log and its replica, with everything that uses them."""

    def __init__(self) -> None:
        super().__init__()
        source = SourceStore()
        self.store = source
        self.source = source
        self.replica = ReplicaStore(source, is_registered=True)
        self.pair = Pair(source, self.replica, self.clock)
        self.process: Process | None = None
        self.old: list[Process] = []
        self.late_processes: list[Process] = []
        self.replica_readers: list[Reader] = []
        self.hold_max_ms = NO_HOLD_ENDS

    @initialize(
        seed=st.integers(0, 2**32),
        delay_ms=st.sampled_from([0, 5_000, 60_000]),
        hold_max_ms=st.sampled_from([NO_HOLD_ENDS, NO_HOLD_ENDS, 30_000]),
    )
    def begin_a_replica(self, seed: int, delay_ms: int, hold_max_ms: int) -> None:
        self.hold_max_ms = self.source.hold_max_ms = hold_max_ms
        self.pair.delay_ms = self.replica.delay_ms = delay_ms
        self.pair.seed = seed

    def run(self, store: FaultyStore, **changes: object):  # type: ignore[no-untyped-def]  # rules of a machine call it with any arguments
        topic = self.topic
        self.topic = replace(topic, replicas=(NAME,), replica_hold_max_ms=self.hold_max_ms)
        try:
            return super().run(store, **changes)
        finally:
            self.topic = topic

    # Replication

    def living(self, pin_min_bytes: int = 1 << 60) -> Process:
        """The process that replicates; another one where it has died."""
        self.living_sink()
        if self.process is None or self.process.crashed:
            self.new_process(pin_min_bytes)
        assert self.process is not None
        return self.process

    @rule(pin_min_bytes=PINS)
    def new_process(self, pin_min_bytes: int) -> None:
        """Another process replicates from now on; the old one does not know yet."""
        if self.process is not None:
            self.old = [*self.old, self.process][-2:]
        self.process = self.pair.process(pin_min_bytes=pin_min_bytes, collect_ms=self.seeds.choice([0, 60_000]))
        self.late_processes.append(self.process)

    @rule(rounds=st.integers(1, 3))
    def replicate(self, rounds: int) -> None:
        process = self.living()
        for _ in range(rounds):
            process.once()

    @rule(side=SIDES, at=CALLS, choice=CHOICES, pin_min_bytes=PINS)
    def replicate_with_a_fault(self, side: str, at: int, choice: int, pin_min_bytes: int) -> None:
        """One call of a round fails in some way, on one of both sides."""
        process = self.living(pin_min_bytes)
        store = process.store(side)
        store._chaos = OneFault.drawn(len(store.calls) + at, choice)
        with contextlib.suppress(SimulatedCrash):
            process.once()
        store._chaos = None

    @rule(side=SIDES, rounds=st.integers(1, 3))
    def replicate_with_a_side_away(self, side: str, rounds: int) -> None:
        process = self.living()
        store = process.store(side)
        store.add(AWAY)
        for _ in range(rounds):
            process.once()
        store._plans.clear()

    @rule(side=SIDES, at=CALLS, force=st.booleans(), rows=ROWS, wait_ms=st.sampled_from([0, 5_000, 120_000]))
    def the_source_goes_on_during_a_round(self, side: str, at: int, force: bool, rows: Rows, wait_ms: int) -> None:
        """Between two calls of a round the source appends, cleans, deletes what it may, and cleans again."""

        def act() -> None:
            self.append(self.living_sink(), rows)
            for _ in range(2):
                self.pair.advance(wait_ms)
                self.run(FaultyStore(self.store), force=force, collect_orphans=True)

        self.round_with(side, at, act)

    @rule(side=SIDES, at=CALLS, pin_min_bytes=PINS, rounds=st.integers(1, 2))
    def another_replicates_during_a_round(self, side: str, at: int, pin_min_bytes: int, rounds: int) -> None:
        def act() -> None:
            other = self.pair.process(pin_min_bytes=pin_min_bytes)
            for _ in range(rounds):
                other.once()
                self.pair.advance(self.pair.delay_ms + 3_000)

        self.round_with(side, at, act)

    @rule(side=SIDES, at=CALLS, rows=ROWS, force=st.booleans())
    def another_replicates_what_is_new_during_a_round(self, side: str, at: int, rows: Rows, force: bool) -> None:
        """The source advances, another process copies that and deletes garbage, and then the first one wakes."""

        def act() -> None:
            other = self.pair.process()
            self.append(self.living_sink(), rows)
            self.run(FaultyStore(self.store), force=force, collect_orphans=True)
            for _ in range(3):
                other.once()
                self.pair.advance(self.pair.delay_ms + 3_000)

        self.round_with(side, at, act)

    def round_with(self, side: str, at: int, act) -> None:  # type: ignore[no-untyped-def]  # rules of a machine call it with any arguments
        """A round, with something that happens before one of its calls."""
        process = self.living()
        process.before(side, len(process.store(side).calls) + at, act)
        process.once()
        process.store(side).on_call = None

    @precondition(lambda self: self.old)
    @rule()
    def an_old_process_wakes(self) -> None:
        """It was fenced, or takes over again: both are fine, as long as one of them replicates at a time."""
        process = self.old.pop()
        if not process.crashed and self.sink is not None:
            process.once()

    @rule(enabled=st.booleans())
    def compaction_is_switched(self, enabled: bool) -> None:
        self.pair.documents.allowed = ENABLED if enabled else NOT_ENABLED

    @rule(paused=st.booleans())
    def the_replica_is_switched(self, paused: bool) -> None:
        self.pair.documents.paused = paused

    @precondition(lambda self: self.hold_max_ms != NO_HOLD_ENDS)
    @rule()
    def resync(self) -> None:
        self.living().once(resync=True)

    @rule(by_ms=st.sampled_from([900, 4_000, 40_000, 200_000]))
    def replica_time_passes(self, by_ms: int) -> None:
        self.replica.clock.advance(by_ms)

    @rule()
    def late_requests_of_processes_land(self) -> None:
        for process in self.late_processes:
            process.land()
        self.late_processes = [p for p in self.late_processes if p is self.process]

    # Readers of the replica

    @precondition(lambda self: self.replica.history and len(self.replica_readers) < 3)
    @rule(is_snapshot=st.booleans())
    def begin_to_read_the_replica(self, is_snapshot: bool) -> None:
        log = Log(self.replica, REPLICA_PLACE.topics_dir, REPLICA_PLACE.topic, clock=self.clock, random=Random(0))
        version = len(self.replica.history) - 1
        start = self.replica.history[-1].log_start_offset
        self.replica_readers.append(Reader(log.latest() if is_snapshot else log.read(), start, version, is_snapshot))

    @precondition(lambda self: self.replica_readers)
    @rule(which=st.integers(0, 3), count=st.integers(1, 30))
    def read_on_at_the_replica(self, which: int, count: int) -> None:
        self.go_on(self.replica_readers, which, count, self.replica.ranges)

    @rule()
    def verify_the_replica(self) -> None:
        self.pair.verify()

    @invariant()
    def no_promise_of_either_is_broken(self) -> None:
        self.pair.unbroken()

    def teardown(self) -> None:
        """Whatever has happened: rounds without faults make the replica the source, with nothing beside it."""
        with self.pair:
            self.come_to_rest()

    def come_to_rest(self) -> None:
        """See `teardown`."""
        if self.store.before is None or self.store.broken is not None or self.replica.broken is not None:
            return
        self.late_requests_of_processes_land()
        self.pair.documents.allowed, self.pair.documents.paused = ENABLED, False
        self.converge()
        super().teardown()
        self.converge()
        self.pair.check()
        assert self.pair.is_tidy

    def converge(self) -> None:
        """Rounds until nothing is left to do."""
        self.living_sink()
        process = self.pair.process()
        for _ in range(6):
            summary = process.once()
            if any(s.state is SyncState.RESYNC_REQUIRED for s in summary.states):
                assert self.hold_max_ms != NO_HOLD_ENDS, "a tombstone went that the replica had not received"
                summary = process.once(resync=True)
            self.pair.advance(self.pair.delay_ms + 120_000)
        assert summary.is_in_sync, summary


def test_a_replica_is_always_a_state_of_its_source(sharded: Sharded) -> None:
    run_machine(ReplicaMachine, len(sharded(range(40))), 30)


def stamped_as_if_it_were_no_replica(manifest: Manifest, seen_ms: int) -> Manifest:
    return replace(stamped(replace(manifest, replica=None), seen_ms), replica=manifest.replica)


def ahead(hold: Callable[..., Edit]) -> Callable[..., Edit]:
    """A cursor that says more than the replica has."""
    return lambda name, version, ms, received_to=None: hold(name, version, ms, received_to and received_to + 1)


def at_once(manifest: Manifest, *_: object) -> tuple[str, ...]:
    return tuple(r.name for r in manifest.replaced)


def nothing(*_: object, **__: object) -> None:
    return None


SELDOM = "readers get no time"  # what goes early goes together with what is due: up to minutes
MISTAKES: dict[str, list[tuple[str, Any]]] = {
    "tombstones are not held": [("keyfold_compactor.decide.horizon.held_from", lambda *_: NEVER_MS)],
    SELDOM: [("keyfold_replicator.rounds.gc.due_names", at_once)],
    "the commit comes before the objects": [("keyfold_replicator.rounds.round.PartitionRounds._send", nothing)],
    "the cursor runs ahead": [("keyfold.log.edits_replica.hold", ahead(edits_replica.hold))],
    "times are those of the replica": [("keyfold.log.commit.stamped", stamped_as_if_it_were_no_replica)],
    "what is unlinked is forgotten": [("keyfold.log.edits_replica._shared_to", lambda *_: 0)],
    "anybody may commit anything": [
        ("keyfold.log.edits_replica.require_epoch", lambda manifest, _token: manifest.replica),
        ("keyfold.log.edits_replica.require_follows", nothing),
    ],
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_recorded_scenario_reproduces(mistake: str) -> None:
    shows(ReplicaMachine, MISTAKES[mistake], lives.REPLICA[mistake])


@pytest.mark.parametrize("mistake", [pytest.param(m, marks=pytest.mark.soak if m == SELDOM else ()) for m in MISTAKES])
@pytest.mark.full
@pytest.mark.timeout(2400)
def test_the_state_machine_finds_planted_bugs(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for target, wrong in MISTAKES[mistake]:
        monkeypatch.setattr(target, wrong)
    finds_what_is_wrong(ReplicaMachine)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_replica_is_always_a_state_of_its_source_in_long_runs() -> None:
    run_machine(ReplicaMachine, *as_asked(2_000, 80))
