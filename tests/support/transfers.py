"""Two stores in memory, objects at one, and their way to the other."""

from __future__ import annotations

import hashlib
from random import Random

from keyfold.errors import (
    ObjectNotFound,
)
from keyfold.log.names import ObjectName, Place, Role
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.retry import Backoff, RetryPolicy
from keyfold.store.api import Create, ObjectStore
from keyfold.store.memory import MemoryStore
from keyfold_replicator.copy.jobs import CopyJob, CopyResult
from keyfold_replicator.copy.transfer import Transfer

PLACE = Place("topics", "users", 0)
THERE = Place("copy/of", "users", 0)
MIB = 1 << 20
BIG = 20 * MIB + 3


def retry_policy(retry_timeout_s: float = 60.0) -> RetryPolicy:
    return RetryPolicy(ManualClock(), Random(1), Backoff(), retry_timeout_s)


def named(word: str) -> str:
    """A segment's or index's name that stands for a short one such as `a.avro` or `_index/a.parquet`."""
    attempt = hashlib.sha256(word.encode()).hexdigest()[:16]
    return str(ObjectName(0, 1, Role.SINK, attempt, is_index=word.endswith(".parquet")))


def made(store: ObjectStore, word: str, size_bytes: int, *, place: Place = PLACE, seed: int = 0) -> CopyJob:
    """An object at the source, and the job that copies it."""
    name = named(word)
    data = Random(f"{name} {seed}").randbytes(size_bytes)
    store.put(place.key(name), data, Create())
    return CopyJob(place, name, size_bytes, hashlib.sha256(data).digest())


def transfer(source: ObjectStore, target: ObjectStore, *, threads: int = 1, **options: object) -> Transfer:
    return Transfer(source, target, topics_dir="copy/of", retry=retry_policy(), threads=threads, **options)  # type: ignore[arg-type]  # fields by name, of any type


def copy(source: ObjectStore, target: ObjectStore, *jobs: CopyJob, threads: int = 1) -> list[CopyResult]:
    with transfer(source, target, threads=threads) as copying:
        return list(copying.copy(jobs))


def is_there(target: ObjectStore, job: CopyJob) -> bool:
    """Whether the object is at the replica; with other bytes it must never be."""
    key = Place("copy/of", job.place.topic, job.place.partition).key(job.name)
    try:
        data = target.get(key).data
    except ObjectNotFound:
        return False
    assert len(data) == job.size_bytes
    assert hashlib.sha256(data).digest() == job.sha256
    return True


def one_server() -> tuple[MemoryStore, MemoryStore]:
    return MemoryStore("a", ManualClock(), server="s"), MemoryStore("b", ManualClock(), server="s")
