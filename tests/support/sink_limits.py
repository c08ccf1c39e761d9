"""Scenarios under heavy load: a sink's use of time, memory and requests, at a scale that the caller chooses.

Small scales are tests of every day (tests/integration/test_sink_limits.py), full ones are in tests/soak.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Final, Self

from confluent_kafka import Producer

from tests.support.kafka import Row, produce_all, synthetic
from tests.support.moto import PASS, Fault, LocalS3Process
from tests.support.proof import Rig, SinkProcess, manifest_of, read_segments, wait_for
from tests.support.sink_workers import tree

MIB: Final = 1024 * 1024
FOREVER: Final = {"retention.ms": "-1"}
# What libraries and the allocator take beside the budget, once data flows.
_SLACK_BYTES: Final = 32 * MIB
# A sink holds the manifests of its partitions: so much for each segment that they list. The slower store and machine
# are, the more small segments 2,000 partitions have when they have caught up: that is the log, not what is on its way.
_ENTRY_BYTES: Final = 1100


def task_pid(sink: SinkProcess) -> int:
    """Return the process that does the work: the worker's only task, or the worker if it has no other process."""
    return tree(sink.process.pid)[-1]


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Memory:
    """The highest resident memory of a process during the `with` block."""

    pid: int
    before_bytes: int = 0
    peak_bytes: int = 0
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.before_bytes = self.peak_bytes = rss_bytes(self.pid)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        assert self._thread is not None
        self._thread.join()

    def require(self, buffer_memory: int, *, segments: int = 0) -> str:
        """Assert that memory stayed within the budget plus the entries of new segments. Return the figures."""
        entries = segments * _ENTRY_BYTES
        told = (
            f"{self.before_bytes / MIB:.0f} MiB before, at most {self.peak_bytes / MIB:.0f} MiB, "
            f"buffer.memory {buffer_memory / MIB:.0f} MiB, entries of {segments:,} segments {entries / MIB:.0f} MiB"
        )
        assert self.peak_bytes <= self.before_bytes + buffer_memory + entries + _SLACK_BYTES, told
        return told

    def _watch(self) -> None:
        while not self._over.wait(0.01):
            try:
                self.peak_bytes = max(self.peak_bytes, rss_bytes(self.pid))
            except OSError:
                return


def ends(rig: Rig, topic: str, partitions: int) -> list[int]:
    """Return the ends of the logs."""
    store = rig.store()
    try:
        return [manifest_of(store, topic, partition).next_offset for partition in range(partitions)]
    finally:
        store.close()  # type: ignore[attr-defined]  # the store is in S3


def segments_of(rig: Rig, topic: str, partitions: int) -> int:
    """Return the number of segments in the manifests."""
    store = rig.store()
    try:
        return sum(len(manifest_of(store, topic, partition).segments) for partition in range(partitions))
    finally:
        store.close()  # type: ignore[attr-defined]  # the store is in S3


def wait_until_written(rig: Rig, topic: str, partitions: int, count: int, timeout_s: float = 120) -> None:
    wait_for(lambda: sum(ends(rig, topic, partitions)) >= count, timeout_s, f"{count} records in the log of {topic}")


@contextmanager
def claimed(
    rig: Rig, config: Path, partitions: int, timeout_s: float = 120, *, keeps_membership: bool = True
) -> Iterator[SinkProcess]:
    """Yield a sink that has claimed all partitions; assert at the end that it stops well and never lost one."""
    with rig.start(config) as sink:
        wait_for(
            lambda: sink.said.count('"partition claimed"') >= partitions or sink.process.poll() is not None,
            timeout_s,
            f"{partitions} partitions claimed",
        )
        yield sink
        if keeps_membership:
            assert sink.said.count('"partition claimed"') == partitions, "it has left the group meanwhile"
        assert sink.end() == 0, sink.said[-3000:]


# Scenarios


