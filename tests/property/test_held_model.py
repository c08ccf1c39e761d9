"""Replicas that come and go beside a log that is cleaned: no tombstone goes before all have it, but for the late ones.

A replica is what readers of it see: it takes the newest version of the source now and then, and a follower there reads
on from where it was. The specification is the dict of what was appended. A replica that was overtaken by
`replica.hold.max.ms` shows by the manifest alone, and begins again.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from keyfold.log.index import read_index
from keyfold.log.manifest import Manifest
from keyfold.log.record import Record
from keyfold.runtime.clock import ManualClock
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Fault, FaultKind, FaultyStore, SimulatedCrash, kinds_of
from keyfold_compactor.decide.min_garbage import LogsBelowMinGarbage
from keyfold_compactor.decide.settings import TopicSettings
from tests.support.cleaning import PLACE, clean, latest, load, memory_log, new_run, read_all, record
from tests.support.held import tell

KEYS = ["a", "b", "c", "d"]
RETENTION_MS = 2_000
HOLD_MS = 60_000
RUNS_MAX = 8


@dataclass
class Replica:
    """What a follower of one replica has read."""

    name: str
    received_to: int = -1
    known: dict[bytes, Record] = field(default_factory=dict)
    resyncs: int = 0

    def take(self, store: MemoryStore) -> None:
        """One round of replication, after which the follower reads the new records."""
        manifest = load(store)
        if manifest.purged_to >= self.received_to >= 0:
            self.known.clear()
            self.received_to = 0
            self.resyncs += 1
        for found in read_all(store, manifest):
            if found.key is None or found.offset < self.received_to:
                continue
            if found.value is None:
                self.known.pop(found.key, None)
            else:
                self.known[found.key] = found
        self.received_to = manifest.next_offset
        tell(store, self.name, received_to=self.received_to)


def batch(offset: int, random: Random) -> list[Record]:
    found = []
    for at in range(offset, offset + random.randrange(1, 7)):
        key = random.choice(KEYS) if random.random() < 0.6 else f"once-{at}"
        found.append(record(at, key, None if random.random() < 0.5 else "v" * random.randrange(40)))
    return found


def topic(random: Random) -> TopicSettings:
    return TopicSettings(
        min_cleanable_dirty_ratio=random.choice([0.0, 0.0, 0.5]),
        min_compaction_lag_ms=random.choice([0, 0, 1_000]),
        delete_retention_ms=RETENTION_MS,
        file_delete_delay_ms=0,
        segment_bytes=random.choice([1, 600, 10_000]),
        segment_min_garbage_ratio=random.choice([0.0, 0.0, 0.4]),
        replica_hold_max_ms=HOLD_MS,
    )


def tombstone_marks(store: MemoryStore, manifest: Manifest) -> dict[int, int | None]:
    """The passes that marked a version's tombstones, by offset."""
    found: dict[int, int | None] = {}
    for entry in manifest.segments:
        columns = read_index(store, PLACE, entry).rows.select(["offset", "is_tombstone", "cleaned_epoch"])
        found.update((o, mark) for o, is_one, mark in zip(*columns.to_pydict().values(), strict=True) if is_one)
    return found


