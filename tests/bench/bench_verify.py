"""Verification beside a plain read of the same segments with fastavro: stored MB per second of CPU, and memory.

fastavro only decodes; verification also proves checksums, indexes, counts, offsets and keys. One process, one thread
each, the same log in memory, so the store costs nothing on either side. The last column is wall time: one thread
against two.

Run: python -m tests.bench.bench_verify [--quick]
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from functools import partial
from io import BytesIO
from random import Random

import fastavro

from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.log.segment import SegmentWriter, segment_bytes
from keyfold.runtime.clock import SystemClock
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from keyfold.verify.partition import verify_partition
from tests.bench.bench_codec import cpu, make_columns

PLACE = Place("topics", "bench", 0)


def make_log(records: int, value_bytes: int, segments: int, codec: str) -> MemoryStore:
    """A log of about `records` records."""
    store, random = MemoryStore(), Random(1)
    log = PartitionLog(store, PLACE, clock=SystemClock(), random=random)
    log.create(start_offset=10**9)
    sink = log.claim_sink()
    per_segment = records // segments
    for number in range(segments):
        rows = make_columns(per_segment, value_bytes, seed=number)
        begin = 10**9 + number * per_segment
        offsets = list(range(begin, begin + per_segment))
        keys = [b"user-%07d" % (number * per_segment + i) for i in range(per_segment)]
        writer = SegmentWriter(sync_marker=sink.manifest.sync_marker, codec=codec)
        writer.append(
            type(rows)(offsets, rows.timestamps, rows.timestamp_types, keys, rows.values, rows.headers,
                       rows.leader_epochs)
        )  # fmt: skip
        finished, name = writer.finish(), sink.new_name(begin)
        store.put(PLACE.key(str(name)), segment_bytes(finished), Create())
        store.put(PLACE.key(str(name.index)), finished.index_data, Create())
        sink.append(finished.entry(str(name), str(name.index), base_offset=begin, next_offset=begin + per_segment))
    return store


def plain(store: MemoryStore) -> int:
    """Every record of every segment, with fastavro."""
    log = PartitionLog(store, PLACE, clock=SystemClock(), random=Random(0))
    return sum(
        sum(1 for _ in fastavro.reader(BytesIO(store.get(PLACE.key(e.name)).data)))
        for e in log.load().manifest.segments
    )


def verify(store: MemoryStore, parallel: int = 1) -> int:
    """The same segments, proved."""
    report = verify_partition(store, PLACE, clock=SystemClock(), random=Random(0), parallel=parallel)
    assert report.findings == ()
    return report.records


def wall(action: Callable[[], int], repeats: int) -> float:
    """The least seconds of some runs."""
    least = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        least = min(least, time.perf_counter() - begin)
    return least


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    records, repeats = (20_000, 1) if quick else (400_000, 3)
    print(f"{'values':>7} {'codec':>10} {'stored MB':>9} {'fastavro MB/s':>13} {'verify MB/s':>11} {'ratio':>6} "
          f"{'2 threads':>10}")  # fmt: skip
    for value_bytes in (100, 1000):
        for codec in ("zstandard", "deflate", "null"):
            count = records if value_bytes == 100 else records // 4
            store = make_log(count, value_bytes, 8, codec)
            stored = sum(i.size_bytes for i in store.list(PLACE.folder) if i.key.endswith(".avro")) / 1e6
            assert plain(store) == verify(store) == count // 8 * 8
            plain_s, _ = cpu(partial(plain, store), repeats)
            verify_s, _ = cpu(partial(verify, store), repeats)
            speed_up = wall(partial(verify, store), repeats) / wall(partial(verify, store, 2), repeats)
            print(f"{value_bytes:>7} {codec:>10} {stored:>9.1f} {stored / plain_s:>13.0f} {stored / verify_s:>11.0f} "
                  f"{plain_s / verify_s:>6.1f} {speed_up:>10.1f}")  # fmt: skip
    print(f"peak memory of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
