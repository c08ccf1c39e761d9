"""`keyfold replica` against buckets in memory: a source and a replica, one of which may be away."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from random import Random
from typing import Any

import pytest

from keyfold.cli.app import run
from keyfold.cli.context import CliContext
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.read.log import Log
from keyfold.runtime.clock import Clock, ManualClock
from keyfold.store.api import ObjectStore, StoreLocation
from keyfold.store.memory import MemoryStore
from keyfold.store.pacing import Pacer
from keyfold.store.s3 import S3Location
from keyfold.store.wrappers.faults import Call, Fault, FaultKind, FaultyStore
from tests.support.logs import MadeLog, records

SOURCE = "s3://log/topics"
REPLICA = "s3://dr/topics"


class Bucket(MemoryStore):
    """A bucket that says it is one of S3."""

    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(name, clock=clock, content_etags=True)
        self._bucket = name

    @property
    def url(self) -> str:
        """`s3://<bucket>`."""
        return f"s3://{self._bucket}"


@dataclass(slots=True)
class Buckets:
    """All buckets there are; those in `away` answer 503 to everything."""

    clock: ManualClock = field(default_factory=ManualClock)
    away: set[str] = field(default_factory=set)
    locations: list[S3Location] = field(default_factory=list)
    pacers: list[Pacer | None] = field(default_factory=list)
    stores: dict[str, FaultyStore] = field(default_factory=dict)

    def __getitem__(self, name: str) -> FaultyStore:
        if name not in self.stores:
            self.stores[name] = self._opened(name, Bucket(name, self.clock))
        return self.stores[name]

    def restart(self) -> None:
        """What was under way lands, and a process that died is followed by another one."""
        for name, store in self.stores.items():
            store.land()
            self.stores[name] = self._opened(name, store.inner)

    def wipe(self, name: str) -> None:
        """Lose the bucket, and create it again."""
        self.stores[name] = self._opened(name, Bucket(name, self.clock))

    def _opened(self, name: str, inner: ObjectStore) -> FaultyStore:
        def is_away(_call: Call) -> bool:
            return name in self.away

        return FaultyStore(inner, [Fault(is_away, FaultKind.UNAVAILABLE, times=10**9)])

    def open(self, location: StoreLocation, pacer: Pacer | None) -> ObjectStore:
        """What a command opens."""
        assert isinstance(location, S3Location)
        self.locations.append(location)
        self.pacers.append(pacer)
        return self[location.bucket]


class Command:
    """`keyfold replica`, in these buckets; what it prints goes nowhere."""

    def __init__(self, buckets: Buckets) -> None:
        self.buckets = buckets
        self._world = CliContext(
            lambda url: (buckets[url.split("/")[2]], "topics"), buckets.clock, Random(11), buckets.open
        )

    def run(self, *args: str) -> int:
        """The exit code of `keyfold replica <args>`."""
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            return run(["replica", *args], self._world)

    def __call__(self, *args: str) -> None:
        """Run it; it has to succeed."""
        printed = StringIO()
        with redirect_stdout(printed), redirect_stderr(printed):
            ended = run(["replica", *args], self._world)
        assert ended == 0, (args, printed.getvalue())


class Keyfold:
    """The command, in these buckets, with what it prints."""

    def __init__(self, buckets: Buckets, capture: pytest.CaptureFixture[str]) -> None:
        self.buckets = buckets
        self._world = CliContext(
            lambda url: (buckets[url.split("/")[2]], "topics"), buckets.clock, Random(11), buckets.open
        )
        self._capture = capture
        self.errors: list[str] = []

    def __call__(self, *args: str, code: int = 0) -> list[str]:
        """Run `keyfold replica <args>`; what it printed."""
        ended = run(["replica", *args], self._world)
        captured = self._capture.readouterr()
        self.errors = captured.err.splitlines()
        assert ended == code, captured.out + captured.err
        return captured.out.splitlines()

    def json(self, *args: str, code: int = 0) -> list[dict[str, Any]]:
        """The same with --json: what is in the one document, if it is a list, or the document."""
        (line,) = self(*args, "--json", code=code)
        document = json.loads(line)
        return document if isinstance(document, list) else [document]


def made_log(
    buckets: Buckets, bucket: str = "log", topic: str = "users", text: str = "a=1 b=1 a=2", partition: int = 0
) -> MadeLog:
    """A log of one partition."""
    seed = f"{bucket}{topic}{partition or ''}"
    made = MadeLog(buckets[bucket], Place("topics", topic, partition), buckets.clock, Random(seed))
    if text:
        made.append(records(text))
    return made


def read(buckets: Buckets, bucket: str, topic: str = "users") -> list[Record]:
    """All records that a reader sees there."""
    return [*Log(buckets[bucket].inner, "topics", topic, clock=buckets.clock, random=Random(1)).read(0)]


def objects(buckets: Buckets, *names: str) -> dict[str, bytes]:
    """Every object, by bucket and key."""
    return {
        f"{name}/{info.key}": buckets[name].inner.get(info.key).data
        for name in names
        for info in buckets[name].inner.list("")
    }


def latest(batch: Iterable[Record]) -> dict[bytes | None, bytes | None]:
    """The last value of each key."""
    return {record.key: record.value for record in batch}
