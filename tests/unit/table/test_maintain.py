"""Upkeep: which files are merged, what is kept for readers, and what is deleted."""

from __future__ import annotations

from random import Random

import pytest

from keyfold.runtime.clock import ManualClock
from keyfold.store.memory import MemoryStore
from keyfold.table.file_io import TableMoved
from keyfold.table.maintain import FileRows, collect, drop, expire, files_to_merge, maintain, merge
from keyfold.table.status import status_of
from tests.support.logs import MadeLog, records
from tests.support.tables import MadeTable


@pytest.fixture
def table() -> MadeTable:
    clock = ManualClock(2 * 10**12)  # later than now, which pyiceberg gives a new table
    return MadeTable(MadeLog(store=MemoryStore(clock=clock), clock=clock))


def grow(table: MadeTable, *texts: str) -> None:
    """Append each text and sync."""
    for text in texts:
        offset = table.made.manifest.next_offset if table.made._sink else 0
        table.made.append(records(text, offset))
        table.sync()
        table.made.clock.sleep(10.0)


def files(*rows: tuple[int, int]) -> list[FileRows]:
    return [FileRows(f"f{number}", count, hidden) for number, (count, hidden) in enumerate(rows)]


def test_files_with_many_hidden_rows_are_merged() -> None:
    assert files_to_merge(files((10, 3), (10, 4), (10, 10))) == {"f1", "f2"}


def test_few_files_are_left_alone() -> None:
    assert files_to_merge(files(*[(1, 0)] * 20)) == set()
    assert files_to_merge(files(*[(1, 0)] * 21)) == {f"f{number}" for number in range(21)}


def test_a_large_file_is_not_rewritten_for_small_ones() -> None:
    assert files_to_merge(files((1_000_000, 0), *[(100, 0)] * 20)) == {f"f{number}" for number in range(1, 21)}


def test_rows_are_rewritten_a_few_times_in_a_thousand_syncs() -> None:
    held: list[FileRows] = [FileRows("first", 100_000, 0)]
    written = 0
    for number in range(1000):
        held.append(FileRows(f"s{number}", 100, 0))
        chosen = files_to_merge(held)
        if chosen:
            rows = sum(file.rows for file in held if file.path in chosen)
            held = [file for file in held if file.path not in chosen] + [FileRows(f"m{number}", rows, 0)]
            written += rows
        assert len(held) <= 21
    assert written < 6 * 100_000


def test_a_merge_keeps_every_row(table: MadeTable) -> None:
    grow(table, "a=1 b=2 c=3", "a=4", "d=5 b=")
    before = table.state()
    done = merge(table.opened, clock=table.made.clock, random=Random(7), files_max=1)
    assert done is not None
    assert (done.removed, done.added, done.rows) == (3, 1, 3)
    assert table.state() == before
    assert status_of("users", table.version).hidden == 0
    assert merge(table.opened, clock=table.made.clock, random=Random(8)) is None


def test_snapshots_stay_for_readers_until_they_are_old(table: MadeTable) -> None:
    grow(table, "a=1", "a=2", "a=3")  # current from 0 to 10, to 20, and since then; now it is 30
    assert expire(table.opened, table.made.clock.now_ms(), age_ms=25_000) == 0
    assert expire(table.opened, table.made.clock.now_ms(), age_ms=15_000) == 1
    assert expire(table.opened, table.made.clock.now_ms(), age_ms=0) == 1
    assert expire(table.opened, table.made.clock.now_ms(), age_ms=0) == 0
    assert sorted(table.state()) == [2]


def test_maintenance_leaves_one_file_and_a_short_history(table: MadeTable) -> None:
    grow(table, *["a=1 b=2"] * 5)
    table.made.clock.sleep(7200.0)
    maintain(table.opened, table.made.clock, Random(9))
    status = status_of("users", table.version)
    assert (status.rows, status.data_files) == (2, 1)
    assert status.snapshots == 2, "the current one, and the one of the collection"
    data = [info.key for info in table.made.store.list("tables/users/data/")]
    assert len([key for key in data if "deletes" not in key]) == 1


def test_a_commit_from_before_a_collection_is_refused(table: MadeTable) -> None:
    """Otherwise a sync that was suspended between upload and commit would name objects that are deleted."""
    grow(table, "a=1", "a=2")
    opened, suspended = table.opened, table.version
    opened.files.create(f"{opened.location}/data/of-the-suspended-sync.parquet", b"x")
    table.made.clock.sleep(60.0)
    assert collect(opened, clock=table.made.clock, random=Random(10), age_ms=1000) == 1
    with pytest.raises(TableMoved):
        opened.catalog.commit(suspended.loaded, (), ())


def test_unfinished_uploads_are_aborted(table: MadeTable) -> None:
    grow(table, "a=1")
    opened = table.opened
    table.made.store.start_upload("tables/users/data/of-a-killed-sync.parquet")
    assert collect(opened, clock=table.made.clock, random=Random(10), age_ms=60_000) == 0
    assert len(list(table.made.store.list_uploads("tables/"))) == 1, "it may be of a running sync"
    table.made.clock.sleep(60.0)
    collect(opened, clock=table.made.clock, random=Random(11), age_ms=60_000)
    assert list(table.made.store.list_uploads("tables/")) == []


def test_objects_of_others_are_left_alone(table: MadeTable) -> None:
    grow(table, "a=1")
    opened = table.opened
    opened.files.create(f"{opened.location}/README.md", b"mine")
    opened.files.create(f"{opened.location}-2/data/x.parquet", b"of another table")
    table.made.clock.sleep(60.0)
    assert collect(opened, clock=table.made.clock, random=Random(10), age_ms=1000) == 0
    drop(opened)
    assert [info.key for info in table.made.store.list("tables/")] == [
        "tables/users-2/data/x.parquet",
        "tables/users/README.md",
    ]
    assert opened.catalog.load() is None
    table.sync()
    assert sorted(table.state()) == [0]
