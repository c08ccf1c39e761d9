"""A table that follows a log while the log is written and cleaned, with syncs that are killed, and two at a time.

    storm(location, catalogs, syncs=10, seed=1, read=rows)

After each sync, `read` must return the rows that the history has at the versions that the snapshot names. Syncs, merges
and collections run on stores that fail and die at random calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from random import Random

from keyfold.errors import KeyfoldError
from keyfold.formats.format import Format
from keyfold.log.record import Record
from keyfold.read.log import Log
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import ObjectStore
from keyfold.store.s3 import S3Location
from keyfold.store.wrappers.faults import Chaos, FaultKind, FaultyStore, SimulatedCrash
from keyfold.table.catalog import FolderCatalog, LoadedTable, TableCatalog
from keyfold.table.file_io import ObjectFiles
from keyfold.table.maintain import collect, expire, merge
from keyfold.table.open import OpenedTable
from keyfold.table.request import TableRequest
from keyfold.table.sync import sync
from keyfold.table.table import TableVersion
from keyfold.table.verify import verify
from tests.support.lake import ReadRows
from tests.support.reader_proof import History, fold
from tests.support.readers_world import Cleaner, Loop, Pace, Tally, World, Writer

REQUEST = TableRequest(value_format=Format.JSON)
PARTITIONS = 4
FOLDER = "tables/users"

MakeCatalog = Callable[[ObjectFiles, str], TableCatalog]


class JsonWriter(Writer):
    """A writer of JSON values that have new fields as time goes by."""

    def _batch(self, start: int) -> tuple[list[Record], int]:
        batch, end = super()._batch(start)
        new = f"only_{start // 200}"
        return [each if each.value is None else replace(each, value=_value(each, new)) for each in batch], end


def _value(record: Record, new: str) -> bytes:
    return json.dumps({"id": record.offset, new: [{"x": record.offset / 2}]}).encode()


def storm(
    location: S3Location,
    make_catalog: MakeCatalog = FolderCatalog,
    *,
    syncs: int,
    seed: int,
    read: ReadRows,
    rate: float = 0.005,
) -> int:
    """Return the number of deaths."""
    pace = Pace(lag_s=1.0, delete_retention_s=2.0, file_delete_delay_s=1.0, write_every_s=0.5)
    world = World(location, pace, {number: History() for number in range(PARTITIONS)})
    tally, random = Tally(), Random(seed)
    with ExitStack() as exits:
        writer, cleaner = JsonWriter(world, seed).open(), Cleaner(world, seed).open()
        exits.callback(writer.close)
        exits.callback(cleaner.close)
        writer.turn()
        opened = [exits.enter_context(world.opened()) for _ in range(2)]
        here, beside = (Syncer(location, log, make_catalog, Random(seed + at), rate) for at, log in enumerate(opened))
        for turn in (writer.turn, cleaner.turn, beside.turn):
            exits.callback(Loop(turn, tally).end)
        for _ in range(syncs):
            here.turn()
            assert not tally.errors, tally.errors[0]
            _check(world, here, read)
            if random.random() < 0.3:
                here.maintain()
                _check(world, here, read)
        here.proved()
        return here.deaths + beside.deaths


class Syncer:
    """A process that keeps a table, dies, and is started again."""

    def __init__(self, location: S3Location, log: Log, make_catalog: MakeCatalog, random: Random, rate: float) -> None:
        self._location = location
        self._log = log
        self._make_catalog = make_catalog
        self._random = random
        self._rate = rate
        self.deaths = 0

    def turn(self) -> None:
        """Sync until it succeeds."""
        self._until_done(
            lambda table: sync(self._log, table, REQUEST, clock=SystemClock(), random=self._random), self._rate
        )

    def maintain(self) -> None:
        """Merge, expire and collect, all of it eagerly."""

        def once(table: OpenedTable) -> None:
            clock = SystemClock()
            merge(table, clock=clock, random=self._random, files_max=4)
            expire(table, clock.now_ms(), 30_000)
            collect(table, clock=clock, random=self._random, age_ms=30_000)

        self._until_done(once, self._rate)

    def proved(self) -> None:
        """Verify the table against the log, as the command does."""

        def once(table: OpenedTable) -> None:
            loaded = table.catalog.load()
            assert loaded is not None
            for each in verify(self._log, TableVersion(table.files, loaded), REQUEST):
                assert each.is_right or each.unjudged, list(each.lines())

        self._until_done(once, 0.0)

    def loaded(self) -> LoadedTable:
        """Load the table, without faults."""
        store = self._location.open()
        try:
            found = self._table(store).catalog.load()
            assert found is not None
            return found
        finally:
            store.close()

    def version(self, loaded: LoadedTable) -> TableVersion:
        """Return what a loaded table shows; only its metadata is read."""
        return TableVersion(self._table(self._log.store).files, loaded)

    def _until_done(self, work: Callable[[OpenedTable], object], rate: float) -> None:
        while True:
            store = self._location.open()
            kinds = (*FaultKind,)
            try:
                work(self._table(FaultyStore(store, chaos=Chaos(self._random, rate, kinds))))
            except SimulatedCrash:
                self.deaths += 1
            except KeyfoldError as error:
                if not error.retriable:
                    raise
            else:
                return
            finally:
                store.close()

    def _table(self, store: ObjectStore) -> OpenedTable:
        files = ObjectFiles(store, RetryPolicy(SystemClock(), self._random, timeout_s=5.0))
        where = f"s3://{self._location.bucket}/{FOLDER}"
        return OpenedTable(self._make_catalog(files, where), files, where)


def _check(world: World, syncer: Syncer, read: ReadRows) -> None:
    """Compare what an engine reads with the history at the versions that the snapshot names."""
    loaded = syncer.loaded()
    shown = syncer.version(loaded).shown
    wanted = [
        (number, record.offset, record.key, record.offset)
        for number, each in shown.items()
        for record in fold(world.histories[number].between(0, each.next_offset)).values()
        if record.key is not None
    ]
    assert sorted(read(loaded)) == sorted(wanted)
