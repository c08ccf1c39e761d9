"""Backpressure: what pauses reading is counted, with its duration."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from keyfold.runtime.clock import ManualClock
from keyfold_sink.group.assignment import PauseReason
from keyfold_sink.group.group import ConsumerGroup
from keyfold_sink.metrics import names
from keyfold_sink.metrics.meter import TaskMeter
from keyfold_sink.task.backpressure import Backpressure
from keyfold_sink.write.memory_budget import InFlight


class FakeFetching:
    def __init__(self) -> None:
        self.reasons: set[PauseReason] = set()

    def pause(self, reason: PauseReason) -> None:
        self.reasons.add(reason)

    def resume(self, reason: PauseReason) -> None:
        self.reasons.discard(reason)

    def hold(self, owner: Any, reason: PauseReason) -> None:
        owner.holds.add(reason)

    def release(self, owner: Any, reason: PauseReason) -> None:
        owner.holds.discard(reason)


class Drained(ManualClock):
    """A clock that lets the store take all bytes in flight after a while."""

    def __init__(self, in_flight: InFlight, after_ms: int) -> None:
        super().__init__()
        self.in_flight, self.at_ms = in_flight, self.time_ms + after_ms

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.time_ms >= self.at_ms:
            self.in_flight.add(-self.in_flight.size_bytes)


def counted(meter: TaskMeter) -> tuple[float, float]:
    found = meter.values({})
    return found[names.PAUSES.name], found[names.PAUSED_SECONDS.name]


@pytest.mark.parametrize("after_ms", [300, 5_000])
def test_a_short_backlog_is_awaited_and_a_longer_one_pauses_reading(after_ms: int) -> None:
    in_flight = InFlight()
    clock = Drained(in_flight, after_ms)
    meter, fetching = TaskMeter(clock), FakeFetching()
    group = SimpleNamespace(assigned={}, fetching=fetching)
    backpressure = Backpressure(cast("ConsumerGroup", cast("Any", group)), in_flight, 1_000, meter)
    backpressure.limit_memory(threading.Event())
    assert counted(meter) == (0, 0)
    in_flight.add(1_500)
    backpressure.limit_memory(threading.Event())
    if after_ms < 1_000:
        assert fetching.reasons == set()
        assert counted(meter) == pytest.approx((0, 0.3), abs=0.01)
        return
    assert fetching.reasons == {PauseReason.MEMORY}
    assert counted(meter) == pytest.approx((1, 1.0), abs=0.01)
    for _ in range(40):
        clock.sleep(0.1)
        backpressure.limit_memory(threading.Event())
    assert fetching.reasons == set()
    assert counted(meter) == pytest.approx((1, 5.0), abs=0.15), "until it was resumed, and no longer"


class FakeWriter:
    def __init__(self, of_all: InFlight) -> None:
        self.sent, self.held_bytes, self.rolled = InFlight(of_all), 0, 0

    @property
    def sent_bytes(self) -> int:
        return self.sent.size_bytes

    def roll(self, _reason: object) -> None:
        self.rolled += 1
        self.sent.add(self.held_bytes)
        self.held_bytes = 0


def test_only_the_partition_whose_commits_lag_is_paused() -> None:
    in_flight, fetching = InFlight(), FakeFetching()
    writers = [FakeWriter(in_flight) for _ in range(3)]
    owners = {
        ("t", number): SimpleNamespace(key=("t", number), writer=writer, holds=set(), is_fetched=True)
        for number, writer in enumerate(writers)
    }
    group = SimpleNamespace(assigned=owners, fetching=fetching)
    backpressure = Backpressure(cast("ConsumerGroup", cast("Any", group)), in_flight, 1_600, TaskMeter(ManualClock()))

    def paused() -> list[int]:
        backpressure.limit_memory(threading.Event())
        assert not fetching.reasons
        return [number for number in range(3) if owners["t", number].holds]

    writers[0].sent.add(700)
    assert paused() == []
    writers[0].sent.add(200)
    assert paused() == [0]  # more than the 700 that are free
    writers[1].sent.add(300)
    assert paused() == [0]
    writers[1].sent.add(100)
    assert paused() == [0, 1]
    writers[2].held_bytes = 200
    backpressure.limit_memory(threading.Event())
    assert writers[2].rolled == 1, "half of what the stuck ones have left is reached"
    writers[1].sent.add(-400)
    assert paused() == [0]
    writers[0].sent.add(-650)
    assert paused() == []


def test_a_single_partition_is_never_paused_alone() -> None:
    in_flight, fetching = InFlight(), FakeFetching()
    writer = FakeWriter(in_flight)
    owner = SimpleNamespace(key=("t", 0), writer=writer, holds=set(), is_fetched=True)
    group = SimpleNamespace(assigned={owner.key: owner}, fetching=fetching)
    backpressure = Backpressure(cast("ConsumerGroup", cast("Any", group)), in_flight, 1_600, TaskMeter(ManualClock()))
    writer.sent.add(1_500)
    backpressure.limit_memory(threading.Event())
    assert not owner.holds
    assert not fetching.reasons


def test_backpressure_reserves_memory_for_large_records_and_rolls_held_ones() -> None:
    in_flight, fetching, large = InFlight(), FakeFetching(), [0.0]
    writer = FakeWriter(in_flight)
    owner = SimpleNamespace(key=("t", 0), writer=writer, holds=set(), is_fetched=True)
    group = SimpleNamespace(assigned={owner.key: owner}, fetching=fetching)
    clock = ManualClock()
    backpressure = Backpressure(
        cast("ConsumerGroup", cast("Any", group)),
        in_flight,
        1_600,
        TaskMeter(clock),
        large_record_bytes=lambda: large[0],
    )
    in_flight.add(900)
    backpressure.limit_memory(threading.Event())
    assert not fetching.reasons
    large[0] = 400.0
    backpressure.limit_memory(threading.Event())
    assert fetching.reasons == {PauseReason.MEMORY}, "900, and 800 that a large record takes for a moment"
    in_flight.add(-900)
    large[0] = 10_000.0  # half of the limit at most, or nothing would ever be read again
    writer.held_bytes = 500
    backpressure.limit_memory(threading.Event())
    assert writer.rolled == 1
    writer.sent.add(-500)
    backpressure.limit_memory(threading.Event())
    assert not fetching.reasons