class World:
    """A log, its cleaner, and replicas of it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = ManualClock()
        self.store, self.sink = memory_log(clock=self.clock)
        self.appended: list[Record] = []
        self.replicas = [Replica(name) for name in ("r", "s")[: self.random.randrange(1, 3)]]
        self.topic = topic(self.random)
        self.settled = LogsBelowMinGarbage()
        self.dead: list[FaultyStore] = []

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(r.name for r in self.replicas)

    def append(self) -> None:
        found = batch(self.sink.session.refresh().next_offset, self.random)
        self.sink.append(found)
        self.appended += found

    def run(self, *, may_die: bool = False) -> list[str]:
        """One run of the compactor; what it cleaned for."""
        before = load(self.store)
        held_from = min((max(0, r.received_to) for r in self.replicas), default=1 << 60)
        marks = tombstone_marks(self.store, before)
        whole = replace(self.topic, replicas=self.names)
        pass_bytes = self.random.choice([1, 1 << 40])
        values = {"below_min_garbage": self.settled, "pass_bytes": pass_bytes, "unit_bytes_min": 1, "lease_ms": 1_000}
        if may_die and self.random.random() < 0.3:
            self.die(whole, values)
            self.check(before, load(self.store), marks, held_from)
            return []
        if self.random.random() < 0.2:
            answers = iter([False] * self.random.randrange(1, 4))
            run = new_run(self.store, whole, clock=self.clock, seed=self.random.getrandbits(32), **values)
            report = run.clean([PLACE], lambda: next(answers, True))
        else:
            report = clean(self.store, whole, clock=self.clock, seed=self.random.getrandbits(32), **values)
        assert report.exit_code == 0
        after = load(self.store)
        self.check(before, after, marks, held_from)
        return [reason for p in report.partitions for reason in p.reasons]

    def die(self, whole: TopicSettings, values: dict[str, object]) -> None:
        """A run whose process ends at one of its calls; what was on its way may land much later."""
        at = self.random.randrange(1, 40)
        kind = self.random.choice([FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER, FaultKind.CRASH_LATE])
        faults = [
            Fault(lambda call: call.number == at and kind in kinds_of(call.operation), kind),
            Fault(lambda call: call.number == at, FaultKind.CRASH_BEFORE),
        ]
        store = FaultyStore(self.store, faults)
        with contextlib.suppress(SimulatedCrash):
            clean(store, whole, clock=self.clock, seed=self.random.getrandbits(32), **values)
        self.dead.append(store)

    def check(self, before: Manifest, after: Manifest, marks: dict[int, int | None], held_from: int) -> None:
        """Whatever tombstone went was superseded, or past its horizon and received, or past its hold."""
        found = read_all(self.store, after)
        last = {r.key: r.offset for r in self.appended}
        gone = marks.keys() - {r.offset for r in found}
        committed_ms = {p.epoch: p.committed_at_ms for p in before.passes}
        for offset in gone & set(last.values()):
            since_ms = self.clock.now_ms() - committed_ms[marks[offset] or 0]
            assert since_ms >= RETENTION_MS + (HOLD_MS if offset >= held_from else 0), f"{offset} went too early"
        assert latest(found) == latest(self.appended)

    def follow(self, replica: Replica) -> None:
        replica.take(self.store)
        assert replica.known == latest(self.appended), f"{replica.name} has another state"

    def settle(self) -> None:
        """Nothing comes: a log whose tombstones are held is left alone."""
        for _ in range(RUNS_MAX):
            if not self.run() and not load(self.store).replaced:
                break
        else:
            pytest.fail("cleaned again and again, and nothing has changed")
        version = load(self.store).version
        self.run()
        assert load(self.store).version == version, "claimed for nothing"

    def live(self, steps: int) -> None:
        """Anything in any order."""
        for _ in range(steps):
            step = self.random.random()
            if step < 0.35:
                self.append()
            elif step < 0.7:
                self.run(may_die=True)
            elif step < 0.75 and self.dead:
                self.dead.pop().land()
            elif step < 0.85:
                self.follow(self.random.choice(self.replicas))
            self.clock.advance(self.random.choice([0, 500, 5_000, 5_000, 30_000]))

    def end(self, wait_ms: int) -> None:
        """Time passes without appends: what is no longer held goes."""
        for _ in range(RUNS_MAX):
            self.run()
            self.clock.advance(wait_ms)
        self.settle()
        if self.topic.min_cleanable_dirty_ratio == self.topic.segment_min_garbage_ratio == 0:
            assert not any(r.is_tombstone for r in read_all(self.store)), "nobody holds it any more"


@pytest.mark.sharded
@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**32))
def test_no_replica_misses_a_tombstone_and_held_tombstones_make_no_log_due(seed: int) -> None:
    world = World(seed)
    world.live(world.random.randrange(4, 14))
    for dead in world.dead:
        dead.land()
    world.clock.advance(10_000)
    world.settle()
    if any(r.is_tombstone for r in read_all(world.store)):
        event("tombstones are held")
    if world.random.random() < 0.5:
        for replica in world.replicas:
            world.follow(replica)
        world.end(RETENTION_MS + 2_000)
    else:
        event("a replica never comes back")
        world.end(RETENTION_MS + HOLD_MS + 2_000)
    for replica in world.replicas:
        world.follow(replica)
    event(f"{sum(r.resyncs for r in world.replicas)} resyncs")
