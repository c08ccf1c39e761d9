"""Lookups of random keys while a log is written, cleaned and replicated: each answer must be right for its version.

    storm(location, lookups=2000, seed=1)

Keys are present, superseded, deleted, absent and long. Answers never go back to an older version or record. Objects of
replaced versions are deleted all the time. Half of the lookups are at the replica, which is behind the log. Directories
of keys are kept beside both, and deleted now and then. One lookup in fifty is a new one, which knows nothing yet.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from random import Random

from keyfold.log.record import Record
from keyfold.read.log import Log
from keyfold.read.lookup import Found, Lookup
from keyfold.runtime.clock import SystemClock
from keyfold.store.api import ObjectStore, StoreLocation
from keyfold.store.pacing import Pacer
from keyfold.store.s3 import S3Location
from keyfold_compactor.key_directories import keeping
from keyfold_compactor.options import CompactOptions
from keyfold_replicator.rounds.runner import RUNNER_TIMINGS, Runner
from tests.support.reader_proof import History
from tests.support.readers_world import TOPIC, TOPICS_DIR, Cleaner, Loop, Pace, Tally, World, Writer
from tests.support.replica_rounds import SETTINGS, FixedDocuments, pair

LONG = b"long-" + bytes(100_000)
KEYS = 300
REPLICA_DIR = "far/logs"


class LongKeyWriter(Writer):
    """A writer that also writes a key of 100 KB."""

    def _batch(self, start: int) -> tuple[list[Record], int]:
        batch, end = super()._batch(start)
        if self._random.random() < 0.2:
            at = self._random.randrange(len(batch))
            batch[at] = replace(batch[at], key=LONG)
        return batch, end


class Oracle:
    """The records of each key, in order of offsets, of one partition's history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._known = 0
        self._by_key: dict[bytes, list[Record]] = {}

    def last(self, key: bytes, end: int) -> Record | None:
        """Return the last record of a key before an offset."""
        records = self._history.records
        while self._known < len(records):
            record = records[self._known]
            self._known += 1
            if record.key is not None:
                self._by_key.setdefault(record.key, []).append(record)
        return next((each for each in reversed(self._by_key.get(key, [])) if each.offset < end), None)


class Judge:
    """Compares answers with the history, and with the answers before."""

    def __init__(self, world: World) -> None:
        self._oracles = {number: Oracle(history) for number, history in world.histories.items()}
        self._ends: dict[int, int] = {}
        self._offsets: dict[tuple[int, bytes], int] = {}
        self.seen: Counter[str] = Counter()

    @property
    def answers(self) -> int:
        """The number of answers that were checked."""
        return self.seen.total()

    def check(self, number: int, key: bytes, found: Found) -> None:
        """Raise `AssertionError` for a wrong answer."""
        end = found.next_offsets[number]
        assert end >= self._ends.get(number, 0), "an older version"
        self._ends[number] = end
        wanted = self._oracles[number].last(key, end)
        if found.record is None:
            # A tombstone may be gone by now; a value may not.
            assert wanted is None or wanted.is_tombstone, f"{key[:20]!r} is missing, {wanted}"
            self.seen["absent" if wanted is None else "purged"] += 1
            return
        assert found.record == wanted, f"{key[:20]!r}: {found.record} instead of {wanted}"
        assert found.record.offset >= self._offsets.get((number, key), 0), "an older record"
        self._offsets[number, key] = found.record.offset
        self.seen["deleted" if found.record.is_tombstone else "long" if key == LONG else "present"] += 1


