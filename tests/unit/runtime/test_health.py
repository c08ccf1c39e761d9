"""Results of probes: by the clock, by the store's answers, and over HTTP on the metrics port."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from keyfold.errors import AccessDenied, BucketMissing, ObjectNotFound, StoreUnavailable
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.health import AWAY_S, Liveness
from keyfold.runtime.metrics_server import serving
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Fault, FaultKind, FaultyStore
from keyfold.store.wrappers.observation import ObservedStore
from tests.support.proof import wait_for

QUIET_MAX_S = 100.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def liveness(clock: ManualClock) -> Liveness:
    found = Liveness(clock, QUIET_MAX_S)
    found.begun()
    return found


def test_a_starting_process_is_alive_and_not_ready_whatever_the_store_answers(clock: ManualClock) -> None:
    liveness = Liveness(clock, QUIET_MAX_S)
    liveness.answered()
    assert liveness.live().is_good
    assert liveness.ready().why == "the process is starting"
    liveness.begun()
    assert liveness.ready().is_good


def test_a_process_is_alive_and_not_ready_before_the_stores_first_answer(liveness: Liveness) -> None:
    assert liveness.live().is_good
    assert not liveness.ready().is_good
    assert liveness.ready().why == "the store has not answered yet"


def test_a_process_is_ready_after_an_answer(liveness: Liveness) -> None:
    liveness.answered()
    assert liveness.ready().is_good


def test_no_progress_beyond_the_limit_is_not_alive_until_progress_resumes(
    liveness: Liveness, clock: ManualClock
) -> None:
    liveness.answered()
    clock.sleep(QUIET_MAX_S)
    assert liveness.live().is_good
    clock.sleep(1)
    assert liveness.live().why == "no progress for 101 s; the limit is 100 s"
    assert not liveness.live().is_good
    assert liveness.ready() == liveness.live(), "who is not alive is not ready"
    liveness.moved()
    assert liveness.live().is_good
    assert liveness.ready().is_good


def test_a_process_that_makes_progress_is_alive_however_long_its_work_takes(
    liveness: Liveness, clock: ManualClock
) -> None:
    for _ in range(50):
        clock.sleep(QUIET_MAX_S - 1)
        liveness.moved()
    assert liveness.live().is_good


def test_the_loop_longest_without_progress_decides(liveness: Liveness, clock: ManualClock) -> None:
    liveness.moved("replica dr")
    clock.sleep(QUIET_MAX_S + 1)
    liveness.moved()
    assert liveness.live().why.startswith("replica dr: no progress for 101 s")
    liveness.over("replica dr")
    assert liveness.live().is_good
    liveness.over("replica dr")


def test_a_process_is_not_ready_if_the_store_has_not_answered_for_a_while(
    liveness: Liveness, clock: ManualClock
) -> None:
    liveness.answered()
    liveness.unanswered("503")
    assert liveness.ready().is_good, "one lost answer is no outage"
    clock.sleep(AWAY_S + 1)
    liveness.moved()
    assert liveness.ready().why == "the store has not answered for 11 s: 503"
    assert liveness.live().is_good, "a restart would not bring the store back"
    liveness.answered()
    assert liveness.ready().is_good


def test_a_process_without_requests_stays_ready(liveness: Liveness, clock: ManualClock) -> None:
    liveness.answered()
    clock.sleep(QUIET_MAX_S)
    assert liveness.ready().is_good


def test_a_store_that_never_answered_is_named_with_its_error(liveness: Liveness) -> None:
    liveness.unanswered("no route to host")
    assert liveness.ready().why == "the store has not answered yet: no route to host"


def test_a_failed_run_makes_a_process_unready_until_one_succeeds(liveness: Liveness) -> None:
    liveness.answered()
    liveness.turned("Spark did not start")
    assert liveness.ready().why == "the last run failed: Spark did not start"
    assert liveness.live().is_good
    liveness.turned()
    assert liveness.ready().is_good


def test_a_stopping_process_is_alive_and_not_ready(clock: ManualClock) -> None:
    stop = threading.Event()
    liveness = Liveness(clock, QUIET_MAX_S, stop.is_set)
    liveness.begun()
    liveness.answered()
    stop.set()
    assert liveness.ready().why == "the process is stopping"
    assert liveness.live().is_good


# What a store says


class Observed:
    """What a store's observer was told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def answered(self) -> None:
        self.said.append("answered")

    def unanswered(self, why: str) -> None:
        self.said.append(why)


