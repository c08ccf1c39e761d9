"""Following a log with a table: a sync and the table's upkeep in turn, until somebody stops it.

An error that may pass is reported, counted and tried again at the next turn. Any other ends the loop, because only a
person can mend it. Every answer of a store is a sign of life, so a sync may take as long as it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Final

from keyfold.errors import KeyfoldError
from keyfold.runtime.clock import Clock
from keyfold.runtime.health import Liveness
from keyfold.table.catalog import LoadedTable
from keyfold.table.metrics import TableMeter
from keyfold.table.sync import SyncResult

QUIET_MAX_S: Final = 900.0
"""The longest time between two answers of the stores in a sync that works; retries of a request take less."""


def shown_since_ms(table: LoadedTable | None, now_ms: int) -> int:
    """Return the time of a table's newest snapshot, else of its last change, or `now_ms` if there is no table yet.

    A process that is killed again and again must not make its table look fresh at each start.
    """
    if table is None:
        return now_ms
    newest = table.metadata.current_snapshot()
    return table.metadata.last_updated_ms if newest is None else newest.timestamp_ms


@dataclass(frozen=True, slots=True)
class SignsOfLife:
    """An `AnswerListener` for which every answer of a store is progress."""

    liveness: Liveness

    def answered(self) -> None:
        """See `AnswerListener.answered`."""
        self.liveness.answered()
        self.liveness.moved()

    def unanswered(self, why: str) -> None:
        """See `AnswerListener.unanswered`."""
        self.liveness.unanswered(why)


@dataclass(frozen=True, slots=True)
class TableFollower:
    """A table that follows a log: what does a turn, and who is told about it.

    `sync` gets whether it is the first sync that succeeds: only that one rebuilds rows, if this was asked for.
    `report` gets a sentence about an error that may pass.
    """

    sync: Callable[[bool], SyncResult]
    maintain: Callable[[], None]
    report: Callable[[str], None]
    meter: TableMeter
    liveness: Liveness
    clock: Clock

    def run(self, stop: Event, interval_s: float) -> None:
        """Sync and maintain until `stop` is set, with a pause of `interval_s`. Raises errors that will not pass."""
        self.liveness.begun()
        is_first = True
        while not stop.is_set():
            if self._attempt("sync", partial(self._sync, is_first=is_first), interval_s):
                is_first = False
                if not stop.is_set():
                    self._attempt("upkeep", self.maintain, interval_s)
            stop.wait(interval_s)

    def _sync(self, *, is_first: bool) -> None:
        began_s = self.clock.monotonic_s()
        found = self.sync(is_first)
        self.meter.synced(found, self.clock.monotonic_s() - began_s, self.clock.now_ms())

    def _attempt(self, step: str, work: Callable[[], None], interval_s: float) -> bool:
        """Do one step, and return whether it succeeded. Raises errors that will not pass."""
        try:
            work()
        except KeyfoldError as error:
            if not error.retriable:
                raise
            self.meter.failed(step)
            self.liveness.turned(error.message)
            self.report(f"error: {error.message}; trying again in {interval_s:g} s")
            return False
        self.liveness.turned()
        return True
