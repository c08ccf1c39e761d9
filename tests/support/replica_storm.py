"""A source that is written and cleaned, its replica, readers of both, and processes killed while they replicate.

    tally = storm(scene, kills=6, seed=1)

Each process dies at a request that the seed has chosen, on one of both sides, before it is carried out or after it was
(`tests.support.s3_gate`). Between deaths one side is away until it has been asked for in vain. Readers of the replica
are judged by the source's own history. At the end nothing is written any more, and both sides must be one log.
"""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from keyfold.runtime.clock import SystemClock
from tests.support.cleaning import new_run
from tests.support.reader_proof import History
from tests.support.readers_python import LatestReader, OrderedReader, RestartingFollower
from tests.support.readers_world import Loop, Pace, Reader, Tally, World, Writer
from tests.support.replica_scene import Scene, until
from tests.support.s3_gate import Gate

PACE = Pace(lag_s=0.5, delete_retention_s=1.0, file_delete_delay_s=0.5, write_every_s=0.3, keys=40)
DEEPEST_CALL = 60
LAST_ATTEMPTS = 8


@dataclass
class Report:
    """What the storm did."""

    tally: Tally = field(default_factory=Tally)
    deaths: Counter[str] = field(default_factory=Counter)
    away: Counter[str] = field(default_factory=Counter)
    versions: int = 0


class HeldCleaner:
    """Passes of the compactor at the source, in this process, without Spark; it knows of the replica."""

    def __init__(self, scene: Scene, world: World, seed: int) -> None:
        self._scene, self._world, self._seed = scene, world, seed
        self._store = world.location.open()
        self._settings = replace(world.pace.settings, replicas=scene.hold_names())
        self.superseded = self.purged = 0

    def turn(self) -> None:
        """One run over all partitions."""
        self._seed += 1
        places = [self._world.place(p) for p in self._world.histories]
        run = new_run(self._store, self._settings, clock=SystemClock(), seed=self._seed, retry_timeout_s=60.0)
        report = run.clean(places)
        assert not report.failed, report.document()
        self.superseded += sum(part.superseded for part in report.partitions)
        self.purged += sum(part.purged_tombstones for part in report.partitions)
        time.sleep(0.3)

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def storm(scene: Scene, *, kills: int, seed: int, partitions: int = 2, rivals: bool = False) -> Report:
    """`kills` deaths, each followed by a time in which one side is away for every third of them."""
    random, report = Random(seed), Report()
    histories = {p: History() for p in range(partitions)}
    source = World(scene.source.direct, PACE, histories)
    replica = World(scene.replica.direct, PACE, histories)
    with ExitStack() as exits:
        writer = Writer(source, seed).open()
        exits.callback(writer.close)
        writer.turn()
        cleaner = HeldCleaner(scene, source, seed)
        exits.callback(cleaner.close)
        assert scene.replicate() == 0
        writing = _loop(writer.turn, report, exits)
        cleaning = _loop(cleaner.turn, report, exits)
        readers = _readers(source, replica, seed, exits)
        reading = [_loop(partial(_turn, reader, report.tally), report, exits) for reader in readers]
        for number in range(kills):
            _death(scene, random, report, rivals=rivals)
            if number % 3 == 2:
                _away(scene, random, report)
            _check(report)
        writing.end()
        for loop in reading:
            loop.end()
        cleaning.end()
        _check(report)
        until(lambda: _cleans(scene, cleaner), "superseded records and tombstones go")
        scene.settle(partitions)
        for reader in readers:
            _last(reader, report.tally)
        _check(report)
    report.versions = scene.manifests()[1].version
    _check_sent(scene, report, rivals=rivals)
    print(report.tally, dict(report.deaths), dict(report.away), f"{report.versions} versions at the replica", sep="; ")
    return report


def _loop(turn, report: Report, exits: ExitStack) -> Loop:  # type: ignore[no-untyped-def]  # each caller has its own kind of turn
    loop = Loop(turn, report.tally)
    exits.callback(loop.end)
    return loop


