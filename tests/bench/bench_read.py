"""What reading costs: CPU time, in one process, on the same segments, with fastavro record by record as the peer.

The floor is what decompressing all blocks and copying keys and values into Arrow takes (`tests.bench._floors`).

Run: python -m tests.bench.bench_read [--quick] [--json]. Compare columns, not absolute times.
The store is in memory, so that nothing waits for a network: this is what reading takes of a processor.
"""

from __future__ import annotations

import argparse
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO

import fastavro

from keyfold.log.record import RecordColumns
from keyfold.log.segment import DEFAULT_BLOCK_BYTES, SegmentWriter, segment_bytes
from keyfold.read.latest_keys import KEY_BYTES
from keyfold.read.log import Log
from keyfold.store.api import Create
from tests.bench._floors import read_floor_s
from tests.bench.bench_codec import cpu, make_columns, part
from tests.bench.report.results import Row, rows_as_json
from tests.support.logs import MadeLog


def fill(count: int, value_bytes: int, codec: str, segments: int = 4, *, headers: bool = False) -> MadeLog:
    """A log of `count` records with keys of 12 bytes, in blocks of the sink's size."""
    made = MadeLog(codec=codec, block_bytes=DEFAULT_BLOCK_BYTES)
    columns = make_columns(count, value_bytes)
    made.log.create(start_offset=columns.offsets[0])
    for start in range(0, count, count // segments):
        append(made, part(columns, start, start + count // segments), headers=headers)
    return made


def append(made: MadeLog, columns: RecordColumns, *, headers: bool) -> None:
    """Commit a segment, without making records of columns."""
    writer = SegmentWriter(sync_marker=made.sink.manifest.sync_marker, codec=made.codec, block_bytes=made.block_bytes)
    if headers:
        both = [("trace-id", b"0123456789abcdef"), ("source", b"shop")]
        columns = RecordColumns(
            columns.offsets,
            columns.timestamps,
            columns.timestamp_types,
            columns.keys,
            columns.values,
            [both] * len(columns),
            columns.leader_epochs,
        )
    writer.append(columns)
    finished = writer.finish()
    base = made.sink.refresh().next_offset
    name = made.sink.new_name(base)
    made.store.put(made.place.key(str(name)), segment_bytes(finished), Create())
    made.store.put(made.place.key(str(name.index)), finished.index_data, Create())
    end = finished.last_offset + 1
    made.sink.append(finished.entry(str(name), str(name.index), base_offset=base, next_offset=end))


def with_fastavro(made: MadeLog) -> int:
    """Records that fastavro makes of the segments."""
    return sum(1 for entry in made.manifest.segments for _ in fastavro_records(made, entry.name))


def fastavro_records(made: MadeLog, name: str) -> Iterator[object]:
    """What fastavro reads in one segment."""
    yield from fastavro.reader(BytesIO(made.store.get(made.place.key(name)).data))


def latest_with_fastavro(made: MadeLog) -> int:
    """What who has no index does: fold all records into a dict."""
    state: dict[bytes | None, object] = {}
    for entry in made.manifest.segments:
        for record in fastavro.reader(BytesIO(made.store.get(made.place.key(entry.name)).data)):
            assert isinstance(record, dict)
            state[record["key"]] = record
    return len(state)


def ways(log: Log) -> dict[str, Callable[[], int]]:
    """What is measured against fastavro reading all."""
    return {
        "records": lambda: sum(1 for _ in log.read()),
        "batches": lambda: sum(len(b) for b in log.batches()),
        "batches, values": lambda: sum(len(b) for b in log.batches(columns=["offset", "value"])),
        "batches, keys": lambda: sum(len(b) for b in log.batches(columns=["offset", "key"])),
    }


def measure(title: str, made: MadeLog, repeats: int) -> Row:
    """Print and return one row of the table."""
    log = Log(made.store, "topics", "users")
    count = made.manifest.record_count
    base, found = cpu(partial(with_fastavro, made), repeats)
    assert found == count
    cells = [f"{base / count * 1e6:8.2f}"]
    costs: dict[str, float] = {}
    for name, read in ways(log).items():
        spent, found = cpu(read, repeats)
        assert found == count
        costs[name] = spent
        cells.append(f"{spent / count * 1e6:7.2f} {base / spent:5.1f}x")
    floor = read_floor_s(made.store, made.place, made.manifest)
    cells.append(f"{floor / count * 1e6:7.2f} {costs['batches'] / floor:5.1f}x")
    print(f"{title:24s} {' '.join(f'{cell:>15s}' for cell in cells)}")
    return {
        "case": title,
        "records": count,
        "fastavro_cpu_us": base / count * 1e6,
        "floor_cpu_us": floor / count * 1e6,
        **{f"{name.replace(', ', '_')}_cpu_us": spent / count * 1e6 for name, spent in costs.items()},
    }


def measure_latest(title: str, made: MadeLog, repeats: int) -> None:
    """The latest state against a fold over all records."""
    log = Log(made.store, "topics", "users")
    base, found = cpu(partial(latest_with_fastavro, made), repeats)
    print(f"\nlatest state, {title}: {found} keys of {made.manifest.record_count} records; fold {base:.2f} s of CPU")
    for name, memory_bytes in (
        ("in memory", 1 << 30),
        ("in an eighth of that", max(1 << 20, found * (KEY_BYTES + 12) // 8)),
    ):
        for kind, read in (
            ("records", lambda m: sum(1 for _ in log.latest(memory_bytes=m))),
            ("batches", lambda m: sum(len(b) for b in log.latest_batches(memory_bytes=m))),
        ):
            spent, same = cpu(partial(read, memory_bytes), repeats)
            assert same == found
            print(f"  {kind}, keys {name:22s} {spent:6.2f} s {base / spent:5.1f}x")


def measure_memory(made: MadeLog) -> None:
    """The most that Python and numpy hold above the log itself while batches are read one after another."""
    log = Log(made.store, "topics", "users")
    for batch_bytes in (1 << 20, 8 << 20):
        tracemalloc.start()
        for _ in log.batches(batch_bytes=batch_bytes):
            pass
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        print(f"  batches of {batch_bytes >> 20} MiB: {most / 2**20:.1f} MiB held at most, Arrow's own memory apart")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few records, one repeat: does it run?")
    parser.add_argument("--json", action="store_true", help="print the rows of the table as JSON, text to stderr")
    given = parser.parse_args()
    with rows_as_json(given.json) as rows:
        rows.extend(measure_all(*((8_000, 1) if given.quick else (200_000, 3))))


def measure_all(count: int, repeats: int) -> list[Row]:
    """Print all tables; return the rows of the first."""
    rows: list[Row] = []
    print("CPU us a record; how many times quicker than fastavro on the same segments")
    names = ("fastavro", "records", "batches", "batches, values", "batches, keys", "floor, of it")
    print(f"{'':24s} {' '.join(f'{name:>15s}' for name in names)}")
    for codec, value_bytes, headers in (
        ("zstandard", 200, False),
        ("null", 200, False),
        ("zstandard", 20, False),
        ("zstandard", 1000, False),
        ("zstandard", 200, True),
    ):
        many = count // 4 if value_bytes == 1000 else count
        title = f"{codec}, {value_bytes} B{', 2 headers' if headers else ''}"
        made = fill(many, value_bytes, codec, headers=headers)
        rows.append(measure(title, made, repeats))
    made = fill(count, 200, "zstandard")
    measure_latest("200 B, never cleaned", made, repeats)
    print("\nmemory")
    measure_memory(made)
    made.compact()
    append(made, part(make_columns(count * 11 // 10, 200), count, count * 11 // 10), headers=False)
    measure_latest("200 B, nine tenths clean", made, repeats)
    return rows


if __name__ == "__main__":
    main()
