"""What it costs to find a key: cold, warm, and beside the ways that one would take without a lookup.

    directory   indexes of all segments read: seconds, CPU and memory per million records
    cold        a new process asks for one key: from the newest segment on, until the key is found
    kept        the same with a directory of keys beside the log, as the compactor keeps it
    warm        the directory is in memory: one request for a key that is there, none for one that is not
    selection   `Log.batches(where=Selection(keys=...))`, which reads every index
    scan        the latest state of the whole log
    served      the same warm key through `keyfold serve`, without a network
    pages       the page of topics, and that of a topic with 1,000 partitions, as they are first asked for

Latency is that of versitygw on this machine. Requests and bytes are those of the store's interface.

Run: python -m tests.bench.bench_lookup [--quick]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

import click
from starlette.testclient import TestClient

from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.log.record import CREATE_TIME, Record
from keyfold.log.segment import DEFAULT_BLOCK_BYTES
from keyfold.read.log import Log
from keyfold.read.selection import Selection
from keyfold.read.stored_directory import Written, write
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import ObjectStore
from keyfold.store.wrappers.counting import CountedStore
from tests.support.logs import MadeLog
from tests.support.served import served
from tests.support.versitygw import Versitygw

RECORDS: Final = 1_000_000
_SEGMENT_RECORDS: Final = 50_000


def fill(store: ObjectStore, count: int) -> None:
    """Records of 200 bytes, each key four times on average."""
    made, random = MadeLog(store=store, clock=SystemClock(), block_bytes=DEFAULT_BLOCK_BYTES), Random(1)
    for first in range(0, count, _SEGMENT_RECORDS):
        end = min(first + _SEGMENT_RECORDS, count)
        made.append(
            [Record(n, n, CREATE_TIME, key_of(random, count), random.randbytes(200)) for n in range(first, end)]
        )


def key_of(random: Random, count: int) -> bytes:
    """An evenly drawn key."""
    return b"user-%09d" % random.randrange(count // 4)


def row(name: str, store: CountedStore, times: int, work: Callable[[], object]) -> None:
    """Print p50 and p99 of some work, its CPU, requests and bytes."""
    store.reset()
    took: list[float] = []
    cpu_s = time.process_time()
    for _ in range(times):
        begun = time.perf_counter()
        work()
        took.append(1000 * (time.perf_counter() - begun))
    cpu_ms = 1000 * (time.process_time() - cpu_s) / times
    took.sort()
    p99 = took[min(len(took) - 1, len(took) * 99 // 100)]
    print(
        f"    {name:<22}{statistics.median(took):10.2f}{p99:10.2f}{cpu_ms:10.2f}"
        f"{store.calls.total() / times:10.1f}{store.bytes_read / times:14,.0f}"
    )


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="a hundredth of it, to see that it runs")
def main(quick: bool) -> None:
    """Run the bench."""
    count = RECORDS // 100 if quick else RECORDS
    with Versitygw() as server:
        server.create_bucket("bench")
        opened = server.location("bench").open()
        fill(opened, count)
        store, random = CountedStore(opened), Random(2)
        log = Log(store, "topics", "users")
        lookup = log.lookup()
        begun, cpu_s = time.perf_counter(), time.process_time()
        lookup.load()
        wall_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu_s
        print(
            f"{count:,} records. The directory: {wall_s:.2f} s, {cpu_s:.2f} s of CPU, "
            f"{lookup.memory_bytes / count:.1f} bytes a record, {store.bytes_read / 1e6:.1f} MB read"
        )
        print(f"    {'':<22}{'p50 ms':>10}{'p99 ms':>10}{'CPU ms':>10}{'requests':>10}{'bytes':>14}")
        times = 20 if quick else 500
        row("warm, a key", store, times, lambda: lookup.get(key_of(random, count)))
        row("warm, an absent key", store, times, lambda: lookup.get(b"nosuch-%d" % random.getrandbits(40)))
        row("warm, 100 keys", store, times // 10, lambda: lookup.get_many([key_of(random, count) for _ in range(100)]))
        row("warm, history", store, times // 10, lambda: lookup.history(key_of(random, count)))
        row("refresh", store, times // 10, lookup.refresh)
        row("cold, a key", store, times // 10, lambda: log.lookup().get(key_of(random, count)))
        begun, cpu_s = time.perf_counter(), time.process_time()
        kept = _kept(opened)
        wall_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu_s
        print(f"    kept directory: {kept.size_bytes / count:.1f} bytes a record, {wall_s:.2f} s, {cpu_s:.2f} s of CPU")
        row("kept, a key", store, times // 10, lambda: log.lookup().get(key_of(random, count)))
        row("kept, an absent key", store, times // 10, lambda: log.lookup().get(b"nosuch-%d" % random.getrandbits(40)))
        row("selection of a key", store, 3, lambda: list(log.batches(0, where=_only(key_of(random, count)))))
        row("scan of latest state", store, 1, lambda: sum(batch.num_rows for batch in log.latest_batches(0)))
        client = served(store)
        client.get("/topics/users/keys/nosuch")
        row("served, a key", store, times, lambda: _asked(client, key_of(random, count)))
        wide = 20 if quick else 1000
        for number in range(wide):
            made = MadeLog(store=opened, place=Place("wide", "wide", number), clock=SystemClock())
            made.append([Record(0, 1, CREATE_TIME, b"a", b"1")])
        client = served(store, "wide")
        for path in ("/", "/ui/topics/wide"):
            row(f"page {path}"[:22], store, 3, partial(_page, client, path))
            print(f"    of {wide:,} partitions: {len(client.get(path).content):,} bytes of HTML")
        opened.close()


def _kept(store: ObjectStore) -> Written:
    """Write the directory of keys of the log."""
    clock, place = SystemClock(), Place("topics", "users", 0)
    manifest = PartitionLog(store, place, clock=clock, random=Random(1)).load().manifest
    return write(store, place, manifest, None, retries=RetryPolicy(clock, Random(1)), random=Random(1))


def _asked(client: TestClient, key: bytes) -> None:
    assert client.get(f"/topics/users/keys/{key.decode()}").status_code in {200, 404}


def _page(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 200


def _only(key: bytes) -> Selection:
    return Selection(keys=frozenset({key}))


if __name__ == "__main__":
    main()
