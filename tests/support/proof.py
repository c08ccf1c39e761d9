"""Proof that a log equals its topic: every committed record once, in order, with all its bytes.

Both sides are read by means that the sink has no part in: the topic with a plain consumer from the beginning, the log
through its manifest, object by object, with checksums. `Rig` runs sinks as an operator does, by the command: as
processes, or in this one where a single task catches up.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Protocol, Self

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from keyfold.log.index import Index
from keyfold.log.manifest import Manifest, faults
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.log.record import TIMESTAMP_TYPES, Record
from keyfold.log.record_decoder import read_records
from keyfold.runtime.clock import Clock, SystemClock
from keyfold.store.api import ObjectStore
from keyfold.store.s3 import S3Location
from keyfold.verify.partition import verify_partition
from tests.support.command_here import Ended, run_here, run_task_here
from tests.support.kafka import KafkaBroker, produce_all, synthetic

TOPICS_DIR = "topics"
_SINK_IMAGE = str(Path(__file__).with_name("sink_image"))
SOON_MISSED = {"consumer_override_session_timeout_ms": "3000"}
"""For a sink that is killed or frozen: half as long until its group goes on without it."""


class S3Endpoint(Protocol):
    @property
    def url(self) -> str: ...
    @property
    def environment(self) -> dict[str, str]: ...


def read_topic(bootstrap_servers: str, topic: str, partition: int) -> list[Record]:
    """Return all committed records of a partition."""
    return read_topics(bootstrap_servers, [(topic, partition)])[topic, partition]


def read_topics(bootstrap_servers: str, keys: Iterable[tuple[str, int]]) -> dict[tuple[str, int], list[Record]]:
    """Return all committed records of these partitions, read by one consumer."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "proof",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 5,
            "fetch.wait.max.ms": 10,  # or the broker holds back for half a second that a partition has ended
        }
    )
    found: dict[tuple[str, int], list[Record]] = {key: [] for key in keys}
    left = set(found)
    try:
        consumer.assign([TopicPartition(*key, 0) for key in found])
        deadline = time.monotonic() + 120
        while left and time.monotonic() < deadline:
            for message in consumer.consume(10_000, 0.05):
                key = (message.topic() or "", message.partition() or 0)
                error = message.error()
                if error is None:
                    found[key].append(_record(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(key)
    finally:
        consumer.close()
    assert not left, f"not read to their ends: {sorted(left)}"
    return found


def _record(message: Message) -> Record:
    kind, timestamp = message.timestamp()
    epoch = message.leader_epoch()
    return Record(
        message.offset() or 0,
        timestamp,
        TIMESTAMP_TYPES[kind],
        message.key(),
        message.value(),
        tuple(message.headers() or ()),  # type: ignore[arg-type]  # the client returns lists of pairs
        -1 if epoch is None else epoch,
    )


def manifest_of(store: ObjectStore, topic: str, partition: int) -> Manifest:
    place = Place(TOPICS_DIR, topic, partition)
    return PartitionLog(store, place, clock=SystemClock(), random=Random(0)).load().manifest


def read_segments(store: ObjectStore, topic: str, partition: int) -> list[Record]:
    """Return all records of a partition's log, read through its manifest; assert all that a manifest promises."""
    place = Place(TOPICS_DIR, topic, partition)
    manifest = manifest_of(store, topic, partition)
    assert faults(manifest) == []
    found: list[Record] = []
    for entry in manifest.segments:
        data = store.get(place.key(entry.name)).data
        index_data = store.get(place.key(entry.index_name)).data
        assert sha256(data).digest() == entry.checksum
        assert sha256(index_data).digest() == entry.index_checksum
        assert (len(data), len(index_data)) == (entry.size_bytes, entry.index_size_bytes)
        rows = list(read_records(data, origin=entry.name))
        assert len(rows) == entry.record_count == len(Index.parse(index_data))
        assert entry.base_offset <= rows[0].offset
        assert rows[-1].offset == entry.last_offset < entry.next_offset
        found += rows
    assert [r.offset for r in found] == sorted({r.offset for r in found})
    return found


@dataclass(slots=True)
class SinkProcess:
    """A sink as an operator runs it: a worker and its tasks, in one process group."""

    process: subprocess.Popen[str]
    log_path: Path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.signal(signal.SIGCONT)
        self.kill()
        if error is not None:  # shown with the test that fails
            print(f"--- the end of {self.log_path}:\n{self.said[-10_000:]}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the worker and all its tasks."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Kill the worker and all its tasks, as if the machine lost power."""
        self.signal(signal.SIGKILL)
        self.process.wait()

    def wait(self, timeout_s: float = 120) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the sink did not end:\n{self.said[-3000:]}") from None

    def end(self, timeout_s: float = 120) -> int:
        """Send SIGTERM to the worker, and return the exit code."""
        self.process.terminate()
        return self.wait(timeout_s)

    @property
    def said(self) -> str:
        return self.log_path.read_text(errors="replace")

    def until(self, words: str, timeout_s: float = 120) -> None:
        """Wait until the sink has printed these words."""
        wait_for(
            lambda: words in self.said or self.process.poll() is not None, timeout_s, f"{words!r} in {self.log_path}"
        )
        assert words in self.said, self.said[-3000:]


def wait_for(condition: Callable[[], bool], timeout_s: float = 120, what: str = "", interval_s: float = 0.05) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(interval_s)


@dataclass(slots=True)
class Rig:
    """A broker, a store, and sinks between them."""

    broker: KafkaBroker
    s3: S3Endpoint
    bucket: str
    folder: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    _count: int = 0

    def store(self) -> ObjectStore:
        env = self.s3.environment
        return S3Location(
            bucket=self.bucket,
            region=env["AWS_REGION"],
            endpoint_url=self.s3.url,
            access_key_id=env["AWS_ACCESS_KEY_ID"],
            secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
        ).open()

    def config(self, topics: str, **keys: Any) -> Path:
        """Write a configuration file; `_` in a key stands for `.`."""
        given = {key.replace("_", "."): str(value) for key, value in keys.items()}
        config = {
            "name": topics.split(",", maxsplit=1)[0],
            "bootstrap.servers": self.broker.bootstrap_servers,
            "topics": topics,
            "s3.bucket.name": self.bucket,
            "topics.dir": TOPICS_DIR,
            "segment.ms": "1000",
            "consumer.override.session.timeout.ms": "6000",
            "consumer.override.heartbeat.interval.ms": "500",
            "listeners": "",
            **self.settings,
            **given,
        }
        self._count += 1
        path = self.folder / f"sink-{self._count}.json"
        path.write_text(json.dumps(config))
        return path

    def start(self, config: Path, *flags: str, environment: Mapping[str, str] | None = None) -> SinkProcess:
        """Start a sink as a process, in the environment of the sink's image, which has no pandas."""
        self._count += 1
        log_path = self.folder / f"sink-{self._count}.log"
        given = {**os.environ, **self.s3.environment, **(environment or {})}
        given["PYTHONPATH"] = os.pathsep.join(filter(None, [given.get("PYTHONPATH"), _SINK_IMAGE]))
        with log_path.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "keyfold_sink", "run", str(config), "--json", *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                env=given,
                start_new_session=True,
            )
        return SinkProcess(process, log_path)

    def run(self, config: Path, *flags: str, code: int = 0, timeout_s: float = 180) -> str:
        """Run a sink to its end and return its output. A single task that catches up needs no process of its own."""
        is_one_task = json.loads(config.read_text()).get("tasks.max", "1") == "1"
        if is_one_task and "--until-caught-up" in flags:
            return _said(run_here(self.s3.environment, "sink", "run", str(config), "--json", *flags), code)
        with self.start(config, *flags) as sink:
            ended = sink.wait(timeout_s)
            assert ended == code, f"exit code {ended}:\n{sink.said[-3000:]}"
            return sink.said

    def fail(self, config: Path, clock: Clock | None = None) -> str:
        """Run a sink's task in this process until it fails; return its output, with the error as printed."""
        return _said(run_task_here(self.s3.environment, config, clock or SystemClock()), 1)

    def catch_up(self, config: Path, *, timeout_s: float = 180) -> str:
        return self.run(config, "--until-caught-up", timeout_s=timeout_s)

    def prove(self, topic: str, partitions: int = 1) -> int:
        """Assert that the log equals the topic. Return the number of records."""
        store = self.store()
        count = 0
        kept = read_topics(self.broker.bootstrap_servers, [(topic, partition) for partition in range(partitions)])
        try:
            for partition in range(partitions):
                expected = kept[topic, partition]
                found = read_segments(store, topic, partition)
                assert len(found) == len(expected), difference(expected, found)
                assert found == expected
                place = Place(TOPICS_DIR, topic, partition)
                report = verify_partition(store, place, clock=SystemClock(), random=Random(0))
                assert [f for f in report.findings if f.kind.is_damage] == []
                count += len(found)
        finally:
            store.close()  # type: ignore[attr-defined]  # the store is in S3
        return count

    def manifest(self, topic: str, partition: int = 0) -> Manifest:
        store = self.store()
        try:
            return manifest_of(store, topic, partition)
        finally:
            store.close()  # type: ignore[attr-defined]  # the store is in S3


def _said(ended: Ended, code: int) -> str:
    said = ended.err + ended.out
    assert ended.code == code, f"exit code {ended.code}:\n{said[-3000:]}"
    return said


class Flow:
    """A producer that runs during the `with` block; `count` is then the number of its records."""

    def __init__(self, rig: Rig, topic: str, per_s: int = 2000) -> None:
        self._arguments = (rig, topic, per_s)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.count = 0
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(300)
        assert self.error is None
        assert not self._thread.is_alive()

    def _run(self) -> None:
        rig, topic, per_s = self._arguments
        begun = time.monotonic()

        def rows() -> Iterator[tuple[bytes | None, bytes | None, int | None, int | None]]:
            for number, row in enumerate(synthetic(sys.maxsize, key_count=1000, tombstone_share=0.05)):
                if number % 200 == 0 and self._over.wait(max(0.0, begun + number / per_s - time.monotonic())):
                    return
                yield row

        try:
            self.count = produce_all(rig.broker.bootstrap_servers, topic, rows())
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error


def difference(expected: list[Record], found: list[Record]) -> str:
    wanted, had = {r.offset for r in expected}, {r.offset for r in found}
    return f"missing {sorted(wanted - had)[:10]}, extra {sorted(had - wanted)[:10]}, {len(found)} of {len(expected)}"
