"""A log that is written and cleaned without pause, its history, and what can go wrong for its readers.

World       where the log is, what was written, how far it has come
Writer      appends small segments as a sink does
Cleaner     runs passes of the compactor, one after the other, and deletes what they replaced after a short while
Readers     read in loops, each turn judged by `tests.support.reader_proof`
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Protocol, cast

from keyfold.errors import ObjectNotFound, OffsetOutOfRange, SnapshotLost
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.read.log import Log
from keyfold.runtime.clock import SystemClock
from keyfold.store.api import Blob, ObjectStore
from keyfold.store.s3 import S3Location, S3Store
from keyfold_compactor.decide.settings import TopicSettings
from tests.support.cleaning import EAGER, Sink, new_run
from tests.support.reader_proof import Flaw, History

TOPIC = "users"
TOPICS_DIR = "topics"
SLOW_EVERY = 20
"""A slow reader delays one of N requests for a range."""
SLOW_MAX_S = 20.0
"""The longest delay of such a request."""
OVERTAKEN = (OffsetOutOfRange, SnapshotLost)
"""What a reader is told that was too slow. Nothing else may happen to one."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast all goes. Times in seconds."""

    lag_s: float = 2.0
    delete_retention_s: float = 6.0
    file_delete_delay_s: float = 1.0
    write_every_s: float = 0.2
    keys: int = 60

    @property
    def settings(self) -> TopicSettings:
        """For the compactor."""
        return replace(
            EAGER,
            min_compaction_lag_ms=int(1000 * self.lag_s),
            delete_retention_ms=int(1000 * self.delete_retention_s),
            file_delete_delay_ms=int(1000 * self.file_delete_delay_s),
        )


@dataclass(slots=True)
class World:
    """One topic in a bucket, and its histories by partition."""

    location: S3Location
    pace: Pace = field(default_factory=Pace)
    histories: Mapping[int, History] = field(default_factory=lambda: {0: History(), 1: History()})
    gone: list[str] = field(default_factory=list)
    """Objects that readers in this process came for too late."""

    @property
    def url(self) -> str:
        """Where it is."""
        return f"s3://{self.location.bucket}/{TOPICS_DIR}"

    def keep_all_longer(self) -> None:
        """Double both times from the next pass on, as `SnapshotLost` and `OffsetOutOfRange` tell an operator to."""
        self.pace = replace(
            self.pace,
            file_delete_delay_s=2.0 * self.pace.file_delete_delay_s,
            delete_retention_s=2.0 * self.pace.delete_retention_s,
        )

    def place(self, partition: int) -> Place:
        """A partition's place."""
        return Place(TOPICS_DIR, TOPIC, partition)

    @contextmanager
    def opened(self, slow: Random | None = None) -> Iterator[Log]:
        """Open the log with a store of its own. With `slow`, one of `SLOW_EVERY` requests for a range is delayed.

        The delay ends when the cleaner has deleted the object, or after `SLOW_MAX_S`: the end of a storm waits for all
        readers, and must not wait for long.
        """
        store = self.location.open()

        def wait(key: str) -> None:
            if slow is None or slow.randrange(SLOW_EVERY):
                return
            until_s = time.monotonic() + min(self.pace.file_delete_delay_s + 5 * self.pace.lag_s, SLOW_MAX_S)
            with suppress(ObjectNotFound):
                while time.monotonic() < until_s:
                    store.head(key)
                    time.sleep(0.2)

        try:
            yield Log(cast("ObjectStore", _Noting(store, self.gone, wait)), TOPICS_DIR, TOPIC)
        finally:
            store.close()


