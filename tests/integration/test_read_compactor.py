"""Reader, verify and repair against the real compactor (without Spark), which runs between any two store calls."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from keyfold.errors import OffsetOutOfRange, SnapshotLost
from keyfold.log.record import Record
from keyfold.read.log import Log
from keyfold.runtime.clock import ManualClock
from keyfold.verify.partition import verify_partition
from keyfold.verify.repair import apply_repair, plan_repair
from tests.support.cleaning import EAGER, PLACE, Sink, clean, last_per_key, latest, load, record
from tests.support.meddling import MeddlingStore


class World:
    """A source of records, a sink that appends them, and a compactor that may run at any moment."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = ManualClock()
        self.store = MeddlingStore("test", self.clock)
        keys = (None, *(f"k{n}" for n in range(8)))
        self.source = [
            record(o, self.random.choice(keys), self.random.choice((None, f"v{o}" * 5)), o) for o in range(3000)
        ]
        self.sink = Sink.open(self.store, clock=self.clock, seed=seed)
        self.log = Log(self.store, PLACE.topics_dir, PLACE.topic, clock=self.clock, random=self.random)
        self.passes = 0

    @property
    def end(self) -> int:
        return load(self.store).next_offset

    def append(self) -> None:
        begin = self.sink.session.refresh().next_offset
        self.sink.append(
            self.source[begin : begin + self.random.randrange(1, 9)], block_bytes=self.random.choice((32, 400))
        )

    def compact(self) -> None:
        self.passes += 1
        retention = self.random.choice((0, 0, 500))
        grace = self.random.choice((0, 500))
        settings = replace(EAGER, delete_retention_ms=retention, file_delete_delay_ms=grace)
        clean(self.store, settings, clock=self.clock, seed=self.passes)

    def meddle(self) -> None:
        self.clock.advance(self.random.randrange(200))
        self.random.choices((self.append, self.compact, lambda: None), (15, 25, 60))[0]()


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(25))
def test_reads_during_compaction_return_a_state_that_existed(seed: int) -> None:
    world = World(seed)
    for _ in range(4):
        world.append()
    world.store.meddle = world.meddle
    read = 0
    for _ in range(8):
        for result in (lambda: latest(world.log.read()), lambda: {r.key: r for r in world.log.latest()}):
            begin = world.end
            try:
                state = result()
            except (OffsetOutOfRange, SnapshotLost):
                continue
            read += 1
            assert any(state == latest(world.source[:end]) for end in range(begin, world.end + 1))
    assert read
    world.store.meddle = None
    report = verify_partition(world.store, PLACE, clock=world.clock, random=world.random)
    assert report.is_sound, report.damage


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(25))
def test_repair_restores_the_state_that_the_compactor_left(seed: int) -> None:
    world = World(seed)
    for _ in range(world.random.randrange(2, 10)):
        world.append()
        world.clock.advance(world.random.randrange(400))
        if world.random.random() < 0.6:
            world.compact()
    end = world.end
    state = latest(world.source[:end])
    assert latest(world.log.read()) == state
    world.store.delete(PLACE.manifest_key)
    plan = plan_repair(world.store, PLACE, clock=world.clock, random=world.random)
    apply_repair(world.store, plan, clock=world.clock, random=world.random)
    assert latest(world.log.read()) == state
    report = verify_partition(world.store, PLACE, clock=world.clock, random=world.random)
    assert report.is_sound, report.damage
    sink = Sink.open(world.store, clock=world.clock, seed=seed + 1)
    begin = sink.session.manifest.next_offset
    sink.append(world.source[begin : begin + 5])
    clean(world.store, EAGER, clock=world.clock, seed=99)
    found: list[Record] = list(world.log.read())
    assert latest(found) == latest(world.source[: begin + 5])
    assert found == last_per_key(found)
