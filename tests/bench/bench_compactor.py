"""A pass of keyfold against the Spark job that a user would write, on the same segments, in one warm session.

    python -m tests.bench.bench_compactor [--records 2000000] [--garbage 90,10] [--partitions 1] [--json]

Both read the same Avro segments from a folder: the peer with Spark's own Avro source (`row_number()` by key, keep one,
sort by offset, write Avro with zstandard), keyfold from indexes, by bytes, and writes new indexes too. Compare the
ratios, not the seconds. CPU is that of the driver, the JVM and all workers.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import click
import numpy as np
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from keyfold.clock import SystemClock
from keyfold.log.commit import Patience
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.log.objects import create_object
from keyfold.log.partition_log import PartitionLog
from keyfold.log.record import RecordColumns
from keyfold.log.segment import SegmentWriter
from keyfold_compactor.run import Run, RunSettings
from keyfold_compactor.settings import TopicSettings
from keyfold_compactor.spark_executor import SparkExecutor
from keyfold_compactor.spark_session import spark_session
from keyfold_compactor.spark_tasks import TaskEnvironment
from tests.bench._folder_store import FolderStore

BATCH = 20_000
# A value of 1,000 bytes: words, as text has them, and digits that say nothing. zstd makes about a third of it.
WORDS, WORD_BYTES, HEX_BYTES = 100, 7, 300
VOCABULARY = 1024
SEGMENT_BYTES = 128 * 1024 * 1024
AVRO = "org.apache.spark.sql.avro.AvroFileFormat"
SETTINGS = TopicSettings(min_cleanable_dirty_ratio=0.0)


@dataclass(frozen=True, slots=True)
class Cost:
    """One side's run."""

    wall_s: float
    cpu_s: float


