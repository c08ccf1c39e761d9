"""What the sink costs over a bare consume loop.

    sizes        values of 20 to 100,000 bytes in 1, 4, 300 and 2,000 partitions: CPU per record of a loop over
                 `consume(10000)` that touches every field, of compressing the blocks of the segments, and of the whole
                 sink, from broker to committed segments with indexes. Loop and compression are the floor: no sink can
                 cost less than both. Beside it, what SHA-256 and the upload of the same objects take
    tasks        1, 2 and 4 tasks in steady state beside as many loops, 4 partitions (`tests.bench._steady`)
    converters   what the checks of each converter add (alone, and by the size of values: bench_convert)
    peers        a sink of Kafka Connect on the same kind of records (its figures were taken once, elsewhere)

The store is another process, whose CPU does not count; so is the broker. See `tests.bench._sinks` for what is counted.
The goal is at most 3.5 times the loop at 211 bytes. Memory is in bench_sink_memory.

Run: python -m tests.bench.bench_sink [--quick] [--moto] [--only sizes|tasks|converters] [--partitions 1,4]
        [--json]
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from fastavro import parse_schema, schemaless_writer

from tests.bench._sinks import KEY_BYTES, PEERS, Cost, Ground, median_cost
from tests.bench.report.results import Row, rows_as_json
from tests.support.kafka import KafkaBroker
from tests.support.moto import LocalS3Process
from tests.support.schema_registry import StubRegistry
from tests.support.versitygw import Versitygw

GOAL: Final = 3.5
# Bytes of a value, and how many records of them are enough for a second of CPU and more.
SIZES: Final = ((20, 1_000_000), (211, 1_000_000), (1000, 500_000), (10_000, 60_000), (100_000, 8000))
# With many partitions the values of two sizes tell what partitions cost. Each segment costs three requests, so segments
# of a few records would measure boto3.
_MANY: Final = ((211, 3_000_000), (1000, 1_500_000))
# What starting and ending take is subtracted: with 2,000 partitions 10,000 requests, whose CPU varies by seconds.
_MOST: Final = ((211, 9_000_000),)
PARTITIONS: Final = {1: SIZES, 4: SIZES, 300: _MANY, 2000: _MOST}
TASKS: Final = (1, 2, 4)
TASK_RECORDS: Final = 6_000_000
_FIELDS: Final = (
    ("id", "long", "int64"),
    ("user", "string", "string"),
    ("status", "string", "string"),
    ("amount", "double", "double"),
    ("currency", "string", "string"),
    ("updated_at", "long", "int64"),
    ("note", "string", "string"),
)
AVRO_ROW: Final = {
    "type": "record",
    "name": "Row",
    "fields": [{"name": name, "type": avro} for name, avro, _ in _FIELDS],
}
_CONNECT_ROW: Final = json.dumps(
    {"type": "struct", "fields": [{"field": name, "type": own, "optional": False} for name, _, own in _FIELDS]},
    separators=(",", ":"),
).encode()


def medians(runs: int, *sides: Callable[[], Cost]) -> list[Cost]:
    """Each side alternately; of each the run of median CPU."""
    return [median_cost(costs) for costs in alternating(runs, *sides)]


def alternating(runs: int, *sides: Callable[[], Cost]) -> list[list[Cost]]:
    """Each side alternately; all runs of each."""
    found: list[list[Cost]] = [[] for _ in sides]
    for _ in range(runs):
        for costs, side in zip(found, sides, strict=True):
            costs.append(side())
    return found


def sizes(ground: Ground, tenth: int, runs: int, partitions: int, rows: list[Row]) -> bool:
    print(f"{partitions:,} partitions, one task, keys of {KEY_BYTES} bytes, zstandard; median of {runs}")
    print(
        "   value bytes  loop µs compress µs uploads µs   sink µs   ratio   of floor     loop/s     sink/s   sink MB/s"
    )
    good = True
    for value_bytes, full_count in PARTITIONS[partitions]:
        count, topic = full_count // tenth, f"size-{value_bytes}-{partitions}"
        ground.fill(topic, count, value_bytes, partitions)
        loops = partial(ground.loop, topic, count, partitions=partitions)
        rounds = alternating(runs, loops, partial(ground.sink, topic))
        loop, sink = map(median_cost, rounds)
        codec, uploads = medians(runs, partial(ground.compression, topic), partial(ground.uploads, topic))
        ratio = sink.cpu_s / loop.cpu_s
        print(
            f"    {value_bytes:>10,}{loop.cpu_us(count):9.2f}{codec.cpu_us(count):12.2f}{uploads.cpu_us(count):11.2f}"
            f"{sink.cpu_us(count):10.2f}{ratio:8.2f}{sink.cpu_s / (loop + codec).cpu_s:11.2f}"
            f"{loop.per_s(count):11,.0f}{sink.per_s(count):11,.0f}"
            f"{sink.per_s(count) * (value_bytes + KEY_BYTES) / 1e6:12.1f}"
        )
        rows.append({"partitions": partitions, **size_row(value_bytes, count, codec, uploads, *rounds)})
        if (value_bytes, partitions) == (211, 1):
            # One run of a tenth of the records takes less CPU than starting a sink varies by.
            good = ratio <= GOAL or tenth > 1
            peers(sink, count)
    return good


def size_row(
    value_bytes: int, count: int, codec: Cost, uploads: Cost, loops: Sequence[Cost], sinks: Sequence[Cost]
) -> Row:
    """The run of median CPU of each side, the floor, and all runs."""
    loop, sink = median_cost(loops), median_cost(sinks)
    return {
        "value_bytes": value_bytes,
        "records": count,
        "loop_cpu_us": loop.cpu_us(count),
        "compression_cpu_us": codec.cpu_us(count),
        "floor_cpu_us": (loop + codec).cpu_us(count),
        "uploads_cpu_us": uploads.cpu_us(count),
        "sink_cpu_us": sink.cpu_us(count),
        "loop_per_s": loop.per_s(count),
        "sink_per_s": sink.per_s(count),
        "rounds": {
            "loop_cpu_us": [each.cpu_us(count) for each in loops],
            "sink_cpu_us": [each.cpu_us(count) for each in sinks],
            "loop_per_s": [each.per_s(count) for each in loops],
            "sink_per_s": [each.per_s(count) for each in sinks],
        },
    }


def peers(sink: Cost, count: int) -> None:
    for name, cpu_us, per_s in PEERS:
        cpu, speed = sink.cpu_us(count) / cpu_us, sink.per_s(count) / per_s
        told = f"the sink takes {cpu:.2f} of its CPU at {speed:.1f} times its speed"
        print(f"      Aiven S3 sink, {name}: {cpu_us:.0f} µs, {per_s:,}/s; {told}")


def tasks(ground: Ground, tenth: int, runs: int, rows: list[Row]) -> bool:
    count = TASK_RECORDS // tenth
    ground.fill("tasks", count, 211, 4)
    print(f"4 partitions, values of 211 bytes, {os.cpu_count()} cores, in steady state; median of {runs}")
    print("         tasks     loop µs   sink µs   ratio     loop/s     sink/s")
    for number in TASKS:
        (loop,) = medians(runs, partial(ground.loop, "tasks", count, number, 4))
        found = sorted((ground.steady("tasks", count, number) for _ in range(runs)), key=lambda each: each.cpu_us)
        sink = found[runs // 2]
        rows.append(
            {
                "tasks": number,
                "loop_cpu_us": loop.cpu_us(count),
                "sink_cpu_us": sink.cpu_us,
                "loop_per_s": loop.per_s(count),
                "sink_per_s": sink.per_s,
            }
        )
        print(
            f"    {number:>10}  {loop.cpu_us(count):10.2f}{sink.cpu_us:10.2f}{sink.cpu_us / loop.cpu_us(count):8.2f}"
            f"{loop.per_s(count):11,.0f}{sink.per_s:11,.0f}"
        )
    return True


def converters(ground: Ground, tenth: int, runs: int) -> bool:
    count = 500_000 // tenth
    print(f"one partition, one task, rows of 211 bytes as JSON, as Connect's envelope and as Avro; median of {runs}")
    print("     converter    loop µs  bytes µs   with µs   with/bytes   with/loop")
    with StubRegistry() as registry:
        schema_id = registry.register("bench-value", AVRO_ROW)
        row = parse_schema(AVRO_ROW)
        kinds: list[tuple[str, Callable[[bytes], bytes], list[tuple[str, dict[str, str]]]]] = [
            ("json", bytes, [("string", {}), ("json", {})]),
            ("envelope", _envelope, [("JsonConverter", {})]),
            (
                "avro",
                lambda value: _avro(value, schema_id, row),
                [("avro", {"value.converter.schema.registry.url": registry.url})],
            ),
        ]
        for kind, written, checked in kinds:
            topic = f"converters-{kind}"
            ground.fill(topic, count, 211, written=written)
            sides = [partial(ground.loop, topic, count), partial(ground.sink, topic)]
            sides += [partial(ground.sink, topic, **{"value.converter": name, **more}) for name, more in checked]  # type: ignore[arg-type]  # fields by name, of any type
            loop, bare, *costs = medians(runs, *sides)
            for (name, _), cost in zip(checked, costs, strict=True):
                print(
                    f"    {name:>10} {loop.cpu_us(count):10.2f}{bare.cpu_us(count):10.2f}{cost.cpu_us(count):10.2f}"
                    f"{cost.cpu_s / bare.cpu_s:13.2f}{cost.cpu_s / loop.cpu_s:12.2f}"
                )
    return True


def _envelope(value: bytes) -> bytes:
    return b'{"schema":' + _CONNECT_ROW + b',"payload":' + value.rstrip() + b"}"


def _avro(value: bytes, schema_id: int, schema: Any) -> bytes:
    out = io.BytesIO()
    out.write(b"\0" + schema_id.to_bytes(4))
    schemaless_writer(out, schema, json.loads(value))
    return out.getvalue()


def main() -> int:
    parts: dict[str, Callable[[Ground, int, int], bool]] = {"converters": converters}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="a tenth of the records, one run")
    parser.add_argument("--moto", action="store_true", help="moto in place of versitygw: needs no Go")
    parser.add_argument("--only", choices=["sizes", "tasks", *parts])
    parser.add_argument("--partitions", default=",".join(map(str, PARTITIONS)), help="of the sizes")
    parser.add_argument("--json", action="store_true", help="print rows of sizes and tasks as JSON, tables to stderr")
    given = parser.parse_args()
    good = True
    with rows_as_json(given.json) as rows, ExitStack() as stack:
        parts["tasks"] = partial(tasks, rows=rows)
        for number in map(int, given.partitions.split(",")):
            parts[f"sizes {number}"] = partial(sizes, partitions=number, rows=rows)
        broker = stack.enter_context(KafkaBroker(heap_mb=768))
        store: Any = stack.enter_context(LocalS3Process() if given.moto else Versitygw())
        store.create_bucket("bench")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keyfold-bench-")))
        ground = Ground(broker, store, folder)
        print(f"store: {'moto' if given.moto else 'versitygw'}, {os.cpu_count()} cores")
        for name, part in parts.items():
            if given.only in {None, name.split()[0]}:
                good &= part(ground, 10 if given.quick else 1, 1 if given.quick else 5)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
