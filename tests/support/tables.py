"""A table of a small real log: syncs, and its rows as a reader of Iceberg's metadata sees them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from threading import Event
from typing import Any

from keyfold.formats.format import Format
from keyfold.log.record import Record
from keyfold.read.log import Log
from keyfold.runtime.clock import Clock
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import ObjectStore
from keyfold.store.memory import MemoryStore
from keyfold.table.catalog import FolderCatalog, LoadedTable
from keyfold.table.file_io import ObjectFiles
from keyfold.table.open import OpenedTable
from keyfold.table.request import TableRequest
from keyfold.table.sync import SyncResult, sync
from keyfold.table.table import TableVersion
from tests.support.logs import MadeLog

FOLDER = "tables/users"
JSON = TableRequest(key_format=Format.STRING, value_format=Format.JSON)


@dataclass(slots=True)
class MadeTable:
    """A table of a made log. `store` is where its files are, by default the log's bucket."""

    made: MadeLog
    request: TableRequest = field(default_factory=TableRequest)
    store: ObjectStore | None = None
    seed: int = 1
    announced: list[str] = field(default_factory=list)

    @property
    def log(self) -> Log:
        place = self.made.place
        return Log(self.made.store, place.topics_dir, place.topic, clock=self.made.clock, random=Random(self.seed))

    @property
    def opened(self) -> OpenedTable:
        store = self.store or self.made.store
        files = ObjectFiles(store, RetryPolicy(self.made.clock, Random(self.seed), timeout_s=5.0))
        location = f"{store.url}/{FOLDER}"
        return OpenedTable(FolderCatalog(files, location), files, location)

    @property
    def loaded(self) -> LoadedTable:
        loaded = self.opened.catalog.load()
        assert loaded is not None
        return loaded

    @property
    def version(self) -> TableVersion:
        return TableVersion(self.opened.files, self.loaded)

    def sync(self, request: TableRequest | None = None, *, dry_run: bool = False) -> SyncResult:
        """One sync; every sync has random numbers of its own."""
        self.seed += 1
        opened = self.opened
        return sync(
            self.log,
            opened,
            request or self.request,
            clock=self.made.clock,
            random=Random(self.seed),
            dry_run=dry_run,
            announce=self.announced.append,
        )

    def rows(self, version: TableVersion | None = None) -> list[dict[str, Any]]:
        """The visible rows, by partition and offset."""
        found: list[dict[str, Any]] = []
        version = version or self.version
        for file in version.data_files:
            found += [row for table in version.visible(file) for row in table.to_pylist()]
        return sorted(found, key=lambda row: (row["partition"], row["offset"]))

    def state(self) -> dict[int, tuple[Any, Any]]:
        """Key and value by offset, of a log with one partition."""
        rows = self.rows()
        found = {row["offset"]: (row.get("key"), row.get("value")) for row in rows}
        assert len(found) == len(rows), "a record is there twice"
        return found

    def latest(self) -> dict[int, Record]:
        """The specification: the latest state of the log, by offset."""
        return {record.offset: record for record in self.log.latest(self.made.place.partition)}


def copy_of(store: MemoryStore, clock: Clock) -> MemoryStore:
    """A store of the same name with the same objects, which then go their own way."""
    copy = MemoryStore(store.name, clock=clock)
    copy._objects.update(store._objects)  # private, because ETags and times must stay
    copy._numbers = itertools.count(10**6)
    return copy


class Turns(Event):
    """A stop that is set after some pauses. A pause takes no real time; `during` is called in each."""

    def __init__(self, clock: Clock, pauses: int, during: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._clock = clock
        self._left = pauses
        self._during = during

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._during()
        self._clock.sleep(timeout)
        self._left -= 1
        if not self._left:
            self.set()
        return self.is_set()
