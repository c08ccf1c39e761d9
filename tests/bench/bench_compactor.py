"""A pass of keyfold against the Spark job that a user would write, on the same segments, in one warm session.

    python -m tests.bench.bench_compactor [--records 2000000] [--garbage 90,10] [--partitions 4,1] [--rounds 5] [--json]

The log is in memory where there is room for it: what a disk's cache does meanwhile differs from run to run. So do the
JVM's compiler and collector after the other side's work, and the memory that a virtual machine has. So each side runs
five times, by turns the first, and finds memory that is there (`ready_memory`).

Both read the same Avro segments from a folder: the peer with Spark's own Avro source (`row_number()` by key, keep one,
sort by offset, write Avro with zstandard), keyfold from indexes, by bytes, and writes new indexes too. Compare the
ratios, not the seconds. CPU is that of the driver, the JVM and all workers. The floor is what decompressing, copying
and compressing the same blocks takes in one process (`tests.bench._floors`); no pass can cost less.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import starmap
from pathlib import Path
from random import Random
from typing import Any

import click
import numpy as np
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.log.objects import create_object
from keyfold.log.partition_log import PartitionLog
from keyfold.log.record import RecordColumns
from keyfold.log.segment import SegmentWriter
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.retry import RetryPolicy
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.decide.work import Traffic
from keyfold_compactor.execute.run import Run, RunSettings
from keyfold_compactor.report.report import RunReport
from keyfold_compactor.spark.executor import SparkExecutor
from keyfold_compactor.spark.session import spark_session
from keyfold_compactor.spark.tasks import TaskEnvironment
from tests.bench._floors import pass_floor_s
from tests.bench._folder_store import FolderStore
from tests.bench._processes import ROLES, Peaks, cpu_s, event_log, memory_folder, ready_memory, spark_traffic

BATCH = 20_000
# A value of 1,000 bytes: words, as text has them, and digits that say nothing. zstd makes about a third of it.
WORDS, WORD_BYTES, HEX_BYTES = 100, 7, 300
VOCABULARY = 1024
SEGMENT_BYTES = 128 * 1024 * 1024
AVRO = "org.apache.spark.sql.avro.AvroFileFormat"
SETTINGS = TopicSettings(min_cleanable_dirty_ratio=0.0)


@dataclass(frozen=True, slots=True)
class Cost:
    """One side's run. `peak_bytes` are resident memory by role, of all its processes together; bytes are stored ones.

    The peer's bytes are those that Spark counts, keyfold's those of its report; what is shuffled Spark counts for both.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: tuple[int, ...]
    read_bytes: int = 0
    written_bytes: int = 0
    shuffled_bytes: int = 0
    begin_ms: float = 0.0
    end_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Contest:
    """Both sides' middle runs on one log, all their runs, and the CPU seconds below which no pass can be."""

    peer: Cost
    keyfold: Cost
    floor_s: float
    rounds: dict[str, list[float]]

    @property
    def ratios(self) -> dict[str, float]:
        """How many times the peer costs keyfold, and keyfold the floor."""
        return {
            "wall": self.peer.wall_s / self.keyfold.wall_s,
            "cpu": self.peer.cpu_s / self.keyfold.cpu_s,
            "cpu_of_floor": self.keyfold.cpu_s / self.floor_s,
        }


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
        retry = RetryPolicy(clock, random)
        create_object(store, place.key(str(name)), b"".join(finished.data), retry)
        create_object(store, place.key(str(name.index)), finished.index_data, retry)
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


def keyfold_pass(store: FolderStore, executor: SparkExecutor, places: list[Place]) -> RunReport:
    """One run of the compactor."""
    settings = RunSettings(settings_of=lambda *_: SETTINGS)
    run = Run(store, settings, lambda _: executor, clock=SystemClock(), random=Random())
    report = run.clean(places)
    assert report.exit_code == 0, report.document()
    return report


def measured(work: Callable[[], object]) -> Cost:
    """What one call costs, but for the bytes."""
    with Peaks() as peaks:
        begin_ms, wall, cpu = time.time() * 1000, time.monotonic(), cpu_s()
        work()
        wall_s, used_s, end_ms = time.monotonic() - wall, cpu_s() - cpu, time.time() * 1000
    return Cost(wall_s, used_s, tuple(sum(peaks.of(role)) for role in ROLES), begin_ms=begin_ms, end_ms=end_ms)


