"""`keyfold table sync --follow`: what is tried again, what ends it, and what metrics and probes say meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

from keyfold.errors import KeyfoldError, StoreUnavailable
from keyfold.export.request import OnError
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.health import Liveness
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.observation import ObservedStore
from keyfold.table.follow import QUIET_MAX_S, SignsOfLife, TableFollower, shown_since_ms
from keyfold.table.metrics import TableMeter
from keyfold.table.sync import SyncResult, base_schema
from tests.support.logs import MadeLog, record
from tests.support.tables import JSON, MadeTable, Turns

NAME = "s3://lake/users"
INTERVAL_S = 60.0
AWAY = StoreUnavailable("tables/users/", "the store does not answer")
NOTHING = SyncResult((), None)


class Steps:
    """Syncs and turns of the upkeep that end as they are told; then all of them succeed."""

    def __init__(self, clock: ManualClock, syncs: Sequence[Exception | None], upkeep: Sequence[Exception | None] = ()):
        self.clock = clock
        self.said: list[str] = []
        self.asked: list[str] = []
        self._syncs, self._upkeep = list(syncs), list(upkeep)
        self.meter = TableMeter("users", NAME, clock.now_ms(), "1")
        self.liveness = Liveness(clock, QUIET_MAX_S + INTERVAL_S)
        self.liveness.answered()
        self.follower = TableFollower(self._sync, self._maintain, self.said.append, self.meter, self.liveness, clock)

    def _sync(self, is_first: bool) -> SyncResult:
        self.asked.append("first" if is_first else "sync")
        self.clock.sleep(2.0)
        self._end(self._syncs)
        return NOTHING

    def _maintain(self) -> None:
        self.asked.append("upkeep")
        self._end(self._upkeep)

    @staticmethod
    def _end(ends: list[Exception | None]) -> None:
        error = ends.pop(0) if ends else None
        if error is not None:
            raise error

    def value(self, metric: str, **labels: str) -> float | None:
        return self.meter.registry.get_sample_value(metric, {"topic": "users", "table": NAME, **labels})


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(2 * 10**12)


def test_a_sync_and_its_upkeep_follow_one_another_until_the_stop(clock: ManualClock) -> None:
    steps = Steps(clock, [])
    steps.follower.run(Turns(clock, 2), INTERVAL_S)
    assert steps.asked == ["first", "upkeep", "sync", "upkeep"]
    assert steps.said == []
    assert steps.value("keyfold_table_syncs_total") == 2
    assert steps.value("keyfold_table_last_sync_seconds") == 2
    assert steps.value("keyfold_table_last_sync_timestamp_seconds") == 2 * 10**9 + 2 + INTERVAL_S + 2


def test_an_error_that_may_pass_is_told_counted_and_tried_again(clock: ManualClock) -> None:
    steps = Steps(clock, [AWAY, AWAY])
    ready: list[tuple[bool, str]] = []

    def ask() -> None:
        found = steps.liveness.ready()
        ready.append((found.is_good, found.why))

    steps.follower.run(Turns(clock, 3, ask), INTERVAL_S)
    assert steps.asked == ["first", "first", "first", "upkeep"], "the options of the first sync hold until it succeeds"
    assert steps.said == [f"error: {AWAY.message}; trying again in 60 s"] * 2
    failed = (False, f"the last run failed: {AWAY.message}")
    assert ready == [failed, failed, (True, "the store answers")]
    assert steps.value("keyfold_table_failures_total", step="sync") == 2
    assert steps.value("keyfold_table_last_sync_timestamp_seconds") == 2 * 10**9 + 2 * (2 + INTERVAL_S) + 2


def test_a_table_that_is_not_synchronised_stays_as_old_as_it_was(clock: ManualClock) -> None:
    steps = Steps(clock, [AWAY] * 9)
    steps.follower.run(Turns(clock, 9), INTERVAL_S)
    assert steps.value("keyfold_table_last_sync_timestamp_seconds") == 2 * 10**9
    assert steps.value("keyfold_table_last_sync_seconds") is None
    assert steps.value("keyfold_table_syncs_total") == 0


def test_a_new_process_does_not_make_a_table_look_fresh(clock: ManualClock) -> None:
    made = MadeLog(store=MemoryStore(clock=clock), clock=clock)
    table = MadeTable(made)
    assert shown_since_ms(table.opened.catalog.load(), 7) == 7
    made.append([record(0, "a", "1")])
    table.sync()
    synced_ms = clock.now_ms()
    clock.sleep(7200.0)
    assert shown_since_ms(table.loaded, clock.now_ms()) == synced_ms


def test_a_table_whose_first_sync_never_ends_is_as_old_as_the_table(clock: ManualClock) -> None:
    table = MadeTable(MadeLog(store=MemoryStore(clock=clock), clock=clock))
    properties = table.request.properties(table.log.topic)
    schema, spec = base_schema(table.request), UNPARTITIONED_PARTITION_SPEC
    created = table.opened.catalog.create(table.opened.location, schema, spec, properties)
    created_ms = created.metadata.last_updated_ms
    assert shown_since_ms(table.loaded, created_ms + 7_200_000) == created_ms


def test_a_stop_during_a_sync_leaves_the_upkeep_to_the_next_process(clock: ManualClock) -> None:
    steps = Steps(clock, [])
    stop = Turns(clock, 9)

    def sync(_: bool) -> SyncResult:
        stop.set()
        return NOTHING

    replace(steps.follower, sync=sync).run(stop, INTERVAL_S)
    assert steps.asked == []
    assert steps.value("keyfold_table_syncs_total") == 1


def test_upkeep_that_fails_does_not_make_the_table_older(clock: ManualClock) -> None:
    steps = Steps(clock, [], [AWAY])
    steps.follower.run(Turns(clock, 1), INTERVAL_S)
    assert steps.value("keyfold_table_failures_total", step="upkeep") == 1
    assert steps.value("keyfold_table_failures_total", step="sync") == 0
    assert steps.value("keyfold_table_syncs_total") == 1
    assert not steps.liveness.ready().is_good


def test_an_error_that_will_not_pass_ends_the_loop(clock: ManualClock) -> None:
    steps = Steps(clock, [None, KeyfoldError("`value.id` is long in the table and string in newer records")])
    with pytest.raises(KeyfoldError, match="is long in the table"):
        steps.follower.run(Turns(clock, 9), INTERVAL_S)
    assert steps.asked == ["first", "upkeep", "sync"]
    assert steps.said == []


def test_answers_of_the_store_keep_a_long_sync_alive(clock: ManualClock) -> None:
    liveness = Liveness(clock, QUIET_MAX_S)
    store = ObservedStore(MemoryStore("lake", clock=clock), SignsOfLife(liveness))
    for _ in range(3):
        clock.sleep(QUIET_MAX_S - 1)
        assert list(store.list("users/")) == []
        assert liveness.live().is_good
    clock.sleep(QUIET_MAX_S + 1)
    assert not liveness.live().is_good


def test_rows_and_records_that_could_not_be_decoded_are_counted(clock: ManualClock) -> None:
    made = MadeLog(store=MemoryStore(clock=clock), clock=clock)
    made.append([record(0, "a", '{"id": 1}'), record(1, "b", '{"id": 2}'), record(2, "c", "no json")])
    table = MadeTable(made, replace(JSON, on_error=OnError.SKIP))
    meter = TableMeter("users", NAME, clock.now_ms(), "1")
    meter.synced(table.sync(), 0.1, clock.now_ms())
    made.append([record(3, "a", '{"id": 3}'), record(4, "b", None)])
    meter.synced(table.sync(), 0.1, clock.now_ms())

    def value(metric: str, **labels: str) -> float | None:
        return meter.registry.get_sample_value(metric, {"topic": "users", "table": NAME, **labels})

    assert value("keyfold_table_rows_total", change="added") == 3
    assert value("keyfold_table_rows_total", change="hidden") == 2
    assert value("keyfold_table_mismatches_total", outcome="skipped") == 1
    assert value("keyfold_table_mismatches_total", outcome="null") == 0
