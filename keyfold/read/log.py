"""Open a topic's log in a bucket and read it.

    log = open_log("s3://bucket/topics", "users")
    for record in log.read(partition=0, from_offset=36): ...
    state = {record.key: record.value for record in log.latest(partition=0)}

Each call reads the newest manifest and keeps to that version as long as its objects are there, so a read sees the log
as it was at one moment, whatever is appended or compacted meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Self

from keyfold.clock import Clock, SystemClock
from keyfold.errors import ObjectNotFound, TopicNotFound
from keyfold.log import catalog
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place, is_topic_name
from keyfold.log.partition_log import PartitionLog
from keyfold.log.record import Record
from keyfold.read.latest import read_latest
from keyfold.read.ordered import newer, offset_for_time, read_ordered
from keyfold.read.position import start_offset
from keyfold.store.api import ObjectStore


def open_log(url: str, topic: str, *, store: ObjectStore | None = None) -> Log:
    """The log of `topic` below `url`, which is `s3://<bucket>/<topics.dir>`.

    Nothing is read yet. With `store` the URL's bucket is not looked at: it only says the topics.dir.
    Raises `ConfigError` where the URL is none.
    """
    from keyfold.store.location import open_store, parse_url

    _, topics_dir = parse_url(url)
    if store is not None:
        return Log(store, topics_dir, topic)
    opened = open_store(url)
    return Log(opened, topics_dir, topic, on_close=opened.close)


class Log:
    """All partitions of one topic. Reads only; safe to use from several threads; a context manager that closes."""

    def __init__(
        self,
        store: ObjectStore,
        topics_dir: str,
        topic: str,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        if not is_topic_name(topic):
            raise TopicNotFound(topic, "is not a name that Kafka allows for a topic")
        self.store = store
        self.topics_dir = topics_dir
        self.topic = topic
        self._clock = clock or SystemClock()
        self._random = random or Random()
        self._on_close = on_close

    def close(self) -> None:
        """Close the connections that `open_log` has opened. A store that was given stays open."""
        self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Log({self.store.url}/{self.topics_dir}, {self.topic})"

    def place(self, partition: int) -> Place:
        """Where a partition is in the bucket."""
        return Place(self.topics_dir, self.topic, partition)

    def partitions(self) -> list[int]:
        """Partitions of the topic, ascending. Raises `TopicNotFound` where there is none."""
        found = catalog.partitions(self.store, self.topics_dir, self.topic)
        if not found:
            raise TopicNotFound(
                self.topic,
                f"no partition of it is below `{self.store.url}/{self.topics_dir}`",
                hint="`keyfold log list <url>` shows what is there",
            )
        return found

    def manifest(self, partition: int = 0) -> Manifest:
        """The newest manifest: offsets, segments, counts, settings, epochs.

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
        """Records of a partition in offset order.

        From `from_offset` (a removed one is legal: reading starts at the next that is there), or from the first record
        in offset order whose timestamp is at or after `from_timestamp` (ms), or from the log start. Up to `to_offset`,
        exclusive, or the log's end.

        Raises `OffsetOutOfRange` now, or while iterating when the log start overtook the reader or a tombstone was
        purged that it had still needed; `Corrupt` where stored bytes are damaged; what `manifest` raises.
        """
        if from_offset is not None and from_timestamp is not None:
            raise ValueError("from_offset and from_timestamp exclude each other")
        place = self.place(partition)

        def load() -> Manifest:
            return self.manifest(partition)

        manifest = load()
        position = start_offset(manifest, from_offset)
        if from_timestamp is not None:
            manifest, position = self._at_time(place, manifest, from_timestamp)
        return read_ordered(self.store, place, load, manifest, position, to_offset)

    def latest(self, partition: int = 0) -> Iterator[Record]:
        """The last record of each key, in offset order; deleted keys and records without a key are left out.

        Keys and offsets are held in memory, values are not. Raises `SnapshotLost` while iterating when the version
        that is read was replaced and collected; else as `read`.
        """
        return read_latest(self.store, self.place(partition), lambda: self.manifest(partition))

    def offset_for_time(self, timestamp_ms: int, partition: int = 0) -> int | None:
        """The first offset, in offset order, whose timestamp is at or after `timestamp_ms`; None where none is."""
        manifest, position = self._at_time(self.place(partition), self.manifest(partition), timestamp_ms)
        return position if position < manifest.next_offset else None

    def _at_time(self, place: Place, manifest: Manifest, timestamp_ms: int) -> tuple[Manifest, int]:
        """The version in which the offset was found, and the offset: the log's end where no record is so late."""
        while True:
            try:
                found = offset_for_time(self.store, place, manifest, timestamp_ms)
            except ObjectNotFound as error:
                manifest = newer(place, lambda: self.manifest(place.partition), error)
            else:
                return manifest, manifest.next_offset if found is None else found
