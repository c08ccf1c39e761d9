"""What a sink and a reader lose, both at full speed, while a pass runs beside them on the same store and machine.

    python -m tests.bench.bench_beside [--rounds 3] [--share 0.05] [--records 500000] [--only sink|reader] [--json]

Three states take turns, in one order and then in the other, so that a machine that becomes slower harms all alike:

    alone         Spark is up, as it is between two runs, and does nothing
    throttled     passes one after another with `log.cleaner.io.max.bytes.per.second` at `--share` of what they move
                  without it; the rate is measured first and printed
    unthrottled   the peer: the same passes with no limit

The sink is `tests.bench._sink_child`'s: from a broker's records of 211 bytes to committed segments. The reader takes
every record of 1 KB of another log (`open_log(...).read()`). The store is versitygw, in a process of its own, as is the
pass. Loss is 1 - (records/s beside a pass) / (records/s alone), by rounds, the median of them. The goal is less than
10 % beside a throttled pass. A throttle bounds bytes, and with them CPU: what is lost on two cores, of which client,
store and broker need both, is about the CPU that the pass takes. CPU per record says how much of it is not mere
waiting for a core.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from random import Random
from typing import Final

import click

from keyfold import open_log
from keyfold.log.names import Place
from keyfold.log.objects import create_object
from keyfold.log.partition_log import PartitionLog
from keyfold.log.segment import SegmentWriter
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.retry import RetryPolicy
from keyfold.runtime.throttle import ThrottleService
from keyfold.store.s3 import S3Location
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.execute.run import Run, RunSettings
from keyfold_compactor.spark.executor import SparkExecutor
from keyfold_compactor.spark.session import spark_session
from keyfold_compactor.spark.tasks import TaskEnvironment
from tests.bench._processes import cpu_s
from tests.bench._records import Recipe, fill
from tests.bench._sink_child import CpuFromFirstRecord, ask, base_config
from tests.bench._sinks import rows
from tests.support.kafka import KafkaBroker, produce_all
from tests.support.versitygw import Versitygw

BUCKET: Final = "bench"
GARBAGE: Final = 50
# What one run cleans without a limit; with one it is one log, which lasts about as long as a measurement.
LOGS_A_RUN: Final = 16
LOG_RECORDS: Final = 25_000
VALUE_BYTES: Final = 199  # 211 with its key
STATES: Final = ("alone", "throttled", "unthrottled")
WORDS: Final = {"alone": "alone", "throttled": "beside a throttled pass", "unthrottled": "beside an unthrottled pass"}


@dataclass(frozen=True, slots=True)
class Speed:
    """One measurement of a sink or a reader."""

    per_s: float
    cpu_us: float


@dataclass(frozen=True, slots=True)
class Moved:
    """What passes did meanwhile."""

    n_bytes: int
    wall_s: float
    cpu_s: float
    logs: int

    @property
    def rate(self) -> float:
        """Bytes a second, read and written."""
        return self.n_bytes / self.wall_s


# The passes: a process of its own


def passes(location: S3Location, logs: int, commands: Connection, stop: Event) -> None:
    """Clean log after log as commanded; each command is a rate (0: no limit), None is the end."""
    store = location.open()
    places = iter([Place("beside", "dirty", p) for p in range(logs)])
    settings = RunSettings(settings_of=lambda *_: TopicSettings(min_cleanable_dirty_ratio=0.0))
    with spark_session("bench", {"spark.master": "local[2]", "spark.driver.memory": "1g"}) as spark:

        def clean(environment: TaskEnvironment, count: int) -> int:
            executor = SparkExecutor(spark, environment, map_bytes=64 * 1024 * 1024)
            run = Run(store, settings, lambda _: executor, clock=SystemClock(), random=Random())
            chosen = list(itertools.islice(places, count))
            assert len(chosen) == count, "no log is left to clean: say --logs with more"
            report = run.clean(chosen)
            assert report.exit_code == 0, report.document()
            assert len(report.partitions) == count
            return sum(p.traffic.read_bytes + p.traffic.written_bytes for p in report.partitions)

        clean(TaskEnvironment(location, None, 60.0), LOGS_A_RUN)
        commands.send(None)
        while (rate := commands.recv()) is not None:
            with ExitStack() as stack:
                address = stack.enter_context(ThrottleService(rate)).address if rate else None
                count, moved, cleaned = 1 if rate else LOGS_A_RUN, 0, 0
                begun, cpu = time.monotonic(), cpu_s()
                while not stop.is_set():
                    moved += clean(TaskEnvironment(location, address, 60.0), count)
                    cleaned += count
                commands.send(Moved(moved, time.monotonic() - begun, cpu_s() - cpu, cleaned))
    store.close()


class Passes:
    """Gives commands to that process."""

    def __init__(self, commands: Connection, stop: Event) -> None:
        self._commands = commands
        self._stop = stop
        self.rate = 0.0
        """What a throttled pass may move a second."""

    @contextmanager
    def running(self, state: str) -> Iterator[list[Moved]]:
        """Passes run within; what they moved is in the list afterwards."""
        found: list[Moved] = []
        if state == "alone":
            yield found
            return
        self._stop.clear()
        self._commands.send(self.rate if state == "throttled" else 0.0)
        time.sleep(0.5)
        yield found
        self._stop.set()
        found.append(self._commands.recv())


@contextmanager
def pass_process(location: S3Location, logs: int) -> Iterator[Passes]:
    """The process, with Spark up and one pass behind it."""
    context = get_context("spawn")
    here, there = context.Pipe()
    stop = context.Event()
    process = context.Process(target=passes, args=(location, logs, there, stop))
    process.start()
    there.close()
    try:
        here.recv()
        yield Passes(here, stop)
        here.send(None)
        process.join(60)
    finally:
        if process.is_alive():
            process.terminate()
            process.join()
        here.close()


def calibrate(beside: Passes, share: float) -> Moved:
    """What passes move without a limit and with the machine to themselves; sets the throttle to a share of it."""
    with beside.running("unthrottled") as moved:
        time.sleep(2)
    beside.rate = share * moved[0].rate
    return moved[0]


def fill_dirty(location: S3Location, logs: int, records: int) -> int:
    """Logs with the same records, encoded once; returns the stored bytes of one."""
    store, clock = location.open(), SystemClock()
    writer = None
    for partition in range(logs):
        place = Place("beside", "dirty", partition)
        log = PartitionLog(store, place, clock=clock, random=Random(1))  # so that all have the same marker
        log.create(settings={"cleanup.policy": "compact"})
        sink = log.claim_sink()
        if writer is None:
            marker = sink.manifest.sync_marker
            writer = SegmentWriter(sync_marker=marker)
            writer.append(Recipe(records, GARBAGE).columns(0, records))
            finished = writer.finish()
        assert sink.manifest.sync_marker == marker
        name, retry = sink.new_name(0), RetryPolicy(clock, Random())
        create_object(store, place.key(str(name)), b"".join(finished.data), retry)
        create_object(store, place.key(str(name.index)), finished.index_data, retry)
        sink.append(finished.entry(str(name), str(name.index), base_offset=0, next_offset=records))
    store.close()
    return finished.size_bytes


# The two that are harmed


def read_log(count: int) -> dict[str, float]:
    """Read a log from its start to its end."""
    meter = CpuFromFirstRecord()
    with open_log(f"s3://{BUCKET}/read", "log") as log:
        records = log.read(0)
        first = meter.wrap(lambda *_: [next(records)])
        first(1, 0)
        left = sum(1 for _ in records)
    assert left == count - 1
    return meter.result(left)


def read_once(store: Versitygw, count: int) -> Speed:
    """A reader in a fresh process."""
    command = [sys.executable, "-m", "tests.bench.bench_beside", "--read-child", str(count)]
    environment = {**os.environ, **store.environment}
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=600, env=environment)
    found = json.loads(answer.stdout)
    return Speed(found["per_s"], found["cpu_us"])


def sink_once(broker: KafkaBroker, store: Versitygw, name: str, count: int) -> Speed:
    """A sink in a fresh process, until it has caught up."""
    found = ask(base_config(broker, store, name, "speed"), count)
    return Speed(found["per_s"], found["cpu_us"])


# Turns


@dataclass(slots=True)
class Turn:
    """One round of one side."""

    speeds: dict[str, Speed]
    moved: dict[str, Moved]

    def loss(self, state: str) -> float:
        """Percent of records/s."""
        return 100 * (1 - self.speeds[state].per_s / self.speeds["alone"].per_s)


def take_turns(beside: Passes, rounds: int, once: Callable[[], Speed]) -> list[Turn]:
    """Measure in each state, forwards and backwards by turns. One measurement before does not count."""
    once()
    turns = []
    for number in range(rounds):
        turn = Turn({}, {})
        for state in STATES if number % 2 == 0 else STATES[::-1]:
            with beside.running(state) as moved:
                turn.speeds[state] = once()
            if moved:
                turn.moved[state] = moved[0]
        turns.append(turn)
    return turns


def show(side: str, turns: list[Turn]) -> None:
    """Medians of one side."""
    print(f"{side}, median of {len(turns)}")
    for state in STATES:
        per_s = statistics.median(t.speeds[state].per_s for t in turns)
        cpu_us = statistics.median(t.speeds[state].cpu_us for t in turns)
        line = f"  {WORDS[state]:<27} {per_s:9,.0f} records/s  {cpu_us:5.2f} µs CPU a record"
        if state != "alone":
            losses = [t.loss(state) for t in turns]
            rate = statistics.median(t.moved[state].rate for t in turns) / 1e6
            cores = statistics.median(t.moved[state].cpu_s / t.moved[state].wall_s for t in turns)
            line += f"  loss {statistics.median(losses):5.1f} % ({min(losses):.1f} to {max(losses):.1f})"
            line += f"  the pass: {rate:.1f} MB/s, {cores:.2f} cores"
        print(line, flush=True)


@click.command()
@click.option("--rounds", default=3)
@click.option("--share", default=0.05, help="The throttle, as a share of what a pass moves without one.")
@click.option("--records", default=500_000, help="What the reader reads; the sink takes twice as many.")
@click.option("--logs", default=800, help="Logs for the passes to clean, each of 25,000 records of 1 KB.")
@click.option("--only", type=click.Choice(["sink", "reader"]), default=None)
@click.option("--json", "as_json", is_flag=True)
@click.option("--read-child", default=0, hidden=True)
def main(
    rounds: int, share: float, records: int, logs: int, only: str | None, *, as_json: bool, read_child: int
) -> None:
    """Print losses in percent."""
    if read_child:
        print(json.dumps(read_log(read_child)))
        return
    os.environ["PYTHONPATH"] = str(Path.cwd())
    found: dict[str, list[Turn]] = {}
    with ExitStack() as stack:
        store = stack.enter_context(Versitygw())
        store.create_bucket(BUCKET)
        names = store.environment
        location = S3Location(
            BUCKET,
            region=names["AWS_REGION"],
            endpoint_url=store.url,
            access_key_id=names["AWS_ACCESS_KEY_ID"],
            secret_access_key=names["AWS_SECRET_ACCESS_KEY"],
        )
        log_bytes = fill_dirty(location, logs, LOG_RECORDS)
        beside = stack.enter_context(pass_process(location, logs))
        free = calibrate(beside, share)
        if not as_json:
            print(
                f"{os.cpu_count()} cores; a pass alone moves {free.rate / 1e6:.1f} MB/s with "
                f"{free.cpu_s / free.wall_s:.2f} cores (logs of {log_bytes / 1e6:.0f} MB, {GARBAGE} % garbage); "
                f"throttled to {share:.0%} of it: {beside.rate / 1e6:.2f} MB/s",
                flush=True,
            )
        if only != "sink":
            fill(location, [(Place("read", "log", 0), Recipe(records, 0))])
            found["reader"] = take_turns(beside, rounds, lambda: read_once(store, records))
        if only != "reader":
            broker = stack.enter_context(KafkaBroker(heap_mb=768))
            broker.create_topic("speed", 1, {"retention.ms": "-1"})
            produce_all(
                broker.bootstrap_servers,
                "speed",
                rows(2 * records, VALUE_BYTES, 1),
                config={"compression.type": "none"},
            )
            number = iter(range(10_000))
            found["sink"] = take_turns(
                beside, rounds, lambda: sink_once(broker, store, f"sink-{next(number)}", 2 * records)
            )
        for side, turns in found.items():
            if not as_json:
                show(side, turns)
    if as_json:
        print(json.dumps({side: [asdict(t) for t in turns] for side, turns in found.items()}))


if __name__ == "__main__":
    main()