def storm(location: S3Location, *, lookups: int, seed: int) -> Counter[str]:
    """Return how many keys of each kind were looked up."""
    pace = Pace(lag_s=0.5, delete_retention_s=1.0, file_delete_delay_s=0.3, write_every_s=0.2, keys=KEYS)
    world, tally, random = World(location, pace), Tally(), Random(seed)
    with ExitStack() as exits:
        writer, cleaner = LongKeyWriter(world, seed).open(), Cleaner(world, seed).open()
        exits.callback(writer.close)
        exits.callback(cleaner.close)
        writer.turn()
        replicate, replica = _replica(world, seed, exits)
        replicate()
        asked = [(log.lookup(), Judge(world), log) for log in (exits.enter_context(world.opened()), replica)]
        kept: Counter[str] = Counter()
        keep = _keeper(world, [TOPICS_DIR, REPLICA_DIR], seed, exits, kept)
        for turn in (writer.turn, cleaner.turn, replicate, keep):
            exits.callback(Loop(turn, tally).end)
        while sum(judge.answers for _, judge, _ in asked) < lookups:
            assert not tally.errors, tally.errors[0]
            side = random.randrange(2)
            lookup, judge, log = asked[side]
            if random.random() < 0.02:
                lookup = log.lookup()
                asked[side] = lookup, judge, log
            if random.random() < 0.3:
                lookup.refresh()
            keys = _keys(random)
            for number in world.histories:
                for key, found in _answers(lookup, keys, number, random).items():
                    judge.check(number, key, found)
    assert not tally.errors, tally.errors[0]
    (_, of_log, _), (_, of_replica, _) = asked
    late = {"too late for an object": len(world.gone), "at the replica": of_replica.answers}
    return of_log.seen + of_replica.seen + Counter(late) + kept


def _replica(world: World, seed: int, exits: ExitStack) -> tuple[Callable[[], None], Log]:
    """Return one round of replication into another folder of the bucket, and the replica."""
    source, replica = world.location.open(), world.location.open()
    exits.callback(source.close)
    exits.callback(replica.close)
    settings = replace(SETTINGS, poll_ms=50, file_delete_delay_ms=int(1000 * world.pace.file_delete_delay_s))
    made = pair(source, replica)
    runner = exits.enter_context(
        Runner(
            made,
            FixedDocuments(),
            settings,
            clock=SystemClock(),
            random=Random(seed),
            publish=lambda _: None,
            timings=RUNNER_TIMINGS,
        )
    )

    def replicate() -> None:
        done = runner.once()
        assert not done.error, done.error
        assert not done.failed, done.states

    return replicate, Log(replica, made.replica.topics_dir, TOPIC)


def _keeper(
    world: World, folders: Sequence[str], seed: int, exits: ExitStack, kept: Counter[str]
) -> Callable[[], None]:
    """Return one turn of keeping directories of keys below these folders, which now and then deletes them instead."""
    store, random = world.location.open(), Random(seed)
    exits.callback(store.close)
    steps = []
    for folder in folders:
        config = {"s3.bucket.name": world.location.bucket, "topics.dir": folder, "keys.directory": "true"}
        options = CompactOptions.parse(config)
        opener = partial(_opened, world)
        steps.append(exits.enter_context(keeping(options, clock=SystemClock(), random=random, opener=opener)))

    def keep() -> None:
        for folder, step in zip(folders, steps, strict=True):
            if random.random() < 0.1:
                for info in list(store.list(f"{folder}/_keys/")):
                    store.delete(info.key)
            for done in step(lambda: False):
                assert not done.is_failure, done.lines
                kept["directories"] += 1
        time.sleep(0.5)

    return keep


def _opened(world: World, _location: StoreLocation, _pacer: Pacer | None) -> ObjectStore:
    return world.location.open()


def _keys(random: Random) -> list[bytes]:
    count = random.choice((1, 1, 1, 10, 50))
    found = {b"k%d" % random.randrange(KEYS + 20) for _ in range(count)}
    return [*found, *([LONG] * (random.random() < 0.1))]


def _answers(lookup: Lookup, keys: Sequence[bytes], number: int, random: Random) -> dict[bytes, Found]:
    if len(keys) == 1 and random.random() < 0.5:
        return {keys[0]: lookup.get(keys[0], number)}
    return lookup.get_many(keys, number)
