"""What counting costs: the sink's hot loop with its meter and with one that counts nothing, alternately in one process.

    loop      CPU of `BatchReader.accept_messages` per record, batches of 10,000 records of one partition down to single
              records, and 100 records over 50 partitions: the meter is asked once a batch and once a partition in it
    report    what a task makes each second, and a worker of it, at 1, 100 and 2,000 partitions; and a scrape
    store     a call through the metered store, which does nothing itself

The difference between the two loops is below a machine's noise, so beside it stands what the calls by themselves cost,
as a share of the loop. That is to be at most 1 % at 1,000 records and more a batch.

Run: python -m tests.bench.bench_sink_metrics [--quick]
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast

from confluent_kafka import Message

from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.process_memory import tune_process
from keyfold.store.memory import MemoryStore
from keyfold_sink.config.options import GapPolicy
from keyfold_sink.config.rolling import RollPolicy
from keyfold_sink.group.assignment import AssignedPartition
from keyfold_sink.group.group import ConsumerGroup
from keyfold_sink.metrics import names
from keyfold_sink.metrics.collector import SinkMetrics
from keyfold_sink.metrics.meter import TaskMeter
from keyfold_sink.metrics.metered_store import MeteredStore
from keyfold_sink.status import PartitionStatus, RunState, TaskStatus, dump, load_task
from keyfold_sink.task.reading import BatchReader
from keyfold_sink.validate.error_counts import ErrorCounts
from keyfold_sink.validate.record_validation import ErrorPolicy, RecordValidation
from keyfold_sink.write.memory_budget import InFlight
from keyfold_sink.write.partition import PartitionWriter, WriterResources
from keyfold_sink.write.partition_health import PartitionHealth
from keyfold_sink.write.serial_queue import QueueRetry, SerialQueue
from tests.support.fake_group import FakeConsumer, FakeSource

VALUE: Final = b'{"customer": 4711, "city": "Utrecht", "items": [1, 2, 3]}' * 4
CLOCK: Final = SystemClock()


class NoMeter(TaskMeter):
    """Counts nothing."""

    def count(self, *_: Any, **__: Any) -> None:
        """Nothing."""

    def batch(self, *_: Any) -> None:
        """Nothing."""

    def sent(self, records: int) -> None:
        """Nothing."""


class Loop:
    """The reading of one task, over partitions whose segments are never full."""

    def __init__(self, pool: ThreadPoolExecutor, meter: TaskMeter, partitions: int) -> None:
        self._next = dict.fromkeys(range(partitions), 0)
        owners = {("t", number): self._owner(pool, meter, number) for number in self._next}
        self.group = SimpleNamespace(
            running=owners.get, assigned=owners, client_errors=SimpleNamespace(moves=lambda: None), fetching=None
        )
        validation = RecordValidation(
            ErrorPolicy(), None, cast("Any", None), ErrorCounts(meter), CLOCK, lambda _owner: True, cast("Any", None)
        )
        self.reading = BatchReader(cast("ConsumerGroup", self.group), GapPolicy.FAIL, validation, meter)

    def _owner(self, pool: ThreadPoolExecutor, meter: TaskMeter, number: int) -> AssignedPartition:
        log = PartitionLog(MemoryStore(), Place("topics", "t", number), clock=CLOCK, random=Random(1))
        log.create(topic_id="T", cluster_id="C")
        queue = SerialQueue(pool, lambda error: print(error, file=sys.stderr))
        retry = QueueRetry(queue, Random(2))
        source = FakeSource(FakeConsumer())
        tools = WriterResources(log.store, source, CLOCK, InFlight(), lambda _committed: None, meter=meter)
        owner = AssignedPartition(("t", number), queue, retry, log, PartitionHealth(CLOCK))
        owner.writer = PartitionWriter(log.claim_sink(), queue, retry, RollPolicy(32_000_000, 600_000), tools)
        owner.is_fetched = owner.has_read = True
        return owner

    def messages(self, count: int) -> list[Message]:
        """The next records, in turns over the partitions."""
        partitions, each = list(self._next), max(1, count // len(self._next))
        found = []
        for number in partitions:
            begin = self._next[number]
            self._next[number] += each
            found += [
                Message(topic="t", partition=number, offset=n, key=b"key-%08d" % (n % 1000), value=VALUE,
                        timestamp=(1, 1_700_000_000_000 + n), leader_epoch=0)
                for n in range(begin, begin + each)
            ]  # fmt: skip
        return found


def cpu_us(call: Callable[[], object], repeats: int) -> float:
    """CPU of this process by call."""
    began = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - began) / repeats * 1e6


def loop(batch: int, partitions: int, records: int, runs: int, calls: tuple[float, float]) -> float:
    """Prints one row; gives the share of the meter's calls: one for a batch, one for each partition in it."""
    best = [float("inf"), float("inf")]
    with ThreadPoolExecutor(1) as pool:
        sides = [Loop(pool, NoMeter(CLOCK), partitions), Loop(pool, TaskMeter(CLOCK), partitions)]
        for run in range(runs):
            for place in (0, 1) if run % 2 else (1, 0):
                side = sides[place]
                batches = [side.messages(batch) for _ in range(max(1, records // batch))]
                gc.collect()
                began = time.process_time()
                for messages in batches:
                    side.reading.accept_messages(messages)
                best[place] = min(best[place], (time.process_time() - began) / sum(map(len, batches)) * 1e6)
    without, counted = best
    share = (calls[0] + calls[1] * partitions) / (without * batch)
    more = counted / without - 1
    print(f"  {batch:>8,}{partitions:>12,}{without:>14.3f}{counted:>12.3f}{100 * more:>10.2f} %{100 * share:>10.2f} %")
    return share


def per_call() -> tuple[float, float]:
    """What the meter's calls cost by themselves: for a batch, and for a partition in it."""
    meter = TaskMeter(CLOCK)
    batch = cpu_us(lambda: meter.batch(100, 10_000, 0.0), 100_000)
    sent = cpu_us(lambda: meter.sent(100), 100_000)
    store = MeteredStore(cast("Any", SimpleNamespace(head=lambda _key: None)), meter)
    head = cpu_us(lambda: store.head("k"), 50_000)
    print(f"a batch {batch:.2f} µs, a partition in it {sent:.2f} µs, a call to the store {head:.2f} µs")
    return batch, sent


def report(count: int) -> None:
    """Prints two rows."""
    meter = TaskMeter(CLOCK)
    meter.observe(names.REQUEST_SECONDS, 0.1, "create")
    now_ms = CLOCK.now_ms()
    partitions = tuple(
        PartitionStatus("topic", n, RunState.RUNNING, n, 2 * n, 3 * n, now_ms - n, now_ms - n) for n in range(count)
    )
    status = TaskStatus(0, RunState.RUNNING, "", 1, now_ms, now_ms, partitions, meter.values({}))
    values = cpu_us(lambda: meter.values({}), 300)
    travel = cpu_us(lambda: load_task(dump(status)), 30)
    for all_partitions in (False, True):
        worker, scrape_ms, size_bytes = at_worker(status, all_partitions=all_partitions)
        print(
            f"  {count:>10,}{values:>10.0f}{travel:>13.0f}{len(dump(status)):>11,}{worker:>12.0f}{scrape_ms:>12.1f}"
            f"{size_bytes:>15,}  {'yes' if all_partitions else 'no'}"
        )


def at_worker(status: TaskStatus, *, all_partitions: bool) -> tuple[float, float, int]:
    """Microseconds to take a report, milliseconds and bytes of a scrape."""
    metrics = SinkMetrics(
        connector="users", connector_class="", version="1", clock=CLOCK, state=lambda: RunState.RUNNING,
        place=lambda: (0, 0), all_partitions=all_partitions,
    )  # fmt: skip
    fresh = [load_task(dump(status)) for _ in range(20)]
    heard = iter(fresh)
    worker = cpu_us(lambda: metrics.on_status(next(heard)), len(fresh))
    return worker, cpu_us(metrics.text, 5) / 1000, len(metrics.text()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    tune_process()
    records, runs = (40_000, 3) if quick else (200_000, 7)
    calls = per_call()
    print(f"reading, records of {len(VALUE)} bytes, CPU of one process, best of {runs}")
    print("     batch  partitions   µs a record   counted       more     calls")
    shares = [loop(batch, 1, records, runs, calls) for batch in (10_000, 1_000)]
    loop(100, 1, records, runs, calls)
    loop(100, 50, records, runs, calls)
    loop(1, 1, records // 20, runs, calls)
    print("  partitions   task µs   as JSON µs      bytes   worker µs   scrape ms   scrape bytes, all partitions")
    for count in (1, 100, 2_000):
        report(count)
    good = max(shares) <= 0.01
    print("within 1 %" if good else "above 1 %")
    sys.exit(not good)


if __name__ == "__main__":
    main()
