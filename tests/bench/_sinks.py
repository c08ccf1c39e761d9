"""What sinks and bare consumers cost as processes: CPU and time for the records alone, without what starting costs.

Each figure is the difference between a run over many records and one over a thousandth of them, both from the first
instruction of the process to its end, its children included: libraries that are loaded, groups that are joined and logs
that are claimed are in both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, Final

from keyfold.log.avro import StoredBlock, read_blocks
from keyfold.log.codec import DEFAULT_CODEC, Codec, open_codec
from keyfold.log.names import is_segment_name
from keyfold.log.objects import PART_BYTES, ObjectUpload
from keyfold.runtime.buffers import Bytes
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import ObjectStore
from keyfold.store.location import open_location
from keyfold_demo.children import free_port
from tests.bench._steady import Steady, steady
from tests.support.kafka import KafkaBroker, Row, produce_all

FEW_OF: Final = 1000
KEY_BYTES: Final = 12

# Aiven's S3 sink 2.15.0 in Kafka Connect 4.3.1, one task, values of 211 bytes, on a machine of this kind.
PEERS: Final = (("jsonl", 20.0, 40_000), ("jsonl, gzip", 15.0, 65_000), ("csv", 11.0, 74_000))

_LOOP: Final = """
import sys
from confluent_kafka import Consumer, TopicPartition
bootstrap, topic, count, *partitions = sys.argv[1:]
consumer = Consumer({
    "bootstrap.servers": bootstrap, "group.id": "bench-loop", "enable.auto.commit": False,
    "fetch.queue.backoff.ms": 5, "isolation.level": "read_committed",
})
consumer.assign([TopicPartition(topic, int(partition), 0) for partition in partitions])
left = int(count)
while left:
    for message in consumer.consume(10_000, 0.1):
        assert message.error() is None
        message.topic()
        message.partition()
        message.offset()
        message.timestamp()
        message.key()
        message.value()
        message.headers()
        message.leader_epoch()
        left -= 1
