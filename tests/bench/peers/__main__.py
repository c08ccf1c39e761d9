"""keyfold from the broker to the latest state, beside the Spark jobs that users run for the same purpose.

    make bench-peers [ARGS="--changes 200000 --keys 20000"]

There is one topic with rows of about 1 KB in Avro. Keys are drawn evenly, 2 % of the changes are deletions, and changes
come in batches. Each contestant reads the same changes from the same broker and writes to the same S3 server
(versitygw). Each runs in a process of its own:

    keyfold            the sink; the compactor (engine `local`) runs after each batch, and cleans what is due by default
    keyfold-once       the sink, and one pass after the last batch, as often as the merging peers are compacted
    keyfold-each       the sink, and a pass after each batch, as often as the merging peers merge
    iceberg, delta,    Structured Streaming; each micro-batch is reduced to the newest change of each key, decoded, and
    hudi               merged (`tests.bench.peers.on_spark`); the format's own compaction after the last batch
    append             Structured Streaming writes Avro files as changes arrive; at the end a job with `row_number()`
                       writes the last change of each key

Freshness is the time from the acknowledgement of a batch's last record until the contestant, which is already running,
has made the batch readable. For each batch keyfold starts a new task and Spark a new query (`availableNow`), so that
neither waits for a timer. A small topic first warms up each contestant, and the start of a process does not count.

CPU is that of the contestant's processes. The CPU of the broker and of the store in the same time is reported beside
it. Written bytes are the bytes of all requests. The latest state is read before and after the last maintenance, with
every value decoded: keyfold's in Python as Arrow columns, the others' by Spark. The run fails if a contestant's latest
state differs from that of the changes.

The figures leave out what would count against the peers: maintenance between batches, a durable checkpoint (theirs is
on local disk), and the bytes that the store copies when a file is renamed.

A Kafka Connect sink before the window job could not be run: Maven Central has neither Confluent's nor Aiven's S3 sink,
and Camel's keeps no keys. The contestant `append` takes its place. All peers run on the newest Spark for which each of
the three formats has a release.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from tests.bench._processes import ticks
from tests.bench.peers.changes import SCHEMA, Changes, Digest
from tests.bench.peers.contestant import KEYFOLD
from tests.bench.peers.on_spark import BUCKET, PEERS
from tests.bench.report.results import rows_as_json
from tests.support.kafka import KafkaBroker, produce_all
from tests.support.schema_registry import StubRegistry
from tests.support.versitygw import Versitygw
from tests.support.wire_meter import WireMeter

MERGING: Final = ("iceberg", "delta", "hudi")
PARTITIONS: Final = 4
WARM_BATCHES: Final = 4


class Load(NamedTuple):
    """Number of changes, of keys and of batches that a contestant receives."""

    changes: int
    keys: int
    batches: int


WARM: Final = Load(20_000, 2_000, WARM_BATCHES)


class Entry(NamedTuple):
    """A row of the table: its contestant, the command that maintains its data, and whether this follows each batch."""

    contestant: str
    maintain: str = "maintain"
    each_batch: bool = False


ENTRIES: Final[Mapping[str, Entry]] = {
    KEYFOLD: Entry(KEYFOLD, "schedule", each_batch=True),
    f"{KEYFOLD}-once": Entry(KEYFOLD),
    f"{KEYFOLD}-each": Entry(KEYFOLD, each_batch=True),
    **{name: Entry(name) for name in PEERS},
}


@dataclass(slots=True)
class Result:
    """One contestant's figures in one round. `scan` is before the last maintenance, `scan_after` after it."""

    contestant: str
    changes: int
    keys: int
    batches: int
    fresh_median_s: float = 0.0
    fresh_max_s: float = 0.0
    ingest_s: float = 0.0
    ingest_cpu_s: float = 0.0
    maintenance_s: float = 0.0
    maintenance_cpu_s: float = 0.0
    written_bytes: int = 0
    scan_s: float = 0.0
    scan_cpu_s: float = 0.0
    scan_after_s: float = 0.0
    scan_after_cpu_s: float = 0.0
    broker_cpu_s: float = 0.0
    store_cpu_s: float = 0.0
    rows: int = 0

    @property
    def cpu_s(self) -> float:
        """CPU of everything except reading."""
        return self.ingest_cpu_s + self.maintenance_cpu_s


