"""The byte budget: accounting, not stopwatches. (`tests/bench/bench_throttle.py` measures.)"""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass, replace
from random import Random

import pytest

from keyfold.runtime.clock import ManualClock
from keyfold.runtime.rate_limit import BURST_S
from keyfold.runtime.throttle import (
    PIECE_BYTES_MIN,
    BudgetPacer,
    ThrottleLost,
    ThrottleService,
    TokenBucket,
    piece_bytes,
    slice_bytes,
)
from keyfold.store.pacing import CHUNK_BYTES
from tests.support.wire_meter import Move, most_within

RATE = 2_000_000.0
CHUNK = CHUNK_BYTES
HEADS = 1_500
"""Bytes of a request's head and its answer's."""


@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_the_rate_is_neither_exceeded_nor_wasted_over_twenty_seconds(tasks: int) -> None:
    """A clock that tasks share in turns: the task with the earliest time runs next."""
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


@dataclass
class TaskClock:
    """The time of one task. The bucket is called at the time of the task that runs."""

    now_s: float = 1000.0

    def now_ms(self) -> int:
        return round(self.now_s * 1000)

    def monotonic_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Tasks:
    """Tasks on virtual time that share a bucket: the task with the earliest time sends next.

    Each moves what a task moves: pieces that are read, chunks and ends of bodies that are sent. A `stop` keeps them all
    from moving for a while, each with what it has left of a slice.
    """

    def __init__(self, tasks: int, rate: float, random: Random) -> None:
        self.rate, self.random = rate, random
        self.asked = TaskClock()
        self.bucket = TokenBucket(rate, self.asked)
        self.clocks = [TaskClock() for _ in range(tasks)]
        self.pacers = [BudgetPacer(self.bucket, clock, rate) for clock in self.clocks]
        self.moves: list[Move] = []

    def run(self, seconds: float) -> None:
        end_s = min(clock.now_s for clock in self.clocks) + seconds
        while min(clock.now_s for clock in self.clocks) < end_s:
            clock, pacer = min(zip(self.clocks, self.pacers, strict=True), key=lambda task: task[0].now_s)
            self._move(clock, pacer)

    def stop(self, seconds: float) -> None:
        latest_s = max(clock.now_s for clock in self.clocks)
        for clock in self.clocks:
            clock.now_s = latest_s + seconds

    def _move(self, clock: TaskClock, pacer: BudgetPacer) -> None:
        chunk = min(CHUNK, pacer.piece_bytes)
        n_bytes = self.random.choice([pacer.piece_bytes, chunk, self.random.randint(1, chunk)])
        self.asked.now_s = clock.now_s
        pacer.acquire(n_bytes)
        pacer.owe(HEADS)
        self.moves.append(Move(clock.now_s, n_bytes + HEADS))


@pytest.mark.parametrize("rate", [200_000.0, RATE, 100_000_000.0])
@pytest.mark.parametrize("tasks", range(1, 9))
def test_no_second_has_more_than_1_3_times_the_rate(tasks: int, rate: float) -> None:
    """The limit also holds if all tasks are idle for a while and then continue together."""
    run = Tasks(tasks, rate, Random(f"{tasks} {rate}"))
    run.run(20)
    begun_s = run.moves[0].at_s
    moved = sum(move.n_bytes for move in run.moves if move.at_s < begun_s + 20)
    assert moved >= 0.96 * rate * 20
    for _ in range(20):
        run.stop(run.random.choice([0.01, 0.1, 3.0]))
        run.run(run.random.choice([0.05, 0.3, 1.5]))
    assert most_within(sorted(run.moves), 1.0) <= 1.3 * rate


def test_a_request_passes_immediately_and_the_next_one_waits() -> None:
    clock = ManualClock()
    bucket = TokenBucket(1_000, clock)
    assert bucket.reserve(50_000) == 0.0
    assert bucket.reserve(1) == pytest.approx(50 - BURST_S)


def test_idle_time_gives_at_most_a_twentieth_of_a_second_of_credit() -> None:
    clock = ManualClock()
    bucket = TokenBucket(1_000, clock)
    clock.advance(3_600_000)
    bucket.reserve(50)
    bucket.reserve(1_000)
    assert bucket.reserve(1) == pytest.approx(1.0)


