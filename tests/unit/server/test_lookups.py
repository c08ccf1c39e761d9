"""When lookups are refreshed: one refresh for many requests, none that delays others, and no answer that is too old."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

import pytest

from keyfold.errors import StoreUnavailable
from keyfold.log.names import Place
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import Blob
from keyfold.store.memory import MemoryStore
from keyfold_server.lookups import STALE_S, TopicLookups
from tests.support.logs import MadeLog, record, records


class SlowStore(MemoryStore):
    """A store whose GETs of manifests wait while `is_open` is not set, and fail while `is_away`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = Event()
        self.is_open.set()
        self.is_asked = Event()
        self.is_away = False
        self.manifests = 0

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        if key.endswith("_manifest.avro"):
            self.manifests += 1
            self.is_asked.set()
            assert self.is_open.wait(30)
            if self.is_away:
                raise StoreUnavailable(key, "the store is away")
        return super().get(key, max_bytes)


@pytest.fixture
def store() -> SlowStore:
    return SlowStore()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def made(store: SlowStore, clock: ManualClock) -> MadeLog:
    log = MadeLog(store=store, place=Place("topics", "users", 0), clock=clock)
    log.append(records("a=1"))
    return log


def value(lookups: TopicLookups) -> bytes | None:
    return lookups.ask("users", lambda lookup: lookup.get(b"a").value)


def test_many_requests_cost_one_refresh(made: MadeLog, store: SlowStore, clock: ManualClock) -> None:
    lookups = TopicLookups(store, "topics", clock)
    value(lookups)
    store.manifests = 0
    for _ in range(10):
        assert value(lookups) == b"1"
    assert store.manifests == 0
    clock.sleep(1.0)
    for _ in range(10):
        value(lookups)
    assert store.manifests == 1


def during_a_refresh(
    made: MadeLog, store: SlowStore, clock: ManualClock, age_s: float, then: Callable[[Future[object]], None]
) -> None:
    """Call `then` with another request while a request refreshes a lookup of that age, which cannot end yet."""
    lookups = TopicLookups(store, "topics", clock)
    value(lookups)
    made.append([record(1, "a", "2")])
    clock.sleep(age_s)
    store.is_open.clear()
    store.is_asked.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(value, lookups)
        try:
            assert store.is_asked.wait(30)
            then(pool.submit(value, lookups))
        finally:
            store.is_open.set()
        assert first.result(30) == b"2"


def test_a_refresh_does_not_delay_others(made: MadeLog, store: SlowStore, clock: ManualClock) -> None:
    during_a_refresh(made, store, clock, 2.0, lambda second: _is(second.result(30), b"1"))


def _is(found: object, wanted: object) -> None:
    assert found == wanted


def test_an_answer_that_would_be_too_old_waits(made: MadeLog, store: SlowStore, clock: ManualClock) -> None:
    waiting: list[Future[object]] = []
    during_a_refresh(made, store, clock, 1.0 + STALE_S, waiting.append)
    assert waiting[0].result(30) == b"2"


def test_a_store_that_is_away_is_an_error_and_comes_back(made: MadeLog, store: SlowStore, clock: ManualClock) -> None:
    lookups = TopicLookups(store, "topics", clock)
    value(lookups)
    clock.sleep(60.0)
    store.is_away = True
    with pytest.raises(StoreUnavailable):
        value(lookups)
    store.is_away = False
    assert value(lookups) == b"1"
