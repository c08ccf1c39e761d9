"""Followers of a log: read to its end, wait until it grows, and continue.

    for partition, record in follower: ...

Each partition has a position and the anchor of the first version that was read (`keyfold.read.position`). With both, a
follower can continue where it stopped, even after days, or gets an error if records that it needs are gone. It polls
the manifest's ETag, and reads the manifest when it has changed. Between polls the follower waits, longer and longer
while there are no new records. If the store does not answer, it retries, and positions do not move.

Partitions take turns, a version at a time. Within one partition records come in offset order, each once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, Self

import pyarrow as pa

from keyfold.errors import ObjectNotFound, StoreError
from keyfold.log.arrow import COLUMNS
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.read.blocks import READ_LIMITS, ReadLimits
from keyfold.read.ordered import newer
from keyfold.read.position import Anchor, anchor_of, check_resumed, segment_at, start_offset
from keyfold.read.records import records_of
from keyfold.read.segment_reader import BATCH_BYTES, ReadBatch, SegmentRead, take_entry
from keyfold.read.selection import Selection
from keyfold.runtime.clock import Clock
from keyfold.runtime.retry import Backoff
from keyfold.store.api import ObjectStore

DISCOVER_S: Final = 30.0
POLLS: Final = Backoff(first_ms=250, cap_ms=5_000)
RETRY_TIMEOUT_S: Final = 300.0

_DUE_S: Final = 0.001  # sleeps may end slightly early


@dataclass(frozen=True, slots=True)
class Position:
    """The next offset of a reader, and the anchor of the version that it started with.

    Store both: after a restart, the anchor shows whether a tombstone that the reader still needed was removed.
    """

    offset: int
    anchor: Anchor

    def document(self) -> dict[str, Any]:
        """Return the position for JSON."""
        return {
            "offset": self.offset,
            "log_id": self.anchor.log_id,
            "version": self.anchor.version,
            "last_pass_epoch": self.anchor.last_pass_epoch,
            "seen_to": self.anchor.seen_to,
        }

    @staticmethod
    def of(document: Mapping[str, Any]) -> Position:
        """Return the position of a `document()`. Raises `ValueError` for another value."""
        try:
            log_id, version = str(document["log_id"]), int(document["version"])
            anchor = Anchor(log_id, version, int(document["last_pass_epoch"]), int(document.get("seen_to", -1)))
            return Position(int(document["offset"]), anchor)
        except (KeyError, TypeError) as e:
            raise ValueError(f"not a position: {dict(document)!r}") from e


@dataclass(frozen=True, slots=True)
class Wait:
    """A follower's delays between polls, and its stop event."""

    clock: Clock
    is_stopped: Callable[[], bool]
    sleep: Callable[[float], object]


@dataclass(slots=True)
class Tail:
    """A followed partition, from `position` on. `manifest` is the version being read."""

    place: Place
    position: Position
    manifest: Manifest
    etag: str = ""
    due_s: float = 0.0
    failing_since_s: float | None = None
    delays: Iterator[float] | None = None

    @property
    def is_at_end(self) -> bool:
        """Whether the known version has been read completely."""
        return self.position.offset >= self.manifest.next_offset

    def move(self, offset: int) -> None:
        """Move to `offset`, never back."""
        self.position = replace(self.position, offset=max(self.position.offset, offset))

    def renew(self, manifest: Manifest) -> None:
        """Continue in a newer version. Raises `OffsetOutOfRange` if that could hide a record."""
        anchor = check_resumed(self.position.anchor, self.position.offset, manifest)
        self.position = replace(self.position, anchor=anchor)
        self.manifest = manifest


def tail_of(place: Place, manifest: Manifest, start: int | Position) -> Tail:
    """Return a partition to follow, from an offset or from the position of an earlier follower.

    Raises `OffsetOutOfRange` if the position is not in the log, or if continuing there could hide a record.
    """
    if isinstance(start, int):
        return Tail(place, Position(start_offset(manifest, start), anchor_of(manifest)), manifest)
    position = replace(start, anchor=check_resumed(start.anchor, start.offset, manifest))
    start_offset(manifest, position.offset)
    return Tail(place, position, manifest)