def many_partitions(rig: Rig, topic: str, partitions: int, *, count: int, buffer_memory: int) -> tuple[Memory, str]:
    """Write to all partitions at the same time, more than the budget could hold. Return the figures, also as text."""
    keys = {"segment_ms": 5000, "task_shutdown_graceful_timeout_ms": 300_000, "buffer_memory": buffer_memory}
    timeout_s = 60 + partitions / 10
    with claimed(rig, rig.config(topic, **keys), partitions, timeout_s) as sink:
        # Libraries load parts of themselves at their first use, whatever the budget is.
        produce_all(rig.broker.bootstrap_servers, topic, _spread(partitions, partitions))
        wait_until_written(rig, topic, partitions, partitions, timeout_s)
        segments = segments_of(rig, topic, partitions)
        with Memory(task_pid(sink)) as memory:
            produce_all(rig.broker.bootstrap_servers, topic, _spread(count, partitions))
            wait_until_written(rig, topic, partitions, partitions + count, timeout_s)
        if partitions > 1:
            assert '"reason": "memory"' in sink.said, "the budget was never short"
    segments = segments_of(rig, topic, partitions) - segments
    return memory, f"{partitions} partitions: {memory.require(buffer_memory, segments=segments)}"


def _spread(count: int, partitions: int) -> Iterator[Row]:
    random = Random(1)
    for number in range(count):
        yield b"key-%d" % number, random.randbytes(250), None, number % partitions


def hot_among_idle(rig: Rig, store: LocalS3Process, hot: str, idle: str, partitions: int, *, seconds: float) -> str:
    """Keep one partition busy and the others idle with one record each. Return the CPU per record, alone and among."""
    produce_all(rig.broker.bootstrap_servers, idle, ((b"k", b"v", None, p) for p in range(partitions)))
    per_record = []
    for topics, count in ((hot, 1), (f"{hot},{idle}", partitions + 1)):
        config = rig.config(topics, name=f"n{count}", topics_dir=f"dir{count}", segment_ms=1000)
        with claimed(rig, config, count, 60 + partitions / 10) as sink:
            wait_for(lambda: sink.said.count('"segment committed"') >= count - 1, 60 + partitions / 10)  # noqa: B023 - called before the loop goes on
            time.sleep(2)
            store.set_faults(Fault(f"/{idle}/", status=PASS, times=-1), Fault("", status=PASS, times=-1))
            before_s = cpu_s(task_pid(sink))
            sent = _trickle(rig, hot, seconds)
            used_s = cpu_s(task_pid(sink)) - before_s
            of_idle, others = store.struck()
            store.set_faults()
            assert of_idle == 0, f"{of_idle} requests for partitions to which nothing was written"
            assert others > 0
            per_record.append(used_s / sent * 1e6)
    return f"{per_record[0]:.1f} µs CPU a record alone, {per_record[1]:.1f} among {partitions} idle partitions"


def _trickle(rig: Rig, topic: str, seconds: float, per_s: int = 20_000) -> int:
    """Produce records in a steady stream; return their number."""
    begun, sent = time.monotonic(), 0

    def rows() -> Iterator[Row]:
        nonlocal sent
        for row in synthetic(int(per_s * seconds), key_count=1000, partition=0):
            if sent % 200 == 0:
                time.sleep(max(0.0, begun + sent / per_s - time.monotonic()))
            sent += 1
            yield row

    return produce_all(rig.broker.bootstrap_servers, topic, rows(), config={"linger.ms": 5})


def large_records(rig: Rig, topic: str, *, count: int, size_bytes: int, buffer_memory: int) -> str:
    """Produce records of many megabytes, with small ones between. The topic's `max.message.bytes` allows them."""
    config = rig.config(topic, buffer_memory=buffer_memory, segment_ms=2000)
    producer = Producer(
        {
            "bootstrap.servers": rig.broker.bootstrap_servers,
            "message.max.bytes": size_bytes + MIB,
            "queue.buffering.max.kbytes": 64 * 1024,
            "linger.ms": 0,
        }
    )
    random = Random(2)
    with claimed(rig, config, 1) as sink, ExitStack() as stack:
        for number in range(count):
            if number == 1:  # from here on: libraries load parts of themselves at their first use
                wait_until_written(rig, topic, 1, 51)
                memory = stack.enter_context(Memory(task_pid(sink)))
            for row in range(50):
                producer.produce(topic, key=b"small-%d" % row, value=b"%d" % number)
            producer.produce(topic, key=b"large-%d" % number, value=random.randbytes(size_bytes))
            assert producer.flush(60) == 0
        wait_until_written(rig, topic, 1, 51 * count)
    store = rig.store()
    try:
        sizes = [len(record.value or b"") for record in read_segments(store, topic, 0)]
    finally:
        store.close()  # type: ignore[attr-defined]  # the store is in S3
    assert sizes.count(size_bytes) == count
    return f"{count} records of {size_bytes / 1e6:.0f} MB: {memory.require(buffer_memory)}"


