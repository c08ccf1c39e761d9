"""Readers with keyfold's own interface: the latest state, all records in Arrow batches, and a follower.

python -m tests.support.storm.library CONFIG.json
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random
from threading import Event
from typing import Any

from keyfold import Position
from keyfold.errors import KeyfoldError, LogNotFound, OffsetOutOfRange, SnapshotLost, StoreError, TopicNotFound
from keyfold.log.manifest import Manifest
from keyfold.log.record import Record
from keyfold.read.log import Log
from keyfold.read.records import records_of
from keyfold.store.s3 import S3Location, S3Store
from tests.support.storm import reading
from tests.support.storm.judge import Version, fold
from tests.support.storm.truth import Row

TURN_S = 60.0
"""How long a follower may take to reach the end; then the turn is given up. It decides nothing else."""


class Noting(Log):
    """A log that keeps the manifests which were loaded: the last one is the version that a read ended with."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.loaded: list[tuple[Manifest, int]] = []

    def manifest(self, partition: int = 0) -> Manifest:
        """See `Log.manifest`."""
        found = super().manifest(partition)
        self.loaded.append((found, time.time_ns() // 1_000_000))
        return found


class LibraryReader:
    """One turn of any kind."""

    name = ""

    def __init__(self, judge: reading.ReadJudge, stores: dict[str, S3Store], random: Random) -> None:
        self._judge, self._stores, self._random = judge, stores, random

    def turn(self, spot: reading.Spot) -> None:
        """See `SpotReader.turn`."""
        log = Noting(self._stores[spot.bucket], self._judge.config["topics_dir"], spot.topic)
        try:
            self.read(spot, log)
        except (OffsetOutOfRange, SnapshotLost) as error:
            self.forget(spot)
            raise reading.Overtaken(str(error)) from error
        except (LogNotFound, TopicNotFound) as error:
            raise reading.Absent(str(error)) from error
        except KeyfoldError as error:
            if isinstance(error, StoreError) and error.retriable:
                raise reading.NoAnswer(str(error)) from error
            raise reading.Flaw(f"{self.name} at {spot}: {error}") from error

    def read(self, spot: reading.Spot, log: Noting) -> None:
        """Read and judge."""
        raise NotImplementedError

    def forget(self, spot: reading.Spot) -> None:
        """Begin again at the next turn."""


class LatestReader(LibraryReader):
    """`Log.latest` and `Log.latest_batches`."""

    name = "latest"

    def read(self, spot: reading.Spot, log: Noting) -> None:
        """See `LibraryReader`."""
        if self._random.random() < 0.5:
            latest = log.latest(spot.partition)
            rows = [_row(record) for record in latest]
            manifest = latest._manifest()
        else:
            batches = log.latest_batches(spot.partition, batch_bytes=self._random.choice((1, 8_000_000)))
            rows = [_row(record) for batch in batches for record in records_of(batch)]
            manifest = batches._manifest()
        read_at_ms = next(at_ms for found, at_ms in log.loaded if found is manifest)
        state = fold(rows)
        if len(state) != len(rows):
            raise reading.Flaw(f"a key comes twice in the latest state of {spot}, or a deleted one is there")
        self._judge.judge_state(self.name, spot, _version(manifest, manifest, read_at_ms), state)


class BatchReader(LibraryReader):
    """`Log.batches` and `Log.read`, from the log's start to its end."""

    name = "batches"

    def read(self, spot: reading.Spot, log: Noting) -> None:
        """See `LibraryReader`. A read that continues in newer versions ends with the end of the last of them."""
        if self._random.random() < 0.7:
            batches = log.batches(spot.partition, batch_bytes=self._random.choice((1_000, 8_000_000)))
            rows = [_row(record) for batch in batches for record in records_of(batch)]
        else:
            rows = [_row(record) for record in log.read(spot.partition)]
        (first, _), (last, read_at_ms) = log.loaded[0], log.loaded[-1]
        self._judge.judge_snapshot(self.name, spot, _version(first, last, read_at_ms), rows)


class Cache(LibraryReader):
    """A latest state, followed from where it ends, given up and taken up again by its position."""

    name = "follow"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._kept: dict[reading.Spot, tuple[Position, int, dict[bytes, Row]]] = {}

    def read(self, spot: reading.Spot, log: Noting) -> None:
        """See `LibraryReader`. It is judged where it has read all that its newest version has."""
        if spot not in self._kept or self._random.random() < 0.02:
            self._begin(spot, log)
        position, start, state = self._kept[spot]
        deadline_s = time.monotonic() + TURN_S

        def is_over() -> bool:
            at = follower.positions()[spot.partition]
            return at.offset >= at.anchor.seen_to or time.monotonic() > deadline_s

        log.loaded.clear()
        follower = log.follow(spot.partition, start={spot.partition: position}, stop=Until(is_over))
        for _, record in follower:
            _apply(state, _row(record))
        position = follower.positions()[spot.partition]
        self._kept[spot] = (position, start, state)
        if position.offset < position.anchor.seen_to:
            raise reading.NoAnswer("the follower did not reach the end")
        manifest, read_at_ms = log.loaded[-1]
        version = replace(_version(manifest, manifest, read_at_ms), start=start, end=position.offset)
        self._judge.judge_state(self.name, spot, version, state)

    def forget(self, spot: reading.Spot) -> None:
        """See `LibraryReader`."""
        self._kept.pop(spot, None)

    def _begin(self, spot: reading.Spot, log: Noting) -> None:
        latest = log.latest(spot.partition)
        state = fold(_row(record) for record in latest)
        self._kept[spot] = (latest.position, latest._manifest().log_start_offset, state)


class Until(Event):
    """Set when a condition holds."""

    def __init__(self, condition: Callable[[], bool]) -> None:
        super().__init__()
        self._condition = condition

    def is_set(self) -> bool:
        """Ask the condition."""
        return self._condition()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait a moment only: the condition may begin to hold meanwhile."""
        super().wait(min(timeout or 0.05, 0.05))
        return self._condition()


def _apply(state: dict[bytes, Row], row: Row) -> None:
    if row.key is None:
        return
    if row.value is None:
        state.pop(row.key, None)
    else:
        state[row.key] = row


def _row(record: Record) -> Row:
    return Row(record.offset, record.timestamp, record.timestamp_type, record.key, record.value, record.headers)


def _version(first: Manifest, last: Manifest, read_at_ms: int) -> Version:
    """From where the first manifest starts to where the last one ends."""
    return Version(
        last.log_id,
        last.version,
        first.log_start_offset,
        last.next_offset,
        last.first_dirty_offset,
        last.purged_to,
        read_at_ms,
        {ancestor.log_id: ancestor.next_offset for ancestor in last.lineage},
    )


def make(judge: reading.ReadJudge, random: Random) -> Sequence[reading.SpotReader]:
    """Return the readers of this process."""
    config = judge.config
    stores = {
        bucket: S3Location(
            bucket, config["region"], config["store_urls"][bucket], config["access_key_id"], config["secret_access_key"]
        ).open()
        for bucket in config["buckets"]
    }
    kinds: Iterable[type[LibraryReader]] = (LatestReader, BatchReader, Cache)
    return [kind(judge, stores, random) for kind in kinds]


if __name__ == "__main__":
    reading.run(make)
