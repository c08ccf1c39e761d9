"""What the sink costs over a bare consume loop, and how much memory many partitions take.

    speed    one partition, 1,000,000 records of 211 bytes: CPU of the process per record, for a loop over
             `consume(10000)` that touches every field, and for the whole sink, from broker to committed segments with
             indexes. The store is another process, whose CPU does not count. Goal: at most 3.5 times.
    memory   300 partitions at once with a small `buffer.memory`: resident memory at its highest against the budget plus
             the process that has connected and done nothing yet, plus a tenth.

Run: python -m tests.bench.bench_sink [--quick] [--moto] [--only speed|memory]. CPU is counted from the first record on,
the client's threads included; each side runs in a fresh process, alternately, and the best of its runs counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from keyfold import logs
from keyfold.clock import SystemClock
from keyfold.log.record import RecordColumns
from keyfold.log.segment import SegmentWriter
from keyfold_sink import task
from keyfold_sink.consumer import open_consumer
from keyfold_sink.options import SinkOptions
from keyfold_sink.process import tune_process
from tests.support.kafka import KafkaBroker, produce_all
from tests.support.moto import LocalS3Process
from tests.support.versitygw import Versitygw

GOAL = 3.5
MIB = 1024 * 1024
KEY_BYTES = 12
VALUE_BYTES = 199


def rows(count: int, partitions: int) -> Iterator[tuple[bytes, bytes, int, int]]:
    """Rows as services write them: JSON with an id, names, amounts and times, cut to the size."""
    chance = Random(1)
    words = [bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=chance.randint(3, 9))) for _ in range(4000)]
    text = b" ".join(chance.choices(words, k=100_000))
    now_ms = int(time.time() * 1000)
    for number in range(count):
        user = chance.randrange(10**6)
        at = chance.randrange(len(text) - VALUE_BYTES)
        value = (
            b'{"id":%d,"user":"user-%07d","status":"%s","amount":%d.%02d,"currency":"EUR","updated_at":%d,"note":"'
            % (number, user, (b"open", b"paid", b"sent")[user % 3], user % 1000, user % 100, now_ms + number)
        )
        value += text[at : at + VALUE_BYTES - len(value) - 2] + b'"}'
        yield b"user-%07d" % user, value, now_ms + number // 3, number % partitions


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class CpuFromFirstRecord:
    """Looks at the clock when the first records come out of a consumer."""

    def __init__(self) -> None:
        self.begun: tuple[float, float] | None = None

    def wrap(self, consume: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def wrapped(count: int, timeout: float) -> list[Any]:
            messages = consume(count, timeout)
            if messages and self.begun is None:
                self.begun = (cpu_s(), time.monotonic())
            return messages

        return wrapped

    def result(self, count: int) -> dict[str, float]:
        assert self.begun is not None
        cpu, wall = cpu_s() - self.begun[0], time.monotonic() - self.begun[1]
        return {"cpu_us": cpu / count * 1e6, "per_s": count / wall}


# Child processes


def child_loop(bootstrap: str, topic: str, count: int) -> dict[str, float]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-loop",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 5,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    meter = CpuFromFirstRecord()
    consume = meter.wrap(consumer.consume)
    left = count
    while left:
        for message in consume(10_000, 0.1):
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
    result = meter.result(count)
    consumer.close()
    return result


class WrappedConsumer:
    """The sink's consumer, with a look at the clock."""

    def __init__(self, inner: Any, meter: CpuFromFirstRecord) -> None:
        self._inner = inner
        self.consume = meter.wrap(inner.consume)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def child_sink(config_json: str, count_text: str) -> dict[str, float]:
    config, count = json.loads(config_json), int(count_text)
    tune_process()
    logs.configure(json=True, level="warning")
    _warm_up()
    meter = CpuFromFirstRecord()
    idle = [0]

    def metered(options: SinkOptions, plan: Any, on_commit: Any) -> Any:
        idle[0] = rss_bytes()
        return WrappedConsumer(open_consumer(options, plan, on_commit), meter)

    task.open_consumer = metered  # type: ignore[attr-defined]
    peak, stop, end = [0], threading.Event(), threading.Event()

    def watch() -> None:
        while not end.wait(0.01):
            peak[0] = max(peak[0], rss_bytes())

    watcher = threading.Thread(target=watch)
    if config.pop("bench.memory", ""):
        watcher.start()
    task.run_task(SinkOptions.parse(config), stop=stop, until_caught_up=True, clock=SystemClock(), random=Random())
    end.set()
    return {**meter.result(count), "idle": idle[0], "peak": peak[0]}


