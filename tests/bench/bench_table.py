"""What a table costs: a sync beside Spark's MERGE and a full export, a thousand syncs, and a scan.

    changes   1,000,000 rows and 20,000 changes of them, several times: `keyfold table sync`; an export of the whole
              latest state; and MERGE of the same changes into an Iceberg table by Spark (merge-on-read, version 2,
              changes in a Parquet file, a warm session). CPU of all processes, the store's apart. All tables must be
              equal at the end. The goal is at most a tenth of MERGE's CPU and a third of the export's
    syncs     1,000 syncs of 100 changes on 100,000 rows with all upkeep, in memory: CPU of each hundred
    scan      DuckDB reads all columns of the table after those syncs, and of the same rows in one file. The goal is at
              most 1.5 times the time

Run: python -m tests.bench.bench_table [--quick] [--only changes,syncs,scan]
MERGE needs the Python of `make .cache/spark-3.5.9/.installed`; another Python leaves it out and says so.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import click
import duckdb
import pyspark

from keyfold.export.request import ExportRequest
from keyfold.export.run import export
from keyfold.export.target_folder import FolderTarget
from keyfold.formats.format import Format
from keyfold.log.record import CREATE_TIME, Record
from keyfold.log.segment import DEFAULT_BLOCK_BYTES
from keyfold.runtime.clock import ManualClock, SystemClock
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from keyfold.table.maintain import maintain, merge
from keyfold.table.request import TableRequest
from keyfold.table.sync import sync
from tests.bench._processes import cpu_s, ticks
from tests.support.lake import duckdb_on, install_extensions
from tests.support.logs import MadeLog
from tests.support.tables import FOLDER, MadeTable
from tests.support.versitygw import Versitygw

BUCKET: Final = "bench"
ROUNDS: Final = 3
_SEGMENT_RECORDS: Final = 50_000
_REQUEST: Final = TableRequest(Format.STRING, Format.JSON, parallel=1)
_SPARK: Final = "3.5"


def record(offset: int, key: int, random: Random) -> Record:
    """A value of about 200 bytes; one in twenty is a tombstone."""
    if offset > 0 and random.random() < 0.05:
        return Record(offset, 1_700_000_000_000 + offset, CREATE_TIME, b"key-%09d" % key, None)
    value = {
        "id": offset,
        "name": f"customer-{random.getrandbits(40):010x}",
        "note": f"{random.getrandbits(320):080x}",
        "sum": random.random(),
        "lines": [f"line-{random.getrandbits(32):08x}" for _ in range(3)],
    }
    return Record(offset, 1_700_000_000_000 + offset, CREATE_TIME, b"key-%09d" % key, json.dumps(value).encode())


def fill(made: MadeLog, rows: int, random: Random) -> None:
    """One record for each key, without tombstones."""
    for first in range(0, rows, _SEGMENT_RECORDS):
        batch = [record(n, n, random) for n in range(first, min(first + _SEGMENT_RECORDS, rows))]
        made.append([each if each.value is not None else replace(each, value=b'{"id": 0}') for each in batch])


def change(made: MadeLog, rows: int, count: int, random: Random) -> None:
    """Change evenly drawn keys; a tenth of the changes are new keys."""
    start = made.manifest.next_offset
    made.append([record(start + n, random.randrange(rows * 11 // 10), random) for n in range(count)])


def costs(server: Versitygw, work: Callable[[], Any]) -> float:
    """CPU seconds of this process and all below it, without those of the store."""

    def now_s() -> float:
        return cpu_s() - ticks(server.pid) / os.sysconf("SC_CLK_TCK")

    before = now_s()
    work()
    return now_s() - before


def changes(rows: int, count: int) -> None:
    """Print what keeping up costs."""
    with ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory()))
        server = exits.enter_context(Versitygw())
        os.environ.update(server.environment)
        server.create_bucket(BUCKET)
        store = server.location(BUCKET).open()
        exits.callback(store.close)
        random = Random(1)
        made = MadeLog(store=store, clock=SystemClock(), block_bytes=DEFAULT_BLOCK_BYTES)
        fill(made, rows, random)
        table = MadeTable(made, _REQUEST)
        table.sync()
        _exported(table, folder / "state-0")
        sync_s, export_s = [], []
        for number in range(1, ROUNDS + 1):
            start = made.manifest.next_offset
            change(made, rows, count, random)
            sync_s.append(costs(server, table.sync))
            export_s.append(costs(server, partial(_exported, table, folder / f"state-{number}")))
            _exported(table, folder / f"changes-{number}", from_offset=start)
        ours = statistics.median(sync_s)
        print(f"{count:,} changes of {rows:,} rows, median of {ROUNDS}: CPU seconds, and how many times a sync's")
        print(f"    sync     {ours:8.2f}")
        print(f"    export   {statistics.median(export_s):8.2f}{statistics.median(export_s) / ours:8.1f}")
        if not pyspark.__version__.startswith(_SPARK):
            print(f"    MERGE is left out: this Python has Spark {pyspark.__version__}, and Iceberg none for it")
            return
        merge_s, left = _merged(server, folder)
        print(f"    MERGE    {statistics.median(merge_s):8.2f}{statistics.median(merge_s) / ours:8.1f}")
        query = "SELECT count(*), sum(value.id) FROM iceberg_scan($1)"
        found = _duckdb(server, exits).execute(query, [table.loaded.location])
        assert found.fetchone() == left, "the tables are not the same"


def _exported(table: MadeTable, to: Path, from_offset: int | None = None) -> None:
    """Export the latest state, or all records from an offset on."""
    request = ExportRequest(
        (0,),
        latest=from_offset is None,
        from_offset=from_offset,
        key_format=Format.STRING,
        value_format=Format.JSON,
        parallel=1,
    )
    export(table.log, FolderTarget(to, "00000000"), request, run="00000000", clock=SystemClock())


def _merged(server: Versitygw, folder: Path) -> tuple[list[float], tuple[int, int]]:
    """Merge the same changes with Spark. Return CPU seconds of each, and count and sum of ids of the rows."""
    from tests.bench.peers.on_spark import IcebergPeer

    with IcebergPeer.opened("", folder) as peer:
        modes = ", ".join(f"'write.{what}.mode' = 'merge-on-read'" for what in ("delete", "update", "merge"))
        properties = f"'format-version' = '2', 'write.parquet.compression-codec' = 'zstd', {modes}"
        columns = "offset, timestamp, key, value"
        peer.spark.sql(
            f"CREATE TABLE lake.state.users USING iceberg TBLPROPERTIES ({properties}) AS "  # noqa: S608 - names of ours
            f"SELECT {columns} FROM parquet.`{folder}/state-0`"
        )
        spent = []
        for number in range(1, ROUNDS + 1):
            rank = "row_number() OVER (PARTITION BY key ORDER BY offset DESC) AS rank"
            ranked = f"SELECT {columns}, {rank} FROM parquet.`{folder}/changes-{number}`"  # noqa: S608 - names of ours
            source = f"SELECT {columns} FROM ({ranked}) WHERE rank = 1"  # noqa: S608 - names of ours
            statement = (
                f"MERGE INTO lake.state.users AS state USING ({source}) AS changes ON state.key = changes.key "
                "WHEN MATCHED AND changes.value IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET * "
                "WHEN NOT MATCHED AND changes.value IS NOT NULL THEN INSERT *"
            )
            spent.append(costs(server, partial(peer.spark.sql, statement)))
        (row,) = peer.spark.sql("SELECT count(*), sum(value.id) FROM lake.state.users").collect()
        return spent, (int(row[0]), int(row[1]))


class NamedStore(MemoryStore):
    """A bucket in memory whose objects can be copied to a server."""

    @property
    def url(self) -> str:
        """As that of a bucket on a server."""
        return f"s3://{self.name}"


def syncs(rows: int, count: int) -> MadeTable:
    """Print what each of many syncs costs, and return the table."""
    clock = ManualClock(2 * 10**12)
    made = MadeLog(store=NamedStore(BUCKET, clock), clock=clock, block_bytes=DEFAULT_BLOCK_BYTES)
    random = Random(2)
    fill(made, rows, random)
    table = MadeTable(made, _REQUEST)
    table.sync()
    opened, log = table.opened, table.log  # as `--follow` keeps them
    spent: list[float] = []
    for number in range(count):
        change(made, rows, 100, random)
        if number % 100 == 99:
            made.compact(merge=True)
        begun = time.process_time()
        sync(log, opened, _REQUEST, clock=clock, random=Random(10**6 + number))
        maintain(opened, clock, Random(2 * 10**6 + number))
        spent.append(time.process_time() - begun)
        clock.sleep(60.0)
    tenth = max(1, count // 10)
    means = [1000 * statistics.fmean(spent[n : n + tenth]) for n in range(0, count, tenth)]
    print(f"{count:,} syncs of 100 changes on {rows:,} rows, upkeep included: ms of CPU a sync, by tenths of the syncs")
    print(f"    {''.join(f'{mean:8.1f}' for mean in means)}")
    return table


def scan(table: MadeTable) -> None:
    """Print how long DuckDB reads the table, and the same rows in one file."""
    with ExitStack() as exits:
        server = exits.enter_context(Versitygw())
        server.create_bucket(BUCKET)
        connection = _duckdb(server, exits)
        took = []
        for is_merged in (False, True):
            if is_merged:
                merge(table.opened, clock=table.made.clock, random=Random(10**9), files_max=1, hidden_max=0)
            _copy(table, server)
            took.append(_fastest(partial(_scanned, connection, table.loaded.location)))
            print(f"DuckDB's scan: {1000 * took[-1]:.0f} ms with {len(table.version.data_files)} files")
        print(f"    {took[0] / took[1]:.2f} times that of one file")


def _scanned(connection: duckdb.DuckDBPyConnection, location: str) -> list[Any]:
    return connection.execute("SELECT max(hash(key, value)), count(*) FROM iceberg_scan($1)", [location]).fetchall()


def _duckdb(server: Versitygw, exits: ExitStack) -> duckdb.DuckDBPyConnection:
    """A connection whose extensions are in a folder of its own."""
    home = exits.enter_context(tempfile.TemporaryDirectory())
    os.environ["HOME"] = home
    install_extensions(Path(home))
    return duckdb_on(server)


def _copy(table: MadeTable, server: Versitygw) -> None:
    """Copy the table's objects, but for those that are there."""
    store = server.location(BUCKET).open()
    there = {info.key for info in store.list(FOLDER)}
    for info in list(table.made.store.list(FOLDER)):
        if info.key not in there:
            store.put(info.key, table.made.store.get(info.key).data, Create())
    store.close()


def _fastest(work: Callable[[], Any], times: int = 5) -> float:
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return min(found)


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="a hundredth of it, to see that it runs")
@click.option("--only", default="changes,syncs,scan", help="separated by commas")
def main(quick: bool, only: str) -> None:
    """Run the bench."""
    tenth, wanted = (100 if quick else 1), only.split(",")
    if "changes" in wanted:
        changes(1_000_000 // tenth, 20_000 // tenth)
    if "syncs" in wanted or "scan" in wanted:
        table = syncs(100_000 // tenth, 1000 // min(tenth, 20))
        if "scan" in wanted:
            scan(table)


if __name__ == "__main__":
    main()
