"""Passes over a log whose surviving records are scattered, by how many bytes between two blocks are read with them.

    python -m tests.bench.bench_gaps [--changes 1000000] [--keys 100000] [--gaps 0,65536,262144,1048576] [--rounds 2]

Changes of evenly drawn keys, with values of 1 KB (`tests.bench.peers.changes`), lie in 20 segments of each of four
partitions. Each pass has a log of its own, and its CPU is that of this process alone. The store is versitygw.
"""

from __future__ import annotations

import os
import time
from random import Random
from typing import Final
from zlib import crc32

import click

from keyfold.log.names import Place
from keyfold.log.objects import create_object
from keyfold.log.partition_log import PartitionLog
from keyfold.log.record import RecordColumns
from keyfold.log.segment import SegmentWriter
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import ObjectStore
from keyfold.store.location import open_location
from keyfold.store.wrappers.counting import CountedStore
from keyfold_compactor.decide.settings import Encoding, TopicSettings
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.execute.run import Run, RunSettings
from tests.bench.peers.changes import Changes
from tests.support.kafka import Row
from tests.support.versitygw import Versitygw

PARTITIONS: Final = 4
SEGMENTS: Final = 20
BUCKET: Final = "bench"


def fill(store: ObjectStore, places: list[Place], count: int, keys: int) -> None:
    """Write the changes as a sink would, a segment of each partition at a time."""
    clock, changes = SystemClock(), Changes(keys, 7)
    logs = [PartitionLog(store, place, clock=clock, random=Random()) for place in places]
    for log in logs:
        log.create(settings={"cleanup.policy": "compact"})
    sinks = [log.claim_sink() for log in logs]
    for number in range(SEGMENTS):
        rows: list[list[Row]] = [[] for _ in places]
        for row in changes.rows(count * number // SEGMENTS, count * (number + 1) // SEGMENTS):
            rows[crc32(row[0] or b"") % len(places)].append(row)
        for place, sink, part in zip(places, sinks, rows, strict=True):
            base, n = sink.manifest.next_offset, len(part)
            keys_, values, times, _ = zip(*part, strict=True)
            writer = SegmentWriter(sync_marker=sink.manifest.sync_marker)
            writer.append(RecordColumns(range(base, base + n), times, [1] * n, keys_, values, [None] * n, [0] * n))
            finished, name = writer.finish(), sink.new_name(base)
            retry = RetryPolicy(clock, Random())
            create_object(store, place.key(str(name)), b"".join(finished.data), retry)
            create_object(store, place.key(str(name.index)), finished.index_data, retry)
            sink.append(finished.entry(str(name), str(name.index), base_offset=base, next_offset=base + n))


def clean(store: ObjectStore, places: list[Place], gap_bytes: int) -> str:
    """Do a pass over each log, and say what it took."""
    counted = CountedStore(store)
    settings = TopicSettings(min_cleanable_dirty_ratio=0.0, encoding=Encoding(gap_bytes=gap_bytes))
    executor = LocalExecutor(counted, RetryPolicy(SystemClock(), Random()), slots=2, is_single_stage=True)
    run = Run(store, RunSettings(lambda *_: settings), lambda _: executor, clock=SystemClock(), random=Random())
    begun_s, cpu_s = time.monotonic(), time.process_time()
    report = run.clean(places)
    took_s, used_s = time.monotonic() - begun_s, time.process_time() - cpu_s
    assert report.exit_code == 0, report.document()
    assert len(report.partitions) == len(places)
    reads = counted.calls["get"] + counted.calls["get_range"]
    return f"{reads:6,} reads {counted.bytes_read / 1e6:6.0f} MB {used_s:6.2f} CPU s {took_s:6.2f} s"


@click.command(help=__doc__)
@click.option("--changes", default=1_000_000)
@click.option("--keys", default=100_000)
@click.option("--gaps", default="0,65536,262144,1048576")
@click.option("--rounds", default=2)
def main(changes: int, keys: int, gaps: str, rounds: int) -> None:
    """Print a line for each pass."""
    with Versitygw() as server:
        os.environ.update(server.environment)
        server.create_bucket(BUCKET)
        store = open_location(server.location(BUCKET))
        for number in range(rounds):
            for gap_bytes in map(int, gaps.split(",")):
                topic = f"gap-{gap_bytes}-{number}"
                places = [Place("gaps", topic, partition) for partition in range(PARTITIONS)]
                fill(store, places, changes, keys)
                print(f"{gap_bytes:9,} {clean(store, places, gap_bytes)}", flush=True)


if __name__ == "__main__":
    main()