class _Noting:
    """A store that notes what was not there."""

    def __init__(self, store: S3Store, gone: list[str], wait: Callable[[str], None]) -> None:
        self._store, self._gone, self._wait = store, gone, wait

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        """See `ObjectStore.get`."""
        with self._recorded():
            return self._store.get(key, max_bytes)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `ObjectStore.get_range`."""
        self._wait(key)
        with self._recorded():
            return self._store.get_range(key, start, length)

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        try:
            yield
        except ObjectNotFound as error:
            self._gone.append(error.key)
            raise


def ends(log: Log, partitions: Mapping[int, object]) -> dict[int, int]:
    """How far the log has come."""
    return {partition: log.manifest(partition).next_offset for partition in partitions}


class Writer:
    """Appends to all partitions until it is stopped."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._random = Random(seed)
        self._seed = seed
        self._clock = SystemClock()

    def open(self) -> Writer:
        """Make the logs."""
        self._store = self._world.location.open()
        self._sinks = {
            partition: Sink.open(self._store, self._world.place(partition), clock=self._clock, seed=self._seed)
            for partition in self._world.histories
        }
        return self

    def turn(self) -> None:
        """One segment for each partition."""
        for partition, history in self._world.histories.items():
            sink = self._sinks[partition]
            batch, end = self._batch(sink.session.manifest.next_offset)
            history.write(batch, end, time.monotonic())
            sink.append(batch, next_offset=end, block_bytes=self._random.choice((300, 5_000)), codec="zstandard")
        time.sleep(self._random.uniform(0, 2 * self._world.pace.write_every_s))

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _batch(self, start: int) -> tuple[list[Record], int]:
        random, at = self._random, start
        batch: list[Record] = []
        for _ in range(random.randrange(1, 40)):
            at += random.choice((0, 0, 0, 0, 1, 3))
            key = None if random.random() < 0.02 else b"k%d" % random.randrange(self._world.pace.keys)
            value = None if key and random.random() < 0.2 else b"v%d" % at + bytes(random.randrange(80))
            headers = (("at", b"%d" % at),) if random.random() < 0.3 else ()
            batch.append(Record(at, self._clock.now_ms(), "CreateTime", key, value, headers, 0))
            at += 1
        return batch, at + random.choice((0, 0, 2))


class Cleaner:
    """Passes of the compactor, in this process, without Spark."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._seed = seed
        self.superseded = 0
        self.purged = 0

    def __str__(self) -> str:
        return f"{self.superseded} superseded records and {self.purged} tombstones removed"

    def open(self) -> Cleaner:
        """Open the store."""
        self._store = self._world.location.open()
        return self

    def turn(self) -> None:
        """One run over all partitions."""
        self._seed += 1
        places = [self._world.place(partition) for partition in self._world.histories]
        run = new_run(
            self._store, self._world.pace.settings, clock=SystemClock(), seed=self._seed, retry_timeout_s=30.0
        )
        report = run.clean(places)
        assert not report.failed, report
        self.superseded += sum(part.superseded for part in report.partitions)
        self.purged += sum(part.purged_tombstones for part in report.partitions)
        time.sleep(0.5)

    def close(self) -> None:
        """Close the store."""
        self._store.close()


class Reader(Protocol):
    """Reads in turns, and judges each."""

    @property
    def name(self) -> str:
        """For the tally."""

    def turn(self, *, last: bool) -> None:
        """Read and judge once; on the `last` turn writing has ended, and everything is judged.

        Raises one of `OVERTAKEN`, and has then forgotten what it knew; `AssertionError` where it sees a flaw.
        """


def sound(flaws: Sequence[Flaw], what: str) -> None:
    """Raise where there is a flaw."""
    assert not flaws, f"{what}: " + "; ".join(f"{flaw.kind}: {flaw.what}" for flaw in flaws[:5])


@dataclass(slots=True)
class Tally:
    """How often each reader was right, and how often it was refused for being too slow."""

    right: Counter[str] = field(default_factory=Counter)
    overtaken: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    def take(self, reader: Reader, *, last: bool = False) -> bool:
        """One turn; whether it was right."""
        try:
            reader.turn(last=last)
        except OVERTAKEN:
            self.overtaken[reader.name] += 1
            return False
        self.right[reader.name] += 1
        return True

    def __str__(self) -> str:
        names = sorted({*self.right, *self.overtaken})
        return ", ".join(f"{name} {self.right[name]} (+ {self.overtaken[name]} overtaken)" for name in names)


class Loop(threading.Thread):
    """Something again and again, until it is stopped or fails."""

    def __init__(self, turn: Callable[[], object], tally: Tally) -> None:
        super().__init__(daemon=True)
        self._turn = turn
        self._tally = tally
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        """The loop."""
        try:
            while not self._ended.is_set() and not self._tally.errors:
                self._turn()
        except BaseException:  # noqa: BLE001 - told to the test
            self._tally.errors.append(traceback.format_exc())

    def end(self) -> None:
        """Stop it after its turn."""
        self._ended.set()
        self.join(180)
        assert not self.is_alive(), "a turn does not end"
