"""Objects on their way between two S3 servers that misbehave, and by a process that is killed."""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from keyfold.errors import Corrupt, KeyfoldError
from keyfold.log.names import Place
from keyfold.log.objects import PART_BYTES
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.retry import Backoff, RetryPolicy
from keyfold.store.api import Create
from keyfold.store.s3 import S3Location, S3Store
from keyfold.store.wrappers.counting import CountedStore
from keyfold_replicator.copy.jobs import CopyJob, CopyMethod
from keyfold_replicator.copy.transfer import Transfer
from tests.support.moto import DROP, Fault, LocalS3Process
from tests.support.transfers import named
from tests.support.versitygw import Versitygw

PLACE: Final = Place("topics", "users", 0)
ROOT: Final = Path(__file__).parents[2]
BIG: Final = 2 * PART_BYTES + 11


def store_at(server: Any) -> S3Store:
    bucket = server.create_bucket(f"t-{uuid.uuid4().hex[:12]}")
    location = S3Location(
        bucket, endpoint_url=server.url, access_key_id="testkey", secret_access_key="testsecret", read_attempts=2
    )
    return location.open()


def made(store: S3Store, word: str, size_bytes: int) -> CopyJob:
    name = named(word)
    data = Random(name).randbytes(size_bytes)
    store.put(PLACE.key(name), data, Create())
    return CopyJob(PLACE, name, size_bytes, hashlib.sha256(data).digest())


def transfer(source: Any, target: Any, *, seed: int = 0, retry_timeout_s: float = 5, threads: int = 4) -> Transfer:
    retry = RetryPolicy(SystemClock(), Random(seed), Backoff(10, 200), retry_timeout_s)
    return Transfer(source, target, topics_dir="topics", retry=retry, threads=threads)


def is_whole(target: S3Store, job: CopyJob) -> bool:
    return hashlib.sha256(target.get(job.key).data).digest() == job.sha256


@pytest.fixture(scope="module")
def _moto_servers() -> Iterator[tuple[LocalS3Process, LocalS3Process]]:
    with LocalS3Process() as one, LocalS3Process() as other:
        yield one, other


@pytest.fixture
def moto_servers(
    _moto_servers: tuple[LocalS3Process, LocalS3Process],
) -> Iterator[tuple[LocalS3Process, LocalS3Process]]:
    """Two servers that know nothing of each other; faults are cleared after each test."""
    yield _moto_servers
    for server in _moto_servers:
        server.set_faults()


@pytest.fixture(scope="module", params=["moto", pytest.param("versitygw", marks=pytest.mark.real)])
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """Two servers of one kind."""
    if request.param == "moto":
        yield request.getfixturevalue("_moto_servers")
    else:
        with Versitygw() as one, Versitygw() as other:
            yield one, other


@pytest.fixture
def source(servers: tuple[Any, Any]) -> Iterator[S3Store]:
    store = store_at(servers[0])
    yield store
    store.close()


@pytest.fixture
def target(servers: tuple[Any, Any]) -> Iterator[S3Store]:
    store = store_at(servers[1])
    yield store
    store.close()


def test_small_and_large_objects_arrive_unchanged(source: S3Store, target: S3Store) -> None:
    jobs = [made(source, f"{n}.avro", 1000 + n) for n in range(20)] + [made(source, "big.avro", BIG)]
    with transfer(source, target) as copying:
        results = list(copying.copy(jobs))
    assert {r.way for r in results} == {CopyMethod.SENT}
    assert all(is_whole(target, job) for job in jobs)
    assert list(target.list_uploads("")) == []


def test_damage_at_the_source_is_reported_and_nothing_becomes_visible(
    source: S3Store, target: S3Store, servers: tuple[Any, Any]
) -> None:
    for size_bytes in (1000, BIG):
        job = made(source, f"{size_bytes}.avro", size_bytes)
        damaged = CopyJob(job.place, job.name, size_bytes, bytes(32))
        with transfer(source, target) as copying, pytest.raises(Corrupt) as raised:
            list(copying.copy([damaged]))
        assert raised.value.host == servers[0].url.removeprefix("http://")
    assert list(target.list("")) == []
    assert list(target.list_uploads("")) == []


CHAOS: Final = [
    Fault(r"^(GET|HEAD|PUT|POST) /t-", status=DROP, times=-1, chance=0.06),
    Fault(r"^(PUT|POST) /t-", status=DROP, applied=True, times=-1, chance=0.06),
    Fault(r"^(PUT|POST) /t-", status=500, applied=True, times=-1, chance=0.05),
    Fault(r"^(GET|HEAD|PUT|POST) /t-", status=503, times=-1, chance=0.05),
    Fault(r"^(PUT|POST) /t-", status=409, times=-1, chance=0.03),
    Fault(r"^PUT /t-", status=DROP, late_ms=120, times=-1, chance=0.03),
]


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(2))
def test_a_transfer_succeeds_between_two_faulty_servers(
    moto_servers: tuple[LocalS3Process, LocalS3Process], seed: int
) -> None:
    one, other = moto_servers
    with closing(store_at(one)) as source, closing(store_at(other)) as target:
        jobs = [made(source, f"{n}.avro", 1000 + n) for n in range(40)]
        jobs += [made(source, f"big-{n}.avro", BIG + n) for n in range(3)]
        one.set_faults(*CHAOS, seed=seed)
        other.set_faults(*CHAOS, seed=seed + 100)
        left, told = jobs, set[str]()
        for number in range(30):
            done: set[str] = set()
            try:
                with transfer(source, target, seed=number, retry_timeout_s=1) as copying:
                    done.update(result.job.name for result in copying.copy(left))
            except KeyfoldError as error:
                told.add(error.host)
            left = [job for job in left if job.name not in done]
            if not left:
                break
        assert not left
        assert told <= {one.url.removeprefix("http://"), other.url.removeprefix("http://")}
        one.set_faults()
        other.set_faults()
        assert all(is_whole(target, job) for job in jobs)


ONE_JOB: Final = """
import pickle, sys
from random import Random
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.retry import RetryPolicy
from keyfold_replicator.copy.transfer import Transfer
source, target, job = pickle.load(sys.stdin.buffer)
retry = RetryPolicy(SystemClock(), Random(3))
with Transfer(source.open(), target.open(), topics_dir="topics", retry=retry) as copying:
    list(copying.copy([job]))
"""


def test_a_process_killed_repeatedly_sends_nothing_twice(source: S3Store, target: S3Store) -> None:
    size_bytes = 14 * PART_BYTES + 3
    job = made(source, "big.avro", size_bytes)
    asked = pickle.dumps((source.location, target.location, job))
    parts_seen = 0
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", ONE_JOB], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=ROOT
        )
        assert process.stdin is not None
        process.stdin.write(asked)
        process.stdin.close()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            there = parts_there(target, job)
            if there >= parts_seen + 3:
                break
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        before, parts_seen = parts_seen, parts_there(target, job)
        assert parts_seen >= before + 3
        assert list(target.list("")) == []
    counted = CountedStore(target)
    with transfer(source, counted) as copying:
        [result] = copying.copy([job])
    assert result.sent_bytes == counted.bytes_written == size_bytes - parts_seen * PART_BYTES
    assert is_whole(target, job)
    assert list(target.list_uploads("")) == []


def parts_there(store: S3Store, job: CopyJob) -> int:
    """Parts of the one unfinished upload."""
    uploads = list(store.list_uploads(job.key))
    assert len(uploads) <= 1
    found = store.resume_upload(job.key) if uploads else None
    return 0 if found is None else len(found._there)
