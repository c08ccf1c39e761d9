"""What a sink takes in memory with 1, 100 and 2,000 partitions that are all written to at once.

The most that its task had resident while records flowed, beside what it had when all partitions were claimed and none
was written to, and the budget between the two. A peer of Kafka Connect with one task took 650 to 900 MB on a handful of
partitions, and keeps a part for each that is open.

Run: python -m tests.bench.bench_sink_memory [--quick] [--json]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.bench.report.results import rows_as_json
from tests.support.kafka import KafkaBroker
from tests.support.moto import LocalS3Process
from tests.support.proof import Rig
from tests.support.sink_limits import FOREVER, MIB, many_partitions

CASES = ((1, 1_000_000), (100, 1_000_000), (2000, 1_000_000))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="a tenth of the partitions and of the records")
    parser.add_argument("--json", action="store_true", help="print rows as JSON, and text to stderr")
    given = parser.parse_args()
    tenth = 10 if given.quick else 1
    with (
        rows_as_json(given.json) as rows,
        KafkaBroker(heap_mb=2048) as broker,
        LocalS3Process() as store,
        tempfile.TemporaryDirectory(prefix="keyfold-bench-") as folder,
    ):
        for full_partitions, count in CASES:
            partitions = max(1, full_partitions // tenth)
            topic = f"memory-{partitions}"
            broker.create_topic(topic, partitions, FOREVER)
            rig = Rig(broker, store, store.create_bucket(topic), Path(folder))
            memory, told = many_partitions(rig, topic, partitions, count=count // tenth, buffer_memory=64 * MIB)
            print(told, flush=True)
            rows.append(
                {
                    "partitions": partitions,
                    "records": count // tenth,
                    "buffer_memory_bytes": 64 * MIB,
                    "idle_bytes": memory.before_bytes,
                    "peak_bytes": memory.peak_bytes,
                }
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
