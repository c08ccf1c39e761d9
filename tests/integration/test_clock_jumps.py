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
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from keyfold.errors import LogNotFound
from keyfold.log.names import Place
from keyfold.log.record import Record
from tests.support.cleaning import latest, load, read_all
from tests.support.clocks import SkewedProcesses
from tests.support.kafka import KafkaBroker, produce_all, synthetic
from tests.support.moto import ACCESS_KEY_ID, SECRET_ACCESS_KEY, LocalS3Process
from tests.support.proof import TOPICS_DIR, Rig, read_segments, read_topic, wait_for
from tests.support.replica_oracle import differences
from tests.support.replica_scene import COMMAND, Account, Scene, scene

pytestmark = pytest.mark.kafka

MakeTopic = Callable[..., str]
HOUR_S = 3600
RECORDS = 400


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


def test_clocks_that_jump_under_all_three_services_break_no_promise(
    world: Scene, broker: KafkaBroker, topic: MakeTopic, local_s3: LocalS3Process, tmp_path: Path
) -> None:
    name = topic(config={"retention.ms": "-1"})
    clock = SkewedProcesses(tmp_path)
    source = world.source
    environment = {**local_s3.environment, **world.environ, **clock.environment}
    rig = Rig(broker, Endpoint(str(source.location.endpoint_url), environment), source.location.bucket, tmp_path)
    place = Place(TOPICS_DIR, name, 0)
    flow = Steps(world, rig, place)
    with ExitStack() as exits:
        sink = exits.enter_context(rig.start(rig.config(name, segment_ms=200, flush_size=100)))
        compactor = started(exits, ["compact", "run", str(compactor_config(world, name, tmp_path))], environment)
        quick = {"replica_poll_ms": "200", "replica_discover_ms": "1000", "replica_collect_ms": "2000"}
        replicate = ["replica", "run", source.config(tmp_path, **quick), *world.registered[1:]]
        replicator = started(exits, replicate, environment)
        flow.step("before any jump")
        for by_s in (HOUR_S, -HOUR_S, -HOUR_S, HOUR_S):
            for whose, jumps in jumping(world, clock).items():
                for jump in jumps:
                    jump(by_s)
                flow.step(f"after {whose} jumped by {by_s} s")
        assert [p.poll() for p in (sink.process, compactor, replicator)] == [None] * 3, sink.said[-3000:]
    prove(world, rig, place, flow.produced)


def jumping(world: Scene, clock: SkewedProcesses) -> dict[str, list[Callable[[int], None]]]:
    stores = [world.source.gate.time.jump, world.replica.gate.time.jump]
    return {"the stores": stores, "the processes": [clock.jump]}


def started(exits: ExitStack, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([*COMMAND, *command], env={**os.environ, **environment}, stdin=subprocess.DEVNULL)
    exits.callback(process.wait)
    exits.callback(process.kill)
    return process


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
    }
    path = folder / "compact.json"
    path.write_text(json.dumps(values))
    return path


@dataclass
class Steps:
    """Records that come in steps; each ends when all three services have done their part of it."""

    world: Scene
    rig: Rig
    place: Place
    produced: int = 0

    def step(self, when: str) -> None:
        """The sink appends these records, the compactor cleans into them, the replicator has them."""
        begun = self.produced
        rows = synthetic(RECORDS, key_count=50, tombstone_share=0.05)
        self.produced += produce_all(self.rig.broker.bootstrap_servers, self.place.topic, rows)
        source, replica = (self.world.opened(end.direct) for end in (self.world.source, self.world.replica))

        def is_done() -> bool:
            try:
                now, there = load(source, self.place), load(replica, self.place)
            except LogNotFound:
                return False
            return now.next_offset == there.next_offset == self.produced and now.first_dirty_offset > begun

        wait_for(is_done, 300, f"all services move on {when}")


def prove(world: Scene, rig: Rig, place: Place, produced: int) -> None:
    """The log is the topic's, compacted; nothing that has to wait has gone; the replica is the same log."""
    source, replica = world.opened(world.source.direct), world.opened(world.replica.direct)
    expected = read_topic(rig.broker.bootstrap_servers, place.topic, place.partition)
    found = read_segments(source, place.topic, place.partition)
    by_offset = {r.offset: r for r in expected}
    assert len(expected) == produced == load(source, place).next_offset
    assert all(by_offset[r.offset] == r for r in found)
    assert latest(found) == latest(expected)
    assert last_tombstones(found) == last_tombstones(expected), "a tombstone went within delete.retention.ms"
    deleted = [a.key for a in world.source.gate.asked if a.method == "DELETE" and place.topic in a.key]
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
