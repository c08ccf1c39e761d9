"""`keyfold restore` beside a plain producer: the same records into the same broker in the same run.

The peer has the records in memory already and calls `produce` for each, idempotent, acks=all, the same batches and
compression, with a delivery callback that counts: what one would write who needs no log. The restore reads a log from a
store in memory, decodes it, announces windows, checks each landing. Both in this process, one partition, in turns.

Run: python -m tests.bench.bench_restore [--quick] [--records N] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from confluent_kafka import Producer

from keyfold.kafka.cluster import KafkaCluster
from keyfold.kafka.settings import client_settings
from keyfold.log.names import Place
from keyfold.log.record import CREATE_TIME, Record
from keyfold.log.segment import DEFAULT_BLOCK_BYTES
from keyfold.read.log import Log
from keyfold.restore.kafka_target import KafkaTopics
from keyfold.restore.run import Restore, RestoreRequest
from keyfold.runtime.clock import SystemClock
from keyfold.store.memory import MemoryStore
from tests.support.kafka import KafkaBroker
from tests.support.logs import MadeLog

_SEGMENT_RECORDS: Final = 50_000
_CONFIG: Final = {"retention.ms": "-1", "segment.bytes": "1073741824"}


@dataclass(frozen=True, slots=True)
class Case:
    """Records with values of a given size and a given number of headers."""

    value_bytes: int
    headers: int = 0

    def __str__(self) -> str:
        return f"{self.value_bytes} B" + (f", {self.headers} headers" if self.headers else "")


CASES: Final = (Case(100), Case(200, headers=2), Case(1000))


def records(case: Case, count: int) -> Iterator[Record]:
    random = Random(1)
    pool = random.randbytes(case.value_bytes * 4).hex().encode()
    now = int(time.time() * 1000) - 3_600_000
    headers = tuple((f"name-{n}", b"value-%d" % n) for n in range(case.headers))
    for offset in range(count):
        at = random.randrange(len(pool) - case.value_bytes)
        value = (b"%d " % offset + pool[at : at + case.value_bytes])[: case.value_bytes]
        yield Record(offset, now + offset % 1000, CREATE_TIME, b"key-%08d" % random.randrange(count), value, headers)


def plain(broker: KafkaBroker, topic: str, batch: list[Record]) -> float:
    """Seconds until all are acknowledged."""
    left = len(batch)

    def landed(error: Any, _: Any) -> None:
        nonlocal left
        assert error is None, error
        left -= 1

    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, "acks": "all", "linger.ms": 20,
         "compression.type": "lz4", "batch.num.messages": 100_000, "queue.buffering.max.kbytes": 32 * 1024}
    )  # fmt: skip
    started = time.perf_counter()
    for number, record in enumerate(batch):
        headers: Any = list(record.headers) or None
        while True:
            try:
                producer.produce(
                    topic, record.value, record.key, 0, on_delivery=landed, timestamp=record.timestamp, headers=headers
                )
            except BufferError:
                producer.poll(0.1)
            else:
                break
        if number % 256 == 0:
            producer.poll(0)
    producer.flush()
    assert left == 0
    return time.perf_counter() - started


def restore(broker: KafkaBroker, topic: str, store: MemoryStore) -> float:
    """Seconds from the first look to the last record, and the journal's end."""
    clock = SystemClock()
    started = time.perf_counter()
    with KafkaCluster(client_settings(broker.bootstrap_servers)) as cluster:
        log = Log(store, "topics", "bench", clock=clock)
        one = Restore(log, KafkaTopics(cluster), RestoreRequest(topic), clock=clock, random=Random(), holder="bench")
        outcome = one.run(one.preview())
    assert not outcome.failures, outcome.failures
    return time.perf_counter() - started


def measure(broker: KafkaBroker, case: Case, count: int, rounds: int) -> dict[str, Any]:
    """The best of some rounds of each, in turns."""
    batch = list(records(case, count))
    store = MemoryStore()
    made = MadeLog(store=store, place=Place("topics", "bench", 0), clock=SystemClock(), block_bytes=DEFAULT_BLOCK_BYTES)
    for at in range(0, count, _SEGMENT_RECORDS):
        made.append(batch[at : at + _SEGMENT_RECORDS])
    times: dict[str, list[float]] = {"plain": [], "restore": []}
    for number in range(rounds):
        for kind, found in times.items():
            topic = f"{kind}-{case.value_bytes}-{case.headers}-{number}"
            broker.create_topic(topic, 1, _CONFIG)
            took = plain(broker, topic, batch) if kind == "plain" else restore(broker, topic, store)
            found.append(took)
            broker.delete_topic(topic)
    best = {kind: count / min(found) for kind, found in times.items()}
    return {
        "case": str(case),
        "value_bytes": case.value_bytes,
        "headers": case.headers,
        "records": count,
        "plain_per_s": round(best["plain"]),
        "restore_per_s": round(best["restore"]),
        "ratio": round(best["restore"] / best["plain"], 3),
        "rounds": {f"{kind}_per_s": [round(count / took) for took in found] for kind, found in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that it runs")
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    count, rounds = (5_000, 1) if given.quick else (given.records, 3)
    with KafkaBroker(heap_mb=768) as broker:
        for case in CASES:
            found = measure(broker, case, count, rounds)
            if given.json:
                sys.stdout.write(json.dumps(found) + "\n")
            else:
                sys.stdout.write(
                    f"{found['case']:<18} {count:,} records: plain {found['plain_per_s']:,}/s, "
                    f"restore {found['restore_per_s']:,}/s, ratio {found['ratio']}\n"
                )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