def test_every_store_call_is_observed_and_passed_through(clock: ManualClock) -> None:
    observed = Observed()
    inner = MemoryStore(clock=clock)
    store = ObservedStore(inner, observed)
    assert store.url == inner.url
    store.put("a/b", b"12345", Create())
    assert observed.said == ["answered"]
    assert store.get("a/b").data == b"12345"
    assert store.get_range("a/b", 1, 2) == b"23"
    assert store.head("a/b").size_bytes == 5
    assert [info.key for info in store.list("a/")] == ["a/b"]
    assert [*store.list("a/", start_after="a/b")] == []
    assert [*store.list_folders("")] == ["a"]
    upload = store.start_upload("c")
    (unfinished,) = store.list_uploads("")
    store.abort_upload(unfinished.key, unfinished.upload_id)
    upload.abort()
    store.delete("a/b")
    assert observed.said == ["answered"] * 11


@pytest.mark.parametrize("error", [ObjectNotFound, AccessDenied])
def test_a_refusal_counts_as_an_answer(error: type[ObjectNotFound | AccessDenied]) -> None:
    class Refusing(MemoryStore):
        def head(self, key: str) -> Any:
            raise error(key, "no")

    observed = Observed()
    with pytest.raises(error):
        ObservedStore(Refusing(), observed).head("a")
    assert observed.said == ["answered"]


def test_a_missing_answer_is_observed_also_in_the_middle_of_a_listing(clock: ManualClock) -> None:
    inner = MemoryStore(clock=clock)
    inner.put("a", b"", Create())
    faulty = FaultyStore(inner, [Fault(lambda _: True, FaultKind.UNAVAILABLE, times=10**9)])
    observed = Observed()
    store = ObservedStore(faulty, observed)
    with pytest.raises(StoreUnavailable):
        store.get("a")
    with pytest.raises(StoreUnavailable):
        list(store.list(""))
    assert len(observed.said) == 2
    assert "answered" not in observed.said


def test_a_missing_bucket_counts_as_no_answer() -> None:
    class Missing(MemoryStore):
        def get(self, key: str, max_bytes: int | None = None) -> Any:
            raise BucketMissing(key, "no such bucket")

    observed = Observed()
    with pytest.raises(BucketMissing):
        ObservedStore(Missing(), observed).get("a")
    assert observed.said == ["`a`: no such bucket"]


# Over HTTP


def asked(port: int, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            assert answer.headers["Content-Type"] == "application/json"
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_probes_are_answered_on_the_metrics_port(liveness: Liveness) -> None:
    with serving(CollectorRegistry(), "127.0.0.1", 0, liveness) as port:
        assert asked(port, "/health/live") == (200, {"status": "alive", "message": "last progress 0 s ago"})
        unready = {"error_code": 503, "status": "not ready", "message": "the store has not answered yet"}
        assert asked(port, "/health/ready") == (503, unready)
        liveness.answered()
        assert asked(port, "/health/ready?verbose=1") == (200, {"status": "ready", "message": "the store answers"})
        for path in ("/metrics", "/", "/health/ready/"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain")


def test_a_probe_does_not_wait_for_a_scrape(liveness: Liveness) -> None:
    begun, may_end = threading.Event(), threading.Event()

    class Slow:
        def collect(self) -> Any:
            begun.set()
            may_end.wait(60)
            return ()

    registry = CollectorRegistry()
    registry.register(Slow())
    with serving(registry, "127.0.0.1", 0, liveness) as port:
        scrape = threading.Thread(
            target=lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).close()
        )
        scrape.start()
        assert begun.wait(60)
        assert asked(port, "/health/live")[0] == 200
        may_end.set()
        scrape.join()


def test_idle_connections_block_no_probe_and_hold_few_threads(liveness: Liveness) -> None:
    with (
        serving(CollectorRegistry(), "127.0.0.1", 0, liveness) as port,
        contextlib.ExitStack() as held,
    ):
        before = {*threading.enumerate()}

        def threads() -> int:
            return len({*threading.enumerate()} - before)

        idle: list[socket.socket] = []
        for number in range(300):
            idle.append(held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)))
            # The server accepts each connection before the next one comes. Where its backlog is full, TCP waits for a
            # second before it tries again.
            if number < 64:
                wait_for(lambda most=number: threads() > most, 60, "the connection is served", 0.001)  # type: ignore[misc]  # mypy does not infer a lambda with a default
            else:
                assert idle[number - 64].recv(1) == b"", "the oldest gives way"
        for _ in range(20):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/live", timeout=60) as answer:
                assert answer.status == 200
        wait_for(lambda: threads() <= 65, 60, "threads of connections that gave way have ended")
