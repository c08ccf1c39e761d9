"""A table that is a folder: one of two commits wins, a lost answer is found out, and the hint may lag behind."""

from __future__ import annotations

from random import Random

import pytest
from pyiceberg.table.snapshots import Operation

from keyfold.errors import ConfigError, StoreUnavailable
from keyfold.store.api import Create, Update
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Call, Fault, FaultKind, FaultyStore
from keyfold.table.commit import Change, commit
from keyfold.table.file_io import TableMoved
from keyfold.table.open import open_table
from keyfold.table.table import TableVersion
from tests.support.logs import MadeLog, records
from tests.support.tables import FOLDER, MadeTable

HINT = f"{FOLDER}/metadata/version-hint.text"


@pytest.fixture
def table() -> MadeTable:
    made = MadeLog()
    made.append(records("a=1 b=2"))
    table = MadeTable(made)
    table.sync()
    return table


def rewrite(table: MadeTable, version: TableVersion, seed: int) -> None:
    """A commit that changes no row."""
    change, catalog = Change(Operation.REPLACE, version.shown), table.opened.catalog
    commit(catalog, version, change, commit_id=f"{seed:016x}", now_ms=1, random=Random(seed))


def hint(table: MadeTable) -> bytes:
    return table.made.store.get(HINT).data


def test_of_two_commits_on_one_version_the_second_is_refused(table: MadeTable) -> None:
    version = table.version
    rewrite(table, version, 91)
    with pytest.raises(TableMoved, match=r"was changed by another commit: `.*v3\.metadata\.json` exists"):
        rewrite(table, version, 92)


def test_a_sync_that_came_second_is_done_again(table: MadeTable) -> None:
    table.made.append(records("a=3", 2))
    moved = False

    def move(call: Call) -> None:
        nonlocal moved
        if call.operation == "put" and call.key.endswith("v3.metadata.json") and not moved:
            moved, table.store = True, None
            rewrite(table, table.version, 93)

    table.store = FaultyStore(table.made.store, on_call=move)
    table.sync()
    assert moved
    assert sorted(table.state()) == [1, 2]


def test_a_commit_whose_answer_was_lost_is_recognised(table: MadeTable) -> None:
    def is_commit(call: Call) -> bool:
        return call.operation == "put" and call.key.endswith("v3.metadata.json")

    table.made.append(records("a=3", 2))
    table.store = FaultyStore(table.made.store, [Fault(is_commit, FaultKind.LOST_ANSWER)])
    assert table.sync().snapshot_id == table.loaded.metadata.current_snapshot_id
    assert table.loaded.location.endswith("v3.metadata.json")


def test_a_hint_that_lags_behind_or_is_lost_hides_no_version(table: MadeTable) -> None:
    def is_hint(call: Call) -> bool:
        return call.operation == "put" and call.key == HINT

    table.made.append(records("a=3", 2))
    table.store = FaultyStore(table.made.store, [Fault(is_hint, FaultKind.UNAVAILABLE, times=3)])
    table.sync()
    assert hint(table) == b"2"
    assert sorted(table.state()) == [1, 2]
    table.made.store.delete(HINT)
    assert sorted(table.state()) == [1, 2]
    rewrite(table, table.version, 94)
    assert hint(table) == b"4"


def test_a_hint_of_another_tool_is_read(table: MadeTable) -> None:
    etag = table.made.store.get(HINT).etag
    table.made.store.put(HINT, b" 2\n", Update(etag))
    assert table.loaded.location.endswith("v2.metadata.json")


def test_a_commit_on_a_version_whose_successors_were_collected_is_refused(table: MadeTable) -> None:
    old = table.version
    for seed in range(95, 99):
        rewrite(table, table.version, seed)
    for number in (3, 4):
        table.made.store.delete(f"{FOLDER}/metadata/v{number}.metadata.json")
    with pytest.raises(TableMoved, match="was changed by other commits since it was loaded"):
        rewrite(table, old, 99)
    assert hint(table) == b"6"


def test_a_store_that_stays_away_is_an_error(table: MadeTable) -> None:
    table.made.append(records("a=3", 2))
    always = Fault(lambda call: call.operation == "put", FaultKind.UNAVAILABLE, times=10**6)
    table.store = FaultyStore(table.made.store, [always])
    with pytest.raises(StoreUnavailable):
        table.sync()


def test_metadata_in_another_bucket_is_refused(table: MadeTable) -> None:
    with pytest.raises(ConfigError, match=r"`s3://other/x`, which is not in `memory://test`"):
        table.opened.files.key("s3://other/x")


@pytest.mark.parametrize(
    ("name", "location", "message"),
    [
        ("s3://bucket", None, "is a whole bucket"),
        ("s3://bucket/t", "s3://bucket/u", "where --to says"),
        ("shop.users", None, "neither s3://BUCKET/FOLDER nor CATALOG.NAMESPACE.TABLE"),
    ],
)
def test_a_name_that_is_no_table_is_refused(table: MadeTable, name: str, location: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_table(name, location, lambda _: (MemoryStore("bucket"), ""), table.opened.files.retry)


def test_damaged_metadata_names_the_object(table: MadeTable) -> None:
    table.made.store.put(f"{FOLDER}/metadata/v3.metadata.json", b"{}", Create())
    with pytest.raises(Exception, match=r"v3\.metadata\.json.*is not the metadata of a table"):
        table.opened.catalog.load()
