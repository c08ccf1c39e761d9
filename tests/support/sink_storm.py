"""Random faults over a sink with three workers and 64 partitions, from a seed.

    plan(seed, seconds)     a schedule, known before anything begins
    Storm.rage()            carries it out while records are produced
    Storm.settle()          ends all faults, and waits until the workers have caught up by themselves
    Storm.prove()           each acknowledged record is in the log once, in order, byte for byte

What happens to workers: see `tests.support.sink_workers`. Beside that the store is busy, loses answers, is slow, deaf
or frozen; the broker freezes; the sink is paused, resumed, flushed and restarted through its REST API.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Final

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from keyfold.errors import LogNotFound
from tests.support.moto import DROP, PASS, Fault, LocalS3Process
from tests.support.proof import TOPICS_DIR, Rig, difference, manifest_of, read_segments, read_topics, wait_for
from tests.support.sink_load import KINDS, Key, Load, Topic, fingerprint_of
from tests.support.sink_workers import Workers

WORKERS: Final = 3
SESSION_S: Final = 6.0
FOREVER: Final = {"retention.ms": "-1"}

# What happens to a worker: how likely, how long until it is over, and what ends it.
FAULTS: Final = {
    "leave": (4, (1.0, 5.0), "join"),
    "kill": (4, (0.0, 4.0), "join"),
    "kill_supervisor": (2, (1.0, 4.0), "join"),
    "kill_tasks": (2, (1.0, 2.0), "wake"),
    "freeze": (4, (SESSION_S + 1, SESSION_S + 6), "wake"),
    "freeze_tasks": (2, (SESSION_S + 1, SESSION_S + 4), "wake"),
    "doze": (2, (0.2, 3.0), "wake"),
}
# How likely, how long, and what the store does meanwhile.
WEATHER: Final[dict[str, tuple[int, tuple[float, float], tuple[Fault, ...]]]] = {
    "clear": (0, (0, 0), ()),
    "busy": (3, (2, 6), (Fault("", status=503, times=-1, chance=0.3),)),
    "lossy": (
        4,
        (3, 10),
        (
            Fault("^PUT ", status=DROP, applied=True, times=-1, chance=0.08),
            Fault("^PUT ", status=DROP, late_ms=400, times=-1, chance=0.04),
            Fault("^PUT .*/_manifest", status=409, times=-1, chance=0.08),
            Fault("^PUT .*/_manifest", status=500, applied=True, times=-1, chance=0.08),
            Fault("", status=DROP, times=-1, chance=0.05),
        ),
    ),
    "slow": (2, (2, 6), (Fault("", status=PASS, slow_ms=600, times=-1, chance=0.4),)),
    "away": (1, (1, 5), (Fault("", status=503, times=-1),)),
    "deaf": (1, (1, 4), (Fault("", status=DROP, times=-1),)),
    "frozen": (1, (0.5, 4), ()),
}


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """An event `at_s` seconds after the start, at a worker or (-1) at all."""

    at_s: float
    what: str
    slot: int = -1

    def __str__(self) -> str:
        return f"{self.at_s:7.2f} s  {self.what}" + (f" {self.slot}" if self.slot >= 0 else "")


def plan(seed: int, seconds: float) -> tuple[Step, ...]:
    """Return the schedule of a seed."""
    random = Random(seed)
    steps = [step for slot in range(WORKERS) for step in _faults(random, slot, seconds)]
    steps += _weather(random, seconds)
    steps += _pairs(random, seconds, what=("freeze broker", "wake broker"), every_s=(20, 40), lasts_s=(1, 8))
    steps += _pairs(random, seconds, what=("pause", "resume"), every_s=(15, 40), lasts_s=(1, 6))
    steps += _pairs(random, seconds, what=("flush", "restart"), every_s=(20, 45), lasts_s=(0, 4))
    steps += _pairs(random, seconds, what=("stop", "resume"), every_s=(40, 80), lasts_s=(2, 8))
    return tuple(sorted(steps))


def _faults(random: Random, slot: int, seconds: float) -> Iterator[Step]:
    at = random.uniform(1, 15)
    while at < seconds:
        what = random.choices(list(FAULTS), [weight for weight, _, _ in FAULTS.values()])[0]
        _, lasts_s, end = FAULTS[what]
        over = at + random.uniform(*lasts_s)
        yield Step(at, what, slot)
        yield Step(over, end, slot)
        at = over + random.uniform(6, 20)  # a worker that has joined needs some seconds to start reading


def _weather(random: Random, seconds: float) -> Iterator[Step]:
    at = random.uniform(1, 3)
    while at < seconds:
        what = random.choices(list(WEATHER), [weight for weight, _, _ in WEATHER.values()])[0]
        yield Step(at, what)
        at += random.uniform(*WEATHER[what][1])
        yield Step(at, "clear")
        at += random.uniform(2, 8)


def _pairs(
    random: Random, seconds: float, *, what: tuple[str, str], every_s: tuple[float, float], lasts_s: tuple[float, float]
) -> Iterator[Step]:
    at = random.uniform(*every_s) / 2
    while at < seconds:
        over = at + random.uniform(*lasts_s)
        yield Step(at, what[0])
        yield Step(over, what[1])
        at = over + random.uniform(*every_s)


class Storm:
    """One storm, from creating the topics to the proof. On a failure it prints its seed and its schedule."""

    def __init__(self, rig: Rig, store: LocalS3Process, *, seed: int, seconds: float, per_s: float, **keys: object):
        self._rig = rig
        self._store = store
        self._seed = seed
        self._seconds = seconds
        self._per_s = per_s
        self.topics = [Topic(f"{kind.name}-{rig.bucket}", kind) for kind in KINDS]
        self.keys: list[Key] = [key for topic in self.topics for key in topic.keys]
        self.steps = plan(seed, seconds)
        self.workers = Workers.of(
            rig,
            self.topics,
            WORKERS,
            consumer_override_session_timeout_ms=int(SESSION_S * 1000),
            task_shutdown_graceful_timeout_ms=15_000,
            **keys,
        )
        self.load = Load(rig.broker.bootstrap_servers, self.topics, per_s=per_s, seed=seed)
        self._requests: Counter[str] = Counter()
        self._found: Counter[str] = Counter()
        self._actions: dict[str, Callable[[int], object]] = {
            "leave": self.workers.leave,
            "kill": self.workers.kill,
            "kill_supervisor": self.workers.kill_supervisor,
            "kill_tasks": self.workers.kill_tasks,
            "freeze": self.workers.freeze,
            "freeze_tasks": self.workers.freeze_tasks,
            "doze": self.workers.freeze,
            "wake": self.workers.wake,
            "join": self.workers.join,
            "freeze broker": lambda _slot: os.kill(rig.broker.pid, signal.SIGSTOP),
            "wake broker": lambda _slot: os.kill(rig.broker.pid, signal.SIGCONT),
            **{what: lambda _slot, what=what: self._change_weather(what) for what in WEATHER},  # type: ignore[misc]  # mypy does not infer a lambda with a default
            **{what: lambda _slot, what=what: self._request(what) for what in ("pause", "resume", "stop")},  # type: ignore[misc]  # mypy does not infer a lambda with a default
            "flush": lambda _slot: self._request("flush", "POST"),
            "restart": lambda _slot: self._request("restart?includeTasks=true", "POST"),
        }

    def run(self) -> str:
        """Run all of it. Return a summary for the test's output."""
        with ExitStack() as stack:
            stack.callback(self.workers.kill_all)
            stack.callback(self._calm)
            try:
                for topic in self.topics:
                    self._rig.broker.create_topic(topic.name, topic.kind.partitions, {**FOREVER, **topic.kind.config})
                self.workers.start_missing()
                clock = [time.monotonic()]
                with self.load:
                    self._await_first_commits()
                    self.rage()
                for phase in (self.settle, self.workers.leave_all, self.prove):
                    clock.append(time.monotonic())
                    phase()
                clock.append(time.monotonic())
                return self._told([after - before for before, after in pairwise(clock)])
            except BaseException:
                print(f"\nstorm of seed {self._seed}, {self._seconds} s, {self._per_s} records/s:")
                print("\n".join(map(str, self.steps)))
                raise

    def rage(self) -> None:
        """Execute the schedule."""
        begun = time.monotonic()
        for step in self.steps:
            time.sleep(max(0.0, begun + step.at_s - time.monotonic()))
            self.workers.check()
            self.load.check()
            self._actions[step.what](step.slot)
        time.sleep(max(0.0, begun + self._seconds - time.monotonic()))
        self.workers.check()

    def _await_first_commits(self) -> None:
        """Wait until the sink works, so that the storm interrupts something."""
        begun = [f'"topic": "{topic.name}"' for topic in self.topics]

        def have_begun() -> bool:
            commits = [line for line in self.workers.said().splitlines() if '"segment committed"' in line]
            return all(any(name in line for line in commits) for name in begun)

        wait_for(have_begun, 60, "a commit of every topic")

    def settle(self, timeout_s: float = 180) -> None:
        """End all faults, and wait until the workers have caught up and the group offsets show it."""
        self._calm()
        for slot in range(WORKERS):
            self.workers.wake(slot)
        self.workers.start_missing()
        self._resume()
        left = self.load.ledger.last_offsets()
        ends: dict[Key, int] = {}
        store = self._rig.store()

        def caught_up() -> bool:
            self.workers.check()
            if not self._is_resumed():
                self._resume()
            for key, last in list(left.items()):
                try:
                    ends[key] = manifest_of(store, *key).next_offset
                except LogNotFound:
                    continue
                if ends[key] > last:
                    del left[key]
            return not left

        def told() -> bool:
            self.workers.check()
            group = self._group_offsets()
            return all(group[key] == manifest_of(store, *key).next_offset for key in self.keys)

        try:
            wait_for(caught_up, timeout_s, "all partitions have caught up")
            wait_for(told, 60, "the group knows where all logs end")
        except AssertionError:
            print(f"left behind: { {key: (ends.get(key), last) for key, last in left.items()} }\n")
            print(self.workers.said()[-5000:])
            raise
        finally:
            store.close()  # type: ignore[attr-defined]  # the store is in S3

    def prove(self) -> None:
        """Compare the log with a plain consumer and with the acknowledgements; run `log verify`; check the group."""
        found = self._found
        in_kafka = read_topics(self._rig.broker.bootstrap_servers, self.keys)
        self.load.ledger.settle(lambda key: [record.offset for record in in_kafka[key]])
        store = self._rig.store()
        try:
            for key in self.keys:
                in_log = read_segments(store, *key)
                assert len(in_log) == len(in_kafka[key]), (key, difference(in_kafka[key], in_log))
                assert in_log == in_kafka[key], key
                assert {r.offset: fingerprint_of(r) for r in in_log} == self.load.ledger.of(key), key
                manifest = manifest_of(store, *key)
                found.update(records=len(in_log), segments=len(manifest.segments), epochs=manifest.sink.epoch)
        finally:
            store.close()  # type: ignore[attr-defined]  # the store is in S3
        assert found["records"] == self.load.ledger.count
        for topic in self.topics:
            self._verify(topic)

    def _verify(self, topic: Topic) -> None:
        url = f"s3://{self._rig.bucket}/{TOPICS_DIR}"
        answer = subprocess.run(
            [sys.executable, "-c", "from keyfold.cli import main; main()", "log", "verify", url, topic.name],
            env={**os.environ, **self._store.environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert answer.returncode == 0, f"log verify {topic.name}:\n{answer.stdout[-3000:]}{answer.stderr[-3000:]}"

    def _group_offsets(self) -> dict[Key, int]:
        asked = ConsumerGroupTopicPartitions(
            f"connect-{self.topics[0].name}", [TopicPartition(*key) for key in self.keys]
        )
        (future,) = self._rig.broker.admin.list_consumer_group_offsets([asked]).values()
        return {(place.topic, place.partition): place.offset for place in future.result(60).topic_partitions}

    def _change_weather(self, what: str) -> None:
        os.kill(self._store.pid, signal.SIGCONT)
        self._store.set_faults(*WEATHER[what][2], seed=self._seed)
        if what == "frozen":
            os.kill(self._store.pid, signal.SIGSTOP)

    def _request(self, what: str, method: str = "PUT", within_s: float = 4) -> None:
        """Send a request to any worker. None may be able to answer; a later step wakes a frozen one."""
        answer = self.workers.ask(method, f"/connectors/{self.topics[0].name}/{what}", within_s)
        self._requests["taken" if answer is not None else "not taken"] += 1

    def _resume(self) -> None:
        assert self.workers.ask("PUT", f"/connectors/{self.topics[0].name}/resume", 60) is not None

    def _is_resumed(self) -> bool:
        """Return whether the sink runs. A frozen worker may have applied earlier requests late."""
        answer = self.workers.ask("GET", f"/connectors/{self.topics[0].name}/status", 60)
        return answer is not None and json.loads(answer)["connector"]["state"] == "RUNNING"

    def _calm(self) -> None:
        os.kill(self._rig.broker.pid, signal.SIGCONT)
        self._change_weather("clear")

    def _told(self, seconds: list[float]) -> str:
        done = ", ".join(f"{count} {what}" for what, count in sorted(Counter(s.what for s in self.steps).items()))
        found, said = self._found, self.workers.said()
        spent = ", ".join(f"{t:.0f} s" for t in seconds)
        return (
            f"\nseed {self._seed}: {found['records']:,} records ({self.load.ledger.aborted:,} more were aborted) in "
            f"{found['segments']:,} segments, {found['epochs']:,} epochs; {said.count('partition reset'):,} set "
            f"back; requests {dict(self._requests)}\n{done}\nstorm, settling, leaving and proof took {spent}"
        )
