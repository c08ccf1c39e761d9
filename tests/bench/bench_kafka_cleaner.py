"""Kafka's own cleaner on its own log against keyfold's pass, on the same records: raw MB cleaned per CPU second.

    python -m tests.bench.bench_kafka_cleaner [--records 1000000] [--garbage 90,10] [--codec zstd] [--json]

Kafka's CPU is that of the thread that cleans and of nothing else: no start of the JVM, no compiler threads, no garbage
collector, no broker around it. keyfold's is that of one process without Spark (`LocalExecutor`: every thread of it),
and of a run on warm Spark, local[2]: driver, JVM and workers, all their threads. Both sides have had a pass over
another log before, the JVM of the broker over as many records as those that count.

The codec is the same, the level is not: Kafka's cleaner writes zstd at the broker's default (3) and has no setting for
it that an existing batch would go by, keyfold writes at 1. `keyfold at level 3` is there to tell the two apart.
keyfold's pass reads keys from the indexes that the sink has made and writes new ones; what they cost the sink does not
count here.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Final

import click
from confluent_kafka import Consumer, TopicPartition

from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.retry import RetryPolicy
from keyfold_compactor.decide.settings import Encoding, TopicSettings
from keyfold_compactor.execute.executor import Executor
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.execute.run import Run, RunSettings
from keyfold_compactor.spark.executor import SparkExecutor
from keyfold_compactor.spark.session import spark_session
from keyfold_compactor.spark.tasks import TaskEnvironment
from tests.bench._folder_store import FolderStore
from tests.bench._processes import cpu_s
from tests.bench._records import BASE_MS, RECORD_BYTES, Recipe, fill
from tests.support.kafka import KafkaBroker, produce_all
from tests.support.kafka_cleaner import DAY_MS, HELD, Lab

CLEANER: Final = "kafka-log-cleaner-thread-0"[:15]
"""As Linux cuts the name of a thread."""
AVRO_CODECS: Final = {"zstd": "zstandard", "none": "null", "snappy": "snappy"}
SEGMENT_BYTES: Final = 128 * 1024 * 1024
WARM_GARBAGE: Final = 50
WARM_SPARK_RUNS: Final = 3
"""Over several logs each, so that all workers are there and have imported what they need."""
_TICK: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cleaned:
    """One pass. `stored_bytes` are the log's before it."""

    raw_bytes: int
    stored_bytes: int
    wall_s: float
    cpu_s: float

    @property
    def speed(self) -> float:
        """Raw MB per CPU second."""
        return self.raw_bytes / 1e6 / self.cpu_s


# Kafka


def thread_cpu_s(pid: int) -> float:
    """CPU seconds of the broker's cleaner."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        name, rest = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
        if name == CLEANER:
            return sum(map(int, rest.split()[11:13])) / _TICK
    raise AssertionError(f"no thread {CLEANER} in process {pid}")


def kafka_pass(lab: Lab, topic: str, recipe: Recipe, codec: str) -> Cleaned:
    """Produce a log with the cleaner held, let it go, and see what the thread needed."""
    lab.broker.create_topic(topic, 1, {**HELD, "segment.bytes": str(SEGMENT_BYTES)})
    servers = lab.broker.bootstrap_servers
    produce_all(servers, topic, recipe.rows(), config={"compression.type": codec})
    sentinel = [(b"sentinel", b"", BASE_MS + 10 * DAY_MS, 0)]
    produce_all(servers, topic, sentinel, config={"compression.type": codec})
    sizes = lab.segments(topic)
    stored = sum(sizes.values()) - sizes[max(sizes)]
    assert max(sizes) == recipe.count
    time.sleep(1)  # whatever else the broker does after so many records
    pid = lab.broker.pid
    begun, cpu = time.monotonic(), thread_cpu_s(pid)
    lab.set({topic: {"min.cleanable.dirty.ratio": "0"}})
    lab.wait_for_passes({topic: recipe.count})
    found = Cleaned(recipe.raw_bytes, stored, time.monotonic() - begun, thread_cpu_s(pid) - cpu)
    assert count_records(servers, topic) == recipe.key_count + 1
    lab.broker.delete_topic(topic)
    return found


def count_records(servers: str, topic: str) -> int:
    """What a consumer finds in partition 0, which ends with the sentinel."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "count", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    count, deadline = 0, time.monotonic() + 120
    try:
        while time.monotonic() < deadline:
            for message in consumer.consume(10_000, 0.2):
                assert message.error() is None, message.error()
                count += 1
                if message.key() == b"sentinel":
                    return count
    finally:
        consumer.close()
    raise AssertionError(f"no end of {topic} after {count} records")


def kafka_side(recipes: list[Recipe], codec: str) -> list[Cleaned]:
    """All passes of one broker, after one over another log that does not count."""
    with KafkaBroker(heap_mb=1024) as broker:
        lab = Lab(broker)
        kafka_pass(lab, "warm", replace(recipes[0], garbage=WARM_GARBAGE, seed=99), codec)
        return [kafka_pass(lab, f"garbage-{recipe.garbage}", recipe, codec) for recipe in recipes]