def compare(
    spark: SparkSession, folder: Path, name: str, records: int, garbage: int, partitions: int, rounds: int
) -> Contest:
    """Both sides on one log, by turns the first; of each its middle run."""
    root = folder / name
    root.mkdir()
    store = FolderStore(str(root))
    places = [Place("topics", name, p) for p in range(partitions)]
    manifests = [fill(store, p, records // partitions, garbage, p.partition) for p in places]
    paths = [str(store.path(p.key(s.name))) for p, m in zip(places, manifests, strict=True) for s in m.segments]
    costs: list[tuple[Cost, Cost]] = []
    floor_s = 0.0
    for number in range(rounds):
        copy = root / f"round{number}"
        costs.append(_round(spark, copy, root / "topics", places, paths, peer_first=number % 2 == 0))
        if number == rounds - 1:
            floor_s = sum(starmap(partial(_floor_s, FolderStore(str(copy))), zip(places, manifests, strict=True)))
        shutil.rmtree(copy)
    shutil.rmtree(root)
    theirs, ours = [peer for peer, _ in costs], [keyfold for _, keyfold in costs]
    runs = {
        f"{side}_{unit}": [getattr(cost, unit) for cost in found]
        for side, found in (("peer", theirs), ("keyfold", ours))
        for unit in ("wall_s", "cpu_s")
    }
    return Contest(_middle(theirs), _middle(ours), floor_s, runs)


def _floor_s(store: FolderStore, place: Place, before: Manifest) -> float:
    return pass_floor_s(store, place, before, _manifest(store, place))


def _manifest(store: FolderStore, place: Place) -> Manifest:
    return PartitionLog(store, place, clock=SystemClock(), random=Random()).load().manifest


def _round(
    spark: SparkSession, root: Path, filled: Path, places: list[Place], paths: list[str], *, peer_first: bool
) -> tuple[Cost, Cost]:
    """Both sides once. Objects are never changed in place, so links to those of the filled log are a log of its own."""
    shutil.copytree(filled, root / "topics", copy_function=os.link)
    store = FolderStore(str(root))
    executor = SparkExecutor(spark, TaskEnvironment(store, None, 5.0), map_bytes=64 * 1024 * 1024)
    out, topic = str(root / "peer"), str(filled / places[0].topic)
    reports: list[RunReport] = []
    sides = {
        "peer": lambda: peer(spark, topic, paths, len(places), out),
        "keyfold": lambda: reports.append(keyfold_pass(store, executor, places)),
    }
    found: dict[str, Cost] = {}
    for side in sorted(sides, reverse=peer_first):
        ready_memory(root, sum(Path(path).stat().st_size for path in paths))
        found[side] = measured(sides[side])
    log = [_manifest(store, place) for place in places]
    assert sum(m.record_count for m in log) == spark.read.format(AVRO).load(out).count()
    traffic = sum((p.traffic for p in reports[0].partitions), Traffic())
    ours = replace(found["keyfold"], read_bytes=traffic.read_bytes, written_bytes=traffic.written_bytes)
    return found["peer"], ours


def _middle(costs: list[Cost]) -> Cost:
    """The run of median wall time (of an even number: the later half's first)."""
    return sorted(costs, key=lambda cost: cost.wall_s)[len(costs) // 2]


def _counted(cost: Cost, events: Path) -> tuple[int, int, int]:
    found = spark_traffic(events, cost.begin_ms, cost.end_ms)
    return found.read_bytes, found.written_bytes, found.shuffled_bytes


def _with_peers_bytes(cost: Cost, events: Path) -> Cost:
    read, written, shuffled = _counted(cost, events)
    return replace(cost, read_bytes=read, written_bytes=written, shuffled_bytes=shuffled)


def show(title: str, found: Contest) -> None:
    """Two lines of figures and one of ratios."""
    print(title)
    for side, cost in (("peer", found.peer), ("keyfold", found.keyfold)):
        memory = ", ".join(f"{role} {peak / 2**20:,.0f}" for role, peak in zip(ROLES, cost.peak_bytes, strict=True))
        print(
            f"  {side:<8}{cost.wall_s:6.1f} s {cost.cpu_s:7.1f} CPU s   read {cost.read_bytes / 1e6:7,.0f} MB, written "
            f"{cost.written_bytes / 1e6:6,.0f} MB, shuffled {cost.shuffled_bytes / 1e6:6,.1f} MB   "
            f"memory at most, MiB: {memory}"
        )
    ratios = found.ratios
    print(f"  floor   {found.floor_s:15.1f} CPU s   keyfold takes {ratios['cpu_of_floor']:.2f} of it")
    print(f"  {ratios['wall']:.1f} times faster, {ratios['cpu']:.1f} times less CPU", flush=True)


@click.command()
@click.option("--records", default=2_000_000)
@click.option("--garbage", default="90,10", help="Percent of records that are superseded.")
@click.option("--partitions", default="4,1", help="Counts of partitions that share the records.")
@click.option("--rounds", default=5, help="Runs of each side; the one of median wall time counts.")
@click.option("--json", "as_json", is_flag=True)
def main(records: int, garbage: str, partitions: str, rounds: int, *, as_json: bool) -> None:
    """Print costs and ratios."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    contests: dict[tuple[int, int], Contest] = {}
    with tempfile.TemporaryDirectory(dir=memory_folder(3 * records * 1024)) as temporary:
        folder, events = Path(temporary, "logs"), Path(temporary, "events")
        folder.mkdir()
        events.mkdir()
        settings = {"spark.master": "local[2]", "spark.driver.memory": "3g", "spark.sql.shuffle.partitions": "8"}
        with spark_session("bench", {**settings, **event_log(events)}) as spark:
            # Both sides at their steady state: the JVM has compiled what is hot, workers have their memory.
            for warm_records, warm_garbage in ((100_000, 10), (records // 2, 90)):
                compare(spark, folder, f"warm{warm_garbage}", warm_records, warm_garbage, 4, 1)
            for count in map(int, partitions.split(",")):
                for percent in map(int, garbage.split(",")):
                    contests[percent, count] = compare(
                        spark, folder, f"log{percent}-{count}", records, percent, count, rounds
                    )
        for key, found in contests.items():
            peer, ours = _with_peers_bytes(found.peer, events), found.keyfold
            ours = replace(ours, shuffled_bytes=_counted(ours, events)[2])
            contests[key] = replace(found, peer=peer, keyfold=ours)
    if as_json:
        print(json.dumps([_document(*key, found) for key, found in contests.items()]))
        return
    for (percent, count), found in contests.items():
        show(f"{percent} % garbage, {count} partitions", found)


def _document(garbage: int, partitions: int, found: Contest) -> dict[str, object]:
    return {"garbage_percent": garbage, "partitions": partitions, **asdict(found), "ratios": found.ratios}


if __name__ == "__main__":
    main()
