"""A sync: after each one the table shows the latest state of the log, whatever happened to the log in between."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestEntry
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record as PartitionValues

from keyfold.errors import ConfigError, TopicNotFound
from keyfold.export.request import OnError
from keyfold.formats.errors import RecordFormatMismatch
from keyfold.formats.format import Format
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.runtime.clock import ManualClock
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Call, FaultyStore
from keyfold.table import rows as rows_module
from keyfold.table.catalog import CatalogFailed, LoadedTable, TableCatalog
from keyfold.table.commit import Change, commit
from keyfold.table.data_files import FileWriter
from keyfold.table.difference import PartitionRows, Way
from keyfold.table.file_io import TableMoved
from keyfold.table.maintain import collect, expire, merge
from keyfold.table.request import TableRequest
from keyfold.table.sync import sync
from keyfold.table.table import NotKeyfoldsTable, TableFile
from keyfold.table.types import NoIcebergType
from tests.support.logs import MadeLog, record, records
from tests.support.tables import JSON, MadeTable


@pytest.fixture
def made() -> MadeLog:
    return MadeLog()


def shows_the_latest_state(table: MadeTable) -> None:
    """Rows are those of the log, with their own offsets, keys and values."""
    found, wanted = table.state(), table.latest()
    assert sorted(found) == sorted(wanted)
    for offset, (key, value) in found.items():
        assert (key.encode() if isinstance(key, str) else key) == wanted[offset].key
        raw = wanted[offset].value
        assert raw is not None
        assert value == (raw if isinstance(value, bytes) else json.loads(raw))


def batch(random: Random, start: int, *, as_json: bool) -> tuple[list[Record], int]:
    """Some records of few keys, with tombstones, keyless records and holes, and the offset after them."""
    found: list[Record] = []
    offset = start
    for _ in range(random.randrange(1, 30)):
        key = random.choice([None, *(f"k{number}" for number in range(12))])
        value = json.dumps({"n": offset, "s": "x" * random.randrange(4)} if as_json else offset)
        is_deleted = key is not None and random.random() < 0.2
        found.append(record(offset, key, None if is_deleted else value))
        offset += random.choice([1, 1, 1, 2])
    return found, offset


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("request_", [TableRequest(), JSON], ids=["bytes", "json"])
def test_every_sync_shows_the_latest_state(seed: int, request_: TableRequest) -> None:
    random = Random(seed)
    clock = ManualClock(2 * 10**12)  # later than now, which pyiceberg gives a new table
    made = MadeLog(store=MemoryStore(clock=clock), clock=clock, random=Random(seed))
    table = MadeTable(made, request_, seed=1000 * seed)
    offset = 0
    for _ in range(14):
        step = random.random()
        if step < 0.6 or not offset:
            appended, offset = batch(random, offset, as_json=request_ is JSON)
            made.append(appended, next_offset=offset)
        elif step < 0.8:
            made.compact(purge=random.random() < 0.5, merge=random.random() < 0.5)
        elif table.opened.catalog.load() is not None:
            maintained = table.opened
            merge(maintained, clock=made.clock, random=random, files_max=1, hidden_max=0.1)
            made.clock.sleep(2.0)
            expire(maintained, made.clock.now_ms(), age_ms=1000)
            collect(maintained, clock=made.clock, random=random, age_ms=1000)
        if random.random() < 0.5:
            table.sync()
            shows_the_latest_state(table)
    table.sync()
    shows_the_latest_state(table)


def test_a_sync_without_news_commits_nothing(made: MadeLog) -> None:
    made.append(records("a=1 b=2"))
    table = MadeTable(made)
    first = table.sync()
    assert [(each.way, each.added, each.hidden) for each in first.partitions] == [(Way.ALL_ROWS, 2, 0)]
    before = table.loaded.location
    assert table.sync().snapshot_id is None
    assert table.loaded.location == before
    assert table.announced == []


def test_a_pass_changes_no_file_of_the_table(made: MadeLog) -> None:
    made.append(records("a=1 b=2 a=3"))
    table = MadeTable(made)
    table.sync()
    files = [file.file.file_path for file in table.version.data_files]
    made.compact()
    (done,) = table.sync().partitions
    assert (done.way, done.added, done.hidden, done.files) == (Way.NEW_KEYS, 0, 0, 0)
    assert [file.file.file_path for file in table.version.data_files] == files
    assert done.shown.anchor.version == made.manifest.version


def test_a_tombstone_that_was_removed_before_the_sync_still_deletes(made: MadeLog) -> None:
    made.append(records("a=1 b=2 c=3"))
    table = MadeTable(made)
    table.sync()
    made.append(records("a=", 3))
    made.compact()
    made.compact(purge=True)
    (done,) = table.sync().partitions
    assert done.way is Way.OFFSETS
    assert sorted(table.state()) == [1, 2]


def test_a_log_that_was_made_again_replaces_all_rows_and_says_so(made: MadeLog) -> None:
    made.append(records("a=1 b=2 c=3"))
    table = MadeTable(made)
    table.sync()
    for key in list(made.object_keys()):
        made.store.delete(key)
    again = MadeLog(store=made.store, clock=made.clock, random=Random(99))
    again.append(records("x=9 y=8"))
    (done,) = table.sync().partitions
    assert (done.way, done.added, done.hidden) == (Way.ALL_ROWS, 2, 3)
    assert table.state() == {0: (b"x", b"9"), 1: (b"y", b"8")}
    (said,) = table.announced
    assert said.startswith(f"{made.place}: all rows are rebuilt, because the log was created again")


def test_rebuild_makes_all_rows_again(made: MadeLog) -> None:
    made.append(records("a=1 b=2"))
    table = MadeTable(made)
    table.sync()
    (done,) = table.sync(replace(table.request, rebuild=True)).partitions
    assert (done.way, done.added, done.hidden) == (Way.ALL_ROWS, 2, 0)
    assert len(table.version.data_files) == 1, "the old file is gone"
    shows_the_latest_state(table)
    assert "it was asked for" in table.announced[0]


def test_partitions_are_synchronised_together(made: MadeLog) -> None:
    made.append(records("a=1 b=2"))
    other = MadeLog(store=made.store, clock=made.clock, place=Place("topics", "users", 1))
    other.append(records("a=3 c=4 c="))
    table = MadeTable(made)
    table.sync()
    assert [(row["partition"], row["offset"], row["key"]) for row in table.rows()] == [
        (0, 0, b"a"), (0, 1, b"b"), (1, 0, b"a"),
    ]  # fmt: skip
    assert sorted(table.version.shown) == [0, 1]
    other.append(records("a=", 3))
    assert [each.place.partition for each in table.sync().partitions] == [1]
    assert sorted(table.version.shown) == [0, 1], "the snapshot still names the version of the other partition"
    assert [(row["partition"], row["offset"]) for row in table.rows()] == [(0, 0), (0, 1)]


def test_a_json_schema_grows_with_the_records(made: MadeLog) -> None:
    made.append([record(0, "a", '{"id": 1}'), record(1, "b", '{"id": 2, "tags": null}')])
    table = MadeTable(made, JSON)
    table.sync()
    assert str(table.version.schema.find_type("value")) == "struct<6: id: optional long>"
    made.append([record(2, "c", '{"tags": ["x"], "at": {"lat": 1.5}}')])
    table.sync()
    assert [row["value"] for row in table.rows()] == [
        {"id": 1, "tags": None, "at": None},
        {"id": 2, "tags": None, "at": None},
        {"id": None, "tags": ["x"], "at": {"lat": 1.5}},
    ]


def test_a_change_that_iceberg_cannot_represent_names_both_types(made: MadeLog) -> None:
    made.append([record(0, "a", '{"id": 1}')])
    table = MadeTable(made, JSON)
    table.sync()
    made.append([record(1, "b", '{"id": "one"}')])
    with pytest.raises(NoIcebergType, match=r"`value\.id` is long in the table and string in newer records"):
        table.sync()
    assert sorted(table.state()) == [0]


def test_values_of_several_types_stay_text(made: MadeLog) -> None:
    made.append([record(0, "a", '{"id": 1}'), record(1, "b", '{"id": "one"}')])
    table = MadeTable(made, JSON)
    table.sync()
    made.append([record(2, "c", '{"id": "two"}'), record(3, "d", '{"id": 4}')])
    table.sync()
    assert [row["value"]["id"] for row in table.rows()] == ["1", '"one"', '"two"', "4"]


def test_text_that_becomes_several_types_is_refused(made: MadeLog) -> None:
    made.append([record(0, "a", '{"id": "one"}')])
    table = MadeTable(made, JSON)
    table.sync()
    made.append([record(1, "b", '{"id": "two"}'), record(2, "c", '{"id": 3}')])
    with pytest.raises(NoIcebergType, match=r"`value\.id` has one type in the table, and newer records have several"):
        table.sync()


def test_a_value_that_does_not_fit_stops_the_sync(made: MadeLog) -> None:
    made.append([record(0, "a", '{"id": 1}'), record(1, "b", "no json")])
    with pytest.raises(RecordFormatMismatch, match="offset 1"):
        MadeTable(made, JSON).sync()
    table = MadeTable(made, replace(JSON, on_error=OnError.SKIP))
    with pytest.raises(ConfigError, match="was made with on-error `fail`, not `skip`"):
        table.sync()


@pytest.mark.parametrize(
    ("empty", "later", "rows"),
    [
        ('{"id": 1, "tags": []}', '{"id": 2, "tags": ["x"]}', [{"id": 1, "tags": []}, {"id": 2, "tags": ["x"]}]),
        ('{"id": 1, "tags": [[]]}', '{"id": 2, "tags": [[1]]}', [{"id": 1, "tags": [[]]}, {"id": 2, "tags": [[1]]}]),
        ("[]", "[1]", [[], [1]]),
    ],
)
def test_what_was_always_empty_is_not_null_when_it_gets_a_type(
    made: MadeLog, empty: str, later: str, rows: list[object]
) -> None:
    made.append([record(0, "a", empty)])
    table = MadeTable(made, JSON)
    table.sync()
    made.append([record(1, "b", later)])
    assert table.sync(dry_run=True).partitions[0].way is Way.ALL_ROWS
    assert table.sync().partitions[0].way is Way.ALL_ROWS
    assert "was empty in all records so far" in table.announced[0]
    assert [row["value"] for row in table.rows()] == rows
    made.append([record(2, "c", later), record(3, "d", empty)])
    assert table.sync().partitions[0].way is Way.NEW_KEYS
    assert [row["value"] for row in table.rows()] == [*rows, rows[1], rows[0]]


def test_what_is_empty_rebuilds_nothing_while_it_stays_empty(made: MadeLog) -> None:
    made.append([record(0, "a", '{"id": 1, "tags": []}')])
    table = MadeTable(made, JSON)
    table.sync()
    made.append([record(1, "b", '{"id": 2, "tags": [], "more": null}'), record(2, "c", '{"id": 3, "more": 1}')])
    assert table.sync().partitions[0].way is Way.NEW_KEYS
    assert [row["value"] for row in table.rows()] == [
        {"id": 1, "more": None}, {"id": 2, "more": None}, {"id": 3, "more": 1},
    ]  # fmt: skip


@pytest.mark.parametrize("on_error", [OnError.SKIP, OnError.NULL])
def test_a_record_that_does_not_fit_can_be_left_out_or_null(made: MadeLog, on_error: OnError) -> None:
    made.append([record(0, "a", '{"id": 1}'), record(1, "b", "no json")])
    table = MadeTable(made, replace(JSON, on_error=on_error))
    table.sync()
    made.append([record(2, "b", '{"id": 3}')])
    table.sync()
    assert [(row["key"], row["value"]) for row in table.rows()] == [("a", {"id": 1}), ("b", {"id": 3})]


def test_json_keys_are_compared_by_their_bytes(made: MadeLog) -> None:
    made.append([record(0, '{"k":1}', "a"), record(1, '{"k": 1}', "b")])
    table = MadeTable(made, TableRequest(key_format=Format.JSON))
    table.sync()
    made.append([record(2, '{"k": 1}', "c")])
    (done,) = table.sync().partitions
    assert done.way is Way.NEW_KEYS
    assert [(row["key"], row["key_bytes"], row["value"]) for row in table.rows()] == [
        ({"k": 1}, b'{"k":1}', b"a"),
        ({"k": 1}, b'{"k": 1}', b"c"),
    ]


def test_times_that_iceberg_cannot_hold_are_null(made: MadeLog) -> None:
    made.append([record(0, "a", "1", timestamp=-1), record(1, "b", "2", timestamp=2**62), record(2, "c", "3")])
    table = MadeTable(made)
    table.sync()
    assert [row["timestamp"] is None for row in table.rows()] == [True, True, False]


def test_a_topic_that_does_not_exist_gets_no_table(made: MadeLog) -> None:
    table = MadeTable(made)
    with pytest.raises(TopicNotFound):
        table.sync()
    assert table.opened.catalog.load() is None


def test_rows_of_another_tool_are_noticed(made: MadeLog) -> None:
    made.append(records("a=1"))
    table = MadeTable(made)
    table.sync()
    opened, random = table.opened, Random(5)
    commit(opened.catalog, table.version, Change(Operation.REPLACE, {}), commit_id="r", now_ms=1, random=random)
    assert table.version.shown[0].next_offset == 1, "files were rewritten, and rows are the same"
    commit(opened.catalog, table.version, Change(Operation.APPEND, {}), commit_id="a", now_ms=1, random=random)
    made.append(records("b=2", 1))
    with pytest.raises(NotKeyfoldsTable, match="another tool has changed rows"):
        table.sync()
    table.sync(replace(table.request, rebuild=True))
    shows_the_latest_state(table)


def test_a_version_that_is_deleted_while_it_is_read_is_left_for_a_newer_one(made: MadeLog) -> None:
    """Also while types are looked at, which reads the records before they are written."""
    made.append([record(offset, f"k{offset}", f'{{"id": {offset}}}') for offset in range(6)])
    made.append([record(6, "k0", '{"id": 60}')])
    moved = False

    def move(call: Call) -> None:
        nonlocal moved
        if call.operation == "get_range" and not moved:
            moved = True
            made.compact(merge=True)
            made.delete_replaced(forget=True)

    table = MadeTable(replace(made, store=FaultyStore(made.store, on_call=move)), JSON, store=made.store)
    table.sync()
    assert moved
    assert sorted(table.state()) == [1, 2, 3, 4, 5, 6]


def test_files_that_another_tool_has_rewritten_are_read_like_any_other(made: MadeLog) -> None:
    """Here it has put rows of both partitions into one file, as for a table that is not partitioned."""
    other = MadeLog(store=made.store, clock=made.clock, place=Place("topics", "users", 1))
    for each in (made, other):
        each.append(records("a=1 b=2 c=3"))
    table = MadeTable(made)
    table.sync()
    version, commit_id = table.version, "0ther0ther"
    writer = FileWriter(table.opened.files, version.loaded.metadata, version.schema, commit_id)
    rows = pa.concat_tables([rows for file in version.data_files for rows in version.visible(file)])
    replaced = frozenset(file.file.file_path for file in version.data_files)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keyfold.table.data_files.split", lambda table, *_: [(PartitionValues(0), table)])
        change = Change(Operation.REPLACE, {}, writer.data(0, [rows]), replaced)
    commit(table.opened.catalog, version, change, commit_id=commit_id, now_ms=1, random=Random(3))
    made.append(records("a=4", 3))
    other.append(records("b=5 c=", 3))
    assert [(each.way, each.added, each.hidden) for each in table.sync().partitions] == [
        (Way.NEW_KEYS, 1, 1),
        (Way.NEW_KEYS, 1, 2),
    ]
    assert [(row["partition"], row["offset"]) for row in table.rows()] == [(0, 1), (0, 2), (0, 3), (1, 0), (1, 3)]


def test_a_missing_file_of_the_table_is_named(made: MadeLog) -> None:
    made.append(records("a=1 b=2"))
    table = MadeTable(made)
    table.sync()
    (file,) = table.version.data_files
    key = table.opened.files.key(file.file.file_path)
    made.store.delete(key)
    made.append(records("a=3", 2))
    with pytest.raises(TableMoved, match=f"`{key}` is missing, and the table named it"):
        table.sync()
    table.sync(replace(table.request, rebuild=True))
    shows_the_latest_state(table)


def test_many_records_are_read_again_instead_of_held(made: MadeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module.HeldMemory.__init__, "__defaults__", (0,))
    made.append([record(offset, f"k{offset}", f'{{"id": {offset}}}') for offset in range(6)])
    table = MadeTable(made, JSON)
    table.sync()
    shows_the_latest_state(table)


def test_files_without_bounds_are_read_whole(made: MadeLog) -> None:
    """Iceberg's bounds are optional, and a tool that rewrites files may leave them out."""
    made.append(records("a=1 b=2 c=3"))
    table = MadeTable(made)
    table.sync()
    (file,) = table.version.data_files
    bare = TableFile(ManifestEntry.from_args(data_file=copy(file.file)))
    bare.file._data[10] = bare.file._data[11] = None
    assert (1 in bare.partitions, len(bare.partitions) > 1, bare.first_offset) == (True, True, 0)
    rows = PartitionRows(table.version, 0, [bare], 4)
    ((_, keys, positions),) = rows.visible(4)
    assert (keys.to_pylist(), positions.tolist()) == ([b"a", b"b", b"c"], [0, 1, 2])
    assert [found.to_pylist() for _, found, _ in PartitionRows(table.version, 1, [bare], 4).visible(4)] == [[]]


