"""Objects on their way to a replica while everything fails: nothing wrong is ever visible, nothing is sent twice."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from functools import cache
from random import Random

import pytest

from keyfold.errors import ConditionUndecided, StoreUnavailable, UploadLost
from keyfold.log.names import Place
from keyfold.log.objects import PART_BYTES
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.retry import Backoff, RetryPolicy
from keyfold.store.api import Create, ObjectStore, PutResult
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.counting import CountedStore
from keyfold.store.wrappers.faults import Chaos, Fault, FaultKind, FaultyStore, SimulatedCrash, kinds_of
from keyfold_replicator.copy.jobs import CopyJob
from keyfold_replicator.copy.transfer import Transfer
from tests.support.tiers import Sharded
from tests.support.transfers import named

PLACE = Place("topics", "users", 0)
SIZES = [10, 2 * PART_BYTES + 7, 1000, PART_BYTES, PART_BYTES + 1]


class Judge(MemoryStore):
    """A replica's bucket in which only the right bytes may ever become visible."""

    def __init__(self, server: str = "") -> None:
        super().__init__("target", ManualClock(), server=server)
        self.right: dict[str, bytes] = {}

    def _write(self, key: str, data: bytes) -> PutResult:
        assert hashlib.sha256(data).digest() == self.right[key], f"{key} became visible with other bytes"
        return super()._write(key, data)

    @property
    def missing(self) -> set[str]:
        return set(self.right) - {info.key for info in self.list("")}


@cache
def contents() -> list[tuple[bytes, bytes]]:
    made = [Random(number).randbytes(size_bytes) for number, size_bytes in enumerate(SIZES)]
    return [(data, hashlib.sha256(data).digest()) for data in made]


def scene(server: str = "") -> tuple[MemoryStore, Judge, list[CopyJob]]:
    source, target = MemoryStore("source", ManualClock(), server=server), Judge(server)
    jobs = []
    for number, (data, digest) in enumerate(contents()):
        job = CopyJob(PLACE, named(f"{number}.avro"), len(data), digest)
        source.put(job.key, data, Create())
        target.right[job.key] = job.sha256
        jobs.append(job)
    return source, target, jobs


def copy(source: ObjectStore, target: ObjectStore, jobs: Sequence[CopyJob], *, threads: int = 1, seed: int = 0) -> None:
    retry = RetryPolicy(ManualClock(), Random(seed), Backoff(), 20)
    with Transfer(source, target, topics_dir="topics", retry=retry, threads=threads) as copying:
        for _ in copying.copy(jobs):
            pass


def left(jobs: Sequence[CopyJob], target: Judge) -> list[CopyJob]:
    """What a plan with a listing of the replica's folder would name."""
    missing = target.missing
    return [job for job in jobs if job.key in missing]


@pytest.mark.parametrize("kind", [FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER])
def test_each_byte_arrives_once_wherever_a_process_dies(kind: FaultKind, sharded: Sharded) -> None:
    source, target, jobs = scene()
    clean = FaultyStore(target)
    copy(source, clean, jobs)
    assert len(clean.calls) == 14  # two uploads of 3 and 2 parts, three puts
    for call in sharded([call for call in clean.calls if kind in kinds_of(call.operation)]):
        source, target, jobs = scene()
        arrived = CountedStore(target)
        with pytest.raises(SimulatedCrash):
            copy(source, FaultyStore(arrived, [Fault(call.number, kind)]), jobs)
        copy(source, arrived, left(jobs, target))
        assert not target.missing
        assert arrived.bytes_written == sum(SIZES), f"{kind.value} {call}"


@pytest.mark.parametrize("server", ["", "one server"], ids=["sent", "copied inside a store"])
@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(8))
def test_each_byte_arrives_once_despite_faults_at_both_ends(seed: int, server: str) -> None:
    source, target, jobs = scene(server)
    dice = Random(seed)
    crashes = (FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER, FaultKind.CRASH_LATE)
    passing = (FaultKind.UNAVAILABLE, FaultKind.LOST_ANSWER, FaultKind.LATE, FaultKind.CONFLICT)
    stores: list[FaultyStore] = []
    for turn in range(60):
        kinds = passing + (crashes if dice.random() < 0.5 else ())
        near, far = [FaultyStore(end, chaos=Chaos(Random(dice.random()), 0.1, kinds)) for end in (source, target)]
        stores += (near, far)
        # Nothing here is damaged, denied or gone: what is told is that somebody was away, or an upload lost twice.
        with contextlib.suppress(SimulatedCrash, StoreUnavailable, ConditionUndecided, UploadLost):
            copy(near, far, left(jobs, target), threads=dice.randint(1, 3), seed=turn)
        if dice.random() < 0.3:
            stores[dice.randrange(len(stores))].land()
        if not target.missing:
            break
    assert not target.missing
    for store in stores:
        store.land()
    assert not target.missing