def test_returned_bytes_are_available_to_others() -> None:
    clock = ManualClock()
    bucket = TokenBucket(1_000, clock)
    bucket.reserve(5_000)
    bucket.reserve(-4_000)
    assert bucket.reserve(1) == pytest.approx(1.0 - BURST_S)
    assert bucket.granted_bytes == 1_001


def test_a_pacer_takes_slices_waits_and_returns_the_rest() -> None:
    clock = ManualClock()
    bucket = TokenBucket(10_000_000, clock)
    pacer = BudgetPacer(bucket, clock, 10_000_000)
    for _ in range(10):
        pacer.acquire(CHUNK)
    assert (pacer.paced_bytes, bucket.granted_bytes) == (655_360, 700_000)
    assert pacer.wait_s == pytest.approx(0.065 - BURST_S, abs=0.01)
    pacer.give_back()
    assert bucket.granted_bytes == 655_360


def test_owed_bytes_delay_the_next_ones_or_are_booked_at_the_end() -> None:
    asked: list[int] = []

    class Budget:
        def reserve(self, n_bytes: int) -> float:
            asked.append(n_bytes)
            return 0.0

    pacer = BudgetPacer(Budget(), ManualClock(), RATE)
    pacer.owe(1_000)
    pacer.owe(500)
    assert not asked, "nobody waits for what has moved"
    pacer.acquire(pacer.piece_bytes)
    pacer.acquire(100)
    pacer.owe(50)
    pacer.give_back()
    assert asked == [101_500, 20_000, -(20_000 - 150)]
    pacer.owe(70)
    pacer.give_back()
    pacer.give_back()
    assert asked[3:] == [70]
    assert pacer.paced_bytes == sum(asked)


def test_owed_bytes_are_reported_while_another_thread_waits() -> None:
    class Waiting(ManualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            pacer.owe(1)  # by a thread that must not wait: the lock is held

    clock = Waiting()
    pacer = BudgetPacer(TokenBucket(RATE, clock), clock, RATE)
    for _ in range(20):
        pacer.acquire(pacer.piece_bytes)
    assert pacer.wait_s > 0


def test_a_piece_is_requested_in_one_grant() -> None:
    """Two tasks that got halves of their pieces in turn would finish both pieces late."""
    asked: list[int] = []

    class Budget:
        def reserve(self, n_bytes: int) -> float:
            asked.append(n_bytes)
            return 0.0

    pacer = BudgetPacer(Budget(), ManualClock(), RATE)
    pacer.acquire(1)
    pacer.acquire(pacer.piece_bytes)
    assert asked == [20_000, 100_000 - 19_999]


def test_slices_and_pieces_are_short_at_the_full_rate_and_bounded() -> None:
    assert (slice_bytes(200_000), piece_bytes(200_000)) == (2_000, PIECE_BYTES_MIN)
    assert (slice_bytes(RATE), piece_bytes(RATE)) == (20_000, 100_000)
    assert (slice_bytes(50e6), piece_bytes(50e6)) == (500_000, 2_500_000)
    assert (slice_bytes(1e12), piece_bytes(1e12)) == (4 * 1024 * 1024, 64 * 1024 * 1024)
    assert (slice_bytes(1e-12), piece_bytes(1e-12)) == (1, PIECE_BYTES_MIN)


def test_tasks_share_one_budget_over_the_service() -> None:
    with ThrottleService(1e9) as service:
        moved = []

        def task() -> None:
            client = service.address.connect()
            pacer = BudgetPacer(client, ManualClock(), 1e9)
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


def test_a_wrong_token_is_refused() -> None:
    with ThrottleService(1e6) as service, pytest.raises(ThrottleLost):
        replace(service.address, token=b"x" * 32).connect()


def test_a_lost_driver_stops_the_task_instead_of_lifting_the_limit() -> None:
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


def test_a_silent_connection_blocks_no_task() -> None:
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


def test_extreme_rates_are_accepted() -> None:
    assert slice_bytes(float("inf")) == slice_bytes(1e308)
    assert piece_bytes(float("inf")) == piece_bytes(1e308)
    with ThrottleService(1e-12) as service:
        client = service.address.connect()
        client.reserve(10**6)
        assert client.reserve(10**6) > 86_400, "an answer, though no clock can sleep as long as it should be"
        client.close()


def test_the_service_may_listen_on_another_address_than_the_advertised_one() -> None:
    with ThrottleService(1e9, host="localhost", bind="127.0.0.1") as service:
        assert service.address.host == "localhost"
        client = service.address.connect()
        assert client.reserve(1) == 0.0
        client.close()