class ContestantProcess:
    """The process of one contestant."""

    def __init__(self, name: str, process: subprocess.Popen[str], log: Path) -> None:
        self._name = name
        self._process = process
        self._log = log

    def ask(self, command: str, topic: str) -> tuple[float, float, Any]:
        """Send a command. Return its seconds, its CPU seconds and its answer. Raise `RuntimeError` if none comes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": command, "topic": topic}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self._name} ended at {command}:\n{self._log.read_text()[-4000:]}")
        took = json.loads(answer)
        return took["wall_s"], took["cpu_s"], took["found"]


@dataclass(frozen=True, slots=True)
class Ground:
    """The servers and the folder that all contestants share."""

    broker: KafkaBroker
    store: Versitygw
    meter: WireMeter
    registry: StubRegistry
    folder: Path

    @contextmanager
    def contestant(self, name: str) -> Iterator[ContestantProcess]:
        """Start a contestant. Delete its objects at the end, so that the next one has as much space."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        given = json.dumps(
            {
                "bootstrap_servers": self.broker.bootstrap_servers,
                "registry": self.registry.url,
                "folder": str(folder),
            }
        )
        environment = {
            **os.environ,
            **self.store.environment,
            "AWS_ENDPOINT_URL": self.meter.url,
            "ARROW_DEFAULT_MEMORY_POOL": "system",  # as a sink's own process has it
        }
        log = folder / "log"
        with (
            log.open("w") as errors,
            subprocess.Popen(
                [sys.executable, "-m", "tests.bench.peers.contestant", name, given],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            ) as process,
        ):
            yield ContestantProcess(name, process, log)
        shutil.rmtree(self.folder / "data" / BUCKET / name, ignore_errors=True)
        shutil.rmtree(folder)

    def run(self, asked: ContestantProcess, name: str, topic: str, load: Load) -> Result:
        """Send all batches of one topic, maintain and read the latest state. Return the figures."""
        self.broker.create_topic(topic, PARTITIONS, {"cleanup.policy": "compact", "segment.bytes": str(2**31 - 1)})
        changes = Changes(load.keys, self.registry.register(f"{topic}-value", SCHEMA))
        result = Result(name, *load)
        self._write(asked, topic, changes, result)
        result.scan_after_s, result.scan_after_cpu_s, _ = asked.ask("scan", topic)
        found = Digest(*asked.ask("digest", topic)[2])
        if found != changes.digest():
            raise RuntimeError(f"{name} ended with {found}, and its changes make {changes.digest()}")
        result.rows = found.rows
        self.broker.delete_topic(topic)
        return result

    def _write(self, asked: ContestantProcess, topic: str, changes: Changes, result: Result) -> None:
        """Send all batches and maintain; put the figures into `result`."""
        entry, fresh, sent = ENTRIES[result.contestant], [], self.meter.sent_bytes
        for number in range(result.batches):
            bounds = [result.changes * each // result.batches for each in (number, number + 1)]
            produce_all(self.broker.bootstrap_servers, topic, changes.rows(*bounds))
            broker, store, begun = *self._servers_cpu_s(), time.monotonic()
            wall, cpu, _ = asked.ask("ingest", topic)
            fresh.append(time.monotonic() - begun)
            result.ingest_s += wall
            result.ingest_cpu_s += cpu
            is_last = number + 1 == result.batches
            if is_last:
                result.scan_s, result.scan_cpu_s, _ = asked.ask("scan", topic)
            if is_last or entry.each_batch:
                wall, cpu, _ = asked.ask(entry.maintain, topic)
                result.maintenance_s += wall
                result.maintenance_cpu_s += cpu
            broker_now, store_now = self._servers_cpu_s()
            result.broker_cpu_s += broker_now - broker
            result.store_cpu_s += store_now - store
        result.written_bytes = self.meter.sent_bytes - sent
        result.fresh_median_s, result.fresh_max_s = statistics.median(fresh), max(fresh)

    def _servers_cpu_s(self) -> tuple[float, float]:
        tick_s = os.sysconf("SC_CLK_TCK")
        return ticks(self.broker.pid) / tick_s, ticks(self.store.pid) / tick_s


@contextmanager
def ground() -> Iterator[Ground]:
    """Start broker, store and registry."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keyfold-peers-")))
        store = stack.enter_context(Versitygw(folder=folder / "data"))
        store.create_bucket(BUCKET)
        meter = stack.enter_context(WireMeter(store.port))
        registry = stack.enter_context(StubRegistry())
        yield Ground(stack.enter_context(KafkaBroker(heap_mb=768)), store, meter, registry, folder)


HEADER: Final = f"""\
{"":14}{"ingest":>16}{"maintenance":>16}{"all":>8}{"written":>9}{"fresh after":>15}{"scan":>14}{"scan after":>14}
{"":14}{"s":>8}{"CPU s":>8}{"s":>8}{"CPU s":>8}{"CPU s":>8}{"MB":>9}{"median":>8}{"max s":>7}\
{"s":>7}{"CPU s":>7}{"s":>7}{"CPU s":>7}{"broker, store CPU s":>21}"""


def line(r: Result) -> str:
    """One row of the table."""
    writing = f"{r.ingest_s:8.1f}{r.ingest_cpu_s:8.1f}{r.maintenance_s:8.1f}{r.maintenance_cpu_s:8.1f}{r.cpu_s:8.1f}"
    fresh = f"{r.fresh_median_s:8.2f}{r.fresh_max_s:7.2f}"
    reading = f"{r.scan_s:7.2f}{r.scan_cpu_s:7.2f}{r.scan_after_s:7.2f}{r.scan_after_cpu_s:7.2f}"
    return (
        f"{r.contestant:14}{writing}{r.written_bytes / 1e6:9,.0f}{fresh}{reading}"
        f"{r.broker_cpu_s:14.1f}{r.store_cpu_s:7.1f}"
    )


def medians(results: Sequence[Result]) -> list[Result]:
    """One row for each contestant, each figure the median of its rounds."""
    rounds: dict[str, list[Result]] = {}
    for each in results:
        rounds.setdefault(each.contestant, []).append(each)
    return [
        Result(
            name,
            **{
                key: statistics.median(getattr(r, key) for r in found)
                for key in asdict(found[0])
                if key != "contestant"
            },
        )
        for name, found in rounds.items()
    ]


def ratios(rows: Sequence[Result]) -> Iterator[str]:
    """Yield how keyfold compares with the best merging peer in CPU, in bytes and in freshness."""
    peers = [row for row in rows if row.contestant in MERGING]
    for ours in (row for row in rows if peers and row.contestant.startswith(KEYFOLD)):
        said = []
        for what, name in (("CPU", "cpu_s"), ("written bytes", "written_bytes"), ("freshness", "fresh_median_s")):
            best = min(peers, key=lambda peer: float(getattr(peer, name)))
            said.append(f"{what} {getattr(ours, name) / getattr(best, name):.2f} of {best.contestant}'s")
        yield f"{ours.contestant}: {', '.join(said)}"


@click.command(help=__doc__)
@click.option("--changes", default=2_000_000, show_default=True)
@click.option("--keys", default=200_000, show_default=True)
@click.option("--batches", default=20, show_default=True)
@click.option("--rounds", default=1, show_default=True, help="contestants take turns; the table has medians")
@click.option("--only", default=",".join(ENTRIES), show_default=True, help="names of rows, in their order")
@click.option("--json", "as_json", is_flag=True, help="print the medians as JSON, the table to stderr")
def main(changes: int, keys: int, batches: int, rounds: int, only: str, *, as_json: bool) -> None:
    """Run the contestants and print their figures."""
    results: list[Result] = []
    with rows_as_json(as_json) as rows, ground() as on:
        for number, name in enumerate(only.split(",") * rounds):
            with on.contestant(ENTRIES[name].contestant) as asked:
                on.run(asked, name, f"warm-{number}", WARM)
                results.append(on.run(asked, name, f"customers-{number}", Load(changes, keys, batches)))
            print(line(results[-1]), file=sys.stderr, flush=True)
        middle = medians(results)
        print(HEADER, *map(line, middle), *ratios(middle), sep="\n")
        rows += [{**asdict(each), "cpu_s": each.cpu_s} for each in middle]


if __name__ == "__main__":
    main()
