"""The process of one contestant. It reads commands from stdin, and answers each with its time and its CPU.

    python -m tests.bench.peers.contestant NAME '{"bootstrap_servers": ..., "registry": ..., "folder": ...}'

    {"do": "ingest", "topic": "users"}       make new records readable    {"wall_s": 1.2, "cpu_s": 0.9, "found": null}
    {"do": "maintain", "topic": "users"}     run a pass, or the table's compaction
    {"do": "schedule", "topic": "users"}     run a pass if one is due by the default settings (keyfold only)
    {"do": "scan", "topic": "users"}         read the latest state, and decode its values
    {"do": "digest", "topic": "users"}       return the digest of the latest state in "found"

CPU is that of the process and its children. The usual AWS variables name the store.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

from keyfold.formats.avro_schema import avro_type
from keyfold.formats.column_width import in_parts
from keyfold.formats.columns import AvroColumn
from keyfold.formats.format import RecordPart
from keyfold.formats.schema_archive import SchemaArchive
from keyfold.read.log import open_log
from keyfold.runtime import event_log
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.process_memory import tune_process
from keyfold_compactor.engine import LocalEngine
from keyfold_compactor.job import Job, RunSelection
from keyfold_compactor.options import CompactOptions
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.task.run import run_task
from tests.bench._processes import cpu_s
from tests.bench.peers.changes import FIELDS, SCHEMA, Digest, row_hash
from tests.bench.peers.on_spark import BUCKET, PEERS

KEYFOLD: Final = "keyfold"


class Contestant(Protocol):
    """Keeps the latest state of topics."""

    def ingest(self, topic: str) -> None:
        """Make the topic's new records readable."""

    def maintain(self, topic: str) -> None:
        """Compact the data, so that it is read faster."""

    def scan(self, topic: str) -> None:
        """Read the latest state, with values decoded."""

    def digest(self, topic: str) -> Digest:
        """Return the digest of the latest state."""


class Keyfold:
    """A task of the sink, the compactor's local engine, and Arrow batches with the value as columns."""

    def __init__(self, bootstrap_servers: str, registry: str, stack: ExitStack) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._registry = registry
        self._stack = stack
        self._jobs: dict[str, Job] = {}

    def ingest(self, topic: str) -> None:
        options = SinkOptions.parse(
            {
                "name": KEYFOLD,
                "bootstrap.servers": self._bootstrap_servers,
                "topics": topic,
                "s3.bucket.name": BUCKET,
                "topics.dir": KEYFOLD,
                "value.converter": "io.confluent.connect.avro.AvroConverter",
                "value.converter.schema.registry.url": self._registry,
            }
        )
        run_task(options, stop=threading.Event(), until_caught_up=True, clock=SystemClock(), random=Random())

    def maintain(self, topic: str) -> None:
        assert self._clean(topic, {"min.cleanable.dirty.ratio": "0"}) > 0, "nothing was due"

    def schedule(self, topic: str) -> None:
        """Run the compactor with its default settings. In most runs nothing is due."""
        self._clean(topic, {})

    def _clean(self, topic: str, settings: Mapping[str, str]) -> int:
        """Do one run, and return how many partitions it cleaned."""
        if topic not in self._jobs:
            self._jobs[topic] = self._job({"topics": topic, **settings})
        report = self._jobs[topic].once()
        assert report.exit_code == 0, report.document()
        return len(report.partitions)

    def _job(self, settings: Mapping[str, str]) -> Job:
        """Return a job that is kept between runs, as the compactor's loop keeps it."""
        options = CompactOptions.parse({"s3.bucket.name": BUCKET, "topics.dir": KEYFOLD, **settings})
        clock = SystemClock()
        engine = self._stack.enter_context(LocalEngine(options, clock))
        return Job(options, RunSelection(), options.location().open(), engine, clock=clock, random=Random())

    def scan(self, topic: str) -> None:
        for _ in self._latest(topic):
            pass

    def digest(self, topic: str) -> Digest:
        count = total = 0
        for keys, rows in self._latest(topic):
            for key, row in zip(keys.to_pylist(), rows.to_pylist(), strict=True):
                count += 1
                total += row_hash(key.decode(), (row[name] for name in FIELDS))
        return Digest(count, total)

    def _latest(self, topic: str) -> Iterator[tuple[Any, Any]]:
        with open_log(f"s3://{BUCKET}/{KEYFOLD}", topic) as log:
            column = AvroColumn(RecordPart.VALUE, SchemaArchive(log.store, KEYFOLD), avro_type(SCHEMA))
            for partition in log.partitions():
                for batch in log.latest_batches(partition, columns=["key", "value", "headers"]):
                    yield from in_parts(batch, lambda part: (part.column("key"), _decoded(column, part)))


def _decoded(column: AvroColumn, batch: Any) -> Any:
    found = column.decode(batch.column("value"), batch.column("headers"))
    assert not found.mismatches, found.mismatches[0]
    return found.array


@contextmanager
def contestant(name: str, bootstrap_servers: str, registry: str, folder: Path) -> Iterator[Contestant]:
    """Yield a contestant, ready for its first batch."""
    if name == KEYFOLD:
        tune_process()
        event_log.configure(json=True, level="warning")
        with ExitStack() as stack:
            yield Keyfold(bootstrap_servers, registry, stack)
    else:
        with PEERS[name].opened(bootstrap_servers, folder) as peer:
            yield peer


def main() -> None:
    """Answer until the input ends."""
    name, ground = sys.argv[1], json.loads(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print; stdout is for answers
    with contestant(name, ground["bootstrap_servers"], ground["registry"], Path(ground["folder"])) as asked:
        for line in sys.stdin:
            command = json.loads(line)
            wall, cpu = time.monotonic(), cpu_s()
            found = getattr(asked, command["do"])(command["topic"])
            took = {"wall_s": time.monotonic() - wall, "cpu_s": cpu_s() - cpu, "found": found}
            print(json.dumps(took), file=answers, flush=True)


if __name__ == "__main__":
    main()
