"""Batches, followers and latest states in little memory against the real compactor, which runs between store calls."""

from __future__ import annotations

import json
from random import Random
from threading import Event

import pytest

from keyfold.errors import OffsetOutOfRange, SnapshotLost
from keyfold.log.record import Record
from keyfold.read.blocks import ReadLimits
from keyfold.read.follow import Position
from keyfold.read.latest import read_latest_batches
from keyfold.read.records import records_of
from tests.integration.test_read_compactor import World
from tests.support.cleaning import PLACE, latest, load


class Ticks(Event):
    """A stop event whose waits advance the world, and that is set after some of them."""

    def __init__(self, world: World, count: int) -> None:
        super().__init__()
        self._world = world
        self._left = count

    def wait(self, timeout: float | None = None) -> bool:
        self._world.clock.sleep(timeout or 0)
        store = self._world.store
        meddle, store.meddle = store.meddle, None
        self._world.meddle()
        store.meddle = meddle
        self._left -= 1
        if self._left <= 0:
            self.set()
        return self.is_set()


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(15))
def test_batches_and_states_read_during_compaction_existed(seed: int) -> None:
    world = World(seed)
    for _ in range(4):
        world.append()
    world.store.meddle = world.meddle
    random = Random(seed)

    def ordered() -> dict[bytes, Record]:
        batches = world.log.batches(batch_bytes=random.choice((1, 100, 10_000)))
        return latest(r for batch in batches for r in records_of(batch))

    def snapshot() -> dict[bytes, Record]:
        memory_bytes = random.choice((200, 400, 10**6))
        batches = read_latest_batches(
            world.store,
            PLACE,
            world.log.manifest,
            memory_bytes=memory_bytes,
            batch_bytes=random.choice((1, 10_000)),
            limits=ReadLimits(memory_bytes_min=1),
        )
        return {r.key or b"": r for batch in batches for r in records_of(batch)}

    read = 0
    for _ in range(8):
        for result in (ordered, snapshot):
            begin = world.end
            try:
                state = result()
            except (OffsetOutOfRange, SnapshotLost):
                continue
            read += 1
            assert any(state == latest(world.source[:end]) for end in range(begin, world.end + 1))
    assert read


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(15))
def test_a_restarting_follower_has_the_logs_state_or_gets_an_error(seed: int) -> None:
    world = World(seed)
    world.append()
    world.store.meddle = world.meddle
    random = Random(seed)
    state: dict[bytes, Record] = {}
    start: dict[int, int | Position] = {0: 0}
    last, caught_up = -1, 0
    for _ in range(25):
        stop = Ticks(world, random.randrange(1, 6))
        try:
            follower = world.log.follow(0, start=start, stop=stop, batch_bytes=random.choice((1, 10_000)))
            for _, r in follower:
                assert r.offset > last
                assert r == world.source[r.offset]
                last = r.offset
                if r.key is not None:
                    state.pop(r.key, None)
                    if r.value is not None:
                        state[r.key] = r
                if random.random() < 0.02:
                    stop.set()
        except OffsetOutOfRange:
            state, start, last = {}, {0: 0}, -1
            continue
        kept = json.loads(json.dumps({p: position.document() for p, position in follower.positions().items()}))
        start = {int(p): Position.of(document) for p, document in kept.items()}
        position = follower.positions()[0].offset
        if position >= load(world.store).next_offset:
            caught_up += 1
            assert state == latest(world.source[:position])
    assert caught_up