class Failing:
    """A catalog that fails after, or instead of, what it was asked for."""

    def __init__(self, catalog: TableCatalog, *, does_commit: bool, times: int) -> None:
        self._catalog = catalog
        self._does_commit = does_commit
        self._left = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit(self, *arguments: Any) -> LoadedTable:
        """See `TableCatalog`."""
        self._left -= 1
        if self._left < 0 or self._does_commit:
            done = self._catalog.commit(*arguments)
        if self._left >= 0:
            raise CatalogFailed("503")
        return done


@pytest.mark.parametrize("does_commit", [True, False])
def test_a_catalog_that_fails_now_and_then_is_asked_again(made: MadeLog, does_commit: bool) -> None:
    made.append(records("a=1"))
    table = MadeTable(made)
    table.sync()
    made.append(records("a=2 b=3", 1))
    opened = table.opened
    failing: Any = Failing(opened.catalog, does_commit=does_commit, times=1)
    sync(table.log, replace(opened, catalog=failing), table.request, clock=made.clock, random=Random(99))
    shows_the_latest_state(table)
    assert len(table.loaded.metadata.snapshots) == 2


def test_a_catalog_that_always_fails_is_an_error(made: MadeLog) -> None:
    made.append(records("a=1"))
    table = MadeTable(made)
    failing: Any = Failing(table.opened.catalog, does_commit=False, times=99)
    with pytest.raises(CatalogFailed):
        sync(table.log, replace(table.opened, catalog=failing), table.request, clock=made.clock, random=Random(99))
