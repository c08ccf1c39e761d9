"""The byte budget: accounting, not stopwatches. (`tests/bench/bench_throttle.py` measures.)"""

from __future__ import annotations

import socket
import threading
from dataclasses import replace

import pytest

from keyfold.clock import ManualClock
from keyfold_compactor.throttle import (
    BURST_S,
    BudgetPacer,
    ThrottleLost,
    ThrottleService,
    TokenBucket,
    slice_bytes,
)

RATE = 2_000_000.0
CHUNK = 65_536


@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_over_twenty_seconds_the_rate_is_kept_and_used(tasks: int) -> None:
    """Tasks take turns on one clock: whoever is ready first asks next."""
    clock = ManualClock()
    bucket = TokenBucket(RATE, clock)
    end_s = clock.monotonic_s() + 20
    ready = [clock.monotonic_s()] * tasks
    moved = 0
    while min(ready) < end_s:
        at = ready.index(min(ready))
        clock.time_ms = max(clock.time_ms, round(ready[at] * 1000))
        ready[at] = clock.monotonic_s() + bucket.reserve(CHUNK)
        moved += CHUNK
    assert moved == pytest.approx(RATE * 20, rel=0.02)


def test_a_request_is_let_through_at_once_and_the_next_one_pays() -> None:
    clock = ManualClock()
    bucket = TokenBucket(1_000, clock)
    assert bucket.reserve(50_000) == 0.0
    assert bucket.reserve(1) == pytest.approx(50 - BURST_S)


def test_idle_time_is_forgotten_but_for_a_tenth_of_a_second() -> None:
    clock = ManualClock()
    bucket = TokenBucket(1_000, clock)
    clock.advance(3_600_000)
    bucket.reserve(100)
    bucket.reserve(1_000)
    assert bucket.reserve(1) == pytest.approx(1.0)


def test_what_is_given_back_is_there_for_others() -> None:
    clock = ManualClock()
    bucket = TokenBucket(1_000, clock)
    bucket.reserve(5_000)
    bucket.reserve(-4_000)
    assert bucket.reserve(1) == pytest.approx(1.0 - BURST_S)
    assert bucket.granted_bytes == 1_001


def test_a_pacer_takes_slices_waits_and_gives_the_rest_back() -> None:
    clock = ManualClock()
    bucket = TokenBucket(1_000_000, clock)
    pacer = BudgetPacer(bucket, clock, slice_size_bytes=200_000)
    for _ in range(10):
        pacer.acquire(CHUNK)
    assert (pacer.paced_bytes, bucket.granted_bytes) == (655_360, 800_000)
    assert pacer.wait_s == pytest.approx(0.5, abs=0.01)
    pacer.give_back()
    assert bucket.granted_bytes == 655_360


def test_slices_are_a_chunk_at_low_rates_and_bounded_at_high_ones() -> None:
    assert slice_bytes(RATE) == CHUNK
    assert slice_bytes(50e6) == 1_000_000
    assert slice_bytes(1e12) == 4 * 1024 * 1024


def test_tasks_share_one_budget_over_the_service() -> None:
    with ThrottleService(1e9) as service:
        moved = []

        def task() -> None:
            client = service.address.connect()
            pacer = BudgetPacer(client, ManualClock(), CHUNK)
            for _ in range(50):
                pacer.acquire(10_000)
            pacer.give_back()
            moved.append(pacer.paced_bytes)
            client.reserve(0)  # an answer: what was given back before it has arrived
            client.close()

        threads = [threading.Thread(target=task) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert moved == [500_000] * 8
        assert service.bucket.granted_bytes == 4_000_000


def test_a_wrong_token_is_turned_away() -> None:
    with ThrottleService(1e6) as service, pytest.raises(ThrottleLost):
        replace(service.address, token=b"x" * 32).connect()


def test_a_lost_driver_stops_the_task_and_never_lets_it_run_free() -> None:
    service = ThrottleService(1e6)
    client = service.address.connect()
    assert client.reserve(1) == 0.0
    service.close()
    for _ in range(2):
        with pytest.raises(ThrottleLost):
            client.reserve(1)
    with pytest.raises(ThrottleLost, match="does not answer"):
        service.address.connect()
    client.close()


def test_a_stranger_that_says_nothing_harms_nobody() -> None:
    with ThrottleService(1e6) as service:
        stranger = socket.create_connection((service.address.host, service.address.port))
        client = service.address.connect()
        assert client.reserve(10) == 0.0
        client.close()
        stranger.close()
    assert "token" not in repr(service.address)


def test_an_accept_that_fails_does_not_end_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    accept = socket.socket.accept
    failures = [OSError(24, "too many open files"), ConnectionAbortedError()]

    def failing(listener: socket.socket) -> object:
        if failures:
            raise failures.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", failing)
    with ThrottleService(1e9) as service:
        client = service.address.connect()
        assert client.reserve(1) == 0.0
        client.close()
    assert failures == []


def test_rates_beyond_all_measure_are_taken_as_they_are() -> None:
    assert slice_bytes(float("inf")) == slice_bytes(1e308)
    with ThrottleService(1e-12) as service:
        client = service.address.connect()
        client.reserve(10**6)
        assert client.reserve(10**6) > 86_400, "an answer, though no clock can sleep as long as it should be"
        client.close()


def test_the_service_may_listen_elsewhere_than_tasks_know_it() -> None:
    with ThrottleService(1e9, host="localhost", bind="127.0.0.1") as service:
        assert service.address.host == "localhost"
        client = service.address.connect()
        assert client.reserve(1) == 0.0
        client.close()
