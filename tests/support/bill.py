"""What a deployment asks of S3 in a day, from a formula; tests hold it against requests that were counted.

S3 has two prices for requests: one for those that write or list (PUT, POST, LIST), one for the others (GET, HEAD).
DELETE, and the end of an upload that is given up, cost nothing. The constants are those of the code, imported from it.

docs/operations/cost.md has the formula in words, and a table of `rows`, which a test compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final

from keyfold.log.objects import PART_BYTES
from keyfold_replicator.rounds.change_detector import REPLICA_CHECK_S
from keyfold_replicator.rounds.runner import RUNNER_TIMINGS
from keyfold_replicator.rounds.service import LIST_INTERVAL_S as SERVICE_LOOK_S
from keyfold_sink.worker.run import WorkerTimings
from keyfold_sink.worker.worker_registry import _AT_LEAST_EVERY_S, _AT_MOST_EVERY_S, _REMOVE_EVERY_S

DAY_S: Final = 86_400
MONTH_DAYS: Final = 30
GIB: Final = 1024**3
_WRITES: Final = {"put", "list", "list_folders", "list_uploads", "start_upload", "upload.write", "upload.complete"}
_READS: Final = {"get", "get_range", "head"}
_FREE: Final = {"delete", "abort_upload", "upload.abort"}


@dataclass(frozen=True, slots=True)
class Asked:
    """Requests: `writes` are PUT, POST and LIST, `reads` are GET and HEAD."""

    writes: float = 0
    reads: float = 0

    def __add__(self, other: Asked) -> Asked:
        return Asked(self.writes + other.writes, self.reads + other.reads)

    def __mul__(self, times: float) -> Asked:
        return Asked(self.writes * times, self.reads * times)


def counted(calls: Mapping[str, int]) -> Asked:
    """What a `CountedStore` has counted. Raises `KeyError` for a call that has no price here."""
    unknown = set(calls) - _WRITES - _READS - _FREE
    if unknown:
        raise KeyError(*unknown)
    return Asked(
        sum(count for name, count in calls.items() if name in _WRITES),
        sum(count for name, count in calls.items() if name in _READS),
    )


# The sink


def worker(*, is_busy: bool) -> Asked:
    """One worker's day: orders, its status, and a look for those who are gone. Partitions make no difference."""
    removals = DAY_S / _REMOVE_EVERY_S
    statuses = DAY_S / (_AT_MOST_EVERY_S if is_busy else _AT_LEAST_EVERY_S)
    return Asked(statuses + removals, DAY_S / WorkerTimings().desired_state_every_s + removals)


def roll(size_bytes: int = 0) -> Asked:
    """One segment: the object, its index, the manifest. Above a part it goes up in parts."""
    if size_bytes <= PART_BYTES:
        return Asked(writes=3)
    return Asked(writes=2 + 2 + ceil(size_bytes / PART_BYTES))


# The compactor


def look(topics: int, partitions: int, replicas: int = 0) -> Asked:
    """One run that finds nothing to do: topics, partitions and replicas listed, each manifest read."""
    return Asked(2 + topics, partitions + replicas)


def cleaning(segments: int, outputs: int, *, ranges: int) -> Asked:
    """At most: one pass over `segments`, which makes `outputs`, and two later visits that collect what it replaced.

    `ranges` are pieces of up to 4 MiB of the segments that are rewritten.
    """
    return Asked(6 + 5 + 2 * outputs, 8 + 2 * segments + ranges)


# Replicas


def replicator(replicas: int = 1) -> Asked:
    """A replicator's day at the source: registrations, each replica's options, its status."""
    listed = DAY_S / SERVICE_LOOK_S
    published, looked = DAY_S / RUNNER_TIMINGS.publish_anyway_s, DAY_S / RUNNER_TIMINGS.check_s
    return Asked(listed + replicas * published, replicas * (listed + looked))


def following(partitions: int, topics: int, *, poll_s: float = 5, discover_s: float = 30) -> tuple[Asked, Asked]:
    """A day of one replica in which nothing happens, `replicator` apart: at the source, and at the replica."""
    source = Asked(DAY_S / discover_s * (1 + topics), DAY_S / poll_s * partitions)
    return source, Asked(0, DAY_S / REPLICA_CHECK_S * partitions)


def carried() -> tuple[Asked, Asked]:
    """One roll that a replica takes over: at the source, and at the replica. Objects of up to a part."""
    return Asked(2, 3), Asked(3, 1)


# An example, in money


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars. The defaults are those of S3 Standard in us-east-1; look yours up."""

    writes_per_1000: float = 0.005
    reads_per_1000: float = 0.0004
    gib_month: float = 0.023

    def of(self, asked: Asked) -> float:
        """What requests cost."""
        return (asked.writes * self.writes_per_1000 + asked.reads * self.reads_per_1000) / 1000


@dataclass(frozen=True, slots=True)
class Load:
    """The load to pay for: partitions that each get a number of stored bytes a day, and how often logs are cleaned."""

    partitions: int
    topics: int
    mib_a_day: float
    segment_ms: float = 300_000
    runs_a_day: float = 24
    workers: int = 2

    @property
    def rolls(self) -> float:
        """Segments a day, of one partition that gets records all the time."""
        by_time = DAY_S * 1000 / self.segment_ms
        return max(by_time, self.mib_a_day / 128)

    @property
    def roll_bytes(self) -> int:
        """Stored bytes of one segment."""
        return int(self.mib_a_day * 1024**2 / self.rolls)


def rows(load: Load) -> dict[str, Asked]:
    """Requests of a month, by service."""
    rolls = load.rolls * load.partitions
    source, replica = following(load.partitions, load.topics)
    at_source, at_replica = carried()
    # Each run that finds dirty records rewrites the head: about as many segments as were rolled since the last one.
    fresh = load.rolls / load.runs_a_day
    moved = load.mib_a_day / load.runs_a_day / 4
    passes = cleaning(ceil(fresh) + 1, 1, ranges=ceil(moved)) * (load.runs_a_day * load.partitions)
    daily = {
        "sink: workers": worker(is_busy=True) * load.workers,
        "sink: rolls": roll(load.roll_bytes) * rolls,
        "compactor: looking": look(load.topics, load.partitions, 1) * load.runs_a_day,
        "compactor: passes": passes,
        "replica: idle": replicator() + source + replica,
        "replica: rolls": (at_source + at_replica) * rolls,
    }
    return {name: asked * MONTH_DAYS for name, asked in daily.items()}
