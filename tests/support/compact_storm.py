"""A compactor that is killed again and again while a sink appends and a reader reads.

The last runs are made in this process: on the local engine, with the Spark that it has, or with one of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.runtime.clock import SystemClock
from keyfold.store.s3 import S3Location, S3Store
from tests.support.cleaning import Sink, last_per_key, latest, load, object_names, read_all, record
from tests.support.keyfold_here import here

COMMAND = (sys.executable, "-c", "from keyfold.cli import main; main()", "compact", "run")
WAIT_TIMEOUT_S = 300.0
PLACES = tuple(Place("topics", "users", partition) for partition in range(3))


@dataclass
class Writer(threading.Thread):
    """Appends small segments; what it has appended is known exactly, since each commit's answer is waited for."""

    location: S3Location
    seed: int
    stop: threading.Event = field(default_factory=threading.Event)
    appended: dict[Place, list[Record]] = field(default_factory=lambda: {place: [] for place in PLACES})
    error: BaseException | None = None

    def __post_init__(self) -> None:
        threading.Thread.__init__(self)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        store = self.location.open()
        random = Random(self.seed)
        try:
            sinks = {place: Sink.open(store, place, clock=SystemClock(), seed=self.seed) for place in PLACES}
            while not self.stop.is_set():
                for place, sink in sinks.items():
                    batch = self._batch(random, len(self.appended[place]))
                    sink.append(batch, codec="zstandard", block_bytes=2048)
                    self.appended[place] += batch
                self.stop.wait(0.1)
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.error = error
        finally:
            store.close()

    def _batch(self, random: Random, start: int) -> list[Record]:
        return [
            record(start + i, f"k{random.randrange(60)}", None if random.random() < 0.1 else f"v{start + i}")
            for i in range(random.randrange(5, 120))
        ]


def check_version(location: S3Location, place: Place, known: list[Record]) -> None:
    """One version as a reader sees it: bytes and index agree, and it folds to the state of its own prefix."""
    store = location.open()
    try:
        manifest = load(store, place)
        found = read_all(store, manifest, place)
    finally:
        store.close()
    prefix = [r for r in known if r.offset < manifest.next_offset]
    if len(prefix) == manifest.next_offset:  # else the writer has committed more than it has told us yet
        assert latest(found) == latest(prefix)
        assert [r for r in found if r.offset >= manifest.first_dirty_offset] == [
            r for r in prefix if r.offset >= manifest.first_dirty_offset
        ]


def start_compactor(config: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*COMMAND, str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def storm(location: S3Location, folder: Path, *, kills: int, seed: int, engine: str = "spark") -> None:
    """`kills` compactors die by SIGKILL; then one finishes, and the log holds exactly what it must."""
    random = Random(seed)
    config = folder / "compact.json"
    config.write_text(json.dumps({**settings(location), "compactor.engine": engine}))
    writer = Writer(location, seed)
    writer.start()
    try:
        for _ in range(kills):
            process = start_compactor(config)
            deadline = time.monotonic() + random.uniform(3, 14)
            while time.monotonic() < deadline:
                for place in PLACES:
                    if len(writer.appended[place]):
                        check_version(location, place, list(writer.appended[place]))
                time.sleep(0.2)
            process.kill()
            process.wait()
    finally:
        writer.stop.set()
        writer.join()
    assert writer.error is None, writer.error
    finish(location, config, writer)


def finish(location: S3Location, config: Path, writer: Writer) -> None:
    values = json.loads(config.read_text()) | {"file.delete.delay.ms": "0"}
    config.write_text(json.dumps(values))
    store = location.open()
    until_s = time.monotonic() + WAIT_TIMEOUT_S
    try:
        # The lease of the last one that was killed ends first, and tombstones go with the second pass.
        while left := [place for place in PLACES if not is_clean(store, place, writer.appended[place])]:
            assert time.monotonic() < until_s, left
            done = here("compact", "run", config, "--once", "--force", "--collect-orphans")
            assert done.returncode == 0, done.stderr
            time.sleep(0.5)
    finally:
        store.close()


def is_clean(store: S3Store, place: Place, appended: list[Record]) -> bool:
    """Whether the log has the last record of each key that is not deleted, and its place no other object."""
    expected = [r for r in last_per_key(appended) if not r.is_tombstone]
    return read_all(store, place=place) == expected and object_names(store, place) == load(store, place).object_names()


def settings(location: S3Location) -> dict[str, str]:
    return {
        "s3.bucket.name": location.bucket,
        "s3.region": str(location.region),
        "store.url": str(location.endpoint_url),
        "aws.access.key.id": str(location.access_key_id),
        "aws.secret.access.key": str(location.secret_access_key),
        "topics": "users",
        "min.cleanable.dirty.ratio": "0",
        "delete.retention.ms": "0",
        "file.delete.delay.ms": "600000",
        "log.cleaner.lease.ms": "1000",
        "log.cleaner.backoff.ms": "200",
        "spark.master": "local[2]",
    }
