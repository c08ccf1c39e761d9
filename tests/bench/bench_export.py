"""What `keyfold log export` costs beside the plain loop that one would write: Log.read, from_pylist, write_table.

Both read the same log in memory and write the same columns to a folder, zstd, one partition, one thread; what both
have written is compared. Formats: raw bytes; text; JSON whose type is known; Avro of one writer schema, which the loop
decodes with fastavro; and with `surveyed` the export looks at all the data first, the loop at none.

Run: python -m tests.bench.bench_export [--quick] [--records N]
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from keyfold.export.request import ExportRequest
from keyfold.export.run import export
from keyfold.export.target_folder import FolderTarget
from keyfold.formats.avro_schema import Type, avro_type
from keyfold.formats.format import Format
from keyfold.log.record import CREATE_TIME, Record
from keyfold.log.segment import DEFAULT_BLOCK_BYTES
from keyfold.read.log import Log
from keyfold.runtime.clock import SystemClock
from keyfold.store.api import Create
from tests.support.logs import MadeLog

SCHEMA: Final = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "name", "type": "string"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "sum", "type": "double"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"]}},
        {"name": "lines", "type": {"type": "array", "items": "string"}},
    ],
}
_SEGMENT_RECORDS: Final = 50_000
_PARSED: Final = fastavro.parse_schema(SCHEMA)

Decode = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A format, and what the plain loop does with a value."""

    name: str
    kind: Format
    reader: Type | None
    decode: Decode
    is_avro: bool = False


def row(number: int, random: Random) -> dict[str, Any]:
    """A value of some 200 bytes."""
    return {
        "id": number,
        "at": 1_700_000_000_000 + number,
        "name": f"customer-{random.getrandbits(40):010x}",
        "note": None if number % 3 else f"note {random.getrandbits(200):050x}",
        "sum": random.random(),
        "kind": "ABC"[number % 3],
        "lines": [f"line-{random.getrandbits(32):08x}" for _ in range(number % 4)],
    }


def as_avro(value: dict[str, Any]) -> bytes:
    out = io.BytesIO(b"\0\0\0\0\1")
    out.seek(5)
    fastavro.schemaless_writer(out, _PARSED, value)
    return out.getvalue()


def from_avro(data: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(data[5:]), _PARSED, None)


def made_log(count: int, encode: Callable[[dict[str, Any]], bytes]) -> MadeLog:
    made, random = MadeLog(block_bytes=DEFAULT_BLOCK_BYTES), Random(1)
    made.store.put("topics/_schemas/1.avsc", json.dumps(SCHEMA).encode(), Create())
    for first in range(0, count, _SEGMENT_RECORDS):
        made.append(
            [
                Record(n, 1_700_000_000_000 + n, CREATE_TIME, b"key-%012d" % (n * 7919 % count), encode(row(n, random)))
                for n in range(first, min(first + _SEGMENT_RECORDS, count))
            ]
        )
    return made


def plain_loop(log: Log, decode: Decode, schema: pa.Schema, path: Path) -> None:
    """Batches of 50,000 records, each a list of dicts."""
    records = log.read(0)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while rows := list(islice(_dicts(records, decode), 50_000)):
            writer.write_table(pa.Table.from_pylist(rows, schema))


def _dicts(records: Iterator[Record], decode: Decode) -> Iterator[dict[str, Any]]:
    for record in records:
        yield {
            "partition": 0,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "timestamp_type": record.timestamp_type,
            "key": record.key,
            "value": None if record.value is None else decode(record.value),
            "headers": [{"name": name, "value": value} for name, value in record.headers],
            "leader_epoch": record.leader_epoch,
        }


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of wall and of CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def measure(case: Case, made: MadeLog, count: int, folder: Path) -> None:
    log = Log(made.store, "topics", "users")
    to = folder / case.name
    request = ExportRequest((0,), value_format=case.kind, value_reader=case.reader, parallel=1)
    ours = timed(lambda: export(log, FolderTarget(to, "00000000"), request, run="00000000", clock=SystemClock()))
    (file,) = to.glob("*.parquet")
    schema = pq.read_schema(file).remove_metadata()
    theirs = timed(lambda: plain_loop(log, case.decode, schema, to / "plain.parquet"))
    found = pq.read_table(file)
    assert found.num_rows == count
    assert found.equals(pq.read_table(to / "plain.parquet")), case.name
    sizes = file.stat().st_size / count, (to / "plain.parquet").stat().st_size / count
    print(
        f"{case.name:<14} {count / ours[1]:>10,.0f} {count / theirs[1]:>10,.0f} {theirs[1] / ours[1]:>7.1f} "
        f"{theirs[0] / ours[0]:>7.1f} {sizes[0]:>8.1f} {sizes[1]:>8.1f}",
        flush=True,
    )
    shutil.rmtree(to)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--records", type=int, default=300_000)
    arguments.add_argument("--quick", action="store_true", help="a hundredth of it, to see that it runs")
    asked = arguments.parse_args()
    count = asked.records // 100 if asked.quick else asked.records
    reader = avro_type(SCHEMA)
    cases = [
        Case("bytes", Format.BYTES, None, lambda data: data, is_avro=True),
        Case("avro", Format.AVRO, reader, from_avro, is_avro=True),
        Case("avro surveyed", Format.AVRO, None, from_avro, is_avro=True),
        Case("string", Format.STRING, None, bytes.decode),
        Case("json", Format.JSON, reader, json.loads),
        Case("json surveyed", Format.JSON, None, json.loads),
    ]
    logs = {True: made_log(count, as_avro), False: made_log(count, lambda value: json.dumps(value).encode())}
    print(f"{'':<14} {'records per second of CPU':>21} {'ratio of':>8} {'':>6} {'bytes a record':>16}")
    print(f"{'':<14} {'export':>10} {'loop':>10} {'CPU':>7} {'wall':>7} {'export':>8} {'loop':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            measure(case, logs[case.is_avro], count, Path(folder))


if __name__ == "__main__":
    main()