# keyfold


def keyfold_pass(
    folder: Path,
    recipe: Recipe,
    codec: str,
    level: int,
    executor: Callable[[FolderStore], Executor],
    *,
    partitions: int = 1,
) -> Cleaned:
    """Write logs, clean them, and see what this process and those below it needed."""
    with tempfile.TemporaryDirectory(dir=folder) as root:
        store, places = FolderStore(root), [Place("topics", "bench", p) for p in range(partitions)]
        manifests = fill(store, [(place, recipe) for place in places], codec=codec)
        topic = TopicSettings(min_cleanable_dirty_ratio=0.0, encoding=Encoding(codec, level))
        settings, made = RunSettings(settings_of=lambda *_: topic), executor(store)
        begun, cpu = time.monotonic(), cpu_s()
        report = Run(store, settings, lambda _: made, clock=SystemClock(), random=Random()).clean(places)
        stored = sum(s.size_bytes for m in manifests for s in m.segments)
        found = Cleaned(recipe.raw_bytes * partitions, stored, time.monotonic() - begun, cpu_s() - cpu)
        assert report.exit_code == 0, report.document()
        left = [PartitionLog(store, p, clock=SystemClock(), random=Random()).load().manifest for p in places]
        assert [m.record_count for m in left] == [recipe.key_count] * partitions
        return found


def local(store: FolderStore) -> Executor:
    """Everything in this process."""
    return LocalExecutor(store, RetryPolicy(SystemClock(), Random()))


def keyfold_side(folder: Path, recipes: list[Recipe], codec: str, level: int) -> list[Cleaned]:
    """Passes without Spark, after one that does not count."""
    keyfold_pass(folder, Recipe(50_000, WARM_GARBAGE, 99), codec, level, local)
    return [keyfold_pass(folder, recipe, codec, level, local) for recipe in recipes]


def spark_side(folder: Path, recipes: list[Recipe], codec: str) -> list[Cleaned]:
    """Passes on Spark, after one that does not count."""
    with spark_session("bench", {"spark.master": "local[2]", "spark.driver.memory": "1g"}) as spark:

        def executor(store: FolderStore) -> Executor:
            return SparkExecutor(spark, TaskEnvironment(store, None, 5.0), map_bytes=64 * 1024 * 1024)

        for _ in range(WARM_SPARK_RUNS):
            keyfold_pass(folder, Recipe(5_000, WARM_GARBAGE, 99), codec, 1, executor, partitions=8)
        return [keyfold_pass(folder, recipe, codec, 1, executor) for recipe in recipes]


def show(recipe: Recipe, codec: str, sides: dict[str, Cleaned]) -> None:
    """One codec and share of garbage."""
    kafka = sides["kafka"]
    print(f"{recipe.count:,} records of {RECORD_BYTES} bytes, {codec}, {recipe.garbage} % garbage: raw MB a CPU second")
    for name, found in sides.items():
        print(
            f"  {name:<24} {found.speed:7.0f} MB/CPU s  ({found.cpu_s:5.2f} CPU s, {found.wall_s:5.2f} s, "
            f"{found.stored_bytes / 1e6:.0f} MB stored)  {found.speed / kafka.speed:5.1f} times Kafka's",
            flush=True,
        )


@click.command()
@click.option(
    "--records", default=1_000_000, help="Few make Spark's fixed cost of a run, about 1 CPU s, the whole of it."
)
@click.option("--garbage", default="90,10", help="Percent of records that are superseded.")
@click.option("--codec", "codecs", default="zstd", help="Of zstd, snappy, none, by comma.")
@click.option("--json", "as_json", is_flag=True)
def main(records: int, garbage: str, codecs: str, *, as_json: bool) -> None:
    """Print ratios of keyfold's to Kafka's speed by CPU."""
    os.environ["PYTHONPATH"] = str(Path.cwd())
    recipes = [Recipe(records, percent) for percent in map(int, garbage.split(","))]
    document: list[object] = []
    with tempfile.TemporaryDirectory() as temporary:
        for codec in codecs.split(","):
            folder, avro = Path(temporary), AVRO_CODECS[codec]
            sides = {"kafka": kafka_side(recipes, codec), "keyfold": keyfold_side(folder, recipes, avro, 1)}
            if codec == "zstd":
                sides["keyfold at level 3"] = keyfold_side(folder, recipes, avro, 3)
            sides["keyfold on Spark"] = spark_side(folder, recipes, avro)
            for at, recipe in enumerate(recipes):
                found = {name: rows[at] for name, rows in sides.items()}
                if not as_json:
                    show(recipe, codec, found)
                costs = {name: asdict(row) | {"raw_mb_per_cpu_s": row.speed} for name, row in found.items()}
                document.append({"codec": codec, "garbage": recipe.garbage, "sides": costs})
    if as_json:
        print(json.dumps(document))


if __name__ == "__main__":
    main()