def _warm_up() -> None:
    """Steady state: libraries load parts of themselves at their first use, which takes half a second of CPU."""
    writer = SegmentWriter(sync_marker=bytes(16))
    n = 1000
    writer.append(RecordColumns(range(n), [1] * n, [1] * n, [b"k"] * n, [b"v" * 100] * n, [None] * n, [0] * n))
    writer.finish()


# The parent


def ask(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.bench.bench_sink", "--child", *arguments]
    # This module has imported Arrow before `tune_process` can say which pool it should take.
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=600, env=environment)
    found: dict[str, float] = json.loads(answer.stdout)
    return found


def speed(broker: KafkaBroker, store: Any, count: int, runs: int) -> bool:
    broker.create_topic("speed", 1, {"retention.ms": "-1"})
    produce_all(broker.bootstrap_servers, "speed", rows(count, 1), config={"compression.type": "none"})
    loops, sinks = [], []
    for run in range(runs):
        loops.append(ask("loop", broker.bootstrap_servers, "speed", str(count)))
        config = base_config(broker, store, f"speed-{run}", "speed")
        sinks.append(ask("sink", json.dumps(config), str(count)))
    loop = min(loops, key=lambda row: row["cpu_us"])
    sink = min(sinks, key=lambda row: row["cpu_us"])
    ratio = sink["cpu_us"] / loop["cpu_us"]
    print(f"{count:,} records of {KEY_BYTES + VALUE_BYTES} bytes, zstandard, one partition, best of {runs}")
    print(f"  bare consume loop   {loop['cpu_us']:6.2f} µs CPU a record  {loop['per_s']:10,.0f} records/s")
    print(f"  the whole sink      {sink['cpu_us']:6.2f} µs CPU a record  {sink['per_s']:10,.0f} records/s")
    print(f"  ratio               {ratio:6.2f}  (goal: at most {GOAL})")
    return ratio <= GOAL


def memory(broker: KafkaBroker, store: Any, count: int, partitions: int, buffer_memory: int) -> bool:
    broker.create_topic("memory", partitions, {"retention.ms": "-1"})
    produce_all(broker.bootstrap_servers, "memory", rows(count, partitions))
    config = base_config(broker, store, "memory", "memory") | {
        "buffer.memory": str(buffer_memory),
        "bench.memory": "yes",
    }
    found = ask("sink", json.dumps(config), str(count))
    allowed = (found["idle"] + buffer_memory) * 1.1
    print(f"{count:,} records in {partitions} partitions at once, buffer.memory {buffer_memory / MIB:.0f} MiB")
    print(
        f"  idle {found['idle'] / MIB:.0f} MiB, highest {found['peak'] / MIB:.0f} MiB, allowed {allowed / MIB:.0f} MiB"
    )
    return found["peak"] <= allowed


def base_config(broker: KafkaBroker, store: Any, name: str, topic: str) -> dict[str, str]:
    return {
        "name": name,
        "bootstrap.servers": broker.bootstrap_servers,
        "topics": topic,
        "s3.bucket.name": "bench",
        "topics.dir": name,
        "store.url": store.url,
        "s3.region": store.environment["AWS_REGION"],
        "aws.access.key.id": store.environment["AWS_ACCESS_KEY_ID"],
        "aws.secret.access.key": store.environment["AWS_SECRET_ACCESS_KEY"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="a tenth of the records, one run")
    parser.add_argument("--moto", action="store_true", help="moto in place of versitygw: needs no Go")
    parser.add_argument("--only", choices=["speed", "memory"])
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        kind, *rest = given.child
        found = child_loop(rest[0], rest[1], int(rest[2])) if kind == "loop" else child_sink(*rest)
        print(json.dumps(found))
        return 0
    tenth = 10 if given.quick else 1
    good = True
    with ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker(heap_mb=768))
        store: Any = stack.enter_context(LocalS3Process() if given.moto else Versitygw())
        store.create_bucket("bench")
        print(f"store: {'moto' if given.moto else 'versitygw'}, {os.cpu_count()} cores")
        if given.only != "memory":
            good &= speed(broker, store, 1_000_000 // tenth, 1 if given.quick else 3)
        if given.only != "speed":
            good &= memory(broker, store, 3_000_000 // tenth, 300, 64 * MIB)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