def _readers(source: World, replica: World, seed: int, exits: ExitStack) -> list[Reader]:
    logs = [exits.enter_context(world.opened()) for world in (source, replica, replica, replica)]
    readers: list[Reader] = [
        OrderedReader(source, logs[0], seed),
        OrderedReader(replica, logs[1], seed + 1),
        LatestReader(replica, logs[2], seed + 2),
        RestartingFollower(replica, logs[3], seed + 3),
    ]
    names = ("source ordered", "ordered", "latest", "follow")
    for reader, name in zip(readers, names, strict=True):
        reader.name = name  # type: ignore[misc]  # declared without a setter
    return readers


def _turn(reader: Reader, tally: Tally) -> None:
    tally.take(reader)
    time.sleep(0.05)


def _last(reader: Reader, tally: Tally) -> None:
    for _ in range(LAST_ATTEMPTS):
        if tally.take(reader, last=True):
            return
    raise AssertionError(f"{reader.name} was overtaken {LAST_ATTEMPTS} times, and nothing is written any more")


def _check(report: Report) -> None:
    assert not report.tally.errors, report.tally.errors[0]


def _death(scene: Scene, random: Random, report: Report, *, rivals: bool) -> None:
    """A process that replicates, and its end at a request."""
    side, gate = random.choice((("source", scene.source.gate), ("replica", scene.replica.gate)))
    process = scene.start_replicator()
    rival = scene.start_replicator() if rivals else None
    is_late = random.random() < 0.5
    gate.arm(random.randrange(1, DEEPEST_CALL), partial(_kill, process), is_late=is_late)
    until(lambda: not gate.is_armed or process.poll() is not None, "the process makes its requests")
    assert not gate.is_armed, f"the process ended by itself: {process.returncode}"
    process.wait()
    if rival is not None:
        _kill(rival)
    report.deaths[f"{side}, {'after' if is_late else 'before'}"] += 1


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _away(scene: Scene, random: Random, report: Report) -> None:
    """One side is unavailable until a request to it failed; the same process continues when it is back."""
    side, end = random.choice((("source", scene.source), ("replica", scene.replica)))
    process = scene.start_replicator()
    begun = scene.manifests()[1].version
    until(lambda: scene.manifests()[1].version > begun or process.poll() is not None, "the process replicates")
    with end.gate.shut():
        before = _refused(end.gate)
        until(lambda: _refused(end.gate) > before + 3, f"the {side} is asked for in vain")
        begun = scene.manifests()[1].version
    until(lambda: scene.manifests()[1].version > begun + 1, f"the process goes on, the {side} being back")
    assert process.poll() is None, f"the process ended by itself: {process.returncode}"
    _kill(process)
    report.away[side] += 1


def _cleans(scene: Scene, cleaner: HeldCleaner) -> bool:
    """Whether the source has lost what a replica must lose too. On a slow machine that comes after the storm only."""
    if min(cleaner.superseded, cleaner.purged) == 0:
        scene.replicate()
        cleaner.turn()
    return min(cleaner.superseded, cleaner.purged) > 0


def _refused(gate: Gate) -> int:
    return sum(asked.status == 0 for asked in gate.asked)


def _check_sent(scene: Scene, report: Report, *, rivals: bool) -> None:
    """Each object landed once. What was sent again was under way when its process died."""
    creates = [a for a in scene.replica.gate.asked if a.creates and a.key.endswith((".avro", ".parquet"))]
    objects = [a for a in creates if not a.key.endswith("_manifest.avro")]
    landed = Counter(a.key for a in objects if a.status == 200)
    assert not [key for key, count in landed.items() if count > 1]
    again = sum(a.status == 412 for a in objects)
    deaths = sum(report.deaths.values()) + sum(report.away.values())
    print(f"{len(landed)} objects landed, {len(objects)} sent, {again} sent although they were there")
    assert rivals or again <= 8 * deaths, f"{again} objects were sent although they were there"
