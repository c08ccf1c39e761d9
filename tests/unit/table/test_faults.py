"""Every store call of a sync, a merge, an expiry and a collection, failing in every way it can.

Whatever happens, the table shows one whole latest state of the log; the next sync shows the newest; every kept snapshot
can be read; and collection leaves what the metadata names and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import pytest

from keyfold.errors import KeyfoldError
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import ObjectStore
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Fault, FaultyStore, SimulatedCrash, every_fault
from keyfold.table.catalog import LoadedTable
from keyfold.table.maintain import collect, expire, merge, named_objects
from keyfold.table.table import TableVersion
from tests.support.logs import MadeLog, record, records
from tests.support.tables import JSON, MadeTable, copy_of
from tests.support.tiers import Sharded

Step = Callable[[MadeTable], object]


def made_table() -> MadeTable:
    """A table with three snapshots, behind its log, with files to merge and an orphan."""
    clock = ManualClock(2 * 10**12)  # later than now, which pyiceberg gives a new table
    table = MadeTable(MadeLog(store=MemoryStore(clock=clock), clock=clock))
    offset = 0
    for text in ("a=1 b=2 c=3", "a=4 d=5", "b= e=6"):
        batch = records(text, offset)
        table.made.append(batch)
        offset += len(batch)
        table.sync()
        table.made.clock.sleep(10.0)
    opened = table.opened
    opened.files.create(f"{opened.location}/data/orphan.parquet", b"of a sync that was killed")
    table.made.clock.sleep(10.0)
    return table


def synchronise(table: MadeTable) -> object:
    return table.sync()


def merged(table: MadeTable) -> object:
    return merge(table.opened, clock=table.made.clock, random=Random(2 * 10**6), files_max=1)


def expired(table: MadeTable) -> object:
    return expire(table.opened, table.made.clock.now_ms(), age_ms=15_000)


def collected(table: MadeTable) -> object:
    return collect(table.opened, clock=table.made.clock, random=Random(3 * 10**6), age_ms=5000)


STEPS: dict[str, Step] = {"sync": synchronise, "merge": merged, "expire": expired, "collect": collected}


@dataclass(frozen=True, slots=True)
class Scene:
    """A table that is behind its log, what its snapshots show, and what the next sync must show."""

    table: MadeTable
    before: list[list[int]]
    after: list[int]

    def again(self) -> MadeTable:
        """The same table once more, in a store and with a clock of its own."""
        made = self.table.made
        clock = ManualClock(made.clock.now_ms())
        assert isinstance(made.store, MemoryStore)
        return replace(self.table, made=replace(made, store=copy_of(made.store, clock), clock=clock), announced=[])


def scene() -> Scene:
    table = made_table()
    before = states(table)
    table.made.append(records("a= f=7 c=8", table.made.manifest.next_offset))
    return Scene(table, before, sorted(table.latest()))


@pytest.mark.parametrize("name", STEPS)
def test_a_table_survives_every_fault_of_every_call(name: str, sharded: Sharded) -> None:
    found = scene()
    table = found.again()
    table.store = calls = FaultyStore(table.made.store)
    STEPS[name](table)
    faults = list(every_fault(calls.calls))
    assert len(faults) > 15
    for number, fault in sharded(list(enumerate(faults))):
        _survive(STEPS[name], fault, number, found)


def _survive(step: Step, fault: Fault, seed: int, found: Scene) -> None:
    table, before, after = found.again(), found.before, found.after
    real: ObjectStore = table.made.store
    table.store = faulty = FaultyStore(real, [fault])
    table.seed += seed
    try:
        step(table)
    except SimulatedCrash:
        pass
    except KeyfoldError as error:
        if not error.retriable:
            raise
    table.store = real
    assert sorted(table.state()) in (before[-1], after), fault
    faulty.land()
    assert sorted(table.state()) in (before[-1], after), fault
    table.sync()
    assert sorted(table.state()) == after, fault
    assert all(state in (*before, after) for state in states(table)), fault
    table.made.clock.sleep(60.0)
    collect(table.opened, clock=table.made.clock, random=Random(10**6), age_ms=1000)
    assert sorted(table.state()) == after, fault
    assert all(state in (*before, after) for state in states(table)), fault
    objects = {info.key for info in real.list("tables/")}
    wanted = named_objects(table.version) | {"tables/users/metadata/version-hint.text"}
    assert objects == wanted, fault


def new_table() -> MadeTable:
    """A log without a table, which is to be partitioned by what the values have."""
    clock = ManualClock(2 * 10**12)
    table = MadeTable(MadeLog(store=MemoryStore(clock=clock), clock=clock), replace(JSON, partition_by="value.at"))
    table.made.append([record(0, "a", '{"at": 1}'), record(1, "b", '{"at": 2}'), record(2, "a", '{"at": 3}')])
    return table


def test_the_first_sync_survives_every_fault_of_every_call(sharded: Sharded) -> None:
    found = Scene(new_table(), [], [1, 2])
    table = found.again()
    table.store = calls = FaultyStore(table.made.store)
    table.sync()
    faults = list(every_fault(calls.calls))
    assert len(faults) > 15
    for number, fault in sharded(list(enumerate(faults))):
        _begin(fault, number, found)


def _begin(fault: Fault, seed: int, found: Scene) -> None:
    table = found.again()
    real: ObjectStore = table.made.store
    table.store = faulty = FaultyStore(real, [fault])
    table.seed += seed
    try:
        table.sync()
    except SimulatedCrash:
        pass
    except KeyfoldError as error:
        if not error.retriable:
            raise
    faulty.land()
    table.store = real
    if table.opened.catalog.load() is not None:
        assert sorted(table.state()) in ([], found.after), fault
    table.sync()
    assert sorted(table.state()) == found.after, fault
    assert sorted(file.file.partition[0] for file in table.version.data_files) == [2, 3], fault
    table.made.clock.sleep(60.0)
    collect(table.opened, clock=table.made.clock, random=Random(10**6), age_ms=1000)
    assert sorted(table.state()) == found.after, fault
    objects = {info.key for info in real.list("tables/")}
    assert objects == named_objects(table.version) | {"tables/users/metadata/version-hint.text"}, fault


def states(table: MadeTable) -> list[list[int]]:
    """The offsets that each snapshot shows, from the oldest on."""
    loaded = table.loaded
    found = []
    for snapshot in sorted(loaded.metadata.snapshots, key=lambda each: each.sequence_number or 0):
        metadata = loaded.metadata.model_copy(update={"current_snapshot_id": snapshot.snapshot_id})
        version = TableVersion(table.opened.files, LoadedTable(metadata, loaded.location))
        found.append([row["offset"] for row in table.rows(version)])
    return found
