"""Verification of a table: every planted difference is found, and a table that is behind is judged all the same."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.table.snapshots import Operation

from keyfold.export.request import OnError
from keyfold.table.commit import Change, commit
from keyfold.table.data_files import FileWriter
from keyfold.table.verify import VerifiedPartition, verify
from tests.support.logs import MadeLog, record, records
from tests.support.tables import JSON, MadeTable


@pytest.fixture
def table() -> MadeTable:
    made = MadeLog()
    made.append([record(offset, f"k{offset}", f'{{"id": {offset}, "x": {offset / 2}}}') for offset in range(6)])
    table = MadeTable(made, JSON)
    table.sync()
    return table


def verified(table: MadeTable) -> VerifiedPartition:
    (found,) = verify(table.log, table.version, table.request)
    return found


def planted(table: MadeTable, *tables: pa.Table, hide: tuple[int, ...] = ()) -> None:
    """Change rows without the log: add some, and hide those at these positions of the first data file."""
    version, commit_id = table.version, "feedfeedfeedfeed"
    writer = FileWriter(table.opened.files, version.loaded.metadata, version.schema, commit_id)
    added = writer.data(0, tables)
    first = version.data_files[0].file
    if hide:
        added.append(writer.hidden(0, first, np.array(hide)))
    change = Change(Operation.OVERWRITE, version.shown, added)
    commit(table.opened.catalog, version, change, commit_id=commit_id, now_ms=1, random=Random(77))


def row(table: MadeTable, position: int) -> pa.Table:
    (rows,) = table.version.visible(table.version.data_files[0])
    return rows.slice(position, 1)


def with_offset(rows: pa.Table, offset: int) -> pa.Table:
    place = rows.schema.get_field_index("offset")
    return rows.set_column(place, rows.schema.field(place), pa.array([offset]))


def test_a_right_table_is_right(table: MadeTable) -> None:
    found = verified(table)
    assert (found.is_right, found.rows, list(found.lines())) == (True, 6, [])


def test_a_missing_row_is_found(table: MadeTable) -> None:
    planted(table, hide=(2, 4))
    found = verified(table)
    assert found.missing == [2, 4]
    assert list(found.lines()) == ["offset 2 is missing in the table", "offset 4 is missing in the table"]


def test_an_invented_row_is_found(table: MadeTable) -> None:
    table.made.append([record(6, "other", "null"), record(7, "k5", None)])
    table.sync()
    planted(table, with_offset(row(table, 1), 7))
    found = verified(table)
    assert found.unknown == [7]


def test_a_row_that_is_there_twice_is_found(table: MadeTable) -> None:
    planted(table, row(table, 3))
    assert verified(table).different == {3: "the table has it more than once"}


def test_a_changed_value_is_found(table: MadeTable) -> None:
    planted(table, with_offset(row(table, 3), 1), hide=(1,))
    found = verified(table)
    assert list(found.different) == [1]
    assert found.different[1].startswith("`timestamp` is ")
    assert not found.is_right


def test_a_table_behind_its_log_is_judged(table: MadeTable) -> None:
    table.made.append(records("k1= k9=9 k2=8", 6))
    table.made.compact()
    found = verified(table)
    assert found.is_right, list(found.lines())
    planted(table, hide=(0,))
    assert verified(table).missing == [0]


def test_a_table_that_needs_a_removed_tombstone_cannot_be_judged(table: MadeTable) -> None:
    table.made.append(records("k1=", 6))
    table.made.compact()
    table.made.compact(purge=True)
    found = verified(table)
    assert not found.is_right
    assert "were removed before this reader" in found.unjudged
    table.sync()
    assert verified(table).is_right


def test_records_that_are_left_out_on_request_are_not_missing() -> None:
    made = MadeLog()
    made.append([record(0, "a", '{"id": 1}'), record(1, "b", "no json")])
    table = MadeTable(made, replace(JSON, on_error=OnError.SKIP))
    table.sync()
    assert verified(table).is_right


def test_nan_is_equal_to_itself() -> None:
    """JSON has no NaN, but Avro's doubles do."""
    from keyfold.table.verify import _difference

    one, other = float("nan"), float("nan")
    assert _difference({"value": {"x": one}}, {"value": {"x": other}}) == ""
    assert _difference({"value": 1}, {"value": 2}) == "`value` is 1, and 2 in the log"
