"""A storm for readers: a writer, a cleaner that deletes soon, and readers of every kind in loops.

    tally = storm(world, seconds=20, seed=1, session=spark, folder=tmp_path)

Raises at the first flaw. At the end the writer stops, and every reader reads once more, to the end, while the cleaner
still cleans: what it has then must be the whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from keyfold.runtime.clock import SystemClock
from keyfold.verify.partition import verify_partition
from tests.support.readers_python import LatestReader, NearFollower, OrderedReader, RestartingFollower
from tests.support.readers_spark import Spark, SparkLatest, SparkOrdered, SparkStream
from tests.support.readers_world import Cleaner, Loop, Reader, Tally, World, Writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAST_ATTEMPTS = 8
RETRY_TIMEOUT_S = 540.0


def storm(
    world: World,
    *,
    seconds: float,
    seed: int,
    each: int = 0,
    session: SparkSession | None = None,
    folder: Path | None = None,
) -> Tally:
    """`seconds` of it. Without a session there is no Spark in it.

    With `each` it lasts until each reader has been right N times, and one has come too late for an object. On a busy
    machine most turns of a reader of Spark's are overtaken; when the time is over, each such turn makes objects
    and tombstones stay for longer, and readers that were right often enough leave the cores to the others, so that the
    storm ends on any machine.
    """
    tally = Tally()
    over_at_s = time.monotonic() + seconds
    with ExitStack() as exits:
        writer, cleaner = Writer(world, seed).open(), Cleaner(world, seed).open()
        exits.callback(writer.close)
        exits.callback(cleaner.close)
        writing = Loop(writer.turn, tally)
        exits.callback(writing.end)
        cleaning = Loop(cleaner.turn, tally)
        exits.callback(cleaning.end)
        beside, here, near = _readers(world, seed, session, folder, exits)

        def turn(reader: Reader) -> None:
            tally.take(reader)
            if each and time.monotonic() >= over_at_s and tally.right[reader.name] >= each:
                time.sleep(1.0)

        loops = [Loop(partial(turn, reader), tally) for reader in [*beside, near]]
        for loop in loops:
            exits.callback(loop.end)
        names = {reader.name for reader in [*beside, near, *here]}

        def is_enough() -> bool:
            return not each or (min(tally.right[name] for name in names) >= each and bool(world.gone))

        _spark_turns(world, here, tally, seconds, Random(seed), each, is_enough)
        for loop in [writing, *loops]:
            loop.end()
        _check(tally)
        for reader in [*beside, near, *here]:
            _last(reader, tally)
        _check(tally)
        _wait_for_purge(cleaner, tally)
        cleaning.end()
        _check(tally)
        print(tally, cleaner, f"{len(world.gone)} objects were gone under readers", near, sep="; ")
        assert min(cleaner.superseded, cleaner.purged) > 0, cleaner
        assert world.gone, "no reader came too late for an object: this was no storm"
        _verify(world)
    return tally


def _readers(
    world: World, seed: int, session: SparkSession | None, folder: Path | None, exits: ExitStack
) -> tuple[list[Reader], list[Reader], NearFollower]:
    """Those that run in threads, those of Spark, and the one that must be quick."""
    slow = [exits.enter_context(world.opened(Random(seed + number))) for number in range(4)]
    logs = [exits.enter_context(world.opened()) for _ in range(2)]
    beside: list[Reader] = [
        LatestReader(world, slow[0], seed),
        OrderedReader(world, slow[1], seed),
        RestartingFollower(world, slow[2], seed),
        RestartingFollower(world, slow[3], seed, from_latest=True),
    ]
    here: list[Reader] = []
    if session is not None and folder is not None:
        spark = Spark(session, world, logs[0])
        here = [
            SparkStream(spark, folder, seed),
            SparkLatest(spark),
            SparkOrdered(spark, seed, source=False),
            SparkOrdered(spark, seed, source=True),
        ]
    return beside, here, NearFollower(world, logs[1], 0)


def _spark_turns(
    world: World,
    readers: list[Reader],
    tally: Tally,
    seconds: float,
    random: Random,
    each: int,
    is_enough: Callable[[], bool],
) -> None:
    """Spark's readers take turns in this thread, each once at least; in the end those that were rarely right."""
    begun_s = time.monotonic()
    retry_timeout_s = max(RETRY_TIMEOUT_S, 2 * seconds)
    turns = list(readers)
    while not tally.errors and (turns or time.monotonic() < begun_s + seconds or not is_enough()):
        said = f"{tally}; {len(world.gone)} objects were gone under readers"
        assert time.monotonic() < begun_s + seconds + retry_timeout_s, f"readers are hardly ever right, or late: {said}"
        is_over = time.monotonic() >= begun_s + seconds
        if not turns and is_over:
            turns = [reader for reader in readers if tally.right[reader.name] < each]
        if readers:
            was_right = tally.take(turns.pop(0) if turns else random.choice(readers))
            if is_over and not was_right:
                world.keep_all_longer()
        else:
            time.sleep(0.1)


def _last(reader: Reader, tally: Tally) -> None:
    """The last turn of a reader; one that was overtaken begins again, a little later."""
    for _ in range(LAST_ATTEMPTS):
        if tally.take(reader, last=True):
            return
        time.sleep(1.0)
    raise AssertionError(f"{reader.name} was overtaken {LAST_ATTEMPTS} times, and nothing is written any more")


def _wait_for_purge(cleaner: Cleaner, tally: Tally) -> None:
    """Tombstones are due a while after the last of them was written."""
    until_s = time.monotonic() + RETRY_TIMEOUT_S
    while not cleaner.purged and not tally.errors and time.monotonic() < until_s:
        time.sleep(0.1)


def _check(tally: Tally) -> None:
    assert not tally.errors, tally.errors[0]


def _verify(world: World) -> None:
    with world.opened() as log:
        for partition in world.histories:
            report = verify_partition(log.store, world.place(partition), clock=SystemClock(), random=Random(0))
            assert report.is_sound, report.damage