def outage(
    rig: Rig,
    topic: str,
    partitions: int,
    *,
    begin: Callable[[], None],
    end: Callable[[], None],
    seconds: float,
    count: int,
    value_bytes: int = 1000,
    buffer_memory: int = 32 * MIB,
    keys: Sequence[tuple[str, object]] = (),
    keeps_membership: bool = True,
) -> str:
    """Break the store (or what `begin` breaks) for a while, and produce more meanwhile than memory holds.

    The sink waits, stays in the group, stays within its budget, and goes on by itself.
    """
    config = rig.config(topic, buffer_memory=buffer_memory, segment_ms=500, **dict(keys))
    sinks = claimed(rig, config, partitions, keeps_membership=keeps_membership)
    with sinks as sink, ExitStack() as stack:
        produce_all(rig.broker.bootstrap_servers, topic, _rows(count // 10, partitions, value_bytes))
        wait_until_written(rig, topic, partitions, count // 10)
        memory = stack.enter_context(Memory(task_pid(sink)))
        begin()
        try:
            over = time.monotonic() + seconds
            produce_all(rig.broker.bootstrap_servers, topic, _rows(count, partitions, value_bytes))
            time.sleep(max(0.0, over - time.monotonic()))
            assert sink.process.poll() is None, sink.said[-3000:]
        finally:
            end()
        freed = time.monotonic()
        wait_until_written(rig, topic, partitions, count + count // 10, 60 + seconds)
        took_s = time.monotonic() - freed
    assert rig.prove(topic, partitions) == count + count // 10
    return f"{seconds:.0f} s of outage, {took_s:.0f} s to catch up: {memory.require(buffer_memory)}"


def _rows(count: int, partitions: int, value_bytes: int) -> Iterator[Row]:
    random = Random(3)
    for number in range(count):
        yield b"key-%d" % (number % 997), random.randbytes(value_bytes), None, number % partitions


def stuck_partition(rig: Rig, store: LocalS3Process, topic: str, partitions: int, *, count: int) -> str:
    """Throttle one partition's folder without end: the others continue within their share of memory."""
    buffer_memory = 32 * MIB
    config = rig.config(topic, buffer_memory=buffer_memory, segment_ms=500)
    with claimed(rig, config, partitions) as sink, ExitStack() as stack:
        produce_all(rig.broker.bootstrap_servers, topic, _rows(count // 10, partitions, 1000))
        wait_until_written(rig, topic, partitions, count // 10)
        memory = stack.enter_context(Memory(task_pid(sink)))
        before = ends(rig, topic, 1)
        store.set_faults(Fault("^PUT .*partition(=|%3D)0/", status=503, times=-1))
        begun = time.monotonic()
        produce_all(rig.broker.bootstrap_servers, topic, _rows(count, partitions, 1000))
        others = (count + count // 10) // partitions * (partitions - 1)
        wait_for(lambda: sum(ends(rig, topic, partitions)[1:]) >= others, 60, "the other partitions go on")
        took_s = time.monotonic() - begun
        assert ends(rig, topic, 1) == before
        store.set_faults()
        wait_until_written(rig, topic, partitions, count + count // 10)
    assert rig.prove(topic, partitions) == count + count // 10
    return f"the others took {took_s:.1f} s: {memory.require(buffer_memory)}"


def freeze(pid: int) -> Callable[[], None]:
    return lambda: os.kill(pid, signal.SIGSTOP)


def wake(pid: int) -> Callable[[], None]:
    return lambda: os.kill(pid, signal.SIGCONT)
