"""The brake: what pauses reading, and how long, is counted."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from keyfold.clock import ManualClock
from keyfold_sink import metric_names as names
from keyfold_sink.assignment import PauseReason
from keyfold_sink.budget import InFlight
from keyfold_sink.group import Group
from keyfold_sink.metrics import TaskMeter
from keyfold_sink.relief import Relief


class FakeFetching:
    def __init__(self) -> None:
        self.reasons: set[PauseReason] = set()

    def pause(self, reason: PauseReason) -> None:
        self.reasons.add(reason)

    def resume(self, reason: PauseReason) -> None:
        self.reasons.discard(reason)


class Drained(ManualClock):
    """A clock that lets the store take what is on its way after a while."""

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
def test_a_moment_is_waited_for_and_only_what_is_longer_is_a_pause(after_ms: int) -> None:
    in_flight = InFlight()
    clock = Drained(in_flight, after_ms)
    meter, fetching = TaskMeter(clock), FakeFetching()
    group = SimpleNamespace(assigned={}, fetching=fetching)
    relief = Relief(cast("Group", cast("Any", group)), in_flight, 1_000, meter)
    relief.step(threading.Event())
    assert counted(meter) == (0, 0)
    in_flight.add(1_500)
    relief.step(threading.Event())
    if after_ms < 1_000:
        assert fetching.reasons == set()
        assert counted(meter) == pytest.approx((0, 0.3), abs=0.01)
        return
    assert fetching.reasons == {PauseReason.MEMORY}
    assert counted(meter) == pytest.approx((1, 1.0), abs=0.01)
    for _ in range(40):
        clock.sleep(0.1)
        relief.step(threading.Event())
    assert fetching.reasons == set()
    assert counted(meter) == pytest.approx((1, 5.0), abs=0.15), "until it was resumed, and no longer"
