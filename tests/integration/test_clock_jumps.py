"""Clocks that jump by an hour while a sink, a compactor and a replicator run, as processes, on a real broker.

The store's clock jumps behind a gate (`Gate.time`), the processes' time of day by a hook that only tests have
(`SkewedProcesses`); each of both ways, and both together. Afterwards the log is compared with the topic, and both
sides of the replica with each other. Waits are longer than all jumps together, so that every promise has to hold.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest

from keyfold.errors import FirstCopyUnfinished, LogNotFound
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.runtime.clock import SystemClock
from tests.support.cleaning import EAGER, Sink, latest, load, new_run, read_all, record
from tests.support.clocks import HOUR_MS, SkewedClock, SkewedProcesses
from tests.support.kafka import KafkaBroker, produce_all, synthetic
from tests.support.moto import ACCESS_KEY_ID, SECRET_ACCESS_KEY, LocalS3Process
from tests.support.proof import TOPICS_DIR, Rig, read_segments, read_topic, wait_for
from tests.support.replica_oracle import differences
from tests.support.replica_scene import COMMAND, NAME, Account, Scene, scene

MakeTopic = Callable[..., str]
HOUR_S = 3600
RECORDS = 400


WAITS = replace(EAGER, delete_retention_ms=3 * HOUR_MS, file_delete_delay_ms=3 * HOUR_MS)
"""What jumps by two hours at most must end none of them."""


@dataclass(frozen=True)
class Endpoint:
    """The source's store, by its gate."""

    url: str
    environment: dict[str, str]


@pytest.fixture
def world(local_s3: LocalS3Process, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Scene]:
    account = Account(local_s3, ACCESS_KEY_ID, SECRET_ACCESS_KEY)
    with scene(account, account, capsys.readouterr, tmp_path) as made:
        made.add()
        made.keyfold("replica", "enable-compaction", *made.registered)
        yield made


@pytest.mark.full
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_clock_jumps_in_all_three_services_break_no_guarantee(
    world: Scene, broker: KafkaBroker, topic: MakeTopic, local_s3: LocalS3Process, tmp_path: Path
) -> None:
    name = topic(config={"retention.ms": "-1"})
    clock = SkewedProcesses(tmp_path)
    environment = {**local_s3.environment, **world.environ, **clock.environment}
    endpoint = Endpoint(str(world.source.location.endpoint_url), environment)
    rig = Rig(broker, endpoint, world.source.location.bucket, tmp_path)
    place = Place(TOPICS_DIR, name, 0)

    def append() -> int:
        rows = synthetic(RECORDS, key_count=50, tombstone_share=0.05)
        return produce_all(broker.bootstrap_servers, name, rows)

    with ExitStack() as exits:
        sink = exits.enter_context(rig.start(rig.config(name, segment_ms=200, flush_size=100)))
        config = compactor_config(world, name, tmp_path)
        compactor = exits.enter_context(started(["compact", "run", str(config)], environment))
        produced = all_jump(world, place, clock, append, lambda: compactor.poll() is None, tmp_path)
        assert sink.process.poll() is None, sink.said[-3000:]
    expected = read_topic(broker.bootstrap_servers, name, 0)
    assert len(expected) == produced
    prove(world, place, expected)


