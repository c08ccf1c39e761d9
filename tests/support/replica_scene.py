"""Two S3 servers with credentials of their own, each behind a gate, and `keyfold replica` between them.

with scene(moto, other, capsys.readouterr, tmp_path) as s:
    s.keyfold("replica", "add", ...)       the command, in this process
    s.start("replica", "run", ...)         the same in a process of its own, to be killed
    s.settle()                             rounds until both sides are equal, then everything is compared
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

import pytest

from keyfold.cli.app import run
from keyfold.cli.context import CliContext, open_by_url
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.replicas.registry import ReplicaRegistry
from keyfold.runtime.clock import Clock, ManualClock, SystemClock
from keyfold.store.api import StoreLocation
from keyfold.store.pacing import Pacer
from keyfold.store.s3 import S3Location, S3Store
from keyfold.verify.partition import verify_partition
from keyfold_compactor.decide.settings import TopicSettings
from tests.conftest import fresh
from tests.support.cleaning import EAGER, Sink, load, new_run, object_names, read_all
from tests.support.moto import REGION
from tests.support.replica_oracle import differences
from tests.support.s3_gate import Gate

TOPIC: Final = "users"
TOPICS_DIR: Final = "topics"
NAME: Final = "second"
COMMAND: Final = (sys.executable, "-c", "from keyfold.cli import main; main()")
WAIT_TIMEOUT_S: Final = 300.0
"""How long something may take on a busy machine before a test gives up; no decision depends on it."""
ROUNDS_MAX: Final = 12


class Server(Protocol):
    """An S3 server of `tests.support`."""

    @property
    def url(self) -> str: ...

    def create_bucket(self, name: str) -> str: ...


@dataclass(frozen=True, slots=True)
class Account:
    """A server, and whom it lets in."""

    server: Server
    access_key_id: str
    secret_access_key: str


@dataclass
class End:
    """A bucket behind a gate."""

    gate: Gate
    location: S3Location
    direct: S3Location
    """The same store past the gate, for checks that must not be counted."""

    @property
    def url(self) -> str:
        """Of the log directory."""
        return f"s3://{self.location.bucket}/{TOPICS_DIR}"

    def config(self, folder: Path, **more: str) -> str:
        """A configuration file that says how it is opened. Further keys are written with `_` for `.`."""
        path = folder / f"{self.location.bucket}.json"
        values = {key.replace("_", "."): value for key, value in more.items()} | {
            "s3.bucket.name": self.location.bucket,
            "topics.dir": TOPICS_DIR,
            "store.url": self.location.endpoint_url,
            "s3.region": REGION,
            "aws.access.key.id": self.location.access_key_id,
            "aws.secret.access.key": self.location.secret_access_key,
        }
        path.write_text(json.dumps(values))
        return str(path)


@dataclass
class GateClock(SystemClock):
    """The machine's clock, but without waits while a gate is shut: the gate opens only after the command has ended."""

    gates: tuple[Gate, ...]
    skipped_s: float = 0.0

    def monotonic_s(self) -> float:
        """See `Clock.monotonic_s`."""
        return super().monotonic_s() + self.skipped_s

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        if any(gate.is_shut for gate in self.gates):
            self.skipped_s += seconds
        else:
            super().sleep(seconds)


