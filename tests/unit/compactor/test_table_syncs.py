"""Tables beside the compactor: which are synced after a run, and what a run says of them."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest

from keyfold.read.log import Log
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import ObjectStore, StoreLocation
from keyfold.store.memory import MemoryStore
from keyfold.store.pacing import Pacer
from keyfold.table.file_io import ObjectFiles
from keyfold.table.open import open_table
from keyfold.table.request import TableRequest
from keyfold.table.sync import sync
from keyfold.table.table import TableVersion
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.job import Job, RunSelection
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.report import RunReport
from keyfold_compactor.report.report_text import text_lines
from keyfold_compactor.report.show import report_document
from keyfold_compactor.table_syncs import syncing
from tests.support.cleaning import PLACE, Sink, memory_log, record, retry_policy
from tests.support.untyped import untyped

TABLE = "s3://lake/tables/users"
MISSING = "s3://lake/tables/nosuch"


class Buckets:
    """Stores by bucket, a log with two versions of a key in `b`, and a table of it in `lake`."""

    def __init__(self) -> None:
        self.clock = ManualClock(2 * 10**12)
        log, self.sink = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=self.clock)
        self.stores: dict[str, ObjectStore] = {"b": log}
        self.pacers: list[Pacer | None] = []
        self.random = Random(1)
        table = open_table(TABLE, None, self.by_url, RetryPolicy(self.clock, Random(1)))
        log_reader = Log(log, PLACE.topics_dir, PLACE.topic, clock=self.clock, random=Random(1))
        sync(log_reader, table, TableRequest(), clock=self.clock, random=self.random)

    def open(self, location: StoreLocation, pacer: Pacer | None = None) -> ObjectStore:
        self.pacers.append(pacer)
        return self.stores.setdefault(location.bucket, MemoryStore(location.bucket, self.clock))

    def by_url(self, url: str) -> tuple[ObjectStore, str]:
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        return self.stores.setdefault(bucket, MemoryStore(bucket, self.clock)), prefix

    def rows(self) -> dict[bytes, bytes]:
        table = open_table(TABLE, None, self.by_url, RetryPolicy(self.clock, Random(1)))
        loaded = table.catalog.load()
        assert loaded is not None
        version = TableVersion(ObjectFiles(self.stores["lake"], RetryPolicy(self.clock, Random(1))), loaded)
        rows = [row for file in version.data_files for part in version.visible(file) for row in part.to_pylist()]
        return {row["key"]: row["value"] for row in rows}

    def run(self, tables: str = TABLE, topics: Iterable[str] = (), **config: str) -> RunReport:
        given = {"s3.bucket.name": "b", "min.cleanable.dirty.ratio": "0", "tables.sync": tables}
        options = CompactOptions.parse({**given, **{name.replace("_", "."): value for name, value in config.items()}})
        store = self.stores["b"]
        with syncing(options, frozenset(topics), clock=self.clock, random=self.random, opener=self.open) as step:
            return Job(
                options,
                RunSelection(),
                store,
                lambda _: LocalExecutor(store, retry_policy(self.clock, Random(1))),
                clock=self.clock,
                random=Random(2),
                sync_tables=step,
            ).once()


@pytest.fixture
def buckets() -> Buckets:
    return Buckets()


def test_a_table_shows_what_the_run_has_left(buckets: Buckets) -> None:
    buckets.sink.append([record(2, "b", "3")])
    report = buckets.run()
    assert (report.exit_code, report.is_quiet) == (0, False)
    assert buckets.rows() == {b"a": b"2", b"b": b"3"}
    (found,) = untyped(report_document(report))["tables"]
    assert (found["table"], found["error"], found["partitions"][0]["added"]) == (TABLE, "", 1)
    assert f"{TABLE}: snapshot {found['snapshot_id']}" in text_lines(report)


def test_a_table_that_is_up_to_date_is_no_news(buckets: Buckets) -> None:
    buckets.run()
    report = buckets.run()
    assert (report.exit_code, report.is_quiet) == (0, True)


def test_a_table_that_does_not_exist_fails_the_run_and_nothing_else(buckets: Buckets) -> None:
    buckets.sink.append([record(2, "b", "3")])
    report = buckets.run(f"{MISSING},{TABLE}")
    assert report.exit_code == 1
    assert buckets.rows() == {b"a": b"2", b"b": b"3"}
    line = f"{MISSING}: there is no table `{MISSING}`; `keyfold table sync` creates one"
    assert line in text_lines(report)
    assert untyped(report_document(report))["tables"][0] == {"table": MISSING, "error": line.partition(": ")[2]}


def test_a_rebuild_is_announced(buckets: Buckets) -> None:
    buckets.stores["b"] = MemoryStore("test", buckets.clock)
    sink = Sink.open(buckets.stores["b"], clock=buckets.clock, seed=9)
    sink.append([record(0, "z", "1")])
    said = list(text_lines(buckets.run()))
    assert any("users-0: all rows are rebuilt, because" in line for line in said), said
    assert buckets.rows() == {b"z": b"1"}


def test_only_tables_of_the_selected_topics_are_synced(buckets: Buckets) -> None:
    buckets.sink.append([record(2, "b", "3")])
    assert buckets.run(topics=["orders"]).tables == ()
    assert len(buckets.run(topics=[PLACE.topic]).tables) == 1


def test_a_process_that_is_to_end_begins_no_sync_and_leaves_one(buckets: Buckets) -> None:
    options = CompactOptions.parse({"s3.bucket.name": "b", "tables.sync": f"{TABLE}"})
    buckets.sink.append([record(2, "b", "3")])
    with syncing(options, clock=buckets.clock, random=buckets.random, opener=buckets.open) as step:
        assert step(lambda: True) == []
        answers = iter([False, True])
        assert step(lambda: next(answers)) == []
        assert buckets.rows() == {b"a": b"2"}
        assert step(lambda: False)[0].is_news


def test_syncs_stay_within_the_byte_rate(buckets: Buckets) -> None:
    buckets.run(log_cleaner_io_max_bytes_per_second="1000000")
    assert None not in buckets.pacers
    assert len({id(pacer) for pacer in buckets.pacers}) == 1