def test_clock_jumps_in_compactor_and_replicator_break_no_guarantee(world: Scene, tmp_path: Path) -> None:
    """Sink and compactor are in this process; the store that they work on has the clock that jumps."""
    place = Place(TOPICS_DIR, "users", 0)
    clock = SkewedProcesses(tmp_path)
    cleaners = SkewedClock(SystemClock())
    sink = Sink.open(world.opened(world.source.location), place, clock=SystemClock())
    appended: list[Record] = []

    def append() -> int:
        for _ in range(4):
            start = len(appended)
            batch = [
                record(n, f"k{n % 50}", None if n % 20 == 0 else f"v{n}") for n in range(start, start + RECORDS // 4)
            ]
            sink.append(batch)
            appended.extend(batch)
        return RECORDS

    seeds = count(1)
    settings = replace(WAITS, replicas=world.hold_names())

    def clean() -> bool:
        store = world.opened(world.source.location)
        report = new_run(store, settings, clock=cleaners, seed=next(seeds), retry_timeout_s=60.0).clean([place])
        return not report.failed

    all_jump(world, place, clock, append, clean, tmp_path, cleaners.jump)
    prove(world, place, appended)


def all_jump(
    world: Scene,
    place: Place,
    clock: SkewedProcesses,
    append: Callable[[], int],
    clean: Callable[[], bool],
    folder: Path,
    *own: Callable[[int], None],
) -> int:
    """A replicator runs, and all clocks jump about; how many records were appended meanwhile.

    `own` are clocks of this process, in ms; they jump with those of the other processes.
    """
    steps = Steps(world, place, append, clean)
    stores = [world.source.gate.time.jump, world.replica.gate.time.jump]
    processes = [clock.jump, *(lambda by_s, jump=jump: jump(1000 * by_s) for jump in own)]
    quick = {"replica_poll_ms": "200", "replica_discover_ms": "1000", "replica_collect_ms": "2000"}
    replicate = ["replica", "run", world.source.config(folder, **quick), NAME]
    with started(replicate, {**world.environ, **clock.environment}) as replicator:
        steps.step("before any jump")
        for by_s in (HOUR_S, -HOUR_S, -HOUR_S, HOUR_S):
            for whose, jumps in (("the stores", stores), ("the processes", processes)):
                for jump in jumps:
                    jump(by_s)
                steps.step(f"after the clocks of {whose} jumped by {by_s} s")
        assert replicator.poll() is None
    return steps.appended


@contextmanager
def started(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([*COMMAND, *command], env={**os.environ, **environment}, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def compactor_config(world: Scene, topic: str, folder: Path) -> Path:
    """Waits of three hours: what jumps by two in all must not end one."""
    values = json.loads(Path(world.source.config(folder)).read_text()) | {
        "topics": topic,
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "10800000",
        "file.delete.delay.ms": "10800000",
        "log.cleaner.backoff.ms": "200",
        "log.cleaner.lease.ms": "5000",
        "cleanup.policy": "compact",
        "compactor.engine": "spark",
        "spark.master": "local[1]",
    }
    path = folder / "compact.json"
    path.write_text(json.dumps(values))
    return path


@dataclass
class Steps:
    """Records that come in steps; each ends when all services have done their part of it."""

    world: Scene
    place: Place
    append: Callable[[], int]
    clean: Callable[[], bool]
    appended: int = 0

    def step(self, when: str) -> None:
        """These records are in the log, the compactor has cleaned into them, the replicator has them."""
        begun = self.appended
        self.appended += self.append()
        source, replica = (self.world.opened(end.direct) for end in (self.world.source, self.world.replica))

        def is_done() -> bool:
            assert self.clean(), "the compactor has failed"
            try:
                now, there = load(source, self.place), load(replica, self.place)
            except (LogNotFound, FirstCopyUnfinished):
                return False
            return now.next_offset == there.next_offset == self.appended and now.first_dirty_offset > begun

        wait_for(is_done, 300, f"all services move on {when}")


def prove(world: Scene, place: Place, expected: list[Record]) -> None:
    """The log is what was appended, compacted; nothing that has to wait has gone; the replica is the same log."""
    source, replica = world.opened(world.source.direct), world.opened(world.replica.direct)
    found = read_segments(source, place.topic, place.partition)
    by_offset = {r.offset: r for r in expected}
    assert load(source, place).next_offset == len(expected)
    assert all(by_offset[r.offset] == r for r in found)
    assert latest(found) == latest(expected)
    assert last_tombstones(found) == last_tombstones(expected), "a tombstone went within delete.retention.ms"
    kept = {r.name for r in load(source, place).replaced}
    deleted = [a.key for a in world.source.gate.asked if a.method == "DELETE" and place.topic in a.key]
    assert kept
    assert deleted == [], "an object went within file.delete.delay.ms"
    for _ in range(20):
        world.replicate()
        if not differences(load(source, place), load(replica, place)):
            break
    assert not differences(load(source, place), load(replica, place))
    assert read_all(replica, place=place) == read_all(source, place=place)


def last_tombstones(records: list[Record]) -> set[int]:
    last = {r.key: r for r in records if r.key is not None}
    return {r.offset for r in last.values() if r.value is None}
