"""Open a topic's log in a bucket and read it.

    log = open_log("s3://bucket/topics", "users")
    for record in log.read(partition=0, from_offset=36): ...
    state = {record.key: record.value for record in log.latest(partition=0)}
    for batch in log.batches(partition=0, columns=["offset", "value"]): ...      Arrow
    for partition, record in log.follow(): ...                                   waits for more
    value = log.get(b"user-7").value                                             by key

Each call reads the newest manifest and stays with that version as long as its objects exist. So a read sees the log at
one moment, regardless of concurrent appends and compactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from random import Random
from threading import Event
from typing import Literal, Self

import pyarrow as pa

from keyfold.errors import FirstCopyUnfinished, LogNotFound, ObjectNotFound, StoreError, TopicNotFound
from keyfold.log import catalog
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place, is_topic_name
from keyfold.log.partition_log import PartitionLog
from keyfold.log.record import Record
from keyfold.read.batches import BATCH_BYTES, read_batches
from keyfold.read.blocks import READ_LIMITS, ReadLimits
from keyfold.read.follow import Follower, Position, Tail, Wait, tail_of
from keyfold.read.latest import MEMORY_BYTES, Latest, read_latest, read_latest_batches
from keyfold.read.lookup import Found, Lookup
from keyfold.read.ordered import OffsetAndTimestamp, find_last, find_time, newer, read_ordered
from keyfold.read.position import start_offset
from keyfold.read.selection import Selection
from keyfold.runtime.clock import Clock, SystemClock
from keyfold.store.api import ObjectStore


def open_log(url: str, topic: str, *, store: ObjectStore | None = None) -> Log:
    """Open the log of `topic` below `url`, which is `s3://<bucket>/<topics.dir>`.

    This reads nothing yet. With `store`, only the topics.dir of the URL is used, not its bucket. Raises `ConfigError`
    for an invalid URL.
    """
    from keyfold.store.location import open_store, parse_url

    _, topics_dir = parse_url(url)
    if store is not None:
        return Log(store, topics_dir, topic)
    opened = open_store(url)
    return Log(opened, topics_dir, topic, on_close=opened.close)


class Log:
    """The log of one topic, with all partitions. Read-only, thread-safe, and a context manager that closes it."""

    def __init__(
        self,
        store: ObjectStore,
        topics_dir: str,
        topic: str,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        on_close: Callable[[], None] = lambda: None,
        limits: ReadLimits = READ_LIMITS,
    ) -> None:
        if not is_topic_name(topic):
            raise TopicNotFound(topic, f"`{topic}` is not a valid topic name")
        self.store = store
        self.topics_dir = topics_dir
        self.topic = topic
        self.limits = limits
        self._clock = clock or SystemClock()
        self._random = random or Random()
        self._on_close = on_close
        self._lookup: Lookup | None = None

    def close(self) -> None:
        """Close the connections that `open_log` opened. A store passed by the caller stays open."""
        self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Log({self.store.url}/{self.topics_dir}, {self.topic})"

    def place(self, partition: int) -> Place:
        """Return the place of a partition in the bucket."""
        return Place(self.topics_dir, self.topic, partition)

    def partitions(self) -> list[int]:
        """Return the topic's partitions, ascending. Raises `TopicNotFound` if there are none."""
        found = catalog.partitions(self.store, self.topics_dir, self.topic)
        if not found:
            raise TopicNotFound(
                self.topic,
                f"topic `{self.topic}` not found under `{self.store.url}/{self.topics_dir}`",
                hint=self._near(),
            )
        return found

    def _near(self) -> str:
        """Return what the caller may have meant by the topic and the directory."""
        with suppress(StoreError):
            topic = catalog.topic_near(self.store, self.topics_dir, self.topic)
            if topic is not None:
                return f"did you mean `{topic}`?"
            directory = catalog.logs_near(self.store, self.topics_dir)
            if directory is not None:
                return f"did you mean the URL `{self.store.url}/{directory}`?"
        return "`keyfold log list <url>` lists the topics"

    def manifest(self, partition: int = 0) -> Manifest:
        """Read the newest manifest: offsets, segments, counts, settings, epochs.

        Raises `LogNotFound`, `ManifestLost`, `Corrupt`, `FormatTooNew`, `StoreError`.
        """
        log = PartitionLog(self.store, self.place(partition), clock=self._clock, random=self._random)
        return log.load().manifest

    def read(
        self,
        partition: int = 0,
        *,
        from_offset: int | None = None,
        from_timestamp: int | None = None,
        to_offset: int | None = None,
    ) -> Iterator[Record]:
        """Return the records of a partition in offset order.

        The read starts at `from_offset` (or at the next existing offset if that one was removed), or at the first
        record in offset order with a timestamp at or after `from_timestamp` (ms), or at the log start. It ends before
        `to_offset`, or at the log's end.

        Raises `OffsetOutOfRange` immediately, or during the iteration if the log start overtakes the reader or a
        tombstone that it still needs is removed; `Corrupt` for damaged bytes; and the errors of `manifest`.
        """
        manifest, position = self._start(partition, from_offset, from_timestamp)
        return read_ordered(
            self.store,
            self.place(partition),
            lambda: self.manifest(partition),
            manifest,
            position,
            to_offset,
            self.limits,
        )

    def batches(
        self,
        partition: int = 0,
        *,
        from_offset: int | None = None,
        from_timestamp: int | None = None,
        to_offset: int | None = None,
        columns: Sequence[str] | None = None,
        where: Selection | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> Iterator[pa.RecordBatch]:
        """Return the same records as `read`, as Arrow batches with the schema `keyfold.log.arrow.RECORDS`.

        `columns` and `where` limit the read to some columns and records: segments and blocks without selected records
        are not fetched. A batch has at least one record and about `batch_bytes`; only a single large record exceeds
        this. Raises `ValueError` for an unknown column, and the errors of `read`.
        """
        manifest, position = self._start(partition, from_offset, from_timestamp)
        return read_batches(
            self.store,
            self.place(partition),
            lambda: self.manifest(partition),
            manifest,
            position,
            to_offset,
            columns=columns,
            where=where,
            batch_bytes=batch_bytes,
            limits=self.limits,
        )

    def latest(self, partition: int = 0, *, memory_bytes: int = MEMORY_BYTES) -> Latest[Record]:
        """Return the last record of each key, in offset order, without deleted keys and records without a key.

        The result can be iterated once; its `position` is then the start for following the log.

        Memory holds the keys, up to `memory_bytes` (at least 1 MiB); if they do not fit, the indexes are read several
        times. Memory does not hold values. Raises `SnapshotLost` during the iteration if the version was replaced and
        deleted, and the errors of `read`.
        """
        return read_latest(
            self.store,
            self.place(partition),
            lambda: self.manifest(partition),
            memory_bytes=memory_bytes,
            limits=self.limits,
        )

    def latest_batches(
        self,
        partition: int = 0,
        *,
        columns: Sequence[str] | None = None,
        memory_bytes: int = MEMORY_BYTES,
        batch_bytes: int = BATCH_BYTES,
    ) -> Latest[pa.RecordBatch]:
        """Return the records of `latest` as Arrow batches like those of `batches`."""
        return read_latest_batches(
            self.store,
            self.place(partition),
            lambda: self.manifest(partition),
            columns=columns,
            memory_bytes=memory_bytes,
            batch_bytes=batch_bytes,
            limits=self.limits,
        )

    def lookup(self, partitions: Iterable[int] | None = None) -> Lookup:
        """Return what finds records by their key, in some partitions or in all. Raises the errors of `manifest`.

        It stays at the versions of this moment until its `refresh`, and keeps the directory of keys that it has made.
        """
        chosen = None if partitions is None else sorted(set(partitions))
        return Lookup(self.store, self.place, lambda: chosen or self.partitions(), self.manifest)

    def get(self, key: bytes, partition: int | None = None) -> Found:
        """Return the last record of a key now. Raises the errors of `Lookup.get`.

        The log keeps what it has learned about its keys, so the first call costs more than others.
        """
        return self._fresh_lookup().get(key, partition)

    def get_many(self, keys: Sequence[bytes], partition: int | None = None) -> dict[bytes, Found]:
        """Return the last record of each key now. See `get`."""
        return self._fresh_lookup().get_many(keys, partition)

    def history(
        self, key: bytes, partition: int | None = None, *, limit: int | None = None
    ) -> list[tuple[int, Record]]:
        """Return every record of a key that the log still has, with its partition, in order of offsets. See `get`.

        `limit` is the most for each partition; the newest are returned.
        """
        return self._fresh_lookup().history(key, partition, limit=limit)

    def _fresh_lookup(self) -> Lookup:
        if self._lookup is None:
            self._lookup = self.lookup()
        else:
            self._lookup.refresh()
        return self._lookup

    def follow(
        self,
        partitions: int | Iterable[int] | None = None,
        *,
        start: Literal["earliest", "latest"] | Mapping[int, int | Position] = "earliest",
        from_timestamp: int | None = None,
        columns: Sequence[str] | None = None,
        where: Selection | None = None,
        batch_bytes: int = BATCH_BYTES,
        stop: Event | None = None,
    ) -> Follower:
        """Read to the end, wait for more records, and continue: return an iterator of `(partition, record)`.

        It reads one partition, several, or all of the topic, including later ones. It starts at the log's start or end,
        at the offset or `Position` that `start` has for a partition (other partitions start at the log's start), or at
        the first record at or after `from_timestamp`. It ends when `stop` is set. `Follower.batches()` returns Arrow
        batches instead of records, with `columns`, `where` and `batch_bytes` as in `batches`. To continue after a
        restart, store `Follower.positions()`: an offset alone cannot show whether a tombstone that the reader still
        needed was removed in between.

        Raises the errors of `Follower`, immediately or during the iteration, `TopicNotFound`, and those of `manifest`.
        """
        starts = start if isinstance(start, Mapping) else {}
        if start is not starts and start not in {"earliest", "latest"}:
            raise ValueError(f"start is {start!r}, but must be 'earliest', 'latest', or offsets by partition")
        if isinstance(partitions, int):
            partitions = [partitions]
        numbers = sorted({*(self.partitions() if partitions is None else partitions), *starts})

        def tail(partition: int, *, at_end: bool) -> Tail:
            if partition in starts:
                return tail_of(self.place(partition), self.manifest(partition), starts[partition])
            manifest, position = self._start(partition, None, from_timestamp)
            return tail_of(self.place(partition), manifest, manifest.next_offset if at_end else position)

        def discover() -> list[Tail]:
            known = follower.positions()
            found: list[Tail] = []
            for number in self.partitions():
                if number not in known:
                    with suppress(LogNotFound, FirstCopyUnfinished):  # a folder without a log
                        found.append(tail(number, at_end=False))
            return found

        follower = Follower(
            self.store,
            {number: tail(number, at_end=start == "latest") for number in numbers},
            self.manifest,
            Wait(self._clock, stop.is_set, stop.wait) if stop else Wait(self._clock, lambda: False, self._clock.sleep),
            random=self._random,
            columns=columns,
            where=where,
            batch_bytes=batch_bytes,
            discover=discover if partitions is None else None,
            limits=self.limits,
        )
        return follower

    def offset_for_time(self, timestamp_ms: int, partition: int = 0) -> int | None:
        """Return the first offset with a timestamp at or after `timestamp_ms`, in offset order; None for none."""
        found = self.offsets_for_times({partition: timestamp_ms})[partition]
        return None if found is None else found.offset

    def offsets_for_times(self, timestamps_ms: Mapping[int, int]) -> dict[int, OffsetAndTimestamp | None]:
        """Return the first record per partition with a timestamp at or after the given one (Kafka's `offsetsForTimes`).

        None for a partition without such a record. Reads at most one index per partition.
        """
        return {partition: self._at_time(partition, at)[1] for partition, at in timestamps_ms.items()}

    def last_offsets(self, count: int, partition: int = 0) -> tuple[int, int]:
        """Return the range `[from_offset, to_offset)` of the last `count` records. Reads at most one index."""
        place = self.place(partition)
        manifest = self.manifest(partition)
        while True:
            try:
                return find_last(self.store, place, manifest, count), manifest.next_offset
            except ObjectNotFound as error:
                manifest = newer(place, lambda: self.manifest(partition), error)

    def _start(self, partition: int, from_offset: int | None, from_timestamp: int | None) -> tuple[Manifest, int]:
        """Return the version to read, and its start offset."""
        if from_timestamp is None:
            manifest = self.manifest(partition)
            return manifest, start_offset(manifest, from_offset)
        if from_offset is not None:
            raise ValueError("from_offset and from_timestamp cannot be combined")
        manifest, found = self._at_time(partition, from_timestamp)
        return manifest, manifest.next_offset if found is None else found.offset

    def _at_time(self, partition: int, timestamp_ms: int) -> tuple[Manifest, OffsetAndTimestamp | None]:
        """Return the version that was searched, and the record's place in it."""
        place = self.place(partition)
        manifest = self.manifest(partition)
        while True:
            try:
                return manifest, find_time(self.store, place, manifest, timestamp_ms)
            except ObjectNotFound as error:
                manifest = newer(place, lambda: self.manifest(partition), error)