def fill(store: FolderStore, place: Place, records: int, garbage: int, seed: int) -> Manifest:
    """A log in which `garbage` percent of the records are superseded: keys are drawn evenly, each about as often."""
    clock, random, noise = SystemClock(), Random(seed), np.random.default_rng(seed)
    log = PartitionLog(store, place, clock=clock, random=random)
    log.create(settings={"cleanup.policy": "compact"})
    session = log.claim_sink()
    keys = noise.permutation(np.arange(records) % max(1, records * (100 - garbage) // 100))
    vocabulary = np.array([bytes(random.choices(b"etaoinshrdlu", k=WORD_BYTES - 1)) + b" " for _ in range(VOCABULARY)])
    start = 0
    while start < records:
        writer = SegmentWriter(sync_marker=session.manifest.sync_marker)
        base = start
        while start < records and writer.size_bytes < SEGMENT_BYTES:
            end = min(start + BATCH, records)
            count = end - start
            writer.append(
                RecordColumns(
                    range(start, end),
                    [1_700_000_000_000 + i for i in range(start, end)],
                    [1] * count,
                    [b"user-%012d" % key for key in keys[start:end].tolist()],
                    values(noise, vocabulary, count),
                    [None] * count,
                    [0] * count,
                )
            )
            start = end
        finished = writer.finish()
        name = session.new_name(base)
        patience = Patience(clock, random)
        create_object(store, place.key(str(name)), b"".join(finished.data), patience)
        create_object(store, place.key(str(name.index)), finished.index_data, patience)
        session.append(finished.entry(str(name), str(name.index), base_offset=base, next_offset=start))
    return session.manifest


def values(noise: np.random.Generator, vocabulary: np.ndarray[Any, Any], count: int) -> list[bytes]:
    """Values of 1,000 bytes, half text and half digits."""
    text = vocabulary[noise.integers(0, len(vocabulary), (count, WORDS))].tobytes()
    digits = noise.bytes(count * HEX_BYTES // 2).hex().encode()
    wide = WORDS * WORD_BYTES
    return [text[i * wide : (i + 1) * wide] + digits[i * HEX_BYTES : (i + 1) * HEX_BYTES] for i in range(count)]


def peer(spark: SparkSession, topic: str, paths: list[str], partitions: int, out: str) -> None:
    """What a user writes: the last record of each key, in the order of offsets, as Avro again."""
    ids = ["partition"] if partitions > 1 else []
    reader = spark.read.format(AVRO)
    log = (reader.option("basePath", topic) if ids else reader).load(paths)
    newest = Window.partitionBy(*ids, "key").orderBy(F.col("offset").desc())
    kept = log.withColumn("n", F.row_number().over(newest)).where("n = 1").drop("n").sort(*ids, "offset")
    kept.write.format(AVRO).option("compression", "zstandard").save(out)


def keyfold_pass(store: FolderStore, executor: SparkExecutor, places: list[Place]) -> None:
    """One run of the compactor."""
    settings = RunSettings(settings_of=lambda *_: SETTINGS)
    run = Run(store, settings, lambda: executor, clock=SystemClock(), random=Random())
    report = run.clean(places)
    assert report.exit_code == 0, report.document()


def cpu_s() -> float:
    """CPU seconds of this process and all below it, the dead ones included."""
    ticks = 0
    parents: dict[int, list[tuple[int, int]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append((int(entry.name), sum(map(int, fields[11:15]))))
    own = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    ticks += sum(map(int, own[11:15]))
    pending = [os.getpid()]
    while pending:
        for pid, used in parents.get(pending.pop(), []):
            ticks += used
            pending.append(pid)
    return ticks / os.sysconf("SC_CLK_TCK")


def measured(work: Callable[[], None]) -> Cost:
    """Wall and CPU time of one call."""
    wall, cpu = time.monotonic(), cpu_s()
    work()
    return Cost(time.monotonic() - wall, cpu_s() - cpu)


def compare(
    spark: SparkSession, folder: Path, name: str, records: int, garbage: int, partitions: int
) -> tuple[Cost, Cost]:
    """Both sides on one log; the peer's and keyfold's cost."""
    root = folder / name
    root.mkdir()
    store = FolderStore(str(root))
    places = [Place("topics", name, p) for p in range(partitions)]
    manifests = [fill(store, p, records // partitions, garbage, p.partition) for p in places]
    paths = [str(store.path(p.key(s.name))) for p, m in zip(places, manifests, strict=True) for s in m.segments]
    executor = SparkExecutor(spark, TaskEnvironment(store, None, 5.0), map_bytes=64 * 1024 * 1024)
    out, topic = str(root / "peer"), str(root / "topics" / name)
    theirs = measured(lambda: peer(spark, topic, paths, partitions, out))
    ours = measured(lambda: keyfold_pass(store, executor, places))
    log = [PartitionLog(store, p, clock=SystemClock(), random=Random()).load().manifest for p in places]
    expected = spark.read.format(AVRO).load(out).count()
    assert sum(m.record_count for m in log) == expected
    shutil.rmtree(root)
    return theirs, ours


@click.command()
@click.option("--records", default=2_000_000)
@click.option("--garbage", default="90,10", help="Percent of records that are superseded.")
@click.option("--partitions", default=1)
@click.option("--json", "as_json", is_flag=True)
def main(records: int, garbage: str, partitions: int, *, as_json: bool) -> None:
    """Print wall and CPU ratios."""
    os.environ["PYTHONPATH"] = str(Path.cwd())
    found: dict[str, object] = {}
    settings = {"spark.master": "local[2]", "spark.driver.memory": "3g", "spark.sql.shuffle.partitions": "8"}
    with tempfile.TemporaryDirectory() as temporary, spark_session("bench", settings) as spark:
        folder = Path(temporary)
        compare(spark, folder, "warm", 40_000, 50, 2)
        for percent in map(int, garbage.split(",")):
            theirs, ours = compare(spark, folder, f"log{percent}", records, percent, partitions)
            ratios = {"wall": theirs.wall_s / ours.wall_s, "cpu": theirs.cpu_s / ours.cpu_s}
            found[str(percent)] = {"peer": asdict(theirs), "keyfold": asdict(ours), "ratios": ratios}
            if not as_json:
                print(
                    f"{percent} % garbage, {partitions} partitions: "
                    f"peer {theirs.wall_s:.1f} s ({theirs.cpu_s:.1f} CPU), "
                    f"keyfold {ours.wall_s:.1f} s ({ours.cpu_s:.1f} CPU): {ratios['wall']:.1f} times faster, "
                    f"{ratios['cpu']:.1f} times less CPU"
                )
    if as_json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
