"""A storm from making the topics to the proof.

calm    topics, sinks, compactor, replicators and readers work, and both replicas have everything once
rage    the schedule is carried out while records are produced
settle  all disturbances end; sinks catch up, replicas become equal, everybody ends well
prove   readers accept every partition in every bucket up to Kafka's end; `keyfold log verify` compares all three
        buckets with Kafka; Kafka has what it acknowledged
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Final

from keyfold.errors import LogNotFound
from keyfold_demo.s3_endpoint import S3Endpoint
from tests.support.kafka import KafkaBroker
from tests.support.proof import manifest_of, read_topics
from tests.support.sink_load import Load, fingerprint_of
from tests.support.storm.drills import Drills
from tests.support.storm.gates import FAULTS, StormGate
from tests.support.storm.schedule import BROKER, BUCKETS, Step, plan
from tests.support.storm.summary import Summary
from tests.support.storm.traffic import TOPICS, Traffic
from tests.support.storm.world import KEYFOLD, Child, World, wait_until

PER_S: Final = 160.0
_CHECK_EVERY_S: Final = 2.0
_LAST_TURNS_MAX_S: Final = 1_800.0
_VERIFY_MAX_S: Final = 900.0
_SAID_AT_THE_END: Final = 3_000
_LOGS_SHOWN: Final = 12


@contextmanager
def storm_over(broker: KafkaBroker, server: S3Endpoint, folder: Path, *, seed: int, seconds: float) -> Iterator[Storm]:
    """Make a storm; whatever happens, no process outlives it."""
    with ExitStack() as exits:
        gates = {name: exits.enter_context(StormGate(server.url)) for name in BUCKETS}
        buckets = {name: server.create_bucket(f"storm-{name}") for name in BUCKETS}
        world = World(broker, server, gates, buckets, folder, seed)
        exits.callback(world.end)
        storm = Storm(world, seconds)
        exits.callback(storm.end)
        yield storm


class Storm:
    """One storm. On any failure it prints its seed, what was done, and the last words of each process."""

    def __init__(self, world: World, seconds: float) -> None:
        self.world = world
        self.steps = plan(world.seed, seconds)
        self.drills = Drills(world, world.seed)
        self.summary = Summary(world.seed, seconds)
        self._seconds = seconds
        self._traffic = Traffic()
        self._load = Load(
            world.broker.bootstrap_servers, TOPICS, per_s=PER_S, seed=world.seed, make_record=self._traffic.record
        )
        self._weather: Counter[str] = Counter()
        self._at_s = 0.0
        self._is_over = False
        direct = dict.fromkeys(BUCKETS, world.server.url)
        behind = {name: gate.url for name, gate in world.gates.items()}
        self._readers = [
            self._reader("plain", world.readers_config(direct, "plain")),
            self._reader("library", world.readers_config(behind, "library")),
        ]

    def run(self) -> Summary:
        """All of it."""
        try:
            self.calm()
            with self._load:
                self._await_first_commits()
                self.drills.start()
                self.rage()
                self.drills.finish()
            self.settle()
            self.prove()
        except BaseException:
            self._tell()
            raise
        return self.summary

    def end(self) -> None:
        """Kill the remaining processes, suspended ones too."""
        self._is_over = True
        self._clear()
        for reader in self._readers:
            reader.kill()

    def calm(self) -> None:
        """Make the topics, and start everybody. The load begins after it."""
        world = self.world
        for topic in TOPICS:
            world.broker.create_topic(topic.name, topic.kind.partitions, topic.kind.config)
        self.drills.register()
        world.start_all()

    def rage(self) -> None:
        """Carry out the schedule. Weather and broker have a thread of their own, which waits for no process."""
        for reader in self._readers:
            reader.start()
        begun_s = time.monotonic()
        sky = (*BUCKETS, BROKER)
        weather = threading.Thread(
            target=self._follow, args=(begun_s, [s for s in self.steps if s.whom in sky]), daemon=True, name="weather"
        )
        weather.start()
        self._follow(begun_s, [s for s in self.steps if s.whom not in sky])
        while (left_s := begun_s + self._seconds - time.monotonic()) > 0:
            self._check()
            time.sleep(min(left_s, _CHECK_EVERY_S))
        weather.join()
        self._check()

    def _follow(self, begun_s: float, steps: Sequence[Step]) -> None:
        checked_s = begun_s
        for step in steps:
            while True:
                left_s = begun_s + step.at_s - time.monotonic()
                if time.monotonic() > checked_s + _CHECK_EVERY_S and threading.current_thread().name != "weather":
                    self._check()
                    checked_s = time.monotonic()
                if left_s <= 0 or self._is_over:
                    break
                time.sleep(min(left_s, _CHECK_EVERY_S))
            if self._is_over:
                return
            self._at_s = max(self._at_s, step.at_s)
            self._carry_out(step)

    def settle(self) -> None:
        """End all disturbances: everybody catches up, and ends well."""
        world = self.world
        self._clear()
        world.start_all()
        world.is_calm = True
        left = self._load.ledger.last_offsets()
        wait_until(lambda: self._has_caught_up(left), "the sinks catch up", self._check)
        wait_until(self.drills.in_sync, "the replicas catch up", self._check)
        self._final_pass()
        wait_until(self.drills.in_sync, "the replicas have the last pass", self._check)
        world.close((*world.children, "sink 0", "sink 1"), gracefully=True)

    def prove(self) -> None:
        """Readers, `keyfold log verify` and acknowledgements agree about every partition of every bucket."""
        for reader in self._readers:
            reader.terminate()
        for reader in self._readers:
            reader.wait(_LAST_TURNS_MAX_S)
        self._verify()
        keys = [key for topic in TOPICS for key in topic.keys]
        in_kafka = read_topics(self.world.broker.bootstrap_servers, keys)
        ledger = self._load.ledger
        ledger.settle(lambda key: [record.offset for record in in_kafka[key]])
        for key in keys:
            assert {record.offset: fingerprint_of(record) for record in in_kafka[key]} == ledger.of(key), key
        self._sum_up()

    def _carry_out(self, step: Step) -> None:
        world = self.world
        if step.what == "drill":
            self.drills.ask(step.whom)
        elif step.what == "traffic":
            self._traffic.kind = step.whom
        elif step.whom == BROKER:
            world.freeze_broker(step.what)
        elif step.what in FAULTS:
            world.gates[step.whom].set_weather(step.what, world.seed)
            self._weather[step.what] += step.what != "clear"
        else:
            world.carry_out(step.what, step.whom)

    def _await_first_commits(self) -> None:
        """The storm comes over a system that works: both replicas have a part of each partition."""
        wait_until(self.drills.is_begun, "each partition is replicated to both targets", self._check)

    def _check(self) -> None:
        self.world.check()
        self._load.check()
        self.drills.check()
        for reader in self._readers:
            reader.check()

    def _clear(self) -> None:
        self.world.freeze_broker("wake")
        for gate in self.world.gates.values():
            gate.set_weather("clear", 0)
            gate.is_away = False

    def _has_caught_up(self, left: dict[tuple[str, int], int]) -> bool:
        store = self.world.server.location(self.world.buckets[self.world.source]).open()
        try:
            for key, last in list(left.items()):
                if manifest_of(store, *key).next_offset > last:
                    del left[key]
        except LogNotFound:
            return False
        finally:
            store.close()
        return not left

    def _final_pass(self) -> None:
        """A last run of the real command, with Spark, over everything at the source."""
        world = self.world
        world.close(["compactor"], gracefully=True)
        done = world.keyfold(
            "compact", "run", world.compactor_config(), "--once", "--force", "--engine", "spark", timeout_s=900
        )
        assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]

    def _verify(self) -> None:
        world = self.world
        environ = {**world.environ, "AWS_ENDPOINT_URL": world.server.url}
        kafka = ("--bootstrap-servers", world.broker.bootstrap_servers)
        for name, topic in product(BUCKETS, TOPICS):
            command = (*KEYFOLD, "log", "verify", world.url(name), topic.name, *kafka)
            child = Child(f"verify {topic.name} in {name}", command, environ, self._log("verify"))
            child.start()
            child.wait(_VERIFY_MAX_S)
            self.summary.add("verify", {"logs compared with Kafka, topic by topic": 1})

    def _sum_up(self) -> None:
        world, ledger, summary = self.world, self._load.ledger, self.summary
        summary.add("records", {"committed in Kafka": ledger.count, "records of aborted transactions": ledger.aborted})
        summary.add("records", {f"transactions {what}": count for what, count in ledger.transactions.items()})
        summary.add("processes", world.done)
        summary.add("store", {"requests": sum(gate.requests for gate in world.gates.values())})
        for gate in world.gates.values():
            summary.add("store", gate.struck)
        summary.add("store", {f"weather: {what}": count for what, count in self._weather.items() if count})
        said = world.said_by_sinks()
        summary.add("sinks", {"segments committed": said.count('"segment committed"')})
        summary.add("sinks", {"partitions claimed": said.count('"partition claimed"')})
        for line in world.children["compactor"].said.splitlines():
            if line.startswith('{"figures"'):
                summary.add("compactor", json.loads(line)["figures"])
        summary.add("replicas", self.drills.done)
        summary.add("commits", self._commits())
        for reader in self._readers:
            found = json.loads(reader.said.splitlines()[-1])
            summary.add("readers", found["counts"])
            lags = {f"{reader.name}, {bucket}: ms behind Kafka": lag for bucket, lag in found["lag_ms"].items()}
            summary.add("longest lag", lags)
        if self._seconds >= 600:
            assert not summary.missing(), f"never happened: {summary.missing()}\n{summary.table()}"

    def _commits(self) -> dict[str, int]:
        """Versions of all manifests of each bucket."""
        found: dict[str, int] = {}
        for bucket in self.world.buckets.values():
            store = self.world.server.location(bucket).open()
            try:
                found[f"in {bucket}"] = sum(manifest_of(store, *key).version for topic in TOPICS for key in topic.keys)
            finally:
                store.close()
        return found

    def _reader(self, name: str, config: str) -> Child:
        command = (*KEYFOLD[:1], "-m", f"tests.support.storm.{name}", config)
        return Child(f"{name} readers", command, {}, self._log(f"{name}-readers"))

    def _log(self, name: str) -> Path:
        return self.world.folder / f"{name}.log"

    def _tell(self) -> None:
        world = self.world
        print(f"\nstorm of seed {world.seed}, {self._seconds:.0f} s; it failed at or after {self._at_s:.1f} s")
        print(f"source: {world.source}; buckets: {world.buckets}; logs in {world.folder}; {dict(world.done)}")
        print("\n".join(str(step) for step in self.steps if self._at_s - 30 <= step.at_s <= self._at_s))
        newest = sorted(world.folder.rglob("*.log"), key=lambda path: path.stat().st_mtime)[-_LOGS_SHOWN:]
        for path in newest:
            print(f"--- {path}:\n{path.read_text(errors='replace')[-_SAID_AT_THE_END:]}")
