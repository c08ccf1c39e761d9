"""Logs for tests of the Spark readers, in a folder that Spark reads as files, and rows to compare with records.

    log = FolderLog(tmp_path)
    log.fill(partition=0, segments=3)
    rows(read_log(spark, log.url, log.topic, **log.where)) == log.records()

What is expected comes from the Python reader, which has proofs of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from pyspark.sql import DataFrame

from keyfold.log.names import Place
from keyfold.log.record import TIMESTAMP_TYPES, Record
from keyfold.read.log import Log
from keyfold.runtime.clock import ManualClock
from tests.bench._folder_store import FolderStore
from tests.support.cleaning import EAGER, new_run
from tests.support.logs import MadeLog

Row = tuple[int, int, int, str, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]


@dataclass
class FolderLog:
    """A topic in a folder: appended as the sink does, cleaned by the compactor itself."""

    folder: Path
    topics_dir: str = "topics"
    topic: str = "users"
    random: Random = field(default_factory=lambda: Random(11))
    _made: dict[int, MadeLog] = field(default_factory=dict)

    @property
    def store(self) -> FolderStore:
        return FolderStore(str(self.folder))

    @property
    def url(self) -> str:
        return f"s3://bucket/{self.topics_dir}"

    @property
    def where(self) -> dict[str, Any]:
        """Arguments with which Spark finds the log."""
        return {"store": self.store, "root": self.folder.as_uri()}

    @property
    def log(self) -> Log:
        return Log(self.store, self.topics_dir, self.topic)

    def place(self, partition: int) -> Place:
        return Place(self.topics_dir, self.topic, partition)

    def made(self, partition: int = 0) -> MadeLog:
        """The writer of a partition; the partition is there from now on."""
        if partition not in self._made:
            clock, random = ManualClock(), Random(self.random.random())
            place = self.place(partition)
            self._made[partition] = MadeLog(store=self.store, place=place, clock=clock, random=random, block_bytes=400)
            _ = self._made[partition].sink
        return self._made[partition]

    def fill(self, partition: int = 0, *, segments: int = 3, records: int = 60, keys: int = 40) -> None:
        """Append segments in which keys come again, are deleted, or are missing, with holes between offsets."""
        made = self.made(partition)
        for number in range(segments):
            made.codec = ("zstandard", "null", "snappy", "deflate")[number % 4]
            at = made.sink.refresh().next_offset
            batch: list[Record] = []
            for _ in range(records):
                at += self.random.choice((0, 0, 0, 1, 7))
                batch.append(self._record(at, keys))
                at += 1
            made.append(batch, next_offset=at + self.random.choice((0, 3)))

    def _record(self, offset: int, keys: int) -> Record:
        random = self.random
        kind = random.choice(TIMESTAMP_TYPES)
        timestamp = -1 if kind == "NoTimestampType" else 1_700_000_000_000 + 977 * offset + random.randrange(5_000)
        key = None if random.random() < 0.05 else f"key-{random.randrange(keys)}".encode()
        value = None if key and random.random() < 0.15 else random.randbytes(random.randrange(60))
        headers = tuple(
            (random.choice(("a", "a", "ü")), random.choice((None, b"", b"\xff1"))) for _ in range(random.randrange(3))
        )
        return Record(offset, timestamp, kind, key, value, headers, random.randrange(-1, 9))

    def clean(self) -> None:
        """One run of the compactor over all partitions. What it replaces stays, until `MadeLog.delete_replaced`."""
        settings = replace(EAGER, file_delete_delay_ms=3_600_000)
        places = [self.place(partition) for partition in self.log.partitions()]
        report = new_run(self.store, settings, seed=self.random.randrange(10**6)).clean(places)
        assert not [part for part in report.partitions if part.is_failure], report

    def records(self) -> list[Row]:
        """What an ordered read gives."""
        return [row_of(p, record) for p in self.log.partitions() for record in self.log.read(p)]

    def latest(self) -> list[Row]:
        """What the Python reader takes for the latest state."""
        return sorted(row_of(p, record) for p in self.log.partitions() for record in self.log.latest(p))


def row_of(partition: int, record: Record) -> Row:
    headers = tuple((name, value) for name, value in record.headers)
    key, value = record.key, record.value
    return partition, record.offset, record.timestamp, record.timestamp_type, key, value, headers, record.leader_epoch


def rows(frame: DataFrame) -> list[Row]:
    """The rows of a DataFrame of records, in order, with timestamps in ms."""
    return sorted(_rows(frame.withColumn("timestamp", _ms())), key=lambda row: row[:2])


def _ms() -> Any:
    from pyspark.sql import functions as fn

    return fn.expr("unix_millis(timestamp)")


def _rows(frame: DataFrame) -> Iterator[Row]:
    for r in frame.collect():
        headers = tuple((h["name"], _bytes(h["value"])) for h in r["headers"])
        yield (
            r["partition"],
            r["offset"],
            r["timestamp"],
            r["timestamp_type"],
            _bytes(r["key"]),
            _bytes(r["value"]),
            headers,
            r["leader_epoch"],
        )


def _bytes(data: bytearray | None) -> bytes | None:
    return None if data is None else bytes(data)
