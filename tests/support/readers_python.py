"""Readers of the Python interface, for `tests.support.readers_world`: each turn is one read, judged."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from random import Random
from threading import Event

from keyfold import Position
from keyfold.log.record import Record
from keyfold.read.log import Log
from keyfold.read.records import records_of
from keyfold.read.selection import Selection
from tests.support.reader_proof import (
    History,
    lag_flaws,
    latest_flaws,
    ordered_flaws,
    prefix_flaws,
    sequence_flaws,
)
from tests.support.readers_world import OVERTAKEN, World, ends, sound

SLOW_RECORDS = 200
"""As many records a slow reader takes slowly: some seconds, longer than objects stay."""


class Until(Event):
    """Set when a condition holds."""

    def __init__(self, condition: Callable[[], bool]) -> None:
        super().__init__()
        self._condition = condition

    def is_set(self) -> bool:
        """Ask the condition."""
        return super().is_set() or self._condition()

    def wait(self, timeout: float | None = None) -> bool:
        """Not as long as nothing comes, since the condition may begin to hold meanwhile."""
        return super().wait(min(timeout or 0.05, 0.05))


class LatestReader:
    """`Log.latest` and `Log.latest_batches`, of one partition."""

    name = "latest"

    def __init__(self, world: World, log: Log, seed: int) -> None:
        self._world, self._log, self._random = world, log, Random(seed)

    def turn(self, *, last: bool) -> None:
        """See `Reader.turn`."""
        partition = self._random.choice(list(self._world.histories))
        history = self._world.histories[partition]
        begin = self._log.manifest(partition).next_offset
        if self._random.random() < 0.5:
            latest = self._log.latest(partition)
            found = list(_dawdle(latest, 0.0 if last else self._random.choice((0.0, 0.0, 0.05))))
            position = latest.position
        else:
            batches = self._log.latest_batches(partition, batch_bytes=self._random.choice((1, 8_000_000)))
            found = [record for batch in batches for record in records_of(batch)]
            position = batches.position
        end = self._log.manifest(partition).next_offset
        sound(sequence_flaws(history, found), self.name)
        sound(latest_flaws(history, found, begin=begin, end=end), self.name)
        sound(latest_flaws(history, found, begin=position.offset, end=position.offset), f"{self.name} at its position")


class OrderedReader:
    """`Log.read` and `Log.batches`, from and to random offsets, of all keys or some."""

    name = "ordered"

    def __init__(self, world: World, log: Log, seed: int) -> None:
        self._world, self._log, self._random = world, log, Random(seed)

    def turn(self, *, last: bool) -> None:
        """See `Reader.turn`."""
        partition = self._random.choice(list(self._world.histories))
        history, random = self._world.histories[partition], self._random
        begin = self._log.manifest(partition).next_offset
        start = 0 if last else random.choice((0, random.randrange(begin + 1)))
        to_offset = None if last else random.choice((None, random.randrange(start, begin + 1)))
        keys = frozenset(b"k%d" % n for n in range(5)) if random.random() < 0.3 else None
        if keys or random.random() < 0.5:
            batches = self._log.batches(
                partition,
                from_offset=start,
                to_offset=to_offset,
                where=Selection(keys=keys),
                batch_bytes=random.choice((1, 2_000, 8_000_000)),
            )
            found = [record for batch in batches for record in records_of(batch)]
        else:
            records = self._log.read(partition, from_offset=start, to_offset=to_offset)
            found = list(_dawdle(records, 0.0 if last else random.choice((0.0, 0.03))))
        after = self._log.manifest(partition)
        judged, dense = history if keys is None else _of_keys(history, keys), after.first_dirty_offset
        if to_offset is None:
            flaws = ordered_flaws(judged, found, start=start, begin=begin, end=after.next_offset, dense_from=dense)
        else:
            flaws = prefix_flaws(judged, found, start=start, end=to_offset, horizon=after.next_offset, dense_from=dense)
        sound(flaws, f"{self.name} from {start} to {to_offset}, keys {keys}")


class RestartingFollower:
    """`Log.follow` of all partitions, stopped and resumed from positions stored as JSON.

    With `from_latest` it is a cache: a latest state, followed from where it ends.
    """

    def __init__(self, world: World, log: Log, seed: int, *, from_latest: bool = False) -> None:
        self.name = "cache" if from_latest else "follow"
        self._world, self._log, self._random = world, log, Random(seed)
        self._from_latest = from_latest
        self._forget()

    def _forget(self) -> None:
        self._found: dict[int, list[Record]] = {partition: [] for partition in self._world.histories}
        self._kept = ""
        self._dense = dict.fromkeys(self._found, 0)
        self._sessions = 0

    def turn(self, *, last: bool) -> None:
        """One session; about every tenth goes to the end of the log, and then starts from scratch.

        Now and then it stays away for so long that tombstones may go.
        """
        pace = self._world.pace
        if not last and self._random.random() < 0.15:
            time.sleep(self._random.uniform(0, 2 * (pace.lag_s + pace.delete_retention_s + 1)))
        try:
            self._session(to_end=last or (self._sessions > 2 and self._random.random() < 0.15))
        except OVERTAKEN:
            self._forget()
            raise

    def _session(self, *, to_end: bool) -> None:
        if not self._kept:
            self._begin()
        targets = ends(self._log, self._found) if to_end else {}
        start = {int(p): Position.of(document) for p, document in json.loads(self._kept).items()}
        count, most = 0, self._random.randrange(1, 300)
        deadline_s = time.monotonic() + self._random.uniform(0.1, 2.0)

        def is_over() -> bool:
            if to_end:
                positions = follower.positions()
                return all(positions[p].offset >= target for p, target in targets.items())
            return count >= most or time.monotonic() > deadline_s

        follower = self._log.follow(self._found.keys(), start=start, stop=Until(is_over), batch_bytes=20_000)
        for partition, record in follower:
            self._found[partition].append(record)
            count += 1
            if not to_end and self._random.random() < 0.01:
                time.sleep(self._random.random())
        positions = follower.positions()
        self._kept = json.dumps({str(p): position.document() for p, position in positions.items()})
        self._sessions += 1
        for partition, position in positions.items():
            self._judge(partition, position.offset)
        if to_end:
            self._forget()

    def _begin(self) -> None:
        if not self._from_latest:
            positions = {p: Position(0, self._log.follow(p).positions()[p].anchor) for p in self._found}
        else:
            latest = {p: self._log.latest(p) for p in self._found}
            for partition, records in latest.items():
                self._found[partition] = list(records)
            positions = {p: records.position for p, records in latest.items()}
            self._dense = {p: position.offset for p, position in positions.items()}
        self._kept = json.dumps({str(p): position.document() for p, position in positions.items()})

    def _judge(self, partition: int, end: int) -> None:
        after = self._log.manifest(partition)
        dense = max(after.first_dirty_offset, self._dense[partition])
        history, found = self._world.histories[partition], self._found[partition]
        if self._from_latest:
            history = _keyed(history)
            found = [record for record in found if record.key is not None]
        sound(prefix_flaws(history, found, end=end, horizon=after.next_offset, dense_from=dense), self.name)


class NearFollower:
    """`Log.follow` of one partition by a reader that does nothing else: in time, it sees every record."""

    name = "near"

    def __init__(self, world: World, log: Log, partition: int) -> None:
        self._world, self._log, self._partition = world, log, partition
        self._from = 0
        self._position: Position | None = None
        self.delays_s: list[float] = []
        self.missed = 0

    def __str__(self) -> str:
        delays_s = sorted(self.delays_s)
        if not delays_s:
            return "near saw nothing"
        median_s, worst_s = delays_s[len(delays_s) // 2], delays_s[-1]
        return (
            f"near: {len(delays_s)} records seen, {self.missed} not, after {median_s:.2f} s (median), {worst_s:.2f} s"
        )

    @property
    def share_in_time(self) -> float:
        """How many of the records that it saw it saw within the lag."""
        in_time = sum(delay_s < self._world.pace.lag_s for delay_s in self.delays_s)
        return in_time / max(1, len(self.delays_s))

    def turn(self, *, last: bool) -> None:
        """Follow for two seconds, or to the end."""
        partition, history = self._partition, self._world.histories[self._partition]
        target = self._log.manifest(partition).next_offset if last else 2**63
        until_s = time.monotonic() + (60.0 if last else 2.0)
        stop = Until(lambda: time.monotonic() > until_s or follower.positions()[partition].offset >= target)
        start = self._position or 0
        try:
            follower = self._log.follow(partition, start={partition: start}, stop=stop)
            seen = [(record, time.monotonic()) for _, record in follower]
        except OVERTAKEN:
            self._position, self._from = None, self._log.manifest(partition).next_offset
            raise
        ended_s = time.monotonic()
        self._position = follower.positions()[partition]
        begin, end, self._from = self._from, self._position.offset, self._position.offset
        found = [record for record, _ in seen]
        sound(sequence_flaws(history, found), self.name)
        sound(lag_flaws(history, seen, start=begin, end=end, ended_s=ended_s, lag_s=self._world.pace.lag_s), self.name)
        self.missed += len(history.between(begin, end)) - len(found)
        self.delays_s += [at_s - history.written_s[history.place(record.offset)] for record, at_s in seen]


def _dawdle(records: Iterable[Record], seconds: float) -> Iterator[Record]:
    """Read slowly at first; not to the end, as a log that the cleaner has not reached yet has thousands of records."""
    for number, record in enumerate(records):
        time.sleep(seconds if number < SLOW_RECORDS else 0.0)
        yield record


def _of_keys(history: History, keys: frozenset[bytes]) -> History:
    return History([r for r in history.records if r.key in keys], [], history.ends)


def _keyed(history: History) -> History:
    return History([r for r in history.records if r.key is not None], [], history.ends)