class Follower:
    """An endless iterator of `(partition, record)` over several partitions. `batches` returns Arrow batches instead.

    Use one of the two, in one thread; any thread may set the stop event, which ends the iteration. It raises

    * `OffsetOutOfRange` if the log start overtook the reader, if a tombstone that it still needed was removed, or if
      the log was created again;
    * `StoreError` if the store did not answer for `retry_timeout_s`;
    * `Corrupt`, `ManifestLost` and `AccessDenied`, immediately.

    `positions` are valid after each of these errors: after the last returned record.
    """

    def __init__(
        self,
        store: ObjectStore,
        tails: Mapping[int, Tail],
        load: Callable[[int], Manifest],
        wait: Wait,
        *,
        random: Random,
        columns: Sequence[str] | None = None,
        where: Selection | None = None,
        batch_bytes: int = BATCH_BYTES,
        discover: Callable[[], Iterable[Tail]] | None = None,
        polls: Backoff = POLLS,
        retry_timeout_s: float = RETRY_TIMEOUT_S,
        limits: ReadLimits = READ_LIMITS,
    ) -> None:
        self._store = store
        self._tails = dict(tails)
        self._load = load
        self._wait = wait
        self._wish = SegmentRead.of(0, 0, columns, where, batch_bytes, limits)
        self._random = random
        self._discover = discover
        self._discover_due_s = wait.clock.monotonic_s() + DISCOVER_S
        self._polls = polls
        self._retry_timeout_s = retry_timeout_s
        self._records: Iterator[tuple[int, Record]] | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[int, Record]:
        if self._records is None:
            if self._wish.columns != COLUMNS:
                raise ValueError("records have all columns; use `batches()` with `columns`")
            self._records = self._one_by_one()
        return next(self._records)

    def positions(self) -> dict[int, Position]:
        """Return the position of each partition, after the last returned record. Store it with your results."""
        return {partition: tail.position for partition, tail in self._tails.items()}

    def _one_by_one(self) -> Iterator[tuple[int, Record]]:
        for tail, taken in self._taken():
            for record in records_of(taken.batch):
                tail.move(record.offset + 1)
                yield tail.place.partition, record
                if self._wait.is_stopped():
                    return
            tail.move(taken.position)

    def batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield Arrow batches, each of one partition, until the stop event is set."""
        if self._records is not None:
            raise ValueError("this follower already returns records one by one")
        for tail, taken in self._taken():
            tail.move(taken.position)
            yield tail.place.partition, taken.batch
            if self._wait.is_stopped():
                return

    def _taken(self) -> Iterator[tuple[Tail, ReadBatch]]:
        """Run turn after turn; the caller moves the tail after the records that it has returned."""
        while not self._wait.is_stopped():
            self._add_partitions()
            for tail in list(self._tails.values()):
                yield from self._turn(tail)
            self._rest()

    def _rest(self) -> None:
        """Sleep until a partition is due, if all were read to their ends."""
        now_s = self._wait.clock.monotonic_s()
        due_s = min((tail.due_s for tail in self._tails.values()), default=now_s + DISCOVER_S)
        if due_s > now_s + _DUE_S and not self._wait.is_stopped():
            self._wait.sleep(due_s - now_s)

    def _turn(self, tail: Tail) -> Iterator[tuple[Tail, ReadBatch]]:
        """Poll once, or read one segment. If the store does not answer, retry later."""
        now_s = self._wait.clock.monotonic_s()
        if tail.due_s > now_s + _DUE_S or self._wait.is_stopped():
            return
        try:
            if tail.is_at_end:
                self._look(tail)
            else:
                yield from self._read(tail)
                tail.due_s = 0.0
        except StoreError as error:
            since_s = tail.failing_since_s = now_s if tail.failing_since_s is None else tail.failing_since_s
            if not error.retriable or self._wait.clock.monotonic_s() - since_s > self._retry_timeout_s:
                raise
            self._put_off(tail)
        else:
            tail.failing_since_s = None

    def _put_off(self, tail: Tail) -> None:
        tail.delays = tail.delays or self._polls.delays_s(self._random)
        tail.due_s = self._wait.clock.monotonic_s() + next(tail.delays)

    def _look(self, tail: Tail) -> None:
        """Check whether the manifest has changed, and read it."""
        try:
            etag = self._store.head(tail.place.manifest_key).etag
        except ObjectNotFound:
            etag = ""
        if etag == tail.etag != "":
            self._put_off(tail)
            return
        tail.renew(self._load(tail.place.partition))
        tail.etag = etag
        if tail.is_at_end:
            self._put_off(tail)
        else:
            tail.delays, tail.due_s = None, 0.0

    def _read(self, tail: Tail) -> Iterator[tuple[Tail, ReadBatch]]:
        """Read one segment from the position on."""
        entry = segment_at(tail.manifest, tail.position.offset)
        if entry is None:
            tail.move(tail.manifest.next_offset)
            return
        wish = replace(self._wish, start=tail.position.offset, end=tail.manifest.next_offset)
        try:
            for taken in take_entry(self._store, tail.place, entry, wish):
                yield tail, taken
        except ObjectNotFound as error:
            tail.renew(newer(tail.place, lambda: self._load(tail.place.partition), error))
        else:
            tail.move(entry.next_offset)

    def _add_partitions(self) -> None:
        """Add new partitions of the topic, from their starts, if the follower reads all partitions."""
        now_s = self._wait.clock.monotonic_s()
        if self._discover is None or now_s < self._discover_due_s:
            return
        self._discover_due_s = now_s + DISCOVER_S
        try:
            for tail in self._discover():
                self._tails.setdefault(tail.place.partition, tail)
        except StoreError as error:
            if not error.retriable:
                raise
            # Try again next time; the known partitions notice an unavailable store.