@dataclass
class Scene:
    """Source and replica."""

    source: End
    replica: End
    captured: Callable[[], Any]
    folder: Path
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    open: dict[S3Location, S3Store] = field(default_factory=dict)

    @property
    def clock(self) -> Clock:
        """What commands in this process wait by."""
        return GateClock((self.source.gate, self.replica.gate))

    @property
    def environ(self) -> dict[str, str]:
        """What a process that replicates finds: the source's credentials as AWS has them, the replica's as named."""
        near, far = self.source.location, self.replica.location
        return {
            "AWS_ENDPOINT_URL": str(near.endpoint_url),
            "AWS_ACCESS_KEY_ID": str(near.access_key_id),
            "AWS_SECRET_ACCESS_KEY": str(near.secret_access_key),
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "KEYFOLD_REPLICA_KEY": str(far.access_key_id),
            "KEYFOLD_REPLICA_SECRET": str(far.secret_access_key),
        }

    @property
    def registered(self) -> tuple[str, str]:
        """The replica, as commands name it: by its source and its name."""
        return self.source.url, NAME

    def swapped(self) -> Scene:
        """The replica being the source."""
        return replace(self, source=self.replica, replica=self.source)

    def place(self, partition: int = 0) -> Place:
        """A partition, on either side."""
        return Place(TOPICS_DIR, TOPIC, partition)

    @contextmanager
    def stores(self) -> Iterator[tuple[S3Store, S3Store]]:
        """Both buckets, past the gates."""
        yield self.opened(self.source.direct), self.opened(self.replica.direct)

    def opened(self, location: StoreLocation, pacer: Pacer | None = None) -> S3Store:
        """A store that stays open as long as the scene: to make a client takes longer than what is asked of it.

        Its client does not repeat reads of its own: it would wait by the machine's clock.
        """
        assert pacer is None
        assert isinstance(location, S3Location)
        location = replace(location, read_attempts=1)
        store = self.open.get(location)
        if store is None:
            store = self.open[location] = location.open()
            store.close, store.end = _nothing, store.close  # type: ignore[attr-defined, method-assign]  # a store of this scene
        return store

    def end(self) -> None:
        """Close the stores, and end processes that the test did not."""
        for store in self.open.values():
            store.end()  # type: ignore[attr-defined]  # a store of this scene
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait(WAIT_TIMEOUT_S)

    def add(self, **config: str) -> None:
        """Register the replica. Keys are written with `_` for `.`."""
        values = {
            "store.url": str(self.replica.location.endpoint_url),
            "s3.region": REGION,
            "aws.access.key.id": "${env:KEYFOLD_REPLICA_KEY}",
            "aws.secret.access.key": "${env:KEYFOLD_REPLICA_SECRET}",
            "file.delete.delay.ms": "0",
            "replica.retry.backoff.max.ms": "2000",
        } | {key.replace("_", "."): value for key, value in config.items()}
        sets = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
        self.keyfold("replica", "add", self.source.url, NAME, "--to", self.replica.url, *sets)

    def keyfold(self, *args: str, code: int = 0) -> list[str]:
        """The command's lines; it has to end with `code`."""
        ended, captured = self._run(*args)
        assert ended == code, (args, captured.out, captured.err)
        self.errors = captured.err
        return list(captured.out.splitlines())

    def _run(self, *args: str) -> tuple[int, Any]:
        """The command in this process: its exit code, and what it wrote."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environ.items():
                patch.setenv(name, value)
            ended = run(list(args), CliContext(open_by_url, self.clock, Random(), self.opened))
        return ended, self.captured()

    def json(self, *args: str, code: int = 0) -> Any:
        """What the command prints with `--json`."""
        return json.loads("\n".join(self.keyfold(*args, "--json", code=code)))

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        """The command as a process, which the scene ends if the test does not."""
        child = subprocess.Popen(
            [*COMMAND, *args],
            env={**os.environ, **self.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.children.append(child)
        return child

    def start_replicator(self) -> subprocess.Popen[bytes]:
        """`keyfold replica run` for ever, quicker than it usually is."""
        quick = {"replica_poll_ms": "200", "replica_discover_ms": "2000", "replica_collect_ms": "3000"}
        return self.start("replica", "run", self.source.config(self.folder, **quick), NAME)

    def replicate(self) -> int:
        """One round of all partitions; its exit code."""
        return self._run("replica", "run", *self.registered, "--once")[0]

    def hold_names(self) -> tuple[str, ...]:
        """What the replicas are called in the source's manifests."""
        with self.stores() as (source, _):
            return tuple(r.hold_name for r in ReplicaRegistry(source, TOPICS_DIR, SystemClock(), Random(0)).all())

    def compact(self, settings: TopicSettings = EAGER, *, seed: int = 1, partitions: int = 1) -> Any:
        """A run of the compactor at the source, without Spark; its report."""
        settings = replace(settings, replicas=self.hold_names())
        with self.stores() as (source, _):
            clock = SystemClock()
            report = new_run(source, settings, clock=clock, seed=seed, retry_timeout_s=30.0).clean(
                [self.place(p) for p in range(partitions)]
            )
        assert not report.failed, report.document()
        return report

    def manifests(self, partition: int = 0) -> tuple[Manifest, Manifest]:
        """The newest of both sides."""
        with self.stores() as (source, replica):
            return load(source, self.place(partition)), load(replica, self.place(partition))

    def check(self, partition: int = 0) -> None:
        """Both sides are the same log, and both are sound."""
        place = self.place(partition)
        with self.stores() as (source, replica):
            has, had = load(replica, place), load(source, place)
            assert not differences(had, has), differences(had, has)
            assert read_all(replica, has, place) == read_all(source, had, place)
            for store in (source, replica):
                report = verify_partition(store, place, clock=ManualClock(), random=Random(0))
                assert report.is_sound, [str(f) for f in report.damage]
            assert object_names(replica, place) == has.object_names() | {r.name for r in has.replaced}

    def settle(self, partitions: int = 1) -> None:
        """Rounds until nothing is left to send, then `check`."""
        for _ in range(ROUNDS_MAX):
            code = self.replicate()
            pairs = [self.manifests(p) for p in range(partitions)]
            if code == 0 and not any(differences(*pair) for pair in pairs):
                break
        assert code == 0, self.keyfold("replica", "status", self.source.url, NAME)
        for partition in range(partitions):
            self.check(partition)


@contextmanager
def scene(source: Account, replica: Account, captured: Callable[[], Any], folder: Path) -> Iterator[Scene]:
    """Two new buckets. `captured` is `capsys.readouterr`; configuration files are written to `folder`."""
    with ExitStack() as exits:
        made = Scene(_end(source, exits), _end(replica, exits), captured, folder)
        exits.callback(made.end)
        yield made


def _end(account: Account, exits: ExitStack) -> End:
    bucket = account.server.create_bucket(fresh("bucket"))
    gate = exits.enter_context(Gate(account.server.url, access_key_id=account.access_key_id))
    direct = S3Location(
        bucket,
        region=REGION,
        endpoint_url=account.server.url,
        access_key_id=account.access_key_id,
        secret_access_key=account.secret_access_key,
    )
    return End(gate, replace(direct, endpoint_url=gate.url), direct)


def _nothing() -> None:
    """Instead of closing."""


def open_sink(store: S3Store, place: Place, seed: int = 0) -> Sink:
    """A sink that appends to a place."""
    return Sink.open(store, place, clock=SystemClock(), seed=seed)


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something that has to come. However long it takes decides nothing but that the test gives up."""
    deadline_s = time.monotonic() + WAIT_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"waited {WAIT_TIMEOUT_S} s: {what}"
        time.sleep(0.3)  # asking costs those who are waited for