consumer.close()
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU of all processes and time on the wall, in seconds."""

    cpu_s: float
    wall_s: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cpu_s + other.cpu_s, self.wall_s + other.wall_s)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.cpu_s - other.cpu_s, self.wall_s - other.wall_s)

    def cpu_us(self, count: int) -> float:
        return self.cpu_s / count * 1e6

    def per_s(self, count: int) -> float:
        return count / max(self.wall_s, 1e-9)


def median_cost(costs: Sequence[Cost]) -> Cost:
    """The run of median CPU (of an even number: the later half's first)."""
    return sorted(costs, key=lambda cost: cost.cpu_s)[len(costs) // 2]


def rows(count: int, value_bytes: int, partitions: int) -> Iterator[Row]:
    """JSON as services write it: an id, names, amounts, times and a text that fills it up to its size."""
    chance = Random(1)
    words = [bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=chance.randint(3, 9))) for _ in range(4000)]
    text = b" ".join(chance.choices(words, k=max(100_000, value_bytes // 2)))
    now_ms = int(time.time() * 1000)
    for number in range(count):
        user = chance.randrange(10**6)
        if value_bytes < 150:
            value = b'{"id":%d}' % number
        else:
            value = (
                b'{"id":%d,"user":"user-%07d","status":"%s","amount":%d.%02d,"currency":"EUR","updated_at":%d,"note":"'
                % (number, user, (b"open", b"paid", b"sent")[user % 3], user % 1000, user % 100, now_ms + number)
            )
            at = chance.randrange(len(text) - value_bytes)
            value += text[at : at + value_bytes - len(value) - 2] + b'"}'
        yield b"user-%07d" % user, value.ljust(value_bytes), now_ms + number // 3, number % partitions


def run(commands: list[list[str]], environment: Mapping[str, str] | None = None) -> Cost:
    """Run processes side by side to their ends. Raises where one fails."""
    begun = time.monotonic()
    processes = [
        subprocess.Popen(command, env={**os.environ, **(environment or {})}, stdout=subprocess.DEVNULL)
        for command in commands
    ]
    cpu_s = 0.0
    for process in processes:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        cpu_s += used.ru_utime + used.ru_stime
    return Cost(cpu_s, time.monotonic() - begun)


@dataclass(slots=True)
class Ground:
    """A broker, a store with a bucket `bench`, and a folder for configurations."""

    broker: KafkaBroker
    store: Any
    folder: Path
    _number: int = 0
    _starts: dict[str, Cost] = field(default_factory=dict)

    def fill(
        self,
        topic: str,
        count: int,
        value_bytes: int,
        partitions: int = 1,
        written: Callable[[bytes], bytes] = lambda value: value,
    ) -> None:
        """A topic with many records and one with few; `written` makes their values of JSON."""
        for name, size in ((topic, count), (f"{topic}-few", _few(count, partitions))):
            self.broker.create_topic(name, partitions, {"retention.ms": "-1"})
            produce_all(
                self.broker.bootstrap_servers,
                name,
                (
                    (key, written(value or b""), timestamp, partition)
                    for key, value, timestamp, partition in rows(size, value_bytes, partitions)
                ),
                config={"compression.type": "none"},
            )

    def loop(self, topic: str, count: int, processes: int = 1, partitions: int = 1) -> Cost:
        """Consume loops that touch every field, each over its share of the partitions."""
        few = self._kept(
            f"loop {topic} {processes}",
            lambda: self._bare(f"{topic}-few", _few(count, partitions), processes, partitions),
        )
        return self._bare(topic, count, processes, partitions) - few

    def sink(self, topic: str, tasks: int = 1, **keys: object) -> Cost:
        """The sink, from the broker to committed segments and indexes."""
        what = f"sink {topic} {tasks} {sorted(keys.items())}"
        few = self._kept(what, lambda: self._sink(f"{topic}-few", tasks, keys))
        return self._sink(topic, tasks, keys) - few

    def steady(self, topic: str, count: int, tasks: int, **keys: object) -> Steady:
        """The sink while all of its tasks read."""
        url = f"http://127.0.0.1:{free_port()}"
        path = self._written(topic, tasks, {"listeners": url, **keys})
        return steady(path, url, f"bench-{self._number}", tasks, count, self.store.environment)

    def compression(self, topic: str) -> Cost:
        """Compress the blocks of the newest run of the sink once more, in one thread and with nothing else."""
        codec, store = open_codec(DEFAULT_CODEC), open_location(self.store.location("bench"))
        cost = Cost(0.0, 0.0)
        for found in store.list(f"bench-{self._number}/{topic}/"):
            if is_segment_name(found.key.rsplit("/", 1)[1]):
                blocks = [block for block in read_blocks(store.get(found.key).data) if isinstance(block, StoredBlock)]
                cost += _compressed(codec, [codec.decompress(block.payload) for block in blocks])
        return cost

    def uploads(self, topic: str) -> Cost:
        """Hash and upload the objects of the newest run of the sink once more, one after another."""
        store, cost = open_location(self.store.location("bench")), Cost(0.0, 0.0)
        for found in store.list(f"bench-{self._number}/{topic}/"):
            key = f"again/{found.key}"
            cost += _uploaded(store, key, store.get(found.key).data)
            store.delete(key)
        return cost

    def _kept(self, what: str, ask: Callable[[], Cost]) -> Cost:
        """The median of three runs: what starting costs is asked for once."""
        if what not in self._starts:
            self._starts[what] = median_cost([ask() for _ in range(3)])
        return self._starts[what]

    def _bare(self, topic: str, count: int, processes: int, partitions: int) -> Cost:
        shares = [list(map(str, range(partitions)))[number::processes] for number in range(processes)]
        start = [sys.executable, "-c", _LOOP, self.broker.bootstrap_servers, topic]
        return run([[*start, str(count * len(share) // partitions), *share] for share in shares])

    def _sink(self, topic: str, tasks: int, keys: Mapping[str, object]) -> Cost:
        path = self._written(topic, tasks, keys)
        command = [sys.executable, "-m", "keyfold_sink", "run", str(path), "--until-caught-up", "--json"]
        return run([command], self.store.environment)

    def _written(self, topic: str, tasks: int, keys: Mapping[str, object]) -> Path:
        self._number += 1
        path = self.folder / f"sink-{self._number}.json"
        path.write_text(json.dumps(self.config(topic, f"bench-{self._number}", tasks, keys)))
        return path

    def config(self, topic: str, name: str, tasks: int, keys: Mapping[str, object]) -> dict[str, str]:
        return {
            "name": name,
            "bootstrap.servers": self.broker.bootstrap_servers,
            "topics": topic,
            "tasks.max": str(tasks),
            "s3.bucket.name": "bench",
            "topics.dir": name,
            "store.url": self.store.url,
            **{key.replace("_", "."): str(value) for key, value in keys.items()},
        }


def _compressed(codec: Codec, blocks: list[Bytes]) -> Cost:
    cpu_s, begun = time.process_time(), time.monotonic()
    for block in blocks:
        codec.compress(block)
    return Cost(time.process_time() - cpu_s, time.monotonic() - begun)


def _uploaded(store: ObjectStore, key: str, data: Bytes) -> Cost:
    parts = [bytes(data[first : first + PART_BYTES]) for first in range(0, len(data), PART_BYTES)]
    upload, checksum = ObjectUpload(store, key, RetryPolicy(SystemClock(), Random())), sha256()
    cpu_s, begun = time.process_time(), time.monotonic()
    for part in parts:
        checksum.update(part)
    for part in parts[:-1]:
        upload.send_part(part)
    upload.finish(parts[-1])
    return Cost(time.process_time() - cpu_s, time.monotonic() - begun)


def _few(count: int, partitions: int) -> int:
    """A thousandth, but enough for every partition, each with the same number."""
    return max(8, count // FEW_OF // partitions * partitions, 2 * partitions)
