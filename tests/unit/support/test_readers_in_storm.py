"""The storm's readers, without a storm: correct readers pass, and one that loses, repeats or keeps a record fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from keyfold.log.record import Record
from keyfold.read.log import Log
from keyfold.store.memory import MemoryStore
from keyfold.store.s3 import S3Location
from tests.support.readers_python import LatestReader, NearFollower, OrderedReader, RestartingFollower
from tests.support.readers_world import Cleaner, Pace, World, Writer

Damage = Callable[[list[Record]], list[Record]]


class OpenStore(MemoryStore):
    """A store that is its own location."""

    def open(self) -> OpenStore:
        return self

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def world() -> World:
    """Return a log that was written, cleaned in its old part, and written again."""
    world = World(cast("S3Location", OpenStore()), Pace(lag_s=0, delete_retention_s=60, write_every_s=0, keys=20))
    writer, cleaner = Writer(world, 3).open(), Cleaner(world, 3).open()
    for _ in range(6):
        writer.turn()
    cleaner.turn()
    writer.turn()
    assert cleaner.superseded > 0
    return world


class Broken:
    """A log with wrong latest states and reads."""

    def __init__(self, log: Log, damage: Damage) -> None:
        self._log, self._damage = log, damage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def latest(self, partition: int) -> Any:
        return _Items(self._log.latest(partition), self._damage)

    def latest_batches(self, partition: int, **_: object) -> Any:
        raise RuntimeError("not this one")

    def read(self, partition: int, **range_: Any) -> Iterator[Record]:
        return iter(self._damage(list(self._log.read(partition, **range_))))


class _Items:
    def __init__(self, latest: Any, damage: Damage) -> None:
        self._items, self._latest = iter(damage(list(latest))), latest

    def __iter__(self) -> Iterator[Record]:
        return self._items

    @property
    def position(self) -> Any:
        return self._latest.position


def test_correct_readers_pass(world: World) -> None:
    with world.opened() as log:
        for seed in range(8):
            LatestReader(world, log, seed).turn(last=True)
            OrderedReader(world, log, seed).turn(last=True)
        OrderedReader(world, log, 1).turn(last=False)
        for from_latest in (False, True):
            RestartingFollower(world, log, 1, from_latest=from_latest).turn(last=True)
        NearFollower(world, log, 0).turn(last=True)


DAMAGES: dict[str, Damage] = {
    "loses the last record": lambda found: found[:-1],
    "loses the first record": lambda found: found[1:],
    "repeats a record": lambda found: [*found[:2], *found[1:]],
    "turns two about": lambda found: [found[1], found[0], *found[2:]],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_wrong_latest_state_is_caught(world: World, damage: Damage) -> None:
    with world.opened() as log:
        caught = 0
        for seed in range(10):
            try:
                LatestReader(world, cast("Log", Broken(log, damage)), seed).turn(last=True)
            except AssertionError:
                caught += 1
            except RuntimeError:
                continue
            else:
                raise AssertionError("nothing was seen")
        assert caught > 1


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_wrong_cache_is_caught(world: World, damage: Damage) -> None:
    with world.opened() as log, pytest.raises(AssertionError, match=r"lost|doubled|reordered"):
        RestartingFollower(world, cast("Log", Broken(log, damage)), 1, from_latest=True).turn(last=True)
